//! Attempts whose guard died: what is left of them is killed before anyone is told that they ended.

use std::io;
use std::time::Duration;

use super::cgroup::Cgroup;
use super::files::{AttemptDir, Ended, GuardSpec, Guarded};
use super::{clock, container, processes};
use crate::model::Outcome;

/// Scans of all processes that must find nothing, one after another: a scan is no snapshot, and a process
/// that forks and exits meanwhile may be missed by one.
const EMPTY_SCANS: u32 = 2;
/// Scans before the caller is told to come back later.
const SCANS_MAX: u32 = 200;

/// Closes an attempt that has no guard and no end. An error means that it is still open: try again later.
pub fn close(dir: &AttemptDir) -> io::Result<Ended> {
    if dir.revoke_token()? {
        return write(dir, Outcome::NotStarted("its guard died before it began".into()));
    }
    // No guard can come any more, since the token is gone; this one would be just about to exit.
    let Some(_lock) = dir.lock()? else { return Err(io::Error::other("its guard is still there")) };
    if let Some(ended) = dir.ended()? {
        return Ok(ended);
    }
    let spec = dir.spec()?;
    if spec.boot != clock::boot_id()? {
        return write(dir, Outcome::Stopped("the machine was restarted".into()));
    }
    let Some(guarded) = dir.guarded()? else {
        return write(
            dir,
            Outcome::NotStarted("its guard failed before it began: see guard.log in its folder".into()),
        );
    };
    end_tree(&spec, &guarded)?;
    write(dir, Outcome::Stopped("its guard was killed".into()))
}

fn end_tree(spec: &GuardSpec, guarded: &Guarded) -> io::Result<()> {
    let cgroup = guarded.cgroup.clone().map(Cgroup::at);
    let mut empty = 0;
    for _ in 0..SCANS_MAX {
        if let Some(cgroup) = &cgroup {
            cgroup.kill();
        }
        let left = processes::leftovers(guarded.guard, &spec.cookie);
        processes::kill_all(&left);
        empty = if left.is_empty() && cgroup.as_ref().is_none_or(Cgroup::empty) { empty + 1 } else { 0 };
        if empty == EMPTY_SCANS {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if empty < EMPTY_SCANS {
        return Err(io::Error::other("its processes do not die"));
    }
    if let Some(runtime) = &spec.containers {
        let names: Vec<&str> = spec.ranks.iter().filter_map(|r| r.container.as_deref()).collect();
        container::remove(runtime, &names);
    }
    if let Some(cgroup) = &cgroup {
        cgroup.remove();
    }
    Ok(())
}

fn write(dir: &AttemptDir, outcome: Outcome) -> io::Result<Ended> {
    let started_at = dir.started()?.map(|s| s.at);
    let ended = Ended { outcome, started_at, at: clock::wall(), output_lost: 0 };
    dir.write_ended(&ended)?;
    Ok(ended)
}
