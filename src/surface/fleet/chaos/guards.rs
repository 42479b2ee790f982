//! The guards of a peer's attempts, as their folders name them.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// SIGKILL to every guard that lives; how many there were.
pub fn kill_guards(state: &Path) -> usize {
    let Ok(attempts) = fs::read_dir(state.join("attempts")) else { return 0 };
    attempts.flatten().filter_map(|attempt| living(&attempt.path())).filter(|pid| kill(*pid)).count()
}

fn kill(pid: Pid) -> bool {
    kill_process(pid, Signal::KILL).is_ok()
}

fn living(attempt: &Path) -> Option<Pid> {
    let guarded: Value = serde_json::from_slice(&fs::read(attempt.join("guarded")).ok()?).ok()?;
    let number = |key: &str| guarded.get("guard")?.get(key)?.as_u64();
    let pid = i32::try_from(number("pid")?).ok()?;
    // Another process may have the number by now.
    let same = started(pid)? == number("start")?;
    same.then(|| Pid::from_raw(pid)).flatten()
}

/// When a process started, in the kernel's ticks, unless it has ended.
fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ended = fields.next()? == "Z";
    if ended { None } else { fields.nth(18)?.parse().ok() }
}
