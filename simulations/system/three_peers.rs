//! Three peers: any of them answers for all, and work goes where it is told.

use serde_json::{Value, json};

use super::harness::*;
use super::mesh::{Mesh, PeerProcess};

#[test]
fn a_job_is_run_read_and_ended_through_different_peers() {
    let mesh = Mesh::three();
    let (a, b, c) = (mesh.state("alpha"), mesh.state("beta"), mesh.state("gamma"));
    let spec = "name: there\nresources: {gpus: 1}\nplacement: {clusters: [beta]}\nrun: 'echo at $STARLING_CLUSTER; exec sleep 600'\n";
    let id = submit(a, spec);
    let job = in_state(a, &id, &["running"]);
    assert_eq!(job["cluster"], "beta", "{job:#}");
    assert_eq!(job["homes"].as_array().map(Vec::len), Some(3), "{job:#}");
    for state in [a, b, c] {
        until("the log is read", || {
            let out = cli(state, &["logs", &id[..10]]);
            if out.out.contains("at beta") { Ok(()) } else { Err(format!("{out:?}")) }
        });
        let list = cli(state, &["--json", "jobs", "--complete"]).ok().json();
        assert_eq!(list["jobs"].as_array().map(Vec::len), Some(1), "{list:#}");
    }
    cli(c, &["cancel", &id]).ok();
    for state in [a, b, c] {
        let job = ended(state, &id);
        assert_eq!(
            (&job["state"], &job["attempts"][0]["cluster"]),
            (&json!("cancelled"), &json!("beta")),
            "{job:#}"
        );
    }
}

#[test]
fn peers_agree_about_clusters_links_and_the_tree() {
    let mesh = Mesh::three();
    let names = ["alpha", "beta", "gamma"];
    let of = |list: &Value, key: &str| -> Vec<String> {
        let mut found: Vec<String> =
            list.as_array().into_iter().flatten().filter_map(|x| Some(x[key].as_str()?.to_owned())).collect();
        found.sort_unstable();
        found
    };
    for name in names {
        let peer = mesh.peer(name);
        let clusters = cli(&peer.state, &["--json", "clusters"]).ok().json();
        assert_eq!(of(&clusters["clusters"], "name"), names, "{clusters:#}");
        assert_eq!(
            of(&clusters["clusters"], "region"),
            ["ap-south", "eu-central", "us-east"],
            "{clusters:#}"
        );
        let members = cli(&peer.state, &["--json", "member", "list"]).ok().json();
        assert_eq!(of(&members["members"], "name"), names, "{members:#}");
        let links = until("all six links are measured", || {
            let links = get(&peer.state, "/v1/links")?;
            let list = links["links"].as_array().cloned().unwrap_or_default();
            let direct = list
                .iter()
                .filter(|l| l["direct"] == true && l["rtt_ms"].as_f64().is_some_and(|r| r > 0.0))
                .count();
            if direct == 6 { Ok(links) } else { Err(links.to_string()) }
        });
        assert_eq!(links["links"].as_array().map(Vec::len), Some(6), "{links:#}");
        let tree = cli(&peer.state, &["view", "--tree"]).ok().out;
        for part in
            ["eu-central", "us-east", "ap-south", "alpha", "beta", "gamma", "pool", "region", "cluster"]
        {
            assert!(tree.contains(part), "{part}: {tree}");
        }
        let matrix = cli(&peer.state, &["links"]).ok().out;
        assert!(names.iter().all(|n| matrix.contains(n)), "{matrix}");
    }
}

#[test]
fn a_drained_cluster_hands_back_and_takes_again() {
    let mesh = Mesh::three();
    let (a, folder) = (mesh.state("alpha"), mesh.folder.path());
    let id = submit(a, &training(folder, "drained", 60, 50, "20s"));
    let job = in_state(a, &id, &["running"]);
    let first = job["cluster"].as_str().expect("a cluster").to_owned();
    // Asked at another peer than the one that drains.
    let other = mesh.peers.iter().find(|p| p.name != first).expect("another");
    let done = cli(&other.state, &["--json", "drain", &first]).ok().json();
    assert_eq!((&done["cluster"], &done["draining"]), (&json!(first), &json!(true)), "{done:#}");
    let job = succeeded(a, &id);
    let clusters = of_attempts(&job, "cluster");
    assert_eq!((&clusters[0], clusters.len()), (&json!(first), 2), "{job:#}");
    assert_ne!(clusters[1], json!(first), "{job:#}");
    assert_eq!((&job["failures"], &job["losses"]), (&json!(0), &json!(0)), "{job:#}");
    verdict_holds(folder, &[&id], 1);

    let only = format!("resources: {{gpus: 1}}\nplacement: {{clusters: [{first}]}}\nrun: [\"true\"]\n");
    let waits = submit(a, &only);
    until("why says that it drains", || {
        let why = get(a, &format!("/v1/jobs/{waits}/why"))?;
        let row =
            why["clusters"].as_array().and_then(|c| c.iter().find(|c| c["cluster"] == json!(first)).cloned());
        if row.is_some_and(|r| r["reasons"].to_string().contains("drain")) {
            Ok(())
        } else {
            Err(why.to_string())
        }
    });
    assert_eq!(job_state(a, &waits), "pending");
    cli(&other.state, &["undrain", &first]).ok();
    let job = succeeded(a, &waits);
    assert_eq!(job["attempts"][0]["cluster"], json!(first), "{job:#}");
}

/// One that is told to stop says so: the others take it for gone at once. Of one that only falls silent they are in doubt
/// for many seconds first.
#[test]
fn a_peer_that_stops_says_goodbye() {
    /// What a peer takes it for once it is not alive any more.
    fn next(peer: &PeerProcess) -> String {
        until("it is seen to be away", || match peer.sees("gamma")?.as_str() {
            "alive" => Err("alive".into()),
            other => Ok(other.to_owned()),
        })
    }
    let mut mesh = Mesh::three();
    assert!(mesh.peer_mut("gamma").terminate().success());
    for name in ["alpha", "beta"] {
        assert_eq!(next(mesh.peer(name)), "lost", "{name}");
    }
    // It comes back to where it was.
    mesh.peer_mut("gamma").restart();
    mesh.agree();
    mesh.peer_mut("gamma").kill();
    for name in ["alpha", "beta"] {
        assert_eq!(next(mesh.peer(name)), "suspect", "{name}");
    }
}
