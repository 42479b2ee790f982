//! What is read of Kubernetes objects: only what is needed, and whatever else a server says is tolerated.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// `null` where a list, map or struct is wanted is an empty one.
fn nulls<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

macro_rules! object {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name { $($(#[$field_doc])* #[serde(default, deserialize_with = "nulls")] pub $field: $type),* }
    };
}

object!(
    /// Name, identity, and what others wrote on it.
    Meta {
        /// Name.
        name: String,
        /// Where; empty of what is in none.
        namespace: String,
        /// Never used again for another object.
        uid: String,
        /// Version.
        resource_version: String,
        /// Labels.
        labels: BTreeMap<String, String>,
        /// Annotations.
        annotations: BTreeMap<String, String>,
        /// Somebody deleted it; it goes when finalizers and grace allow.
        deletion_timestamp: Option<String>,
        /// Who must agree before it goes.
        finalizers: Vec<String>,
    }
);
object!(
    /// One of an object's conditions.
    Condition {
        /// Which; `type` there.
        #[serde(rename = "type")]
        kind: String,
        /// `True`, `False`, `Unknown`.
        status: String,
        /// One word.
        reason: String,
        /// For people.
        message: String,
    }
);
object!(
    /// A batch/v1 Job.
    Job {
        /// Who it is.
        metadata: Meta,
        /// What is wanted.
        spec: JobSpecPart,
        /// How it stands.
        status: JobStatus,
    }
);
object!(
    /// Of a Job's spec.
    JobSpecPart {
        /// Makes no pods now.
        suspend: bool,
    }
);
object!(
    /// Of a Job's status.
    JobStatus {
        /// `Complete`, `Failed`, `Suspended`.
        conditions: Vec<Condition>,
    }
);
object!(
    /// A pod.
    Pod {
        /// Who it is.
        metadata: Meta,
        /// What is wanted.
        spec: PodSpec,
        /// How it stands.
        status: PodStatus,
    }
);
object!(
    /// Of a pod's spec.
    PodSpec {
        /// Its node, once it has one.
        node_name: String,
        /// Containers.
        containers: Vec<Container>,
        /// Those that run before.
        init_containers: Vec<Container>,
        /// What the sandbox takes itself.
        overhead: BTreeMap<String, String>,
        /// It is not to be scheduled yet.
        scheduling_gates: Vec<serde_json::Value>,
    }
);
object!(
    /// Of a container's spec.
    Container {
        /// Name.
        name: String,
        /// What it asks for.
        resources: Needs,
        /// `Always` for a sidecar among init containers.
        restart_policy: String,
    }
);
object!(
    /// Requests and limits.
    Needs {
        /// Requests.
        requests: BTreeMap<String, String>,
        /// Limits; of extended resources also the requests.
        limits: BTreeMap<String, String>,
    }
);
object!(
    /// Of a pod's status.
    PodStatus {
        /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`.
        phase: String,
        /// One word, such as `Evicted`.
        reason: String,
        /// For people.
        message: String,
        /// Its address.
        #[serde(rename = "podIP")]
        pod_ip: String,
        /// Conditions.
        conditions: Vec<Condition>,
        /// Containers.
        container_statuses: Vec<ContainerStatus>,
        /// Init containers.
        init_container_statuses: Vec<ContainerStatus>,
    }
);
object!(
    /// How a container stands.
    ContainerStatus {
        /// Name.
        name: String,
        /// One of three.
        state: ContainerState,
    }
);
object!(
    /// One of the three is there.
    ContainerState {
        /// It waits, and why.
        waiting: Option<Waiting>,
        /// It runs.
        running: Option<Running>,
        /// It has ended: its kubelet says that no process of it is left.
        terminated: Option<Terminated>,
    }
);
object!(
    /// Why a container waits.
    Waiting {
        /// One word, such as `ImagePullBackOff`.
        reason: String,
        /// For people.
        message: String,
    }
);
object!(
    /// Since when it runs.
    Running {
        /// RFC 3339.
        started_at: Option<String>,
    }
);
object!(
    /// How a container ended.
    Terminated {
        /// Exit code; 128 + n for a signal.
        exit_code: i32,
        /// One word, such as `OOMKilled`.
        reason: String,
        /// The end of what it left as its last word.
        message: String,
    }
);
object!(
    /// A node.
    Node {
        /// Who it is.
        metadata: Meta,
        /// What is wanted.
        spec: NodeSpec,
        /// How it stands.
        status: NodeStatus,
    }
);
object!(
    /// Of a node's spec.
    NodeSpec {
        /// Cordoned.
        unschedulable: bool,
        /// Who may not come here.
        taints: Vec<Taint>,
    }
);
object!(
    /// A taint.
    Taint {
        /// Key.
        key: String,
        /// Value.
        value: String,
        /// `NoSchedule`, `PreferNoSchedule`, `NoExecute`.
        effect: String,
    }
);
object!(
    /// Of a node's status.
    NodeStatus {
        /// What pods may have.
        allocatable: BTreeMap<String, String>,
        /// Conditions.
        conditions: Vec<Condition>,
        /// Images that it has; the largest ones only.
        images: Vec<Image>,
    }
);
object!(
    /// An image on a node.
    Image {
        /// Its names.
        names: Vec<String>,
        /// Bytes.
        size_bytes: u64,
    }
);
object!(
    /// An event: what somebody saw of an object.
    Event {
        /// Who it is.
        metadata: Meta,
        /// Of what.
        involved_object: Involved,
        /// One word.
        reason: String,
        /// For people.
        message: String,
    }
);
object!(
    /// What an event is about.
    Involved {
        /// Kind.
        kind: String,
        /// Name.
        name: String,
    }
);

impl Job {
    /// A condition that holds.
    pub fn is(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|c| c.kind == kind && c.status == "True")
    }
}

impl Pod {
    /// It has ended, or never will begin, says its status.
    pub fn is_over(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }
}

/// An object with its metadata.
pub trait Object: serde::de::DeserializeOwned + Clone + Send + Sync + 'static {
    /// Its metadata.
    fn meta(&self) -> &Meta;
}

macro_rules! has_meta {
    ($($name:ident),*) => { $(impl Object for $name { fn meta(&self) -> &Meta { &self.metadata } })* };
}
has_meta!(Job, Pod, Node, Event);

/// A quantity in thousandths: `250m`, `4`, `1.5`, `16Gi`, `2e3`. None where it is none.
pub fn milli(text: &str) -> Option<u128> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() > 18 || (whole.is_empty() && part.is_empty()) {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let digits: String = part.chars().chain("000000000".chars()).take(9).collect();
    let nanos = whole.checked_mul(1_000_000_000)?.checked_add(digits.parse().ok()?)?;
    let (times, per): (u128, u128) = match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        _ => {
            let power: u32 = suffix.strip_prefix(['e', 'E'])?.parse().ok().filter(|p| *p <= 15)?;
            (10_u128.pow(power), 1)
        }
    };
    Some(nanos.checked_mul(times)? / per / 1_000_000)
}

/// A quantity in whole units, rounded up.
pub fn units(text: &str) -> u64 {
    milli(text).map_or(0, |m| u64::try_from(m.div_ceil(1_000)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_as_kubernetes_writes_them() {
        for (text, wanted) in [
            ("250m", 250),
            ("4", 4_000),
            ("1.5", 1_500),
            (".5", 500),
            ("2e3", 2_000_000),
            ("1k", 1_000_000),
            ("1Ki", 1_024_000),
            ("100u", 0),
            ("16Gi", 16 * (1 << 30) * 1_000),
        ] {
            assert_eq!(milli(text), Some(wanted), "{text}");
        }
        for bad in ["", "x", "-1", "1X", "1e99", "99999999999999999999", "."] {
            assert_eq!(milli(bad), None, "{bad}");
        }
        assert_eq!((units("1500m"), units("8"), units("nonsense")), (2, 8, 0));
    }

    #[test]
    fn what_is_missing_null_or_new_is_tolerated() {
        let text = r#"{"metadata":{"name":"p","labels":null},"spec":{"containers":null,"new":1},
            "status":{"phase":"Running","containerStatuses":[{"name":"main","state":{"running":{}}}],"podIP":"10.0.0.1"}}"#;
        let pod: Pod = serde_json::from_str(text).expect("reads");
        assert_eq!((pod.metadata.name.as_str(), pod.status.pod_ip.as_str()), ("p", "10.0.0.1"));
        assert!(pod.status.container_statuses[0].state.running.is_some());
        assert!(serde_json::from_str::<Job>("{}").is_ok());
    }
}
