//! What a placement policy weighs: whole thousandths over a few terms, so that text and value agree.
//!
//! The terms are physical first and then brought to one scale, hours of the job: an hour until the first step is
//! 1, an hour of moving data is 1, and so is the money (or energy) that an hour of the job's own GPUs costs
//! (see `core::placement::score`). Weights say what one such hour is worth against another.

use serde::{Deserialize, Serialize};

use super::spec::Policy;

/// What is weighed. Of every term more is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Term {
    /// Time to the first step: the longest of waiting, data and image, hours.
    Start,
    /// Time in the queue, hours.
    Wait,
    /// Time for moving what is not there, data and image, hours.
    Data,
    /// GPU hours, egress and energy in money, in hours of the job's GPUs.
    Cost,
    /// Energy, in hours of the job's GPUs.
    Energy,
    /// Share of the cluster that is taken.
    Load,
}

impl Term {
    /// All, in the order of [`Weights`].
    pub const ALL: [Term; 6] = [Self::Start, Self::Wait, Self::Data, Self::Cost, Self::Energy, Self::Load];

    /// As in configuration and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Wait => "wait",
            Self::Data => "data",
            Self::Cost => "cost",
            Self::Energy => "energy",
            Self::Load => "load",
        }
    }
}

/// Weights of the terms in thousandths, by the order of [`Term::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights(pub [u32; 6]);

impl Weights {
    /// Largest weight, thousandths.
    pub const MAX_MILLI: u32 = 1_000_000;

    /// One weight.
    pub fn of(&self, term: Term) -> f64 {
        f64::from(self.0[term as usize]) / 1e3
    }
}

/// The weights of every policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policies(pub [Weights; 6]);

/// Policies in the order of [`Policies`], with their names.
pub const POLICIES: [(&str, Policy); 6] = [
    ("balanced", Policy::Balanced),
    ("data-first", Policy::DataFirst),
    ("cheapest", Policy::Cheapest),
    ("fastest", Policy::Fastest),
    ("spread", Policy::Spread),
    ("green", Policy::Green),
];

impl Default for Policies {
    /// `balanced` has the three weights that a field report on running such a system ended with: near the data 0.5,
    /// idle GPUs 0.3, cost 0.2; but nearness is a time here, so a small dataset moves. The little weight on load
    /// tells equals apart.
    fn default() -> Self {
        //             start  wait  data   cost  energy load
        Self([
            Weights([0, 300, 500, 200, 0, 20]),
            Weights([0, 100, 1_000, 20, 0, 20]),
            Weights([50, 0, 0, 1_000, 0, 10]),
            Weights([1_000, 0, 0, 0, 0, 20]),
            Weights([300, 0, 0, 50, 0, 1_000]),
            Weights([50, 0, 0, 0, 1_000, 10]),
        ])
    }
}

impl Policies {
    /// The weights of one policy.
    pub fn of(&self, policy: Policy) -> &Weights {
        &self.0[policy as usize]
    }

    /// What differs from `older`, one line each: `balanced.data 0.5 -> 0.7`.
    pub fn changes(&self, older: &Policies) -> Vec<String> {
        let mut out = Vec::new();
        for (name, policy) in POLICIES {
            for term in Term::ALL {
                let (was, is) = (older.of(policy).of(term), self.of(policy).of(term));
                if was != is {
                    out.push(format!("{name}.{} {was} -> {is}", term.as_str()));
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_found_by_policy_and_term() {
        let all = Policies::default();
        for (i, (_, policy)) in POLICIES.into_iter().enumerate() {
            assert_eq!(all.of(policy), &all.0[i], "{policy:?}");
        }
        let balanced = all.of(Policy::Balanced);
        assert_eq!(
            [Term::Data, Term::Wait, Term::Cost].map(|t| balanced.of(t)),
            [0.5, 0.3, 0.2],
            "as the field report has them"
        );
        let mut other = all.clone();
        other.0[1].0[2] = 1_500;
        assert_eq!(other.changes(&all), ["data-first.data 1 -> 1.5"]);
    }
}
