//! A rolling upgrade of a running mesh: every peer in turn goes from the build before to this one, under
//! work, and back again one of them goes.

use std::path::PathBuf;

use serde_json::json;

use super::harness::*;
use super::mesh::{Mesh, Plan};

/// The build before; `deploy/test` makes it from the previous commit and names it here.
fn previous() -> Option<PathBuf> {
    std::env::var_os("STARLING_PREVIOUS").map(PathBuf::from)
}

#[test]
fn a_running_mesh_is_upgraded_peer_by_peer() {
    let Some(old) = previous() else {
        println!("not tried: a rolling upgrade: STARLING_PREVIOUS names no build of the previous commit");
        return;
    };
    let plan = |name| Plan { binary: old.clone(), ..Plan::new(name) };
    let mut mesh = Mesh::start(["alpha", "beta", "gamma"].map(plan));
    let folder = mesh.folder.path().to_owned();
    let long: Vec<String> = ["alpha", "beta", "gamma"]
        .iter()
        .map(|name| submit(mesh.state(name), &training(&folder, &format!("long-{name}"), 400, 50, "60s")))
        .collect();
    for id in &long {
        in_state(mesh.state("alpha"), id, &["running"]);
    }
    let mut all = long.clone();
    for (n, name) in ["alpha", "beta", "gamma"].into_iter().enumerate() {
        let peer = mesh.peer_mut(name);
        assert!(peer.terminate().success(), "{}", peer.words());
        peer.replan(|plan| plan.binary = STARLING.into());
        peer.restart();
        mesh.agree();
        // Old and new homes, owners and clusters work on the same records now, whoever is asked.
        for (m, asked) in ["alpha", "beta", "gamma"].into_iter().enumerate() {
            let spec = training(&folder, &format!("mixed-{n}-{m}"), 10, 20, "60s");
            let id = submit(mesh.state(asked), &spec);
            all.push(id);
        }
        for id in all.iter().rev().take(3) {
            succeeded(mesh.state("gamma"), id);
        }
    }
    for id in &long {
        let job = succeeded(mesh.state("beta"), id);
        assert_eq!((of_attempts(&job, "epoch"), &job["losses"]), (vec![json!(1)], &json!(0)), "{job:#}");
    }
    // One goes back, as after an upgrade that somebody regrets: it reads what the new build wrote.
    let peer = mesh.peer_mut("beta");
    assert!(peer.terminate().success(), "{}", peer.words());
    peer.replan(|plan| plan.binary.clone_from(&old));
    peer.restart();
    mesh.agree();
    let id = submit(mesh.state("beta"), &training(&folder, "back", 10, 20, "60s"));
    succeeded(mesh.state("alpha"), &id);
    all.push(id);
    let ids: Vec<&str> = all.iter().map(String::as_str).collect();
    verdict_holds(&folder, &ids, 0);
}
