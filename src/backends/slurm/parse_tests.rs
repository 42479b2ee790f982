//! The shapes that Slurm's answers have had.

use serde_json::json;

use super::*;

#[test]
fn hosts_are_expanded() {
    let cases: [(&str, &[&str]); 6] = [
        ("a", &["a"]),
        ("a,b", &["a", "b"]),
        ("n[1-3]", &["n1", "n2", "n3"]),
        ("n[08-10,12]-x,c", &["n08-x", "n09-x", "n10-x", "n12-x", "c"]),
        ("r[1-2]n[1-2]", &["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", &[]),
    ];
    for (text, wanted) in cases {
        assert_eq!(hosts(text), wanted, "{text}");
    }
    for broken in ["a[", "a[x-y]", "(null)", "a[1-"] {
        assert!(hosts(broken).is_empty(), "{broken}");
    }
    assert_eq!(hosts("n[0-4294967295]").len(), HOSTS_MAX, "bounded");
}

#[test]
fn gres_texts_give_type_and_count() {
    let gpu = |t: &str| gpus_of(t);
    assert_eq!(gpu("gpu:h100:4"), Some(("h100".into(), 4)));
    assert_eq!(gpu("gpu:h100:2(IDX:0-1,3)"), Some(("h100".into(), 2)));
    assert_eq!(gpu("gpu:4(S:0-1)"), Some((String::new(), 4)));
    assert_eq!(gpu("gpu"), Some((String::new(), 1)));
    assert_eq!(gpu("lustre:1,gpu:a100:3,gpu:a100:1"), Some(("a100".into(), 4)));
    assert_eq!(gpu("gres/gpu:2"), Some((String::new(), 2)));
    assert_eq!(gpu("gpu:h100:0(IDX:N/A)"), Some(("h100".into(), 0)));
    assert_eq!(gpu("shard:8"), None);
    assert_eq!(gpu(""), None);
}

#[test]
fn sizes_are_megabytes() {
    for (text, mb) in
        [("200M", 200), ("1.5G", 1536), ("1T", 1 << 20), ("100", 100), ("512K", 1), ("4Gn", 4096)]
    {
        assert_eq!(megabytes(text), Some(mb), "{text}");
    }
    for bad in ["", "x", "-1M", "5Q"] {
        assert_eq!(megabytes(bad), None, "{bad}");
    }
}

/// As 22.05 writes it.
#[test]
fn a_job_of_22_05() {
    let job = job(&json!({
        "job_id": 7, "name": "starling-x", "comment": "starling x", "job_state": "RUNNING",
        "state_reason": "None", "exit_code": 1792, "restart_cnt": 0, "user_name": "u", "cpus": 4,
        "nodes": "n[1-2]", "gres_detail": ["gpu:h100:2(IDX:0-1)", "gpu:h100:1(IDX:0)"],
        "tres_alloc_str": "cpu=4,mem=200M,node=2,billing=2",
        "job_resources": {"nodes": "n[1-2]", "allocated_nodes": [
            {"nodename": "n1", "memory_allocated": 100}, {"nodename": "n2", "memory_allocated": 60}]}
    }))
    .expect("a job");
    assert_eq!((job.id, job.state, job.status), (7, NativeState::Active, 1792));
    assert_eq!(job.comment, "starling x");
    let part =
        |node: &str, memory, gpus| Part { node: node.into(), cpus: 2, memory: Bytes::mib(memory), gpus };
    assert_eq!(job.parts, [part("n1", 100, 2), part("n2", 60, 1)]);
}

/// As 24.11 writes it.
#[test]
fn a_job_of_24_11() {
    let set = |n: u64| json!({"set": true, "infinite": false, "number": n});
    let job = job(&json!({
        "job_id": 9, "name": "n", "comment": "c", "job_state": ["RUNNING"], "state_reason": "None",
        "exit_code": {"status": ["ERROR"], "return_code": set(3), "signal": {"id": {"set": false, "number": 0}, "name": ""}},
        "restart_cnt": 1, "user_name": "u", "cpus": set(8), "nodes": "g1",
        "gres_detail": ["gpu:a100:4(IDX:0-3)"], "tres_alloc_str": "cpu=8,mem=4G,node=1,gres/gpu=4",
        "job_resources": {"nodes": {"count": 1, "list": "g1", "allocation": [
            {"name": "g1", "cpus": {"count": 8, "used": 0}, "memory": {"used": 0, "allocated": 4096}}]}}
    }))
    .expect("a job");
    assert_eq!((job.state, job.status >> 8, job.restarts), (NativeState::Active, 3, 1));
    assert_eq!(job.parts, [Part { node: "g1".into(), cpus: 8, memory: Bytes::gib(4), gpus: 4 }]);
}

#[test]
fn ends_and_requeues_are_told_apart() {
    let state = |v: Value| job(&json!({"job_id": 1, "job_state": v})).expect("a job").state;
    assert_eq!(state(json!(["PENDING", "REQUEUED"])), NativeState::Pending);
    assert_eq!(state(json!("RUNNING+COMPLETING")), NativeState::Active);
    assert_eq!(state(json!(["CANCELLED", "COMPLETING"])), NativeState::Active, "its processes may live");
    assert_eq!(state(json!(["NODE_FAIL"])), NativeState::NodeFail);
    assert_eq!(state(json!("TIMEOUT")), NativeState::Timeout);
    assert_eq!(state(json!(17)), NativeState::Other);
    assert_eq!(job(&json!({"name": "no number"})), None);
}

#[test]
fn nodes_of_both_shapes() {
    let old = node(&json!({
        "name": "n1", "state": "mixed", "state_flags": [], "cpus": 8, "real_memory": 8000,
        "gres": "gpu:h100:4", "features": "", "active_features": "ib,fast", "partitions": ["main"], "reason": ""
    }))
    .expect("a node");
    assert!(old.usable);
    assert_eq!((old.cpus, old.memory), (8, Bytes::mib(8000)));
    assert_eq!(old.gpus, Some(("h100".into(), 4)));
    assert_eq!(old.features, ["ib", "fast"]);
    let new = node(&json!({
        "name": "n1", "state": ["IDLE", "DRAIN"], "cpus": 8, "real_memory": 8000, "gres": "",
        "features": ["ib"], "active_features": ["ib"], "partitions": [], "reason": "bad disk"
    }))
    .expect("a node");
    assert!(!new.usable && new.gpus.is_none() && new.state.contains("bad disk"));
    for (state, flags, usable) in [
        ("idle", json!(["DRAIN"]), false),
        ("down", json!([]), false),
        ("allocated", json!([]), true),
        ("idle", json!(["NOT_RESPONDING"]), false),
        ("idle", json!(["PLANNED"]), true),
        ("", json!([]), false),
    ] {
        let found = node(&json!({"name": "n", "state": state, "state_flags": flags})).expect("a node");
        assert_eq!(found.usable, usable, "{state} {flags}");
    }
}

/// One figure that cannot be true would keep the report of all nodes back.
#[test]
fn a_node_with_more_than_any_has_is_left_out() {
    let idle = json!({"name": "n", "state": "idle", "cpus": 8, "real_memory": 8000, "gres": "gpu:4"});
    assert!(node(&idle).expect("a node").usable);
    for (field, value) in [
        ("cpus", json!(4_000_000)),
        ("real_memory", json!(1e300)),
        ("gres", json!("gpu:h100:4000000000")),
        ("gres", json!("gpu:a:9000,gpu:b:9000")),
    ] {
        let mut wrong = idle.clone();
        wrong[field] = value;
        let node = node(&wrong).expect("a node");
        assert!(!node.usable && node.state.contains("no node has that much"), "{node:?}");
    }
    for name in ["", "n\u{1b}", &"n".repeat(256)] {
        assert_eq!(node(&json!({"name": name, "state": "idle"})), None, "{name}");
    }
}

#[test]
fn an_answer_with_errors_or_without_its_list_is_none() {
    assert_eq!(list(&json!({"jobs": [], "errors": []}), "jobs").map(Vec::len), Ok(0));
    let failed =
        json!({"jobs": [], "errors": [{"error": "Unable to contact slurm controller", "error_number": 1}]});
    assert!(list(&failed, "jobs").expect_err("failed").contains("Unable to contact"));
    assert!(list(&json!({}), "jobs").is_err());
    assert!(list(&json!({"jobs": 7}), "jobs").is_err());
}

#[test]
fn partitions_that_are_hidden_are_not_shown_where_that_is_told() {
    let all = json!({"partitions": [
        {"name": "main", "flags": ["default"]}, {"name": "secret", "flags": ["hidden"]}, {"name": "low", "flags": []},
    ]});
    assert_eq!(shown(&all), Some(vec!["main".to_owned(), "low".to_owned()]));
    let all_hidden = json!({"partitions": [{"name": "secret", "flags": ["hidden"]}]});
    assert_eq!(shown(&all_hidden), Some(Vec::new()), "which is told, too");
    let not_told = [
        json!({"partitions": [{"name": "main"}]}),
        json!({"partitions": []}),
        json!({"partitions": [{"flags": []}]}),
        json!({}),
    ];
    for answer in not_told {
        assert_eq!(shown(&answer), None, "{answer}");
    }
}
