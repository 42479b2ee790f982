//! The account of the pod that a peer runs in: its fixed files, in a mount namespace of its own, and what becomes of a
//! peer whose token is refused, or whose ca.crt is another cluster's, until its files are right again.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use serde_json::Value;

use super::backend::lines;
use super::cluster::call;
use super::containers::{authority, behind_tls};
use super::ground::{Ground, NAMESPACE, block_on};
use super::harness::{STARLING, cli, command_of, in_state, job, of_attempts, submit, succeeded, until};
use super::mesh::Peer;

/// A pod's file system as far as its account goes; the machine's own stays as it is.
const POD: &str = "mount -t tmpfs tmpfs /var/run; at=/var/run/secrets/kubernetes.io/serviceaccount; \
    mkdir -p $at; mount --bind \"$1\" $at; shift; exec \"$@\" --backend kubernetes";

/// Why there are no mount namespaces here.
fn no_pods() -> Option<String> {
    let tried = command_of(Path::new("unshare"))
        .args(["--mount", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/var/run"])
        .output();
    match tried {
        Ok(done) if done.status.success() => None,
        Ok(done) => Some(String::from_utf8_lossy(&done.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// `starling` in a pod that has these files for an account; no kubeconfig is to be found.
fn in_a_pod(account: &Path, home: &Path, port: u16) -> Command {
    let mut command = command_of(Path::new("unshare"));
    command.args(["--mount", "--propagation", "private", "sh", "-ec", POD, "sh"]).arg(account).arg(STARLING);
    command.env("HOME", home).env("KUBECONFIG", home.join("none"));
    command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env("KUBERNETES_SERVICE_PORT", port.to_string());
    command
}

/// Files as a kubelet projects them: all of a version become seen at once.
struct Account {
    folder: PathBuf,
    versions: u32,
}

impl Account {
    fn new(folder: PathBuf, ca: &str, token: &str) -> Self {
        let mut account = Self { folder, versions: 0 };
        account.write(ca, token);
        for name in ["ca.crt", "token", "namespace"] {
            symlink(Path::new("..data").join(name), account.folder.join(name)).expect("a link");
        }
        account
    }

    fn write(&mut self, ca: &str, token: &str) {
        self.versions += 1;
        let version = format!("..version-{}", self.versions);
        let files = self.folder.join(&version);
        fs::create_dir(&files).expect("a folder");
        // Written by hand it ends with a line, which is no part of the name.
        for (name, text) in [("ca.crt", ca), ("token", token), ("namespace", &format!("{NAMESPACE}\n"))] {
            fs::write(files.join(name), text).expect("written");
        }
        symlink(version, self.folder.join("..new")).expect("a link");
        fs::rename(self.folder.join("..new"), self.folder.join("..data")).expect("it is swapped");
    }

    fn peer(&self, folder: &Path, name: &'static str, port: u16) -> Peer {
        let (files, home) = (self.folder.clone(), folder.to_owned());
        let backend = "[kubernetes]\nimage = \"plain\"\nguard_image = \"starling\"\nguard_host = \"127.0.0.1\"\n\
                       interval = \"300ms\"\n";
        Peer::start_by(Box::new(move || in_a_pod(&files, &home, port)), folder, name, backend.into(), None)
    }
}

/// Why a cluster takes nothing, once what is done is not known.
fn unknown(peer: &Peer, name: &str) -> String {
    until(&format!("{name} is unknown"), || {
        let cluster = peer.cluster(name)?;
        let why = cluster["closed"].as_str().unwrap_or_default().to_owned();
        if why.starts_with("unknown: ") { Ok(why) } else { Err(cluster.to_string()) }
    })
}

fn known(peer: &Peer, name: &str, free: u32) {
    until(&format!("{name} is known, with {free} GPUs free"), || {
        let cluster = peer.cluster(name)?;
        let open = cluster["closed"].is_null() && cluster["gpus"]["H100"]["free"] == free;
        if open { Ok(()) } else { Err(cluster.to_string()) }
    });
}

pub fn the_account_of_its_pod_is_used_and_follows_what_is_rotated() {
    if super::real::binaries().is_some() {
        println!("not tried: the account of a pod in front of a real API server, which has not made it");
        return;
    }
    if let Some(why) = no_pods() {
        println!("not tried: the account of a pod, because no mount namespace can be made: {why}");
        return;
    }
    // The cluster is played on this runtime; what follows blocks on processes.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let ground = runtime.block_on(Ground::make());
    let server = ground.server.clone().expect("recorded");
    let (own, other) = (authority(), authority());
    let port = runtime.block_on(behind_tls(&ground.url, &own));
    let folder = ground.folder("incluster");
    let mut elsewhere = Account::new(ground.folder("elsewhere"), &other.pem(), "peer");
    let mut account = Account::new(ground.folder("account"), &own.pem(), "peer");
    // Its ca.crt is another cluster's.
    let blind = elsewhere.peer(&folder, "blind", port);
    let kube = account.peer(&folder, "kube", port);
    let state = &kube.state;

    known(&kube, "kube", 12);
    let first = submit(state, "resources: {gpus: 4, gpu: H100}\nrun: echo on $STARLING_CLUSTER\n");
    succeeded(state, &first);
    assert!(cli(state, &["logs", &first]).ok().out.contains("on kube"));
    let (starts, go) = (folder.join("starts"), folder.join("go"));
    let long = format!(
        "resources: {{gpus: 4, gpu: H100}}\nrun: |\n  echo \"$STARLING_EPOCH\" >> {}\n  \
         while [ ! -f {} ]; do sleep 0.1; done\n",
        starts.display(),
        go.display()
    );
    let long = submit(state, &long);
    in_state(state, &long, &["running"]);
    let jobs = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs");
    let jobs: Value = runtime.block_on(call(&ground.admin, "GET", &jobs, None)).expect("a list");
    let ours = jobs["items"].as_array().expect("a list").iter();
    let ours: Vec<_> = ours.filter(|j| j["metadata"]["labels"]["starling/peer"] == "kube").collect();
    assert!(!ours.is_empty(), "made where the account's file says: {jobs:#}");
    assert!(server.calls.load(Ordering::SeqCst) > 0, "by its token");
    assert_eq!(server.strangers.load(Ordering::SeqCst), 0, "by nothing but its token");

    let why = unknown(&blind, "blind");
    assert!(why.contains("invalid peer certificate"), "{why}");
    assert!(why.contains("not signed by the ca.crt of this pod's account"), "what to look at: {why}");

    // The old token is refused before the new one is here.
    server.set_token("rotated");
    let why = unknown(&kube, "kube");
    assert!(why.contains("401") && why.contains("the token of this pod's account is refused"), "{why}");
    assert_eq!(job(state, &long).expect("a job")["state"], "running", "nothing is concluded");
    let before = server.calls.load(Ordering::SeqCst);
    account.write(&own.pem(), "rotated");
    elsewhere.write(&own.pem(), "rotated");
    until("the new token is read", || {
        if server.calls.load(Ordering::SeqCst) > before { Ok(()) } else { Err("not yet".into()) }
    });
    known(&kube, "kube", 8);
    let again = submit(state, "resources: {gpus: 4, gpu: H100}\nrun: 'true'\n");
    succeeded(state, &again);
    fs::write(&go, "").expect("go");
    assert_eq!(of_attempts(&succeeded(state, &long), "epoch").len(), 1, "nothing is run again");
    assert_eq!(lines(&starts).len(), 1, "once");
    // The same minute for ca.crt.
    known(&blind, "blind", 12);
    drop((kube, blind));
    block_on(async { drop(ground) });
}

pub fn without_a_way_to_a_cluster_it_says_what_to_do() {
    let folder = tempfile::Builder::new().prefix("starling-nowhere.").tempdir().expect("a folder");
    let account = folder.path().join("account");
    fs::create_dir(&account).expect("a folder");
    let config = folder.path().join("starling.toml");
    fs::write(&config, "name = \"kube\"\nlisten = \"127.0.0.1:0\"\n[api]\nlisten = \"off\"\n")
        .expect("written");
    let said = |mut up: Command, state: &str| {
        up.arg("up").arg("--config").arg(&config).arg("--state").arg(folder.path().join(state));
        let done = up.output().expect("the binary starts");
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code().is_some_and(|c| c != 0), "{done:?}");
        assert!(!text.contains("panicked"), "{text}");
        text
    };
    let mut nowhere = command_of(Path::new("sh"));
    nowhere.args(["-c", "exec \"$@\" --backend kubernetes", "sh", STARLING]);
    nowhere.env("HOME", folder.path()).env("KUBECONFIG", folder.path().join("none"));
    nowhere.env_remove("KUBERNETES_SERVICE_HOST").env_remove("KUBERNETES_SERVICE_PORT");
    let text = said(nowhere, "nowhere");
    assert!(text.contains("no way to a cluster: give --kubeconfig or KUBECONFIG, or run in a pod"), "{text}");

    if let Some(why) = no_pods() {
        println!("not tried: a pod without an account, because no mount namespace can be made: {why}");
        return;
    }
    let text = said(in_a_pod(&account, folder.path(), 1), "bare");
    assert!(text.contains("automountServiceAccountToken") && text.contains("--kubeconfig"), "{text}");
}
