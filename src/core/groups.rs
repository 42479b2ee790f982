//! The owner of a job with groups: gathers a grant for each, places all of them with one swap, and follows them to
//! their end (`model::groups` says what its changes mean).
//!
//! **Gathering.** The groups' clusters are planned by what is free; claims are then laid in one order for all jobs, by the
//! names of clusters and the groups' places in the job: a later cluster is asked only while the grants of all earlier ones
//! stand. So of two jobs that each want half of two clusters, one has the first of these and the other waits for it with nothing
//! in its hands. Grants are kept by repeating the claim, `GATHER_MAX` at most: then, and where one is refused, all are given
//! back, and the job begins anew after a random moment.
//!
//! **Acting.** Only what a quorum was seen to hold is carried on: a value that this disk alone accepted may never have
//! been chosen, and its groups must not begin.
// tidy: long because gathering, placing and following change the same soft state of one job

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::acceptor::Value;
use super::message::{Claim, Message, Origin, Prospects, SPEAKS_GROUPS, Terms};
use super::peer::Peer;
use super::propose::{Fresh, OpResult, Task};
use super::purpose::Purpose;
use crate::base::{BoundedVec, ContactId, Epoch, Home, Instant, JobId, PeerName, Span};
use crate::model::groups::GroupsChange;
use crate::model::record::{Change, contact_id};
use crate::model::{JobRecord, JobState, Outcome, Placement};

/// Patience of these operations; they are tried again.
const PATIENCE: Span = Span::secs(10);
/// A claim is repeated this often until it is granted,
const CLAIM_EVERY: Span = Span::secs(2);
/// and a grant is kept by repeating it after this part of its time.
const KEEP_PART: u64 = 3;
/// Claims without an answer count as refused after so many.
const TRIES_MAX: u32 = 3;
/// Grants are kept no longer than this while others are waited for; then all are given back.
const GATHER_MAX: Span = Span::secs(30);
/// A job that has given its grants back begins anew after this and a random time up to as much again,
const REST: Span = Span::secs(3);
/// which doubles with each time, so often at most: several that gather in one cluster get out of each other's way.
const RESTS_GROW: u32 = 5;
/// A cluster that refused a group is left out of the job's plans for so long.
const OUT_FOR: Span = Span::secs(10);
/// Where nothing can be planned it is tried again after this,
const PLAN_EVERY: Span = Span::secs(2);
/// which doubles so often: a plan costs, and is made by the one task that does everything.
const PLANS_GROW: u32 = 3;
/// A group's record is read again after this at first, while it shall change,
const ASK_EVERY: Span = Span::secs(1);
/// and this often while nothing is expected of it.
const ASK_IDLE: Span = Span::secs(20);
/// A home of a group alone looks this often whether its job's owner still knows of it.
const GROUP_IDLE: Span = Span::secs(60);

/// What a grant binds to: contact, series, homes, incarnation.
type GrantTerms = (ContactId, u64, BoundedVec<Home, 5>, u64);

#[derive(Debug, Clone)]
struct Asked {
    cluster: PeerName,
    sent_at: Instant,
    tries: u32,
    ahead: Option<u32>,
    granted: Option<(Instant, GrantTerms)>,
    keep_at: Instant,
}

/// Claims for one epoch.
#[derive(Debug, Clone)]
struct Gather {
    epoch: Epoch,
    /// Groups in the order in which they are asked for, and where.
    order: Vec<(PeerName, u32)>,
    asked: BTreeMap<u32, Asked>,
    /// Since when a grant is held.
    holds: Option<Instant>,
    since: Instant,
}

#[derive(Debug, Clone, Default)]
struct Child {
    id: JobId,
    /// As a quorum held it.
    seen: Option<Arc<JobRecord>>,
    asked: Option<Instant>,
    busy: bool,
}

/// Soft state of one job with groups.
#[derive(Debug, Clone, Default)]
struct Gang {
    chosen: Option<Arc<JobRecord>>,
    busy: bool,
    children: Vec<Child>,
    gather: Option<Gather>,
    rests: Instant,
    /// Times that it gave everything back since it was last placed.
    given_back: u32,
    /// Times in a row that nothing could be planned.
    unplanned: u32,
    out: BTreeMap<PeerName, Instant>,
    /// Why the last gathering ended, in words.
    why: String,
}

/// Of all jobs with groups that this peer drives.
#[derive(Debug, Clone, Default)]
pub(super) struct Gangs {
    jobs: BTreeMap<JobId, Gang>,
    /// Groups for which claims stand.
    claimed: BTreeMap<JobId, (JobId, u32)>,
}

impl Gangs {
    /// Claims for this group's record are laid here.
    pub fn claims(&self, group: &JobId) -> bool {
        self.claimed.contains_key(group)
    }
}

impl Peer {
    /// One look at a job with groups.
    pub(super) fn drive_groups(&mut self, job: JobId, record: &JobRecord) {
        let now = self.now.mono;
        let gang = self.gangs.jobs.entry(job).or_default();
        if gang.busy {
            return self.drive_at(job, now + CLAIM_EVERY);
        }
        let chosen = gang.chosen.clone().filter(|c| c.version >= record.version);
        let Some(chosen) = chosen else {
            gang.busy = true;
            self.propose(Origin::Job(record.birth.clone()), Task::Read, Purpose::GroupsJob(job), PATIENCE);
            return self.drive_at(job, now + CLAIM_EVERY);
        };
        if chosen.state.is_final() || chosen.sealed.is_some() {
            // Its homes are about to learn it.
            self.give_back(job, "");
            return self.drive_at(job, now + CLAIM_EVERY);
        }
        let Some(state) = &chosen.groups else { return };
        if let Some(ending) = state.ending {
            self.give_back(job, "");
            self.finish_groups(job, &chosen, ending);
        } else if state.under_way() {
            self.follow_groups(job, &chosen);
        } else {
            self.gather_groups(job, &chosen);
        }
    }

    /// A group that waits: only its job's owner acts, unless that one does not know of the job at all.
    pub(super) fn drive_group(&mut self, job: JobId, record: &JobRecord) {
        let parent = record.group_of.as_ref().map(|of| of.parent);
        if parent.is_none_or(|parent| self.acceptor.job(&parent).is_none()) {
            return self.idle(job, record);
        }
        self.drive_at(job, self.now.mono + GROUP_IDLE);
    }

    /// A group's record was accepted here: its job need not wait to find out.
    pub(super) fn group_changed(&mut self, record: &JobRecord) {
        let Some(of) = &record.group_of else { return };
        if self.gangs.jobs.contains_key(&of.parent) {
            self.drive_soon(of.parent);
        }
    }

    pub(super) fn drop_groups(&mut self, job: &JobId) {
        if self.gangs.jobs.contains_key(job) {
            self.give_back(*job, "");
            self.gangs.jobs.remove(job);
        }
    }

    /// Where the gathering stands, in words.
    pub(super) fn gathering(&self, record: &JobRecord) -> String {
        let Some(gang) = self.gangs.jobs.get(&record.id()) else { return "its owner plans it".into() };
        let Some(gather) = &gang.gather else {
            return match gang.why.as_str() {
                "" => "is about to ask for its groups".into(),
                why => format!("asks again in a moment: {why}"),
            };
        };
        let name = |group: u32| record.spec.groups.list.get(group as usize).map_or("", |g| g.name.as_str());
        let one = |(cluster, group): &(PeerName, u32)| {
            let how = match gather.asked.get(group) {
                None => "is next".to_owned(),
                Some(asked) if asked.granted.is_some() => "is held".to_owned(),
                Some(Asked { ahead: Some(n), .. }) => format!("waits with {n} ahead"),
                Some(_) => "is asked for".to_owned(),
            };
            format!("{} at {cluster} {how}", name(*group))
        };
        gather.order.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    // Gathering.

    fn gather_groups(&mut self, job: JobId, record: &JobRecord) {
        let now = self.now.mono;
        if !self.after_met(job, record) {
            return;
        }
        let from = self.owner.waits_since(&job, record, now);
        if record.held.is_some() {
            self.give_back(job, "");
            return self.drive_at(job, now + self.cfg.pace.idle_every);
        }
        if let Some(why) = self.quota_never(&record.spec) {
            if self.gangs.jobs.get(&job).is_some_and(|gang| gang.gather.is_some()) {
                self.give_back(job, "");
            }
            self.gangs.jobs.entry(job).or_default().why = why;
            return self.drive_at(job, now + self.cfg.pace.idle(now.since(from)));
        }
        if now.since(from) < record.hold {
            return self.drive_at(job, from + record.hold);
        }
        let epoch = record.epoch.next();
        let children: Vec<JobId> =
            (0..record.children()).filter_map(|i| Some(record.child_birth(i)?.id())).collect();
        // Where the job's record has moved before it was ever placed, its groups have other ids.
        let same = children.iter().all(|child| self.gangs.claims(child));
        let gang = self.gangs.jobs.entry(job).or_default();
        if gang.gather.as_ref().is_some_and(|g| g.epoch != epoch || !same) {
            self.give_back(job, "");
        }
        let gang = self.gangs.jobs.entry(job).or_default();
        if now < gang.rests {
            let at = gang.rests;
            return self.drive_at(job, at);
        }
        if gang.gather.is_none() {
            gang.out.retain(|_, until| *until > now);
            let out: BTreeSet<PeerName> = gang.out.keys().cloned().collect();
            let Some(order) = self.plan_gathering(record, &out) else {
                let gang = self.gangs.jobs.entry(job).or_default();
                gang.why = "no clusters that take claims now could hold all its groups".into();
                let every = PLAN_EVERY.scale(1 << gang.unplanned.min(PLANS_GROW), 1);
                gang.unplanned = gang.unplanned.saturating_add(1);
                return self.drive_at(job, now + every);
            };
            for (index, child) in (0u32..).zip(children) {
                self.gangs.claimed.insert(child, (job, index));
            }
            let gather = Gather { epoch, order, asked: BTreeMap::new(), holds: None, since: now };
            let gang = self.gangs.jobs.entry(job).or_default();
            (gang.gather, gang.unplanned) = (Some(gather), 0);
        }
        self.gather_on(job, record);
    }

    /// Each group's cluster, in the order in which they are asked.
    fn plan_gathering(
        &mut self,
        record: &JobRecord,
        out: &BTreeSet<PeerName>,
    ) -> Option<Vec<(PeerName, u32)>> {
        self.placer.update(&self.view);
        let reads: BTreeSet<PeerName> = self
            .view
            .members
            .keys()
            .filter(|n| **n == self.cfg.name || self.wire_of(n).is_some_and(|wire| wire >= SPEAKS_GROUPS))
            .cloned()
            .collect();
        let may = |name: &PeerName| reads.contains(name) && !out.contains(name);
        let (plan, _) = self.placer.plan_groups_now(&record.spec, &may, self.now.mono);
        if plan.why_not.is_some() {
            return None;
        }
        let mut order: Vec<(PeerName, u32)> =
            plan.groups.into_iter().map(|(_, cluster)| cluster).zip(0u32..).collect();
        order.sort();
        Some(order)
    }

    fn gather_on(&mut self, job: JobId, record: &JobRecord) {
        let now = self.now.mono;
        let Some(gather) = self.gangs.jobs.get_mut(&job).and_then(|g| g.gather.as_mut()) else { return };
        for asked in gather.asked.values_mut() {
            if asked.granted.as_ref().is_some_and(|(until, _)| *until <= now) {
                asked.granted = None;
            }
        }
        let granted = |g: &Gather, group: u32| g.asked.get(&group).is_some_and(|a| a.granted.is_some());
        let holds = gather.asked.values().any(|a| a.granted.is_some());
        gather.holds = if holds { gather.holds.or(Some(now)) } else { None };
        if gather.order.iter().all(|(_, group)| granted(gather, *group)) {
            let order = gather.order.clone();
            self.placer.update(&self.view);
            // They were asked when they still fitted, and grant without looking.
            let unfit = order.iter().find(|(cluster, group)| {
                record.group(*group).is_some_and(|child| self.placer.never(&child.spec, cluster))
            });
            return match unfit {
                Some((cluster, _)) => self.rest_groups(
                    job,
                    &format!(
                        "{cluster} cannot run its part by what it says of itself now, so all was given back"
                    ),
                ),
                None => self.place_groups(job, record),
            };
        }
        if gather.holds.is_some_and(|since| now.since(since) >= GATHER_MAX) {
            self.count("gatherings_given_up");
            return self.rest_groups(job, "not all of it came free in time, so what was held was given back");
        }
        if !holds && now.since(gather.since) >= GATHER_MAX {
            // The first has kept it waiting: by now another plan may be better.
            self.give_back(job, "");
            return self.drive_at(job, now);
        }
        // All before the first that is not granted, and that one.
        let first = gather.order.iter().position(|(_, group)| !granted(gather, *group));
        let upto = first.map_or(gather.order.len(), |at| at + 1);
        let epoch = gather.epoch;
        let (mut lay, mut silent, mut due) = (Vec::new(), None, now + CLAIM_EVERY);
        for (cluster, group) in gather.order[..upto].iter().cloned() {
            let asked = gather.asked.entry(group).or_insert_with(|| Asked {
                cluster: cluster.clone(),
                sent_at: Instant(0),
                tries: 0,
                ahead: None,
                granted: None,
                keep_at: now,
            });
            let next = match &asked.granted {
                Some(_) => asked.keep_at,
                None if asked.tries == 0 => now,
                None => asked.sent_at + CLAIM_EVERY,
            };
            if next > now {
                due = due.min(next);
                continue;
            }
            if asked.tries >= TRIES_MAX {
                silent = Some(cluster);
                break;
            }
            (asked.sent_at, asked.tries, asked.keep_at) = (now, asked.tries + 1, now + CLAIM_EVERY);
            lay.push((cluster, group));
        }
        if let Some(cluster) = silent {
            return self.group_refused(job, &cluster, &format!("no answer to {TRIES_MAX} claims"));
        }
        for (cluster, group) in lay {
            self.claim_group(record, epoch, &cluster, group);
        }
        self.drive_at(job, due);
    }

    fn claim_group(&mut self, record: &JobRecord, epoch: Epoch, cluster: &PeerName, group: u32) {
        let Some(child) = record.group(group) else { return };
        let spec = &child.spec;
        let claim = Claim {
            birth: child.birth.clone(),
            epoch,
            nodes: spec.nodes,
            resources: spec.resources.clone(),
            priority: spec.priority,
            image: spec.image.is_some() || spec.run == crate::model::spec::Run::Image,
            max_runtime: spec.max_runtime,
        };
        let terms = Terms {
            preemptible: spec.may_be_preempted(),
            token: false,
            waited: Span::millis(self.now.wall.0.saturating_sub(record.submitted_at.0)),
            card: self.card_of(&spec.tenant),
            gathers: true,
            lean: false,
        };
        self.send(cluster.clone(), Message::ClaimWith { claim: Box::new(claim), terms }, false);
    }

    /// A cluster holds capacity for a group.
    pub(super) fn group_granted(
        &mut self,
        from: PeerName,
        child: JobId,
        epoch: Epoch,
        held: Span,
        terms: (ContactId, u64, Vec<Home>, u64),
    ) {
        let now = self.now.mono;
        let (contact, series, homes, incarnation) = terms;
        let certified = contact_id(&from, series, &homes) == contact;
        let wanted = self.gangs.claimed.get(&child).copied().and_then(|(job, group)| {
            let gather = self.gangs.jobs.get_mut(&job)?.gather.as_mut().filter(|g| g.epoch == epoch)?;
            Some((job, gather.asked.get_mut(&group).filter(|a| a.cluster == from)?))
        });
        let (Some((job, asked)), true, Ok(homes)) = (wanted, certified, BoundedVec::try_from(homes)) else {
            if self.group_stands(&child, epoch, &from) {
                // The answer to a claim that was repeated just before it was placed there.
                return;
            }
            return self.send(from, Message::Withdraw { job: child, epoch }, false);
        };
        asked.granted = Some((now + held, (contact, series, homes, incarnation)));
        (asked.tries, asked.ahead) = (0, Some(0));
        asked.keep_at = now + Span(held.0 / KEEP_PART);
        self.drive_soon(job);
    }

    /// It is placed there, under this epoch, and has not ended.
    fn group_stands(&self, child: &JobId, epoch: Epoch, cluster: &PeerName) -> bool {
        let Some((job, group)) = self.gangs.claimed.get(child) else { return false };
        let chosen = self.gangs.jobs.get(job).and_then(|gang| gang.chosen.as_ref());
        let state = chosen.filter(|record| record.epoch == epoch).and_then(|record| record.groups.as_ref());
        let placed = state.and_then(|state| state.placed.get(*group as usize));
        placed.is_some_and(|p| p.outcome.is_none() && p.placement.cluster == *cluster)
    }

    /// A cluster says where a group's claim stands.
    pub(super) fn group_waits(
        &mut self,
        from: &PeerName,
        child: JobId,
        epoch: Epoch,
        ahead: u32,
        refused: Option<String>,
        _prospects: &Prospects,
    ) {
        let Some((job, group)) = self.gangs.claimed.get(&child).copied() else { return };
        let gather = self.gangs.jobs.get_mut(&job).and_then(|g| g.gather.as_mut());
        let asked = gather.filter(|g| g.epoch == epoch).and_then(|g| g.asked.get_mut(&group));
        let Some(asked) = asked.filter(|a| a.cluster == *from) else { return };
        match refused {
            Some(why) => self.group_refused(job, from, &why),
            None => {
                // Whoever waits there holds nothing there.
                (asked.ahead, asked.tries, asked.granted) = (Some(ahead), 0, None);
            }
        }
    }

    fn group_refused(&mut self, job: JobId, cluster: &PeerName, why: &str) {
        let until = self.now.mono + OUT_FOR;
        if let Some(gang) = self.gangs.jobs.get_mut(&job) {
            gang.out.insert(cluster.clone(), until);
        }
        self.strike(cluster, false);
        self.rest_groups(job, &format!("{cluster} refused: {why}"));
    }

    /// Everything is given back, and begins anew after a random moment: two jobs that wait for each other must not meet again.
    fn rest_groups(&mut self, job: JobId, why: &str) {
        self.give_back(job, why);
        let Some(gang) = self.gangs.jobs.get_mut(&job) else { return };
        let most = REST.0 << gang.given_back.min(RESTS_GROW);
        gang.given_back = gang.given_back.saturating_add(1);
        let until = self.now.mono + REST + Span(self.rng.below(most));
        gang.rests = until;
        self.drive_at(job, until);
    }

    fn give_back(&mut self, job: JobId, why: &str) {
        // By the ids under which they were asked for.
        let mut ids: BTreeMap<u32, JobId> = BTreeMap::new();
        self.gangs.claimed.retain(|child, (of, group)| {
            if *of == job {
                ids.insert(*group, *child);
            }
            *of != job
        });
        let Some(gang) = self.gangs.jobs.get_mut(&job) else { return };
        why.clone_into(&mut gang.why);
        let Some(gather) = gang.gather.take() else { return };
        for (group, asked) in gather.asked {
            let Some(child) = ids.get(&group).copied() else { continue };
            self.send(asked.cluster, Message::Withdraw { job: child, epoch: gather.epoch }, false);
        }
    }

    /// Everything is held: one swap places all groups.
    fn place_groups(&mut self, job: JobId, record: &JobRecord) {
        let at = self.now.wall;
        let Some(gang) = self.gangs.jobs.get_mut(&job) else { return };
        let Some(gather) = &gang.gather else { return };
        let mut placements: BTreeMap<u32, Placement> = BTreeMap::new();
        for (group, asked) in &gather.asked {
            let Some((_, (contact, series, contact_homes, incarnation))) = asked.granted.clone() else {
                return;
            };
            let cluster = asked.cluster.clone();
            let placement = Placement { cluster, contact, incarnation, series, contact_homes, at };
            placements.insert(*group, placement);
        }
        let (epoch, placements) = (gather.epoch, placements.into_values().collect());
        (gang.busy, gang.given_back) = (true, 0);
        // As the claims were laid: by these the groups' ids were made.
        let homes = record.group_homes();
        let change = Change::Groups(GroupsChange::Place { epoch, placements, homes });
        let origin = Origin::Job(record.birth.clone());
        self.propose(origin, Task::Job(change), Purpose::GroupsPlace(job), PATIENCE);
    }

    pub(super) fn groups_placed(&mut self, job: JobId, result: OpResult) {
        let placed = matches!(&result, OpResult::Value { refused: None, .. });
        match placed {
            true => {
                // The grants are the attempts' from here on; their groups stay known, for grants that are said once more.
                let gather = self.gangs.jobs.get_mut(&job).and_then(|gang| gang.gather.take());
                if let (Some(gather), OpResult::Value { value: Value::Job(record), .. }) = (gather, &result) {
                    for (cluster, group) in &gather.order {
                        let gpus = record.spec.groups.list.get(*group as usize);
                        let gpus = gpus.map_or(0, |g| u64::from(g.resources.gpus) * u64::from(g.nodes));
                        self.placer.give(cluster, gpus, self.now.mono);
                    }
                    let text = format!("{} as epoch {}", record.reason, record.epoch);
                    self.event("job.placed", Some(job), text);
                }
            }
            false => {
                self.count("placements_refused");
                self.give_back(job, "the placement was not taken");
            }
        }
        self.groups_read(job, result);
    }

    // Following.

    /// The job's record as a quorum holds it.
    pub(super) fn groups_read(&mut self, job: JobId, result: OpResult) {
        let Some(gang) = self.gangs.jobs.get_mut(&job) else { return };
        gang.busy = false;
        if let OpResult::Value { value: Value::Job(record), .. } = result {
            let closed = record.state.is_final() && gang.chosen.as_ref().is_some_and(|c| !c.state.is_final());
            let text = record.reason.clone();
            if gang.chosen.as_ref().is_none_or(|c| c.version <= record.version) {
                gang.chosen = Some(record.clone());
            }
            self.heal_hint(&record);
            if closed {
                self.event("job.closed", Some(job), text);
            }
            return self.drive_soon(job);
        }
        self.drive_at(job, self.now.mono + Span::secs(1));
    }

    /// Makes sure that a slot for every group's record is there.
    fn children_of(&mut self, job: JobId, record: &JobRecord) -> Vec<Child> {
        let gang = self.gangs.jobs.entry(job).or_default();
        for index in gang.children.len() as u32..record.children() {
            let id = record.child_birth(index).map(|birth| birth.id()).unwrap_or_default();
            gang.children.push(Child { id, ..Child::default() });
        }
        gang.children.clone()
    }

    fn ask_group(&mut self, job: JobId, record: &JobRecord, index: u32, change: Option<GroupsChange>) {
        let now = self.now.mono;
        let Some(gang) = self.gangs.jobs.get_mut(&job) else { return };
        let Some(child) = gang.children.get_mut(index as usize) else { return };
        (child.busy, child.asked) = (true, Some(now));
        let Some(first) = record.group(index) else { return };
        let origin = Origin::Job(first.birth.clone());
        let task = match (change, &child.seen) {
            // Whether it is there is not known: it is made, or read.
            (_, None) => Task::Create(Box::new(Value::job(first)), Fresh::No),
            (Some(change), _) => Task::Job(Change::Groups(change)),
            (None, _) => Task::Read,
        };
        self.propose(origin, task, Purpose::Group { job, index }, PATIENCE);
    }

    /// Whether a group's record may be asked about again.
    fn due(&self, child: &Child, every: Span) -> Option<Instant> {
        let now = self.now.mono;
        if child.busy {
            return Some(now + CLAIM_EVERY);
        }
        let newer = self
            .acceptor
            .job(&child.id)
            .is_some_and(|hint| child.seen.as_ref().is_some_and(|seen| hint.version > seen.version));
        let every = if newer { Span::millis(100) } else { every };
        let at = child.asked.map_or(now, |at| at + every);
        (at > now).then_some(at)
    }

    fn follow_groups(&mut self, job: JobId, record: &JobRecord) {
        let now = self.now.mono;
        let Some(state) = &record.groups else { return };
        let (epoch, halt) = (record.epoch, record.groups_halt());
        let clusters: Vec<PeerName> = state.placed.iter().map(|p| p.placement.cluster.clone()).collect();
        let why = match &record.cancel {
            Some(cancel) => format!("its job was cancelled by {}", cancel.by),
            None => "another group of its job has ended".to_owned(),
        };
        let (mut started, mut ended, mut next) = (Vec::new(), Vec::new(), now + ASK_IDLE);
        let children = self.children_of(job, record);
        for ((index, child), placed) in (0u32..).zip(&children).zip(&state.placed) {
            if placed.outcome.is_some() {
                continue;
            }
            let at = self.now.wall;
            let (change, every) = match &child.seen {
                None => (None, ASK_EVERY),
                Some(seen) if seen.epoch < epoch && halt => {
                    (Some(GroupsChange::Halt { epoch, why: why.clone(), at }), ASK_EVERY)
                }
                Some(seen) if seen.epoch < epoch => {
                    let placement = placed.placement.clone();
                    (Some(GroupsChange::Begin { epoch, placement, clusters: clusters.clone() }), Span::ZERO)
                }
                Some(seen) if seen.epoch > epoch => (None, ASK_EVERY),
                Some(seen) if seen.placement.is_some() => {
                    if seen.state == JobState::Running && !placed.started {
                        started.push(index);
                    }
                    match halt && !seen.halted() {
                        true => (Some(GroupsChange::Halt { epoch, why: why.clone(), at }), Span::ZERO),
                        false if halt || seen.state == JobState::Placed => (None, ASK_EVERY.scale(3, 1)),
                        false => (None, ASK_IDLE),
                    }
                }
                Some(seen) => {
                    let of = seen.attempts.iter().rfind(|a| a.epoch == epoch);
                    let outcome = of.and_then(|a| a.outcome.clone());
                    // Kept no longer than its end is asked for: an attempt that nobody knows of was stopped.
                    ended.push((
                        index,
                        outcome.unwrap_or_else(|| Outcome::Stopped("is not known any more".into())),
                    ));
                    continue;
                }
            };
            match self.due(child, every) {
                Some(at) => next = next.min(at),
                None => {
                    self.ask_group(job, record, index, change);
                    next = next.min(now + CLAIM_EVERY);
                }
            }
        }
        if !started.is_empty() || !ended.is_empty() {
            if let Some(gang) = self.gangs.jobs.get_mut(&job) {
                gang.busy = true;
            }
            let change = GroupsChange::Seen { epoch, started, ended, at: self.now.wall };
            let origin = Origin::Job(record.birth.clone());
            self.propose(origin, Task::Job(Change::Groups(change)), Purpose::GroupsJob(job), PATIENCE);
        }
        self.drive_at(job, next.max(now + Span::millis(20)));
    }

    /// All groups are closed, and the job's end is decided: their records say it first.
    fn finish_groups(&mut self, job: JobId, record: &JobRecord, ending: JobState) {
        let now = self.now.mono;
        let (mut open, mut next) = (false, now + ASK_EVERY);
        let children = self.children_of(job, record);
        for (index, child) in (0u32..).zip(&children) {
            if child.seen.as_ref().is_some_and(|seen| seen.state.is_final()) {
                continue;
            }
            open = true;
            let reason = format!("its job ended as {}: {}", ending.as_str(), record.reason);
            let change = GroupsChange::Finish { state: ending, reason, at: self.now.wall };
            match self.due(child, ASK_EVERY.scale(1, 2)) {
                Some(at) => next = next.min(at),
                None => self.ask_group(job, record, index, Some(change)),
            }
        }
        if !open {
            if let Some(gang) = self.gangs.jobs.get_mut(&job) {
                gang.busy = true;
            }
            let change = Change::Groups(GroupsChange::Over { at: self.now.wall });
            let origin = Origin::Job(record.birth.clone());
            self.propose(origin, Task::Job(change), Purpose::GroupsJob(job), PATIENCE);
        }
        self.drive_at(job, next.max(now + Span::millis(20)));
    }

    pub(super) fn group_asked(&mut self, job: JobId, index: u32, result: OpResult) {
        let Some(gang) = self.gangs.jobs.get_mut(&job) else { return };
        let Some(child) = gang.children.get_mut(index as usize) else { return };
        child.busy = false;
        let fresh = child.seen.is_none();
        match result {
            OpResult::Value { value: Value::Job(seen), .. } => {
                let before = child.seen.as_ref().map(|s| s.version);
                if before.is_none_or(|version| version <= seen.version) {
                    child.seen = Some(seen.clone());
                }
                if fresh || before != Some(seen.version) {
                    // Something more may be done at once.
                    child.asked = None;
                }
                if let Some(placement) = seen.placement.clone().filter(|_| before != Some(seen.version)) {
                    let birth = seen.birth.clone();
                    self.send(placement.cluster, Message::Look { birth }, false);
                }
            }
            // Kept no longer than it had to be, so it had ended.
            OpResult::Forgotten => {
                let ended = gang.chosen.as_ref().and_then(|record| record.group(index));
                child.seen = ended.map(|first| Arc::new(JobRecord { state: JobState::Cancelled, ..first }));
            }
            _ => {}
        }
        self.drive_soon(job);
    }
}
