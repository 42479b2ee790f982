//! Jobs with task groups: one record that places all groups at once, and a record of each group.
//!
//! The job's own record is never started anywhere. One compare-and-swap on it gives every group its cluster under one new
//! epoch, or none (`Place`). Each group has an ordinary job record, whose first value follows from the job's alone. It is
//! placed under the same epoch at the cluster that was chosen (`Begin`), and then binds, starts, rebinds and closes as
//! any job does: so no two attempts of one group ever run at once, for the same reasons. What is new is the end:
//!
//! - A group never ends the job by itself. Its record waits until the job's says how it ended (`Finish`).
//! - One that ends other than with 0, or is lost, ends the epoch: the others are told to stop (`Halt`), or, where they had
//!   not begun, may not begin any more.
//! - The next epoch is placed only when the record of every group has shown this one as closed (`Seen`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::array::ArraySpec;
use super::record::{AttemptSummary, JobRecord, JobState, Outcome, Placement, Refused};
use super::spec::JobSpec;
use crate::base::{BoundedVec, Epoch, Home, JobId, PeerName, Span, WallTime};

/// Bytes that the placement of one group may take in the record: asked for at submission, so that it can be placed later.
pub const PLACED_BYTES: usize = 1_200;
/// The same for the homes of its groups, once.
pub const HOMES_BYTES: usize = 700;

/// One group under the newest epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacedGroup {
    /// Where it was placed. The group's own record says what it is bound to now.
    pub placement: Placement,
    /// Its program was seen to run.
    #[serde(default)]
    pub started: bool,
    /// How it ended; none until its record was seen to say so.
    #[serde(default)]
    pub outcome: Option<Outcome>,
}

/// How far a job with groups has come.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct GroupsState {
    /// One per group, of the newest epoch; empty before the first.
    #[serde(default)]
    pub placed: Vec<PlacedGroup>,
    /// The group that ended this epoch: the first that was seen to end otherwise than with 0.
    #[serde(default)]
    pub first: Option<u32>,
    /// So it ends, as soon as the records of all groups say it.
    #[serde(default)]
    pub ending: Option<JobState>,
    /// Who held the job's record when its groups were first placed: there theirs were born. None before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub homes: Option<BoundedVec<Home, 5>>,
}

impl GroupsState {
    /// Some group of the newest epoch is not known to have ended.
    pub fn under_way(&self) -> bool {
        self.placed.iter().any(|p| p.outcome.is_none())
    }
}

/// Of which job a group is part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupOf {
    /// The job.
    pub parent: JobId,
    /// Which of its groups, from 0.
    pub index: u32,
    /// Where all groups are under the newest epoch, in their order.
    #[serde(default)]
    pub clusters: Vec<PeerName>,
    /// This epoch must stop, or not begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt: Option<Epoch>,
}

/// A change to the record of a job with groups, or to a group's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupsChange {
    /// Job: nothing placed → every group, epoch + 1.
    Place {
        /// The epoch the proposer expects to give.
        epoch: Epoch,
        /// One per group, in order.
        placements: Vec<Placement>,
        /// Where the groups' records are born, if they are not yet.
        homes: BoundedVec<Home, 5>,
    },
    /// Job: so the groups' records were seen, as a quorum holds them.
    Seen {
        /// Under this epoch.
        epoch: Epoch,
        /// Groups whose programs run,
        started: Vec<u32>,
        /// and those that are closed, and how.
        ended: Vec<(u32, Outcome)>,
        /// When.
        at: WallTime,
    },
    /// Job: every group's record says how the job ends.
    Over {
        /// When.
        at: WallTime,
    },
    /// Group: the job's record gave it this place.
    Begin {
        /// Under this epoch,
        epoch: Epoch,
        /// there,
        placement: Placement,
        /// and all groups so.
        clusters: Vec<PeerName>,
    },
    /// Group: this epoch has ended, because of another group or on somebody's word.
    Halt {
        /// This one.
        epoch: Epoch,
        /// In words.
        why: String,
        /// When.
        at: WallTime,
    },
    /// Group: the job ends so.
    Finish {
        /// How.
        state: JobState,
        /// In words.
        reason: String,
        /// When.
        at: WallTime,
    },
}

/// Which end of several that were seen at once counts.
fn weight(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Lost => 0,
        Outcome::TimedOut => 1,
        Outcome::Exited(0) => 9,
        Outcome::Exited(_) | Outcome::Signaled(_) => 2,
        Outcome::NotStarted(_) => 3,
        Outcome::Refused(_) => 4,
        Outcome::Cancelled => 5,
        Outcome::Stopped(_) => 6,
    }
}

impl JobRecord {
    /// How many records of its own jobs or groups this one stands for.
    pub fn children(&self) -> u32 {
        match &self.spec.array {
            Some(array) => ArraySpec::len(array),
            None => u32::try_from(self.spec.groups.list.len()).unwrap_or(u32::MAX),
        }
    }

    /// The homes at which a group's record is born: those that hold the job's when it is first placed. Those of the job's
    /// birth may be gone by then.
    pub fn group_homes(&self) -> BoundedVec<Home, 5> {
        let state = self.groups.as_ref();
        let born = match state {
            Some(state) if state.homes.is_none() && !state.placed.is_empty() => None,
            Some(GroupsState { homes: Some(homes), .. }) => Some(homes.clone()),
            _ => self.moved_to.clone(),
        };
        born.unwrap_or_else(|| self.birth.homes.clone())
    }

    /// The first value of a group's record: the same, whoever makes it.
    pub fn group(&self, index: u32) -> Option<JobRecord> {
        let (birth, group) = (self.child_birth(index)?, self.spec.groups.list.get(index as usize)?);
        let most = super::spec::limits::NAME_BYTES_MAX;
        let suffix: String = format!("-{}", group.name).chars().take(most / 2).collect();
        let name: String = self.spec.name.chars().take(most - suffix.len()).collect();
        let mut env = self.spec.env.clone();
        let names: Vec<&str> = self.spec.groups.list.iter().map(|g| g.name.as_str()).collect();
        for (name, value) in [
            ("STARLING_GROUP", group.name.clone()),
            ("STARLING_GROUP_INDEX", index.to_string()),
            ("STARLING_GROUP_COUNT", names.len().to_string()),
            ("STARLING_GROUPS", names.join(",")),
            ("STARLING_GROUP_JOB_ID", self.id().to_string()),
        ] {
            env.insert(name.into(), value);
        }
        let spec = JobSpec {
            name: name + &suffix,
            env,
            nodes: group.nodes,
            resources: group.resources.clone(),
            groups: Default::default(),
            array: None,
            after: Vec::new(),
            // What a group does at its end is decided by the job's record alone.
            retries: 0,
            ..self.spec.clone()
        };
        let mut child = JobRecord::new(birth, spec, self.child_trace(index), self.submitted_at);
        child.group_of = Some(GroupOf { parent: self.id(), index, clusters: Vec::new(), halt: None });
        child.reason = "waits for all groups of its job".into();
        Some(child)
    }

    /// A group of which the present epoch must stop.
    pub fn halted(&self) -> bool {
        self.group_of.as_ref().is_some_and(|of| of.halt == Some(self.epoch))
    }

    /// The groups must stop: one has ended otherwise than it should, or somebody cancelled the job.
    pub fn groups_halt(&self) -> bool {
        self.groups.as_ref().is_some_and(|g| g.under_way() && (g.first.is_some() || self.cancel.is_some()))
    }

    fn group_name(&self, index: usize) -> &str {
        self.spec.groups.list.get(index).map_or("", |g| g.name.as_str())
    }

    /// Groups and their clusters, in words.
    pub fn groups_at(&self) -> String {
        let placed = self.groups.iter().flat_map(|g| &g.placed).enumerate();
        let words = placed.map(|(i, p)| format!("{} at {}", self.group_name(i), p.placement.cluster));
        words.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn groups_apply(&mut self, change: &GroupsChange) -> Result<(), Refused> {
        let none = || Refused::Held("it has no groups".into());
        let no_group = || Refused::Held("it is no group of a job".into());
        match change {
            GroupsChange::Place { epoch, placements, homes } => {
                let state = self.groups.as_ref().ok_or_else(none)?;
                if let Some(held) = state.placed.iter().find(|p| p.outcome.is_none()) {
                    return Err(Refused::Placed(held.placement.cluster.clone(), self.epoch));
                }
                if self.cancel.is_some() || state.ending.is_some() {
                    return Err(Refused::Cancelled);
                }
                if let Some(why) = &self.held {
                    return Err(Refused::Held(why.clone()));
                }
                if self.waits_for().next().is_some() {
                    return Err(Refused::Held("it waits for other jobs".into()));
                }
                let whole = placements.len() == self.spec.groups.list.len() && !placements.is_empty();
                if *epoch != self.epoch.next() || *epoch == self.epoch || !whole {
                    return Err(Refused::Stale(*epoch));
                }
                let first = placements[0].clone();
                let homes = state.homes.clone().unwrap_or_else(|| homes.clone());
                let placed =
                    |p: &Placement| PlacedGroup { placement: p.clone(), started: false, outcome: None };
                self.groups = Some(GroupsState {
                    placed: placements.iter().map(placed).collect(),
                    first: None,
                    ending: None,
                    homes: Some(homes),
                });
                (self.epoch, self.state, self.hold) = (*epoch, JobState::Placed, Span::ZERO);
                self.reason = format!("placed: {}", self.groups_at());
                self.attempts.push_rolling(AttemptSummary {
                    epoch: *epoch,
                    cluster: first.cluster,
                    placed_at: first.at,
                    started_at: None,
                    ended_at: None,
                    outcome: None,
                    note: None,
                    nodes: None,
                });
            }
            GroupsChange::Seen { epoch, started, ended, at } => {
                let under_way = self.groups.as_ref().ok_or_else(none)?.under_way();
                if *epoch != self.epoch || !under_way {
                    return Err(Refused::Stale(*epoch));
                }
                self.groups_seen(started, ended, *at);
            }
            GroupsChange::Over { at } => {
                let ending = self.groups.as_ref().and_then(|g| g.ending).ok_or_else(none)?;
                self.finish(ending, self.reason.clone(), *at);
            }
            GroupsChange::Begin { epoch, placement, clusters } => {
                let of = self.group_of.as_mut().ok_or_else(no_group)?;
                if let Some(held) = &self.placement {
                    return Err(Refused::Placed(held.cluster.clone(), self.epoch));
                }
                if *epoch <= self.epoch {
                    return Err(Refused::Stale(*epoch));
                }
                of.clusters.clone_from(clusters);
                of.halt = None;
                (self.epoch, self.state) = (*epoch, JobState::Placed);
                self.reason = format!("placed at {}", placement.cluster);
                self.attempts.push_rolling(AttemptSummary {
                    epoch: *epoch,
                    cluster: placement.cluster.clone(),
                    placed_at: placement.at,
                    started_at: None,
                    ended_at: None,
                    outcome: None,
                    note: None,
                    nodes: None,
                });
                self.placement = Some(placement.clone());
            }
            GroupsChange::Halt { epoch, why, at } => {
                let of = self.group_of.as_mut().ok_or_else(no_group)?;
                match (epoch.cmp(&self.epoch), &self.placement) {
                    (std::cmp::Ordering::Less, _) | (std::cmp::Ordering::Equal, None) => {
                        return Err(Refused::Stale(*epoch));
                    }
                    (std::cmp::Ordering::Equal, Some(_)) => of.halt = Some(*epoch),
                    (_, Some(held)) => return Err(Refused::Placed(held.cluster.clone(), self.epoch)),
                    (_, None) => {
                        // It had not begun, and never will under this epoch.
                        self.epoch = *epoch;
                        let cluster = of.clusters.get(of.index as usize).cloned();
                        self.attempts.push_rolling(AttemptSummary {
                            epoch: *epoch,
                            cluster: cluster.unwrap_or_else(|| self.birth.minter.clone()),
                            placed_at: *at,
                            started_at: None,
                            ended_at: Some(*at),
                            outcome: Some(Outcome::Stopped(why.clone())),
                            note: None,
                            nodes: None,
                        });
                    }
                }
                self.reason.clone_from(why);
            }
            GroupsChange::Finish { state, reason, at } => {
                self.group_of.as_ref().ok_or_else(no_group)?;
                if let Some(held) = &self.placement {
                    return Err(Refused::Placed(held.cluster.clone(), self.epoch));
                }
                if !state.is_final() {
                    return Err(Refused::Stale(self.epoch));
                }
                self.finish(*state, reason.clone(), *at);
            }
        }
        Ok(())
    }

    fn groups_seen(&mut self, started: &[u32], ended: &[(u32, Outcome)], at: WallTime) {
        let Some(state) = &mut self.groups else { return };
        for group in started {
            if let Some(placed) = state.placed.get_mut(*group as usize) {
                placed.started = true;
            }
        }
        let mut wrong: Option<(u8, u32)> = None;
        for (group, outcome) in ended {
            let open = state.placed.get_mut(*group as usize).filter(|p| p.outcome.is_none());
            let Some(placed) = open else { continue };
            placed.outcome = Some(outcome.clone());
            if *outcome != Outcome::Exited(0) {
                let this = (weight(outcome), *group);
                wrong = Some(wrong.map_or(this, |other| other.min(this)));
            }
        }
        state.first = state.first.or(wrong.map(|(_, group)| group));
        let under_way = state.under_way();
        if state.placed.iter().all(|p| p.started || p.outcome.is_some()) {
            self.state = JobState::Running;
            if let Some(last) = self.attempts.as_mut_slice().last_mut() {
                last.started_at = last.started_at.or(Some(at));
            }
        }
        if under_way {
            let first = self.groups.as_ref().and_then(|g| g.first);
            self.reason = match (&self.cancel, first) {
                (Some(cancel), _) => format!("cancel asked by {}; waits for its groups to stop", cancel.by),
                (None, Some(group)) => {
                    let name = self.group_name(group as usize);
                    format!("group {name} has ended and the others are stopped: {}", self.groups_at())
                }
                (None, None) => format!("runs: {}", self.groups_at()),
            };
            return;
        }
        self.groups_closed(at);
    }

    /// Every group of this epoch is closed: the job has succeeded, or runs again, or ends.
    fn groups_closed(&mut self, at: WallTime) {
        let Some(state) = &self.groups else { return };
        // Whoever lost its peers to a cluster that is gone did not fail by itself.
        let lost = state.placed.iter().position(|p| p.outcome == Some(Outcome::Lost));
        let which = lost.or(state.first.map(|g| g as usize));
        let decides = which.and_then(|i| Some((i, state.placed.get(i)?)));
        let (outcome, place) = match decides {
            Some((i, placed)) => (
                placed.outcome.clone().unwrap_or(Outcome::Exited(0)),
                format!("{} (group {})", placed.placement.cluster, self.group_name(i)),
            ),
            None => {
                let mut all: Vec<&str> = state.placed.iter().map(|p| p.placement.cluster.as_str()).collect();
                all.sort_unstable();
                all.dedup();
                (Outcome::Exited(0), all.join(", "))
            }
        };
        if let Some(last) = self.attempts.as_mut_slice().last_mut() {
            (last.ended_at, last.outcome) = (Some(at), Some(outcome.clone()));
        }
        self.settle(outcome, &place, at);
        if self.state.is_final() {
            let ending = Some(self.state);
            (self.state, self.finished_at) = (JobState::Running, None);
            if let Some(state) = &mut self.groups {
                state.ending = ending;
            }
        }
    }

    /// A job with groups is cancelled: true where this was done here.
    pub(super) fn groups_cancel(&mut self, by: &str) -> bool {
        let epoch = self.epoch;
        let Some(state) = self.groups.as_mut().filter(|_| epoch.0 > 0) else { return false };
        if state.ending.is_some() {
            return true;
        }
        if state.under_way() {
            self.reason = format!("cancel asked by {by}; waits for its groups to stop");
        } else {
            state.ending = Some(JobState::Cancelled);
            (self.state, self.reason) = (JobState::Running, format!("cancelled by {by}"));
        }
        true
    }

    pub(super) fn groups_reflects(&self, change: &GroupsChange) -> bool {
        let closed = |epoch: &Epoch| {
            self.attempts.iter().rfind(|a| a.epoch == *epoch).is_some_and(|a| a.outcome.is_some())
        };
        let bound = |p: &Placement| (p.cluster.clone(), p.contact, p.incarnation);
        match change {
            GroupsChange::Place { epoch, placements, .. } => {
                let placed = self.groups.iter().flat_map(|g| &g.placed).map(|p| bound(&p.placement));
                self.epoch == *epoch && placed.eq(placements.iter().map(bound))
            }
            GroupsChange::Seen { epoch, started, ended, .. } => {
                let placed = self.groups.as_ref().map_or(&[][..], |g| &g.placed);
                let of = |group: &u32| placed.get(*group as usize);
                let known = started.iter().all(|g| of(g).is_some_and(|p| p.started))
                    && ended.iter().all(|(g, _)| of(g).is_some_and(|p| p.outcome.is_some()));
                self.epoch == *epoch && known
            }
            GroupsChange::Over { .. } | GroupsChange::Finish { .. } => self.state.is_final(),
            GroupsChange::Begin { epoch, placement, .. } => {
                let at = self.placement.as_ref().is_some_and(|p| p.cluster == placement.cluster);
                self.epoch == *epoch && (at || closed(epoch))
            }
            GroupsChange::Halt { epoch, .. } => {
                closed(epoch) || self.group_of.as_ref().is_some_and(|of| of.halt == Some(*epoch))
            }
        }
    }
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
