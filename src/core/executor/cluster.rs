//! A cluster that is not this peer's alone: its scheduler says what there is, and the books follow.

use super::*;
use crate::core::api::ClusterState;

impl Peer {
    /// What kept this cluster closed is over.
    pub(in crate::core) fn cluster_opened(&mut self) {
        self.exec.report_dirty = true;
        self.queue_changed();
    }

    /// Makes the books anew: the nodes as they are now, what others hold, then what attempts and grants of this
    /// peer hold, where they really are.
    pub(super) fn cluster_changed(&mut self, state: ClusterState) {
        let ClusterState { nodes, others, placed, closed, waiting } = state;
        // A report with longer words, or with control characters, is no report.
        let closed = closed.map(|why| words(&why, WORDS_MAX));
        self.exec.report_dirty = true;
        self.exec.waiting_below = waiting;
        if self.exec.closed_below != closed {
            let text = closed.clone().unwrap_or_else(|| "its scheduler answers again".into());
            self.event("cluster.scheduler", None, text);
            self.exec.closed_below = closed;
        }
        if !nodes.is_empty() {
            self.cfg.nodes = nodes;
            let placed: BTreeMap<AttemptKey, Vec<u32>> = placed.into_iter().collect();
            self.exec.sched.renew(&self.cfg.nodes, &others, &placed);
            for (key, attempt) in self.exec.attempts.iter_mut().filter(|(_, a)| a.phase != Phase::Closed) {
                if let Some(held) = self.exec.sched.running().get(key) {
                    attempt.row.shares.clone_from(&held.shares);
                }
            }
            self.repin_promises();
        }
        self.queue_changed();
    }
}
