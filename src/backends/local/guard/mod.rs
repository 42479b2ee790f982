//! `starling guard`: stands between the peer and one attempt, and holds the deadline by itself.
//!
//! A small synchronous process with one thread and one wait. It outlives the peer, lets the attempt live only
//! while its contact is renewed, ends the whole tree of processes before anyone may think that it has
//! ended, and leaves on disk how it was.
// tidy: long because it is one loop over one state, and each voice that it hears changes it

mod bring;
mod deadline;
pub mod logs;
mod pod;
mod rank;
pub mod remote;
mod signals;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, wait};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use self::deadline::Deadline;
use self::logs::{Echo, RotatingFile, Stream};
use self::remote::{Asker, What};
use self::signals::Signals;
use super::cgroup::Cgroup;
use super::files::{AttemptDir, Ended, GuardSpec, Guarded, NoticeTo, Started, Stop, lease_path, poke};
use super::lease::Lease;
use super::{clock, container, processes};
use crate::base::text::node_list;
use crate::base::{Instant, Span, WallTime};
use crate::core::api::StopReason;
use crate::model::Outcome;

/// Words of an attempt that was stopped by its own guard. The peer's core and people know it by them.
pub const LOST_CONTACT: &str = "lost contact";

/// The folder of an attempt was looked for in vain this often, a second apart: it does not come back.
const FOLDER_GONE: u32 = 5;
/// Words of an attempt that its scheduler told to end (SIGTERM). The peer asks the scheduler why.
pub const BY_SCHEDULER: &str = "ended by its scheduler";
/// A program that has not taken over by then (its file system hangs) is given up.
const EXEC_TIME_MAX: Span = Span::secs(30);

/// What `starling guard` is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Guard the attempt in the folder, which the peer made.
    Attempt,
    /// Put a copy of this binary into the folder.
    Install,
    /// Make the attempt's folder of what this one says, then guard it.
    Pod(std::path::PathBuf),
}

/// Runs one attempt to its end.
pub fn main(dir: &Path, entry: Entry) -> ExitCode {
    if let Ok(rank) = std::env::var(rank::RANK_VARIABLE) {
        return rank::become_program(dir, &rank);
    }
    let done = match entry {
        Entry::Attempt => guard(AttemptDir::new(dir.to_owned())),
        Entry::Install => pod::install(dir).map(|()| ExitCode::SUCCESS),
        Entry::Pod(spec) => pod::folder(&spec, dir).and_then(guard),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("starling guard: {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}

fn guard(dir: AttemptDir) -> std::io::Result<ExitCode> {
    let spec = dir.spec()?;
    if spec.remote.is_none() {
        // Fails only for a leader of a group, which is detached enough. A scheduler must find us where it put us.
        let _ = rustix::process::setsid();
    }
    let lock = match dir.lock() {
        Ok(None) => return Ok(ExitCode::SUCCESS),
        Ok(lock) => lock,
        // A shared file system need not have locks; the token alone decides there.
        Err(_) if spec.remote.is_some() => {
            // The peer must not take a free lock for a dead guard.
            std::fs::write(dir.file("no-lock"), "")?;
            None
        }
        Err(error) => return Err(error),
    };
    // Whoever daemonises below becomes this process's child, and is found.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    if !dir.take_token()? {
        return Ok(ExitCode::SUCCESS);
    }
    let scheduled = spec.remote.is_some();
    let mut guard = Guard::new(dir, spec, lock)?;
    let ended = guard.run();
    let code = if scheduled { code_of(&ended) } else { 0 };
    guard.close(ended);
    Ok(ExitCode::from(code))
}

/// What a scheduler is told, for its own records: as a shell tells how its program ended.
fn code_of(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Exited(code) => u8::try_from(*code).unwrap_or(1),
        Outcome::Signaled(signal) => u8::try_from(*signal).map_or(1, |s| s.saturating_add(128)),
        _ => 1,
    }
}

struct Rank {
    pid: Pid,
    status: Option<WaitStatus>,
    streams: [Stream; 2],
}

struct Stopping {
    outcome: Outcome,
    kill_at: Instant,
}

struct Guard {
    dir: AttemptDir,
    spec: GuardSpec,
    wake: File,
    timer: OwnedFd,
    deadline: Option<Deadline>,
    cgroup: Option<Cgroup>,
    ranks: Vec<Rank>,
    running_since: Option<(Instant, WallTime)>,
    stopping: Option<Stopping>,
    warned: bool,
    /// The scheduler was asked for the same warning that the guard gave by its own clock, and is still to give it.
    echo_due: bool,
    asker: Option<Asker>,
    signals: Option<Signals>,
    _lock: Option<File>,
}

impl Guard {
    fn new(dir: AttemptDir, spec: GuardSpec, lock: Option<File>) -> std::io::Result<Self> {
        let wake = dir.open_wake()?;
        // This clock goes on through suspend, so that a machine that wakes up past a deadline acts at once.
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        // A remote one begins with the first answer.
        let here = spec.grace.filter(|_| spec.remote.is_none());
        let deadline = here.map(|grace| Deadline::new(grace, notice_of(&spec), spec.renewed_at));
        let asker = spec.remote.as_ref().map(|r| Asker::new(spec.key, r.clone(), dir.clone()));
        let signals = spec.remote.as_ref().map(|_| Signals::new()).transpose()?;
        let name = format!("starling-{}-{}", spec.key, spec.cookie.get(..8).unwrap_or_default());
        let cgroup = spec.cgroup.then(|| Cgroup::create(&name)).flatten();
        let guard = Self {
            dir,
            spec,
            wake,
            timer,
            deadline,
            cgroup,
            ranks: Vec::new(),
            running_since: None,
            stopping: None,
            warned: false,
            echo_due: false,
            asker,
            signals,
            _lock: lock,
        };
        Ok(guard)
    }

    /// Everything between the token and the end; afterwards no process is left.
    fn run(&mut self) -> Outcome {
        let begun = self.begin();
        if begun.is_ok() {
            while self.ranks.iter().any(|r| r.status.is_none()) {
                self.look();
                if self.kill_at().is_some_and(|at| clock::now() >= at) {
                    break;
                }
                self.wait();
                self.reap();
            }
        }
        self.end_tree();
        match (begun, self.stopping.take()) {
            (_, Some(stopping)) => stopping.outcome,
            (Err(reason), None) => Outcome::NotStarted(reason),
            (Ok(()), None) => Outcome::Exited(0),
        }
    }

    /// Starts every rank, or says why not.
    fn begin(&mut self) -> Result<(), String> {
        if self.spec.remote.is_some() {
            if self.spec.remote.as_ref().is_some_and(|r| r.begin) {
                self.ask_to_begin()?;
            }
            self.first_answer()?;
        } else if clock::boot_id().ok().as_deref() != Some(self.spec.boot.as_str()) {
            return Err("the machine was restarted before it began".into());
        }
        self.look();
        if self.stopping.is_some() {
            return Err("it was stopped before it began".into());
        }
        if self.deadline.is_some_and(|d| clock::now() >= d.notice_at()) {
            return Err("its contact ran out before it began".into());
        }
        let own = processes::own().map_err(|e| format!("its guard cannot see processes: {e}"))?;
        let cgroup = self.cgroup.as_ref().map(|c| c.path().to_owned());
        let guarded = Guarded { guard: own, cgroup };
        self.dir.write_guarded(&guarded).map_err(|e| format!("its guard cannot write: {e}"))?;
        self.bring()?;
        let mut starting = Vec::new();
        for index in 0..self.spec.ranks.len() {
            let rank = rank::start(&self.dir, index, self.spec.inherit)
                .map_err(|e| format!("rank {index} could not be forked: {e}"))?;
            starting.push(rank);
        }
        for (index, rank) in starting.into_iter().enumerate() {
            let latest = self.deadline.map_or(clock::now() + EXEC_TIME_MAX, |d| d.kill_at());
            rank.wait(latest.min(clock::now() + EXEC_TIME_MAX))
                .map_err(|reason| format!("rank {index}: {reason}"))?;
            let stream = |pipe, name, to| {
                let number = u64::from(self.spec.first_rank) + index as u64;
                let path = self.dir.logs().join(format!("rank-{number}.{name}"));
                let file = RotatingFile::new(path, self.spec.log_bytes, self.spec.log_files);
                Stream::new(pipe, if self.spec.echo { RotatingFile::echo(to) } else { file })
            };
            let out = stream(rank.stdout, "out", Echo::Out);
            let out = out.map_err(|e| format!("its output cannot be read: {e}"))?;
            let err = stream(rank.stderr, "err", Echo::Err);
            let err = err.map_err(|e| format!("its errors cannot be read: {e}"))?;
            self.ranks.push(Rank { pid: rank.pid, status: None, streams: [out, err] });
        }
        let at = clock::wall();
        self.running_since = Some((clock::now(), at));
        let started = Started { at, nodes: self.nodes() };
        if let Err(error) = self.dir.write_started(&started) {
            // The disk is full: it runs all the same, and `ended` will say since when.
            eprintln!("starling guard: {} could not be marked as started: {error}", self.spec.key);
        }
        self.tell(What::Started(started));
        Ok(())
    }

    /// The nodes of the whole attempt, as Slurm tells its batch step and its tasks.
    fn nodes(&self) -> Option<String> {
        let list = if self.spec.inherit { std::env::var("SLURM_JOB_NODELIST").ok() } else { None };
        list.filter(|l| !l.is_empty()).map(|l| node_list(&l))
    }

    /// Whoever started this guard may have started another one for the same part, here or elsewhere: the peer says
    /// which of them runs, once and durably. Of a gang none runs before all its parts are there.
    fn ask_to_begin(&mut self) -> Result<(), String> {
        let patience = self.spec.remote.as_ref().map_or(Span::ZERO, |r| r.patience);
        let mut until = clock::now() + patience;
        loop {
            let told = self.asker.as_mut().and_then(Asker::begin);
            if told.as_ref().is_some_and(|t| t.stop.is_some()) {
                return Err("it was stopped before it began".into());
            }
            match told.as_ref().map(|t| t.may) {
                Some(Some(false)) => return Err("another guard has the right to run it".into()),
                Some(Some(true)) => {
                    let master = told.and_then(|t| t.master);
                    return pod::address(&self.dir, &mut self.spec, master.as_deref())
                        .map_err(|e| format!("its guard cannot write: {e}"));
                }
                // The peer is there; the others of the gang are not.
                Some(None) => until = clock::now() + patience,
                None => {}
            }
            if clock::now() >= until || self.signals.as_mut().is_some_and(|s| !s.take().is_empty()) {
                let why = self.asker.as_ref().map(Asker::trouble).unwrap_or_default();
                return Err(format!("its peer could not be asked from this node: {why}"));
            }
            std::thread::sleep(Span::millis(200).to_std());
        }
    }

    /// A guard on another machine has no clock in common with its peer: nothing starts before the peer has said
    /// how old the last renewal is.
    fn first_answer(&mut self) -> Result<(), String> {
        let Some(grace) = self.spec.grace else { return Ok(()) };
        let patience = self.spec.remote.as_ref().map_or(Span::ZERO, |r| r.patience);
        let until = clock::now() + patience;
        loop {
            let answer = self.asker.as_mut().and_then(Asker::ask);
            if let Some(renewed_at) = answer.as_ref().and_then(|a| a.renewed_at) {
                self.deadline = Some(Deadline::new(grace, notice_of(&self.spec), renewed_at));
                return Ok(());
            }
            if answer.is_some_and(|a| a.stop.is_some()) || self.dir.stop().is_ok_and(|s| s.is_some()) {
                return Err("it was stopped before it began".into());
            }
            if clock::now() >= until || self.signals.as_mut().is_some_and(|s| !s.take().is_empty()) {
                let why = self.asker.as_ref().map(Asker::trouble).unwrap_or_default();
                return Err(format!("its peer could not be asked from this node: {why}"));
            }
            std::thread::sleep(Span::millis(100).to_std());
        }
    }

    /// Looks for renewals, the peer's wish and limits, and gives notice where it is time.
    fn look(&mut self) {
        let now = clock::now();
        self.read_signals(now);
        self.read_lease(now);
        self.read_stop(now);
        let Some((since, _)) = self.running_since else { return };
        if let Some(deadline) = self.deadline.filter(|d| now >= d.notice_at()) {
            // A renewal after this does not help: the job was told, and ends as it was told.
            self.stop(Outcome::Stopped(LOST_CONTACT.into()), deadline.kill_at().since(now), now);
        }
        if self.warn_at().is_some_and(|at| now >= at) {
            self.echo_due = self.spec.remote.is_some() && self.spec.notice_to != NoticeTo::All;
            self.warn();
        }
        if self.spec.max_runtime.is_some_and(|max| now >= since + max) {
            self.stop(Outcome::TimedOut, self.spec.notice, now);
        }
    }

    /// What the scheduler wants: its SIGTERM is an order, other signals are the user's.
    fn read_signals(&mut self, now: Instant) {
        for signal in self.signals.as_mut().map(Signals::take).unwrap_or_default() {
            if signal == Signal::TERM {
                let wait = self.spec.remote.as_ref().map_or(Span::ZERO, |r| r.kill_wait);
                let notice = wait.scale(3, 4).min(self.spec.notice.max(Span::secs(1)));
                self.stop(Outcome::Stopped(BY_SCHEDULER.into()), notice, now);
            } else if self.spec.notice_signal == Some(signal.as_raw()) {
                if !std::mem::take(&mut self.echo_due) {
                    self.warn();
                }
            } else if self.spec.notice_to == NoticeTo::All {
                self.signal_ranks(signal, NoticeTo::All);
            } else {
                // What reaches us was meant for the shell of the batch script, in whose place we stand.
                self.signal_ranks(signal, NoticeTo::First);
            }
        }
    }

    /// A scheduler signals every process of a job, one after another: a program that ends of it may be seen here
    /// before the guard's own signal comes, and did not end by itself.
    fn hear_scheduler(&mut self, outcome: &Outcome) {
        if self.signals.is_none() {
            return;
        }
        let likely = matches!(outcome, Outcome::Signaled(9 | 15) | Outcome::Exited(137 | 143));
        let until = clock::now() + if likely { Span::millis(300) } else { Span::ZERO };
        loop {
            let now = clock::now();
            self.read_signals(now);
            if self.stopping.is_some() || now >= until {
                return;
            }
            std::thread::sleep(Span::millis(10).to_std());
        }
    }

    fn signal_ranks(&self, signal: Signal, to: NoticeTo) {
        for rank in self.ranks.iter().filter(|r| r.status.is_none()) {
            let pid = rank.pid.as_raw_nonzero().get();
            let others = match to {
                NoticeTo::All => {
                    processes::signal_group(pid, signal);
                    continue;
                }
                NoticeTo::First => Vec::new(),
                NoticeTo::Others => processes::descendants(pid),
            };
            for process in others.iter().filter(|p| !p.zombie) {
                processes::signal(process.id, signal);
            }
            // A shell becomes its last command: then the first one is all that there is.
            if others.is_empty() {
                // Not reaped yet, so the number is its own.
                let _ = rustix::process::kill_process(rank.pid, signal);
            }
        }
    }

    /// When the programs are told that their limit comes.
    fn warn_at(&self) -> Option<Instant> {
        let (since, _) = self.running_since.filter(|_| self.stopping.is_none() && !self.warned)?;
        Some(since + (self.spec.max_runtime? - self.spec.warn_before?))
    }

    /// Tells the programs that their limit comes, so that they save their progress.
    fn warn(&mut self) {
        if self.ranks.iter().all(|r| r.status.is_some()) {
            // Nobody is there yet who could hear it: the clock says it again.
            return;
        }
        let first = !std::mem::replace(&mut self.warned, true);
        self.signal_ranks(self.notice_signal(), self.spec.notice_to);
        if first {
            self.run_command();
        }
    }

    fn notice_signal(&self) -> Signal {
        self.spec.notice_signal.and_then(Signal::from_named_raw).unwrap_or(Signal::TERM)
    }

    /// Starts the job's own command for a warning, beside its programs; it ends with them at the latest.
    fn run_command(&self) {
        let (Some(text), Some(rank), Some(spec)) = (
            &self.spec.warn_command,
            self.ranks.iter().find(|r| r.status.is_none()),
            self.spec.ranks.first(),
        ) else {
            return;
        };
        let mut command = match (&self.spec.containers, &spec.container) {
            (Some(runtime), Some(name)) => {
                let mut command = Command::new(runtime);
                command.args(["exec", name, "/bin/sh", "-c", text]);
                command
            }
            _ => {
                let mut command = Command::new("/bin/sh");
                command.args(["-c", text]);
                command
            }
        };
        if !self.spec.inherit {
            command.env_clear();
        }
        command.env_remove(clock::TEST_CLOCK).envs(spec.env.iter().map(|(k, v)| (k, v)));
        command.env("STARLING_PID", rank.pid.as_raw_nonzero().to_string());
        command.current_dir(&self.spec.workdir).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // It is reaped with the other children that are no ranks.
        if let Err(error) = command.spawn() {
            eprintln!("starling guard: {}: its command for a warning did not start: {error}", self.spec.key);
        }
    }

    /// Asks the peer where it is time, and does as it says.
    fn ask(&mut self, now: Instant) {
        let every = self.deadline.map_or(Span::secs(10), |d| d.look_every());
        let Some(answer) = self.asker.as_mut().and_then(|a| a.ask_if_due(now, every)) else { return };
        if let (Some(deadline), Some(renewed_at)) = (&mut self.deadline, answer.renewed_at) {
            deadline.renewed(renewed_at, clock::now());
        }
        if let Some(stop) = answer.stop {
            self.obey(stop, clock::now());
        }
    }

    fn read_lease(&mut self, now: Instant) {
        if self.asker.is_some() {
            return self.ask(now);
        }
        let Some(deadline) = &mut self.deadline else { return };
        // A file that cannot be read is no renewal: the deadline stands.
        let Ok(binding) = self.dir.binding() else { return };
        let lease = |b| Lease::read(&lease_path(&self.spec.contacts, b)).ok();
        let sent_at = |l: Option<Lease>| l.filter(|l| l.boot == self.spec.boot).map(|l| l.sent_at);
        // Without one of them none counts.
        let oldest = binding.each().map(|b| sent_at(lease(b))).min().flatten();
        if let Some(sent_at) = oldest {
            deadline.renewed(sent_at, now);
        }
    }

    fn read_stop(&mut self, now: Instant) {
        if let Ok(Some(stop)) = self.dir.stop() {
            self.obey(stop, now);
        }
    }

    fn obey(&mut self, stop: Stop, now: Instant) {
        let outcome = stopped_by(stop.reason);
        // A cancel during a drain is a cancel: it must not be run again elsewhere.
        if stop.reason == StopReason::Cancel
            && let Some(stopping) = &mut self.stopping
            && matches!(stopping.outcome, Outcome::Stopped(_))
        {
            stopping.outcome = outcome.clone();
        }
        self.stop(outcome, stop.notice, now);
    }

    /// Gives notice, once; a later word may only make the end come sooner.
    fn stop(&mut self, outcome: Outcome, notice: Span, now: Instant) {
        let kill_at = now + notice;
        if let Some(stopping) = &mut self.stopping {
            stopping.kill_at = stopping.kill_at.min(kill_at);
            return;
        }
        let foreseen = outcome == Outcome::TimedOut || outcome == Outcome::Stopped(BY_SCHEDULER.into());
        self.stopping = Some(Stopping { outcome, kill_at });
        if self.warned && foreseen {
            // Its time to save is over.
            return self.signal_ranks(Signal::TERM, NoticeTo::All);
        }
        self.signal_ranks(self.notice_signal(), self.spec.notice_to);
        self.run_command();
    }

    fn kill_at(&self) -> Option<Instant> {
        let stop = self.stopping.as_ref().map(|s| s.kill_at);
        let lost = self.deadline.map(|d| d.kill_at());
        stop.into_iter().chain(lost).min()
    }

    fn next_look(&self) -> Option<Instant> {
        let now = clock::now();
        let limit = match (&self.stopping, self.running_since, self.spec.max_runtime) {
            (None, Some((since, _)), Some(max)) => Some(since + max),
            _ => None,
        };
        let notice = self.deadline.filter(|_| self.stopping.is_none()).map(|d| d.notice_at());
        let renewal = self.deadline.map(|d| now + d.look_every());
        self.kill_at().into_iter().chain(limit).chain(notice).chain(renewal).chain(self.warn_at()).min()
    }

    /// Waits for output, an end, the peer or the clock.
    fn wait(&mut self) {
        if let Some(at) = self.next_look() {
            // Zero would disarm it.
            let at = clock::machine_time(at).0.max(1);
            let value = Timespec { tv_sec: (at / 1_000_000) as i64, tv_nsec: (at % 1_000_000 * 1_000) as _ };
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval: never, it_value: value };
            if let Err(error) = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec) {
                eprintln!("starling guard: the timer cannot be set: {error}");
            }
        }
        let pidfds: Vec<OwnedFd> = self.ranks.iter().filter_map(Rank::pidfd).collect();
        let streams = self.ranks.iter().flat_map(|r| &r.streams).filter_map(Stream::fd);
        let own = [self.timer.as_fd(), self.wake.as_fd()].into_iter().chain(pidfds.iter().map(AsFd::as_fd));
        let own = own.chain(self.signals.iter().flat_map(Signals::fds));
        let own = own.chain(self.asker.iter().filter_map(Asker::fd));
        let mut fds: Vec<PollFd<'_>> =
            own.chain(streams).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // Looks by itself now and then, should a wake-up be lost; orphans are reaped then.
        let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
        let result = poll(&mut fds, Some(&timeout));
        let woken = result.is_ok() && fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        if woken {
            // Only its coming matters.
            let _ = std::io::Read::read(&mut self.wake, &mut [0; 64]);
        }
        if let Some(asker) = &mut self.asker {
            asker.listen(woken);
        }
        self.copy_output();
    }

    fn copy_output(&mut self) -> bool {
        let mut more = false;
        for stream in self.ranks.iter_mut().flat_map(|r| &mut r.streams) {
            more |= stream.copy();
        }
        more
    }

    /// Takes the status of whoever ended; the first rank that fails decides for all.
    fn reap(&mut self) {
        for (pid, status) in reaped().0 {
            if !self.ranks.iter().any(|r| r.pid == pid) {
                continue;
            }
            let outcome = outcome_of(status);
            if outcome != Outcome::Exited(0) && self.stopping.is_none() {
                self.hear_scheduler(&outcome);
            }
            let Some(rank) = self.ranks.iter_mut().find(|r| r.pid == pid) else { continue };
            rank.status = Some(status);
            if outcome != Outcome::Exited(0) && self.stopping.is_none() {
                self.stop(outcome, self.spec.notice, clock::now());
            }
        }
    }

    /// Kills whatever is left, until nothing is; what cannot be killed keeps the attempt open.
    fn end_tree(&mut self) {
        let containers: Vec<&str> = self.spec.ranks.iter().filter_map(|r| r.container.as_deref()).collect();
        if let Some(runtime) = &self.spec.containers {
            // The client is in our tree, the container may be a daemon's.
            processes::kill_all(&processes::descendants(rustix::process::getpid().as_raw_nonzero().get()));
            container::remove(runtime, &containers);
        }
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let mut pause = Span::millis(1);
        loop {
            if let Some(cgroup) = &self.cgroup {
                cgroup.kill();
            }
            let childless = self.reap_all();
            if childless && self.cgroup.as_ref().is_none_or(Cgroup::empty) {
                break;
            }
            processes::kill_all(&processes::descendants(own));
            // A chatty job fills its pipes again and again until it is dead.
            self.copy_output();
            std::thread::sleep(pause.to_std());
            pause = pause.scale(2, 1).min(Span::millis(100));
        }
        while self.copy_output() {}
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
    }

    /// True if no child is left. Since all descendants become children when their parents die, and this
    /// is asked until it is true, none is left then.
    fn reap_all(&mut self) -> bool {
        let (statuses, childless) = reaped();
        for rank in &mut self.ranks {
            let status = statuses.iter().find(|(pid, _)| *pid == rank.pid).map(|(_, status)| *status);
            rank.status = rank.status.or(status);
        }
        childless
    }

    /// Writes how it ended, as often as it takes: nobody else can say it. Where the attempt's whole folder was
    /// taken away, nobody will ever read it: then the guard ends, too.
    fn close(&mut self, outcome: Outcome) {
        let output_lost = self.ranks.iter().flat_map(|r| &r.streams).map(|s| s.file.lost).sum();
        let started_at = self.running_since.map(|(_, wall)| wall);
        let ended = Ended { outcome, started_at, at: clock::wall(), output_lost };
        let (mut said, mut gone) = (false, 0);
        while let Err(error) = self.dir.write_ended(&ended) {
            if !std::mem::replace(&mut said, true) {
                eprintln!("starling guard: {} ended and that cannot be written: {error}", self.spec.key);
            }
            gone = if matches!(self.dir.path().try_exists(), Ok(false)) { gone + 1 } else { 0 };
            if gone > FOLDER_GONE {
                return;
            }
            std::thread::sleep(Span::secs(1).to_std());
        }
        if let Some(path) = self.spec.remote.as_ref().and_then(|r| r.last_word.as_ref()) {
            // What cannot be written there is said over the line.
            let _ = std::fs::write(path, serde_json::to_vec(&ended).unwrap_or_default());
        }
        self.tell(What::Ended(ended));
    }

    fn tell(&mut self, what: What) {
        match &mut self.asker {
            Some(asker) => asker.tell(what),
            None => poke(&self.spec.news, format!("{}\n", self.spec.key).as_bytes()),
        }
    }
}

/// The time to save that it gets where its contact is lost, as far as the grace allows.
fn notice_of(spec: &GuardSpec) -> Span {
    spec.notice.max(spec.warn_before.unwrap_or(Span::ZERO))
}

impl Rank {
    fn pidfd(&self) -> Option<OwnedFd> {
        let alive = self.status.is_none();
        alive
            .then(|| rustix::process::pidfd_open(self.pid, rustix::process::PidfdFlags::empty()).ok())
            .flatten()
    }
}

/// All children that have ended, ours and those that were left to us; and whether none is left.
fn reaped() -> (Vec<(Pid, WaitStatus)>, bool) {
    let mut found = Vec::new();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(child)) => found.push(child),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => return (found, true),
            Ok(None) | Err(_) => return (found, false),
        }
    }
}

fn outcome_of(status: WaitStatus) -> Outcome {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Outcome::Exited(code),
        (None, Some(signal)) => Outcome::Signaled(signal),
        (None, None) => Outcome::Stopped(format!("it ended in an unknown way ({status:?})")),
    }
}

/// How an attempt counts that was stopped for this reason.
pub fn stopped_by(reason: StopReason) -> Outcome {
    match reason {
        StopReason::Cancel => Outcome::Cancelled,
        StopReason::Timeout => Outcome::TimedOut,
        StopReason::Drain => Outcome::Stopped("drain".into()),
        StopReason::Superseded => Outcome::Stopped("superseded".into()),
    }
}
