//! The invariants' ids and what they say. A model names its predicates by these.

/// A chosen value is the base of every later proposal, across generations too.
pub const I1: &str = "I1";
/// What runs is of no older epoch than any chosen placement.
pub const I2: &str = "I2";
/// At most one attempt of a job runs.
pub const I3: &str = "I3";
/// The epochs of published checkpoints never fall.
pub const I4: &str = "I4";
/// A tenant runs no more than its limit anywhere, and its shares together are no more.
pub const I5: &str = "I5";
/// What a cluster runs of a tenant is within what the ledger says of it.
pub const I5_SHARE: &str = "I5-share";
/// A generation has one sealed value.
pub const I7: &str = "I7";
/// After the end nothing else is chosen, and nothing runs.
pub const I8: &str = "I8";
/// No home holds a living copy of what another home has forgotten.
pub const I8_COPY: &str = "I8-copy";

/// Every id with its sentence.
pub const ALL: [(&str, &str); 9] = [
    (I1, "a chosen value is the base of every later proposal, across generations too"),
    (I2, "what runs is of no older epoch than any chosen placement"),
    (I3, "at most one attempt of a job runs"),
    (I4, "the epochs of published checkpoints never fall"),
    (I5, "a tenant runs no more than its limit, and its shares together are no more"),
    (I5_SHARE, "what a cluster runs of a tenant is within what the ledger says of it"),
    (I7, "a generation has one sealed value"),
    (I8, "after the end nothing else is chosen, and nothing runs"),
    (I8_COPY, "no home holds a living copy of what another home has forgotten"),
];

/// The sentence of an id.
pub fn sentence(id: &str) -> &'static str {
    ALL.iter().find(|(known, _)| *known == id).map_or("", |(_, sentence)| sentence)
}

/// I2 for one attempt: `epoch` runs, and placements up to `newest` were chosen.
pub fn i2(epoch: u8, newest: u8) -> bool {
    epoch == 0 || epoch >= newest
}

/// I3 for one job: epochs that run, 0 for none.
pub fn i3(running: &[u8]) -> bool {
    running.iter().filter(|e| **e != 0).count() <= 1
}
