//! Arrays and dependencies: one record that stands for many jobs, and jobs that wait for others.
//!
//! An array's record is never placed. Its owner opens it index by index into ordinary job records, at most `at_once`
//! unfinished at a time. What a child is follows from the parent alone: its id, its spec, its trace. So two owners that open the same index make the same record.

use std::collections::BTreeMap;

use ring::digest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::record::{Birth, JobRecord, JobState, Refused};
use super::spec::JobSpec;
use crate::base::{JobId, TraceId, WallTime};

/// Indices of one array: a bit of each is kept in its record, which is written again with every change.
pub const INDICES_MAX: usize = 10_000;
/// The highest index.
pub const INDEX_MAX: u32 = 4_194_303;
/// Jobs of one array that may be unfinished at a time, and how many are where nothing was said.
pub const AT_ONCE_MAX: u32 = 1_000;
/// Ranges in one list.
pub const RANGES_MAX: usize = 64;
/// Jobs that one job may wait for.
pub const AFTER_MAX: usize = 32;

/// Indices `from`, `from + step`, … up to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Range {
    /// The first.
    pub from: u32,
    /// The last at most.
    pub to: u32,
    /// At least 1.
    pub step: u32,
}

impl Range {
    fn len(&self) -> u32 {
        (self.to - self.from) / self.step + 1
    }
}

/// Which indices an array has, and how many of its jobs may be unfinished at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArraySpec {
    /// Without overlap.
    pub ranges: Vec<Range>,
    /// 1 to `AT_ONCE_MAX`.
    pub at_once: u32,
}

impl ArraySpec {
    /// Reads `100` (0 to 99), `0-499%50`, `1,3,10-20:2`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (list, most) = match text.trim().split_once('%') {
            Some((list, most)) => (list, Some(most)),
            None => (text.trim(), None),
        };
        let number = |t: &str| -> Result<u32, String> {
            let n: u64 = t
                .trim()
                .parse()
                .map_err(|_| format!("{:?} is not an index", t.chars().take(20).collect::<String>()))?;
            u32::try_from(n).ok().filter(|n| *n <= INDEX_MAX).ok_or(format!("index {n} is above {INDEX_MAX}"))
        };
        let at_once = match most {
            None => AT_ONCE_MAX,
            Some(most) => match number(most)? {
                n @ 1..=AT_ONCE_MAX => n,
                n => {
                    return Err(format!(
                        "%{n}: 1 to {AT_ONCE_MAX} jobs of an array may be unfinished at a time"
                    ));
                }
            },
        };
        if list.split(',').count() > RANGES_MAX {
            return Err(format!("more than {RANGES_MAX} ranges"));
        }
        let mut ranges = Vec::new();
        if let (false, Ok(count)) = (list.contains([',', '-', ':']), list.parse::<u64>()) {
            match count {
                0 => return Err("0 jobs".into()),
                n => ranges.push(Range { from: 0, to: u32::try_from(n - 1).unwrap_or(u32::MAX), step: 1 }),
            }
        } else {
            for part in list.split(',') {
                let (range, step) = part.split_once(':').unwrap_or((part, "1"));
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                let range = Range { from: number(from)?, to: number(to)?, step: number(step)? };
                if range.step == 0 || range.to < range.from {
                    return Err(format!("{:?} is not a range", part.chars().take(40).collect::<String>()));
                }
                ranges.push(range);
            }
        }
        let count = ranges.iter().fold(0u64, |sum, r| sum + u64::from(r.len()));
        if count > INDICES_MAX as u64 {
            return Err(format!(
                "{count} jobs: an array has {INDICES_MAX} at most, since its record keeps which of them have ended and \
                 is written again as they do; submit several arrays"
            ));
        }
        let array = ArraySpec { ranges, at_once };
        let mut all: Vec<u32> = (0..array.len()).filter_map(|rank| array.index(rank)).collect();
        all.sort_unstable();
        match all.windows(2).find(|w| w[0] == w[1]) {
            Some(twice) => Err(format!("index {} is there twice", twice[0])),
            None => Ok(array),
        }
    }

    /// How many indices it has.
    pub fn len(&self) -> u32 {
        self.ranges.iter().fold(0, |sum, r| sum.saturating_add(r.len()))
    }
    /// It has none; none that was read is so.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
    /// The index of the job of a rank, 0 to `len` - 1.
    pub fn index(&self, rank: u32) -> Option<u32> {
        let mut left = rank;
        for range in &self.ranges {
            if left < range.len() {
                return Some(range.from + left * range.step);
            }
            left -= range.len();
        }
        None
    }
    /// The rank of an index.
    pub fn rank(&self, index: u32) -> Option<u32> {
        let mut before = 0;
        for range in &self.ranges {
            if (range.from..=range.to).contains(&index) && (index - range.from).is_multiple_of(range.step) {
                return Some(before + (index - range.from) / range.step);
            }
            before += range.len();
        }
        None
    }
}

impl std::fmt::Display for ArraySpec {
    /// As `parse` reads it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, r) in self.ranges.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            match r {
                Range { step: 1, .. } => write!(f, "{}-{}", r.from, r.to)?,
                _ => write!(f, "{}-{}:{}", r.from, r.to, r.step)?,
            }
        }
        write!(f, "%{}", self.at_once)
    }
}

/// How a job must have ended for another to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum On {
    /// As succeeded.
    Ok,
    /// As failed or cancelled.
    Fail,
    /// In any way.
    Any,
}

impl On {
    /// As in a job file.
    pub fn as_str(self) -> &'static str {
        match self {
            On::Ok => "ok",
            On::Fail => "fail",
            On::Any => "any",
        }
    }
    /// Whether this end will do.
    pub fn met_by(self, state: JobState) -> bool {
        match self {
            On::Any => true,
            On::Ok => state == JobState::Succeeded,
            On::Fail => state != JobState::Succeeded,
        }
    }
}

/// A job that another waits for. Its birth is known, so it exists: there are no cycles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct After {
    /// Certifies the id and says who holds it.
    pub birth: Birth,
    /// How it must end.
    pub on: On,
}

/// How one job of an array ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum End {
    /// As succeeded.
    Ok,
    /// As failed, or its record is gone.
    Failed,
    /// As cancelled.
    Cancelled,
}

impl From<JobState> for End {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Succeeded => End::Ok,
            JobState::Cancelled => End::Cancelled,
            _ => End::Failed,
        }
    }
}

/// How far an array has come.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ArrayState {
    /// Jobs of a rank below this have records, or get them now.
    pub opened: u32,
    /// Ended as succeeded,
    pub ok: u32,
    /// failed,
    pub failed: u32,
    /// and cancelled.
    pub cancelled: u32,
    /// A bit for each rank that has ended.
    pub ended: Vec<u32>,
}

impl ArrayState {
    /// Jobs that have ended.
    pub fn done(&self) -> u32 {
        self.ok + self.failed + self.cancelled
    }
    /// The job of this rank has ended.
    pub fn has_ended(&self, rank: u32) -> bool {
        self.ended.get(rank as usize / 32).is_some_and(|word| word & (1 << (rank % 32)) != 0)
    }
    /// Ranks that were opened and have not ended.
    pub fn living(&self) -> impl Iterator<Item = u32> {
        (0..self.opened).filter(|rank| !self.has_ended(*rank))
    }
    fn end(&mut self, rank: u32, end: End) {
        let word = rank as usize / 32;
        if self.ended.len() <= word {
            self.ended.resize(word + 1, 0);
        }
        self.ended[word] |= 1 << (rank % 32);
        match end {
            End::Ok => self.ok += 1,
            End::Failed => self.failed += 1,
            End::Cancelled => self.cancelled += 1,
        }
    }
}

/// Of which array a job is part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArrayOf {
    /// The array's id.
    pub parent: JobId,
    /// Which index.
    pub index: u32,
}

/// A change to an array's record, or to a job that waits for others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArrayChange {
    /// Jobs of ranks below this may be made.
    Open {
        /// This.
        to: u32,
    },
    /// These jobs have ended, as their own records say.
    Ended {
        /// Ranks and how.
        ranks: Vec<(u32, End)>,
        /// When that was seen.
        at: WallTime,
    },
    /// A job that this one waits for has ended as it should.
    Met {
        /// Which of `after`.
        which: u32,
    },
    /// One has ended otherwise: this one never starts.
    Unmet {
        /// In words.
        why: String,
        /// When that was seen.
        at: WallTime,
    },
}

impl JobRecord {
    /// The birth of an array's job, or of a job's group; none where there is no such rank.
    ///
    /// Its sequence number is the parent's own with the rank in it, under a top bit that no minter gives out. The
    /// upper half differs from array to array, so that what was forgotten of others (a floor on each upper half)
    /// refuses no job of this one that is made late.
    pub fn child_birth(&self, rank: u32) -> Option<Birth> {
        if rank >= self.children() {
            return None;
        }
        let (life, count) = (self.birth.sequence >> 32, self.birth.sequence & u64::from(u32::MAX));
        if life >= 1 << 20 || count >= 1 << 29 || rank >= 1 << 14 {
            return None;
        }
        let upper = 1 << 31 | count << 2 | life >> 18;
        let lower = (life & 0x3_ffff) << 14 | u64::from(rank);
        let homes = if self.groups.is_some() { self.group_homes() } else { self.birth.homes.clone() };
        Some(Birth { sequence: upper << 32 | lower, homes, ..self.birth.clone() })
    }

    /// The first value of an array's job: the same, whoever makes it.
    pub fn child(&self, rank: u32) -> Option<JobRecord> {
        let array = self.spec.array.as_ref()?;
        let (birth, index) = (self.child_birth(rank)?, array.index(rank)?);
        let suffix = format!("-{index}");
        let most = super::spec::limits::NAME_BYTES_MAX - suffix.len();
        let name: String = self.spec.name.chars().take(most).collect();
        let mut env: BTreeMap<String, String> = self.spec.env.clone();
        let ends = array.ranges.iter().map(|r| (r.from, r.from + (r.len() - 1) * r.step));
        let (least, most) = ends.fold((u32::MAX, 0), |(a, b), (from, to)| (a.min(from), b.max(to)));
        for (name, value) in [
            ("STARLING_ARRAY_INDEX", index.to_string()),
            ("STARLING_ARRAY_COUNT", array.len().to_string()),
            ("STARLING_ARRAY_MIN", least.to_string()),
            ("STARLING_ARRAY_MAX", most.to_string()),
            ("STARLING_ARRAY_JOB_ID", self.id().to_string()),
        ] {
            env.insert(name.into(), value);
        }
        let spec = JobSpec { name: name + &suffix, env, array: None, after: Vec::new(), ..self.spec.clone() };
        let mut child = JobRecord::new(birth, spec, self.child_trace(rank), self.submitted_at);
        child.array_of = Some(ArrayOf { parent: self.id(), index });
        Some(child)
    }

    pub(super) fn child_trace(&self, rank: u32) -> TraceId {
        let mut ctx = digest::Context::new(&digest::SHA256);
        ctx.update(&self.trace.0);
        ctx.update(&rank.to_be_bytes());
        TraceId(ctx.finish().as_ref()[..16].try_into().expect("16 of 32"))
    }

    /// Jobs that this one still waits for, by their place in `after`.
    pub fn waits_for(&self) -> impl Iterator<Item = (u32, &After)> {
        let met = self.after_met;
        (0u32..).zip(&self.spec.after).filter(move |(i, _)| met & (1 << i) == 0)
    }

    pub(super) fn array_apply(&mut self, change: &ArrayChange) -> Result<(), Refused> {
        let size = self.spec.array.as_ref().map_or(0, ArraySpec::len);
        let at_once = self.spec.array.as_ref().map_or(0, |a| a.at_once);
        match change {
            ArrayChange::Open { to } => {
                if self.cancel.is_some() {
                    return Err(Refused::Cancelled);
                }
                if self.waits_for().next().is_some() {
                    return Err(Refused::Held("it waits for other jobs".into()));
                }
                let state = self.array.as_mut().ok_or(Refused::NoArray)?;
                if *to > size || to.saturating_sub(state.done()) > at_once {
                    return Err(Refused::NoArray);
                }
                state.opened = state.opened.max(*to);
                self.state = JobState::Running;
            }
            ArrayChange::Ended { ranks, at } => {
                let state = self.array.as_mut().ok_or(Refused::NoArray)?;
                for (rank, end) in ranks {
                    if *rank < state.opened && !state.has_ended(*rank) {
                        state.end(*rank, *end);
                    }
                }
                self.array_over(*at);
            }
            ArrayChange::Met { which } => {
                if *which as usize >= self.spec.after.len() {
                    return Err(Refused::NoArray);
                }
                self.after_met |= 1 << which;
                let left = self.waits_for().count();
                self.reason = match left {
                    0 => "waits for a cluster".into(),
                    n => format!("waits for {n} jobs to end"),
                };
            }
            ArrayChange::Unmet { why, at } => {
                if self.epoch.0 > 0 || self.array.as_ref().is_some_and(|a| a.opened > 0) {
                    return Err(Refused::Stale(self.epoch));
                }
                self.finish(JobState::Cancelled, why.clone(), *at);
            }
        }
        if let (Some(state), false) = (&self.array, self.state.is_final()) {
            let (done, opened) = (state.done(), state.opened);
            self.reason = format!("{done} of {size} jobs have ended, {} are under way", opened - done);
            if let Some(cancel) = &self.cancel {
                self.reason = format!("cancel asked by {}; {}", cancel.by, self.reason);
            }
        }
        Ok(())
    }

    /// Ends an array whose jobs have all ended, or that is cancelled and has none under way.
    pub(super) fn array_over(&mut self, at: WallTime) {
        let Some(state) = &self.array else { return };
        let size = self.spec.array.as_ref().map_or(0, ArraySpec::len);
        let (ok, failed, cancelled) = (state.ok, state.failed, state.cancelled);
        if state.done() < size && !(self.cancel.is_some() && state.done() == state.opened) {
            return;
        }
        let mut reason = format!("{ok} of {size} jobs succeeded");
        for (n, word) in [(failed, "failed"), (cancelled, "were cancelled")] {
            if n > 0 {
                reason.push_str(&format!(", {n} {word}"));
            }
        }
        let ends = match &self.cancel {
            Some(cancel) => {
                reason = format!("cancelled by {}: {reason}", cancel.by);
                if ok == size { JobState::Succeeded } else { JobState::Cancelled }
            }
            None if ok == size => JobState::Succeeded,
            None => JobState::Failed,
        };
        self.finish(ends, reason, at);
    }

    pub(super) fn array_reflects(&self, change: &ArrayChange) -> bool {
        match change {
            ArrayChange::Open { to } => self.array.as_ref().is_some_and(|a| a.opened >= *to),
            ArrayChange::Ended { ranks, .. } => {
                self.array.as_ref().is_some_and(|a| ranks.iter().all(|(rank, _)| a.has_ended(*rank)))
            }
            ArrayChange::Met { which } => self.after_met & (1u64.checked_shl(*which).unwrap_or(0)) != 0,
            ArrayChange::Unmet { .. } => false,
        }
    }
}

#[cfg(test)]
#[path = "array_tests.rs"]
mod tests;
