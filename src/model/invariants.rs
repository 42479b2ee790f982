//! What must never happen, as pure predicates with the ids of docs/simulation.md. One meaning for production, which
//! counts what breaks one (`invariant_I1_violated`, …) and goes on, and for the simulator, which fails.
//!
//! They hold for *chosen* values. An acceptor may rightly replace a value by one of a lower version, where
//! the first was taken by a minority and never chosen; so the place to look is the proposer, which learns
//! chosen values one after another.

use std::collections::BTreeSet;

use super::record::{ContactRecord, JobRecord, JobState};
use super::tenant::{Amount, Escrow, LedgerRecord};

/// One invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// A chosen value is the base of every later one: versions and incarnations never fall, one version
    /// is one value, one ballot is one value.
    I1,
    /// What starts is newer than all that was placed before: epochs never fall.
    I2,
    /// One executor per epoch: an epoch never changes its cluster.
    I3,
    /// The epoch of the published checkpoint never falls.
    I4,
    /// The shares of a tenant's ledger never rise above its limit, and a cluster spends no more than its share.
    I5,
    /// A cluster runs no more than it has: no GPU belongs to two attempts.
    I6,
    /// One sealed value per generation: it is the last of it, and generations never fall.
    I7,
    /// Nothing follows a final state, but that its record moves to other homes.
    I8,
}

impl Invariant {
    /// The production counter that says how often it was broken.
    pub fn counter(self) -> &'static str {
        match self {
            Self::I1 => "invariant_I1_violated",
            Self::I2 => "invariant_I2_violated",
            Self::I3 => "invariant_I3_violated",
            Self::I4 => "invariant_I4_violated",
            Self::I5 => "invariant_I5_violated",
            Self::I6 => "invariant_I6_violated",
            Self::I7 => "invariant_I7_violated",
            Self::I8 => "invariant_I8_violated",
        }
    }
}

/// What of a chosen job record later ones are held against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobMark {
    /// Its version.
    pub version: u64,
    /// Its epoch,
    pub epoch: u64,
    /// and the cluster that holds it, while one does.
    pub cluster: Option<String>,
    /// Epoch of the published checkpoint.
    pub checkpoint: Option<u64>,
    /// Its state.
    pub state: JobState,
    /// Somebody cancelled it.
    pub cancelled: bool,
    /// Attempts that ended, in any way.
    pub losses_and_failures: u32,
    /// Which home set holds it,
    pub generation: u32,
    /// and whether this is that one's last value.
    pub sealed: bool,
}

impl JobMark {
    /// Of one record.
    pub fn of(record: &JobRecord) -> Self {
        // All groups of one epoch are placed by one change, and stay where they are.
        let groups = || record.groups.as_ref().filter(|g| g.under_way()).map(|_| record.groups_at());
        Self {
            version: record.version,
            epoch: record.epoch.0,
            cluster: record.placement.as_ref().map(|p| p.cluster.to_string()).or_else(groups),
            checkpoint: record.checkpoint.as_ref().map(|c| c.epoch.0),
            state: record.state,
            cancelled: record.cancel.is_some(),
            losses_and_failures: record.losses + record.failures,
            generation: record.generation,
            sealed: record.sealed.is_some(),
        }
    }
}

/// What breaks when `new` is chosen after `old` was.
pub fn job_follows(old: &JobMark, new: &JobMark) -> BTreeSet<Invariant> {
    let mut broken = BTreeSet::new();
    let mut check = |holds: bool, invariant| {
        if !holds {
            broken.insert(invariant);
        }
    };
    check(new.version >= old.version, Invariant::I1);
    check(new.version != old.version || new == old, Invariant::I1);
    check(new.cancelled || !old.cancelled, Invariant::I1);
    check(new.epoch >= old.epoch, Invariant::I2);
    let moved = new.epoch == old.epoch
        && matches!((&old.cluster, &new.cluster), (Some(before), Some(after)) if before != after);
    check(!moved, Invariant::I3);
    check(new.checkpoint >= old.checkpoint, Invariant::I4);
    let same_generation = new.generation == old.generation;
    check(new.generation >= old.generation && !(old.sealed && same_generation && new != old), Invariant::I7);
    let moved_only =
        JobMark { version: old.version, generation: old.generation, sealed: old.sealed, ..new.clone() };
    check(!old.state.is_final() || moved_only == *old, Invariant::I8);
    broken
}

/// What of a chosen contact record later ones are held against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContactMark {
    /// Its incarnation,
    pub incarnation: u64,
    /// who holds that,
    pub holder: String,
    /// and the newest nonce.
    pub nonce: (u64, u64),
}

impl ContactMark {
    /// Of one record.
    pub fn of(record: &ContactRecord) -> Self {
        Self { incarnation: record.incarnation, holder: record.holder.to_string(), nonce: record.nonce }
    }
}

/// What breaks when `new` is chosen after `old` was: incarnations never fall, one incarnation has one
/// holder, and the nonces of one holder only rise.
pub fn contact_follows(old: &ContactMark, new: &ContactMark) -> BTreeSet<Invariant> {
    let same = new.incarnation == old.incarnation;
    let holds = new.incarnation >= old.incarnation
        && (!same || new.holder == old.holder)
        && (!same || new.nonce >= old.nonce);
    (!holds).then_some(Invariant::I1).into_iter().collect()
}

/// What of a chosen ledger later ones are held against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerMark {
    /// Its version,
    pub version: u64,
    /// which home set holds it,
    pub generation: u32,
    /// and whether this is that one's last value.
    pub sealed: bool,
    /// Version of its limits,
    pub limits_version: u64,
    /// and the ceiling of each part.
    pub ceiling: [Option<u64>; 4],
    /// All shares together.
    pub total: Amount,
    /// What ran before limits began, in all.
    pub adopted: Amount,
}

impl LedgerMark {
    /// Of one ledger.
    pub fn of(ledger: &LedgerRecord) -> Self {
        Self {
            version: ledger.version,
            generation: ledger.generation,
            sealed: ledger.sealed.is_some(),
            limits_version: ledger.limits_version,
            ceiling: if ledger.removed { [None; 4] } else { ledger.limits.ceiling() },
            total: ledger.total(),
            adopted: ledger.adopted,
        }
    }
}

/// What breaks when `new` is chosen after `old` was. Where the limits changed in between, a total above the new
/// ones says nothing: it may have risen under the old ones.
pub fn ledger_follows(old: &LedgerMark, new: &LedgerMark) -> BTreeSet<Invariant> {
    let mut broken = BTreeSet::new();
    if new.version < old.version || (new.version == old.version && new != old) {
        broken.insert(Invariant::I1);
    }
    let same_generation = new.generation == old.generation;
    if new.generation < old.generation || (old.sealed && same_generation && new != old) {
        broken.insert(Invariant::I7);
    }
    if new.limits_version == old.limits_version {
        let stated = new.adopted.minus(old.adopted).parts();
        let (now, then) = (new.total.parts(), old.total.parts());
        let over = |(i, ceiling): (usize, &Option<u64>)| {
            ceiling.is_some_and(|most| now[i] > most.max(then[i]).saturating_add(stated[i]))
        };
        if new.ceiling.iter().enumerate().any(over) {
            broken.insert(Invariant::I5);
        }
    }
    broken
}

/// A cluster begins an attempt; then all of the tenant's attempts there use so much of what the share holds.
pub fn spends_its_share(used: &Amount, share: &Escrow) -> BTreeSet<Invariant> {
    (!used.within(&share.share)).then_some(Invariant::I5).into_iter().collect()
}

/// An acceptor is asked to take `new` under the very ballot under which it took `old`: a ballot names one
/// proposal, so the bytes must be the same.
pub fn one_ballot_one_value(old: &[u8], new: &[u8]) -> BTreeSet<Invariant> {
    (old != new).then_some(Invariant::I1).into_iter().collect()
}

/// A cluster begins an attempt of epoch `starts`, and knows of these others of the same job there.
pub fn start_is_newest(starts: u64, known: impl IntoIterator<Item = u64>) -> BTreeSet<Invariant> {
    let newest = known.into_iter().all(|epoch| epoch < starts);
    (!newest).then_some(Invariant::I2).into_iter().collect()
}

/// GPUs (node, index) that a new attempt gets, and those that others hold.
pub fn gpus_are_free(
    wanted: impl IntoIterator<Item = (u32, u32)>,
    held: impl IntoIterator<Item = (u32, u32)>,
) -> BTreeSet<Invariant> {
    let held: BTreeSet<(u32, u32)> = held.into_iter().collect();
    let mut seen = BTreeSet::new();
    let clash = wanted.into_iter().any(|gpu| held.contains(&gpu) || !seen.insert(gpu));
    clash.then_some(Invariant::I6).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(version: u64, epoch: u64) -> JobMark {
        JobMark {
            version,
            epoch,
            cluster: Some("a".into()),
            checkpoint: None,
            state: JobState::Running,
            cancelled: false,
            losses_and_failures: 0,
            generation: 0,
            sealed: false,
        }
    }

    #[test]
    fn each_predicate_of_a_job_can_fire() {
        let old = JobMark { checkpoint: Some(2), ..mark(5, 2) };
        let broken = |new: JobMark| job_follows(&old, &new).into_iter().collect::<Vec<_>>();
        let next = JobMark { version: 6, ..old.clone() };
        assert_eq!(broken(old.clone()), []);
        assert_eq!(broken(next.clone()), []);
        assert_eq!(broken(JobMark { cluster: None, state: JobState::Pending, ..next.clone() }), []);
        assert_eq!(broken(JobMark { version: 4, ..old.clone() }), [Invariant::I1]);
        assert_eq!(broken(JobMark { state: JobState::Placed, ..old.clone() }), [Invariant::I1]);
        assert_eq!(broken(JobMark { epoch: 1, ..next.clone() }), [Invariant::I2]);
        assert_eq!(broken(JobMark { cluster: Some("b".into()), ..next.clone() }), [Invariant::I3]);
        assert_eq!(broken(JobMark { epoch: 3, cluster: Some("b".into()), ..next.clone() }), []);
        assert_eq!(broken(JobMark { checkpoint: Some(1), ..next.clone() }), [Invariant::I4]);
        assert_eq!(broken(JobMark { checkpoint: None, ..next.clone() }), [Invariant::I4]);
        let ended = JobMark { state: JobState::Failed, cancelled: true, ..old.clone() };
        assert_eq!(job_follows(&ended, &ended), BTreeSet::new());
        let after = JobMark { version: 6, state: JobState::Succeeded, ..ended.clone() };
        assert_eq!(job_follows(&ended, &after), BTreeSet::from([Invariant::I8]));
        let forgot = JobMark { cancelled: false, ..JobMark { state: JobState::Running, ..after } };
        assert_eq!(job_follows(&ended, &forgot), BTreeSet::from([Invariant::I1, Invariant::I8]));
    }

    #[test]
    fn a_record_moves_generation_by_generation() {
        let old = mark(5, 2);
        let sealed = JobMark { version: 6, sealed: true, ..old.clone() };
        let installed = JobMark { version: 7, sealed: false, generation: 1, ..sealed.clone() };
        for (a, b) in [(&old, &sealed), (&sealed, &sealed), (&sealed, &installed), (&old, &installed)] {
            assert_eq!(job_follows(a, b), BTreeSet::new());
        }
        let other = JobMark { version: 7, sealed: false, ..sealed.clone() };
        assert_eq!(job_follows(&sealed, &other), BTreeSet::from([Invariant::I7]));
        let back = JobMark { version: 8, generation: 0, ..installed.clone() };
        assert_eq!(job_follows(&installed, &back), BTreeSet::from([Invariant::I7]));
        // A job that has ended moves like any other.
        let ended = |m: &JobMark| JobMark { state: JobState::Failed, ..m.clone() };
        assert_eq!(job_follows(&ended(&old), &ended(&sealed)), BTreeSet::new());
        assert_eq!(job_follows(&ended(&sealed), &ended(&installed)), BTreeSet::new());
    }

    #[test]
    fn each_other_predicate_can_fire() {
        let contact =
            |incarnation, holder: &str, nonce| ContactMark { incarnation, holder: holder.into(), nonce };
        let old = contact(3, "a", (2, 9));
        for good in [contact(3, "a", (2, 9)), contact(3, "a", (3, 1)), contact(4, "b", (1, 1))] {
            assert_eq!(contact_follows(&old, &good), BTreeSet::new());
        }
        for bad in [contact(2, "a", (9, 9)), contact(3, "b", (3, 1)), contact(3, "a", (2, 8))] {
            assert_eq!(contact_follows(&old, &bad), BTreeSet::from([Invariant::I1]));
        }
        assert_eq!(one_ballot_one_value(b"x", b"x"), BTreeSet::new());
        assert_eq!(one_ballot_one_value(b"x", b"y"), BTreeSet::from([Invariant::I1]));
        assert_eq!(start_is_newest(3, [1, 2]), BTreeSet::new());
        assert_eq!(start_is_newest(3, [1, 3]), BTreeSet::from([Invariant::I2]));
        assert_eq!(gpus_are_free([(0, 1), (0, 2)], [(0, 0), (1, 1)]), BTreeSet::new());
        assert_eq!(gpus_are_free([(0, 1)], [(0, 1)]), BTreeSet::from([Invariant::I6]));
        assert_eq!(gpus_are_free([(0, 1), (0, 1)], []), BTreeSet::from([Invariant::I6]));
    }

    #[test]
    fn a_ledger_rises_no_higher_than_its_limit() {
        let gpus = |n| Amount { gpus: n, ..Amount::ZERO };
        let old = LedgerMark {
            version: 5,
            generation: 0,
            sealed: false,
            limits_version: 1,
            ceiling: [Some(8), None, None, None],
            total: gpus(6),
            adopted: Amount::ZERO,
        };
        let next = |total| LedgerMark { version: 6, total, ..old.clone() };
        assert_eq!(ledger_follows(&old, &next(gpus(8))), BTreeSet::new());
        assert_eq!(ledger_follows(&old, &next(gpus(9))), BTreeSet::from([Invariant::I5]));
        let over = LedgerMark { total: gpus(12), ..old.clone() };
        assert_eq!(ledger_follows(&over, &next(gpus(11))), BTreeSet::new(), "it was above, and falls");
        assert_eq!(ledger_follows(&over, &next(gpus(13))), BTreeSet::from([Invariant::I5]));
        let states = LedgerMark { adopted: gpus(5), ..next(gpus(13)) };
        assert_eq!(ledger_follows(&old, &states), BTreeSet::new(), "five ran before the limit began");
        let other = LedgerMark { limits_version: 2, ..next(gpus(20)) };
        assert_eq!(ledger_follows(&old, &other), BTreeSet::new());
        assert_eq!(ledger_follows(&next(gpus(7)), &old), BTreeSet::from([Invariant::I1]));
        let moved = LedgerMark { generation: 1, ..next(gpus(6)) };
        let back = LedgerMark { version: 9, ..old.clone() };
        assert_eq!(ledger_follows(&moved, &back), BTreeSet::from([Invariant::I7]));
        let sealed = LedgerMark { sealed: true, ..old.clone() };
        assert_eq!(ledger_follows(&sealed, &next(gpus(6))), BTreeSet::from([Invariant::I7]));
        let share = Escrow { share: gpus(4), ..Escrow::default() };
        assert_eq!(spends_its_share(&gpus(4), &share), BTreeSet::new());
        assert_eq!(spends_its_share(&gpus(5), &share), BTreeSet::from([Invariant::I5]));
    }

    #[test]
    fn counters_are_named_by_their_ids() {
        for (invariant, id) in [(Invariant::I1, "I1"), (Invariant::I4, "I4"), (Invariant::I8, "I8")] {
            assert_eq!(invariant.counter(), format!("invariant_{id}_violated"));
        }
    }
}
