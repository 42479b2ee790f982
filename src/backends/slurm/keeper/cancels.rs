//! Batch jobs that are to be cancelled: each until Slurm took it, or has the job no more. What another run of the peer
//! needs to ask for it again is the number in the attempt's folder, which stays as long, also of one that is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::{Act, FRESH, Keeper};
use crate::backends::hold::open;
use crate::backends::local::clock;
use crate::backends::local::files::{AttemptDir, optional, read_json, write_json_unsynced};
use crate::backends::slurm::driver::NativeJob;
use crate::backends::slurm::prepare::native_name;
use crate::base::Instant;
use crate::core::api::AttemptKey;

/// Batch jobs of attempts that are over which wait to be cancelled once more. What is beyond cannot run anything.
const LEFT_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Cancels {
    /// Asked for, and not answered.
    under_way: BTreeSet<(AttemptKey, u64)>,
    /// Of attempts that are over, by number: those that failed, and since when that is known.
    left: BTreeMap<u64, (AttemptKey, Instant)>,
}

impl Cancels {
    /// The attempts of all of them.
    pub fn keys(&self) -> BTreeSet<AttemptKey> {
        let left = self.left.values().map(|(key, _)| *key);
        self.under_way.iter().map(|(key, _)| *key).chain(left).collect()
    }
}

/// The number in an attempt's folder.
pub(super) fn number_in(dir: &AttemptDir) -> Option<u64> {
    optional(read_json(&dir.file("native.json"))).ok().flatten()
}

impl Keeper {
    /// Asks for a cancel. The number may be known from a list only.
    pub(super) fn cancel(&self, key: AttemptKey, id: u64) {
        let dir = self.dir(key);
        if number_in(&dir) != Some(id) {
            // Of a folder that is gone nothing can be kept.
            let _ = write_json_unsynced(&dir.file("native.json"), &id);
        }
        open(&self.cancels).under_way.insert((key, id));
        self.out.act(Act::Cancel(key, id));
    }

    /// Slurm took a cancel.
    pub fn cancelled(&self, key: AttemptKey, id: u64) {
        open(&self.cancels).under_way.remove(&(key, id));
        self.drop_number(key);
    }

    /// A batch job could not be cancelled: it is tried again at the next list.
    pub fn cancel_failed(&self, key: AttemptKey, id: u64) {
        let lives = open(&self.live).get_mut(&key).map(|live| live.cancelled = false).is_some();
        let mut cancels = open(&self.cancels);
        cancels.under_way.remove(&(key, id));
        if !lives && cancels.left.len() < LEFT_MAX {
            cancels.left.insert(id, (key, clock::now()));
        }
    }

    /// An empty list says nothing; what another one does not name is gone, or no more than a place in a queue, unless
    /// it was made at about the time at which that list was asked for.
    pub(super) fn cancel_left(&self, jobs: &[NativeJob], asked_at: Instant) {
        let (mut again, mut gone) = (Vec::new(), Vec::new());
        {
            let left = &mut open(&self.cancels).left;
            if jobs.is_empty() || left.is_empty() {
                return;
            }
            for job in jobs.iter().filter(|j| !j.state.is_over()) {
                let named = left.get(&job.id).filter(|(key, _)| job.name == native_name(*key));
                again.extend(named.map(|(key, _)| (*key, job.id)));
            }
            left.retain(|id, (key, since)| {
                let fresh = *since + FRESH > asked_at;
                if !fresh {
                    gone.push(*key);
                }
                fresh && !again.contains(&(*key, *id))
            });
        }
        for (key, id) in again {
            self.cancel(key, id);
        }
        gone.into_iter().for_each(|key| self.drop_number(key));
    }

    /// The number of one that is forgotten was kept for its cancel alone.
    fn drop_number(&self, key: AttemptKey) {
        let dir = self.dir(key);
        if dir.forgotten().is_some() && !open(&self.cancels).keys().contains(&key) {
            let _ = fs::remove_file(dir.file("native.json"));
        }
    }
}
