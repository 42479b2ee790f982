//! Alive, suspect or lost: a pure judgement over what is known of every member.
//!
//! Three witnesses, none of which is believed alone: the QUIC link, chitchat's phi detector, and what
//! other members say of their links. Seeing *nobody* says something about this peer, not about all
//! the others: then it is isolated, and nobody is called lost.

use std::collections::BTreeMap;

use crate::base::{Instant, PeerName, Span};
use crate::model::report::Liveness;

/// What is known of one other member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evidence {
    /// A direct link stands.
    pub connected: bool,
    /// When the last link ended, if there was one.
    pub disconnected_at: Option<Instant>,
    /// chitchat's verdict; none where gossip does not know the member.
    pub phi_alive: Option<bool>,
    /// When anything of it was last heard (heartbeat, facet), or when this peer started to listen.
    pub heard_at: Instant,
    /// Other members, themselves alive, that say they have a link to it.
    pub seen_by_others: usize,
    /// When another member last said that it does not reach it.
    pub suspected_at: Option<Instant>,
    /// This peer itself was cut off until then: silence before that says nothing of the others.
    pub alone_until: Instant,
    /// It said goodbye, and has not come back since.
    pub left: bool,
}

/// Times of the judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// A member whose link broke is suspect when nothing is heard of it for this long.
    pub suspect_after: Span,
    /// A suspect of which nobody has heard for this long is lost.
    pub lost_after: Span,
}

impl Default for Rules {
    fn default() -> Self {
        Self { suspect_after: Span::millis(1_500), lost_after: Span::secs(10) }
    }
}

/// The judgement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// This peer sees nobody, although there are members that did not say goodbye.
    pub isolated: bool,
    /// By name.
    pub liveness: BTreeMap<PeerName, Liveness>,
}

/// Judges all other members at once.
pub fn judge(now: Instant, all: &BTreeMap<PeerName, Evidence>, rules: &Rules) -> Verdict {
    let one = |e: &Evidence| judge_one(now, e, rules);
    let mut liveness: BTreeMap<_, _> = all.iter().map(|(name, e)| (name.clone(), one(e))).collect();
    let expected = all.values().any(|e| !e.left);
    let isolated = expected && !liveness.values().any(|l| *l == Liveness::Alive);
    if isolated {
        for (name, verdict) in &mut liveness {
            if *verdict == Liveness::Lost && !all.get(name).is_some_and(|e| e.left) {
                *verdict = Liveness::Suspect;
            }
        }
    }
    Verdict { isolated, liveness }
}

fn judge_one(now: Instant, e: &Evidence, rules: &Rules) -> Liveness {
    if e.left {
        return Liveness::Lost;
    }
    if e.connected {
        return Liveness::Alive;
    }
    let silent = now.since(e.heard_at);
    let broken = e.disconnected_at.is_some() && silent >= rules.suspect_after;
    // Somebody else's suspicion counts until the member is heard again.
    let suspected = e.suspected_at.is_some_and(|at| at > e.heard_at);
    if e.phi_alive == Some(true) && !broken && !suspected {
        return Liveness::Alive;
    }
    let silent = silent.min(now.since(e.alone_until));
    if silent < rules.lost_after || e.seen_by_others > 0 { Liveness::Suspect } else { Liveness::Lost }
}

#[cfg(test)]
mod tests {
    use Liveness::{Alive, Lost, Suspect};

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000)
    }
    const NOW: u64 = 100_000;

    /// A member heard of `silent` milliseconds ago, with nothing else known.
    fn heard(silent: u64) -> Evidence {
        Evidence { heard_at: at(NOW - silent), ..Evidence::default() }
    }
    fn gossiped(silent: u64) -> Evidence {
        Evidence { phi_alive: Some(true), ..heard(silent) }
    }
    fn name(text: &str) -> PeerName {
        PeerName::new(text).expect("a label")
    }

    #[test]
    fn one_member_beside_a_living_one() {
        let cases = [
            ("linked", Evidence { connected: true, ..heard(0) }, Alive),
            ("linked, although gossip is slow", Evidence { connected: true, ..heard(60_000) }, Alive),
            ("no link, but gossip hears it", gossiped(800), Alive),
            (
                "the link broke, gossip still hears it",
                Evidence { disconnected_at: Some(at(1)), ..gossiped(800) },
                Alive,
            ),
            (
                "the link broke and it is silent",
                Evidence { disconnected_at: Some(at(1)), ..gossiped(1_600) },
                Suspect,
            ),
            ("never linked, phi goes", Evidence { phi_alive: Some(false), ..heard(4_000) }, Suspect),
            ("another one suspects it", Evidence { suspected_at: Some(at(NOW)), ..gossiped(500) }, Suspect),
            (
                "heard after the suspicion",
                Evidence { suspected_at: Some(at(NOW - 700)), ..gossiped(500) },
                Alive,
            ),
            (
                "suspected, but linked here",
                Evidence { suspected_at: Some(at(NOW)), connected: true, ..heard(5) },
                Alive,
            ),
            ("silent for long", Evidence { phi_alive: Some(false), ..heard(10_000) }, Lost),
            ("silent for long, others see it", Evidence { seen_by_others: 1, ..heard(60_000) }, Suspect),
            ("never heard, just started", heard(0), Suspect),
            ("never heard for long", heard(20_000), Lost),
            (
                "it said goodbye, its link still stands",
                Evidence { left: true, connected: true, ..gossiped(0) },
                Lost,
            ),
        ];
        for (what, evidence, wanted) in cases {
            let all = BTreeMap::from([
                (name("x"), evidence),
                (name("ok"), Evidence { connected: true, ..heard(0) }),
            ]);
            let verdict = judge(at(NOW), &all, &Rules::default());
            assert_eq!(verdict.liveness[&name("x")], wanted, "{what}");
            assert!(!verdict.isolated, "{what}");
        }
    }

    #[test]
    fn seeing_nobody_is_isolation_and_not_their_death() {
        let silent = Evidence { phi_alive: Some(false), ..heard(60_000) };
        let all = BTreeMap::from([(name("a"), silent), (name("b"), silent)]);
        let verdict = judge(at(NOW), &all, &Rules::default());
        assert!(verdict.isolated);
        assert!(verdict.liveness.values().all(|l| *l == Suspect));
        let mut one_left = all.clone();
        one_left.insert(name("c"), Evidence { left: true, ..silent });
        let verdict = judge(at(NOW), &one_left, &Rules::default());
        assert_eq!(
            (verdict.isolated, verdict.liveness[&name("c")]),
            (true, Lost),
            "what said goodbye is gone"
        );
        let mut healed = all;
        healed.insert(name("b"), gossiped(100));
        let verdict = judge(at(NOW), &healed, &Rules::default());
        assert_eq!((verdict.isolated, verdict.liveness[&name("a")]), (false, Lost));
        // Who was cut off itself until a moment ago gives the others time to be heard again.
        for e in healed.values_mut() {
            e.alone_until = at(NOW - 100);
        }
        let verdict = judge(at(NOW), &healed, &Rules::default());
        assert_eq!((verdict.isolated, verdict.liveness[&name("a")]), (false, Suspect));
    }

    #[test]
    fn a_mesh_of_one_is_not_isolated() {
        assert_eq!(judge(at(NOW), &BTreeMap::new(), &Rules::default()), Verdict::default());
        let all = BTreeMap::from([(name("a"), Evidence { left: true, ..heard(0) })]);
        assert!(!judge(at(NOW), &all, &Rules::default()).isolated, "everybody else said goodbye");
    }
}
