//! What a peer remembers for those who look: use over time, the last events, and the job list for a moment.
//! Bounded; lost with the process, which the page says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::html::Gpus;
use crate::base::PeerName;
use crate::runtime::PeerHandle;
use crate::surface::documents::{ClusterDocument, EventDocument, JobList, wall_now};

/// Between two samples of use.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Samples kept: an hour.
const SAMPLES_MAX: usize = 360;
/// Events kept for the page.
const EVENTS_MAX: usize = 2_000;
/// A job list is shown again for this long, or ten times as long as it took to make.
const JOBS_FRESH: Duration = Duration::from_secs(1);

/// Use at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sample {
    /// When, for people.
    pub at_ms: u64,
    /// GPUs of the mesh.
    pub gpus: Gpus,
    /// Claims that wait, over all clusters.
    pub queued: u64,
    /// Used and all GPUs of each cluster that was alive.
    pub clusters: BTreeMap<PeerName, (u32, u32)>,
}

/// A job list with its age.
pub struct Listed {
    /// The jobs and who did not answer.
    pub list: Arc<JobList>,
    /// When it was asked for.
    pub at: Instant,
    /// How long the asking took.
    pub took: Duration,
}

/// All of it.
#[derive(Default)]
pub struct Memory {
    samples: Mutex<VecDeque<Sample>>,
    events: Mutex<VecDeque<EventDocument>>,
    /// Held while the mesh is asked, so that many who look ask once.
    pub(super) jobs: tokio::sync::Mutex<Option<Listed>>,
}

impl Memory {
    /// Samples, oldest first.
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Events that `keep` wants, newest first, at most `most`.
    pub fn events(&self, most: usize, keep: impl Fn(&EventDocument) -> bool) -> Vec<EventDocument> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.iter().rev().filter(|e| keep(e)).take(most).cloned().collect()
    }

    /// Takes an event in.
    pub fn note(&self, event: EventDocument) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() >= EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// Takes a sample in.
    pub fn sample(&self, sample: Sample) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() >= SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }
}

impl Listed {
    /// It may be shown once more.
    pub fn is_fresh(&self) -> bool {
        self.at.elapsed() < JOBS_FRESH.max(self.took * 10)
    }
}

/// Use as the view has it now.
pub fn sample(handle: &dyn PeerHandle) -> Sample {
    let mut out = Sample { at_ms: wall_now().0, ..Sample::default() };
    for member in handle.view().members.values().filter(|m| !m.witness) {
        let document = ClusterDocument::new(member, None);
        let gpus = Gpus::of(&document);
        out.gpus.plus(gpus);
        if gpus.down == 0 {
            out.queued += u64::from(document.queued);
            let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
            out.clusters.insert(member.peer.clone(), (short(gpus.used), short(gpus.total())));
        }
    }
    out
}

/// Fills the memory until `cancel`.
pub async fn watch(handle: Arc<dyn PeerHandle>, memory: Arc<Memory>, cancel: CancellationToken) {
    let mut events = handle.events();
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! { biased;
            () = cancel.cancelled() => return,
            _ = ticks.tick() => memory.sample(sample(&*handle)),
            event = events.recv() => match event {
                Ok(event) => memory.note(EventDocument {
                    kind: event.kind,
                    job: event.job,
                    text: event.text,
                    at_ms: wall_now().0,
                }),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::surface::fake::Fake;

    #[test]
    fn memory_is_bounded_and_newest_come_first() {
        let memory = Memory::default();
        for n in 0..SAMPLES_MAX + 5 {
            memory.sample(Sample { at_ms: n as u64, ..Sample::default() });
        }
        assert_eq!(memory.samples().len(), SAMPLES_MAX);
        assert_eq!(memory.samples()[0].at_ms, 5);
        for n in 0..EVENTS_MAX + 1 {
            let (kind, text) = (format!("k{}", n % 2), n.to_string());
            memory.note(EventDocument { kind, job: None, text, at_ms: n as u64 });
        }
        let odd = memory.events(2, |e| e.kind == "k1");
        assert_eq!(odd.iter().map(|e| e.at_ms).collect::<Vec<_>>(), [1999, 1997]);
        assert_eq!(memory.events(usize::MAX, |_| true).len(), EVENTS_MAX);
    }

    #[test]
    fn a_sample_sums_the_view() {
        let fake = Fake::new("a");
        fake.knows("b", None);
        let sample = sample(&*fake);
        assert_eq!(sample.gpus, Gpus { used: 10, reserved: 0, free: 6, down: 0 });
        assert_eq!(sample.clusters.len(), 2);
    }
}
