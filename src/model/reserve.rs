//! A reservation: GPUs kept for a tenant at some clusters, from a time on, for a time. Its record is a job's record that
//! is never placed: `spec.reserve` says what is asked, `JobRecord::reserve` how far it has come.
//!
//! **Rounds.** What a cluster holds for a reservation that is not confirmed carries the record's round. `Confirm` names
//! the round; a cluster that lets go ends it first (`Lapse`). Both meet in one register: one wins.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::record::Refused;
use super::spec::{JobSpec, OnLostContact, PlacementSpec, Resources, Run, limits};
use super::{JobRecord, JobState};
use crate::base::{MilliCpu, PeerName, Span, WallTime};

/// Clusters of one reservation.
pub const CLUSTERS_MAX: usize = 8;
/// GPUs in each of them.
pub const GPUS_MAX: u32 = limits::NODES_MAX;
/// Shortest and longest.
pub const LENGTH_MIN: Span = Span::secs(10);
/// See above.
pub const LENGTH_MAX: Span = Span::secs(90 * 86_400);
/// It begins within this.
pub const AHEAD_MAX: Span = Span::secs(366 * 86_400);
/// A start that lies back by no more than this is taken for now: a request takes its time.
const LATE_MAX_MS: u64 = 60_000;
/// Bytes of a reason in the record.
const WHY_BYTES_MAX: usize = 1_024;

/// At which clusters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum At {
    /// At all of these, which are sorted and differ.
    Named(Vec<PeerName>),
    /// At so many, which the mesh chooses.
    Any(u32),
}

impl At {
    /// How many clusters.
    pub fn count(&self) -> usize {
        match self {
            At::Named(names) => names.len(),
            At::Any(n) => *n as usize,
        }
    }
}

/// What is asked, beside the tenant, the GPUs in each cluster (`spec.nodes` of one each) and their models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReserveSpec {
    /// At which clusters.
    pub at: At,
    /// From when on,
    pub from: WallTime,
    /// and until when.
    pub until: WallTime,
}

impl ReserveSpec {
    /// True if it was asked for from now on, at this time.
    pub fn begins_at_once(&self, asked: WallTime) -> bool {
        self.from <= asked && asked.0 - self.from.0 <= LATE_MAX_MS
    }

    /// For how many milliseconds.
    pub fn length(&self) -> u64 {
        self.until.0.saturating_sub(self.from.0)
    }
}

/// How far a reservation has come.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ReserveState {
    /// Which try: one more each time that a cluster let go before it was confirmed.
    pub round: u64,
    /// The clusters that keep it, once it is confirmed; sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

/// What one cluster keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ReservePart")]
pub struct Part {
    /// Which cluster.
    pub cluster: PeerName,
    /// It could not keep it: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// A change to a reservation's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReserveChange {
    /// All of these hold their part under this round.
    Confirm {
        /// The round under which they were asked.
        round: u64,
        /// Sorted.
        clusters: Vec<PeerName>,
    },
    /// A cluster lets go of what it holds under this round.
    Lapse {
        /// This one.
        round: u64,
    },
    /// It cannot be had.
    Refuse {
        /// Under this round.
        round: u64,
        /// In words.
        why: String,
        /// When.
        at: WallTime,
    },
    /// A cluster could not keep what was confirmed, or keeps it again.
    Part {
        /// Which.
        cluster: PeerName,
        /// Why it could not; none: it does.
        lost: Option<String>,
    },
    /// Its time is over.
    End {
        /// When.
        at: WallTime,
    },
}

/// GPUs at a cluster for a time, as the cluster is asked for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// GPUs.
    pub gpus: u32,
    /// Models that will do; empty is any.
    #[serde(default)]
    pub models: Vec<String>,
    /// From when on,
    pub from: WallTime,
    /// and until when.
    pub until: WallTime,
}

impl Asked {
    /// What one of its GPUs asks of a node.
    pub fn each(&self) -> Resources {
        Resources { gpus: 1, gpu: self.models.clone(), ..Resources::default() }
    }

    /// A mistake in it, in words.
    pub fn mistake(&self, now: WallTime) -> Option<String> {
        let length = Span::millis(self.until.0.saturating_sub(self.from.0));
        if self.gpus == 0 || self.gpus > GPUS_MAX {
            return Some(format!("gpus must be 1 to {GPUS_MAX} in each cluster"));
        }
        if self.models.len() > limits::LIST_MAX {
            return Some(format!("at most {} GPU models can be named", limits::LIST_MAX));
        }
        if length < LENGTH_MIN || length > LENGTH_MAX {
            return Some(format!("it must last {LENGTH_MIN} to {LENGTH_MAX}"));
        }
        if Span::millis(self.from.0.saturating_sub(now.0)) > AHEAD_MAX {
            return Some(format!("it must begin within {AHEAD_MAX}"));
        }
        (self.until <= now).then(|| "its time is over already".to_owned())
    }

    /// Both want something of one moment.
    pub fn meets(&self, other: &Asked) -> bool {
        self.from < other.until && other.from < self.until
    }
}

/// The spec of a reservation's record; refused are numbers that cannot be meant.
pub fn reservation(
    name: &str,
    tenant: &str,
    asked: &Asked,
    at: At,
    now: WallTime,
) -> Result<JobSpec, String> {
    if asked.from.0.saturating_add(LATE_MAX_MS) < now.0 {
        return Err("it must not begin in the past".into());
    }
    if let Some(mistake) = asked.mistake(now) {
        return Err(mistake);
    }
    if at.count() == 0 || at.count() > CLUSTERS_MAX {
        return Err(format!("name 1 to {CLUSTERS_MAX} clusters, or how many"));
    }
    let at = match at {
        At::Named(mut names) => {
            names.sort();
            names.dedup();
            At::Named(names)
        }
        any => any,
    };
    let clusters = match &at {
        At::Named(names) => names.clone(),
        At::Any(_) => Vec::new(),
    };
    Ok(JobSpec {
        name: name.to_owned(),
        tenant: tenant.to_owned(),
        priority: 50,
        resources: Resources { cpus: MilliCpu(0), ..asked.each() },
        nodes: asked.gpus,
        // It never runs.
        run: Run::Argv(Vec::new()),
        env: Default::default(),
        workdir: None,
        image: None,
        data: Vec::new(),
        checkpoint: None,
        communication: Default::default(),
        max_runtime: None,
        retries: 0,
        on_lost_contact: OnLostContact::default(),
        placement: PlacementSpec { clusters, ..PlacementSpec::default() },
        data_sizes: Default::default(),
        groups: Default::default(),
        array: None,
        after: Vec::new(),
        warn: None,
        preemptible: None,
        reserve: Some(ReserveSpec { at, from: asked.from, until: asked.until }),
    })
}

fn cut(why: &str) -> String {
    let mut end = why.len().min(WHY_BYTES_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    why[..end].to_owned()
}

impl JobRecord {
    /// It is a reservation.
    pub fn is_reservation(&self) -> bool {
        self.spec.reserve.is_some()
    }

    /// What each cluster is asked for, where it is a reservation.
    pub fn asked(&self) -> Option<Asked> {
        let reserve = self.spec.reserve.as_ref()?;
        let models = self.spec.resources.gpu.clone();
        Some(Asked { gpus: self.spec.nodes, models, from: reserve.from, until: reserve.until })
    }

    /// Clusters that keep it, lost ones among them.
    pub fn parts(&self) -> &[Part] {
        self.reserve.as_ref().map_or(&[], |r| &r.parts)
    }

    pub(super) fn reserve_apply(&mut self, change: &ReserveChange) -> Result<(), Refused> {
        let none = || Refused::Held("it is no reservation".into());
        let until = self.spec.reserve.as_ref().ok_or_else(none)?.until;
        let state = self.reserve.as_mut().ok_or_else(none)?;
        let pending = self.state == JobState::Pending;
        let round_is = |round: u64| match (pending, state.round == round) {
            (false, _) => Err(Refused::Held("the reservation is confirmed".into())),
            (true, false) => Err(Refused::Held("another round of the reservation is under way".into())),
            (true, true) => Ok(()),
        };
        match change {
            ReserveChange::Confirm { round, clusters } => {
                round_is(*round)?;
                let sorted = clusters.windows(2).all(|pair| pair[0] < pair[1]);
                if clusters.is_empty() || clusters.len() > CLUSTERS_MAX || !sorted {
                    return Err(Refused::Held("not the clusters of a reservation".into()));
                }
                let part = |cluster: &PeerName| Part { cluster: cluster.clone(), lost: None };
                state.parts = clusters.iter().map(part).collect();
                self.state = JobState::Running;
                let names: Vec<&str> = clusters.iter().map(PeerName::as_str).collect();
                let until = super::timestamp::to_rfc3339(until);
                self.reason = format!("reserved at {} until {until}", names.join(", "));
            }
            ReserveChange::Lapse { round } => {
                round_is(*round)?;
                state.round = state.round.saturating_add(1);
                self.reason = "a cluster has let go before all of them held it; asks again".into();
            }
            ReserveChange::Refuse { round, why, at } => {
                round_is(*round)?;
                self.finish(JobState::Failed, cut(why), *at);
            }
            ReserveChange::Part { cluster, lost } => {
                let part = state.parts.iter_mut().find(|part| part.cluster == *cluster);
                let part = part.ok_or(Refused::Unbound)?;
                part.lost = lost.as_deref().map(cut);
                self.reason = match lost {
                    Some(why) => format!("{cluster} could not keep it: {}", cut(why)),
                    None => format!("{cluster} keeps it again"),
                };
            }
            ReserveChange::End { at } => {
                if pending {
                    return Err(Refused::Held("the reservation is not confirmed".into()));
                }
                self.finish(JobState::Succeeded, "its time is over".into(), *at);
            }
        }
        Ok(())
    }

    pub(super) fn reserve_reflects(&self, change: &ReserveChange) -> bool {
        let Some(state) = &self.reserve else { return false };
        match change {
            ReserveChange::Confirm { round, clusters } => {
                state.round == *round && state.parts.iter().map(|p| &p.cluster).eq(clusters)
            }
            // Another one's lapse of the same round does as well.
            ReserveChange::Lapse { round } => state.round > *round && self.state == JobState::Pending,
            ReserveChange::Refuse { .. } => self.state == JobState::Failed,
            ReserveChange::Part { cluster, lost } => {
                let lost = lost.as_deref().map(cut);
                state.parts.iter().any(|part| part.cluster == *cluster && part.lost == lost)
            }
            ReserveChange::End { .. } => self.state == JobState::Succeeded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{BoundedVec, Home, StoreId, TraceId};
    use crate::model::record::{Birth, CancelIntent, Change};

    fn name(text: &str) -> PeerName {
        PeerName::new(text).expect("a name")
    }

    fn asked(from: u64, secs: u64) -> Asked {
        let from = WallTime(from);
        Asked { gpus: 16, models: vec!["H100-80G".into()], from, until: WallTime(from.0 + secs * 1_000) }
    }

    fn record() -> JobRecord {
        let at = At::Named(vec![name("b"), name("a"), name("b")]);
        let spec = reservation("r", "t", &asked(5_000, 3_600), at, WallTime(1_000)).expect("good");
        let homes =
            BoundedVec::try_from(vec![Home { peer: name("a"), store: StoreId([1; 16]) }]).expect("one");
        let birth = Birth { tenant: "t".into(), minter: name("a"), sequence: 1, homes };
        JobRecord::new(birth, spec, TraceId::default(), WallTime(1_000))
    }

    fn with(record: &JobRecord, change: ReserveChange) -> Result<JobRecord, Refused> {
        record.apply(&Change::Reserve(change))
    }

    fn confirm(round: u64) -> ReserveChange {
        ReserveChange::Confirm { round, clusters: vec![name("a"), name("b")] }
    }

    #[test]
    fn a_lapse_and_a_confirmation_of_one_round_exclude_each_other() {
        let new = record();
        assert_eq!(new.spec.reserve.as_ref().map(|r| r.at.count()), Some(2), "sorted, each once");
        let confirmed = with(&new, confirm(0)).expect("the first round");
        assert_eq!((confirmed.state, confirmed.parts().len()), (JobState::Running, 2));
        assert!(with(&confirmed, ReserveChange::Lapse { round: 0 }).is_err());
        let lapsed = with(&new, ReserveChange::Lapse { round: 0 }).expect("pending");
        assert!(with(&lapsed, confirm(0)).is_err());
        assert!(with(&lapsed, ReserveChange::Lapse { round: 0 }).is_err());
        assert!(lapsed.reflects(&Change::Reserve(ReserveChange::Lapse { round: 0 })));
        assert!(with(&lapsed, confirm(1)).is_ok());
        // Nothing follows an end; neither does a job's change make anything of it.
        let cancel = Change::Cancel { intent: CancelIntent { by: "u".into(), at: WallTime(9) } };
        for record in [&new, &lapsed, &confirmed] {
            let ended = record.apply(&cancel).expect("may be cancelled");
            assert_eq!(ended.state, JobState::Cancelled);
            assert!(with(&ended, confirm(0)).is_err());
        }
        let ended = with(&confirmed, ReserveChange::End { at: WallTime(9) }).expect("confirmed");
        assert_eq!(ended.state, JobState::Succeeded);
        assert!(with(&new, ReserveChange::End { at: WallTime(9) }).is_err());
    }

    #[test]
    fn a_part_is_lost_and_kept_again() {
        let confirmed = with(&record(), confirm(0)).expect("the first round");
        let lost = ReserveChange::Part { cluster: name("b"), lost: Some("é".repeat(2_000)) };
        let lost = with(&confirmed, lost).expect("a part");
        let why = lost.parts()[1].lost.clone().unwrap_or_default();
        assert!(why.len() <= WHY_BYTES_MAX && why.starts_with('é'));
        assert_eq!((lost.parts()[0].lost.clone(), lost.state), (None, JobState::Running));
        let kept = with(&lost, ReserveChange::Part { cluster: name("b"), lost: None }).expect("a part");
        assert_eq!(kept.parts(), confirmed.parts());
        assert!(with(&confirmed, ReserveChange::Part { cluster: name("c"), lost: None }).is_err());
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let day = 86_400;
        let now = WallTime(100_000_000);
        let ask = |asked: Asked, at| reservation("r", "t", &asked, at, now).err().unwrap_or_default();
        assert_eq!(ask(asked(now.0, 3_600), At::Any(1)), "");
        assert_eq!(ask(asked(now.0 - 59_000, 3_600), At::Any(1)), "", "a request takes its time");
        assert!(ask(asked(now.0 - 61_000, 3_600), At::Any(1)).contains("past"));
        assert!(ask(asked(now.0, 9), At::Any(1)).contains("last"));
        assert!(ask(asked(now.0, 91 * day), At::Any(1)).contains("last"));
        assert!(ask(asked(now.0 + 367 * day * 1_000, 3_600), At::Any(1)).contains("within"));
        assert!(ask(asked(now.0, 3_600), At::Any(0)).contains("clusters"));
        assert!(ask(asked(now.0, 3_600), At::Any(9)).contains("clusters"));
        assert!(ask(Asked { gpus: 0, ..asked(now.0, 3_600) }, At::Any(1)).contains("gpus"));
        assert!(ask(Asked { gpus: 4_097, ..asked(now.0, 3_600) }, At::Any(1)).contains("gpus"));
        let (a, b) = (asked(0, 60), asked(60_000, 60));
        assert!(!a.meets(&b) && a.meets(&asked(59_999, 60)) && b.meets(&b));
    }
}
