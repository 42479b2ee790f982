//! What came of it, as one line of JSON and for people.

use std::collections::BTreeMap;

use serde::Serialize;

use super::bounds::{Bounds, Spread};
use super::history::Checked;
use super::load::Sent;
use super::nemesis::Diary;
use crate::model::JobState;
use crate::surface::cli::ChaosArgs;
use crate::surface::documents::JobDocument;
use crate::surface::ledger::{Entry, Kind, Verdict};

/// Findings shown.
const FINDINGS_MAX: usize = 50;

/// The summary. Only `not_final` and `records_succeeded` come from Starling's own records.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ChaosSummary {
    /// Of the faults and the jobs.
    pub seed: u64,
    /// Of faults.
    pub minutes: f64,
    /// How many.
    pub peers: u32,
    /// Single things done to peers: cuts, signals, disks filled.
    pub faults: u64,
    /// Jobs that a peer answered.
    pub submitted: u64,
    /// Done exactly once, by the ledger.
    pub succeeded: u64,
    /// Ran at more than one cluster.
    pub moved: u64,
    /// Never came to their end.
    pub lost: u64,
    /// Two attempts at once, an epoch twice, or done twice.
    pub run_twice: u64,
    /// Pairs of attempts of a job that overlapped.
    pub overlaps: u64,
    /// Attempts that wrote after a newer one had begun.
    pub stale_writes: u64,
    /// Steps skipped.
    pub gaps: u64,
    /// Steps repeated although a checkpoint held them.
    pub repeats: u64,
    /// Jobs that ran and that no answer had promised.
    pub unexpected: u64,
    /// Lines of the ledger that are none.
    pub malformed: u64,
    /// Answered jobs whose record is not final, or not there.
    pub not_final: u64,
    /// Answered jobs whose record says that they succeeded.
    pub records_succeeded: u64,
    /// Answered jobs that ended because a user asked for it.
    pub cancelled: u64,
    /// Operations of users in their jobs' histories; of these, without an answer.
    pub operations: u64,
    /// Without an answer: they may have happened at any time, or never.
    pub operations_open: u64,
    /// Histories that no order of their operations explains.
    pub not_linearizable: u64,
    /// Histories that were too long to decide.
    pub undecided: u64,
    /// Peers that ended by themselves, other than for a full disk.
    pub crashes: u64,
    /// All that must be 0, added up.
    pub violations: u64,
    /// Attempts in the ledger.
    pub attempts: u64,
    /// Attempts that found their job's work complete and did nothing.
    pub again: u64,
    /// Guards killed.
    pub guards_killed: u64,
    /// Peers that ended because their disk was full.
    pub disk_exits: u64,
    /// Answers that were unknown, and asked again.
    pub unknown: u64,
    /// Requests refused or not taken, and brought to another peer.
    pub refused: u64,
    /// Jobs that no peer ever answered.
    pub unanswered: u64,
    /// Longest time between the last line of an attempt and the first step of the next.
    pub longest_pause_s: f64,
    /// From losses and clean ends to the next steps.
    pub bounds: Bounds,
    /// From the first fault's clock to the judgement.
    pub seconds: f64,
    /// Faults that were not tried.
    pub left_out: Vec<String>,
    /// Findings in words.
    pub findings: Vec<String>,
}

impl ChaosSummary {
    /// Puts together what the ledger, the callers, the records and the nemesis say.
    pub fn new(
        args: &ChaosArgs,
        verdict: &Verdict,
        sent: &[Sent],
        jobs: &[JobDocument],
        diary: &Diary,
    ) -> Self {
        let records: BTreeMap<String, &JobDocument> = jobs.iter().map(|j| (j.id.to_string(), j)).collect();
        let mut findings = verdict.notes.clone();
        findings.extend(diary.crashes.iter().cloned());
        let (mut not_final, mut good, mut cancelled) = (0, 0, 0);
        for (job, id) in sent.iter().filter_map(|s| Some((s, s.id.as_ref()?))) {
            let record = records.get(id);
            good += u64::from(record.is_some_and(|r| r.state == JobState::Succeeded));
            if record.is_none_or(|r| !r.done) {
                not_final += 1;
                let why = record.map_or("no peer lists it", |r| r.reason.as_str());
                findings.push(format!("{} ({id}) has not ended: {why}", job.name));
            } else if job.cancelled && record.is_some_and(|r| r.state == JobState::Cancelled) {
                cancelled += 1;
            } else if let Some(record) = record.filter(|r| r.state != JobState::Succeeded) {
                findings.push(format!("{} ({id}) is {}: {}", job.name, record.state.as_str(), record.reason));
            }
        }
        let unanswered: Vec<&Sent> = sent.iter().filter(|s| s.id.is_none()).collect();
        let refused_for_good = unanswered.iter().filter_map(|s| Some((s, s.given_up.as_ref()?)));
        findings.extend(refused_for_good.map(|(s, why)| format!("{} was not taken: {why}", s.name)));
        let submitted = verdict.expected;
        // Whose answer never came may have run.
        let unexpected = verdict.unexpected.saturating_sub(unanswered.len() as u64);
        let wrong = [
            verdict.lost,
            verdict.run_twice,
            verdict.gaps,
            verdict.repeats,
            verdict.malformed,
            unexpected,
            not_final,
            unanswered.len() as u64,
            submitted.saturating_sub(good).saturating_sub(not_final),
            diary.crashes.len() as u64,
        ];
        findings.truncate(FINDINGS_MAX);
        Self {
            seed: args.seed,
            minutes: args.minutes,
            peers: args.peers,
            faults: diary.faults,
            submitted,
            succeeded: verdict.succeeded,
            moved: verdict.moved,
            lost: verdict.lost,
            run_twice: verdict.run_twice,
            overlaps: verdict.overlaps,
            stale_writes: verdict.stale_writes,
            gaps: verdict.gaps,
            repeats: verdict.repeats,
            unexpected,
            malformed: verdict.malformed,
            not_final,
            records_succeeded: good,
            cancelled,
            crashes: diary.crashes.len() as u64,
            violations: wrong.iter().sum(),
            again: verdict.again,
            guards_killed: diary.guards_killed,
            disk_exits: diary.disk_exits,
            unanswered: unanswered.len() as u64,
            left_out: super::LEFT_OUT.map(str::to_owned).to_vec(),
            findings,
            ..Self::default()
        }
    }

    /// What the check of the users' histories found.
    pub fn histories(&mut self, checked: &Checked) {
        self.operations = checked.operations;
        self.operations_open = checked.open;
        self.undecided = checked.undecided;
        self.not_linearizable = checked.broken.len() as u64;
        self.violations += self.not_linearizable;
        self.findings.extend(checked.broken.iter().cloned());
        self.findings.truncate(FINDINGS_MAX);
    }

    /// Counts attempts, and how long jobs stood still between two of them.
    pub fn measure(&mut self, entries: &[Entry]) {
        let mut ends: BTreeMap<(&str, u64), (u64, Option<u64>)> = BTreeMap::new();
        for entry in entries {
            let (end, first) = ends.entry((&entry.job, entry.epoch)).or_default();
            *end = (*end).max(entry.to_us);
            if entry.kind == Kind::Step {
                *first = Some(first.unwrap_or(u64::MAX).min(entry.to_us));
            }
        }
        self.attempts = ends.len() as u64;
        let all: Vec<_> = ends.iter().collect();
        let pauses = all.windows(2).filter(|w| w[0].0.0 == w[1].0.0);
        let longest = pauses.filter_map(|w| Some(w[1].1.1?.saturating_sub(w[0].1.0))).max();
        self.longest_pause_s = longest.unwrap_or(0) as f64 / 1e6;
    }

    /// For people.
    pub fn text(&self) -> String {
        let rows = [
            ("faults", self.faults),
            ("submitted", self.submitted),
            ("succeeded", self.succeeded),
            ("moved", self.moved),
            ("cancelled", self.cancelled),
            ("attempts", self.attempts),
            ("lost", self.lost),
            ("run twice", self.run_twice),
            ("overlaps", self.overlaps),
            ("stale writes", self.stale_writes),
            ("not final", self.not_final),
            ("crashes", self.crashes),
            ("operations", self.operations),
            ("unexplained", self.not_linearizable),
            ("violations", self.violations),
        ];
        let mut text = String::new();
        for (name, n) in rows {
            text.push_str(&format!("  {name:<14}{n:>6}\n"));
        }
        text.push_str(&format!("  {:<14}{:>6.1} s\n", "longest pause", self.longest_pause_s));
        let mut row = |name: &str, s: &Spread| {
            let (n, beyond) = (s.count, s.beyond);
            text.push_str(&format!(
                "  {name:<14}{:>6.1} s at most, {:.1} s in the middle of {n} (bound {:.1} s, beyond it {beyond})\n",
                s.most_s, s.median_s, s.bound_s
            ));
        };
        row("after a loss", &self.bounds.lost);
        row("with more", &self.bounds.lost_and_more);
        row("after SIGTERM", &self.bounds.stopped);
        for finding in &self.findings {
            text.push_str(&format!("  ! {finding}\n"));
        }
        for what in &self.left_out {
            text.push_str(&format!("  left out: {what}\n"));
        }
        text
    }
}
