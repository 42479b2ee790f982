//! What a peer counts from its own events, for `/metrics`: how long scheduling and starting took, and what happened how
//! often. Kinds of events are words of this program, so their number is bounded; it is held to a limit all the same.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio_util::sync::CancellationToken;

use crate::core::api::Event;
use crate::runtime::PeerHandle;

/// Kinds that are counted one by one; others are `other`.
const KINDS_MAX: usize = 64;
/// Upper bounds of the histograms, seconds. The seed's threshold for scheduling, 10 s, is one of them.
const BOUNDS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0, 1_800.0];

/// A histogram as OpenMetrics has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn observe(&mut self, seconds: f64) {
        for (bucket, bound) in self.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
        self.count += 1;
        self.sum += seconds;
    }

    /// What came after an earlier state of it.
    pub fn since(&self, before: &Self) -> Self {
        let mut out = self.clone();
        for (bucket, old) in out.buckets.iter_mut().zip(before.buckets) {
            *bucket = bucket.saturating_sub(old);
        }
        out.count = out.count.saturating_sub(before.count);
        out.sum = (out.sum - before.sum).max(0.0);
        out
    }

    /// Seconds that a share, in thousandths, of what was observed stayed below, rounded down to a bound; none of
    /// nothing.
    pub fn quantile(&self, milli: u64) -> Option<f64> {
        quantile(&BOUNDS, &self.buckets, self.count, milli)
    }

    /// As lines under a name.
    pub fn write(&self, out: &mut String, name: &str) {
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound:?}\"}} {bucket}");
        }
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {}", self.count);
        let _ = writeln!(out, "{name}_count {}\n{name}_sum {}", self.count, self.sum);
    }
}

/// The lower bound of the bucket in which a share, in thousandths, of all observations is reached. The counts are
/// cumulative, one for each bound.
pub fn quantile(bounds: &[f64], counts: &[u64], all: u64, milli: u64) -> Option<f64> {
    let wanted = all.checked_mul(milli)?.div_ceil(1_000);
    let at = counts.iter().position(|n| *n >= wanted).unwrap_or(counts.len());
    (all > 0).then(|| if at == 0 { 0.0 } else { bounds.get(at - 1).copied().unwrap_or(0.0) })
}

/// How long events may wait to be counted.
const GATHER: std::time::Duration = std::time::Duration::from_millis(100);

/// All that is counted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measures {
    /// From a job's submission, or the end of its last attempt, to its placement; at the peer that placed it.
    pub schedule: Histogram,
    /// From the admission of an attempt to its program's start; at its cluster.
    pub start: Histogram,
    /// Events by kind.
    pub kinds: BTreeMap<String, u64>,
}

impl Measures {
    fn missed(&mut self, events: u64) {
        *self.kinds.entry("missed".into()).or_default() += events;
    }

    /// Takes an event in.
    pub fn note(&mut self, event: &Event) {
        let kind = if self.kinds.len() < KINDS_MAX || self.kinds.contains_key(&event.kind) {
            &event.kind
        } else {
            "other"
        };
        *self.kinds.entry(kind.to_owned()).or_default() += 1;
        let Some(took) = event.took else { return };
        match event.kind.as_str() {
            "job.placed" => self.schedule.observe(took.as_secs_f64()),
            "attempt.started" => self.start.observe(took.as_secs_f64()),
            _ => {}
        }
    }
}

/// Counts a peer's own events until `cancel`.
pub async fn watch(handle: Arc<dyn PeerHandle>, measures: Arc<Mutex<Measures>>, cancel: CancellationToken) {
    let mut events = handle.journal();
    loop {
        let event = tokio::select! { biased;
            () = cancel.cancelled() => return,
            event = events.recv() => event,
        };
        {
            let mut measures = measures.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                Ok(event) => measures.note(&event),
                Err(RecvError::Lagged(missed)) => measures.missed(missed),
                Err(RecvError::Closed) => return,
            }
            loop {
                match events.try_recv() {
                    Ok(event) => measures.note(&event),
                    Err(TryRecvError::Lagged(missed)) => measures.missed(missed),
                    Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                }
            }
        }
        // A commit shall not have to wake this task: those of a moment are taken together.
        tokio::select! { biased;
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(GATHER) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Span;

    #[test]
    fn histograms_are_cumulative_and_kinds_are_bounded() {
        let mut measures = Measures::default();
        for ms in [5, 30, 20_000] {
            measures.note(&Event { took: Some(Span::millis(ms)), ..Event::new("job.placed", None, "") });
        }
        for n in 0..200 {
            measures.note(&Event::new(&format!("made.up{n}"), None, ""));
        }
        let mut text = String::new();
        measures.schedule.write(&mut text, "x");
        assert!(
            text.contains("x_bucket{le=\"0.01\"} 1\n") && text.contains("x_bucket{le=\"10.0\"} 2\n"),
            "{text}"
        );
        assert!(text.contains("x_bucket{le=\"+Inf\"} 3\nx_count 3\nx_sum 20.035\n"), "{text}");
        assert_eq!(measures.start.count, 0);
        assert_eq!((measures.start.quantile(950), measures.schedule.quantile(500)), (None, Some(0.025)));
        assert_eq!(measures.schedule.quantile(950), Some(10.0));
        assert_eq!(measures.schedule.since(&measures.schedule).quantile(950), None);
        assert!(measures.kinds.len() <= KINDS_MAX + 1);
        assert_eq!(measures.kinds.values().sum::<u64>(), 203);
    }
}
