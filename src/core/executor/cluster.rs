//! A cluster that is not this peer's alone: its scheduler says what there is, and the books follow.

use super::*;
use crate::core::api::ClusterState;

impl Peer {
    /// Makes the books anew: the nodes as they are now, what others hold, then what attempts and grants of this
    /// peer hold, where they really are.
    pub(super) fn cluster_changed(&mut self, state: ClusterState) {
        let ClusterState { nodes, others, placed, closed } = state;
        self.exec.report_dirty = true;
        if self.exec.closed_below != closed {
            let text = closed.clone().unwrap_or_else(|| "its scheduler answers again".into());
            self.event("cluster.scheduler", None, text);
            self.exec.closed_below = closed;
        }
        if !nodes.is_empty() {
            self.cfg.nodes = nodes;
            let mut books = Books::new(&self.cfg.nodes);
            others.iter().for_each(|held| books.hold(held));
            for (key, at) in placed {
                let Some(attempt) = self.exec.attempts.get_mut(&key) else { continue };
                if attempt.row.shares.len() == at.len() {
                    attempt.row.shares.iter_mut().zip(at).for_each(|(share, node)| share.node = node);
                }
            }
            for attempt in self.exec.attempts.values_mut().filter(|a| a.phase != Phase::Closed) {
                books.retake(&mut attempt.row.shares, &attempt.row.spec.resources);
            }
            for grant in self.exec.grants.values_mut() {
                books.retake(&mut grant.shares, &grant.need);
            }
            self.exec.books = books;
        }
        self.queue_changed();
    }
}
