//! Giving back an attempt that has no guard and has not been seen to begin.
//!
//! A guard asks before it runs anything, so its right to run is taken back at the peer's own disk, and that is all.
//! Without one, whoever lets pods come gives that right: it is taken, durably, before the Job is released, and from
//! then on pods may run that nobody here has seen. So nothing is given back while Kubernetes' answers are old; then
//! its Job is stopped from making pods; and only when its controller has said that it makes none, and two lists in
//! a row have none that could run, has it ended. What ran meanwhile began, and goes the way of what begins.

use std::collections::{BTreeMap, BTreeSet};

use super::api::ApiError;
use super::ends::ABSENT_ANSWERS;
use super::keeper::{Begun, Keeper, Live};
use super::names;
use super::objects::{Job, Pod};
use super::pods::PodView;
use super::run::Watch;
use super::waits::failed_with;
use crate::backends::hold::open;
use crate::backends::local::files::{optional, read_json, write_json};
use crate::backends::local::guard::stopped_by;
use crate::core::api::AttemptKey;
use crate::model::Outcome;

/// Where pods were seen to be put, by identity: on disk, since they may live on when neither is to be seen.
const PLACED: &str = "placed.json";

/// An attempt that is to be given back, and how that stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Back {
    /// How it ends.
    outcome: Outcome,
    /// Only because its Job is not there.
    absent: bool,
    /// Looks in a row at which nothing of it could run.
    proofs: u32,
}

/// What is to be done before the next look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Make no pods, and end those that are there.
    Suspend(String),
    /// The same of a Job that somebody else lets begin, and may suspend and let begin again.
    Delete(String),
    /// Let go of a Job that was deleted, so that its pods are collected.
    LetGo,
    /// Nothing.
    Wait,
}

impl Keeper {
    /// Pods may come from now on. True if they may. Where no guard asks for the right to run, this gives it.
    pub(super) fn may_release(&self, key: AttemptKey) -> bool {
        let guarded = open(&self.live).get(&key).map(|l| l.kept.guarded);
        match guarded {
            Some(true) => true,
            Some(false) => {
                let dir = self.dir(key);
                match dir.take_token() {
                    // Taken by an earlier try, and not revoked by a stop.
                    Ok(taken) => taken || dir.token_taken(),
                    Err(error) => {
                        tracing::warn!(%key, trace = dir.trace(), %error, "that an attempt may run could not be written");
                        false
                    }
                }
            }
            None => false,
        }
    }

    /// Without a guard: pods may run that nobody here has seen.
    pub(super) fn may_run_unseen(&self, key: AttemptKey, live: &Live) -> bool {
        !live.kept.guarded && live.begun.is_none() && self.dir(key).token_taken()
    }

    /// It is not to begin, and may have: what can be known of it is found out first.
    pub(super) fn begin_back(&self, key: AttemptKey, outcome: Outcome, absent: bool) {
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key).filter(|l| l.begun.is_none()) else { return };
        if live.back.is_none() {
            live.back = Some(Back { outcome, absent, proofs: 0 });
            drop(all);
            tracing::info!(%key, trace = self.dir(key).trace(), "to be given back: is there a pod of it that runs?");
        }
    }

    /// A pod has a node now.
    pub(super) fn placed(&self, live: &mut Live, pod: &PodView) {
        let Some(node) = &pod.node else { return };
        if live.placed.insert(pod.uid.clone(), node.clone()).is_none() {
            let file = self.dir(pod.key).file(PLACED);
            if let Err(error) = write_json(&file, &live.placed) {
                tracing::warn!(key = %pod.key, trace = self.dir(pod.key).trace(), %error, "where a pod is could not be written");
            }
        }
    }

    /// Where pods were put, as an earlier run of the peer saw it.
    pub(super) fn placed_before(&self, key: AttemptKey) -> std::io::Result<BTreeMap<String, String>> {
        Ok(optional(read_json(&self.dir(key).file(PLACED)))?.unwrap_or_default())
    }

    /// Its Job is over, and no pod of it was ever seen: it ran, and only the Job can say how it ended.
    pub(super) fn ran_unseen(&self, key: AttemptKey) {
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return };
        let begun = Begun { pods: (0..live.kept.parts).map(|n| (n, format!("unseen-{n}"))).collect() };
        if let Err(error) = write_json(&self.dir(key).file("begun.json"), &begun) {
            return tracing::error!(%key, trace = self.dir(key).trace(), %error, "that an attempt began could not be written");
        }
        (live.begun, live.back) = (Some(begun), None);
    }

    /// One look at what is to be given back: its Job, then its pods, each as the server holds it at that moment.
    pub(super) fn weigh(
        &self,
        key: AttemptKey,
        job: Option<Job>,
        pods: Vec<PodView>,
        up: &BTreeSet<String>,
    ) -> Step {
        if let Some(job) = &job {
            self.job_seen(job, true);
        }
        let listed: BTreeSet<String> = pods.iter().map(|p| p.uid.clone()).collect();
        let could_run = pods.iter().find(|p| !p.never_runs()).map(|p| p.name.clone());
        let runs = pods.iter().any(|p| p.running);
        // What has ended is over for good. Of what runs the watch tells, and also when it is gone again.
        pods.into_iter().filter(|p| p.ended.is_some()).for_each(|pod| self.pod_seen(pod, true));
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return Step::Wait };
        live.busy = false;
        if live.begun.is_some() {
            live.back = None;
            return Step::Wait;
        }
        let (stop, nobody) = (live.hold.stop, listed.is_empty() && live.placed.is_empty());
        let Some(back) = &mut live.back else { return Step::Wait };
        let going = job.as_ref().is_some_and(|j| j.metadata.deletion_timestamp.is_some());
        let over = job.as_ref().is_some_and(|j| j.is("Complete").or(j.is("Failed")).is_some());
        if let Some(job) = &job {
            if back.absent && !going {
                live.back = None;
                return Step::Wait;
            }
            let said = job.is("Complete").is_some() || failed_with(job).is_some();
            if over && (said || nobody) {
                drop(all);
                self.ran_unseen(key);
                return Step::Wait;
            }
            // In a queue its suspension is somebody else's to end, at any moment.
            let stopped = !live.kept.queued && job.spec.suspend && job.is("Suspended").is_some();
            if !(over || stopped || going) {
                back.proofs = 0;
                let uid = job.metadata.uid.clone();
                return match (live.kept.queued, job.spec.suspend) {
                    // Late, and it came: only who was told to stop is stopped.
                    _ if runs && stop.is_none() => Step::Wait,
                    (true, _) => Step::Delete(uid),
                    (false, false) => Step::Suspend(uid),
                    // Its controller has not seen it yet, and may still make pods.
                    (false, true) => Step::Wait,
                };
            }
        }
        // A kubelet that lives ends what is not in its list; one that does not may go on with it.
        let lost = live.placed.iter().find(|(uid, node)| !listed.contains(*uid) && !up.contains(*node));
        let waits = if let Some(name) = could_run {
            format!("waiting for its pod {name} to be gone")
        } else if let Some((_, node)) = lost {
            format!("its pod is gone, and so is its node {node}, where it may run on")
        } else {
            back.proofs += 1;
            if back.proofs >= ABSENT_ANSWERS {
                let outcome = stop.map_or(back.outcome.clone(), |(stop, _)| stopped_by(stop.reason));
                drop(all);
                self.close_unstarted(key, outcome);
            }
            return Step::Wait;
        };
        if live.doing != waits {
            tracing::warn!(%key, trace = self.dir(key).trace(), "not given back yet: {waits}");
            live.doing = waits;
        }
        back.proofs = 0;
        // Deleted by somebody, while our finalizer keeps it, it ends no pods.
        if going && !live.kept.queued { Step::LetGo } else { Step::Wait }
    }

    /// What was to be known is not.
    pub(super) fn not_weighed(&self, key: AttemptKey, error: &ApiError) {
        tracing::info!(%key, trace = self.dir(key).trace(), %error, "whether an attempt runs is not known: not given back");
        if let Some(live) = open(&self.live).get_mut(&key) {
            live.busy = false;
            if let Some(back) = &mut live.back {
                back.proofs = 0;
            }
        }
    }
}

impl Watch {
    /// One look, and what follows from it.
    pub(super) async fn give_back(&self, key: AttemptKey) {
        let (job, pods) = match self.seen_now(key).await {
            Ok(seen) => seen,
            Err(error) => return self.keeper.not_weighed(key, &error),
        };
        let up = self.nodes_up();
        let keeper = self.keeper.clone();
        let step = tokio::task::spawn_blocking(move || keeper.weigh(key, job, pods, &up)).await;
        let done = match step.unwrap_or(Step::Wait) {
            Step::Wait => Ok(()),
            Step::Suspend(uid) => self.suspend(key, Some(&uid), true).await,
            Step::LetGo => self.end(key, None).await,
            Step::Delete(uid) => {
                self.api.delete_first(&self.jobs_folder(), &names::native_name(key), &uid).await
            }
        };
        if let Err(error) = done {
            tracing::info!(%key, trace = self.keeper.dir(key).trace(), %error, "an attempt's Job could not be stopped");
        }
    }

    /// Its Job, if that is ours, and then its pods.
    async fn seen_now(&self, key: AttemptKey) -> Result<(Option<Job>, Vec<PodView>), ApiError> {
        let Some(kept) = self.keeper.kept(key) else {
            return Err(ApiError::Unknown("its folder is gone".into()));
        };
        let labels = self.keeper.labels(key, &kept.mark);
        let job = match self.api.get::<Job>(&self.jobs_folder(), &names::native_name(key)).await {
            Ok(job) => Some(job).filter(|j| labels.iter().all(|(k, v)| j.metadata.labels.get(k) == Some(v))),
            Err(ApiError::Absent) => None,
            Err(other) => return Err(other),
        };
        let wanted: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let query = format!("labelSelector={}", super::api::escape(&wanted.join(",")));
        let (pods, _) = self.api.list::<Pod>(&self.api.place("api/v1", "pods"), &query).await?;
        let own = self.own();
        Ok((job, pods.iter().filter_map(|p| PodView::of(p, &own)).collect()))
    }

    /// Nodes whose kubelets report.
    fn nodes_up(&self) -> BTreeSet<String> {
        let nodes = self.nodes.read();
        let up = |n: &&super::objects::Node| {
            n.status.conditions.iter().any(|c| c.kind == "Ready" && c.status == "True")
        };
        nodes.values().filter(up).map(|n| n.metadata.name.clone()).collect()
    }
}

#[cfg(test)]
#[path = "back_tests.rs"]
mod tests;
