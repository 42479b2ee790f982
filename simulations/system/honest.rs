//! What a mesh says when it cannot do more: disks put back from a copy, witnesses, meshes of two, lists with gaps.

use std::fs;
use std::path::Path;

use axum::http::Method;
use serde_json::{Value, json};

use super::harness::*;
use super::mesh::{Mesh, Plan};

const STORE: [&str; 4] = ["store.redb", "store.0.log", "store.1.log", "format"];

fn copy_store(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for file in STORE {
        let _ = fs::remove_file(to.join(file));
        if from.join(file).exists() {
            fs::copy(from.join(file), to.join(file)).expect("a copy");
        }
    }
}

fn member(state: &Path, name: &str) -> Result<Value, String> {
    let list = get(state, "/v1/members")?;
    let members = list["members"].as_array().cloned().unwrap_or_default();
    members.into_iter().find(|m| m["name"] == name).ok_or_else(|| format!("{list}"))
}

#[test]
fn a_store_that_is_put_back_from_a_copy_is_put_aside() {
    let mut mesh = Mesh::three();
    let folder = mesh.folder.path().to_owned();
    let mut all = vec![submit(mesh.state("alpha"), &training(&folder, "before", 5, 10, "60s"))];
    succeeded(mesh.state("beta"), &all[0]);
    let beta = mesh.state("beta").to_owned();
    let disk = member(mesh.state("alpha"), "beta").expect("a member")["store"].clone();
    // An operator's copy: of a peer that was stopped in order.
    assert!(mesh.peer_mut("beta").terminate().success());
    copy_store(&beta, &folder.join("copy"));
    mesh.peer_mut("beta").restart();
    mesh.agree();
    // Some seconds of work that the copy knows nothing of.
    for n in 0..3 {
        let id = submit(mesh.state("beta"), &training(&folder, &format!("after-{n}"), 50, 50, "60s"));
        succeeded(mesh.state("beta"), &id);
        all.push(id);
    }
    mesh.peer_mut("beta").kill();
    copy_store(&folder.join("copy"), &beta);
    mesh.peer_mut("beta").spawn(None);
    let now = until("beta has a new disk", || {
        let member = member(mesh.state("alpha"), "beta")?;
        if member["store"] == disk { Err(format!("{member}")) } else { Ok(member["store"].clone()) }
    });
    mesh.peer_mut("beta").wait_up();
    mesh.agree();
    for peer in ["alpha", "beta", "gamma"] {
        until(&format!("{peer} says so"), || {
            let cluster = get(mesh.state(peer), "/v1/clusters/beta")?;
            let note = cluster["disk_note"].as_str().unwrap_or_default();
            if note.contains("older copy") { Ok(()) } else { Err(format!("{cluster}")) }
        });
        assert_eq!(member(mesh.state(peer), "beta").expect("a member")["store"], now);
    }
    for command in ["clusters", "view"] {
        let told = cli(mesh.state("gamma"), &[command]).ok().out;
        assert!(told.contains("older copy"), "{told}");
    }
    assert!(mesh.peer("beta").words().contains("older copy"));
    let kept = fs::read_dir(beta.join("aside")).expect("a folder").count();
    assert_eq!(kept, 1, "the old store is kept");
    // Nothing that was answered is lost or run again, whoever is asked; and the new disk is a home like any other.
    all.push(submit(mesh.state("beta"), &training(&folder, "on-the-new-disk", 5, 10, "60s")));
    for id in &all {
        for peer in ["alpha", "beta", "gamma"] {
            let job = succeeded(mesh.state(peer), id);
            assert_eq!(of_attempts(&job, "epoch"), [json!(1)], "{job:#}");
        }
    }
    let ids: Vec<&str> = all.iter().map(String::as_str).collect();
    verdict_holds(&folder, &ids, 0);
    // A further start finds nothing wrong.
    mesh.peer_mut("beta").kill();
    mesh.peer_mut("beta").restart();
    mesh.agree();
    assert_eq!(member(mesh.state("alpha"), "beta").expect("a member")["store"], now);
    succeeded(mesh.state("beta"), &all[1]);
}

#[test]
fn two_clusters_and_a_witness_bear_the_loss_of_one() {
    let witness = Plan { witness: true, ..Plan::new("gamma") };
    let mut mesh = Mesh::start([Plan::new("alpha"), Plan::new("beta"), witness]);
    let folder = mesh.folder.path().to_owned();
    let id = submit(mesh.state("gamma"), &training(&folder, "moves", 200, 50, "4s"));
    let first = in_state(mesh.state("gamma"), &id, &["running"])["cluster"].as_str().expect("one").to_owned();
    checkpointed(&folder, &id);
    let lost = mesh.peer_mut(&first);
    lost.kill();
    kill_attempts(&lost.state);
    let job = succeeded(mesh.state("gamma"), &id);
    let other = if first == "alpha" { "beta" } else { "alpha" };
    assert_eq!(of_attempts(&job, "cluster"), [json!(first), json!(other)], "{job:#}");
    verdict_holds(&folder, &[&id], 1);
    // One cluster and the witness take jobs and run them; the witness runs none, even when it is asked to.
    let next = submit(mesh.state("gamma"), &training(&folder, "next", 5, 10, "4s"));
    let job = succeeded(mesh.state(other), &next);
    assert_eq!(of_attempts(&job, "cluster"), [json!(other)], "{job:#}");
    let there = training(&folder, "there", 5, 10, "4s") + "placement: {clusters: [gamma]}\n";
    let (status, body) = try_submit(mesh.state(other), &there, None).expect_err("nothing runs there");
    assert_eq!((status, body.code.as_str()), (422, "fits_nowhere"), "{body:?}");
    let inspect = mesh.peer("gamma").get("/v1/local/inspect");
    assert_eq!(inspect["core"]["attempts"], json!([]), "{inspect:#}");
    assert_eq!(inspect["core"]["queue"], json!([]), "{inspect:#}");
    let cluster = mesh.peer("gamma").get("/v1/clusters/gamma");
    assert_eq!((&cluster["witness"], &cluster["gpus"]), (&json!(true), &json!({})), "{cluster:#}");
}

#[test]
fn two_peers_cannot_decide_alone_and_say_so() {
    let mut mesh = Mesh::start(["alpha", "beta"].map(Plan::new));
    let folder = mesh.folder.path().to_owned();
    let spec = |name: &str| training(&folder, name, 5, 10, "60s");
    let mut all = vec![submit(mesh.state("alpha"), &spec("both"))];
    succeeded(mesh.state("beta"), &all[0]);
    mesh.peer_mut("beta").kill();
    let alpha = mesh.state("alpha").to_owned();
    // What is decided is the record's: one of two homes is not enough to read it.
    let path = format!("/v1/jobs/{}", all[0]);
    let (status, body) = ask(&alpha, Method::GET, &path, None, &[]).expect_err("one of two");
    assert_eq!((status, body.code.as_str()), (504, "outcome_unknown"), "{body:?}");
    assert!(body.message.contains("of 2 homes"), "{body:?}");
    let (status, body) = try_submit(&alpha, &spec("refused"), None).expect_err("one of two");
    assert!(matches!(body.code.as_str(), "outcome_unknown" | "no_homes"), "{status} {body:?}");
    // A list shows what is held here, and who is missing.
    let list = get(&alpha, "/v1/jobs").expect("a list");
    assert_eq!(list["unanswered"], json!(["beta"]), "{list:#}");
    assert!(list["jobs"].as_array().is_some_and(|jobs| jobs.iter().any(|j| j["id"] == json!(all[0]))));
    let told = cli(&alpha, &["jobs", "--complete"]);
    assert!(told.code == 7 && told.out.contains("no answer from beta"), "{told:?}");
    mesh.peer_mut("beta").restart();
    mesh.agree();
    succeeded(&alpha, &all[0]);
    for n in 0..4 {
        all.push(submit(&alpha, &spec(&format!("again-{n}"))));
    }
    for id in &all {
        succeeded(mesh.state("beta"), id);
    }
    // Pages: in order, each job once.
    let (mut seen, mut before) = (Vec::new(), None::<String>);
    loop {
        let mut args = vec!["--json", "jobs", "--limit", "2", "--since", "1h"];
        args.extend(before.iter().flat_map(|b| ["--before", b.as_str()]));
        let page = cli(&alpha, &args).ok().json();
        let jobs = page["jobs"].as_array().expect("jobs").clone();
        assert!(jobs.len() <= 2, "{page:#}");
        seen.extend(
            jobs.iter().map(|j| (j["submitted_at_ms"].as_u64(), j["id"].as_str().map(str::to_owned))),
        );
        match page["next"].as_str() {
            Some(next) => before = Some(next.to_owned()),
            None => break,
        }
    }
    assert!(seen.is_sorted_by(|a, b| a > b), "{seen:?}");
    for id in &all {
        assert!(seen.iter().any(|(_, s)| s.as_deref() == Some(id)), "{id} in {seen:?}");
    }
    let none = cli(&alpha, &["--json", "jobs", "--until", "2020-01-01T00:00:00Z"]).ok().json();
    assert_eq!(none["jobs"], json!([]));
    assert_eq!(cli(&alpha, &["jobs", "--since", "yesterday"]).code, 2);
}
