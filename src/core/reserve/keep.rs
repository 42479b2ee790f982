//! A cluster's half of reservations: what it keeps for whom, on disk, and until when.
//!
//! The cluster alone promises what it has. What it holds and what is confirmed are rows of one kind; neither ends because
//! somebody says so, but because the record does, or the time is over.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::*;
use crate::base::{Instant, Span};
use crate::core::acceptor::{Value, ValueError};
use crate::core::api::{NodeShare, Now, Table, Write};
use crate::core::books::fits_empty;
use crate::core::message::{Message, Origin};
use crate::core::propose::Task;
use crate::core::purpose::Purpose;
use crate::core::schedule::promised::{PROMISES_MAX, Promise, Short};
use crate::model::record::Change;
use crate::model::report::ReservedReport;
use crate::model::reserve::ReserveChange;
use crate::model::timestamp::to_rfc3339;
use crate::model::{JobRecord, JobState};

/// What is held and was not asked for again for this long is let go, if the record agrees.
const HOLD_FOR: Span = Span::secs(30);
/// The record of what is confirmed is read this often: a cancel may not have been heard.
const CHECK_EVERY: Span = Span::secs(60);
/// What is held is let go after this long even where its record cannot be asked.
const UNSURE_MAX: Span = Span::secs(3_600);
/// The tenant's share of its limit is asked for so long before the start.
const SHARE_AHEAD: Span = Span::secs(60);
/// Reservations that the report names; a facet is bounded.
const TOLD_MAX: usize = 24;
const PATIENCE: Span = Span::secs(10);

/// Durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    birth: Birth,
    asked: Asked,
    round: u64,
    /// The record says that this cluster keeps it.
    confirmed: bool,
    /// Which GPUs: one share per node.
    shares: Vec<NodeShare>,
}

#[derive(Debug, Clone)]
struct Kept {
    row: Row,
    /// When an owner asked for it last, or this run began.
    heard: Instant,
    /// When the record was asked last.
    checked: Instant,
    busy: bool,
    /// The record's round is below the one under which this is held: an owner knew of one that was never chosen.
    behind: Option<u64>,
    /// Its record cannot be asked since then.
    unsure: Option<Instant>,
    /// Its time has begun; for a line in the log.
    begun: bool,
}

/// What this cluster keeps.
#[derive(Default)]
pub(in crate::core) struct Keeping {
    rows: BTreeMap<JobId, Kept>,
}

const ROW_KEY: &str = "reserve/";

impl Keeping {
    pub fn recover(meta: &BTreeMap<Vec<u8>, Vec<u8>>, now: Instant) -> Result<Self, ValueError> {
        let mut keeping = Keeping::default();
        for (key, row) in meta {
            if std::str::from_utf8(key).is_ok_and(|key| key.starts_with(ROW_KEY)) {
                let row: Row =
                    serde_json::from_slice(row).map_err(|e| ValueError::Malformed(e.to_string()))?;
                keeping.rows.insert(row.birth.id(), Kept::new(row, now));
            }
        }
        Ok(keeping)
    }
}

impl Kept {
    fn new(row: Row, now: Instant) -> Self {
        Self { row, heard: now, checked: now, busy: false, behind: None, unsure: None, begun: false }
    }
}

/// A time of day on the clock of decisions, as both stand now.
fn mono(at: WallTime, now: Now) -> Instant {
    match at.0.checked_sub(now.wall.0) {
        Some(ahead) => now.mono + Span::millis(ahead),
        None => now.mono - Span::millis(now.wall.0 - at.0),
    }
}

impl Peer {
    /// Tells the queue what is promised, by its clock. Before every pass and every plan.
    pub(in crate::core) fn note_promises(&mut self) {
        if self.keeping.rows.is_empty() && self.exec.scheduler().promises().is_empty() {
            return;
        }
        let now = self.now;
        let promise = |(id, kept): (&JobId, &Kept)| {
            let Row { birth, asked, shares, .. } = &kept.row;
            Promise {
                id: *id,
                tenant: birth.tenant.clone(),
                gpus: asked.gpus,
                need: self.exec.scheduler().need(&asked.each()),
                from: mono(asked.from, now),
                until: mono(asked.until, now),
                shares: shares.clone(),
            }
        };
        let list: Vec<Promise> = self.keeping.rows.iter().map(promise).collect();
        let nodes = self.cfg.nodes.clone();
        self.exec.scheduler_mut().set_promises(&nodes, list);
    }

    /// The same before something is given out: what has come free goes to a promise that lacks it first.
    pub(in crate::core) fn ready_promises(&mut self) {
        self.note_promises();
        if self.exec.scheduler().promises().iter().any(|p| p.pinned() < p.gpus) {
            self.repin_promises();
        }
    }

    /// Pins anew what is no longer there.
    pub(in crate::core) fn repin_promises(&mut self) {
        self.note_promises();
        let now = self.now.mono;
        for id in self.exec.scheduler_mut().repin(now) {
            let pinned = self.exec.scheduler().promises().iter().find(|p| p.id == id);
            let Some(shares) = pinned.map(|p| p.shares.clone()) else { continue };
            if let Some(kept) = self.keeping.rows.get_mut(&id) {
                kept.row.shares = shares;
                self.save_reservation(&id);
                self.exec.report_dirty = true;
            }
        }
    }

    /// Words of a time, for people.
    fn words(asked: &Asked) -> String {
        format!("from {} to {}", to_rfc3339(asked.from), to_rfc3339(asked.until))
    }

    fn save_reservation(&mut self, id: &JobId) {
        let row = self
            .keeping
            .rows
            .get(id)
            .map(|k| serde_json::to_vec(&k.row).expect("a row has only plain fields"));
        self.write(Write { table: Table::Meta, key: format!("{ROW_KEY}{id}").into_bytes(), value: row });
    }

    fn let_go(&mut self, id: &JobId, why: &str) {
        let Some(kept) = self.keeping.rows.remove(id) else { return };
        self.save_reservation(id);
        self.exec.report_dirty = true;
        let (gpus, tenant) = (kept.row.asked.gpus, &kept.row.birth.tenant);
        let text = format!("{gpus} GPUs for tenant {tenant} {}: {why}", Self::words(&kept.row.asked));
        self.event("reservation.over", Some(*id), text);
        self.queue_changed();
    }

    pub(in crate::core) fn on_reserve_word(&mut self, from: PeerName, word: ReserveWord) {
        match word {
            ReserveWord::Hold { birth, asked, round } => self.on_hold(from, birth, asked, round),
            ReserveWord::Held { id, round } => self.on_held_word(&from, id, round),
            ReserveWord::Not { id, round, why, next, later } => {
                self.on_not(&from, id, round, (why, next, later));
            }
            // Whoever says so may know less than the record.
            ReserveWord::Drop { id } => {
                let held = |kept: &Kept| !kept.row.confirmed && !kept.busy;
                if self.keeping.rows.get(&id).is_some_and(held) {
                    self.lapse_hold(&id);
                }
            }
        }
    }

    fn on_hold(&mut self, from: PeerName, birth: Birth, asked: Asked, round: u64) {
        let (id, now) = (birth.id(), self.now.mono);
        let not = |why: String, next, later| ReserveWord::Not { id, round, why, next, later };
        let answer = if let Some(kept) = self.keeping.rows.get_mut(&id) {
            if kept.row.asked != asked {
                not("it was asked for with other figures".into(), None, false)
            } else {
                (kept.heard, kept.unsure) = (now, None);
                if kept.row.round < round {
                    kept.row.round = round;
                    self.save_reservation(&id);
                }
                ReserveWord::Held { id, round }
            }
        } else {
            match self.pin(&birth, &asked) {
                Ok(shares) => {
                    let row = Row { birth, asked, round, confirmed: false, shares };
                    self.keeping.rows.insert(id, Kept::new(row, now));
                    self.save_reservation(&id);
                    self.count("reservations_held");
                    self.exec.report_dirty = true;
                    self.note_promises();
                    ReserveWord::Held { id, round }
                }
                Err((why, next, later)) => {
                    self.count("reservations_refused");
                    not(why, next, later)
                }
            }
        };
        // Only once it is on disk.
        self.send(from, Message::Reserve(answer), true);
    }

    /// Which GPUs it would get here; or why not, from when on, and whether it is worth asking again.
    fn pin(
        &mut self,
        birth: &Birth,
        asked: &Asked,
    ) -> Result<Vec<NodeShare>, (String, Option<WallTime>, bool)> {
        let never = |why: String| Err((why, None, false));
        if let Some(why) = asked.mistake(self.now.wall) {
            return never(why);
        }
        if self.cfg.nodes.is_empty() {
            return never("is a witness: it runs nothing".into());
        }
        if let Some(why) = self.closed_for() {
            return never(why);
        }
        if !fits_empty(&self.cfg.nodes, asked.gpus, &asked.each()) {
            let models = if asked.models.is_empty() { "GPUs".into() } else { asked.models.join(" or ") };
            return never(format!("has no {} {models} even when it is empty", asked.gpus));
        }
        if self.keeping.rows.len() >= PROMISES_MAX {
            return never(format!("keeps {PROMISES_MAX} reservations already, the most that it may"));
        }
        if let Some(most) = self.gpus_at_once(&birth.tenant).filter(|most| u64::from(asked.gpus) > *most) {
            return never(format!("tenant {} may use {most} GPUs at most", birth.tenant));
        }
        self.repin_promises();
        let now = self.now;
        let plan = Promise {
            id: birth.id(),
            tenant: birth.tenant.clone(),
            gpus: asked.gpus,
            need: self.exec.scheduler().need(&asked.each()),
            from: mono(asked.from, now),
            until: mono(asked.until, now),
            shares: Vec::new(),
        };
        let short = match self.exec.scheduler().plan_promise(&plan, now.mono, &|_| false) {
            Ok(shares) => return Ok(shares),
            Err(short) => short,
        };
        // What is in the way may be gone in a moment.
        let held = |id: &JobId| self.keeping.rows.get(id).is_some_and(|k| !k.row.confirmed);
        let later = self.exec.scheduler().plan_promise(&plan, now.mono, &held).is_ok();
        let Short { can, promised, held, next } = short;
        let next = next.map(|at| WallTime(now.wall.0.saturating_add(at.since(now.mono).as_millis() + 1)));
        let mut why = format!("{can} of {} GPUs can be kept {}", asked.gpus, Self::words(asked));
        if promised > 0 {
            why += &format!("; {promised} are reserved for others then");
        }
        if held > 0 {
            why += &format!(
                "; {held} are held by jobs that may not be stopped and are not known to have ended by then"
            );
        }
        Err((why, next, later))
    }

    /// Lets go of what is held, by the record: it may have been confirmed.
    fn lapse_hold(&mut self, id: &JobId) {
        let now = self.now.mono;
        let Some(kept) = self.keeping.rows.get_mut(id) else { return };
        (kept.busy, kept.checked) = (true, now);
        let round = kept.behind.take().unwrap_or(kept.row.round);
        let change = Change::Reserve(ReserveChange::Lapse { round });
        let origin = Origin::Job(kept.row.birth.clone());
        let purpose = Purpose::Reserve(ReservePurpose::Seen(*id));
        self.propose(origin, Task::Job(change), purpose, PATIENCE);
    }

    /// About every second.
    pub(in crate::core) fn tend_reservations(&mut self) {
        if self.keeping.rows.is_empty() {
            return;
        }
        let Now { mono: now, wall } = self.now;
        let (mut over, mut lapse, mut check) = (Vec::new(), Vec::new(), Vec::new());
        for (id, kept) in &mut self.keeping.rows {
            let unsure = kept.unsure.is_some_and(|since| now.since(since) >= UNSURE_MAX);
            if kept.row.asked.until <= wall {
                over.push((*id, "its time is over"));
            } else if !kept.row.confirmed && unsure {
                over.push((*id, "it was not confirmed, and its record cannot be asked"));
            } else if kept.busy {
            } else if !kept.row.confirmed && now.since(kept.heard.max(kept.checked)) >= HOLD_FOR {
                lapse.push(*id);
            } else if kept.row.confirmed && now.since(kept.checked) >= CHECK_EVERY {
                (kept.busy, kept.checked) = (true, now);
                check.push((*id, kept.row.birth.clone()));
            }
            if kept.row.confirmed && !kept.begun && kept.row.asked.from <= wall {
                kept.begun = true;
                self.exec.report_dirty = true;
            }
        }
        for (id, why) in over {
            self.let_go(&id, why);
        }
        for id in lapse {
            self.lapse_hold(&id);
        }
        for (id, birth) in check {
            let purpose = Purpose::Reserve(ReservePurpose::Seen(id));
            self.propose(Origin::Job(birth), Task::Read, purpose, PATIENCE);
        }
        self.repin_promises();
        // Also where nothing new may start here: what is promised is promised.
        for (id, victims) in self.exec.scheduler_mut().clear_promised(now) {
            self.send_away(victims, &format!("stopped for reservation {id}"));
        }
    }

    /// The record of what is kept here was asked.
    pub(super) fn reservation_read(&mut self, id: JobId, result: OpResult) {
        let now = self.now.mono;
        let Some(kept) = self.keeping.rows.get_mut(&id) else { return };
        kept.busy = false;
        match result {
            OpResult::Value { value: Value::Job(record), .. } => {
                kept.unsure = None;
                self.reservation_seen(&record);
            }
            OpResult::Forgotten => self.let_go(&id, "it ended long ago"),
            // Confirmed is only what a majority held: that is not taken back by one that does not know it.
            OpResult::Missing if !kept.row.confirmed => self.let_go(&id, "it was never begun"),
            _ => {
                kept.unsure = kept.unsure.or(Some(now));
            }
        }
    }

    /// What the record says of this cluster's part, as a quorum holds it.
    pub(in crate::core) fn reservation_seen(&mut self, record: &JobRecord) {
        let (id, me) = (record.id(), self.cfg.name.clone());
        let part = record.parts().iter().find(|part| part.cluster == me);
        let (Some(state), Some(asked)) = (&record.reserve, record.asked()) else { return };
        let stands = record.state == JobState::Running && part.is_some();
        if let Some(kept) = self.keeping.rows.get_mut(&id) {
            if record.state == JobState::Succeeded {
                // Its owner's clock may be ahead; here it ends by this one.
                return;
            }
            if !stands {
                let holds = record.state == JobState::Pending && state.round <= kept.row.round;
                if record.state.is_final() {
                    self.let_go(&id, &record.reason);
                } else if !holds {
                    self.let_go(&id, "not all clusters held it in time");
                } else if state.round < kept.row.round {
                    kept.behind = Some(state.round);
                }
                return;
            }
            if !kept.row.confirmed {
                kept.row.confirmed = true;
                let text = format!(
                    "{} GPUs are reserved for tenant {} {}",
                    kept.row.asked.gpus,
                    kept.row.birth.tenant,
                    Self::words(&kept.row.asked)
                );
                self.save_reservation(&id);
                self.exec.report_dirty = true;
                self.event("reservation.kept", Some(id), text);
            }
            if part.is_some_and(|part| part.lost.is_some()) {
                self.tell_part(record, None);
            }
            return;
        }
        if !stands || asked.until <= self.now.wall || self.closed_for().is_some() {
            // Its owner says so again.
            return;
        }
        // It is confirmed, and this disk knows nothing of it: a new disk.
        match self.pin(&record.birth, &asked) {
            Ok(shares) => {
                let row =
                    Row { birth: record.birth.clone(), asked, round: state.round, confirmed: true, shares };
                self.keeping.rows.insert(id, Kept::new(row, self.now.mono));
                self.save_reservation(&id);
                self.exec.report_dirty = true;
                self.event("reservation.kept", Some(id), "kept anew: this disk did not know of it".into());
                if part.is_some_and(|part| part.lost.is_some()) {
                    self.tell_part(record, None);
                }
                self.queue_changed();
            }
            Err((why, ..)) => {
                if part.is_some_and(|part| part.lost.is_none()) {
                    self.event("reservation.lost", Some(id), why.clone());
                    self.tell_part(record, Some(why));
                }
            }
        }
    }

    fn tell_part(&mut self, record: &JobRecord, lost: Option<String>) {
        let change = ReserveChange::Part { cluster: self.cfg.name.clone(), lost };
        let origin = Origin::Job(record.birth.clone());
        self.propose(origin, Task::Job(Change::Reserve(change)), Purpose::Nothing, PATIENCE);
    }

    /// GPUs that are reserved here for a tenant, now or in a moment, and that its attempts do not hold: its share of a
    /// limit covers them.
    pub(in crate::core) fn reserved_idle(&self, tenant: &str) -> u64 {
        let now = self.now;
        let of = self.keeping.rows.values().filter(|k| k.row.birth.tenant == tenant && k.row.confirmed);
        let due = of.filter(|k| {
            let asked = &k.row.asked;
            mono(asked.from, now) <= now.mono + SHARE_AHEAD && now.wall < asked.until
        });
        let due: std::collections::BTreeSet<JobId> = due.map(|k| k.row.birth.id()).collect();
        let promises = self.exec.scheduler().promises().iter().filter(|p| due.contains(&p.id));
        promises.map(|p| u64::from(p.gpus.saturating_sub(self.exec.scheduler().use_of(p).0))).sum()
    }

    /// Why a claim that would fit does not start: what is reserved for whom. Empty where that is not why.
    pub(in crate::core) fn reserved_against(&self, key: &crate::core::api::AttemptKey) -> String {
        let id = self.exec.scheduler().held_back_by(key, self.now.mono);
        id.map_or_else(String::new, |id| self.reserved_says(&id))
    }

    /// What is reserved, in words.
    pub(in crate::core) fn reserved_says(&self, id: &JobId) -> String {
        let kept = self.keeping.rows.get(id);
        kept.map_or_else(String::new, |k| {
            reserved_words(k.row.asked.gpus, &k.row.birth.tenant, k.row.asked.from, k.row.asked.until)
        })
    }

    /// Takes what is reserved out of what the report says is free, and names it.
    pub(in crate::core) fn report_reserved(&self, queue: &mut crate::model::QueueReport) {
        let sched = self.exec.scheduler();
        let now = self.now.mono;
        let mut told: Vec<ReservedReport> = Vec::new();
        for p in sched.promises() {
            let Some(kept) = self.keeping.rows.get(&p.id) else { continue };
            let (used, idle) = sched.use_of(p);
            let mut by_model = BTreeMap::new();
            sched.books().by_model(&idle, &mut by_model);
            if p.runs(now) {
                for (model, n) in &by_model {
                    let free = queue.gpus_free.entry(model.clone()).or_default();
                    *free = free.saturating_sub(*n);
                    *queue.gpus_reserved.entry(model.clone()).or_default() += n;
                }
            }
            told.push(ReservedReport {
                id: p.id,
                tenant: p.tenant.clone(),
                gpus: p.gpus,
                short: p.gpus.saturating_sub(p.pinned()),
                used,
                idle: by_model,
                from: kept.row.asked.from,
                until: kept.row.asked.until,
                confirmed: kept.row.confirmed,
            });
        }
        told.sort_by_key(|r| (r.from, r.id));
        queue.reserved_more = told.len().saturating_sub(TOLD_MAX) as u32;
        told.truncate(TOLD_MAX);
        queue.reserved = told;
    }
}

/// What is reserved for whom, in words; used wherever it is said.
pub(in crate::core) fn reserved_words(gpus: u32, tenant: &str, from: WallTime, until: WallTime) -> String {
    format!("{gpus} GPUs are reserved for tenant {tenant} from {} to {}", to_rfc3339(from), to_rfc3339(until))
}
