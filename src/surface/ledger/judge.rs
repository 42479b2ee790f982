//! The judge.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Entry, Kind, read};

/// Notes kept in a verdict.
const NOTES_MAX: usize = 100;

/// A job that was answered, and so must have run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Its id.
    pub job: String,
    /// Its nodes; each runs the whole of it.
    pub ranks: u32,
}

/// What the ledgers say.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// Jobs that were expected.
    pub expected: u64,
    /// Of these: every rank has all its steps and one `done`, and no rank ran twice.
    pub succeeded: u64,
    /// Of these: some rank never came to its end, or lacks steps.
    pub lost: u64,
    /// Jobs of which two processes were alive at once for one rank, an epoch was started twice, or a
    /// rank was done twice.
    pub run_twice: u64,
    /// Pairs of processes of one rank that were alive at once.
    #[serde(default)]
    pub overlaps: u64,
    /// Processes that wrote after one of a newer epoch had begun.
    #[serde(default)]
    pub stale_writes: u64,
    /// Jobs that ran at more than one cluster.
    pub moved: u64,
    /// Steps that were skipped.
    pub gaps: u64,
    /// Steps that were done again although a checkpoint held them, or twice by one process.
    pub repeats: u64,
    /// Processes that began after their work was complete, and did nothing.
    pub again: u64,
    /// Jobs in the ledgers that nobody expected.
    pub unexpected: u64,
    /// Lines that are no entries.
    pub malformed: u64,
    /// The first findings in words.
    pub notes: Vec<String>,
}

impl Verdict {
    /// Every expected job ran exactly once, step by step.
    pub fn holds(&self) -> bool {
        let wrong = [
            self.lost,
            self.run_twice,
            self.overlaps,
            self.stale_writes,
            self.gaps,
            self.repeats,
            self.malformed,
        ];
        self.succeeded == self.expected && wrong.iter().all(|n| *n == 0)
    }

    fn note(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(text);
        }
    }
}

/// Reads the ledgers and judges them. A file that is not there counts as empty: nobody wrote.
pub fn judge(files: &[PathBuf], expected: &[Expected]) -> io::Result<Verdict> {
    let mut entries = Vec::new();
    let mut malformed = 0;
    for file in files {
        let read = read(file, |entry| match entry {
            Some(entry) => entries.push(entry),
            None => malformed += 1,
        });
        match read {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    let mut verdict = judge_entries(&entries, expected);
    verdict.malformed = malformed;
    Ok(verdict)
}

/// One process of one rank.
#[derive(Default)]
struct Life<'a> {
    entries: Vec<&'a Entry>,
    from_us: u64,
    to_us: u64,
}

/// Of one rank: processes by epoch and process id.
type Lives<'a> = BTreeMap<(u64, u32), Life<'a>>;

/// Judges entries in the order in which each process wrote them.
pub fn judge_entries(entries: &[Entry], expected: &[Expected]) -> Verdict {
    let mut jobs: BTreeMap<&str, BTreeMap<u32, Lives>> = BTreeMap::new();
    for entry in entries {
        let lives = jobs.entry(&entry.job).or_default().entry(entry.rank).or_default();
        let life =
            lives.entry((entry.epoch, entry.pid)).or_insert(Life { from_us: u64::MAX, ..Life::default() });
        life.from_us = life.from_us.min(entry.from_us);
        life.to_us = life.to_us.max(entry.to_us);
        life.entries.push(entry);
    }
    let mut verdict = Verdict { expected: expected.len() as u64, ..Verdict::default() };
    let known: BTreeMap<&str, u32> = expected.iter().map(|e| (e.job.as_str(), e.ranks)).collect();
    for (job, ranks) in &jobs {
        let mut twice = false;
        let mut complete = true;
        let mut clusters = BTreeSet::new();
        for (rank, lives) in ranks {
            twice |= ran_twice(job, *rank, lives, &mut verdict);
            complete &= steps_hold(job, *rank, lives, &mut verdict);
            clusters.extend(lives.values().flat_map(|l| &l.entries).map(|e| e.cluster.as_str()));
        }
        verdict.run_twice += u64::from(twice);
        verdict.moved += u64::from(clusters.len() > 1);
        match known.get(job) {
            None => verdict.unexpected += 1,
            Some(wanted) if complete && (0..*wanted).all(|rank| ranks.contains_key(&rank)) => {
                verdict.succeeded += u64::from(!twice);
            }
            Some(_) => {
                verdict.lost += 1;
                verdict.note(format!("{job}: not complete"));
            }
        }
    }
    for job in known.keys().filter(|job| !jobs.contains_key(**job)) {
        verdict.lost += 1;
        verdict.note(format!("{job}: never ran"));
    }
    verdict
}

/// Two processes of one rank were alive at once, one epoch had two, or the work was done twice.
fn ran_twice(job: &str, rank: u32, lives: &Lives, verdict: &mut Verdict) -> bool {
    let mut twice = false;
    let mut by_begin: Vec<_> = lives.iter().collect();
    by_begin.sort_by_key(|(_, life)| life.from_us);
    let mut latest: Option<(&(u64, u32), &Life)> = None;
    for (key, life) in by_begin {
        if let Some((other, earlier)) = latest
            && life.from_us < earlier.to_us
        {
            twice = true;
            verdict.overlaps += 1;
            let both = earlier.to_us.min(life.to_us) - life.from_us;
            verdict.note(format!("{job}/{rank}: epochs {} and {} ran at once for {both} us", other.0, key.0));
        }
        if latest.is_none_or(|(_, l)| life.to_us >= l.to_us) {
            latest = Some((key, life));
        }
    }
    for ((epoch, _), life) in lives {
        let newer = lives.iter().filter(|((other, _), _)| other > epoch);
        let begun = newer.map(|((other, _), l)| (l.from_us, *other)).min();
        if let Some((begun, other)) = begun.filter(|(begun, _)| *begun < life.to_us) {
            twice = true;
            verdict.stale_writes += 1;
            let late = life.to_us - begun;
            verdict
                .note(format!("{job}/{rank}: epoch {epoch} wrote {late} us after epoch {other} had begun"));
        }
    }
    for ((epoch, _), (next, _)) in lives.keys().zip(lives.keys().skip(1)) {
        if epoch == next {
            twice = true;
            verdict.note(format!("{job}/{rank}: epoch {epoch} was started twice"));
        }
    }
    let all = lives.values().flat_map(|l| &l.entries);
    verdict.again += all.clone().filter(|e| e.kind == Kind::Again).count() as u64;
    let dones = all.filter(|e| e.kind == Kind::Done).count();
    if dones > 1 {
        twice = true;
        verdict.note(format!("{job}/{rank}: done {dones} times"));
    }
    twice
}

/// The chain of epochs covers every step: each epoch goes on from the last checkpoint of those before
/// it, or from a later step that they did. True when the rank is done and lacks nothing.
fn steps_hold(job: &str, rank: u32, lives: &Lives, verdict: &mut Verdict) -> bool {
    // What is known to be on disk, and the first step that nobody has done.
    let (mut kept, mut next) = (0, 0);
    let (mut steps, mut done) = (None, false);
    let (mut gaps, mut repeats) = (0, 0);
    for ((epoch, _), life) in lives {
        let mut expect: Option<u64> = None;
        let mut kept_here = kept;
        for entry in &life.entries {
            steps = steps.or(entry.steps);
            done |= entry.kind == Kind::Done;
            match (entry.kind, entry.step) {
                (Kind::Step, Some(step)) => {
                    let (low, high) = expect.map_or((kept, next.max(kept)), |e| (e, e));
                    if step < low {
                        repeats += 1;
                        verdict
                            .note(format!("{job}/{rank}: epoch {epoch} repeats step {step}, {low} was due"));
                    } else if step > high {
                        gaps += step - high;
                        verdict.note(format!("{job}/{rank}: epoch {epoch} skips from {high} to {step}"));
                    }
                    expect = Some(expect.unwrap_or(0).max(step + 1));
                    next = next.max(step + 1);
                }
                (Kind::Checkpoint, Some(step)) => kept_here = kept_here.max(step),
                _ => {}
            }
        }
        kept = kept_here;
    }
    if let (Some(steps), true) = (steps, done)
        && next < steps
    {
        gaps += steps - next;
        verdict.note(format!("{job}/{rank}: done after {next} of {steps} steps"));
    }
    verdict.gaps += gaps;
    verdict.repeats += repeats;
    done && gaps == 0
}
