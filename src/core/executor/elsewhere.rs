//! What this cluster holds for whom, for the others; and what they hold, for its queue.

use super::*;
use crate::core::schedule::elsewhere::{Elsewhere, Keep};
use crate::model::QueueReport;
use crate::model::report::{KeepReport, Liveness};

/// What is told at most: one for each reservation.
const TOLD_MAX: usize = crate::core::schedule::RESERVATIONS_MAX;

impl Peer {
    /// Tells the queue what the last view shows.
    pub(super) fn note_elsewhere(&mut self) {
        if !std::mem::take(&mut self.exec.elsewhere_due) {
            return;
        }
        let pools = self.exec.sched.books().pools();
        let index: BTreeMap<&String, u16> =
            (0..).zip(pools).filter_map(|(n, model)| Some((model.as_ref()?, n))).collect();
        let mut elsewhere = Elsewhere { keeps: Vec::new(), gpus: vec![0; pools.len()] };
        let mut own = QueueReport::default();
        self.exec.sched.books().report(&mut own);
        let heard = self
            .view
            .members
            .iter()
            .filter(|(name, m)| **name != self.cfg.name && m.liveness != Liveness::Lost);
        let heard = heard.filter_map(|(_, m)| m.report.as_ref()?.queue.as_ref());
        let (mono, wall) = (i64::try_from(self.now.mono.0).unwrap_or(i64::MAX), self.now.wall);
        for queue in heard.chain([&own]) {
            for (model, n) in &queue.gpus_total {
                if let Some(sum) = index.get(model).and_then(|pool| elsewhere.gpus.get_mut(*pool as usize)) {
                    *sum = sum.saturating_add((*n).into());
                }
            }
            for k in queue.keeps.iter().take(TOLD_MAX) {
                let pools: Vec<u16> = k.models.iter().filter_map(|model| index.get(model).copied()).collect();
                let waited = i64::try_from(wall.0.saturating_sub(k.since.0)).unwrap_or(i64::MAX);
                elsewhere.keeps.push(Keep {
                    key: AttemptKey { job: k.job, epoch: k.epoch },
                    priority: k.priority,
                    since: mono.saturating_sub(waited.saturating_mul(1_000)),
                    gpus: k.gpus,
                    pools,
                });
            }
        }
        self.exec.sched.set_elsewhere(elsewhere);
    }

    /// For whom nodes are held here is news for the others.
    pub(super) fn note_keeps(&mut self) {
        let keeps = self.exec.sched.keeps(self.now.mono).map(|(key, _)| *key);
        if !keeps.eq(self.exec.kept.iter().copied()) {
            self.exec.kept = self.exec.sched.keeps(self.now.mono).map(|(key, _)| *key).collect();
            self.exec.report_dirty = true;
        }
    }

    pub(super) fn report_keeps(&self, queue: &mut QueueReport) {
        let sched = &self.exec.sched;
        let mono = i64::try_from(self.now.mono.0).unwrap_or(i64::MAX);
        let pools = sched.books().pools();
        let keeps = sched.keeps(self.now.mono).take(TOLD_MAX).map(|(key, request)| {
            let waited = u64::try_from(mono.saturating_sub(request.since)).unwrap_or(0) / 1_000;
            let model = |pool: &u16| pools.get(*pool as usize).cloned().flatten();
            KeepReport {
                job: key.job,
                epoch: key.epoch,
                priority: request.priority,
                since: WallTime(self.now.wall.0.saturating_sub(waited)),
                gpus: request.gpus(),
                models: request.need.pools.iter().filter_map(model).collect(),
            }
        });
        queue.keeps = keeps.filter(|k| k.gpus > 0).collect();
    }
}
