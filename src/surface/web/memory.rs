//! What a peer remembers for those who look: use over time, and the job list for a moment.
//! Bounded; lost with the process, which the page says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::html::Gpus;
use crate::base::PeerName;
use crate::runtime::PeerHandle;
use crate::surface::documents::{ClusterDocument, JobList, wall_now};

/// Between two samples of use.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Samples kept: an hour.
const SAMPLES_MAX: usize = 360;
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
    /// Held while the mesh is asked, so that many who look ask once.
    pub(super) jobs: tokio::sync::Mutex<Option<Listed>>,
}

impl Memory {
    /// Samples, oldest first.
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
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
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! { biased;
            () = cancel.cancelled() => return,
            _ = ticks.tick() => memory.sample(sample(&*handle)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::surface::fake::Fake;

    #[test]
    fn memory_is_bounded() {
        let memory = Memory::default();
        for n in 0..SAMPLES_MAX + 5 {
            memory.sample(Sample { at_ms: n as u64, ..Sample::default() });
        }
        assert_eq!(memory.samples().len(), SAMPLES_MAX);
        assert_eq!(memory.samples()[0].at_ms, 5);
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
