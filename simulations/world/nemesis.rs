//! Faults, each from a process of its own that draws when, where and for how long from the seed.

use starling::base::{Instant, Rng, Span, StoreId};
use starling::core::{DiskImage, Input, Write};

use super::network::Cut;
use super::scenario::{Bug, Shape};
use super::{Event, GAP, World};

/// What strikes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Crash,
    Churn(usize),
    Partition,
    Flap,
    Suspend,
    Stall,
    SlowDisk,
    FullDisk,
    LostDisk,
    RollBack,
    Drain,
}

/// Exponentially distributed.
fn around(rng: &mut Rng, mean: Span) -> Span {
    let u = rng.unit().max(1e-9);
    Span((-(u.ln()) * mean.0 as f64) as u64 + 1)
}

impl World {
    /// An exponentially distributed span.
    pub(super) fn around(&mut self, mean: Span) -> Span {
        around(&mut self.rng, mean)
    }

    fn mean(&self, fault: Fault) -> Span {
        let faults = &self.scenario.faults;
        match fault {
            Fault::Crash => faults.crash,
            Fault::Churn(_) => faults.churn,
            Fault::Partition => faults.partition,
            Fault::Flap => faults.flap,
            Fault::Suspend => faults.suspend,
            Fault::Stall => faults.stall,
            Fault::SlowDisk => faults.slow_disk,
            Fault::FullDisk => faults.full_disk,
            Fault::LostDisk => faults.lost_disk,
            Fault::RollBack => faults.roll_back,
            Fault::Drain => faults.drain,
        }
    }

    pub(super) fn unleash(&mut self) {
        let single = [
            Fault::Crash,
            Fault::Partition,
            Fault::Flap,
            Fault::Suspend,
            Fault::Stall,
            Fault::SlowDisk,
            Fault::FullDisk,
            Fault::LostDisk,
            Fault::RollBack,
            Fault::Drain,
        ];
        let spot = (0..self.machines.len()).filter(|i| i % 3 == 1).map(Fault::Churn);
        for fault in single.into_iter().chain(spot) {
            self.again(fault, Span::secs(2));
        }
    }

    fn again(&mut self, fault: Fault, after: Span) {
        let mean = self.mean(fault);
        if mean > Span::ZERO {
            let rng = if fault == Fault::Drain { &mut self.more } else { &mut self.rng };
            let wait = after + around(rng, mean);
            self.at(wait, Event::Fault(fault));
        }
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        if self.healed {
            return;
        }
        let rng = if fault == Fault::Drain { &mut self.more } else { &mut self.rng };
        let i = rng.below(self.machines.len() as u64) as usize;
        match fault {
            Fault::Crash => self.crash(i, "crash", Span::secs(8)),
            Fault::Churn(spot) => self.crash(spot, "churn", Span::secs(4)),
            Fault::Partition => self.partition(),
            Fault::Flap => self.begin_flap(),
            Fault::Suspend => self.pause(i, true),
            Fault::Stall => self.pause(i, false),
            Fault::SlowDisk => self.slow_disk(i),
            Fault::FullDisk => self.fill_disk(i),
            Fault::LostDisk => return self.lose_disk(i),
            Fault::RollBack => return self.copy_disk(i),
            Fault::Drain => self.drain(i),
        }
        self.again(fault, Span::ZERO);
    }

    pub(super) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    // Processes and machines.

    /// The peer's process is killed, three times in ten with its whole machine.
    fn crash(&mut self, i: usize, kind: &'static str, away: Span) {
        if self.machines[i].core.is_none() || self.machines[i].asleep.is_some() {
            return;
        }
        let machine_too = self.rng.chance(0.3);
        self.fault(kind);
        self.note(|w| format!("{} CRASHES, machine too: {machine_too}", w.machines[i].name));
        self.stop_process(i);
        if machine_too {
            self.stop_machine(i);
        }
        let back = Span::millis(200) + self.around(away);
        self.at(back, Event::Restart(i));
    }

    pub(super) fn crash_at_write(&mut self, i: usize) {
        self.crash(i, "crash-at-write", Span::secs(2));
    }

    /// At most one disk of a home set may be lost at a time, so a run loses one.
    fn lose_disk(&mut self, i: usize) {
        if self.machines[i].core.is_none() || self.machines[i].asleep.is_some() {
            return self.again(Fault::LostDisk, Span::ZERO);
        }
        self.fault("lost-disk");
        self.stop_process(i);
        // The guards' folder may be on that disk, too: then the machine was replaced.
        let machine_too = self.rng.chance(0.5);
        if machine_too {
            self.stop_machine(i);
        }
        let store = StoreId(self.rng.bytes16());
        let t = self.t;
        let as_old = self.scenario.bug == Some(Bug::NewDiskAsOld);
        let m = &mut self.machines[i];
        (m.disk, m.flushed) = (DiskImage::default(), DiskImage::default());
        if machine_too {
            m.ended.clear();
            m.ever_started.clear();
        }
        m.replaced_at = Some(t);
        if !as_old {
            // The store has been opened once when it is made.
            (m.store, m.boot, m.starts) = (store, 1, 1);
        }
        m.published.clear();
        self.note(|w| format!("{} LOSES ITS DISK, machine too: {machine_too}", w.machines[i].name));
        let back = Span::millis(200) + self.around(Span::secs(6));
        self.at(back, Event::Restart(i));
    }

    /// Somebody copies a disk, and will put it back; a run has one of these or one lost disk.
    fn copy_disk(&mut self, i: usize) {
        let m = &mut self.machines[i];
        m.copy = Some((m.disk.clone(), m.boot, m.starts));
        m.outgrown.clear();
        self.note(|w| format!("{}'s disk is copied", w.machines[i].name));
        // Younger copies may go unnoticed.
        let back = Span::secs(8) + self.around(Span::secs(12));
        self.at(back, Event::RollBack(i));
    }

    pub(super) fn roll_back(&mut self, i: usize) {
        if self.healed {
            return;
        }
        if self.machines[i].core.is_none() || self.machines[i].asleep.is_some() {
            return self.at(Span::secs(1), Event::RollBack(i));
        }
        // What is promised begins when all others have heard of more than the copy holds.
        if self.machines[i].outgrown.len() + 1 < self.machines.len() {
            return self.at(Span::secs(1), Event::RollBack(i));
        }
        let Some((disk, boot, starts)) = self.machines[i].copy.take() else { return };
        self.fault("roll-back");
        self.stop_process(i);
        let machine_too = self.rng.chance(0.5);
        if machine_too {
            self.stop_machine(i);
        }
        let m = &mut self.machines[i];
        (m.disk, m.boot, m.starts) = (disk.clone(), boot, starts);
        m.flushed = disk;
        if machine_too {
            m.ended.clear();
            m.ever_started.clear();
        }
        self.note(|w| format!("{} GETS AN OLD DISK BACK, machine too: {machine_too}", w.machines[i].name));
        let back = Span::millis(200) + self.around(Span::secs(4));
        self.at(back, Event::Restart(i));
    }

    /// The runtime's part: the old store is put aside, and a new one begins with the callers' keys.
    pub(super) fn quarantine(&mut self, i: usize) {
        self.fault("quarantine");
        self.stop_process(i);
        let (t, store) = (self.t, StoreId(self.rng.bytes16()));
        let m = &mut self.machines[i];
        m.replaced_at = Some(t);
        let rows = m.disk.tables.iter().flat_map(|(table, rows)| {
            rows.iter().map(|(k, v)| Write { table: *table, key: k.clone(), value: Some(v.clone()) })
        });
        let kept: Vec<Write> = rows.filter(starling::core::outlives_quarantine).collect();
        let mut disk = DiskImage::default();
        super::machine::apply(&mut disk, &kept);
        (m.disk, m.flushed) = (disk.clone(), disk);
        (m.store, m.boot, m.starts) = (store, 0, 0);
        m.published.clear();
        let back = Span::millis(100) + self.around(Span::secs(1));
        self.at(back, Event::Restart(i));
    }

    /// A whole machine is suspended, or only the peer's process is stopped: often for longer than a grace.
    fn pause(&mut self, i: usize, whole: bool) {
        let t = self.t;
        let mean = self.scenario.grace.scale(5, 4);
        let m = &mut self.machines[i];
        if m.core.is_none() || m.asleep.is_some() || m.stalled {
            return;
        }
        m.pause += 1;
        if whole {
            m.asleep = Some(t);
        } else {
            m.stalled = true;
        }
        let pause = m.pause;
        self.fault(if whole { "suspend" } else { "stall" });
        let takes = Span::millis(300) + self.around(mean);
        self.note(|w| format!("{} SLEEPS {takes}, whole machine: {whole}", w.machines[i].name));
        self.at(takes, Event::Resume(i, pause));
    }

    pub(super) fn resume(&mut self, i: usize, pause: Option<u64>) {
        let t = self.t;
        let m = &mut self.machines[i];
        if pause.is_some_and(|p| p != m.pause) {
            return;
        }
        if let Some(since) = m.asleep.take() {
            let slept = t.since(since);
            m.slept += slept;
            m.woke_at = t;
            for running in m.attempts.values_mut() {
                running.done_at = running.done_at + slept;
            }
            self.at(GAP, Event::GapOver(i));
            self.note(|w| format!("{} WAKES", w.machines[i].name));
            // A job that wakes may write before the guard has looked.
            let keys: Vec<_> = self.machines[i].attempts.keys().copied().collect();
            for key in keys {
                let at = Span(self.rng.below(20_000));
                self.at(at, Event::PublishDue(i, key));
            }
        }
        self.machines[i].stalled = false;
        for event in std::mem::take(&mut self.machines[i].parked) {
            let at = Span(self.rng.below(30_000));
            self.at(at, event);
        }
    }

    // Disks.

    fn slow_disk(&mut self, i: usize) {
        self.fault("slow-disk");
        let by = Span(self.rng.below(3_000_000));
        self.machines[i].slow = by;
        let lasts = self.around(Span::secs(8));
        self.at(lasts, Event::DiskEasy(i));
    }

    fn fill_disk(&mut self, i: usize) {
        if !self.runs(i) || self.machines[i].full {
            return;
        }
        self.fault("full-disk");
        self.set_full(i, true);
        let lasts = self.around(Span::secs(8));
        self.at(lasts, Event::DiskFree(i));
    }

    pub(super) fn set_full(&mut self, i: usize, full: bool) {
        let t = self.t;
        if self.machines[i].full != full {
            self.machines[i].full = full;
            self.machines[i].publish(t, |soft| soft.disk_full = full);
            self.input(i, Input::DiskFull(full));
        }
    }

    // Operators.

    /// An operator lets a cluster drain for a while.
    fn drain(&mut self, i: usize) {
        if !self.runs(i) || self.machines[i].draining {
            return;
        }
        self.fault("drain");
        self.set_drain(i, true);
        let lasts = Span::secs(1) + around(&mut self.more, Span::secs(8));
        self.at(lasts, Event::DrainOver(i));
    }

    pub(super) fn set_drain(&mut self, i: usize, draining: bool) {
        if self.machines[i].draining == draining {
            return;
        }
        if !self.runs(i) {
            // Nobody answers the operator, who tries again.
            return self.at(Span::secs(1), Event::DrainOver(i));
        }
        let t = self.t;
        self.machines[i].draining = draining;
        self.machines[i].publish(t, |soft| soft.draining = draining);
        self.note(|w| format!("{} drains: {draining}", w.machines[i].name));
        self.input(i, Input::Drain(draining));
    }

    // Links.

    fn cut_for(&mut self, cut: Cut, lasts: Span) {
        self.net.next_cut += 1;
        let id = self.net.next_cut;
        self.note(|_| format!("CUT {id} for {lasts}: {cut:?}"));
        self.net.cuts.insert(id, cut);
        self.at(lasts, Event::HealOne(id));
    }

    fn two(&mut self) -> Option<(usize, usize)> {
        let n = self.machines.len() as u64;
        let (a, step) = (self.rng.below(n), 1 + self.rng.below(n.max(2) - 1));
        (n > 1).then(|| (a as usize, ((a + step) % n) as usize))
    }

    fn partition(&mut self) {
        let n = self.machines.len();
        let Some((a, b)) = self.two() else { return };
        let only = self.scenario.only_cut;
        let one_way = self.rng.chance(0.35) && only.is_none();
        let drawn =
            [Shape::Halves, Shape::Halves, Shape::One, Shape::Pair, Shape::Ring][self.rng.below(5) as usize];
        let cut = match only.unwrap_or(drawn) {
            Shape::Halves => Cut::Sides { side: (0..n).map(|_| self.rng.chance(0.5)).collect(), one_way },
            Shape::One => {
                let inside = self.rng.chance(0.5);
                Cut::Sides { side: (0..n).map(|i| (i == a) == inside).collect(), one_way }
            }
            Shape::Pair => Cut::Pair { a, b, one_way },
            Shape::Ring => Cut::Ring { reach: (n / 4).max(1) },
            Shape::LateThenGone => {
                // One that runs something, and nobody else meanwhile.
                let busiest = (0..n).max_by_key(|i| (self.machines[*i].attempts.len(), *i)).unwrap_or(a);
                let a = if self.net.late.is_some() { return } else { busiest };
                let late = self.scenario.renew_every.scale(2, 1);
                self.net.late = Some((a, late));
                self.fault("late-then-alone");
                self.note(|_| format!("LATE by {late}: all that comes to {a}"));
                return self.at(late.scale(3, 1), Event::Isolate(a));
            }
        };
        self.fault(match (&cut, one_way) {
            (Cut::Pair { .. }, _) => "cut-pair",
            (Cut::Ring { .. }, _) => "cut-ring",
            (_, true) => "cut-one-way",
            (_, false) => "cut-sides",
        });
        let mean = self.scenario.cut_for;
        let lasts = self.around(mean);
        self.cut_for(cut, lasts);
        if self.rng.chance(0.2) {
            // Heal, then cut again at once.
            let again = lasts + Span(self.rng.below(300_000));
            self.at(again, Event::Fault(Fault::Partition));
        }
    }

    pub(super) fn isolate(&mut self, a: usize) {
        // It was alone as soon as an answer had come late enough.
        if self.net.late.take().is_some_and(|(late, _)| late == a) && !self.healed {
            let alone =
                Cut::Sides { side: (0..self.machines.len()).map(|i| i == a).collect(), one_way: false };
            self.cut_for(alone, self.scenario.cut_for);
        }
    }

    fn begin_flap(&mut self) {
        let Some((a, b)) = self.two() else { return };
        self.fault("flap");
        let times = 4 + self.rng.below(16) as u32;
        self.at(Span(1), Event::Flap { a, b, left: times });
    }

    pub(super) fn flap(&mut self, a: usize, b: usize, left: u32) {
        if self.healed || left == 0 {
            return;
        }
        let down = Span(30_000 + self.rng.below(1_500_000));
        let up = Span(30_000 + self.rng.below(1_500_000));
        self.cut_for(Cut::Pair { a, b, one_way: false }, down);
        self.at(down + up, Event::Flap { a, b, left: left - 1 });
    }

    /// The end of the safety phase: everything that was broken works again, whatever it was.
    pub(super) fn heal_all(&mut self) {
        self.healed = true;
        self.healed_at = self.t;
        self.net.cuts.clear();
        self.net.late = None;
        self.note(|_| "HEALS".into());
        for i in 0..self.machines.len() {
            self.machines[i].slow = Span::ZERO;
            self.resume(i, None);
            self.set_full(i, false);
            self.set_drain(i, false);
            if self.machines[i].core.is_none() {
                self.boot(i);
            }
        }
        self.at(Span::millis(200), Event::Check);
    }

    pub(super) fn slept_past(&self, i: usize, since: Instant) -> bool {
        self.t.since(since) <= GAP && self.machines[i].woke_at == since
    }
}
