//! Reservations with real processes: others wait with the reason, the tenant's job starts at once, and at the end all is as before.

use serde_json::{Value, json};
use starling::base::WallTime;
use starling::model::timestamp::to_rfc3339;

use super::harness::*;
use super::mesh::{Mesh, Plan};

fn now_ms() -> u64 {
    starling::surface::documents::wall_now().0
}

/// What the cluster says that it keeps.
fn kept(state: &std::path::Path, name: &str) -> Result<Value, String> {
    get(state, &format!("/v1/clusters/{name}"))
}

#[test]
fn a_reservation_keeps_its_gpus_over_a_restart_and_gives_them_back() {
    let mut mesh = Mesh::start([Plan::new("alpha"), Plan::new("beta"), Plan::new("gamma")]);
    mesh.agree();
    let state = mesh.state("beta").to_owned();
    let from = (now_ms() / 1_000 + 12) * 1_000;
    let from_text = to_rfc3339(WallTime(from));
    let reserve = |tenant: &str, more: &[&str]| {
        let line =
            ["reserve", "--tenant", tenant, "--gpus", "4", "--from", &from_text, "--for", "30s", "--json"];
        cli(&state, &[&line[..], more].concat())
    };
    let taken = reserve("vision", &["--cluster", "alpha", "--gpu", "A100-80G"]).ok().json();
    assert_eq!(taken["state"], "running", "{taken:#}");
    let id = taken["id"].as_str().expect("an id").to_owned();
    // A second one for the same GPUs is refused, says why and from when on, and is no mistake of the caller.
    let refused = reserve("speech", &["--cluster", "alpha"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    let why = refused.json()["reason"].as_str().unwrap_or_default().to_owned();
    let until_text = to_rfc3339(WallTime(from + 30_000));
    assert!(
        why.contains("0 of 4 GPUs") && why.contains(&format!("could be kept from {until_text}")),
        "{why}"
    );
    // One at both others is had whole.
    let both = reserve("speech", &["--cluster", "beta", "--cluster", "gamma"]).ok().json();
    assert_eq!(both["clusters"].as_array().map(Vec::len), Some(2), "{both:#}");
    cli(&state, &["unreserve", both["id"].as_str().expect("an id")]).ok();
    // Who might still run then waits at alpha, and is told why; so is who only asks.
    let job = |tenant: &str| {
        format!(
            "name: j\ntenant: {tenant}\npreemptible: false\nresources: {{gpus: 4}}\nplacement: {{clusters: [alpha]}}\nrun: sleep 0.2\n"
        )
    };
    let waits = submit(&state, &job("other"));
    let reason = until("the reason is told", || {
        let why = get(&state, &format!("/v1/jobs/{waits}/why"))?;
        let of_alpha =
            why["clusters"].as_array().into_iter().flatten().find(|c| c["cluster"] == "alpha").cloned();
        let reasons = of_alpha.map(|c| c["reasons"].to_string()).unwrap_or_default();
        let found = reasons.contains("are reserved for").then_some(reasons);
        found.ok_or_else(|| why.to_string())
    });
    assert!(
        reason.contains(&format!("4 GPUs are reserved for tenant vision from {from_text} to {until_text}")),
        "{reason}"
    );
    // The peer that keeps it is killed, and comes back.
    mesh.peer_mut("alpha").kill();
    mesh.peer_mut("alpha").restart();
    let cluster = until("alpha keeps it, as reserved", || {
        let cluster = kept(&state, "alpha")?;
        let reserved = cluster["gpus"]["A100-80G"]["reserved"] == 4;
        if reserved { Ok(cluster) } else { Err(cluster["gpus"].to_string()) }
    });
    assert!(now_ms() >= from, "not before its time");
    assert_eq!(cluster["reservations"][0]["id"], json!(id), "{cluster:#}");
    assert_eq!(cluster["reservations"][0]["tenant"], "vision");
    // The tenant's job starts there, while the other one waits.
    let own = submit(&state, &job("vision"));
    let own = succeeded(&state, &own);
    assert_eq!(own["attempts"][0]["cluster"], "alpha");
    let other = super::harness::job(&state, &waits).expect("answers");
    assert_eq!(other["state"], "pending", "{other:#}");
    assert!(now_ms() < from + 30_000, "all of that was within its time");
    // At its end the other one's turn comes.
    succeeded(&state, &waits);
    assert!(now_ms() >= from + 30_000);
    let over = until("the record says that it is over", || {
        let over = get(&state, &format!("/v1/reservations/{}", &id[..8]))?;
        if over["done"] == true { Ok(over) } else { Err(over.to_string()) }
    });
    assert_eq!(over["state"], "succeeded", "{over:#}");
    until("the cluster keeps nothing more", || match &kept(&state, "alpha")?["reservations"] {
        none if *none == json!([]) => Ok(()),
        some => Err(some.to_string()),
    });
    let list = cli(&state, &["reservations", "--all", "--json"]).ok().json();
    assert_eq!(list["reservations"].as_array().map(Vec::len), Some(3), "{list:#}");
    // It is no job.
    let jobs = cli(&state, &["jobs", "--json"]).ok().json();
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(2), "{jobs:#}");
    assert_eq!(cli(&state, &["unreserve", &waits]).code, 3, "a job is no reservation");
}

#[test]
fn what_cannot_be_reserved_is_refused_with_what_to_do() {
    let mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha");
    let reserve = |more: &[&str]| cli(state, &[&["reserve", "--tenant", "t"][..], more].concat());
    for (line, code, says) in [
        (vec!["--gpus", "9", "--for", "1h"], 2, "no cluster can ever"),
        (vec!["--gpus", "1", "--for", "1h", "--cluster", "nobody"], 2, "nobody is no cluster of this mesh"),
        (vec!["--gpus", "1", "--for", "1s"], 2, "must last"),
        (vec!["--gpus", "0", "--for", "1h"], 2, "gpus must be"),
        (vec!["--gpus", "1", "--for", "1h", "--from", "2001-01-01T00:00:00Z"], 2, "in the past"),
        (vec!["--gpus", "1", "--for", "1h", "--clusters", "2"], 5, "only 1 of 2 clusters"),
    ] {
        let out = reserve(&line);
        assert!(out.code == code && (out.err.clone() + &out.out).contains(says), "{line:?}: {out:?}");
    }
    let empty = cli(state, &["reservations"]).ok();
    assert!(empty.out.contains("nothing is reserved"), "{empty:?}");
}
