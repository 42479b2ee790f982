//! What jobs write down themselves, and a judge that decides from that alone whether every job ran
//! once. Starling's own records are not asked: they are what is on trial.
//!
//! Times are boot-time microseconds, so ledgers of one machine compare and those of several do not.

mod judge;

#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use judge::{Expected, Verdict, judge, judge_entries};

/// Longest line; a longer one was not written by this module.
const LINE_BYTES_MAX: usize = 2_048;

/// What a line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A process began; `step` is where it goes on, `steps` how many there are in all.
    Begin,
    /// It did this step, from `from_us` to `to_us`.
    Step,
    /// Everything before `step` is kept in a checkpoint on disk.
    Checkpoint,
    /// It was told to stop.
    Stopped,
    /// The job's work is complete; written once per job and rank.
    Done,
    /// A process began and found the work complete: it did nothing.
    Again,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What.
    pub kind: Kind,
    /// Job id.
    pub job: String,
    /// Node of the job.
    pub rank: u32,
    /// Attempt.
    pub epoch: u64,
    /// Process.
    pub pid: u32,
    /// Where it ran.
    pub cluster: String,
    /// Step, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Steps in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Begin of what the line is about.
    pub from_us: u64,
    /// Its end.
    pub to_us: u64,
}

/// Appends lines: each is one write, so that writers in several processes never mix within a line.
pub struct Ledger(File);

impl Ledger {
    /// Opens or makes the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().append(true).create(true).open(path).map(Self)
    }

    /// Adds a line. A write that took only a part of it is an error.
    pub fn add(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry).map_err(io::Error::other)?;
        line.push(b'\n');
        match self.0.write(&line)? {
            n if n == line.len() => Ok(()),
            n => Err(io::Error::new(
                io::ErrorKind::WriteZero,
                format!("{n} of {} bytes were written", line.len()),
            )),
        }
    }
}

/// Calls `each` for every line: the entry, or none where the line is not one.
pub fn read(path: &Path, mut each: impl FnMut(Option<Entry>)) -> io::Result<()> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let whole = line.len() <= LINE_BYTES_MAX && line.last() == Some(&b'\n');
        each(if whole { serde_json::from_slice(&line).ok() } else { None });
    }
}

/// The ledger holds a `done` line of this job and rank.
pub fn is_done(path: &Path, job: &str, rank: u32) -> io::Result<bool> {
    let mut done = false;
    let found = read(path, |entry| {
        done |= entry.is_some_and(|e| e.kind == Kind::Done && e.job == job && e.rank == rank);
    });
    match found {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        other => other.map(|()| done),
    }
}
