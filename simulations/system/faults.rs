//! Peers that are killed, stopped and started again while they have work.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::harness::*;
use super::mesh::{Mesh, Plan};

fn cluster(job: &Value) -> String {
    job["cluster"].as_str().expect("a cluster").to_owned()
}

#[test]
fn a_killed_peers_job_goes_on_elsewhere_from_its_checkpoint() {
    let mut mesh = Mesh::three();
    let folder = mesh.folder.path().to_owned();
    let id = submit(mesh.state("alpha"), &training(&folder, "moves", 300, 50, "4s"));
    let first = cluster(&in_state(mesh.state("alpha"), &id, &["running"]));
    checkpointed(&folder, &id);
    mesh.peers.iter_mut().find(|p| p.name == first).expect("it").kill();
    let asked = mesh.peers.iter().find(|p| p.name != first).expect("another").state.clone();
    let job = succeeded(&asked, &id);
    let clusters = of_attempts(&job, "cluster");
    assert_eq!((clusters.len(), &clusters[0]), (2, &json!(first)), "{job:#}");
    assert_ne!(clusters[1], json!(first), "{job:#}");
    assert_eq!(
        (&job["attempts"][0]["outcome"]["kind"], &job["losses"]),
        (&json!("lost"), &json!(1)),
        "{job:#}"
    );
    verdict_holds(&folder, &[&id], 1);

    // Back again, it knows the end and runs nothing of it.
    let back = mesh.peers.iter_mut().find(|p| p.name == first).expect("it");
    back.restart();
    mesh.agree();
    let after = succeeded(mesh.state(&first), &id);
    assert_eq!(of_attempts(&after, "epoch"), of_attempts(&job, "epoch"), "{after:#}");
    let inspect = mesh.peer(&first).get("/v1/local/inspect");
    assert_eq!(inspect["core"]["attempts"].as_array().map(Vec::len), Some(0), "{inspect:#}");
    verdict_holds(&folder, &[&id], 1);
}

#[test]
fn a_peer_that_is_back_inside_the_grace_adopts_its_job() {
    let mut mesh = Mesh::three();
    let folder = mesh.folder.path().to_owned();
    let id = submit(mesh.state("alpha"), &training(&folder, "stays", 150, 50, "60s"));
    let first = cluster(&in_state(mesh.state("alpha"), &id, &["running"]));
    checkpointed(&folder, &id);
    let asked = mesh.peers.iter().find(|p| p.name != first).expect("another").state.clone();
    // Somebody at another peer follows its logs all the while.
    let (seen, of) = (folder.join("followed"), id.clone());
    let mut follows = command();
    follows.arg("--state").arg(&asked).args(["logs", "--follow", &of]);
    follows.stdout(fs::File::create(&seen).expect("a file")).stderr(std::process::Stdio::null());
    let mut follows = follows.spawn().expect("the binary starts");
    until("its lines come", || {
        let lines = fs::read_to_string(&seen).unwrap_or_default().lines().count();
        (lines > 0).then_some(()).ok_or_else(|| "none yet".to_owned())
    });
    let peer = mesh.peers.iter_mut().find(|p| p.name == first).expect("it");
    peer.kill();
    peer.restart();
    let job = succeeded(mesh.state(&first), &id);
    assert_eq!((of_attempts(&job, "cluster"), &job["losses"]), (vec![json!(first)], &json!(0)), "{job:#}");
    verdict_holds(&folder, &[&id], 0);
    assert!(follows.wait().expect("it ends with the job").success());
    let (followed, all) = (fs::read_to_string(&seen).expect("text"), cli(&asked, &["logs", &id]).ok().out);
    assert_eq!(followed, all, "every line once, over the restart");
    let log = cli(mesh.state(&first), &["logs", "--tail", "1", &id]).ok().out;
    assert!(!log.trim().is_empty(), "the log before and after the restart is there");
}

#[test]
fn a_lone_peer_adopts_its_job_after_a_kill() {
    let mut mesh = Mesh::start([Plan::new("alpha")]);
    let folder = mesh.folder.path().to_owned();
    let id = submit(mesh.state("alpha"), &training(&folder, "alone", 100, 50, "60s"));
    checkpointed(&folder, &id);
    mesh.peers[0].kill();
    mesh.peers[0].restart();
    let job = succeeded(mesh.state("alpha"), &id);
    assert_eq!(of_attempts(&job, "epoch"), [json!(1)], "{job:#}");
    verdict_holds(&folder, &[&id], 0);
}

#[test]
fn sigterm_moves_jobs_where_it_is_told_to() {
    let mut plans = ["alpha", "beta", "gamma"].map(Plan::new);
    for plan in &mut plans {
        plan.tables = "[shutdown]\njobs = \"move\"\ndeadline = \"20s\"\nnotice = \"5s\"\n".into();
    }
    let mut mesh = Mesh::start(plans);
    let folder = mesh.folder.path().to_owned();
    let id = submit(mesh.state("alpha"), &training(&folder, "handed", 120, 50, "60s"));
    let first = cluster(&in_state(mesh.state("alpha"), &id, &["running"]));
    checkpointed(&folder, &id);
    let begun = Instant::now();
    let status = mesh.peers.iter_mut().find(|p| p.name == first).expect("it").terminate();
    assert!(
        status.success() && begun.elapsed() < Duration::from_secs(40),
        "{status} after {:?}",
        begun.elapsed()
    );
    let asked = mesh.peers.iter().find(|p| p.name != first).expect("another").state.clone();
    let job = succeeded(&asked, &id);
    let clusters = of_attempts(&job, "cluster");
    assert_eq!((clusters.len(), &clusters[0], &job["losses"]), (2, &json!(first), &json!(0)), "{job:#}");
    verdict_holds(&folder, &[&id], 1);
}

#[test]
fn sigterm_leaves_jobs_for_a_peer_that_comes_back() {
    let mut mesh = Mesh::three();
    let folder = mesh.folder.path().to_owned();
    let id = submit(mesh.state("alpha"), &training(&folder, "left", 150, 50, "60s"));
    let first = cluster(&in_state(mesh.state("alpha"), &id, &["running"]));
    checkpointed(&folder, &id);
    let peer = mesh.peers.iter_mut().find(|p| p.name == first).expect("it");
    let begun = Instant::now();
    let status = peer.terminate();
    assert!(
        status.success() && begun.elapsed() < Duration::from_secs(30),
        "{status} after {:?}",
        begun.elapsed()
    );
    peer.restart();
    let job = succeeded(mesh.state(&first), &id);
    assert_eq!(of_attempts(&job, "cluster"), [json!(first)], "{job:#}");
    verdict_holds(&folder, &[&id], 0);
}

#[test]
fn what_was_answered_is_there_after_kills_at_any_moment() {
    let mut mesh = Mesh::start(["alpha", "beta", "gamma"].map(Plan::new));
    let spec =
        "resources: {gpus: 1, cpus: 100m, memory: 100M}\nplacement: {clusters: [alpha]}\nrun: [\"true\"]\n";
    let mut answered = Vec::new();
    let mut seed = starling::base::Rng::new(7);
    for round in 0..4 {
        let state = mesh.state("beta").to_owned();
        let (tell, told) = std::sync::mpsc::channel();
        let submitter = std::thread::spawn(move || {
            // Until the peer is gone; each answer is a promise.
            let mut ids = Vec::new();
            for n in 0..10_000 {
                match try_submit(&state, spec, Some(&format!("round-{round}-{n}"))) {
                    Ok(id) => ids.push(id),
                    Err(_) => break,
                }
                // Nobody counts any more once the kill has come.
                let _ = tell.send(());
            }
            ids
        });
        // The moment of the kill: after a few answers, and then somewhere within the next ones.
        for _ in 0..2 + seed.below(6) {
            told.recv_timeout(LONG).expect("answers come");
        }
        std::thread::sleep(Duration::from_micros(seed.below(20_000)));
        mesh.peer_mut("beta").kill();
        answered.extend(submitter.join().expect("it ends"));
        mesh.peer_mut("beta").restart();
        mesh.agree();
    }
    assert!(answered.len() >= 8, "{}", answered.len());
    for id in &answered {
        // At the killed peer, and they all end well.
        let job = succeeded(mesh.state("beta"), id);
        assert_eq!(of_attempts(&job, "outcome").last(), Some(&exited(0)), "{job:#}");
        assert_eq!(of_attempts(&job, "epoch").len(), 1, "{job:#}");
    }
    // The same key is still the same job.
    let again = try_submit(mesh.state("beta"), spec, Some("round-0-0")).expect("taken");
    assert_eq!(again, answered[0]);
}

#[test]
fn a_name_that_joins_again_with_an_empty_disk_makes_nothing_twice() {
    let mut mesh = Mesh::start(["alpha", "beta", "gamma", "delta"].map(Plan::new));
    let spec = "resources: {gpus: 1, cpus: 100m, memory: 100M}\nrun: [\"true\"]\n";
    let state = mesh.state("delta").to_owned();
    // Of so many, some have homes that do not change when delta's disk does.
    let old: Vec<String> = (0..16).map(|_| submit(&state, spec)).collect();
    for id in &old {
        succeeded(mesh.state("alpha"), id);
    }
    mesh.peer_mut("delta").kill();
    cli(mesh.state("beta"), &["member", "remove", "--force", "delta"]).ok();
    std::fs::remove_dir_all(&state).expect("removed");
    let join = mesh.peer("beta").token();
    let delta = mesh.peer_mut("delta");
    delta.spawn(Some(&join));
    delta.wait_up();
    // With its report: others may place work there.
    mesh.agree();
    for id in (0..16).map(|_| submit(&state, spec)) {
        assert!(!old.contains(&id), "the id of a new job was an old one's: {id}");
        let job = succeeded(mesh.state("alpha"), &id);
        assert_eq!(of_attempts(&job, "epoch").len(), 1, "{job:#}");
    }
    let only = submit(mesh.state("alpha"), &format!("placement: {{clusters: [delta]}}\n{spec}"));
    assert_eq!(cluster_of_last(&succeeded(mesh.state("gamma"), &only)), "delta");
}

/// Where a job's newest attempt was.
fn cluster_of_last(job: &Value) -> String {
    of_attempts(job, "cluster").last().and_then(Value::as_str).expect("an attempt").to_owned()
}
