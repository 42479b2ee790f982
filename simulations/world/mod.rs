//! A simulated world around the production core: network, disks, clocks, guards and users from one seed.
//!
//! Nothing here decides anything for a peer. The world delivers what the core sends (or loses it),
//! applies what it writes (or loses it in a crash), and runs attempts as a machine with guards would.
//! It keeps a ledger of its own of every execution, which is judged without asking Starling. First faults,
//! then everything heals, then all jobs must end within a stated bound.
#![allow(dead_code, reason = "shared by the tests and the command, which read different parts of it")]

mod gossip;
mod guards;
mod judge;
mod machine;
mod nemesis;
mod network;
mod reserved;
mod scenario;
mod shapes;
mod users;

use std::collections::BTreeMap;
use std::sync::Arc;

use starling::base::{Instant, PeerName, Rng, Span, StoreId};
use starling::core::api::{AttemptKey, Flash};
use starling::core::message::DiskWord;
use starling::core::{BackendEvent, Input, Message};
use starling::model::Outcome;

use guards::{Execution, GAP};
pub use judge::Outcomes;
use machine::Machine;
use nemesis::Fault;
use network::Network;
pub use network::RttMatrix;
#[allow(unused_imports, reason = "the command draws its faults")]
pub use scenario::Faults;
pub use scenario::{Bug, FAULTS, Fixed, Scenario};
use users::{Act, Users};

/// What happens at one time.
#[derive(Debug, Clone)]
pub enum Event {
    Deliver { to: usize, from: usize, message: Box<Message> },
    Flash { to: usize, from: usize, flash: Box<Flash> },
    Wake(usize, u64),
    Synced(usize, u64),
    View(usize),
    Backend(usize, Box<BackendEvent>),
    WorkDone(usize, AttemptKey),
    GuardLooks(usize, AttemptKey),
    Killed(usize, AttemptKey, Outcome),
    PublishDue(usize, AttemptKey),
    Fault(Fault),
    CrashAtWrite(usize, u64),
    Restart(usize),
    RollBack(usize),
    Quarantine(usize, u64),
    DrainOver(usize),
    Resume(usize, u64),
    GapOver(usize),
    DiskEasy(usize),
    DiskFree(usize),
    HealOne(u64),
    Isolate(usize),
    Flap { a: usize, b: usize, left: u32 },
    HealAll,
    User(Act),
    Check,
}

impl Event {
    /// Whose CPU it needs: a machine, and whether the peer's own process.
    fn needs(&self) -> Option<(usize, bool)> {
        match self {
            Event::Deliver { to, .. } | Event::Flash { to, .. } => Some((*to, true)),
            Event::Wake(i, _) | Event::Synced(i, _) | Event::Backend(i, _) => Some((*i, true)),
            Event::WorkDone(i, _)
            | Event::GuardLooks(i, _)
            | Event::Killed(i, ..)
            | Event::PublishDue(i, _) => Some((*i, false)),
            _ => None,
        }
    }

    /// For the trace's hash: kind and machine.
    fn tag(&self) -> [u8; 3] {
        let (kind, i) = match self {
            Event::Deliver { to, from, .. } => return [1, *to as u8, *from as u8],
            Event::Flash { to, from, .. } => return [2, *to as u8, *from as u8],
            Event::Wake(i, _) => (3, *i),
            Event::Synced(i, _) => (4, *i),
            Event::View(i) => (5, *i),
            Event::Backend(i, _) => (6, *i),
            Event::WorkDone(i, _) => (7, *i),
            Event::GuardLooks(i, _) => (8, *i),
            Event::Killed(i, ..) => (9, *i),
            Event::PublishDue(i, _) => (10, *i),
            Event::Fault(_) => (11, 0),
            Event::CrashAtWrite(i, _) => (12, *i),
            Event::Restart(i) => (13, *i),
            Event::Resume(i, _) => (14, *i),
            Event::GapOver(i) => (15, *i),
            Event::DiskEasy(i) => (16, *i),
            Event::DiskFree(i) => (17, *i),
            Event::HealOne(_) => (18, 0),
            Event::Flap { a, .. } => (19, *a),
            Event::HealAll => (20, 0),
            Event::User(_) => (21, 0),
            Event::Check => (22, 0),
            Event::Isolate(i) => (23, *i),
            Event::RollBack(i) => (24, *i),
            Event::Quarantine(i, _) => (25, *i),
            Event::DrainOver(i) => (26, *i),
        };
        [kind, i as u8, (i >> 8) as u8]
    }
}

/// The world.
pub struct World {
    scenario: Scenario,
    rng: Rng,
    /// For faults that came later, so that the others of a seed come when they came before.
    more: Rng,
    t: Instant,
    seq: u64,
    events: BTreeMap<(Instant, u64), Event>,
    machines: Vec<Machine>,
    index: BTreeMap<PeerName, usize>,
    net: Network,
    users: Users,
    reserved: reserved::Reservations,
    ledger: Vec<Execution>,
    violations: Vec<String>,
    faults: BTreeMap<&'static str, u64>,
    healed: bool,
    healed_at: Instant,
    settled: Option<Span>,
    reading_since: Option<Instant>,
    hash: u64,
}

/// Events of one machine or job in a second that no sane core needs; beyond it something spins.
const EVENTS_PER_SECOND: u64 = 500;

/// FNV-1a over words where it can: every byte written goes through it.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    let word = |h: u64, w: &[u8]| {
        (h ^ u64::from_le_bytes(w.try_into().unwrap_or_default())).wrapping_mul(PRIME).rotate_left(5)
    };
    let hash = words.fold(hash, word);
    rest.iter().fold(hash, |h, b| (h ^ u64::from(*b)).wrapping_mul(PRIME))
}

impl World {
    pub fn new(scenario: Scenario) -> Self {
        let mut rng = Rng::new(scenario.seed);
        let names: Vec<PeerName> =
            (0..scenario.peers).map(|i| PeerName::new(&format!("p{i:03}")).expect("a short name")).collect();
        let index = names.iter().cloned().enumerate().map(|(i, n)| (n, i)).collect();
        let drift = scenario.drift_milli * 1000;
        let rate = |rng: &mut Rng| rng.below(2 * drift + 1) as i64 - drift as i64;
        let machines: Vec<Machine> = names
            .into_iter()
            .map(|name| Machine::new(name, StoreId(rng.bytes16()), rate(&mut rng), rng.below(1 << 40)))
            .collect();
        let rtt = scenario.rtt.clone().unwrap_or_else(|| {
            let regions = 1 + rng.below(6) as usize;
            Arc::new(RttMatrix::generated(&mut rng, regions))
        });
        let regions = rtt.regions() as u64;
        let net = Network {
            region: (0..scenario.peers).map(|_| rng.below(regions) as usize).collect(),
            relays: rng.chance(0.5) && scenario.only_cut.is_none(),
            rtt,
            cuts: BTreeMap::new(),
            next_cut: 0,
            late: None,
            messages: 0,
            lost: 0,
            repeated: 0,
        };
        World {
            rng,
            more: Rng::new(scenario.seed ^ 0x6472_6169),
            t: Instant(0),
            seq: 0,
            events: BTreeMap::new(),
            machines,
            index,
            net,
            users: Users::default(),
            reserved: reserved::Reservations::default(),
            ledger: Vec::new(),
            violations: Vec::new(),
            faults: BTreeMap::new(),
            healed: false,
            healed_at: Instant(0),
            settled: None,
            reading_since: None,
            hash: 0xcbf2_9ce4_8422_2325,
            scenario,
        }
    }

    fn at(&mut self, span: Span, event: Event) {
        self.seq += 1;
        self.events.insert((self.t + span, self.seq), event);
    }

    /// A line of the trace, where one is wanted.
    fn note(&self, what: impl FnOnce(&World) -> String) {
        if self.scenario.trace {
            eprintln!("{:>10.4} {}", self.t.0 as f64 / 1e6, what(self));
        }
    }

    /// Runs from start to the end of the settle phase and judges.
    pub fn run(mut self) -> Outcomes {
        self.note(|w| format!("{:?}", w.scenario));
        for i in 0..self.machines.len() {
            self.boot(i);
            let first = Span(self.rng.below(500_000));
            self.at(first, Event::View(i));
        }
        self.employ_users();
        self.employ_reservers();
        self.unleash();
        self.at(self.scenario.chaos_for, Event::HealAll);
        let mut budget = EVENTS_PER_SECOND * (self.machines.len() as u64 + self.scenario.jobs as u64);
        budget *= (self.scenario.chaos_for + self.scenario.settle_bound()).0 / 1_000_000 + 60;
        while let Some(((at, _), event)) = self.events.pop_first() {
            budget -= 1;
            if budget == 0 {
                self.violation(format!("S4: the peers spin: too many events by {at:?}"));
                break;
            }
            self.t = at;
            self.hash = fnv(self.hash, &at.0.to_be_bytes());
            self.hash = fnv(self.hash, &event.tag());
            if !self.handle(event) {
                break;
            }
        }
        self.judge()
    }

    /// Carries out one event; false when the run is over.
    fn handle(&mut self, event: Event) -> bool {
        if let Some((i, process)) = event.needs()
            && (self.machines[i].asleep.is_some() || (process && self.machines[i].stalled))
        {
            // A socket keeps some of what comes for a process that does not read.
            let dropped =
                matches!(event, Event::Deliver { .. } | Event::Flash { .. }) && self.rng.chance(0.6);
            if !dropped {
                self.machines[i].parked.push(event);
            }
            return true;
        }
        match event {
            Event::Deliver { to, from, message } => {
                if let Some(message) = self.arrives(from, to, message) {
                    self.note(|w| format!("{from} to {to}: {}", w.sketch(&message)));
                    if let Message::Disk(DiskWord::Mark { mark, .. }) = &*message {
                        self.machines[from].grown(to, *mark);
                    }
                    let from = self.machines[from].name.clone();
                    self.input(to, Input::Message { from, message: *message });
                }
            }
            Event::Flash { to, from, flash } => {
                if !self.cut(from, to) {
                    self.input(to, Input::Flash(*flash));
                }
            }
            Event::Wake(i, life) => {
                if self.machines[i].life == life {
                    self.machines[i].wake_at = None;
                    self.input(i, Input::Tick);
                    self.wake_later(i);
                }
            }
            Event::Synced(i, life) => {
                if self.machines[i].life == life {
                    self.synced(i);
                }
            }
            Event::View(i) => {
                self.check_reserved(i);
                self.gossip(i);
            }
            Event::Backend(i, event) => self.input(i, Input::Backend(*event)),
            Event::WorkDone(i, key) => self.work_done(i, key),
            Event::GuardLooks(i, key) => self.guard_looks(i, key),
            Event::Killed(i, key, outcome) => self.end_attempt(i, key, outcome),
            Event::PublishDue(i, key) => self.publish_due(i, key),
            Event::Fault(fault) => self.strike(fault),
            Event::CrashAtWrite(i, life) => {
                if self.machines[i].life == life && !self.healed {
                    self.crash_at_write(i);
                }
            }
            Event::Restart(i) => {
                if self.machines[i].core.is_none() {
                    self.boot(i);
                }
            }
            Event::RollBack(i) => self.roll_back(i),
            Event::Quarantine(i, life) => {
                if self.machines[i].life == life {
                    self.quarantine(i);
                }
            }
            Event::DrainOver(i) => self.set_drain(i, false),
            Event::Resume(i, pause) => self.resume(i, Some(pause)),
            Event::GapOver(i) => self.gap_over(i),
            Event::DiskEasy(i) => self.machines[i].slow = Span::ZERO,
            Event::DiskFree(i) => {
                if self.runs(i) || self.machines[i].core.is_none() {
                    self.set_full(i, false);
                } else {
                    self.at(Span::secs(1), Event::DiskFree(i));
                }
            }
            Event::HealOne(cut) => {
                self.net.cuts.remove(&cut);
            }
            Event::Isolate(i) => self.isolate(i),
            Event::Flap { a, b, left } => self.flap(a, b, left),
            Event::HealAll => self.heal_all(),
            Event::User(act) => self.user(act),
            Event::Check => return self.look_over(),
        }
        true
    }
}
