//! A mesh of two peers as real processes: one in front of a Kubernetes cluster, one in front of this machine.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::backend::lines;
use super::cluster::call;
use super::ground::{Ground, block_on};
use super::harness::{
    cli, command, ended, exited, get, in_state, job, kill_attempts, of_attempts, submit, succeeded, until,
};

/// One peer; dropping it kills it.
pub struct Peer {
    name: &'static str,
    pub state: PathBuf,
    listen: String,
    backend: String,
    /// What is started with the arguments of `starling`.
    program: Box<dyn Fn() -> Command>,
    child: Option<Child>,
}

impl Peer {
    fn start(folder: &Path, name: &'static str, backend: String, join: Option<&Peer>) -> Self {
        Self::start_by(Box::new(command), folder, name, backend, join)
    }

    /// The same, by another program than the binary itself.
    pub fn start_by(
        program: Box<dyn Fn() -> Command>,
        folder: &Path,
        name: &'static str,
        backend: String,
        join: Option<&Peer>,
    ) -> Self {
        let (state, listen) = (folder.join(name), "127.0.0.1:0".into());
        let mut peer = Self { name, state, listen, backend, program, child: None };
        let join = join.map(|other| {
            let token = cli(&other.state, &["token", "create", "--json"]).ok().json();
            format!("{}@{}", token["token"].as_str().expect("a token"), other.listen)
        });
        peer.spawn(join.as_deref());
        let about = get(&peer.state, "/v1/peer").expect("answers");
        peer.listen = about["listen"].as_str().expect("an address").to_owned();
        peer
    }

    fn log(&self) -> PathBuf {
        self.state.with_extension("log")
    }

    fn spawn(&mut self, join: Option<&str>) {
        let text = format!(
            "name = \"{0}\"\nregion = \"{0}\"\nlisten = \"{1}\"\n{2}\n[api]\nlisten = \"off\"\n\
             [timing]\nrenew_every = \"500ms\"\nmargin = \"1s\"\nprobe_every = \"never\"\n",
            self.name, self.listen, self.backend
        );
        let config = self.state.with_extension("toml");
        fs::write(&config, text).expect("a configuration");
        let log = File::options().create(true).append(true).open(self.log()).expect("a log");
        let mut up = (self.program)();
        up.arg("up").arg("--config").arg(config).arg("--state").arg(&self.state);
        if let Some(join) = join {
            up.args(["--join", join]);
        }
        up.env("RUST_LOG", "info,chitchat=error,quinn=error,tower=error,kube_client=error");
        self.child = Some(up.stdout(Stdio::null()).stderr(log).spawn().expect("the binary starts"));
        let (state, log) = (self.state.clone(), self.log());
        until(&format!("{} answers", self.name), || {
            if let Some(status) = self.child.as_mut().and_then(|c| c.try_wait().ok().flatten()) {
                panic!(
                    "{} ended with {status}:\n{}",
                    self.name,
                    fs::read_to_string(&log).unwrap_or_default()
                );
            }
            get(&state, "/v1/peer")
        });
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("ends");
        }
    }

    pub fn cluster(&self, name: &str) -> Result<Value, String> {
        let list = get(&self.state, "/v1/clusters")?;
        let all = list["clusters"].as_array().ok_or("no clusters")?;
        all.iter().find(|c| c["name"] == name).cloned().ok_or_else(|| format!("no {name} in {list}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        kill_attempts(&self.state);
        if std::thread::panicking() {
            let text = fs::read_to_string(self.log()).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(25).collect();
            eprintln!("the last words of {}:", self.name);
            tail.iter().rev().for_each(|line| eprintln!("  {line}"));
        }
    }
}

pub fn jobs_over_kubernetes_and_a_local_cluster() {
    // The cluster is played on this runtime; what follows blocks on processes.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let ground = runtime.block_on(Ground::make());
    let folder = ground.folder("mesh");
    let backend = format!(
        "backend = \"kubernetes\"\n[kubernetes]\nkubeconfig = \"{}\"\nimage = \"plain\"\nguard_image = \"starling\"\n\
         guard_host = \"127.0.0.1\"\ninterval = \"300ms\"\n",
        ground.peer_config(&ground.url).display()
    );
    let mut kube = Peer::start(&folder, "kube", backend, None);
    let pool = "[[nodes]]\nname = \"pool\"\ngpu = \"A100-80G\"\ngpus = 2\ncpus = 4\nmemory = \"8G\"\n";
    let local = Peer::start(&folder, "loc", pool.into(), Some(&kube));
    let loc = &local.state;
    until("both see 12 GPUs of Kubernetes", || {
        let cluster = local.cluster("kube")?;
        let free = &cluster["gpus"]["H100"]["free"];
        if *free == 12 && kube.cluster("loc").is_ok() { Ok(()) } else { Err(cluster.to_string()) }
    });

    // Asked for at a peer whose cluster has none of these.
    let gpus = submit(loc, "name: gpus\nresources: {gpus: 4, gpu: H100}\nrun: echo on $STARLING_CLUSTER\n");
    let done = succeeded(loc, &gpus);
    assert_eq!(of_attempts(&done, "cluster"), ["kube"], "{done:#}");
    let logs = cli(loc, &["logs", &gpus]).ok().out;
    assert!(logs.contains("on kube"), "heard through any peer: {logs}");
    let gang =
        submit(loc, "name: gang\nnodes: 3\nresources: {gpus: 4, gpu: H100}\nrun: echo $RANK/$WORLD_SIZE\n");
    succeeded(loc, &gang);
    let here = submit(loc, "name: here\nresources: {gpus: 1, gpu: A100-80G}\nrun: 'true'\n");
    assert_eq!(of_attempts(&succeeded(loc, &here), "cluster"), ["loc"]);
    let failed = ended(loc, &submit(loc, "name: f\nplacement: {clusters: [kube]}\nrun: exit 42\n"));
    assert_eq!(
        (&failed["state"], of_attempts(&failed, "outcome").pop()),
        (&"failed".into(), Some(exited(42)))
    );

    // Why it waits there, and how it ended beside its signal, are to be seen anywhere.
    ground.wishes.full.store(true, Ordering::SeqCst);
    let waits =
        submit(loc, "name: waits\nplacement: {clusters: [kube]}\nimage: hungry/x:1\nrun: kill -9 $$\n");
    until("the job says why it waits", || {
        let text = cli(loc, &["job", &waits]).ok().out;
        if text.contains("room in Kubernetes: waits") && text.contains("Unschedulable: 0/3 nodes") {
            Ok(())
        } else {
            Err(text)
        }
    });
    let why = cli(loc, &["why", &waits]).ok().out;
    assert!(why.contains("Unschedulable: 0/3 nodes"), "{why}");
    ground.wishes.full.store(false, Ordering::SeqCst);
    let killed = ended(loc, &waits);
    let reason = killed["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("ended by signal 9 at kube (killed for memory: OOMKilled"), "{killed:#}");
    let note = killed["attempts"][0]["note"].as_str().unwrap_or_default();
    assert!(note.starts_with("killed for memory"), "{killed:#}");
    assert!(cli(loc, &["job", &waits]).ok().out.contains("signal 9 (killed for memory"));

    // A node that takes nothing any more, with the reason.
    let node = |name: &str, change: Value| {
        let path = format!("/api/v1/nodes/{name}");
        runtime.block_on(call(&ground.admin, "PATCH", &path, Some(&change))).expect("a node");
    };
    node("n2", json!({ "spec": { "unschedulable": true } }));
    until("the view names it", || {
        let text = cli(loc, &["clusters", "kube"]).ok().out;
        if text.contains("TAKES NOTHING") && text.contains("cordoned") { Ok(()) } else { Err(text) }
    });
    node("n2", json!({ "spec": { "unschedulable": false } }));

    let noted = |name: &str, then: &str| {
        let text = format!(
            "name: noted\nplacement: {{clusters: [kube]}}\non_lost_contact: {{grace: 60s}}\nrun: |\n  \
             echo \"$STARLING_JOB_ID $STARLING_EPOCH\" >> {}\n  {then}\n",
            folder.join(name).display()
        );
        submit(loc, &text)
    };
    let long = noted("long", "exec sleep 600");
    in_state(loc, &long, &["running"]);
    cli(loc, &["cancel", &long]).ok();
    assert_eq!(ended(loc, &long)["state"], "cancelled");

    // The peer dies in the middle, and so does the API server: both come back, and nothing is run again.
    let go = folder.join("go");
    let wait = format!("while [ ! -f {} ]; do sleep 0.1; done", go.display());
    let ids: Vec<String> = (0..3).map(|_| noted("starts", &wait)).collect();
    until(
        "all run",
        || if lines(&folder.join("starts")).len() == 3 { Ok(()) } else { Err("not yet".into()) },
    );
    kube.kill();
    if let Some(server) = &ground.server {
        server.set_down(true);
    }
    kube.spawn(None);
    until("the view says why nothing is taken", || {
        if ground.server.is_none() {
            return Ok(());
        }
        let cluster = local.cluster("kube")?;
        let unknown = cluster["closed"].as_str().is_some_and(|why| why.contains("unknown"));
        if unknown { Ok(()) } else { Err(cluster.to_string()) }
    });
    for id in &ids {
        assert_eq!(job(loc, id).expect("a job")["state"], "running", "nothing is concluded");
    }
    if let Some(server) = &ground.server {
        server.set_down(false);
    }
    fs::write(&go, "").expect("go");
    for id in &ids {
        assert_eq!(of_attempts(&succeeded(loc, id), "epoch").len(), 1);
    }
    assert_eq!(lines(&folder.join("starts")).len(), 3, "each once");
    drop((kube, local));
    block_on(async { drop(ground) });
}
