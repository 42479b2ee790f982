//! Exhaustive models of the protocol, and the bugs that they find. docs/models.md says what is in them.
#![allow(
    dead_code,
    unused_imports,
    reason = "shared by the tests and the command, which read different parts of it"
)]
#![allow(clippy::disallowed_methods, reason = "the seconds of a run are shown to people")]

mod check;
mod command;
mod forgetting;
mod invariants;
mod lease;
mod moving;
pub mod production;
mod quarantine;
mod quota;
mod register;
mod whole;

use check::{Report, Run};
pub use command::command;
pub use invariants::{ALL, sentence};

use forgetting::Forgetting;
use invariants::{I1, I2, I4, I5, I5_SHARE, I8, I8_COPY};
use lease::{Lease, Sizes};
use moving::Moving;
use quarantine::Quarantine;
use quota::Quota;
use register::Register;
use whole::Whole;

/// A bug that can be put in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bug {
    NoBallotCheck,
    AcceptorForgets,
    EarlyAnswer,
    NoWait,
    WaitWithoutDrift,
    TakeoverWithoutCondition,
    NonceReused,
    NonceLostInCrash,
    LeaseFromReply,
    MinorityConfirmation,
    PushedStart,
    NoGuard,
    ClosedLostInCrash,
    SuspendWithoutFence,
    MoveWithoutSeal,
    UnknownAsEmpty,
    InstallUnchosen,
    NewDiskAsOld,
    TombstoneAtMajority,
    LateCreate,
    RenewalOfNewIncarnationExtendsOld,
    RebindWithoutCondition,
    OldPlacementUnderNewIncarnation,
    GracesConfused,
    UnchosenTakeoverCounts,
    OldSeriesExtends,
    SpentWithoutShare,
    ShareRaisedBeforeLedger,
    ShareLoweredAtLedgerFirst,
    LoweredShareLostInCrash,
    OldShareMadeLate,
    ReclaimedByTime,
    ReclaimedWithoutCondition,
    ReboundUnknownToLedger,
    NoQuarantine,
    AnswersUnconfirmed,
    MarksForgotten,
    CopyTooYoung,
    StartsAreEnough,
}

/// A bug, the model that it is put into, and the invariant that it must break there.
pub struct Known {
    pub bug: Bug,
    pub name: &'static str,
    pub model: &'static str,
    pub breaks: &'static str,
    pub says: &'static str,
}

const fn known(
    bug: Bug,
    name: &'static str,
    model: &'static str,
    breaks: &'static str,
    says: &'static str,
) -> Known {
    Known { bug, name, model, breaks, says }
}

/// All of them, in the design's order; after those what the models found in production, those of quotas and of disks that
/// are put back (the last two are limits that the protocol states).
pub const BUGS: [Known; 39] = [
    known(
        Bug::NoBallotCheck,
        "no-ballot-check",
        "register",
        I1,
        "an acceptor takes a ballot below its promise",
    ),
    known(
        Bug::AcceptorForgets,
        "acceptor-forgets",
        "register",
        I1,
        "an acceptor's disk loses what it promised",
    ),
    known(Bug::EarlyAnswer, "early-answer", "register", I1, "a swap is answered when one acceptor has it"),
    known(Bug::NoWait, "no-wait", "lease", I2, "a home takes over at once"),
    known(
        Bug::WaitWithoutDrift,
        "wait-without-drift",
        "lease",
        I2,
        "a home waits the grace, without the margin",
    ),
    known(
        Bug::TakeoverWithoutCondition,
        "takeover-without-condition",
        "lease",
        I2,
        "a takeover does not ask whether the timed nonce still stands",
    ),
    known(
        Bug::NonceReused,
        "nonce-reused",
        "lease",
        I2,
        "a renewal is sent again under its old nonce, and counts anew",
    ),
    known(Bug::NonceLostInCrash, "nonce-lost-in-crash", "lease", I2, "nonces begin again after a crash"),
    known(Bug::LeaseFromReply, "lease-from-reply", "lease", I2, "a renewal counts from its answer"),
    known(
        Bug::MinorityConfirmation,
        "minority-confirmation",
        "lease",
        I2,
        "a renewal counts when one acceptor has it",
    ),
    known(Bug::PushedStart, "pushed-start", "lease", I2, "an old message starts an attempt"),
    known(Bug::NoGuard, "no-guard", "lease", I2, "an attempt outlives its peer and its deadline"),
    known(
        Bug::ClosedLostInCrash,
        "closed-lost-in-crash",
        "lease-ends",
        I2,
        "\"closed\" is forgotten in a crash",
    ),
    known(
        Bug::SuspendWithoutFence,
        "suspend-without-fence",
        "suspend",
        I4,
        "a machine stands still, and the store takes an older epoch",
    ),
    known(
        Bug::MoveWithoutSeal,
        "move-without-seal",
        "moving",
        I1,
        "the old generation goes on after the seal",
    ),
    known(
        Bug::UnknownAsEmpty,
        "unknown-as-empty",
        "moving",
        I1,
        "a home without the record answers that it is empty",
    ),
    known(
        Bug::InstallUnchosen,
        "install-unchosen",
        "moving",
        I1,
        "a seal that one acceptor has is installed",
    ),
    known(
        Bug::NewDiskAsOld,
        "new-disk-as-old",
        "moving-lost-disk",
        I1,
        "a new disk answers as the one it replaces",
    ),
    known(
        Bug::TombstoneAtMajority,
        "tombstone-at-majority",
        "forgetting",
        I8_COPY,
        "homes forget when a majority has the end",
    ),
    known(
        Bug::LateCreate,
        "late-create",
        "forgetting",
        I8,
        "nothing refuses a late create of a forgotten job",
    ),
    known(
        Bug::RenewalOfNewIncarnationExtendsOld,
        "renewal-of-new-incarnation-extends-old",
        "lease-return",
        I2,
        "a renewal extends attempts that are bound to an older incarnation",
    ),
    known(
        Bug::RebindWithoutCondition,
        "rebind-without-condition",
        "lease-return",
        I2,
        "the cluster moves a binding though the record did not take the swap",
    ),
    known(
        Bug::OldPlacementUnderNewIncarnation,
        "old-placement-under-new-incarnation",
        "lease-return",
        I2,
        "a placement bound to an old incarnation is started under the new one",
    ),
    known(Bug::GracesConfused, "graces-confused", "lease", I2, "a job is freed after another job's grace"),
    known(
        Bug::UnchosenTakeoverCounts,
        "unchosen-takeover-counts",
        "lease",
        I2,
        "a home times an incarnation's end from a takeover that was never chosen",
    ),
    known(
        Bug::OldSeriesExtends,
        "old-series-extends",
        "series",
        I2,
        "renewals of the old series extend an attempt whose record may be bound to the new one already",
    ),
    known(
        Bug::SpentWithoutShare,
        "spent-without-share",
        "quota",
        I5,
        "a cluster begins what no share covers",
    ),
    known(
        Bug::ShareRaisedBeforeLedger,
        "share-raised-before-ledger",
        "quota",
        I5,
        "a cluster spends more before the ledger says so",
    ),
    known(
        Bug::ShareLoweredAtLedgerFirst,
        "share-lowered-at-ledger-first",
        "quota",
        I5,
        "the ledger gives to others what the cluster still spends",
    ),
    known(
        Bug::LoweredShareLostInCrash,
        "lowered-share-lost-in-crash",
        "quota",
        I5,
        "a cluster forgets in a crash that it gave back",
    ),
    known(
        Bug::OldShareMadeLate,
        "old-share-made-late",
        "quota",
        I5_SHARE,
        "a change to a share is made once more after a newer one",
    ),
    known(
        Bug::ReclaimedByTime,
        "reclaimed-by-time",
        "quota",
        I5_SHARE,
        "a share is taken back although its contact may still be renewed",
    ),
    known(
        Bug::ReclaimedWithoutCondition,
        "reclaimed-without-condition",
        "quota",
        I5_SHARE,
        "a share is taken back although its cluster has changed it since",
    ),
    known(
        Bug::ReboundUnknownToLedger,
        "rebound-unknown-to-ledger",
        "quota",
        I5_SHARE,
        "an attempt moves to a contact that the ledger does not know of",
    ),
    known(
        Bug::NoQuarantine,
        "no-quarantine",
        "quarantine",
        I1,
        "a disk that is put back from an older copy is used on",
    ),
    known(
        Bug::AnswersUnconfirmed,
        "answers-unconfirmed",
        "quarantine",
        I1,
        "a peer answers before the others have said what they saw of its disk",
    ),
    known(
        Bug::MarksForgotten,
        "marks-forgotten",
        "quarantine",
        I1,
        "those who heard a mark forget it in a crash",
    ),
    known(
        Bug::CopyTooYoung,
        "copy-too-young",
        "quarantine",
        I1,
        "the copy holds all that the others have heard of (a stated limit)",
    ),
    known(
        Bug::StartsAreEnough,
        "starts-are-enough",
        "quarantine",
        I1,
        "a later start that was seen counts as more than the copy holds, and the copy is started twice (a limit, too)",
    ),
];

/// The models by name: what runs them, small or large, with a bug or without.
pub const MODELS: [&str; 14] = [
    "register",
    "lease",
    "lease-register",
    "lease-return",
    "lease-ends",
    "lease-back",
    "series",
    "suspend",
    "moving",
    "moving-far",
    "moving-lost-disk",
    "forgetting",
    "quota",
    "quarantine",
];

fn lease(name: &str, large: bool) -> Sizes {
    let base = Sizes {
        hold: [1, 2],
        wait: [2, 3],
        nonces: 2,
        incarnations: 2,
        epochs: 2,
        pending: 2,
        series: false,
        ends: false,
        suspends: false,
    };
    match (name, large) {
        ("lease", false) => base,
        ("lease", true) => Sizes { hold: [2, 3], wait: [3, 4], nonces: 3, pending: 3, ..base },
        ("lease-return", false) => Sizes { incarnations: 3, ..base },
        ("lease-return", true) => Sizes { incarnations: 5, nonces: 4, ..base },
        ("lease-ends", false) => Sizes { ends: true, ..base },
        ("lease-ends", true) => Sizes { ends: true, incarnations: 3, nonces: 3, ..base },
        ("lease-back", false) => Sizes { epochs: 3, ..base },
        ("lease-back", true) => Sizes { epochs: 3, incarnations: 3, nonces: 3, ends: true, ..base },
        ("series", false) => Sizes { series: true, nonces: 1, pending: 1, ..base },
        ("series", true) => Sizes { series: true, nonces: 2, ..base },
        (_, false) => Sizes { suspends: true, nonces: 1, ..base },
        (_, true) => Sizes { suspends: true, incarnations: 3, ..base },
    }
}

/// Runs a model to its end, or, with a bug, until the invariant that it must break is broken.
pub fn run(name: &str, bug: Option<&Known>, large: bool) -> Option<Report> {
    let until = bug.map(|b| b.breaks);
    let bug = bug.map(|b| b.bug);
    let ballots = if large { 7 } else { 5 };
    let moving = Moving {
        ballots: if large { [3, 2] } else { [3, 1] },
        changes: if large { 3 } else { 2 },
        far: false,
        lost_disk: false,
        bug,
    };
    let name = MODELS.into_iter().find(|known| *known == name)?;
    let run = Run { name, until, threads: if large { 0 } else { 1 } };
    let small = if large { moving.ballots } else { [2, 1] };
    Some(match name {
        "lease-register" => run.check(Whole {
            ballots: if large { 4 } else { 3 },
            nonces: if large { 2 } else { 1 },
            hold: [1, 2],
            wait: [2, 3],
            bug,
        }),
        "register" => run.check(Register { ballots, bug }),
        "moving" => run.check(moving),
        "moving-far" => run.check(Moving { far: true, ..moving }),
        "moving-lost-disk" => run.check(Moving { lost_disk: true, ballots: small, ..moving }),
        "forgetting" => run.check(Forgetting { ballots: if large { 6 } else { 4 }, bug }),
        "quarantine" => run.check(Quarantine { ballots: if large { 4 } else { 3 }, starts: 3, bug }),
        "quota" => run.check(Quota { changes: if large { 4 } else { 2 }, bug }),
        other => run.check(Lease { sizes: lease(other, large), bug }),
    })
}
