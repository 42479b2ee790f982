//! Processes: who they are, who descends from whom, and killing exactly those.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Environment variable that carries an attempt's cookie.
pub const COOKIE_VARIABLE: &str = "STARLING_ATTEMPT";

/// One process, told from later ones of the same number by its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// Ticks since boot when it started.
    pub start: u64,
}

/// One line of /proc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Which.
    pub id: ProcessId,
    /// Its parent.
    pub parent: i32,
    /// Its group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// Dead, and not yet reaped.
    pub zombie: bool,
}

/// A child that leads a group of its own: when this goes before the child was waited for, the whole group is killed, so
/// that what it started does not outlive the patience with it.
#[derive(Debug)]
pub struct OwnGroup(Option<Pid>);

impl OwnGroup {
    /// Of a child that was started with `process_group(0)` and was not waited for; none where it was.
    pub fn of(child: &tokio::process::Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }
    /// The child was waited for: its number may be another's from now on.
    pub fn over(mut self) {
        self.0 = None;
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // Whoever is not there any more needs no signal.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

/// Reads one process.
pub fn read(pid: i32) -> Option<Process> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(pid: i32, stat: &str) -> Option<Process> {
    // The name is in parentheses and may hold anything, parentheses too.
    let rest = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |i: usize| fields.get(i)?.parse::<i32>().ok();
    Some(Process {
        id: ProcessId { pid, start: fields.get(19)?.parse().ok()? },
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
    })
}

/// This process.
pub fn own() -> std::io::Result<ProcessId> {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    read(pid).map(|p| p.id).ok_or_else(|| std::io::Error::other("/proc is not there"))
}

/// All processes, a picture that was taken while they went on.
pub fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| read(e.file_name().to_str()?.parse().ok()?)).collect()
}

/// All that descend from `root`, which must be a subreaper: none can leave its tree.
pub fn descendants(root: i32) -> Vec<Process> {
    let processes = all();
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(parent) = next.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            next.push(child.id.pid);
            found.push(child);
        }
    }
    found
}

/// What is left of an attempt whose guard is dead: processes that carry its cookie, and members of the
/// session that only its guard made.
pub fn leftovers(guard: ProcessId, cookie: &str) -> Vec<Process> {
    let processes = all();
    // A session's number is not given out again while a member lives; if its leader is another process now,
    // no member of the old session was left.
    let reused = processes.iter().any(|p| p.id.pid == guard.pid && p.id.start != guard.start);
    let of_session = |p: &Process| !reused && p.session == guard.pid && p.id.start >= guard.start;
    let own = rustix::process::getpid().as_raw_nonzero().get();
    processes
        .into_iter()
        .filter(|p| {
            !p.zombie && p.id.pid != own && p.id != guard && (of_session(p) || has_cookie(p.id.pid, cookie))
        })
        .collect()
}

fn has_cookie(pid: i32, cookie: &str) -> bool {
    let wanted = format!("{COOKIE_VARIABLE}={cookie}");
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|all| all.split(|b| *b == 0).any(|entry| entry == wanted.as_bytes()))
}

/// Sends a signal to this very process, never to a later one of its number.
pub fn signal(id: ProcessId, signal: Signal) {
    let Some(fd) = Pid::from_raw(id.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return;
    };
    if read(id.pid).is_some_and(|p| p.id == id) {
        // It may be gone by now, which is as good.
        let _ = pidfd_send_signal(&fd, signal);
    }
}

/// Sends a signal to a group whose leader is known to be unreaped, so that its number is its own.
pub fn signal_group(leader: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(leader) {
        let _ = kill_process_group(pid, signal);
    }
}

/// Kills all of them.
pub fn kill_all<'a>(processes: impl IntoIterator<Item = &'a Process>) {
    let killed: BTreeSet<ProcessId> = processes.into_iter().filter(|p| !p.zombie).map(|p| p.id).collect();
    for id in killed {
        signal(id, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_with_a_hostile_name_is_read() {
        let line = "17 (a) b) R 9 (x) S 4 17 3 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1";
        let process = parse(17, line).expect("parses");
        assert_eq!((process.parent, process.group, process.session), (4, 17, 3));
        assert_eq!(process.id, ProcessId { pid: 17, start: 12345 });
        for bad in ["", "1 (x", "1 (x) S", "1 (x) S a b c"] {
            assert_eq!(parse(1, bad), None, "{bad:?}");
        }
        assert!(own().is_ok());
    }

    #[test]
    fn a_process_is_not_taken_for_another_of_its_number() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("starts");
        let pid = i32::try_from(child.id()).expect("a pid");
        let real = read(pid).expect("is there").id;
        signal(ProcessId { pid, start: real.start + 1 }, Signal::KILL);
        assert_eq!(child.try_wait().expect("waits"), None, "another process was meant");
        signal(real, Signal::KILL);
        assert!(!child.wait().expect("waits").success());
    }
}
