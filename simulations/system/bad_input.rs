//! What is wrong in a request, on a disk or on the command line: a typed error, and nothing lost.

use std::fs;

use axum::http::Method;
use serde_json::json;

use super::harness::*;
use super::mesh::{Mesh, PeerProcess, Plan, SmallDisk};

#[test]
fn specs_with_mistakes_name_each_of_them() {
    let mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha");
    let refused = |spec: &str| try_submit(state, spec, None).expect_err(spec);
    let (status, body) =
        refused("nmae: x\nresources: {gpsu: 1, gpus: 99999999999}\nretries: -4\nrun: [\"true\"]\n");
    assert_eq!((status, body.code.as_str()), (422, "invalid_spec"), "{body:?}");
    for named in ["nmae", "gpsu", "99999999999", "retries"] {
        assert!(body.details.iter().any(|d| d.contains(named)), "{named}: {body:?}");
    }
    for (spec, named) in [
        ("name: \"a\\u0007b\"\nrun: [\"true\"]\n", "name"),
        ("name: \"\\x1b[2J\"\nrun: [\"true\"]\n", "name"),
        ("run: \"echo \\0\"\n", "run"),
        ("run: [\"true\"]\nmax_runtime: -1s\n", "max_runtime"),
        ("run: [\"true\"]\nreservation: may\n", "not supported by this peer yet"),
        ("name: x\n", "run"),
        ("run: [\n", ""),
        ("", ""),
    ] {
        let (status, body) = refused(spec);
        assert_eq!(status, 422, "{spec:?}: {body:?}");
        let told = format!("{} {}", body.message, body.details.join(" "));
        assert!(
            told.contains(named) && !told.contains('\u{7}') && !told.contains('\u{1b}'),
            "{spec:?}: {body:?}"
        );
    }
    // 10 MB: refused by the command before it is sent, and by the API whoever sends it.
    let big = format!("run: [\"true\"]\nname: x\n# {}\n", "x".repeat(10 << 20));
    let file = mesh.folder.path().join("big.yaml");
    fs::write(&file, &big).expect("written");
    let out = cli(state, &["--json", "submit", file.to_str().expect("a path")]);
    assert_eq!((out.code, out.json()["error"]["code"].as_str()), (2, Some("usage")), "{out:?}");
    let (status, body) = refused(&big);
    assert!(status == 413 && body.code == "too_large" || status == 0, "{status} {body:?}");
    let (status, body) =
        ask(state, Method::POST, "/v1/jobs?dry=1", Some(b"run: [x]"), &[]).expect_err("refused");
    assert_eq!((status, body.code.as_str()), (400, "bad_request"), "{body:?}");
    for (path, status) in [
        ("/v1/jobs/zzzz", 400..=404),
        ("/v1/jobs/00000000", 400..=400),
        ("/v1/jobs/aaaa2222", 404..=404),
        ("/v1/clusters/nobody", 404..=404),
        ("/nothing", 404..=404),
    ] {
        let (got, body) = ask(state, Method::GET, path, None, &[]).expect_err(path);
        assert!(status.contains(&got), "{path}: {got} {body:?}");
    }
    // It all left nothing, and the peer works.
    assert_eq!(mesh.peers[0].get("/v1/jobs")["jobs"], json!([]));
    succeeded(state, &submit(state, "run: [\"true\"]\n"));
}

#[test]
fn a_job_that_fits_nowhere_ever_is_refused_with_the_nearest_cluster() {
    let mut plans = ["alpha", "beta"].map(Plan::new);
    plans[1].gpu = "H100-80G";
    plans[1].gpus = 8;
    let mesh = Mesh::start(plans);
    let state = mesh.state("alpha");
    let (status, body) = try_submit(state, "resources: {gpus: 16, gpu: [H100-80G]}\nrun: [\"true\"]\n", None)
        .expect_err("refused");
    assert_eq!((status, body.code.as_str()), (422, "fits_nowhere"), "{body:?}");
    let told = &body.message;
    assert!(told.contains("beta") && told.contains("16 x H100") && told.contains('8'), "{body:?}");
    let out = cli(state, &["run", "--gpus", "1", "--gpu", "B200", "--", "true"]);
    assert_eq!(out.code, 2, "{out:?}");
    assert!(out.err.contains("B200") && out.err.contains("hint:"), "{out:?}");
    assert_eq!(mesh.peers[0].get("/v1/jobs")["jobs"], json!([]));
}

#[test]
fn a_key_gives_the_same_job_and_never_another_spec() {
    let mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha");
    let (one, other) = ("name: one\nrun: [\"true\"]\n", "name: other\nrun: [\"true\"]\n");
    let id = try_submit(state, one, Some("k1")).expect("taken");
    assert_eq!(try_submit(state, one, Some("k1")).expect("taken"), id);
    let (status, body) = try_submit(state, other, Some("k1")).expect_err("refused");
    assert_eq!((status, body.code.as_str()), (409, "key_reused"), "{body:?}");
    assert_ne!(try_submit(state, one, Some("k2")).expect("taken"), id);
    for bad in [" ", "", &"k".repeat(200)] {
        assert_eq!(try_submit(state, one, Some(bad)).expect_err("refused").0, 400, "{bad:?}");
    }
    assert_eq!(mesh.peers[0].get("/v1/jobs")["jobs"].as_array().map(Vec::len), Some(2));
    succeeded(state, &id);
}

#[test]
fn a_state_folder_is_not_taken_twice_nor_from_a_newer_version() {
    let mut mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha").to_owned();
    let id = submit(&state, "run: [\"true\"]\n");
    succeeded(&state, &id);
    let up = |more: &[&str]| cli(&state, &[&["up"], more].concat());
    let second = up(&[]);
    assert!(second.code != 0 && second.err.contains("in use by another peer process"), "{second:?}");
    assert_eq!(mesh.peers[0].get(&format!("/v1/jobs/{id}"))["state"], "succeeded");

    assert!(mesh.peers[0].terminate().success());
    let format = state.join("format");
    let was = fs::read_to_string(&format).expect("a version");
    fs::write(&format, "999\n").expect("written");
    let newer = up(&[]);
    assert!(newer.code != 0 && newer.err.contains("999") && newer.err.contains("newer"), "{newer:?}");
    fs::write(&format, "what\n").expect("written");
    let garbage = up(&[]);
    assert!(garbage.code != 0 && garbage.err.contains("format"), "{garbage:?}");
    fs::write(&format, was).expect("written");
    let renamed = up(&["--name", "omega"]);
    assert!(
        renamed.code != 0 && renamed.err.contains("alpha") && renamed.err.contains("omega"),
        "{renamed:?}"
    );
    mesh.peers[0].restart();
    assert_eq!(mesh.peers[0].get(&format!("/v1/jobs/{id}"))["state"], "succeeded");
}

#[test]
fn configurations_with_mistakes_start_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, state) = (folder.path().join("starling.toml"), folder.path().join("state"));
    fs::write(&file, "naem = \"x\"\npue = 0.2\n[timing]\nrenew_every = \"0s\"\n").expect("written");
    let path = file.to_str().expect("a path");
    for out in [cli(&state, &["config", "check", path]), cli(&state, &["up", "--config", path])] {
        assert_eq!(out.code, 2, "{out:?}");
        let told = out.out.clone() + &out.err;
        assert!(["naem", "pue", "renew_every"].iter().all(|k| told.contains(k)), "{out:?}");
    }
    assert!(!state.exists());
    let checked = cli(&state, &["--json", "config", "check", path]).json();
    assert_eq!(
        (&checked["ok"], checked["mistakes"].as_array().map(Vec::len)),
        (&json!(false), Some(3)),
        "{checked:#}"
    );
    let none = cli(&state, &["jobs"]);
    assert_eq!(none.code, 4, "{none:?}");
    assert!(none.err.contains("starling up"), "{none:?}");
}

/// Waits until new jobs are refused for lack of disk.
fn refused_for_disk(peer: &PeerProcess, spec: &str) {
    let body = until("new jobs are refused", || match try_submit(&peer.state, spec, None) {
        Err((503, body)) => Ok(body),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(body.code, "disk_full", "{body:?}");
    assert!(body.hint.contains("another peer"), "{body:?}");
}

#[test]
fn a_nearly_full_disk_refuses_new_jobs_and_keeps_what_it_has() {
    let mut mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha").to_owned();
    let kept = submit(&state, "name: kept\nrun: [\"true\"]\n");
    succeeded(&state, &kept);
    let running = submit(&state, "name: runs\nresources: {gpus: 1}\nrun: [sleep, \"600\"]\n");
    in_state(&state, &running, &["running"]);
    mesh.peers[0].kill();
    mesh.peers[0].replan(|p| p.tables = "[limits]\ndisk_reserve = \"1000TiB\"\n".into());
    mesh.peers[0].restart();
    refused_for_disk(&mesh.peers[0], "name: new\nrun: [\"true\"]\n");
    until("the cluster says why it is closed", || {
        let list = get(&state, "/v1/clusters")?;
        let told = list["clusters"][0]["closed"].as_str().is_some_and(|why| why.contains("disk"));
        if told { Ok(()) } else { Err(list.to_string()) }
    });
    assert_eq!(job(&state, &kept).expect("kept")["state"], "succeeded");
    // What it has can still be ended.
    cli(&state, &["cancel", &running]).ok();
    assert_eq!(ended(&state, &running)["state"], "cancelled");
    assert!(mesh.peers[0].terminate().success());
    mesh.peers[0].replan(|p| p.tables = String::new());
    mesh.peers[0].restart();
    succeeded(&state, &submit(&state, "name: again\nrun: [\"true\"]\n"));
}

#[test]
fn a_disk_that_is_really_full_loses_nothing_that_was_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = SmallDisk::mount(&folder.path().join("disk"), 16) else {
        eprintln!("not tried: only root may mount a small file system");
        return;
    };
    let mut plan = Plan::new("alpha");
    // So small that the disk is full before anybody looks.
    plan.tables = "[limits]\ndisk_reserve = \"1M\"\n".into();
    let mut peer = PeerProcess::start(&disk.0, plan, None);
    let state = peer.state.clone();
    let spec = format!("env: {{PAD: {}}}\nrun: [\"true\"]\n", "x".repeat(30_000));
    let mut answered = vec![submit(&state, &spec)];
    succeeded(&state, &answered[0]);
    let filler = disk.0.join("filler");
    let mut file = fs::File::create(&filler).expect("a file");
    let chunk = vec![7_u8; 64 << 10];
    while std::io::Write::write_all(&mut file, &chunk).is_ok() {}
    let refusal = until("it refuses", || match try_submit(&state, &spec, None) {
        Ok(id) => {
            answered.push(id);
            Err(format!("{} taken", answered.len()))
        }
        Err(refusal) => Ok(refusal),
    });
    let told = [(503, "disk_full"), (503, "stopping"), (504, "outcome_unknown"), (0, "none")];
    assert!(told.contains(&(refusal.0, refusal.1.code.as_str())), "{refusal:?}");
    drop(file);
    fs::remove_file(&filler).expect("removed");
    // It may have stopped, as it must where a commit failed; it starts again with all that it answered.
    peer.revive();
    for id in &answered {
        succeeded(&state, id);
    }
    until("it takes jobs again", || try_submit(&state, &spec, None).map_err(|e| format!("{e:?}")));
    drop(peer);
}
