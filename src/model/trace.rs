//! A job's trace: the spans that peers note of it, under ids that every peer makes alike.
//!
//! One trace id stands in the job's record, so it is the same for every attempt at every cluster. The id of a span is a
//! hash of the trace, the job and what the span is, so that a peer can hang a span under one that another peer notes,
//! and a span that two peers know of is one. Times are clocks for people: those of two machines may differ.

use std::str::FromStr;

use ring::digest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::record::{AttemptSummary, JobRecord};
use crate::base::{Bytes, Epoch, JobId, PeerName, SpanId, TraceId, WallTime, secrets};

/// The job's whole life, from its submission to its end.
pub const JOB: &str = "job";
/// A peer takes the submission.
pub const SUBMIT: &str = "submit";
/// A majority of homes puts one change of the record on its disks.
pub const COMMIT: &str = "commit";
/// The job waits for a cluster.
pub const QUEUE: &str = "queue";
/// One cluster is asked.
pub const CLAIM: &str = "claim";
/// A cluster holds capacity until its grant is taken.
pub const GRANT: &str = "grant";
/// One attempt, from its placement to its end.
pub const ATTEMPT: &str = "attempt";
/// The cluster gets everything ready: it reads the record, takes the capacity, brings what is missing.
pub const STAGE: &str = "stage";
/// One dataset or image is brought to the cluster.
pub const BRING: &str = "bring";
/// The program is started.
pub const START: &str = "start";
/// The program runs.
pub const RUN: &str = "run";
/// A checkpoint is published.
pub const CHECKPOINT: &str = "checkpoint";
/// From the end of one attempt to the program's start at the next cluster.
pub const MOVE: &str = "move";

/// Longest note that is kept, characters.
pub const NOTE_MAX: usize = 200;

/// One span, as a peer notes it once it is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpanNote {
    /// One of the words above; later versions may have more.
    pub name: String,
    /// The attempt that it is about; 0 for none.
    #[serde(default)]
    pub epoch: Epoch,
    /// The cluster that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<PeerName>,
    /// The span above it, of the same attempt, where it is not the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<String>,
    /// The span above it, where that is another's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SpanId>,
    /// When it began,
    pub from: WallTime,
    /// and ended.
    pub to: WallTime,
    /// It ended badly.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// A few words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Bytes that were moved in it, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
}

impl SpanNote {
    /// A span that ended well. An end before its begin (two clocks) is put at the begin.
    pub fn new(name: &str, epoch: Epoch, from: WallTime, to: WallTime) -> Self {
        let to = to.max(from);
        Self {
            name: name.into(),
            epoch,
            cluster: None,
            under: None,
            parent: None,
            from,
            to,
            failed: false,
            note: String::new(),
            bytes: None,
        }
    }

    /// An attempt as its record tells it.
    pub fn of_attempt(a: &AttemptSummary) -> Self {
        let (note, failed) = match &a.outcome {
            None => (String::new(), false),
            Some(outcome) => (outcome.to_string(), !outcome.is_as_meant()),
        };
        let to = a.ended_at.unwrap_or(a.placed_at);
        Self::new(ATTEMPT, a.epoch, a.placed_at, to).at(&a.cluster).failed(failed).note(note)
    }

    /// About this cluster.
    pub fn at(self, cluster: &PeerName) -> Self {
        Self { cluster: Some(cluster.clone()), ..self }
    }

    /// Below another span of the same attempt.
    pub fn under(self, name: &str) -> Self {
        Self { under: Some(name.into()), ..self }
    }

    /// With a few words. Spans go to collectors: what opens a door is taken out of them.
    pub fn note(self, note: impl AsRef<str>) -> Self {
        Self { note: secrets::scrub(note.as_ref(), &[]).chars().take(NOTE_MAX).collect(), ..self }
    }

    /// With what was moved.
    pub fn bytes(self, bytes: Option<Bytes>) -> Self {
        Self { bytes, ..self }
    }

    /// It ended badly.
    pub fn failed(self, failed: bool) -> Self {
        Self { failed, ..self }
    }

    /// Its id.
    pub fn id(&self, trace: &TraceId, job: &JobId) -> SpanId {
        let more = match self.name.as_str() {
            CLAIM | GRANT => self.cluster.as_ref().map(ToString::to_string).unwrap_or_default(),
            // There are several of an attempt.
            COMMIT | CHECKPOINT | BRING => format!("{} {}", self.from.0, self.note),
            _ => String::new(),
        };
        span_id(trace, job, &self.name, self.epoch, &more)
    }

    /// The id of the span above it; for the job's own the caller's, if there was one.
    pub fn parent(&self, trace: &TraceId, job: &JobId) -> Option<SpanId> {
        let usual = match self.name.as_str() {
            JOB => return self.parent,
            CLAIM | GRANT => QUEUE,
            STAGE | START | RUN => ATTEMPT,
            BRING => START,
            CHECKPOINT => RUN,
            _ => JOB,
        };
        let name = self.under.as_deref().unwrap_or(usual);
        let epoch = if matches!(name, JOB | SUBMIT) { Epoch(0) } else { self.epoch };
        Some(span_id(trace, job, name, epoch, ""))
    }
}

/// The id of a span of a job: the same at every peer. `more` tells spans of one name and attempt apart.
pub fn span_id(trace: &TraceId, job: &JobId, name: &str, epoch: Epoch, more: &str) -> SpanId {
    let mut ctx = digest::Context::new(&digest::SHA256);
    for part in [&trace.0[..], &job.0, name.as_bytes(), &epoch.0.to_be_bytes(), more.as_bytes()] {
        ctx.update(&(part.len() as u64).to_be_bytes());
        ctx.update(part);
    }
    let mut id = [0; 8];
    id.copy_from_slice(&ctx.finish().as_ref()[..8]);
    // All zeroes means none.
    id[7] |= u8::from(id == [0; 8]);
    SpanId(id)
}

/// The W3C `traceparent` of a job's program: whatever spans it makes hang under the run of its attempt.
pub fn traceparent(trace: &TraceId, job: &JobId, epoch: Epoch) -> String {
    format!("00-{trace}-{}-01", span_id(trace, job, RUN, epoch, ""))
}

/// The job's own span, once it has ended.
pub fn whole(record: &JobRecord) -> Option<SpanNote> {
    let to = record.finished_at.filter(|_| record.state.is_final())?;
    let failed = record.state != super::JobState::Succeeded;
    let note = format!("{}: {}", record.state.as_str(), record.reason);
    let span = SpanNote::new(JOB, Epoch(0), record.submitted_at, to).failed(failed).note(note);
    Some(SpanNote { parent: record.trace_parent, ..span })
}

/// Under which span of whose trace a job is submitted: a W3C `traceparent` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceParent {
    /// The trace,
    pub trace: TraceId,
    /// and the caller's span in it.
    pub span: SpanId,
}

impl FromStr for TraceParent {
    type Err = ();
    /// `00-<32 hex>-<16 hex>-<2 hex>`; later versions may go on after that. What is not well formed is to be ignored,
    /// as the recommendation says.
    fn from_str(text: &str) -> Result<Self, ()> {
        let lower = |t: &str| t.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let mut parts = text.trim().splitn(5, '-');
        let mut part = |len: usize| parts.next().filter(|t| t.len() == len && lower(t)).ok_or(());
        let (version, trace, span) = (part(2)?, part(32)?, part(16)?);
        part(2)?;
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return Err(());
        }
        let found = Self { trace: trace.parse().map_err(|_| ())?, span: span.parse().map_err(|_| ())? };
        if found.trace == TraceId::default() || found.span == SpanId::default() { Err(()) } else { Ok(found) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_the_recommendation_says() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent: TraceParent = good.parse().expect("good");
        assert_eq!(parent.trace.to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(parent.span.to_string(), "b7ad6b7169203331");
        assert!(
            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later".parse::<TraceParent>().is_ok()
        );
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
        ] {
            assert!(bad.parse::<TraceParent>().is_err(), "{bad}");
        }
    }

    #[test]
    fn spans_find_each_other_without_talking() {
        let (trace, job) = (TraceId([1; 16]), JobId([2; 20]));
        let here: PeerName = "alpha".parse().expect("a name");
        let note = |name: &str, epoch| SpanNote::new(name, Epoch(epoch), WallTime(1), WallTime(2)).at(&here);
        let id = |name: &str, epoch| note(name, epoch).id(&trace, &job);
        assert_eq!(note(RUN, 2).parent(&trace, &job), Some(id(ATTEMPT, 2)));
        assert_eq!(note(CHECKPOINT, 2).parent(&trace, &job), Some(id(RUN, 2)));
        assert_eq!(note(CLAIM, 3).parent(&trace, &job), Some(id(QUEUE, 3)));
        assert_eq!(note(QUEUE, 3).parent(&trace, &job), Some(id(JOB, 0)));
        assert_eq!(note(COMMIT, 0).under(SUBMIT).parent(&trace, &job), Some(id(SUBMIT, 0)));
        assert_eq!(note(JOB, 0).parent(&trace, &job), None);
        assert_ne!(id(RUN, 2), id(RUN, 3));
        let there: PeerName = "beta".parse().expect("a name");
        assert_ne!(id(CLAIM, 1), note(CLAIM, 1).at(&there).id(&trace, &job), "each cluster has its own");
        let parent: TraceParent = traceparent(&trace, &job, Epoch(2)).parse().expect("our own is good");
        assert_eq!((parent.trace, parent.span), (trace, id(RUN, 2)));
    }

    #[test]
    fn a_signed_address_is_no_note() {
        let span = SpanNote::new(CHECKPOINT, Epoch(1), WallTime(1), WallTime(2));
        let span = span.note(format!("s3://me:pw@h/{}?X-Amz-Signature=0123", "x".repeat(20)));
        assert_eq!(span.note, format!("s3://REDACTED@h/{}?X-Amz-Signature=REDACTED", "x".repeat(20)));
    }

    #[test]
    fn clocks_that_differ_make_no_negative_span() {
        let span = SpanNote::new(RUN, Epoch(1), WallTime(10), WallTime(5));
        assert_eq!((span.from, span.to), (WallTime(10), WallTime(10)));
    }
}
