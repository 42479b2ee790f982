//! A peer's machine: its clock, and its sleep.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::backends::local::clock::{TestClock, machine};

/// When a machine wakes its guards have this long before a job may write again: what protocol.md says of that
/// moment is only held off by output that compares epochs. (It says 100 ms; this machine is shared.)
pub const WAKE_GAP: Duration = Duration::from_millis(300);
/// Processes that begin while others are stopped are found by looking again.
const LOOKS_MAX: u32 = 20;

/// The clocks of a mesh, each in a file that its peer and its guards read.
pub struct Clocks {
    files: Vec<PathBuf>,
    shown: Vec<TestClock>,
}

impl Clocks {
    /// Makes one for each rate.
    pub fn new(files: Vec<PathBuf>, rates: &[i64]) -> io::Result<Self> {
        let now = machine();
        let shown = rates.iter().map(|ppm| TestClock::TRUE.with_rate(now, *ppm)).collect();
        let clocks = Self { files, shown };
        for (file, clock) in clocks.files.iter().zip(&clocks.shown) {
            if let Some(folder) = file.parent() {
                crate::transport::private::make(folder)?;
            }
            clock.write(file)?;
        }
        Ok(clocks)
    }

    /// From now on it runs at another rate, and the time of day is off by so much.
    pub fn set(&mut self, i: usize, rate_ppm: i64, wall_s: i64) -> io::Result<()> {
        let (Some(file), Some(clock)) = (self.files.get(i), self.shown.get_mut(i)) else { return Ok(()) };
        *clock = TestClock { wall_ms: wall_s * 1_000, ..clock.with_rate(machine(), rate_ppm) };
        clock.write(file)
    }
}

/// What runs in a network namespace.
fn pids(netns: &Path) -> Vec<Pid> {
    let Some(name) = netns.file_name() else { return Vec::new() };
    let listed = Command::new("ip").args(["netns", "pids"]).arg(name).output();
    let listed = listed.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    listed.lines().filter_map(|l| Pid::from_raw(l.trim().parse().ok()?)).collect()
}

/// A peer or a guard, and not what a guard started.
fn is_ours(pid: Pid) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let verb = line.split(|b| *b == 0).nth(1).unwrap_or_default();
    verb == b"up" || verb == b"guard"
}

/// Stops every process of a machine: nothing there moves, and the boot clock goes on, as in a suspend.
pub fn suspend(netns: &Path) -> usize {
    let mut stopped = std::collections::BTreeSet::new();
    for _ in 0..LOOKS_MAX {
        let fresh: Vec<Pid> =
            pids(netns).into_iter().filter(|p| !stopped.contains(&p.as_raw_nonzero())).collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::STOP);
            stopped.insert(pid.as_raw_nonzero());
        }
    }
    stopped.len()
}

/// Lets a machine go on: peers and guards, and after a moment what still stands.
pub async fn wake(netns: &Path) {
    let all = pids(netns);
    let (ours, jobs): (Vec<Pid>, Vec<Pid>) = all.into_iter().partition(|pid| is_ours(*pid));
    for pid in ours {
        let _ = kill_process(pid, Signal::CONT);
    }
    tokio::time::sleep(WAKE_GAP).await;
    let here: Vec<Pid> = pids(netns);
    for pid in jobs.into_iter().filter(|pid| here.contains(pid)) {
        let _ = kill_process(pid, Signal::CONT);
    }
}
