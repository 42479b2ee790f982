//! How long jobs stood still: from the loss of their cluster, or from its clean end, to the next attempt's first
//! step. By the jobs' own ledger and the nemesis' diary; the records only say for how long a job that loses one cluster
//! after the other is held back on purpose, which is not counted.

use std::collections::BTreeMap;

use serde::Serialize;

use super::nemesis::{Act, Diary};
use super::{GRACE, MARGIN, RHO_MILLI, wait};
use crate::base::Span;
use crate::surface::ledger::{Entry, Kind};

/// An attempt whose last line is older than this before a loss was no longer running.
const LINES_EVERY: Span = Span::millis(400);
/// Beyond grace and drift.
const SLACK: Span = Span::secs(5);

/// Some times, and how they lie to what was promised.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Spread {
    /// How many were measured.
    pub count: u64,
    /// The middle one.
    pub median_s: f64,
    /// The longest.
    pub most_s: f64,
    /// What was promised.
    pub bound_s: f64,
    /// How many were longer.
    pub beyond: u64,
}

impl Spread {
    fn of(mut all: Vec<u64>, bound: Span) -> Self {
        all.sort_unstable();
        let seconds = |us: Option<&u64>| us.map_or(0.0, |us| *us as f64 / 1e6);
        Self {
            count: all.len() as u64,
            median_s: seconds(all.get(all.len() / 2)),
            most_s: seconds(all.last()),
            bound_s: bound.as_secs_f64(),
            beyond: all.iter().filter(|us| **us > bound.0).count() as u64,
        }
    }
}

/// What the run measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Bounds {
    /// From the loss of a cluster, where nothing else was wrong until the bound was over.
    pub lost: Spread,
    /// The same, whatever else was wrong.
    pub lost_and_more: Spread,
    /// From the SIGTERM of a peer that moves its jobs, where no link was cut.
    pub stopped: Spread,
    /// The same, whatever else was wrong.
    pub stopped_and_more: Spread,
}

struct Life<'a> {
    cluster: &'a str,
    from: u64,
    to: u64,
    step: Option<u64>,
    done: bool,
}

/// For how long a job is held back after the loss of this epoch.
pub type Held<'a> = &'a dyn Fn(&str, u64) -> Span;

/// Attempts by epoch, by job.
type Lives<'a> = BTreeMap<&'a str, BTreeMap<u64, Life<'a>>>;

fn lives(entries: &[Entry]) -> Lives<'_> {
    let mut jobs = Lives::new();
    for e in entries {
        let fresh = || Life { cluster: &e.cluster, from: e.from_us, to: e.to_us, step: None, done: false };
        let life = jobs.entry(&e.job).or_default().entry(e.epoch).or_insert_with(fresh);
        life.from = life.from.min(e.from_us);
        life.to = life.to.max(e.to_us);
        life.done |= matches!(e.kind, Kind::Done | Kind::Again);
        if e.kind == Kind::Step {
            life.step = Some(life.step.unwrap_or(u64::MAX).min(e.to_us));
        }
    }
    jobs
}

/// For each job that ran at a peer at a moment: how long until the first step of its next attempt.
fn after(lives: &Lives<'_>, peer: usize, at: u64, held: Held<'_>) -> Vec<u64> {
    let name = format!("c{}", peer + 1);
    let runs = |l: &Life<'_>| l.cluster == name && l.from <= at && l.to + LINES_EVERY.0 >= at && !l.done;
    let next = |(job, epochs): (&&str, &BTreeMap<u64, Life<'_>>)| {
        let (epoch, _) = epochs.iter().find(|(_, l)| runs(l))?;
        let later = epochs.range(epoch + 1..).find_map(|(_, l)| l.step)?;
        Some(later.checked_sub(at)?.saturating_sub(held(job, *epoch).0))
    };
    lives.iter().filter_map(next).collect()
}

/// The longest time from the loss of a cluster to the first step elsewhere, but for what it takes to notice the loss.
pub fn bound(grace: Span, margin: Span) -> Span {
    grace + grace.scale(2 * RHO_MILLI, 1_000) + margin + SLACK
}

/// Measures a run.
pub fn measure(entries: &[Entry], diary: &Diary, held: Held<'_>) -> Bounds {
    let lives = lives(entries);
    let bound = bound(GRACE, MARGIN);
    // A clock that is set stops nobody.
    let hurts =
        |a: &&Act| a.peers.len() > 1 || a.loses.is_some() || a.network || !a.text.contains("time of day");
    let disturbed = |from: u64, span: Span, but: Option<&Act>, network: bool| {
        let mut others = diary.acts.iter().filter(hurts).filter(|a| !network || a.network);
        others.any(|a| but.is_none_or(|b| !std::ptr::eq(a, b)) && a.from_us < from + span.0 && a.to_us > from)
    };
    let (mut alone, mut all) = (Vec::new(), Vec::new());
    let waited = wait(GRACE, MARGIN);
    for act in diary.acts.iter().filter(|a| a.to_us - a.from_us > waited.0) {
        let Some(peer) = act.loses else { continue };
        let times = after(&lives, peer, act.from_us, held);
        if !disturbed(act.from_us, bound, Some(act), false) {
            alone.extend(&times);
        }
        all.extend(times);
    }
    let (mut clean, mut stopped) = (Vec::new(), Vec::new());
    // Only every second peer moves its jobs when it is told to end.
    for (peer, at) in diary.stops.iter().filter(|(peer, _)| peer.is_multiple_of(2)) {
        let times = after(&lives, *peer, *at, &|_, _| Span::ZERO);
        if !disturbed(*at, SLACK, None, true) {
            clean.extend(&times);
        }
        stopped.extend(times);
    }
    Bounds {
        lost: Spread::of(alone, bound),
        lost_and_more: Spread::of(all, bound),
        stopped: Spread::of(clean, SLACK),
        stopped_and_more: Spread::of(stopped, SLACK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(job: &str, kind: Kind, epoch: u64, cluster: &str, from_s: u64, to_s: u64) -> Entry {
        let (job, cluster) = (job.to_owned(), cluster.to_owned());
        let (from_us, to_us) = (from_s * 1_000_000, to_s * 1_000_000);
        Entry { kind, job, rank: 0, epoch, pid: 7, cluster, step: None, steps: None, from_us, to_us }
    }

    fn act(from_s: u64, to_s: u64, loses: Option<usize>, network: bool) -> Act {
        let (from_us, to_us) = (from_s * 1_000_000, to_s * 1_000_000);
        Act { from_us, to_us, peers: loses.into_iter().collect(), network, text: "x".into(), loses }
    }

    #[test]
    fn times_count_from_the_loss_and_only_what_ran_then() {
        let entries = [
            entry("a", Kind::Step, 1, "c2", 90, 101),
            entry("a", Kind::Step, 2, "c3", 110, 111),
            // Elsewhere, done before, and never run again.
            entry("b", Kind::Step, 1, "c1", 90, 101),
            entry("c", Kind::Done, 1, "c2", 90, 101),
            entry("d", Kind::Step, 1, "c2", 90, 101),
            // Too late.
            entry("e", Kind::Step, 1, "c2", 90, 101),
            entry("e", Kind::Step, 2, "c2", 119, 120),
        ];
        let mut diary = Diary { acts: vec![act(100, 130, Some(1), false)], ..Diary::default() };
        let none = |_: &str, _: u64| Span::ZERO;
        let seen = measure(&entries, &diary, &none);
        assert_eq!((seen.lost.count, seen.lost.beyond), (2, 1));
        assert_eq!((seen.lost.median_s, seen.lost.most_s), (20.0, 20.0));
        // What was held back on purpose is not late.
        let held = |job: &str, epoch: u64| if (job, epoch) == ("e", 1) { Span::secs(8) } else { Span::ZERO };
        let seen = measure(&entries, &diary, &held);
        assert_eq!((seen.lost.count, seen.lost.beyond, seen.lost.most_s), (2, 0, 12.0));
        // A cut at the same time: it counts, but not as alone.
        diary.acts.push(act(105, 106, None, true));
        let seen = measure(&entries, &diary, &none);
        assert_eq!((seen.lost.count, seen.lost_and_more.count), (0, 2));
        // Short of the wait nothing is lost.
        diary.acts = vec![act(100, 104, Some(1), false)];
        assert_eq!(measure(&entries, &diary, &none).lost_and_more.count, 0);
        // A stop: of a peer that moves its jobs.
        diary = Diary { stops: vec![(0, 100_000_000), (1, 100_000_000)], ..Diary::default() };
        let moved = [entry("b", Kind::Step, 1, "c1", 90, 101), entry("b", Kind::Step, 2, "c4", 103, 104)];
        let seen = measure(&moved, &diary, &none);
        assert_eq!((seen.stopped.count, seen.stopped.most_s, seen.stopped.beyond), (1, 4.0, 0));
    }
}
