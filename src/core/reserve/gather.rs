//! The owner's half of reservations: asks the clusters for their parts, in the order of their names, and confirms them all
//! with one swap; or says why not. All of it is soft: another home begins anew with what the clusters hold.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::base::{Instant, Span};
use crate::core::acceptor::Value;
use crate::core::books::fits_empty;
use crate::core::message::{Message, Origin};
use crate::core::propose::Task;
use crate::core::purpose::Purpose;
use crate::model::record::Change;
use crate::model::report::{Liveness, MemberView};
use crate::model::reserve::ReserveChange;
use crate::model::timestamp::to_rfc3339;
use crate::model::{JobRecord, JobState};

/// A cluster is asked this often until it holds,
const ASK_EVERY: Span = Span::secs(2);
/// and what it holds is asked for again after this.
const KEEP_EVERY: Span = Span::secs(5);
/// Only what was held so lately is confirmed.
const HELD_FOR: Span = Span::secs(15);
/// A cluster that does not answer so often is out.
const TRIES_MAX: u32 = 4;
/// What cannot be had within this is refused.
const GIVE_UP: Span = Span::secs(60);
/// A cluster that does not say that it keeps its part is told to look, this often.
const LOOK_EVERY: Span = Span::secs(10);
const PATIENCE: Span = Span::secs(10);
/// Bytes of a cluster's reason.
const WHY_BYTES_MAX: usize = 300;

#[derive(Debug, Clone, Default)]
struct Ask {
    sent: Instant,
    tries: u32,
    held: Option<Instant>,
    /// It said that it is worth asking again: why.
    waits: Option<String>,
}

/// Soft state of one reservation.
#[derive(Debug, Clone)]
struct Gathering {
    round: u64,
    since: Instant,
    targets: BTreeSet<PeerName>,
    asks: BTreeMap<PeerName, Ask>,
    /// Clusters that said no, and why.
    out: BTreeMap<PeerName, String>,
    /// The earliest time that one of them named.
    next: Option<WallTime>,
    busy: bool,
    looked: Option<Instant>,
}

/// Of all reservations that this peer drives.
#[derive(Default)]
pub(in crate::core) struct Gatherings(BTreeMap<JobId, Gathering>);

impl Peer {
    /// One look at a reservation.
    pub(in crate::core) fn drive_reservation(&mut self, job: JobId, record: &JobRecord) {
        let (now, wall) = (self.now.mono, self.now.wall);
        let (Some(state), Some(reserve), Some(asked)) =
            (&record.reserve, &record.spec.reserve, record.asked())
        else {
            return;
        };
        let fresh = Gathering {
            round: state.round,
            since: now,
            targets: BTreeSet::new(),
            asks: BTreeMap::new(),
            out: BTreeMap::new(),
            next: None,
            busy: false,
            looked: None,
        };
        let g = self.gatherings.0.entry(job).or_insert(fresh);
        if g.busy {
            return self.drive_at(job, now + ASK_EVERY);
        }
        if record.state == JobState::Running {
            return self.follow_reservation(job, record);
        }
        if g.round != state.round {
            (g.round, g.asks) = (state.round, BTreeMap::new());
        }
        if asked.until <= wall {
            return self.refuse_reservation(job, record, "its time is over before it could be had".into());
        }
        let (named, wanted) = match &reserve.at {
            At::Named(names) => (Some(names.clone()), names.len()),
            At::Any(n) => (None, *n as usize),
        };
        match named {
            Some(names) => {
                if names.iter().any(|n| g.out.contains_key(n)) {
                    let why = reasons(g);
                    return self.refuse_reservation(job, record, why);
                }
                g.targets.extend(names);
            }
            None if g.targets.len() < wanted => {
                let taken: BTreeSet<PeerName> = g.targets.iter().chain(g.out.keys()).cloned().collect();
                let missing = wanted - g.targets.len();
                let more = self.clusters_for(&asked, &taken, missing);
                let Some(g) = self.gatherings.0.get_mut(&job) else { return };
                if g.targets.len() + more.len() < wanted {
                    let n = g.targets.len() + more.len();
                    let why = match wanted {
                        1 => format!("no cluster can keep it; {}", reasons(g)),
                        _ => format!("only {n} of {wanted} clusters can keep it; {}", reasons(g)),
                    };
                    return self.refuse_reservation(job, record, why);
                }
                g.targets.extend(more);
                self.in_order(job);
            }
            None => {}
        }
        self.ask_clusters(job, record, asked);
    }

    /// What is held behind a cluster that is still to be asked is let go: nobody waits with something in its hands that comes later
    /// in the order.
    fn in_order(&mut self, job: JobId) {
        let Some(g) = self.gatherings.0.get_mut(&job) else { return };
        let first = g.targets.iter().find(|t| g.asks.get(*t).is_none_or(|a| a.held.is_none())).cloned();
        let Some(first) = first else { return };
        let behind: Vec<PeerName> = g.asks.keys().filter(|t| **t > first).cloned().collect();
        for cluster in behind {
            if let Some(g) = self.gatherings.0.get_mut(&job) {
                g.asks.remove(&cluster);
            }
            self.send(cluster, Message::Reserve(ReserveWord::Drop { id: job }), false);
        }
    }

    fn ask_clusters(&mut self, job: JobId, record: &JobRecord, asked: Asked) {
        let now = self.now.mono;
        let Some(g) = self.gatherings.0.get_mut(&job) else { return };
        let (mut send, mut silent) = (Vec::new(), None);
        let mut all = true;
        for cluster in &g.targets {
            let ask = g.asks.entry(cluster.clone()).or_default();
            ask.held = ask.held.filter(|at| now.since(*at) < HELD_FOR);
            let every = if ask.held.is_some() { KEEP_EVERY } else { ASK_EVERY };
            if ask.tries == 0 || now.since(ask.sent) >= every {
                if ask.tries >= TRIES_MAX {
                    silent = Some(cluster.clone());
                    break;
                }
                (ask.sent, ask.tries) = (now, ask.tries + 1);
                send.push(cluster.clone());
            }
            if ask.held.is_none() {
                // The later ones are asked once this one holds.
                all = false;
                break;
            }
        }
        if let Some(cluster) = silent {
            return self.out_of(job, cluster, format!("does not answer ({TRIES_MAX} times asked)"), None);
        }
        if all {
            let clusters: Vec<PeerName> = g.targets.iter().cloned().collect();
            let round = g.round;
            return self.change_reservation(job, record, ReserveChange::Confirm { round, clusters });
        }
        if now.since(g.since) >= GIVE_UP {
            let waits = g.asks.iter().filter_map(|(c, a)| Some(format!("{c}: {}", a.waits.as_ref()?)));
            let waits: Vec<String> = waits.collect();
            let why = match waits.is_empty() {
                true => reasons(g),
                false => format!(
                    "another reservation that is not confirmed yet is in the way; {}",
                    waits.join("; ")
                ),
            };
            return self.refuse_reservation(job, record, why);
        }
        let round = g.round;
        for cluster in send {
            let word = ReserveWord::Hold { birth: record.birth.clone(), asked: asked.clone(), round };
            self.send(cluster, Message::Reserve(word), false);
        }
        self.drive_at(job, now + ASK_EVERY);
    }

    /// A cluster cannot keep its part.
    fn out_of(&mut self, job: JobId, cluster: PeerName, why: String, next: Option<WallTime>) {
        let Some(g) = self.gatherings.0.get_mut(&job) else { return };
        g.targets.remove(&cluster);
        g.asks.remove(&cluster);
        g.next = [g.next, next].into_iter().flatten().min();
        g.out.insert(cluster, why);
        self.drive_soon(job);
    }

    pub(super) fn on_held_word(&mut self, from: &PeerName, id: JobId, round: u64) {
        let now = self.now.mono;
        let Some(g) = self.gatherings.0.get_mut(&id).filter(|g| g.round == round) else { return };
        let Some(ask) = g.asks.get_mut(from) else { return };
        let news = ask.held.is_none();
        (ask.held, ask.waits) = (Some(now), None);
        // Asked anew after a while, not at once.
        ask.tries = 1;
        if news {
            self.drive_soon(id);
        }
    }

    pub(super) fn on_not(
        &mut self,
        from: &PeerName,
        id: JobId,
        round: u64,
        (mut why, next, later): (String, Option<WallTime>, bool),
    ) {
        let Some(g) = self.gatherings.0.get_mut(&id).filter(|g| g.round == round) else { return };
        let Some(ask) = g.asks.get_mut(from) else { return };
        let mut end = why.len().min(WHY_BYTES_MAX);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        why.truncate(end);
        if later {
            (ask.held, ask.tries, ask.waits) = (None, 1, Some(why));
            return;
        }
        self.out_of(id, from.clone(), why, next);
    }

    fn change_reservation(&mut self, job: JobId, record: &JobRecord, change: ReserveChange) {
        if let Some(g) = self.gatherings.0.get_mut(&job) {
            g.busy = true;
        }
        let origin = Origin::Job(record.birth.clone());
        let purpose = Purpose::Reserve(ReservePurpose::Changed(job));
        self.propose(origin, Task::Job(Change::Reserve(change)), purpose, PATIENCE);
        self.drive_at(job, self.now.mono + ASK_EVERY);
    }

    fn refuse_reservation(&mut self, job: JobId, record: &JobRecord, mut why: String) {
        let Some(g) = self.gatherings.0.get(&job) else { return };
        if let Some(next) = g.next {
            why += &format!("; it could be kept from {} on", to_rfc3339(next));
        }
        let (round, at) = (g.round, self.now.wall);
        self.change_reservation(job, record, ReserveChange::Refuse { round, why, at });
    }

    pub(super) fn reservation_changed(&mut self, job: JobId, result: OpResult) {
        if let Some(g) = self.gatherings.0.get_mut(&job) {
            g.busy = false;
        }
        let OpResult::Value { value: Value::Job(record), refused } = result else {
            return self.drive_at(job, self.now.mono + ASK_EVERY);
        };
        // This home may have missed what others did.
        self.heal_hint(&record);
        if refused.is_none() {
            let kind = match record.state {
                JobState::Running => "reservation.confirmed",
                JobState::Failed => "reservation.refused",
                _ => "reservation.ended",
            };
            self.event(kind, Some(job), record.reason.clone());
            self.tell_parts(&record);
        }
        if record.state.is_final() {
            self.drop_gathering(&job);
        }
        self.drive_at(job, self.now.mono + if refused.is_none() { Span::ZERO } else { ASK_EVERY });
    }

    /// Whoever keeps a part shall look at the record.
    pub(in crate::core) fn tell_parts(&mut self, record: &JobRecord) {
        let parts: Vec<PeerName> = record.parts().iter().map(|part| part.cluster.clone()).collect();
        for cluster in parts {
            self.send(cluster, Message::Look { birth: record.birth.clone() }, false);
        }
    }

    /// A confirmed one: its end, and clusters that do not say that they keep it.
    fn follow_reservation(&mut self, job: JobId, record: &JobRecord) {
        let (now, wall) = (self.now.mono, self.now.wall);
        let Some(asked) = record.asked() else { return };
        if asked.until <= wall {
            return self.change_reservation(job, record, ReserveChange::End { at: wall });
        }
        let silent = |cluster: &PeerName| {
            let member = self.view.members.get(cluster);
            let queue = member.and_then(|m| m.report.as_ref()?.queue.as_ref());
            let says = |r: &crate::model::report::ReservedReport| r.id == job && r.confirmed;
            queue.is_none_or(|q| q.reserved_more == 0 && !q.reserved.iter().any(says))
        };
        let silent: Vec<PeerName> =
            record.parts().iter().map(|part| part.cluster.clone()).filter(silent).collect();
        let Some(g) = self.gatherings.0.get_mut(&job) else { return };
        if !silent.is_empty() && g.looked.is_none_or(|at| now.since(at) >= LOOK_EVERY) {
            g.looked = Some(now);
            for cluster in &silent {
                self.send(cluster.clone(), Message::Look { birth: record.birth.clone() }, false);
            }
        }
        let idle = if silent.is_empty() { Span::secs(30) } else { LOOK_EVERY };
        let ends = now + Span::millis(asked.until.0.saturating_sub(wall.0) + 1);
        self.drive_at(job, ends.min(now + idle));
    }

    /// This peer drives it no longer; clusters keep what they hold until the record says what becomes of it.
    pub(in crate::core) fn forget_gathering(&mut self, job: &JobId) {
        self.gatherings.0.remove(job);
    }

    /// It has ended, or nobody asks any more: what is held need not wait until its time is up.
    pub(in crate::core) fn drop_gathering(&mut self, job: &JobId) {
        let Some(g) = self.gatherings.0.remove(job) else { return };
        for cluster in g.asks.into_keys() {
            self.send(cluster, Message::Reserve(ReserveWord::Drop { id: *job }), false);
        }
    }

    /// The best clusters for a part, beside these: those with the most room as far as is known here.
    fn clusters_for(&self, asked: &Asked, but: &BTreeSet<PeerName>, most: usize) -> Vec<PeerName> {
        let soon = asked.from.0 <= self.now.wall.0.saturating_add(3_600_000);
        let room = |m: &MemberView| {
            let report = m.report.as_ref()?;
            let (capacity, queue) = (report.capacity.as_ref()?, report.queue.as_ref()?);
            let open = m.liveness == Liveness::Alive && !m.draining && !m.witness && queue.closed.is_none();
            if !open || but.contains(&m.peer) || !fits_empty(&capacity.nodes, asked.gpus, &asked.each()) {
                return None;
            }
            let sum = |by: &BTreeMap<String, u32>| by.values().map(|n| u64::from(*n)).sum::<u64>();
            let all = if soon { sum(&queue.gpus_free) } else { sum(&queue.gpus_total) };
            let meets =
                |r: &&crate::model::report::ReservedReport| r.from < asked.until && asked.from < r.until;
            let kept: u64 = queue.reserved.iter().filter(meets).map(|r| u64::from(r.gpus)).sum();
            Some(all.saturating_sub(kept))
        };
        let mut rooms: Vec<(std::cmp::Reverse<u64>, PeerName)> = self
            .view
            .members
            .values()
            .filter_map(|m| Some((std::cmp::Reverse(room(m)?), m.peer.clone())))
            .collect();
        rooms.sort();
        rooms.into_iter().take(most).map(|(_, peer)| peer).collect()
    }
}

/// Who said no, and why, in words.
fn reasons(g: &Gathering) -> String {
    let said: Vec<String> = g.out.iter().map(|(cluster, why)| format!("{cluster}: {why}")).collect();
    let asked = g.targets.iter().filter(|t| g.asks.get(*t).is_some_and(|a| a.held.is_none()));
    match said.is_empty() {
        false => said.join("; "),
        true => {
            let silent: Vec<&str> = asked.map(PeerName::as_str).collect();
            match silent.is_empty() {
                true => "no cluster has so many of these GPUs".into(),
                false => format!("{} did not answer in time", silent.join(", ")),
            }
        }
    }
}
