//! The end of a demo or replay: what the jobs themselves wrote, beside what the records say.

use std::path::PathBuf;

use serde::Serialize;

use super::super::documents::JobDocument;
use super::super::ledger::{Expected, Verdict, judge};
use crate::model::JobState;

/// The summary's common keys. Only `records_succeeded` comes from Starling's own records.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Jobs answered.
    pub submitted: u64,
    /// Every index of them was done exactly once, by the ledgers.
    pub succeeded: u64,
    /// Ran at more than one cluster.
    pub moved: u64,
    /// Never came to their end.
    pub lost: u64,
    /// Two processes at once, or done twice.
    pub run_twice: u64,
    /// Steps skipped.
    pub gaps: u64,
    /// Steps repeated although a checkpoint held them.
    pub repeats: u64,
    /// Succeeded by the records.
    pub records_succeeded: u64,
    /// Clusters.
    pub clusters: usize,
    /// Seconds from the first submit to the last end.
    pub seconds: f64,
    /// Findings in words.
    pub findings: Vec<String>,
}

impl Summary {
    /// Judges the ledgers of these jobs.
    pub fn new(
        ledgers: &[PathBuf],
        expected: &[Expected],
        jobs: &[JobDocument],
        clusters: usize,
    ) -> std::io::Result<Self> {
        let verdict: Verdict = judge(ledgers, expected)?;
        let begun = jobs.iter().map(|j| j.submitted_at_ms).min().unwrap_or(0);
        let ended = jobs.iter().filter_map(|j| j.finished_at_ms).max().unwrap_or(begun);
        Ok(Self {
            submitted: verdict.expected,
            succeeded: verdict.succeeded,
            moved: verdict.moved,
            lost: verdict.lost,
            run_twice: verdict.run_twice,
            gaps: verdict.gaps,
            repeats: verdict.repeats,
            records_succeeded: jobs.iter().filter(|j| j.state == JobState::Succeeded).count() as u64,
            clusters,
            seconds: ended.saturating_sub(begun) as f64 / 1000.0,
            findings: verdict.notes.clone(),
        })
    }

    /// Every job succeeded exactly once per index, and the records say the same.
    pub fn holds(&self) -> bool {
        self.succeeded == self.submitted
            && self.records_succeeded == self.submitted
            && (self.lost, self.run_twice, self.gaps, self.repeats) == (0, 0, 0, 0)
    }

    /// For people.
    pub fn text(&self) -> String {
        let rows = [
            ("submitted", self.submitted),
            ("succeeded", self.succeeded),
            ("moved", self.moved),
            ("lost", self.lost),
            ("run twice", self.run_twice),
            ("gaps", self.gaps),
            ("repeats", self.repeats),
        ];
        let mut text = String::new();
        for (name, n) in rows {
            text.push_str(&format!("  {name:<12}{n:>6}\n"));
        }
        for finding in &self.findings {
            text.push_str(&format!("  ! {finding}\n"));
        }
        text
    }
}
