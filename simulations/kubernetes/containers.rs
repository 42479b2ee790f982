//! Pods as real containers of the peer's image and of jobs' own, where a static binary is given: the guard runs beside
//! another libc or none, as another user than the one that put it there, as the first process, and sees only its pod.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use starling::backends::Backend;
use starling::backends::conformance::{Ear, key, script, stop, wait_for_output};
use starling::base::Span;
use starling::core::BackendCommand;
use starling::core::api::StopReason;
use starling::model::Outcome;
use starling::model::spec::Run;

use super::backend::{Desk, none_left};
use super::ground::{Ground, block_on};
use super::podman::{IMAGE, PEER, Podman, static_binary};

/// Whom a job's image runs as: neither root nor the peer's.
const USER: &str = "1234:1234";

/// What a kubelet asks its runtime for.
pub fn command(
    podman: &Podman,
    container: &Value,
    uid: &str,
    own: &Path,
    places: &BTreeMap<String, PathBuf>,
) -> Command {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| -> Vec<Value> { value.as_array().cloned().unwrap_or_default() };
    let mut command = Command::new(&podman.program);
    command.args([
        "run",
        "--rm",
        "--network",
        "host",
        "--name",
        &format!("{uid}-{}", text(&container["name"])),
    ]);
    for mount in list(&container["volumeMounts"]) {
        let Some(place) = places.get(&text(&mount["name"])) else { continue };
        let only = if mount["readOnly"] == true { ":ro" } else { "" };
        command.arg("-v").arg(format!("{}:{}{only}", place.display(), text(&mount["mountPath"])));
    }
    if let Some(at) = container["terminationMessagePath"].as_str() {
        let word = own.join("last-word");
        fs::write(&word, "").expect("a file");
        fs::set_permissions(&word, fs::Permissions::from_mode(0o666)).expect("the container's");
        command.arg("-v").arg(format!("{}:{at}", word.display()));
    }
    for env in list(&container["env"]) {
        let value = match env["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("metadata.uid") => uid.to_owned(),
            _ => text(&env["value"]),
        };
        command.arg("-e").arg(format!("{}={value}", text(&env["name"])));
    }
    let of_peer = container["image"] == "starling";
    if let Some(given) = container["command"].as_array() {
        command.arg("--entrypoint").arg(json!(given).to_string());
    }
    if of_peer {
        command.args(["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges", PEER]);
    } else {
        let image = if container["image"] == "bare" { PEER } else { IMAGE };
        command.args(["--user", USER, image]);
    }
    command.args(list(&container["args"]).iter().map(text)).current_dir(own).stdin(Stdio::null());
    command
}

/// An exit code and a notice come through, the output is followed, and an image with nothing in it but the job's program
/// will do.
pub fn a_guard_enters_any_image() {
    let Some(binary) = static_binary() else {
        println!(
            "not tried: guards in real containers: STARLING_STATIC names no static binary (deploy/test static)"
        );
        return;
    };
    let podman = match Podman::make() {
        Ok(podman) => podman,
        Err(why) => {
            println!("not tried: guards in real containers: {why}");
            return;
        }
    };
    podman.pack(&binary).expect("the image is built");
    block_on(async {
        let ground = Ground::make().await;
        assert!(ground.wishes.podman.set(podman).is_ok());
        let desk = Desk::new(&ground, &ground.url, "containers", |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;

        desk.go(key(1), script("echo out of $STARLING_CLUSTER; echo err >&2; exit 7")).await;
        assert_eq!(ear.ended(key(1)).await, Outcome::Exited(7));
        wait_for_output(&*desk.backend, key(1), "out of here").await;
        wait_for_output(&*desk.backend, key(1), "err").await;

        // The notice is a signal to the program, not to its guard.
        let waits = "trap 'echo noticed; exit 0' TERM; echo begun; while :; do sleep 0.1; done";
        desk.go(key(2), script(waits)).await;
        ear.started(key(2)).await;
        wait_for_output(&*desk.backend, key(2), "begun").await;
        desk.backend.command(stop(key(2), Span::secs(20), StopReason::Cancel)).await;
        assert_eq!(ear.ended(key(2)).await, Outcome::Cancelled);
        wait_for_output(&*desk.backend, key(2), "begun").await;
        wait_for_output(&*desk.backend, key(2), "noticed").await;

        let mut bare = script("");
        bare.image = Some("bare".into());
        bare.run = Run::Argv(vec!["/usr/local/bin/starling".into(), "--version".into()]);
        desk.go(key(3), bare).await;
        assert_eq!(ear.ended(key(3)).await, Outcome::Exited(0));
        wait_for_output(&*desk.backend, key(3), "starling ").await;

        for n in [1, 2, 3] {
            desk.backend.command(BackendCommand::Forget { key: key(n) }).await;
        }
        none_left(&ground).await;
        assert_eq!(ground.wishes.podman.get().expect("set").containers(), Vec::<String>::new());
    });
}
