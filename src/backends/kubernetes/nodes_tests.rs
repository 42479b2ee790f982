//! Nodes, their GPUs, and who holds what.

use serde_json::{Value, json};

use super::*;
use crate::base::{Epoch, JobId};

fn node(name: &str, gpus: Option<(&str, &str, &str)>, more: Value) -> Node {
    let mut allocatable = json!({ "cpu": "7910m", "memory": "32000000Ki" });
    let mut labels = json!({ "kubernetes.io/hostname": name });
    if let Some((resource, count, product)) = gpus {
        allocatable[resource] = count.into();
        labels["nvidia.com/gpu.product"] = product.into();
    }
    let mut made = json!({
        "metadata": { "name": name, "labels": labels }, "spec": {},
        "status": { "allocatable": allocatable, "conditions": [{ "type": "Ready", "status": "True" }],
            "images": [{ "names": ["repo/a@sha256:00", "repo/a:1"], "sizeBytes": 5 }] },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        let (part, field) = key.split_once('.').expect("part.field");
        made[part][field] = value.clone();
    }
    serde_json::from_value(made).expect("a node")
}

fn h100(name: &str) -> Node {
    node(name, Some(("nvidia.com/gpu", "8", "NVIDIA-H100-80GB-HBM3")), json!({}))
}

fn pod(name: &str, at: Option<&str>, gpus: u32, phase: &str) -> Load {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": name }, "status": { "phase": phase },
        "spec": { "nodeName": at, "containers": [
            { "name": "a", "resources": { "requests": { "cpu": "500m", "memory": "1Gi" }, "limits": { "nvidia.com/gpu": gpus.to_string() } } },
            { "name": "b", "resources": { "requests": { "cpu": "250m" } } },
        ], "initContainers": [{ "name": "i", "resources": { "requests": { "cpu": "600m" } } }] },
    }))
    .expect("a pod");
    Load::of(&pod, None)
}

#[test]
fn alike_nodes_are_one_group_and_those_that_take_no_pods_are_left_out() {
    let nodes = [
        h100("n2"),
        h100("n1"),
        node("c1", None, json!({})),
        node(
            "down",
            None,
            json!({ "status.conditions": [{ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown" }] }),
        ),
        node("cordoned", None, json!({ "spec.unschedulable": true })),
        node(
            "tainted",
            None,
            json!({ "spec.taints": [{ "key": "team", "value": "ml", "effect": "NoSchedule" }] }),
        ),
        node("soft", None, json!({ "spec.taints": [{ "key": "x", "effect": "PreferNoSchedule" }] })),
        node("amd", Some(("amd.com/gpu", "4", "AMD-Instinct-MI300X")), json!({})),
        node("npu", Some(("huawei.com/Ascend910", "8", "")), json!({})),
        node(
            "gpu-taint",
            Some(("nvidia.com/gpu", "8", "NVIDIA-H100-80GB-HBM3")),
            json!({ "spec.taints": [{ "key": "nvidia.com/gpu", "effect": "NoSchedule" }] }),
        ),
    ];
    let map = NodeMap::new(&nodes, &Rules::default());
    let groups: Vec<_> =
        map.groups.iter().map(|g| (g.name.as_str(), g.count, g.gpu_model.as_deref(), g.gpus)).collect();
    assert_eq!(
        groups,
        [
            ("c1", 2, None, 0),
            ("npu", 1, Some("Ascend-910A"), 8),
            ("gpu-taint", 3, Some("H100"), 8),
            ("amd", 1, Some("MI300X"), 4)
        ]
    );
    let left: Vec<&str> = map.left_out.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(left, ["down", "cordoned", "tainted"]);
    let wanted = &map.models["H100"][0];
    assert_eq!(wanted.resource, "nvidia.com/gpu");
    assert_eq!(wanted.label.as_ref().map(|(k, _)| k.as_str()), Some("nvidia.com/gpu.product"));

    let rules = Rules {
        tolerations: vec!["team=ml:NoSchedule".into()],
        gpu_names: [("NVIDIA-H100-80GB-HBM3".to_owned(), "H100-NVL".to_owned())].into(),
        ..Rules::default()
    };
    let map = NodeMap::new(&nodes, &rules);
    assert!(map.models.contains_key("H100-NVL") && map.left_out.len() == 2);
    let only = Rules {
        selector: [("kubernetes.io/hostname".to_owned(), "n1".to_owned())].into(),
        ..Rules::default()
    };
    assert_eq!(NodeMap::new(&nodes, &only).groups.len(), 1);
    let none = NodeMap::new(&nodes[3..4], &Rules::default()).state([], |_, _| true);
    assert!(none.closed.is_some_and(|why| why.contains("down not ready")));
}

#[test]
fn others_count_as_used_and_those_that_are_about_to_come_too() {
    let nodes = [h100("n1"), h100("n2")];
    let map = NodeMap::new(&nodes, &Rules::default());
    let mut ours = pod("ours", Some("n2"), 2, "Running");
    let key = AttemptKey { job: JobId([1; 20]), epoch: Epoch(1) };
    ours.ours = Some((key, "mark".into(), 0));
    let pods = [
        pod("a", Some("n1"), 3, "Running"),
        pod("done", Some("n1"), 5, "Succeeded"),
        pod("elsewhere", Some("other"), 5, "Running"),
        // The scheduler puts it on n2: on n1 there are 5 left only.
        pod("waits", None, 6, "Pending"),
        pod("waits in vain", None, 8, "Pending"),
        ours.clone(),
    ];
    let state = map.state(&pods, |k, mark| k == key && mark == "mark");
    let held: Vec<(u32, u32)> = state.others.iter().map(|h| (h.node, h.gpus)).collect();
    assert_eq!(held, [(0, 3), (1, 6)]);
    assert_eq!(state.others[0].cpus, MilliCpu(750), "containers together, not the init container");
    assert_eq!((state.placed, state.closed), (vec![(key, vec![1])], None));
    // What is no attempt of ours any more counts as anybody's.
    let state = map.state([&ours], |_, _| false);
    assert_eq!((state.others.len(), state.placed.len()), (1, 0));
}

#[test]
fn a_gang_fits_as_a_whole_or_not() {
    let nodes = [h100("n1"), h100("n2")];
    let map = NodeMap::new(&nodes, &Rules::default());
    let used = [pod("a", Some("n1"), 3, "Running")];
    let fits = |n, gpus| map.fits(&used, n, gpus, MilliCpu(1_000), Bytes::gib(1));
    assert!(fits(1, 8) && !fits(2, 8) && fits(2, 5) && fits(3, 4) && !fits(4, 4));
    assert!(map.fits(&used, 100, 0, MilliCpu(0), Bytes(0)));
}

#[test]
fn only_images_that_all_nodes_have_are_here() {
    let nodes = [h100("n1"), node("n2", None, json!({ "status.images": [] }))];
    let one = NodeMap::new(&nodes[..1], &Rules::default());
    assert_eq!(images(&nodes, &one), [Item { name: "repo/a:1".into(), size: Bytes(5) }]);
    assert!(images(&nodes, &NodeMap::new(&nodes, &Rules::default())).is_empty());
}
