//! Starting one rank, so that it can never outlive its guard unseen.
//!
//! The guard runs this binary once more between itself and the program. That step asks the kernel to kill it
//! when the guard dies (which survives exec), enters the attempt's cgroup, and only then becomes the program.
//! It does what would otherwise have to run between fork and exec, where almost nothing is safe. A pipe that
//! closes on exec tells the guard whether the program could be started.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::time::Timespec;

use super::super::cgroup::Cgroup;
use super::super::clock;
use super::super::files::{AttemptDir, GuardSpec};
use crate::base::Instant;

/// Set by the guard alone, for its own second run; the program never sees it.
pub const RANK_VARIABLE: &str = "STARLING_GUARD_RANK";
/// Exit code of the step when the program could not be started; the pipe says why.
const NOT_STARTED: u8 = 127;
/// Longest reason.
const REASON_BYTES_MAX: u64 = 2_000;

/// A rank on its way to its program.
pub struct Starting {
    /// Its process, leader of its own group.
    pub pid: Pid,
    /// Its output.
    pub stdout: OwnedFd,
    /// Its errors.
    pub stderr: OwnedFd,
    ready: OwnedFd,
}

/// Starts the step for rank `index`.
pub fn start(dir: &AttemptDir, index: usize, inherit: bool) -> std::io::Result<Starting> {
    let (ready, tell) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stdout, out) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, err) = pipe_with(PipeFlags::CLOEXEC)?;
    let own = rustix::process::getpid().as_raw_nonzero();
    // Still this binary when the file was replaced by an upgrade.
    let mut step = Command::new("/proc/self/exe");
    if !inherit {
        step.env_clear();
    }
    let child = step
        .arg("guard")
        .arg(dir.path())
        .env(RANK_VARIABLE, format!("{index}:{own}"))
        .stdin(tell)
        .stdout(out)
        .stderr(err)
        .process_group(0)
        .spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::other("the child has no pid"))?;
    Ok(Starting { pid, stdout, stderr, ready })
}

impl Starting {
    /// Waits until the program runs, or says why it does not; until `latest` at most.
    pub fn wait(&self, latest: Instant) -> Result<(), String> {
        let left = latest.since(clock::now());
        let timeout =
            Timespec { tv_sec: (left.0 / 1_000_000) as i64, tv_nsec: (left.0 % 1_000_000 * 1_000) as _ };
        match poll(&mut [PollFd::new(&self.ready, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err("it did not take over in time".into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(format!("waiting for it failed: {e}")),
        }
        let mut reason = String::new();
        let ready = self.ready.try_clone().map_err(|e| e.to_string())?;
        match File::from(ready).take(REASON_BYTES_MAX).read_to_string(&mut reason) {
            Ok(0) => Ok(()),
            Ok(_) => Err(reason),
            Err(e) => Err(format!("starting it failed: {e}")),
        }
    }
}

/// The step itself. Comes back only if the program could not be started.
pub fn become_program(dir: &Path, rank: &str) -> ExitCode {
    // Closes by itself when the program takes over; stdin is where it was handed in.
    let Ok(tell) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) else {
        return ExitCode::from(NOT_STARTED);
    };
    let reason = match try_become(&AttemptDir::new(dir.to_owned()), rank) {
        Err(reason) => reason,
        Ok(never) => match never {},
    };
    // Without a listener there is nobody to tell.
    let _ = File::from(tell).write_all(reason.as_bytes());
    ExitCode::from(NOT_STARTED)
}

fn try_become(dir: &AttemptDir, rank: &str) -> Result<std::convert::Infallible, String> {
    let (index, guard) = rank.split_once(':').ok_or("no rank was named")?;
    let index: usize = index.parse().map_err(|_| "the rank is no number")?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| format!("tying it to its guard failed: {e}"))?;
    // The guard may have died before the kernel knew of the tie.
    if getppid().map(|p| p.as_raw_nonzero().to_string()).as_deref() != Some(guard) {
        return Err("its guard is gone".into());
    }
    let spec = dir.spec().map_err(|e| format!("its description cannot be read: {e}"))?;
    let guarded = dir.guarded().map_err(|e| format!("its guard cannot be read: {e}"))?;
    if let Some(path) = guarded.and_then(|g| g.cgroup) {
        // Where it fails, the tree of processes is what is killed.
        let _ = Cgroup::at(path).join();
    }
    // Short of memory, the kernel shall take the job and not the guard that must report it.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    exec(&spec, index)
}

fn exec(spec: &GuardSpec, index: usize) -> Result<std::convert::Infallible, String> {
    let rank = spec.ranks.get(index).ok_or("there is no such rank")?;
    let (program, arguments) = rank.argv.split_first().ok_or("its command is empty")?;
    if !spec.workdir.is_dir() {
        return Err(format!("its working folder {} is not there", spec.workdir.display()));
    }
    let mut command = Command::new(program);
    if spec.inherit {
        command.env_remove(RANK_VARIABLE).env_remove(clock::TEST_CLOCK);
    } else {
        command.env_clear();
    }
    let error = command
        .args(arguments)
        .envs(rank.env.iter().map(|(k, v)| (k, v)))
        .current_dir(&spec.workdir)
        .stdin(Stdio::null())
        .exec();
    Err(format!("{program}: {error}"))
}
