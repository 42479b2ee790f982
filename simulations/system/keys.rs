//! A retry under an idempotency key gives the same job at whichever peer, also while the one first asked is dead.

use axum::http::Method;
use serde_json::json;

use super::harness::*;
use super::mesh::Mesh;

const SPEC: &str = "name: once\nresources: {gpus: 1}\nrun: 'true'\n";

/// The job's id, and whether it was there already.
fn keyed(state: &std::path::Path, key: &str) -> (String, bool) {
    let taken = ask(state, Method::POST, "/v1/jobs", Some(SPEC.as_bytes()), &[("idempotency-key", key)]);
    let taken = taken.unwrap_or_else(|e| panic!("not taken: {e:?}"));
    (taken["id"].as_str().expect("an id").to_owned(), taken["existed"] == true)
}

#[test]
fn one_key_is_one_job_at_three_peers_and_over_a_kill_of_the_one_asked() {
    let mut mesh = Mesh::three();
    let states = ["alpha", "beta", "gamma"].map(|name| mesh.state(name).to_owned());
    let answers: Vec<(String, bool)> = states.iter().map(|state| keyed(state, "one")).collect();
    let id = answers[0].0.clone();
    assert_eq!(answers, [(id.clone(), false), (id.clone(), true), (id.clone(), true)]);
    // At all of them at the same moment: one of the answers says that it is new.
    let at_once: Vec<_> = states.iter().cycle().take(6).cloned().collect();
    let threads = at_once.into_iter().map(|state| std::thread::spawn(move || keyed(&state, "at-once")));
    let threads: Vec<_> = threads.collect();
    let answers: Vec<(String, bool)> = threads.into_iter().map(|t| t.join().expect("answered")).collect();
    assert!(answers.iter().all(|(job, _)| *job == answers[0].0), "{answers:?}");
    assert_eq!(answers.iter().filter(|(_, existed)| !existed).count(), 1, "{answers:?}");

    // Killed right after its answer; the others have not noticed yet.
    let (third, existed) = keyed(&states[0], "killed");
    assert!(!existed);
    mesh.peers[0].kill();
    assert_eq!(keyed(&states[1], "killed"), (third.clone(), true));
    assert_eq!(keyed(&states[2], "killed"), (third.clone(), true));
    assert_eq!(keyed(&states[2], "one"), (id.clone(), true));
    // One of three dead is no reason to take no new job.
    let (fourth, existed) = keyed(&states[2], "new");
    assert!(!existed);
    let other =
        ask(&states[1], Method::POST, "/v1/jobs", Some(b"run: 'false'"), &[("idempotency-key", "new")]);
    assert_eq!(other.map_err(|(status, body)| (status, body.code)), Err((409, "key_reused".into())));
    mesh.peers[0].restart();
    mesh.agree();
    assert_eq!(keyed(&states[0], "new"), (fourth, true));
    assert_eq!(keyed(&states[0], "killed"), (third, true));
    let list = get(&states[0], "/v1/jobs").expect("the list");
    assert_eq!(list["jobs"].as_array().map(Vec::len), Some(4), "{list:#}");
}

#[test]
fn a_reservation_from_now_on_is_the_same_when_it_is_asked_again() {
    let mesh = Mesh::three();
    let reserve = |name: &str| {
        let line = ["--json", "reserve", "--tenant", "t", "--gpus", "1", "--for", "60s", "--key", "r"];
        cli(mesh.state(name), &line).ok().json()
    };
    let first = reserve("alpha");
    for name in ["alpha", "beta"] {
        let again = reserve(name);
        assert_eq!((&again["id"], &again["state"]), (&first["id"], &json!("running")), "{again:#}");
    }
    let line = ["reserve", "--tenant", "t", "--gpus", "2", "--for", "60s", "--key", "r"];
    let other = cli(mesh.state("alpha"), &line);
    assert_eq!(other.code, 5, "{other:?}");
    assert!(other.err.contains("used for another job"), "{other:?}");
}
