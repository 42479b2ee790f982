//! Pods as real containers of the peer's image and of jobs' own, where a static binary is given: the guard runs beside
//! another libc or none, as another user than the one that put it there, as the first process, and sees only its pod.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use starling::backends::Backend;
use starling::backends::conformance::{Ear, key, script, stop, wait_for_output};
use starling::base::Span;
use starling::core::BackendCommand;
use starling::core::api::StopReason;
use starling::model::Outcome;
use starling::model::spec::Run;
use tokio::net::{TcpListener, TcpStream};

use super::backend::{Desk, none_left};
use super::ground::{Ground, NAMESPACE, block_on};
use super::harness::{cli, get, submit, succeeded, until};
use super::podman::{IMAGE, PEER, Podman, packed, volume};

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
    let Some(podman) = packed("guards in real containers") else { return };
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

/// A certificate authority.
pub fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    // As every cluster's is called.
    params.distinguished_name.push(rcgen::DnType::CommonName, "kubernetes");
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// The API server behind TLS, with a certificate of this authority: its port.
pub async fn behind_tls(upstream: &str, by: &CertifiedIssuer<'static, KeyPair>) -> u16 {
    let upstream = upstream.trim_start_matches("http://").to_owned();
    let own = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address");
    let made = params.signed_by(&own, by).expect("a certificate");
    let key = PrivateKeyDer::try_from(own.serialize_der()).expect("a key");
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.der().clone()], key)
        .expect("a certificate with its key");
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, upstream) = (acceptor.clone(), upstream.clone());
            tokio::spawn(async move {
                let Ok(mut wire) = acceptor.accept(tcp).await else { return };
                let Ok(mut server) = TcpStream::connect(upstream).await else { return };
                // Whoever hangs up ends it.
                let _ = tokio::io::copy_bidirectional(&mut wire, &mut server).await;
            });
        }
    });
    port
}

/// The peer of deploy/kubernetes: it finds the API server by its pod's account, over TLS, and its jobs' guards come out of
/// the image that it runs in.
pub fn the_image_drives_the_cluster_it_runs_in() {
    if super::real::binaries().is_some() {
        println!("not tried: the peer's image in front of a real kube-apiserver, whose account it has not");
        return;
    }
    let Some(podman) = packed("the peer's image in front of Kubernetes") else { return };
    // The cluster is played on this runtime; what follows blocks on processes.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let ground = runtime.block_on(Ground::make());
    assert!(ground.wishes.podman.set(podman).is_ok());
    let podman = ground.wishes.podman.get().expect("set");
    let authority = authority();
    let port = runtime.block_on(behind_tls(&ground.url, &authority));
    let folder = ground.folder("image");
    let (state, account, etc) = (volume(&folder, "state"), folder.join("account"), folder.join("etc"));
    fs::create_dir(&account).expect("a folder");
    for (name, text) in [("ca.crt", authority.pem().as_str()), ("token", "peer"), ("namespace", NAMESPACE)] {
        fs::write(account.join(name), text).expect("written");
    }
    fs::create_dir(&etc).expect("a folder");
    let config = "name = \"kube\"\nlisten = \"127.0.0.1:0\"\nbackend = \"kubernetes\"\n[api]\nlisten = \"off\"\n\
        [kubernetes]\nimage = \"plain\"\nguard_image = \"starling\"\nguard_host = \"127.0.0.1\"\ninterval = \"300ms\"\n\
        [timing]\nrenew_every = \"500ms\"\nmargin = \"1s\"\nprobe_every = \"never\"\n";
    fs::write(etc.join("starling.toml"), config).expect("a configuration");
    let mounts = [
        format!("{}:/var/lib/starling", state.display()),
        format!("{}:/etc/starling:ro", etc.display()),
        format!("{}:/var/run/secrets/kubernetes.io/serviceaccount:ro", account.display()),
    ];
    let server = format!("KUBERNETES_SERVICE_PORT={port}");
    let args = [
        ["run", "-d", "--name", "peer", "--network", "host", "--read-only", "--cap-drop", "all"].as_slice(),
        &["--security-opt", "no-new-privileges", "-v", &mounts[0], "-v", &mounts[1], "-v", &mounts[2]],
        &["-e", "KUBERNETES_SERVICE_HOST=127.0.0.1", "-e", &server, PEER],
        &["up", "--config", "/etc/starling/starling.toml", "--state", "/var/lib/starling"],
    ];
    podman.said(&args.concat()).expect("it starts");
    let words = || String::from_utf8_lossy(&podman.run(&["logs", "peer"]).stderr).into_owned();
    until("it sees its GPUs", || {
        let seen = get(&state, "/v1/clusters").map_err(|e| format!("{e}: {}", words()))?;
        if seen["clusters"][0]["gpus"]["H100"]["free"] == 12 { Ok(()) } else { Err(seen.to_string()) }
    });
    let id = submit(&state, "resources: {gpus: 4, gpu: H100}\nrun: echo on $STARLING_CLUSTER\n");
    succeeded(&state, &id);
    assert!(cli(&state, &["logs", &id]).ok().out.contains("on kube"));
    podman.said(&["stop", "-t", "60", "peer"]).expect("it stops");
    let code = podman.said(&["inspect", "peer", "--format", "{{.State.ExitCode}}"]);
    assert_eq!(code.as_deref().map(str::trim), Ok("0"), "{}", words());
    block_on(async { drop(ground) });
}
