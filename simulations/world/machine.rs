//! One machine: its clock, its peer's process, its disk. What the core writes is on disk after a while,
//! in order, one batch whole or not at all; what waits for it leaves only then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use starling::base::{ContactId, Instant, PeerName, Span, StoreId, WallTime};
use starling::core::api::{AttemptKey, Flash, Pace};
use starling::core::{BackendEvent, CoreConfig, DiskImage, Input, Now, Output, Peer, Table, Write};
use starling::model::Outcome;
use starling::model::report::{ContactReport, QueueReport};

use super::guards::Running;
use super::scenario::{Bug, MARGIN, RHO_MILLI};
use super::{Event, World, fnv, shapes};

/// One step's writes and what waits for them.
pub struct Batch {
    pub writes: Vec<Write>,
    pub after: Vec<Output>,
}

/// What a peer says of itself to gossip.
#[derive(Debug, Clone, Default)]
pub struct Soft {
    pub queue: Option<QueueReport>,
    pub contact: Option<ContactReport>,
    pub disk_full: bool,
    pub draining: bool,
}

/// How an attempt ended here: outcome, start, end.
pub type End = (Outcome, Option<WallTime>, WallTime);

pub struct Machine {
    pub name: PeerName,
    pub store: StoreId,
    pub boot: u64,
    /// Starts of this store, however they are counted.
    pub starts: u64,
    pub core: Option<Peer>,
    /// Changes whenever the process does; stale events of an older one are dropped.
    pub life: u64,

    pub disk: DiskImage,
    /// The planted lying disk: what it really holds.
    pub flushed: DiskImage,
    /// A copy of the disk that somebody keeps: what it held, and how often it had been started.
    pub copy: Option<(DiskImage, u64, u64)>,
    /// Who has heard since then that the disk holds more, and remembers it.
    pub outgrown: BTreeSet<usize>,
    pub unsynced: VecDeque<Batch>,
    pub synced_until: Instant,
    /// A sync takes up to this much longer.
    pub slow: Span,
    pub full: bool,
    /// Its disk is another one than before since then.
    pub replaced_at: Option<Instant>,
    /// It was told to drain; as in production, its process knows that, and not its disk.
    pub draining: bool,

    pub rate_ppm: i64,
    pub clock_base: u64,
    /// The whole machine is suspended since then; only the clock runs.
    pub asleep: Option<Instant>,
    /// The peer's process is stopped; guards and jobs go on.
    pub stalled: bool,
    /// Counts pauses, so that an old end of one wakes nobody.
    pub pause: u64,
    pub parked: Vec<Event>,
    pub slept: Span,
    pub woke_at: Instant,

    /// What the machine (not the peer's process) runs.
    pub attempts: BTreeMap<AttemptKey, Running>,
    pub ever_started: BTreeSet<AttemptKey>,
    pub ended: BTreeMap<AttemptKey, End>,
    /// What guards know: the newest counted renewal, and how long the machine had slept then.
    pub leases: BTreeMap<(ContactId, u64), (Instant, Span)>,

    /// What it told gossip, newest last.
    pub published: VecDeque<(Instant, Arc<Soft>)>,
    pub heard: BTreeMap<usize, (Instant, Arc<Soft>)>,
    pub wake_at: Option<Instant>,
}

impl Machine {
    pub fn new(name: PeerName, store: StoreId, rate_ppm: i64, clock_base: u64) -> Self {
        Machine {
            name,
            store,
            boot: 0,
            starts: 0,
            core: None,
            life: 0,
            disk: DiskImage::default(),
            flushed: DiskImage::default(),
            copy: None,
            outgrown: BTreeSet::new(),
            unsynced: VecDeque::new(),
            synced_until: Instant(0),
            slow: Span::ZERO,
            full: false,
            replaced_at: None,
            draining: false,
            rate_ppm,
            clock_base,
            asleep: None,
            stalled: false,
            pause: 0,
            parked: Vec::new(),
            slept: Span::ZERO,
            woke_at: Instant(0),
            attempts: BTreeMap::new(),
            ever_started: BTreeSet::new(),
            ended: BTreeMap::new(),
            leases: BTreeMap::new(),
            published: VecDeque::new(),
            heard: BTreeMap::new(),
            wake_at: None,
        }
    }

    /// This machine's clock at a true time.
    pub fn clock(&self, t: Instant) -> Instant {
        let local = i128::from(t.0) * i128::from(1_000_000 + self.rate_ppm) / 1_000_000;
        Instant(self.clock_base + u64::try_from(local).unwrap_or(0))
    }

    /// The true time at which this machine's clock shows that.
    pub fn true_time(&self, c: Instant) -> Instant {
        let local = i128::from(c.0.saturating_sub(self.clock_base));
        Instant(u64::try_from(local * 1_000_000 / i128::from(1_000_000 + self.rate_ppm) + 1).unwrap_or(0))
    }

    /// Somebody was told its mark.
    pub fn grown(&mut self, whom: usize, mark: u64) {
        let Some((disk, ..)) = &self.copy else { return };
        let row = disk.tables.get(&Table::Meta).and_then(|meta| meta.get(&b"mark"[..]));
        let held = row.and_then(|row| row.as_slice().try_into().ok()).map_or(0, u64::from_be_bytes);
        if mark > held {
            self.outgrown.insert(whom);
        }
    }

    fn soft(&self) -> Soft {
        self.published.back().map(|(_, soft)| (**soft).clone()).unwrap_or_default()
    }

    pub fn publish(&mut self, t: Instant, change: impl FnOnce(&mut Soft)) {
        let mut soft = self.soft();
        change(&mut soft);
        self.published.push_back((t, Arc::new(soft)));
        while self.published.len() > 2 && t.since(self.published[1].0) > Span::secs(12) {
            self.published.pop_front();
        }
    }

    /// What it had told by then.
    pub fn told(&self, by: Instant) -> Option<&Arc<Soft>> {
        self.published.iter().rev().find(|(at, _)| *at <= by).map(|(_, soft)| soft)
    }
}

pub fn apply(disk: &mut DiskImage, writes: &[Write]) {
    for write in writes {
        let table = disk.tables.entry(write.table).or_default();
        match &write.value {
            Some(value) => table.insert(write.key.clone(), value.clone()),
            None => table.remove(&write.key),
        };
    }
}

impl World {
    /// The peer's process is up and gets the CPU.
    pub(super) fn runs(&self, i: usize) -> bool {
        let m = &self.machines[i];
        m.core.is_some() && m.asleep.is_none() && !m.stalled
    }

    pub(super) fn boot(&mut self, i: usize) {
        let seed = self.rng.u64();
        let (t, bug) = (self.t, self.scenario.bug);
        let m = &mut self.machines[i];
        m.boot = if bug == Some(Bug::BootForgotten) { 1 } else { m.boot + 1 };
        m.starts += 1;
        m.life += 1;
        m.unsynced.clear();
        m.synced_until = t;
        m.wake_at = None;
        let now = Now { mono: m.clock(t), wall: WallTime(t.0 / 1000) };
        let cfg = CoreConfig {
            name: m.name.clone(),
            store: m.store,
            boot: m.boot,
            first_boot: m.starts == 1,
            replicas: 3,
            renew_every: self.scenario.renew_every,
            rho_milli: RHO_MILLI,
            margin: MARGIN,
            grant_for: Span::secs(4),
            claims_max: 3,
            jobs_max: 100_000,
            rehome_after: Span::secs(20),
            retain: self.scenario.retain.unwrap_or(Span::secs(86_400)),
            retain_jobs: 100_000,
            nodes: shapes::nodes(),
            schedule: Default::default(),
            runs_images: false,
            policies: Default::default(),
            pace: Pace::default(),
            seed,
        };
        match Peer::recover(cfg, &m.disk, now) {
            Ok((core, out)) => {
                m.core = Some(core);
                self.note(|w| format!("{} boots, store {}", w.machines[i].name, w.machines[i].store));
                self.outputs(i, out);
                self.adopt(i);
            }
            Err(why) => self.violation(format!("peer {i} cannot read its disk: {why}")),
        }
    }

    /// The backend says what it still has, and the runtime that the disk is full if it is.
    fn adopt(&mut self, i: usize) {
        let t = self.t;
        if std::mem::take(&mut self.machines[i].draining) {
            self.machines[i].publish(t, |soft| soft.draining = false);
        }
        let running: Vec<AttemptKey> = self.machines[i].attempts.keys().copied().collect();
        let ended: Vec<AttemptKey> = self.machines[i].ended.keys().copied().collect();
        if self.machines[i].full {
            self.input(i, Input::DiskFull(true));
        }
        self.input(i, Input::Backend(BackendEvent::Adopted { running: running.clone() }));
        for key in running {
            let at = self.machines[i].attempts[&key].started_at;
            self.input(i, Input::Backend(BackendEvent::Started { key, at }));
        }
        for key in ended {
            self.report_end(i, key);
        }
    }

    /// The process is gone: what it counted is judged, what it had not synced may be lost.
    pub(super) fn stop_process(&mut self, i: usize) {
        self.count_violations(i);
        for other in &mut self.machines {
            other.outgrown.remove(&i);
        }
        let keep = match self.rng.chance(0.5) {
            true => 0,
            false => self.rng.below(self.machines[i].unsynced.len() as u64 + 1) as usize,
        };
        let bug = self.scenario.bug;
        let m = &mut self.machines[i];
        // A batch is one transaction: wholly there, or not at all; and never a later one without it.
        for batch in m.unsynced.drain(..).take(keep) {
            apply(&mut m.disk, &batch.writes);
        }
        m.core = None;
        m.life += 1;
        m.stalled = false;
        if bug == Some(Bug::LyingDisk) {
            m.disk = m.flushed.clone();
        }
        if bug == Some(Bug::ClosedLost) {
            m.disk.tables.remove(&Table::Attempts);
            let running: BTreeSet<AttemptKey> = m.attempts.keys().copied().collect();
            m.ever_started = running;
            m.ended.clear();
        }
        self.users_lose(i);
    }

    pub(super) fn input(&mut self, i: usize, input: Input) {
        let t = self.t;
        let m = &mut self.machines[i];
        let now = Now { mono: m.clock(t), wall: WallTime(t.0 / 1000) };
        let Some(core) = m.core.as_mut() else { return };
        let out = core.step(now, input);
        self.outputs(i, out);
    }

    /// Carries out one step's outputs: in order, what is durable only after the disk has the writes
    /// before it.
    fn outputs(&mut self, i: usize, outputs: Vec<Output>) {
        let mut batch = Batch { writes: Vec::new(), after: Vec::new() };
        for output in outputs {
            match output {
                Output::Write(write) => {
                    self.hash = fnv(self.hash, &write.key);
                    self.hash = fnv(self.hash, write.value.as_deref().unwrap_or_default());
                    batch.writes.push(write);
                }
                Output::Send { durable: false, to, message } => self.post(i, &to, message),
                Output::Event(event) => {
                    self.note(|w| {
                        format!("{}: {} {:?} {}", w.machines[i].name, event.kind, event.job, event.text)
                    });
                }
                Output::Flash(flash) => self.flash(i, flash),
                Output::Quarantine { why } => {
                    let life = self.machines[i].life;
                    self.note(|w| format!("{} GOES INTO QUARANTINE: {why}", w.machines[i].name));
                    self.at(Span(1), Event::Quarantine(i, life));
                }
                Output::Report { queue, contact } => {
                    let t = self.t;
                    self.machines[i].publish(t, |soft| (soft.queue, soft.contact) = (Some(queue), contact));
                }
                other => batch.after.push(other),
            }
        }
        self.wake_later(i);
        if batch.writes.is_empty() && batch.after.is_empty() {
            return;
        }
        let writes = !batch.writes.is_empty();
        if self.scenario.bug == Some(Bug::AnswersUnsynced) {
            let after = std::mem::take(&mut batch.after);
            self.release(i, after);
        }
        let slow = self.machines[i].slow;
        let takes =
            if writes { Span(300 + self.rng.below(4_000) + self.rng.below(slow.0 + 1)) } else { Span::ZERO };
        let t = self.t;
        let m = &mut self.machines[i];
        let at = (t + takes).max(m.synced_until);
        m.synced_until = at;
        m.unsynced.push_back(batch);
        let life = m.life;
        let takes = at.since(t);
        self.at(takes, Event::Synced(i, life));
        if writes && !self.healed && self.rng.chance(self.scenario.faults.crash_at_write) {
            let before = Span(self.rng.below(takes.0 + takes.0 / 10 + 1));
            self.at(before, Event::CrashAtWrite(i, life));
        }
    }

    /// Urgent hints: only what the core itself acts on travels here.
    fn flash(&mut self, i: usize, flash: Flash) {
        if !matches!(flash, Flash::Look { .. }) {
            return;
        }
        for to in 0..self.machines.len() {
            let lost = !self.healed && self.rng.chance(0.3);
            if to != i && !lost {
                let takes = self.net.rtt.one_way(self.net.region[i], self.net.region[to]);
                self.at(takes, Event::Flash { to, from: i, flash: Box::new(flash.clone()) });
            }
        }
    }

    pub(super) fn wake_later(&mut self, i: usize) {
        let t = self.t;
        let m = &mut self.machines[i];
        let Some(deadline) = m.core.as_ref().and_then(Peer::next_deadline) else { return };
        let at = m.true_time(deadline).max(t);
        if m.wake_at.is_none_or(|old| old > at || old <= t) {
            m.wake_at = Some(at);
            let life = m.life;
            self.at(at.since(t), Event::Wake(i, life));
        }
    }

    pub(super) fn synced(&mut self, i: usize) {
        let Some(batch) = self.machines[i].unsynced.pop_front() else { return };
        apply(&mut self.machines[i].disk, &batch.writes);
        if self.scenario.bug == Some(Bug::LyingDisk) && self.rng.chance(0.05) {
            self.machines[i].flushed = self.machines[i].disk.clone();
        }
        self.release(i, batch.after);
    }

    fn release(&mut self, i: usize, after: Vec<Output>) {
        for output in after {
            match output {
                Output::Send { to, message, .. } => self.post(i, &to, message),
                Output::Reply { token, response } => self.reply(token, response),
                Output::Backend(command) => self.command(i, command),
                Output::Renewed { contact, incarnation, sent_at } => {
                    let from_reply = self.scenario.bug == Some(Bug::LeaseFromReply);
                    let t = self.t;
                    let m = &mut self.machines[i];
                    let at = if from_reply { m.clock(t) } else { sent_at };
                    let lease = m.leases.entry((contact, incarnation)).or_insert((at, m.slept));
                    *lease = (lease.0.max(at), m.slept);
                    let waited = m.clock(t).since(sent_at);
                    if self.net.late.is_some_and(|(late, by)| late == i && waited >= by) {
                        self.at(Span::millis(1), Event::Isolate(i));
                    }
                }
                _ => {}
            }
        }
    }
}
