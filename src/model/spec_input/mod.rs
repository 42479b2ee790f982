//! Job files: YAML or JSON in, a valid `JobSpec` out, or every mistake at once.
//!
//! The keys are those of the reference page docs/reference/spec.md (a test compares both). The keys of
//! the plain job request (`job_id`, `gpu: {count, model}`, `dataset`…) are taken beside them.

mod array;
mod groups;
mod job;
mod keys;
mod later;
mod parts;
mod render;
mod schema;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use keys::{
    AFTER, CHECKPOINT, DATA, Familiar, GROUPS, JOB, LOST_CONTACT, PLACEMENT, RESOURCES, SECTIONS, SEED_GPU,
    TRAFFIC,
};
pub use render::render_spec;
pub use schema::schema;

use super::array::On;
use super::input::{Field, Mistake, Mistakes, Node, SyntaxError, from_json, from_yaml};
use super::spec::{JobSpec, OnLostContact, limits};
use crate::base::Span;

/// A job file that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedSpec {
    /// The job.
    pub spec: JobSpec,
    /// Its idempotency key, where the document carries one (`job_id`).
    pub key: Option<String>,
    /// Jobs that it waits for, by their ids or the start of them; whoever submits it finds out which they are.
    pub after: Vec<(String, On)>,
}

/// What a job gets that does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecDefaults {
    /// `on_lost_contact.grace`; the peer's `timing.grace`. None is `never`.
    pub grace: Option<Span>,
}

impl Default for SpecDefaults {
    fn default() -> Self {
        Self { grace: OnLostContact::default().grace }
    }
}

/// Why a document is not a job. Nothing was stored or changed; correct the document and send it again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpecErrors {
    /// It is longer than any job may be; it was not parsed.
    #[error("the job file has {bytes} bytes; at most {max} are read: keep large inputs in files and name them in data", max = limits::DOCUMENT_BYTES_MAX)]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// There is nothing in it.
    #[error("the job file is empty: it needs at least run (what to run)")]
    Empty,
    /// It is not text.
    #[error("the job file is not UTF-8 text (byte {at})")]
    NotText {
        /// Offset of the first byte that is not.
        at: usize,
    },
    /// It is a batch script, not a job file.
    #[error(
        "this is a {kind}, which is not supported by this peer yet: write a YAML job file and put the script under run"
    )]
    Foreign {
        /// What it looks like.
        kind: String,
    },
    /// It is not well-formed YAML or JSON.
    #[error("not well-formed{}: {message}", line.map_or(String::new(), |n| format!(" (line {n})")))]
    Syntax {
        /// Line, where it is known.
        line: Option<u32>,
        /// The parser's words.
        message: String,
    },
    /// It is well-formed, and these things are wrong in it.
    #[error("{}", Lines(.0))]
    Mistakes(Vec<Mistake>),
}

/// One mistake a line.
struct Lines<'a>(&'a [Mistake]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0.len() == 1 { "mistake" } else { "mistakes" };
        write!(f, "{} {plural} in the job file", self.0.len())?;
        self.0.iter().try_for_each(|mistake| write!(f, "\n  {mistake}"))
    }
}

impl SpecErrors {
    /// The mistakes, for an answer that lists them; empty where there was no reading it at all.
    pub fn mistakes(&self) -> &[Mistake] {
        if let Self::Mistakes(list) = self { list } else { &[] }
    }
}

/// Reads a job from YAML or JSON. Every mistake is named at once, with its key, line and what would be right.
pub fn parse_spec(bytes: &[u8]) -> Result<ParsedSpec, SpecErrors> {
    parse_spec_with(bytes, &SpecDefaults::default())
}

/// As `parse_spec`, with a peer's own defaults.
pub fn parse_spec_with(bytes: &[u8], defaults: &SpecDefaults) -> Result<ParsedSpec, SpecErrors> {
    let node = read_tree(bytes)?;
    let mut mistakes = Mistakes::default();
    let parsed = job::read(Field { path: String::new(), node }, defaults, &mut mistakes);
    match parsed {
        Some(parsed) if mistakes.is_empty() => Ok(parsed),
        _ => Err(SpecErrors::Mistakes(mistakes.into_vec())),
    }
}

fn read_tree(bytes: &[u8]) -> Result<Node, SpecErrors> {
    if bytes.len() > limits::DOCUMENT_BYTES_MAX {
        return Err(SpecErrors::TooLarge { bytes: bytes.len() });
    }
    let text = std::str::from_utf8(bytes).map_err(|e| SpecErrors::NotText { at: e.valid_up_to() })?;
    if let Some(at) = text.find('\0') {
        return Err(SpecErrors::NotText { at });
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(SpecErrors::Empty);
    }
    if text.starts_with("#!") || text.lines().any(|l| l.starts_with("#SBATCH")) {
        let kind = if text.contains("#SBATCH") { "Slurm batch script" } else { "script" };
        return Err(SpecErrors::Foreign { kind: kind.into() });
    }
    let syntax = |e: SyntaxError| SpecErrors::Syntax { line: e.line, message: e.message };
    if text.trim_start().starts_with('{') {
        // What is no JSON may still be YAML in braces.
        return from_json(text).or_else(|json| from_yaml(text).map_err(|_| syntax(json)));
    }
    from_yaml(text).map_err(syntax)
}
