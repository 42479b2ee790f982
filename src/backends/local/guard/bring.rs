//! An image is pulled before its container is started, under the guard's own eyes: how far that has come is told, and a
//! stop or the deadline ends it.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use rustix::time::Timespec;

use super::super::files::AttemptDir;
use super::super::{clock, processes};
use super::Guard;
use crate::base::{Bytes, Span};
use crate::model::staging::{Part, PartKind, PartState, PullWords, Staging};

/// A pull that takes longer is given up.
const PULL_TIME_MAX: Span = Span::secs(3_600);
/// Whether an image is there is asked for so long.
const ASK_TIME_MAX: Span = Span::secs(60);
/// How far it has come is told this often.
const TOLD_EVERY: Span = Span::secs(1);
/// The peer and the deadline are looked at this often meanwhile.
const LOOK_MS: i64 = 200;
/// Longest line that is read.
const LINE_BYTES_MAX: usize = 4_096;

/// How a command of the runtime's ended.
struct Done {
    well: bool,
    /// Its last line.
    said: String,
}

impl Guard {
    /// Sees to it that the image is there. Where the runtime cannot pull it, its own `run` says so: into the job's log,
    /// as its other troubles. The error is why the attempt does not begin.
    pub(super) fn bring(&mut self) -> Result<(), String> {
        let (Some(runtime), Some(image)) = (self.spec.containers.clone(), self.spec.image.clone()) else {
            return Ok(());
        };
        let mut staging = self.spec.staging.clone();
        let is_image = |p: &Part| p.kind == PartKind::Image;
        let mut part = match staging.parts.iter().position(is_image) {
            Some(at) => staging.parts.remove(at),
            None => Part::needed(PartKind::Image, &image),
        };
        let dir = self.dir.clone();
        let tell = |part: &Part| {
            let parts = staging.parts.iter().chain([part]).cloned().collect();
            write(&dir, Staging { parts, at: clock::wall() });
        };
        let size = ["image", "inspect", "--format", "{{.Size}}", image.as_str()];
        let bytes = |done: &Done| done.said.trim().parse().ok().map(Bytes);
        let there = self.attend(&runtime, &size, ASK_TIME_MAX, &mut |_| {})?;
        if there.well {
            tell(&part.there(bytes(&there)));
            return Ok(());
        }
        (part.state, part.from) = (PartState::Comes, Some(clock::wall()));
        tell(&part);
        let (mut words, mut told) = (PullWords::default(), clock::now());
        let pulled = self.attend(&runtime, &["pull", &image], PULL_TIME_MAX, &mut |line| {
            if let Some(line) = line {
                words.line(line);
            }
            if clock::now().since(told) >= TOLD_EVERY {
                told = clock::now();
                (part.done, part.total) = words.bytes();
                part.note = words.layers();
                tell(&part);
            }
        })?;
        (part.done, part.total) = words.bytes();
        part.to = Some(clock::wall());
        if pulled.well {
            let size = bytes(&self.attend(&runtime, &size, ASK_TIME_MAX, &mut |_| {})?);
            (part.state, part.note) = (PartState::There, String::new());
            // What came over the wire, where that was said; else what it has become.
            part.done = part.total.or(part.done).or(size);
            part.total = part.done;
        } else {
            (part.state, part.note) = (PartState::Fails, pulled.said);
        }
        tell(&part);
        Ok(())
    }

    /// Runs a command of the runtime's and reads its lines, while the peer's wishes and the deadline are heeded. `heard`
    /// gets each line, and none when some time has gone by.
    fn attend(
        &mut self,
        runtime: &Path,
        args: &[&str],
        most: Span,
        heard: &mut dyn FnMut(Option<&str>),
    ) -> Result<Done, String> {
        let failed = |e: &dyn std::fmt::Display| Ok(Done { well: false, said: e.to_string() });
        let (pipe, mut child) = match start(runtime, args) {
            Ok(started) => started,
            Err(error) => return failed(&error),
        };
        let (mut lines, mut pipe) = (Lines::default(), Some(pipe));
        let until = clock::now() + most;
        loop {
            let ended = child.try_wait();
            if pipe.as_mut().is_some_and(|pipe| lines.read(pipe, heard)) {
                pipe = None;
            }
            match ended {
                Ok(None) => {}
                Ok(Some(status)) => {
                    lines.rest(heard);
                    return Ok(Done { well: status.success(), said: lines.last });
                }
                Err(error) => {
                    end(&mut child);
                    return failed(&error);
                }
            }
            heard(None);
            self.look();
            let over = if self.stopping.is_some() {
                Some("it was stopped before it began")
            } else if self.deadline.is_some_and(|d| clock::now() >= d.notice_at()) {
                Some("its contact ran out before it began")
            } else {
                None
            };
            if over.is_some() || clock::now() >= until {
                end(&mut child);
                let late = || failed(&format!("{} did not end within {most}", args[0]));
                return over.map_or_else(late, |why| Err(why.to_owned()));
            }
            self.rest(pipe.as_ref());
        }
    }

    /// Until something is said, the peer wants something, or a little later.
    fn rest(&mut self, pipe: Option<&File>) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: (LOOK_MS * 1_000_000) as _ };
        let fds = [self.wake.as_fd()].into_iter().chain(pipe.map(AsFd::as_fd));
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let woken =
            poll(&mut fds, Some(&timeout)).is_ok() && fds.first().is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        if woken {
            // Only its coming matters.
            let _ = self.wake.read(&mut [0; 64]);
        }
    }
}

/// In a group of its own, so that all of it can be ended; what it says comes through one pipe.
fn start(runtime: &Path, args: &[&str]) -> std::io::Result<(File, Child)> {
    let (pipe, out) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
    let errors = out.try_clone()?;
    let child = Command::new(runtime)
        .args(args)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(errors)
        .process_group(0)
        .spawn()?;
    Ok((File::from(pipe), child))
}

fn end(child: &mut Child) {
    if let Ok(leader) = i32::try_from(child.id()) {
        // Not waited for yet, so its number is its own.
        processes::signal_group(leader, Signal::KILL);
    }
    let _ = child.wait();
}

fn write(dir: &AttemptDir, staging: Staging) {
    if let Err(error) = dir.write_staging(&staging.bounded()) {
        // Nobody sees how far it has come; it comes all the same.
        eprintln!("starling guard: how far it has come cannot be written: {error}");
    }
}

/// Lines, also those that are drawn over each other with a carriage return.
#[derive(Default)]
struct Lines {
    open: Vec<u8>,
    last: String,
}

impl Lines {
    /// Takes what is there. True at the end.
    fn read(&mut self, pipe: &mut File, heard: &mut dyn FnMut(Option<&str>)) -> bool {
        let mut buffer = [0; LINE_BYTES_MAX];
        // A runtime that talks without end does not keep the guard from its deadline.
        for _ in 0..64 {
            match pipe.read(&mut buffer) {
                Ok(0) => return true,
                Ok(n) => self.take(&buffer[..n], heard),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return e.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
        false
    }

    fn take(&mut self, bytes: &[u8], heard: &mut dyn FnMut(Option<&str>)) {
        for b in bytes {
            if matches!(b, b'\n' | b'\r') {
                self.rest(heard);
            } else if self.open.len() < LINE_BYTES_MAX {
                self.open.push(*b);
            }
        }
    }

    /// The line so far.
    fn rest(&mut self, heard: &mut dyn FnMut(Option<&str>)) {
        let line = String::from_utf8_lossy(&self.open).trim().to_owned();
        self.open.clear();
        if !line.is_empty() {
            heard(Some(&line));
            self.last = line;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_with_either_sign_and_are_bounded() {
        let (mut lines, mut seen) = (Lines::default(), Vec::new());
        let mut heard = |line: Option<&str>| seen.extend(line.map(str::to_owned));
        lines.take(b"one\rtw", &mut heard);
        lines.take(b"o\n\n  \nth", &mut heard);
        lines.take(&[b'x'; 3 * LINE_BYTES_MAX], &mut heard);
        lines.rest(&mut heard);
        assert_eq!((seen[0].as_str(), seen[1].as_str(), seen.len()), ("one", "two", 3));
        assert_eq!((seen[2].len(), lines.last.len()), (LINE_BYTES_MAX, LINE_BYTES_MAX));
    }
}
