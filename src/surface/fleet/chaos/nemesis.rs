//! Does what the plan says: one task cuts the network, one kills processes and fills disks.

use std::collections::BTreeSet;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::super::network::Network;
use super::super::{Fleet, FleetError, io};
use super::disks::Disks;
use super::guards::kill_guards;
use super::machines::{Clocks, suspend, wake};
use super::plan::{Fault, HEALED_FOR, Planned, STORM};
use crate::base::Span;
use crate::surface::documents::boottime_now;

/// A peer that was told to end must have ended within this.
const ENDS_WITHIN: Duration = Duration::from_secs(25);
/// What looks after the processes looks this often, and starts one again that ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How `up` ends when its disk fails (app/command.rs): the one end that a peer may choose for itself.
const EXIT_DISK: i32 = 74;

/// Something that was done to peers. Times are boot-time microseconds.
#[derive(Debug, Clone)]
pub struct Act {
    /// Begin.
    pub from_us: u64,
    /// End.
    pub to_us: u64,
    /// To whom.
    pub peers: Vec<usize>,
    /// About the network.
    pub network: bool,
    /// What, and what came of it.
    pub text: String,
    /// The cluster that was lost by it.
    pub loses: Option<usize>,
}

/// What was done and what was seen meanwhile.
#[derive(Debug, Default)]
pub struct Diary {
    /// In order of their ends.
    pub acts: Vec<Act>,
    /// Single things done: cuts, signals, disks filled.
    pub faults: u64,
    /// Peers that ended although nobody told them to; each is a finding.
    pub crashes: Vec<String>,
    /// Peers that ended because their disk was full, as they should.
    pub disk_exits: u64,
    /// Guards that were killed.
    pub guards_killed: u64,
    /// Peers that were told to end: which, when (boot-time microseconds).
    pub stops: Vec<(usize, u64)>,
}

/// Shared by the two tasks.
pub type Shared = Mutex<Diary>;

fn with<T>(diary: &Shared, change: impl FnOnce(&mut Diary) -> T) -> T {
    change(&mut diary.lock().unwrap_or_else(PoisonError::into_inner))
}

fn note(diary: &Shared, begun: u64, planned: &Planned, peers: usize, more: &str) {
    let text = format!("{}{more}", planned.fault);
    let act = Act {
        from_us: begun,
        to_us: boottime_now().0,
        peers: planned.fault.hits(peers),
        network: planned.fault.cuts(),
        text,
        loses: planned.fault.loses(),
    };
    with(diary, |d| {
        d.faults += planned.fault.acts(peers);
        d.acts.push(act);
    });
}

async fn at(begun: Instant, when: Span) {
    tokio::time::sleep(when.to_std().saturating_sub(begun.elapsed())).await;
}

/// The network's part of the plan. All is healed afterwards.
pub async fn cut(
    network: &mut Network,
    plan: &[Planned],
    begun: Instant,
    diary: &Shared,
    say: &dyn Fn(&str),
) -> Result<(), FleetError> {
    let peers = network.hosts.len();
    let alone = |i: usize| BTreeSet::from([i]);
    for planned in plan.iter().filter(|p| p.fault.cuts()) {
        at(begun, planned.at).await;
        say(&planned.to_string());
        let from = boottime_now().0;
        let cuts = match &planned.fault {
            Fault::Apart(side) => network.apart(&side.iter().copied().collect()),
            Fault::OneWay(a, b) => BTreeSet::from([(*a, *b)]),
            Fault::Pair(a, b) => BTreeSet::from([(*a, *b), (*b, *a)]),
            Fault::Ring => Fault::ring(peers),
            Fault::EachInTurn => {
                for i in 0..peers {
                    network.set_cuts(&network.apart(&alone(i)))?;
                    tokio::time::sleep(planned.lasts.scale(1, peers as u64).to_std()).await;
                }
                BTreeSet::new()
            }
            Fault::Again(p) => {
                let cut = network.apart(&alone(*p));
                let half = (planned.lasts - HEALED_FOR).scale(1, 2).to_std();
                network.set_cuts(&cut)?;
                tokio::time::sleep(half).await;
                network.set_cuts(&BTreeSet::new())?;
                tokio::time::sleep(HEALED_FOR.to_std()).await;
                cut
            }
            _ => BTreeSet::new(),
        };
        network.set_cuts(&cuts)?;
        at(begun, planned.at + planned.lasts).await;
        network.set_cuts(&BTreeSet::new())?;
        note(diary, from, planned, peers, "");
    }
    Ok(())
}

/// The processes' and disks' part of the plan. Afterwards every peer runs.
pub async fn strike(
    fleet: &mut Fleet,
    (disks, clocks): (&Disks, &mut Clocks),
    plan: &[Planned],
    begun: Instant,
    diary: &Shared,
    say: &dyn Fn(&str),
) -> Result<(), FleetError> {
    let mut keeper = Keeper { fleet, diary, down: BTreeSet::new() };
    for planned in plan.iter().filter(|p| !p.fault.cuts()) {
        keeper.until(begun, planned.at).await?;
        say(&planned.to_string());
        let from = boottime_now().0;
        let more = keeper.strike((disks, clocks), planned, begun).await?;
        note(diary, from, planned, keeper.fleet.peers.len(), &more);
    }
    Ok(())
}

/// Starts again whatever ended by itself, as an init system would.
struct Keeper<'a> {
    fleet: &'a mut Fleet,
    diary: &'a Shared,
    /// These were killed and are to stay down for now.
    down: BTreeSet<usize>,
}

impl Keeper<'_> {
    async fn until(&mut self, begun: Instant, when: Span) -> Result<(), FleetError> {
        loop {
            self.look()?;
            let left = when.to_std().saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
    }

    async fn pause(&mut self, time: Span) -> Result<(), FleetError> {
        self.until(Instant::now(), time).await
    }

    fn look(&mut self) -> Result<(), FleetError> {
        for i in 0..self.fleet.peers.len() {
            if self.down.contains(&i) {
                continue;
            }
            if let Some(status) = self.fleet.peers[i].ended() {
                ended(self.diary, self.fleet.peers[i].name.as_str(), status);
                self.fleet.spawn(i, None)?;
            }
        }
        Ok(())
    }

    async fn kill(&mut self, i: usize) -> Result<(), FleetError> {
        self.down.insert(i);
        self.fleet.kill(i).await
    }

    fn start(&mut self, i: usize) -> Result<(), FleetError> {
        self.down.remove(&i);
        self.fleet.spawn(i, None)
    }

    async fn strike(
        &mut self,
        (disks, clocks): (&Disks, &mut Clocks),
        planned: &Planned,
        begun: Instant,
    ) -> Result<String, FleetError> {
        let end = planned.at + planned.lasts;
        match planned.fault {
            Fault::Kill(p) => {
                self.kill(p).await?;
                self.until(begun, end).await?;
                self.start(p)?;
            }
            Fault::Pause(p) => {
                self.fleet.peers[p].signal(Signal::STOP);
                self.until(begun, end).await?;
                self.fleet.peers[p].signal(Signal::CONT);
            }
            Fault::DiskFull(p) => {
                disks.fill(p).map_err(io("filling a disk"))?;
                self.until(begun, end).await?;
                disks.free(p).map_err(io("freeing a disk"))?;
            }
            Fault::Storm(p) => {
                for _ in 0..STORM {
                    self.kill(p).await?;
                    self.start(p)?;
                    self.pause(planned.lasts.scale(1, STORM as u64)).await?;
                }
            }
            Fault::Rolling => return self.roll(planned.lasts).await,
            Fault::KillGuards(p) => return Ok(self.guards(p, true)),
            Fault::KillBoth(p) => {
                self.kill(p).await?;
                let more = self.guards(p, false);
                self.until(begun, end).await?;
                self.start(p)?;
                return Ok(more);
            }
            Fault::Stop(p) => {
                let took = self.stop(p).await?;
                self.until(begun, end).await?;
                self.start(p)?;
                return Ok(format!(" (it had ended after {:.1} s)", took.as_secs_f64()));
            }
            Fault::Sleep(p) => {
                let Some(netns) = self.fleet.peers[p].netns.clone() else { return Ok(String::new()) };
                let n = suspend(&netns);
                self.until(begun, end).await?;
                wake(&netns).await;
                return Ok(format!(" ({n} processes)"));
            }
            Fault::Clock { peer, rate_ppm, wall_s } => {
                clocks.set(peer, rate_ppm, wall_s).map_err(io("setting a clock"))?;
            }
            _ => {}
        }
        Ok(String::new())
    }

    /// At this peer, or at the first after it that has any: which, how many.
    fn guards(&mut self, i: usize, walk: bool) -> String {
        let peers = self.fleet.peers.len();
        for at in (i..i + if walk { peers } else { 1 }).map(|at| at % peers) {
            let n = kill_guards(&self.fleet.peers[at].state());
            if n > 0 {
                with(self.diary, |d| d.guards_killed += n as u64);
                return format!(" ({n} at {})", self.fleet.peers[at].name);
            }
        }
        " (there was none)".into()
    }

    /// SIGTERM, and the end; how long that took.
    async fn stop(&mut self, i: usize) -> Result<Duration, FleetError> {
        let begun = Instant::now();
        self.down.insert(i);
        with(self.diary, |d| d.stops.push((i, boottime_now().0)));
        let well = self.fleet.terminate(i, ENDS_WITHIN).await?;
        if !well {
            let name = &self.fleet.peers[i].name;
            let text = format!("{name} did not end well within {ENDS_WITHIN:?} of its SIGTERM");
            with(self.diary, |d| d.crashes.push(text));
        }
        Ok(begun.elapsed())
    }

    async fn roll(&mut self, lasts: Span) -> Result<String, FleetError> {
        let peers = self.fleet.peers.len();
        let mut slowest = Duration::ZERO;
        for i in 0..peers {
            let begun = Instant::now();
            slowest = slowest.max(self.stop(i).await?);
            self.start(i)?;
            self.until(begun, lasts.scale(1, peers as u64)).await?;
        }
        Ok(format!(" (slowest end {:.1} s)", slowest.as_secs_f64()))
    }
}

/// Notes the end of a peer that nobody had told to end.
fn ended(diary: &Shared, name: &str, status: ExitStatus) {
    with(diary, |d| match status.code() {
        Some(EXIT_DISK) => d.disk_exits += 1,
        _ => d.crashes.push(format!("{name} ended by itself: {status}")),
    });
}

/// Starts again what ended by itself.
pub fn look_after(fleet: &mut Fleet, diary: &Shared) -> Result<(), FleetError> {
    Keeper { fleet, diary, down: BTreeSet::new() }.look()
}

/// Waits until every peer answers.
pub async fn mend(fleet: &mut Fleet, diary: &Shared) -> Result<(), FleetError> {
    for i in 0..fleet.peers.len() {
        look_after(fleet, diary)?;
        fleet.ready(i).await?;
    }
    Ok(())
}
