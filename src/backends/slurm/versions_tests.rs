//! One cluster as each version of Slurm writes it: what is needed is the same in all of them, and no field of a wrong
//! kind makes an end out of a job that runs.

use serde_json::{Map, json};

use super::*;

/// A number as versions from 23.02 on write it.
fn set(n: u64) -> Value {
    json!({"set": true, "infinite": false, "number": n})
}
fn unset() -> Value {
    json!({"set": false, "infinite": false, "number": 0})
}
fn endless() -> Value {
    json!({"set": false, "infinite": true, "number": 0})
}

/// How a version writes what they write differently.
struct Version {
    name: &'static str,
    /// Numbers are objects.
    objects: bool,
    /// States of jobs are lists.
    lists: bool,
    /// The exit code is an object of its own.
    exits: bool,
    /// Nodes of a job are in `nodes.allocation`.
    allocation: bool,
    /// What `--gres` became.
    per_node: &'static str,
    node: fn(&str, &[&str]) -> Value,
}

const VERSIONS: [Version; 8] = [
    Version {
        name: "22.05",
        objects: false,
        lists: false,
        exits: false,
        allocation: false,
        per_node: "gres:gpu:h100:2",
        node: old_node,
    },
    // 23.11 writes the same under v0.0.39.
    Version {
        name: "23.02",
        objects: true,
        lists: false,
        exits: false,
        allocation: false,
        per_node: "gres:gpu:h100:2",
        node: new_node,
    },
    Version {
        name: "23.11",
        objects: true,
        lists: true,
        exits: true,
        allocation: false,
        per_node: "gres:gpu:h100:2",
        node: new_node,
    },
    // v0.0.40, which 24.05 still writes.
    Version {
        name: "24.05 (v0.0.40)",
        objects: true,
        lists: true,
        exits: true,
        allocation: false,
        per_node: "gres/gpu:h100:2",
        node: new_node,
    },
    Version {
        name: "24.05",
        objects: true,
        lists: true,
        exits: true,
        allocation: true,
        per_node: "gres/gpu:h100:2",
        node: new_node,
    },
    Version {
        name: "24.11",
        objects: true,
        lists: true,
        exits: true,
        allocation: true,
        per_node: "gres/gpu:h100:2",
        node: new_node,
    },
    Version {
        name: "25.05",
        objects: true,
        lists: true,
        exits: true,
        allocation: true,
        per_node: "gres/gpu:h100:2",
        node: newest_node,
    },
    Version {
        name: "25.11",
        objects: true,
        lists: true,
        exits: true,
        allocation: true,
        per_node: "gres/gpu:h100=2",
        node: newest_node,
    },
];

/// 22.05: a word for the state, flags beside it, features as text.
fn old_node(name: &str, states: &[&str]) -> Value {
    let state = states.first().copied().unwrap_or_default().to_ascii_lowercase();
    json!({
        "architecture": "x86_64", "boot_time": 1_700_000_000, "cpus": 8, "real_memory": 8_000, "cpu_load": 12,
        "free_memory": 4_294_967_294_u64, "name": name, "hostname": name, "state": state,
        "state_flags": states.get(1..).unwrap_or_default(), "next_state_after_reboot": "invalid",
        "features": "ib,a100-80g", "active_features": "ib,a100-80g", "gres": "gpu:h100:4(S:0-1)", "gres_used":
        "gpu:h100:0", "partitions": ["main", "low"], "reason": "", "tres": "cpu=8,mem=8000M,billing=8"
    })
}

/// 23.02 to 24.11.
fn new_node(name: &str, states: &[&str]) -> Value {
    json!({
        "architecture": "x86_64", "boot_time": set(1_700_000_000), "cpu_load": 12, "free_mem": set(469),
        "cpus": 8, "effective_cpus": 8, "real_memory": 8_000, "name": name, "hostname": name, "state": states,
        "next_state_after_reboot": ["INVALID"], "features": ["ib", "a100-80g"], "active_features": ["ib", "a100-80g"],
        "gres": "gpu:h100:4(S:0-1)", "gres_drained": "N/A", "gres_used": "gpu:h100:0(IDX:N/A)",
        "partitions": ["main", "low"], "reason": "", "reason_changed_at": set(0), "resume_after": unset(),
        "tres": "cpu=8,mem=8000M,billing=8,gres/gpu=4"
    })
}

/// 25.05 on: no gres_drained, more about the node itself.
fn newest_node(name: &str, states: &[&str]) -> Value {
    let mut node = new_node(name, states);
    if let Some(all) = node.as_object_mut() {
        all.remove("gres_drained");
        all.insert("gpu_spec".into(), "".into());
        all.insert("res_cores_per_gpu".into(), 0.into());
        all.insert("topology".into(), "default:s0".into());
        all.insert("cert_flags".into(), json!([]));
    }
    node
}

impl Version {
    fn number(&self, n: u64) -> Value {
        if self.objects { set(n) } else { n.into() }
    }
    fn states(&self, states: &[&str]) -> Value {
        if self.lists { json!(states) } else { json!(states.join("+")) }
    }
    fn exit(&self, code: u64, signal: u64) -> Value {
        if !self.exits {
            return self.number((code << 8) | signal);
        }
        let status = if signal > 0 {
            "SIGNALED"
        } else if code > 0 {
            "ERROR"
        } else {
            "SUCCESS"
        };
        json!({
            "status": [status],
            "return_code": if signal > 0 { unset() } else { set(code) },
            "signal": {"id": if signal > 0 { set(signal) } else { unset() }, "name": ""}
        })
    }
    /// One job of all that are needed, on two nodes, three cores here and one there.
    fn job(&self, id: u64, states: &[&str], (code, signal): (u64, u64)) -> Value {
        let runs = states.first() == Some(&"RUNNING");
        let mut job = json!({
            "account": "a", "job_id": id, "name": "starling-x-1", "comment": "starling x-1 m", "partition": "main,low",
            "job_state": self.states(states), "state_reason": if runs { "None" } else { "Resources" },
            "exit_code": self.exit(code, signal), "derived_exit_code": self.exit(0, 0), "restart_cnt": 1, "user_name": "u",
            "cpus": self.number(4), "node_count": self.number(2), "tasks": self.number(2), "nodes": if runs { "n[1-2]" } else { "" },
            "gres_detail": if runs { json!(["gpu:h100:2(IDX:0-1)", "gpu:h100:1(IDX:0)"]) } else { json!([]) },
            "tres_req_str": "cpu=4,mem=160M,node=2,billing=4", "tres_alloc_str": "cpu=4,mem=160M,node=2,billing=4",
            "tres_per_node": self.per_node, "tres_per_job": "", "tres_per_task": "",
            "start_time": self.number(1_700_000_100), "array_task_id": if self.objects { unset() } else { Value::Null },
            "time_limit": if self.objects { endless() } else { 4_294_967_295_u64.into() }, "requeue": false,
            "submit_time": self.number(1_700_000_000), "command": "", "nice": Value::Null
        });
        if runs && let Some(fields) = job.as_object_mut() {
            fields.insert("job_resources".into(), self.resources());
        }
        job
    }
    fn resources(&self) -> Value {
        let cores =
            |n: u64| -> Map<String, Value> { (0..n).map(|c| (c.to_string(), json!("allocated"))).collect() };
        if self.allocation {
            let node = |name: &str, cpus: u64, mb: u64| {
                let core = json!({"index": 0, "status": ["ALLOCATED"]});
                json!({
                    "index": 0, "name": name, "cpus": {"count": cpus, "used": 0}, "memory": {"used": 0, "allocated": mb},
                    "sockets": [{"index": 0, "cores": [core]}]
                })
            };
            return json!({
                "select_type": ["CORE", "MEMORY"], "cpus": 4, "threads_per_core": set(1),
                "nodes": {"count": 2, "select_type": ["AVAILABLE"], "list": "n[1-2]", "whole": false,
                    "allocation": [node("n1", 3, 100), node("n2", 1, 60)]}
            });
        }
        let node = |name: &str, n: u64, mb: u64| {
            json!({
                "sockets": {"0": {"cores": cores(n)}}, "nodename": name, "cpus_used": 0, "memory_used": 0,
                "memory_allocated": mb
            })
        };
        json!({
            "nodes": "n[1-2]", "allocated_cores": 4, "allocated_cpus": 0, "allocated_hosts": 2,
            "allocated_nodes": [node("n1", 3, 100), node("n2", 1, 60)]
        })
    }
    fn document(&self, key: &str, all: Value) -> Value {
        json!({
            "meta": {"slurm": {"release": self.name}}, "errors": [], "warnings": [], "last_update": self.number(1), key: all
        })
    }
}

#[test]
fn every_version_says_the_same_of_a_job() {
    for version in &VERSIONS {
        let name = version.name;
        let all = json!([
            version.job(1, &["RUNNING"], (0, 0)),
            version.job(2, &["PENDING"], (0, 0)),
            version.job(3, &["FAILED"], (7, 0)),
            version.job(4, &["TIMEOUT"], (0, 15)),
            version.job(5, &["CANCELLED", "COMPLETING"], (0, 9)),
            version.job(6, &["NODE_FAIL"], (0, 0)),
        ]);
        let document = version.document("jobs", all);
        let jobs: Vec<NativeJob> =
            list(&document, "jobs").expect("whole").iter().map(|j| job(j).expect("a job")).collect();
        let states: Vec<NativeState> = jobs.iter().map(|j| j.state).collect();
        use NativeState::*;
        assert_eq!(states, [Active, Pending, Failed, Timeout, Active, NodeFail], "{name}");
        let statuses: Vec<i32> = jobs.iter().map(|j| j.status).collect();
        assert_eq!(statuses, [0, 0, 7 << 8, 15, 9, 0], "{name}");
        let part = |node: &str, cpus, memory, gpus| Part {
            node: node.into(),
            cpus,
            memory: Bytes::mib(memory),
            gpus,
        };
        assert_eq!(jobs[0].parts, [part("n1", 3, 100, 2), part("n2", 1, 60, 1)], "{name}");
        assert!(jobs[1].parts.is_empty(), "{name}");
        assert_eq!(
            (jobs[1].gpus_wanted, jobs[1].reason.as_str()),
            (4, "Resources"),
            "{name}: two on each of two"
        );
        for job in &jobs {
            let said = (job.name.as_str(), job.comment.as_str(), job.partition.as_str(), job.restarts);
            assert_eq!(said, ("starling-x-1", "starling x-1 m", "main,low", 1), "{name}");
            assert_eq!(job.user, "u", "{name}");
        }
    }
}

#[test]
fn every_version_says_the_same_of_a_node() {
    for version in &VERSIONS {
        let name = version.name;
        let all = json!([
            (version.node)("n1", &["IDLE"]),
            (version.node)("n2", &["MIXED", "PLANNED"]),
            (version.node)("n3", &["IDLE", "DRAIN"]),
            (version.node)("n4", &["DOWN", "NOT_RESPONDING"]),
        ]);
        let document = version.document("nodes", all);
        let nodes: Vec<NativeNode> =
            list(&document, "nodes").expect("whole").iter().map(|n| node(n).expect("a node")).collect();
        let usable: Vec<bool> = nodes.iter().map(|n| n.usable).collect();
        assert_eq!(usable, [true, true, false, false], "{name}");
        for node in &nodes {
            assert_eq!((node.cpus, node.memory), (8, Bytes::mib(8_000)), "{name}");
            assert_eq!(node.gpus, Some(("h100".into(), 4)), "{name}");
            assert_eq!(
                (node.partitions.join(","), node.features.join(",")),
                ("main,low".into(), "ib,a100-80g".into())
            );
        }
    }
}

/// Every place in a document, the outer ones too.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Array(all) => all.iter().enumerate().for_each(|(n, v)| places(v, &format!("{at}/{n}"), found)),
        Value::Object(all) => all.iter().for_each(|(k, v)| {
            places(v, &format!("{at}/{}", k.replace('~', "~0").replace('/', "~1")), found);
        }),
        _ => {}
    }
}

#[test]
fn no_field_of_a_wrong_kind_ends_a_job_or_breaks_the_reader() {
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let wrong = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("n[0-18446744073709551615]["),
        json!("n[0-9999999][0-9999999][0-9999999]["),
        json!("gpu:h100:99999999999(((,gpu))):"),
        json!("\u{0}\u{1b}[2J\u{202e}ü"),
        json!([]),
        json!([null, {}, [], "x", 7]),
        json!({}),
        json!({"set": true, "infinite": "no", "number": {"number": {"number": -3}}}),
        deep,
    ];
    let mut tried = 0;
    for version in &VERSIONS {
        let whole = version.document("jobs", json!([version.job(1, &["RUNNING"], (0, 0))]));
        let nodes = version.document("nodes", json!([(version.node)("n1", &["IDLE", "DRAIN"])]));
        for (document, key) in [(&whole, "jobs"), (&nodes, "nodes")] {
            let mut all = Vec::new();
            places(document, "", &mut all);
            for at in &all {
                for value in &wrong {
                    let mut broken = document.clone();
                    *broken.pointer_mut(at).expect("is there") = value.clone();
                    tried += 1;
                    let Ok(list) = list(&broken, key) else { continue };
                    for job in list.iter().filter_map(job) {
                        assert!(!job.state.is_over(), "{}: {at} as {value}: {job:?}", version.name);
                    }
                    for node in list.iter().filter_map(node) {
                        let told = at.contains("state");
                        assert!(!node.usable || told, "{}: {at} as {value}: {node:?}", version.name);
                    }
                }
            }
            // Nor one that is not there.
            for at in all.iter().filter(|at| !at.is_empty()) {
                let mut less = document.clone();
                let (parent, last) = at.rsplit_once('/').expect("a place");
                let Some(Value::Object(fields)) = less.pointer_mut(parent) else { continue };
                fields.remove(last);
                let Ok(list) = list(&less, key) else { continue };
                assert!(
                    list.iter().filter_map(job).all(|j| !j.state.is_over()),
                    "{}: without {at}",
                    version.name
                );
            }
        }
    }
    assert!(tried > 5_000, "{tried}");
}

#[test]
fn hosts_that_name_nothing_however_often_they_are_tried_take_no_time() {
    for text in [
        "n[0-18446744073709551615][",
        "n[0-9999999][0-9999999][0-9999999][",
        "n[000000000000000000000000000001]",
    ] {
        assert!(hosts(text).is_empty(), "{text}");
    }
    assert_eq!(hosts("n[0-999][0-999]x").len(), HOSTS_MAX, "bounded");
    let garbage = format!("n[0-199999][{}]", "x,".repeat(500_000));
    assert!(hosts(&garbage).is_empty());
}

/// Neither the stack nor the memory is theirs.
#[test]
fn brackets_without_end_and_names_without_end_are_no_hosts() {
    assert!(hosts(&"[1]".repeat(200_000)).is_empty());
    assert!(hosts(&format!("{}[0-99999]", "x".repeat(1 << 20))).is_empty());
    assert!(hosts(&format!("n[0-99999]{}", "x".repeat(1 << 20))).is_empty());
    assert!(hosts(&"x".repeat(1 << 20)).is_empty());
    assert_eq!(hosts(&"[1]".repeat(BRACKETS_MAX)), ["1".repeat(BRACKETS_MAX)]);
    assert_eq!(hosts(&format!("{},b", "x".repeat(300))), ["b"]);
}

/// One look-up a node: by going through the list for each, this takes minutes.
#[test]
fn a_job_on_very_many_nodes_is_read_at_once() {
    let n = 60_000;
    let node = |i: u32| json!({"nodename": format!("n{i}"), "memory_allocated": i});
    let all: Vec<Value> = (0..n).map(node).collect();
    let job = job(&json!({
        "job_id": 7, "job_state": "RUNNING", "cpus": n, "nodes": format!("n[0-{}]", n - 1),
        "job_resources": {"allocated_nodes": all}
    }))
    .expect("a job");
    assert_eq!(job.parts.len(), 60_000);
    assert!(job.parts.iter().zip(0..).all(|(p, i)| p.memory == Bytes::mib(i)));
}

#[test]
fn gpus_that_are_asked_for_in_any_way() {
    for (fields, wanted) in [
        (json!({"tres_req_str": "cpu=1,gres/gpu=8,gres/gpu:h100=8"}), 8),
        (json!({"tres_req_str": "cpu=1,gres/gpu:a100=1,gres/gpu:h100=2"}), 3),
        (json!({"tres_per_job": "gres/gpu:6", "node_count": 3}), 6),
        (json!({"tres_per_node": "gres:gpu:2", "node_count": set(3)}), 6),
        (json!({"tres_per_node": "gpu", "node_count": unset()}), 1),
        (json!({"tres_per_task": "gres/gpu=2", "tasks": set(4)}), 8),
        (json!({"tres_per_node": "gres:nic:2", "node_count": 3}), 0),
        (json!({}), 0),
    ] {
        let mut all = fields.clone();
        all["job_id"] = 1.into();
        all["job_state"] = "PENDING".into();
        assert_eq!(job(&all).expect("a job").gpus_wanted, wanted, "{fields}");
    }
}
