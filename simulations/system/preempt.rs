//! An urgent job and a cluster that is full of others, with real processes.

use serde_json::json;

use super::harness::*;
use super::mesh::{Mesh, Plan};

/// Two jobs fill the cluster. The urgent one sends the younger of the two low ones away: it gets its notice, keeps its
/// progress, and goes on from there afterwards. The one that must not be sent away runs through.
#[test]
fn an_urgent_job_sends_one_away_and_that_one_goes_on_later() {
    let mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha");
    let progress = mesh.folder.path().join("progress");
    let firm =
        submit(state, "name: firm\npriority: low\npreemptible: false\nresources: {gpus: 2}\nrun: sleep 15\n");
    in_state(state, &firm, &["running"]);
    let low = format!(
        "name: low\npriority: low\nresources: {{gpus: 2}}\nrun: |\n  if [ -e {0} ]; then exit 0; fi\n  \
         trap 'echo saved >{0}; exit 143' TERM\n  while :; do sleep 0.1; done\n",
        progress.display()
    );
    let low = submit(state, &low);
    in_state(state, &low, &["running"]);
    let urgent = submit(state, "name: urgent\npriority: high\nresources: {gpus: 2}\nrun: sleep 0.2\n");
    succeeded(state, &urgent);
    assert!(progress.exists(), "the victim had its notice");
    let job = succeeded(state, &low);
    let attempts = job["attempts"].as_array().expect("attempts");
    assert_eq!(attempts.len(), 2, "{job:#}");
    let why = attempts[0]["outcome"]["value"].as_str().unwrap_or_default();
    assert!(why.contains("preempted for") && why.contains("priority 75"), "{job:#}");
    assert_eq!((&job["failures"], &job["losses"]), (&json!(0), &json!(0)), "{job:#}");
    let job = succeeded(state, &firm);
    assert_eq!(job["attempts"].as_array().map(Vec::len), Some(1), "{job:#}");
}
