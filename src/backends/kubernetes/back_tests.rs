//! The book alone: what is given back without a guard, and what is not.

use std::sync::Arc;

use serde_json::json;

use super::super::KubernetesConfig;
use super::super::ends::{Made, Sight};
use super::super::features::Feature;
use super::super::feed::Mirror;
use super::super::keeper::Act;
use super::super::nodes::Load;
use super::*;
use crate::backends::conformance::{key, script, start, stop};
use crate::backends::local::clock;
use crate::base::{PeerName, Span};
use crate::core::api::StopReason;
use crate::core::{BackendCommand, BackendEvent};

const NODE: &str = "n1";

struct Desk {
    keeper: Arc<Keeper>,
    mark: String,
    _folder: tempfile::TempDir,
}

impl Desk {
    /// An attempt without a guard whose Job is there; its pods may come where it was released.
    fn new(released: bool, change: impl FnOnce(&mut KubernetesConfig)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let peer = PeerName::new("here").expect("a name");
        let mut config = KubernetesConfig::new(folder.path().join("k"), peer, "mesh".into());
        config.image = Some("plain".into());
        change(&mut config);
        let queued = config.queue.is_some();
        let keeper = Arc::new(Keeper::new(config).expect("a book"));
        if queued {
            open(&keeper.features).said(Feature::Kueue, Ok(true), clock::now());
        }
        let mut spec = script("true");
        spec.on_lost_contact.grace = None;
        keeper.command(BackendCommand::Start(Box::new(start(key(1), spec))));
        if released {
            assert!(keeper.may_release(key(1)) && keeper.may_release(key(1)), "said again");
        }
        keeper.made(key(1), Made::There("u".into(), released));
        let mark = keeper.kept(key(1)).expect("kept").mark;
        let desk = Self { keeper, mark, _folder: folder };
        desk.acts();
        desk
    }
    fn acts(&self) -> Vec<Act> {
        self.keeper.out.take_acts()
    }
    fn ended(&self) -> Option<Outcome> {
        while let Some(event) = self.keeper.out.next_event() {
            if let BackendEvent::Ended { outcome, .. } = event {
                return Some(outcome);
            }
        }
        None
    }
    fn look(&self, fresh: bool) {
        let (jobs, pods) = (Mirror::<Job>::default(), Mirror::<(Load, Option<PodView>)>::default());
        self.keeper.look(&Sight { jobs: &jobs, pods: &pods, fresh });
    }
    fn job(&self, suspend: bool, conditions: &[(&str, &str)]) -> Option<Job> {
        let labels = self.keeper.labels(key(1), &self.mark);
        let conditions: Vec<_> = conditions
            .iter()
            .map(|(kind, message)| json!({ "type": kind, "status": "True", "message": message }))
            .collect();
        let job = json!({ "metadata": { "name": names::native_name(key(1)), "uid": "u", "labels": labels },
            "spec": { "suspend": suspend }, "status": { "conditions": conditions } });
        Some(serde_json::from_value(job).expect("a Job"))
    }
    fn pod(&self, node: Option<&str>, state: serde_json::Value) -> PodView {
        let labels = self.keeper.labels(key(1), &self.mark);
        let own = names::Own { namespace: "jobs".into(), peer: "here".into(), mesh: "mesh".into() };
        let phase = if state["terminated"].is_object() { "Failed" } else { "Pending" };
        let pod = json!({ "metadata": { "name": "p", "namespace": "jobs", "uid": "p1", "labels": labels },
            "spec": { "nodeName": node },
            "status": { "phase": phase, "containerStatuses": [{ "name": "main", "state": state }] } });
        PodView::of(&serde_json::from_value(pod).expect("a pod"), &own).expect("ours")
    }
    fn weigh(&self, job: Option<Job>, pods: Vec<PodView>, up: bool) -> Step {
        let up = up.then(|| NODE.to_owned()).into_iter().collect();
        self.keeper.weigh(key(1), job, pods, &up)
    }
    fn begun(&self) -> bool {
        open(&self.keeper.live).get(&key(1)).is_some_and(|l| l.begun.is_some())
    }
    /// It has waited for a minute.
    fn waited(&self) {
        if let Some(live) = open(&self.keeper.live).get_mut(&key(1)) {
            live.pending_since = Some(clock::now() - Span::secs(60));
        }
    }
    fn stop(&self, reason: StopReason) {
        self.keeper.command(stop(key(1), Span::ZERO, reason));
    }
    /// Looks until the next question is asked.
    fn asks(&self) {
        self.look(true);
        self.look(true);
        assert!(self.acts().contains(&Act::GiveBack(key(1))), "it asks");
    }
}

#[test]
fn before_pods_may_come_a_stop_is_the_end() {
    let desk = Desk::new(false, |_| {});
    desk.stop(StopReason::Drain);
    assert_eq!(desk.ended(), Some(Outcome::Stopped("drain".into())));
    assert!(!desk.keeper.may_release(key(1)), "and none may come any more");
}

#[test]
fn what_may_run_unseen_is_stopped_first_and_has_ended_when_nothing_of_it_can_run() {
    let desk = Desk::new(true, |_| {});
    desk.stop(StopReason::Drain);
    desk.look(false);
    assert_eq!((desk.ended(), desk.acts()), (None, vec![Act::End(key(1), Some("u".into()))]));
    desk.asks();
    let waits = desk.pod(Some(NODE), json!({ "waiting": { "reason": "ContainerCreating" } }));
    desk.keeper.pod_seen(waits.clone(), true);
    assert_eq!(desk.weigh(desk.job(false, &[]), vec![], true), Step::Suspend("u".into()));
    assert_eq!(desk.weigh(desk.job(true, &[]), vec![], true), Step::Wait);
    let quiet = || desk.job(true, &[("Suspended", "")]);
    for _ in 0..3 {
        assert_eq!(desk.weigh(quiet(), vec![waits.clone()], true), Step::Wait);
    }
    // Its object is gone; on a node that does not report it may run.
    desk.keeper.pod_seen(waits, false);
    for _ in 0..3 {
        assert_eq!(desk.weigh(quiet(), vec![], false), Step::Wait);
    }
    assert_eq!(desk.weigh(quiet(), vec![], true), Step::Wait);
    // No answer in between: it begins anew.
    desk.keeper.not_weighed(key(1), &ApiError::Unknown("no answer".into()));
    assert_eq!(desk.weigh(quiet(), vec![], true), Step::Wait);
    assert_eq!(desk.ended(), None);
    desk.weigh(quiet(), vec![], true);
    assert_eq!(desk.ended(), Some(Outcome::Stopped("drain".into())));
    assert!(desk.acts().contains(&Act::Remove(key(1))));
}

#[test]
fn late_is_judged_on_fresh_sight_and_what_runs_after_all_runs() {
    let desk = Desk::new(true, |c| c.pending_max = Span::ZERO);
    desk.waited();
    desk.look(false);
    assert!(desk.ended().is_none() && desk.acts().is_empty(), "nothing follows from old answers");
    desk.asks();
    assert_eq!(desk.ended(), None);
    let runs = desk.pod(Some(NODE), json!({ "running": {} }));
    assert_eq!(desk.weigh(desk.job(false, &[]), vec![runs.clone()], true), Step::Wait, "it is let run");
    desk.keeper.pod_seen(runs, true);
    assert!(desk.begun());
    for _ in 0..3 {
        desk.look(true);
    }
    assert!(!desk.acts().contains(&Act::GiveBack(key(1))) && desk.ended().is_none());
}

#[test]
fn a_job_that_is_over_ran_though_nobody_saw_it() {
    for (condition, wanted) in [
        (("Complete", ""), Some(Outcome::Exited(0))),
        (
            ("Failed", "Container main for pod x/y failed with exit code 42 matching"),
            Some(Outcome::Exited(42)),
        ),
        // It may run on, on a node that is cut off.
        (("Failed", "Job has reached the specified backoff limit"), None),
    ] {
        let desk = Desk::new(true, |c| c.pending_max = Span::ZERO);
        desk.waited();
        desk.asks();
        for _ in 0..3 {
            assert_eq!(desk.weigh(desk.job(false, &[condition]), vec![], true), Step::Wait);
        }
        assert!(desk.begun() && desk.ended().is_none(), "{condition:?}");
        let long_ago = clock::now() - Span::secs(60);
        if let Some(live) = open(&desk.keeper.live).get_mut(&key(1)) {
            live.over_since = Some(long_ago);
        }
        let (jobs, pods) = (Mirror::default(), Mirror::listed());
        desk.keeper.look(&Sight { jobs: &jobs, pods: &pods, fresh: true });
        assert_eq!(desk.ended(), wanted);
    }
}

#[test]
fn a_queued_job_is_not_given_back_while_its_queue_could_let_it_begin() {
    let desk = Desk::new(true, |c| (c.queue, c.pending_max) = (Some("gpus".into()), Span::ZERO));
    desk.waited();
    desk.asks();
    let quiet = || desk.job(true, &[("Suspended", "")]);
    for _ in 0..3 {
        assert_eq!(desk.weigh(quiet(), vec![], true), Step::Delete("u".into()));
    }
    assert_eq!(desk.ended(), None);
    let mut going = quiet().expect("a Job");
    going.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".into());
    assert_eq!(desk.weigh(Some(going.clone()), vec![], true), Step::Wait);
    assert_eq!(desk.ended(), None);
    desk.weigh(Some(going), vec![], true);
    assert!(matches!(desk.ended(), Some(Outcome::Refused(_))));
}

#[test]
fn a_job_that_is_gone_is_not_made_again_beside_what_may_be_left_of_it() {
    let desk = Desk::new(true, |_| {});
    for _ in 0..ABSENT_ANSWERS {
        desk.keeper.looked(key(1), Err(ApiError::Absent));
    }
    assert!(!desk.acts().iter().any(|a| matches!(a, Act::Make(..))));
    let waits = desk.pod(None, json!({ "waiting": {} }));
    for _ in 0..3 {
        assert_eq!(desk.weigh(None, vec![waits.clone()], true), Step::Wait);
    }
    assert_eq!(desk.ended(), None);
    desk.weigh(None, vec![], true);
    desk.weigh(None, vec![], true);
    assert_eq!(desk.ended(), Some(Outcome::Cancelled), "somebody deleted it");
}

#[test]
fn a_deleted_job_is_let_go_so_that_its_pods_are_collected() {
    let desk = Desk::new(true, |_| {});
    let mut job = desk.job(false, &[]).expect("a Job");
    job.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".into());
    desk.keeper.job_seen(&job, true);
    desk.asks();
    let waits = desk.pod(Some(NODE), json!({ "waiting": {} }));
    assert_eq!(desk.weigh(Some(job.clone()), vec![waits], true), Step::LetGo);
    desk.weigh(Some(job.clone()), vec![], true);
    assert_eq!(desk.ended(), None);
    desk.weigh(None, vec![], true);
    assert_eq!(desk.ended(), Some(Outcome::Cancelled));
}
