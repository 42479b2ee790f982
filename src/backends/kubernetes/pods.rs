//! What a pod's status says, as typed reasons: why it waits, how it ended, and whether that is proven.

use super::names;
use super::objects::{ContainerStatus, Pod, Terminated};
use crate::backends::local::files::Ended;
use crate::core::api::AttemptKey;
use crate::model::Outcome;

/// Name of the container that runs the attempt.
pub const MAIN: &str = "main";
/// Bytes of a message that are passed on.
const MESSAGE_MAX: usize = 300;

/// Why a pod has not begun, or did not end by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// No node has room, or may take it.
    Unschedulable(String),
    /// Its image is on its way.
    Pulling,
    /// Its image could not be fetched so far; the kubelet goes on trying.
    PullFails(String),
    /// It can never run as it is written.
    Impossible(String),
    /// Its containers are being made.
    Creating,
    /// Its node had too little of something.
    Evicted(String),
    /// It took more memory than it may.
    OutOfMemory,
    /// Kubernetes' own deadline.
    Deadline,
    /// It had to make room.
    Preempted,
    /// Its node is gone, or does not answer.
    NodeLost,
    /// Somebody deleted it, or drained its node.
    Deleted(String),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unschedulable(why) => write!(f, "Unschedulable: {why}"),
            Self::Pulling => f.write_str("its image is being pulled"),
            Self::PullFails(why) => write!(f, "ImagePullBackOff: {why}"),
            Self::Impossible(why) => f.write_str(why),
            Self::Creating => f.write_str("its containers are being made"),
            Self::Evicted(why) => write!(f, "Evicted: {why}"),
            Self::OutOfMemory => f.write_str("OOMKilled"),
            Self::Deadline => f.write_str("DeadlineExceeded"),
            Self::Preempted => f.write_str("preempted by Kubernetes"),
            Self::NodeLost => f.write_str("its node is lost"),
            Self::Deleted(why) if why.is_empty() => f.write_str("its pod was deleted"),
            Self::Deleted(why) => write!(f, "its pod was deleted: {why}"),
        }
    }
}

/// A pod of ours, as far as that matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodView {
    /// Its attempt.
    pub key: AttemptKey,
    /// The life of the attempt's folder that it belongs to.
    pub mark: String,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// Its rank.
    pub index: u32,
    /// Its node.
    pub node: Option<String>,
    /// Its address.
    pub ip: String,
    /// Its container runs.
    pub running: bool,
    /// Its kubelet says that no process of it is left: how it ended.
    pub ended: Option<Terminated>,
    /// Its phase says that it is over, proven or not.
    pub over: bool,
    /// What stands in its way, or ended it.
    pub trouble: Option<Trouble>,
}

fn short(text: &str) -> String {
    text.chars().take(MESSAGE_MAX).collect()
}

impl PodView {
    /// Of a pod in our namespace with our labels; none of any other.
    pub fn of(pod: &Pod, own: &names::Own) -> Option<Self> {
        let (key, mark) = own.read(&pod.metadata)?;
        let main = pod.status.container_statuses.iter().find(|c| c.name == MAIN);
        let index = |text: &String| text.parse::<u32>().ok();
        let annotations = &pod.metadata.annotations;
        let index = annotations.get(names::INDEX).or(pod.metadata.labels.get(names::INDEX)).and_then(index);
        Some(Self {
            key,
            mark: mark.to_owned(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            index: index.unwrap_or(0),
            node: Some(pod.spec.node_name.clone()).filter(|n| !n.is_empty()),
            ip: pod.status.pod_ip.clone(),
            running: main.is_some_and(|m| m.state.running.is_some()),
            ended: main.and_then(|m| m.state.terminated.clone()),
            over: pod.is_over(),
            trouble: trouble(pod, main),
        })
    }

    /// Nothing of it runs or ever will: its kubelet says that it has ended, or that it did not take it.
    pub fn never_runs(&self) -> bool {
        let refused = matches!(self.trouble, Some(Trouble::Evicted(_) | Trouble::Unschedulable(_)));
        self.ended.is_some() || self.over && refused
    }

    /// What the guard left as its last word.
    pub fn last_word(&self) -> Option<Ended> {
        serde_json::from_str(self.ended.as_ref()?.message.trim()).ok()
    }

    /// How a container ended whose guard could not say it. Of a signal shells and runtimes say 128 + n.
    pub fn outcome(&self, guarded: bool) -> Option<Outcome> {
        let ended = self.ended.as_ref()?;
        Some(match (&self.trouble, ended.exit_code) {
            (Some(Trouble::OutOfMemory), _) => Outcome::Signaled(9),
            (Some(Trouble::Deadline), _) => Outcome::TimedOut,
            (
                Some(
                    why
                    @ (Trouble::Evicted(_) | Trouble::Preempted | Trouble::NodeLost | Trouble::Deleted(_)),
                ),
                _,
            ) => Outcome::Stopped(why.to_string()),
            (_, code) if !guarded => Outcome::Exited(code),
            (_, code) => Outcome::Stopped(format!("its guard was ended (exit code {code} {})", ended.reason)),
        })
    }
}

fn trouble(pod: &Pod, main: Option<&ContainerStatus>) -> Option<Trouble> {
    let status = &pod.status;
    let holds = |kind: &str| status.conditions.iter().find(|c| c.kind == kind && c.status == "True");
    let terminated = main.and_then(|m| m.state.terminated.as_ref());
    if terminated.is_some_and(|t| t.reason == "OOMKilled") {
        return Some(Trouble::OutOfMemory);
    }
    match status.reason.as_str() {
        "Evicted" => return Some(Trouble::Evicted(short(&status.message))),
        "DeadlineExceeded" => return Some(Trouble::Deadline),
        "NodeLost" | "NodeShutdown" | "Terminated" => return Some(Trouble::NodeLost),
        "Preempting" | "Preempted" => return Some(Trouble::Preempted),
        "UnexpectedAdmissionError" | "OutOfcpu" | "OutOfmemory" | "OutOfpods" | "NodeAffinity" => {
            // The kubelet found that it does not fit after all: nothing of it ran.
            return Some(Trouble::Unschedulable(short(&status.message)));
        }
        _ => {}
    }
    if let Some(disruption) = holds("DisruptionTarget") {
        return Some(match disruption.reason.as_str() {
            "PreemptionByScheduler" => Trouble::Preempted,
            "DeletionByTaintManager" | "DeletionByPodGC" => Trouble::NodeLost,
            "TerminationByKubelet" => Trouble::Evicted(short(&disruption.message)),
            _ => Trouble::Deleted(short(&disruption.message)),
        });
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Some(Trouble::Deleted(String::new()));
    }
    if let Some(ended) = terminated {
        // Nothing of it ran: the runtime could not start it.
        let never = matches!(ended.reason.as_str(), "StartError" | "ContainerCannotRun");
        return never.then(|| Trouble::Impossible(format!("{}: {}", ended.reason, short(&ended.message))));
    }
    let unscheduled = status.conditions.iter().find(|c| c.kind == "PodScheduled" && c.status == "False");
    if let Some(why) = unscheduled.filter(|c| c.reason != "SchedulingGated") {
        return Some(Trouble::Unschedulable(short(&why.message)));
    }
    if main.is_some_and(|m| m.state.running.is_some()) || pod.spec.node_name.is_empty() {
        return None;
    }
    let init = status.init_container_statuses.iter();
    if let Some(failed) = init.clone().find_map(|c| c.state.terminated.as_ref().filter(|t| t.exit_code != 0))
    {
        return Some(Trouble::Impossible(format!(
            "its guard could not be put into the pod: {} (exit code {}) {}",
            failed.reason,
            failed.exit_code,
            short(&failed.message)
        )));
    }
    let waiting =
        init.chain(main).find_map(|c| c.state.waiting.as_ref().filter(|w| w.reason != "PodInitializing"));
    Some(match waiting.map(|w| (w.reason.as_str(), w.message.as_str())) {
        Some(("ImagePullBackOff" | "ErrImagePull" | "RegistryUnavailable" | "ImageInspectError", why)) => {
            Trouble::PullFails(short(why))
        }
        Some((bad @ ("InvalidImageName" | "ErrImageNeverPull" | "SignatureValidationFailed"), why)) => {
            Trouble::Impossible(format!("{bad}: {}", short(why)))
        }
        Some((bad @ ("CreateContainerConfigError" | "CreateContainerError" | "RunContainerError"), why)) => {
            Trouble::Unschedulable(format!("{bad}: {}", short(why)))
        }
        // Kubelets do not say that they pull; what waits on a node with all else done is pulling.
        Some(("ContainerCreating", _)) | None => {
            let ready = holds("PodReadyToStartContainers").is_some();
            if ready { Trouble::Pulling } else { Trouble::Creating }
        }
        Some(_) => Trouble::Creating,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::base::{Epoch, JobId};

    fn own() -> names::Own {
        names::Own { namespace: "jobs".into(), peer: "here".into(), mesh: "mesh".into() }
    }

    fn view(status: Value) -> PodView {
        let key = AttemptKey { job: JobId([1; 20]), epoch: Epoch(2) };
        let mut labels = names::labels(key, "abcd", "here", "mesh");
        labels.insert("x".into(), "y".into());
        let pod = json!({
            "metadata": { "name": "p", "namespace": "jobs", "uid": "u", "labels": labels, "annotations": { names::INDEX: "3" } },
            "spec": { "nodeName": "n1" }, "status": status,
        });
        PodView::of(&serde_json::from_value(pod).expect("a pod"), &own()).expect("ours")
    }

    fn main(state: Value) -> Value {
        json!([{ "name": "main", "state": state }])
    }

    #[test]
    fn reasons_are_told_apart() {
        let waits = |reason: &str| json!({ "phase": "Pending", "containerStatuses": main(json!({ "waiting": { "reason": reason, "message": "why" } })) });
        let failed = |reason: &str| json!({ "phase": "Failed", "reason": reason, "message": "why" });
        let disrupted = |reason: &str| json!({ "phase": "Running", "conditions": [{ "type": "DisruptionTarget", "status": "True", "reason": reason, "message": "why" }] });
        let cases = [
            (waits("ImagePullBackOff"), Trouble::PullFails("why".into())),
            (waits("ErrImagePull"), Trouble::PullFails("why".into())),
            (waits("InvalidImageName"), Trouble::Impossible("InvalidImageName: why".into())),
            (waits("ContainerCreating"), Trouble::Creating),
            (failed("Evicted"), Trouble::Evicted("why".into())),
            (failed("DeadlineExceeded"), Trouble::Deadline),
            (disrupted("PreemptionByScheduler"), Trouble::Preempted),
            (disrupted("DeletionByTaintManager"), Trouble::NodeLost),
            (disrupted("EvictionByEvictionAPI"), Trouble::Deleted("why".into())),
        ];
        for (status, wanted) in cases {
            assert_eq!(view(status.clone()).trouble, Some(wanted), "{status}");
        }
        let pulling = json!({ "phase": "Pending", "conditions": [{ "type": "PodReadyToStartContainers", "status": "True" }],
            "containerStatuses": main(json!({ "waiting": { "reason": "ContainerCreating" } })) });
        assert_eq!(view(pulling).trouble, Some(Trouble::Pulling));
        let gated = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes" }] });
        assert_eq!(view(gated).trouble, Some(Trouble::Unschedulable("0/3 nodes".into())));
    }

    #[test]
    fn only_a_terminated_container_is_a_proof() {
        let lost = view(json!({ "phase": "Failed", "reason": "NodeLost" }));
        assert!(lost.over && lost.outcome(true).is_none(), "nobody saw its processes end");
        let killed = json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } });
        let killed = view(json!({ "phase": "Failed", "containerStatuses": main(killed) }));
        assert_eq!(killed.outcome(true), Some(Outcome::Signaled(9)));
        let plain = json!({ "terminated": { "exitCode": 42, "reason": "Error" } });
        let plain = view(json!({ "phase": "Failed", "containerStatuses": main(plain) }));
        assert_eq!((plain.index, plain.outcome(false)), (3, Some(Outcome::Exited(42))));
        assert!(matches!(plain.outcome(true), Some(Outcome::Stopped(why)) if why.contains("42")));
        assert!(plain.last_word().is_none());
        let at = crate::backends::local::clock::wall();
        let word = Ended { outcome: Outcome::Exited(7), started_at: None, at, output_lost: 0 };
        let text = serde_json::to_string(&word).expect("JSON") + "  ";
        let said = json!({ "terminated": { "exitCode": 7, "message": text } });
        let said = view(json!({ "phase": "Failed", "containerStatuses": main(said) }));
        assert_eq!(said.last_word().map(|e| e.outcome), Some(Outcome::Exited(7)));
    }

    #[test]
    fn a_pod_without_our_labels_or_of_another_namespace_is_nobody() {
        let view = |namespace: &str, labels: &std::collections::BTreeMap<String, String>| {
            let meta = json!({ "name": "starling-x", "namespace": namespace, "labels": labels });
            let pod: Pod = serde_json::from_value(json!({ "metadata": meta })).expect("a pod");
            PodView::of(&pod, &own())
        };
        let key = AttemptKey { job: JobId([1; 20]), epoch: Epoch(2) };
        let labels = names::labels(key, "abcd", "here", "mesh");
        assert_eq!(view("jobs", &labels).map(|v| v.key), Some(key));
        assert_eq!(view("others", &labels), None);
        assert_eq!(view("jobs", &[("job-name".to_owned(), "x".to_owned())].into()), None);
        for label in [names::JOB, names::EPOCH, names::PEER, names::MESH, names::MARK] {
            let mut less = labels.clone();
            less.remove(label);
            assert_eq!(view("jobs", &less), None, "without {label}");
            less.insert(label.into(), "other".into());
            let other = view("jobs", &less);
            assert!(other.is_none_or(|v| label == names::MARK && v.mark == "other"), "another {label}");
        }
    }
}
