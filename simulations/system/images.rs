//! Jobs that are images, under a real podman where one is here and may run containers. The image is made on the spot
//! (a static busybox), so nothing is fetched; storage and settings are the test's own.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::harness::*;
use super::mesh::{Mesh, Plan};
use super::podman::{IMAGE, OWN, Podman};

fn peer(podman: &Podman) -> Plan {
    let mut plan = Plan::new("alpha");
    plan.tables = format!("[local]\ncontainer_runtime = \"{}\"\n", podman.program.display());
    plan
}

fn image(more: &str) -> String {
    format!("image: {IMAGE}\nresources: {{cpus: 1, memory: 100M}}\n{more}")
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Program, exit code, environment, checkpoint folder, the image's own entry point; a notice reaches the program, and
/// a cancel leaves no container; a peer that was killed finds its container again, and it ran once.
#[test]
fn images_run_under_podman() {
    let podman = match Podman::make() {
        Ok(podman) => podman,
        Err(why) => {
            eprintln!("not tried: images under podman: {why}");
            return;
        }
    };
    let mut mesh = Mesh::start([peer(&podman)]);
    let state = mesh.state("alpha").to_owned();
    let kept = mesh.folder.path().join("kept");
    fs::create_dir(&kept).expect("a folder");

    let spec = image(&format!(
        "run: |\n  echo rank $RANK of $WORLD_SIZE, $MINE\n  touch $CHECKPOINT_PATH/was-here\n  exit 7\nretries: 0\n\
         env: {{MINE: \"a b\"}}\ncheckpoint: {{path: {}, every: 1m}}\n",
        kept.display()
    ));
    let id = submit(&state, &spec);
    let job = ended(&state, &id);
    assert_eq!((&job["state"], &job["attempts"][0]["outcome"]), (&json!("failed"), &exited(7)), "{job:#}");
    assert_eq!(cli(&state, &["logs", &id]).ok().out.trim(), "rank 0 of 1, a b");
    assert!(kept.join("was-here").exists(), "the checkpoint folder is the host's");

    let id = submit(&state, &format!("image: {OWN}\nresources: {{cpus: 1, memory: 100M}}\n"));
    succeeded(&state, &id);
    assert_eq!(cli(&state, &["logs", &id]).ok().out.trim(), "its own");

    // The notice is a signal to what runs in the container; then the container is gone.
    let said = kept.join("said");
    let spec = image(&format!(
        "run: |\n  trap 'echo noticed >>{0}; exit 0' TERM\n  echo began >>{0}\n  while :; do sleep 0.1; done\n\
         checkpoint: {{path: {1}, every: 1m}}\n",
        said.display(),
        kept.display()
    ));
    let id = submit(&state, &spec);
    until("it began", || {
        (lines(&said) == ["began"]).then_some(()).ok_or_else(|| format!("{:?}", lines(&said)))
    });
    assert_eq!(podman.containers(), [format!("starling-{id}-1-0")]);
    cli(&state, &["cancel", &id]).ok();
    assert_eq!(ended(&state, &id)["state"], "cancelled");
    assert_eq!((lines(&said), podman.containers()), (vec!["began".to_owned(), "noticed".to_owned()], vec![]));

    // The peer dies: its container goes on, and the next process of that peer reads its end.
    let (count, go) = (kept.join("count"), kept.join("go"));
    let spec = image(&format!(
        "run: |\n  echo run >>{0}\n  while [ ! -e {1} ]; do sleep 0.1; done\n  exit 3\nretries: 0\n\
         checkpoint: {{path: {2}, every: 1m}}\non_lost_contact: {{grace: 60s}}\n",
        count.display(),
        go.display(),
        kept.display()
    ));
    let id = submit(&state, &spec);
    until("it began", || {
        (lines(&count) == ["run"]).then_some(()).ok_or_else(|| format!("{:?}", lines(&count)))
    });
    mesh.peer_mut("alpha").kill();
    assert_eq!(podman.containers().len(), 1, "it goes on");
    mesh.peer_mut("alpha").restart();
    in_state(&state, &id, &["running"]);
    fs::write(&go, "").expect("written");
    let job = ended(&state, &id);
    assert_eq!(of_attempts(&job, "outcome"), [exited(3)], "{job:#}");
    assert_eq!((lines(&count), podman.containers()), (vec!["run".to_owned()], vec![]));
}

/// The peer dies and does not come back: the guard ends the container at its deadline.
#[test]
fn a_container_does_not_outlive_its_lease() {
    let podman = match Podman::make() {
        Ok(podman) => podman,
        Err(why) => {
            eprintln!("not tried: images under podman: {why}");
            return;
        }
    };
    let mut mesh = Mesh::start([peer(&podman)]);
    let state = mesh.state("alpha").to_owned();
    let spec = image("run: while :; do sleep 0.1; done\non_lost_contact: {grace: 5s}\n");
    let id = submit(&state, &spec);
    in_state(&state, &id, &["running"]);
    until("its container runs", || {
        let there = podman.containers();
        (there.len() == 1).then_some(()).ok_or_else(|| format!("{there:?}"))
    });
    mesh.peer_mut("alpha").kill();
    until("the guard ended it", || {
        let there = podman.containers();
        there.is_empty().then_some(()).ok_or_else(|| format!("{there:?}"))
    });
}
