//! Peers as real processes, each with its own folder and configuration.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::harness::{STARLING, cli, command_of, get, kill_attempts, until};

/// What a peer is started with.
#[derive(Debug, Clone)]
pub struct Plan {
    pub name: &'static str,
    pub region: &'static str,
    pub gpu: &'static str,
    pub gpus: u32,
    pub listen: String,
    /// More tables of the configuration.
    pub tables: String,
    /// It stores records and runs nothing.
    pub witness: bool,
    /// Between bandwidth probes.
    pub probe_every: &'static str,
    /// Where the HTTP API listens on TCP.
    pub api: &'static str,
    /// Which build.
    pub binary: PathBuf,
    /// In place of this process's `PATH`.
    pub path: Option<&'static str>,
}

impl Plan {
    /// Four virtual GPUs and quick renewals.
    pub fn new(name: &'static str) -> Self {
        let region = match name {
            "alpha" => "eu-central",
            "beta" => "us-east",
            _ => "ap-south",
        };
        let (listen, binary) = ("127.0.0.1:0".into(), STARLING.into());
        let (gpu, gpus, tables) = ("A100-80G", 4, String::new());
        Self {
            name,
            region,
            gpu,
            gpus,
            listen,
            tables,
            witness: false,
            probe_every: "never",
            api: "off",
            binary,
            path: None,
        }
    }

    fn text(&self) -> String {
        let nodes = format!(
            "[[nodes]]\nname = \"pool\"\ngpu = \"{}\"\ngpus = {}\ncpus = 16\nmemory = \"64G\"\n",
            self.gpu, self.gpus
        );
        format!(
            "name = \"{}\"\nregion = \"{}\"\nlisten = \"{}\"\nprice_per_gpu_hour = 2.5\nwitness = {}\n\
             [api]\nlisten = \"{}\"\n{}\
             [timing]\nrenew_every = \"500ms\"\nmargin = \"1s\"\nprobe_every = \"{}\"\n{}",
            self.name,
            self.region,
            self.listen,
            self.witness,
            self.api,
            if self.witness { String::new() } else { nodes },
            self.probe_every,
            self.tables
        )
    }
}

/// One peer; dropping it kills it and all that runs under it.
pub struct PeerProcess {
    pub name: &'static str,
    pub state: PathBuf,
    /// Where QUIC listens.
    pub listen: String,
    plan: Plan,
    child: Option<Child>,
}

impl PeerProcess {
    /// Makes it, with a start that must succeed; `join` is `TOKEN@HOST:PORT`.
    pub fn start(folder: &Path, plan: Plan, join: Option<&str>) -> Self {
        let state = folder.join(plan.name);
        let mut peer = Self { name: plan.name, state, listen: plan.listen.clone(), plan, child: None };
        peer.spawn(join);
        peer.wait_up();
        // From now on it keeps its port, as a real peer does.
        peer.listen = peer.get("/v1/peer")["listen"].as_str().expect("an address").to_owned();
        peer.plan.listen.clone_from(&peer.listen);
        peer
    }

    /// Changes what it is started with next time.
    pub fn replan(&mut self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.plan);
    }

    fn config(&self) -> PathBuf {
        self.state.with_extension("toml")
    }
    fn log(&self) -> PathBuf {
        self.state.with_extension("log")
    }

    /// Starts the process.
    pub fn spawn(&mut self, join: Option<&str>) {
        fs::write(self.config(), self.plan.text()).expect("a configuration");
        let log = File::options().create(true).append(true).open(self.log()).expect("a log");
        let mut up = command_of(&self.plan.binary);
        up.arg("up").arg("--config").arg(self.config()).arg("--state").arg(&self.state);
        if let Some(join) = join {
            up.args(["--join", join]);
        }
        if let Some(path) = self.plan.path {
            up.env("PATH", path);
        }
        up.env("RUST_LOG", "info,chitchat=error,quinn=error").stdout(Stdio::null()).stderr(log);
        self.child = Some(up.spawn().expect("the binary starts"));
    }

    /// Waits until it answers.
    pub fn wait_up(&mut self) {
        let state = self.state.clone();
        until(&format!("{} answers", self.name), || {
            if let Some(status) = self.child.as_mut().and_then(|c| c.try_wait().ok().flatten()) {
                panic!("{} ended with {status}:\n{}", self.name, self.words());
            }
            get(&state, "/v1/peer")
        });
    }

    /// Starts it again on its folder and waits until it answers.
    pub fn restart(&mut self) {
        self.spawn(None);
        self.wait_up();
    }

    /// Starts it again where it has ended by itself.
    pub fn revive(&mut self) {
        let state = self.state.clone();
        let ended = until(&format!("{} answers or has ended", self.name), || {
            let status = self.child.as_mut().and_then(|c| c.try_wait().ok().flatten());
            match (status, get(&state, "/v1/jobs")) {
                (Some(_), _) => Ok(true),
                (None, Ok(_)) => Ok(false),
                (None, Err(why)) => Err(why),
            }
        });
        if ended {
            self.restart();
        }
    }

    /// What it wrote to standard error.
    pub fn words(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// SIGKILL; its attempts go on under their guards.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("killed");
        child.wait().expect("gone");
    }

    /// SIGTERM, and its end.
    pub fn terminate(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("a pid");
        kill_process(pid, Signal::TERM).expect("a signal");
        until(&format!("{} has ended", self.name), || {
            child.try_wait().expect("its state").ok_or_else(|| "it runs".to_owned())
        })
    }

    /// A document that must be there.
    pub fn get(&self, path: &str) -> Value {
        get(&self.state, path).unwrap_or_else(|e| panic!("{} {path}: {e}\n{}", self.name, self.words()))
    }

    /// A token and address to join it.
    pub fn token(&self) -> String {
        let made = cli(&self.state, &["--json", "token", "create"]).ok().json();
        format!("{}@{}", made["token"].as_str().expect("a token"), self.listen)
    }

    /// How it sees another one.
    pub fn sees(&self, other: &str) -> Result<String, String> {
        let list = get(&self.state, "/v1/clusters")?;
        let found = list["clusters"].as_array().and_then(|c| c.iter().find(|c| c["name"] == other).cloned());
        Ok(found.map_or_else(|| "unknown".into(), |c| c["liveness"].as_str().unwrap_or("?").to_owned()))
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let words = self.words();
            let tail: Vec<&str> = words.lines().rev().take(15).collect();
            eprintln!("--- {}:", self.name);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        kill_attempts(&self.state);
    }
}

/// Several peers that know each other.
pub struct Mesh {
    pub peers: Vec<PeerProcess>,
    pub folder: TempDir,
}

impl Mesh {
    /// Starts these peers, each joining at the first, and waits until all agree that all are alive.
    pub fn start(plans: impl IntoIterator<Item = Plan>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut peers: Vec<PeerProcess> = Vec::new();
        for plan in plans {
            let token = peers.first().map(PeerProcess::token);
            peers.push(PeerProcess::start(folder.path(), plan, token.as_deref()));
        }
        let mesh = Self { peers, folder };
        mesh.agree();
        mesh
    }

    /// alpha, beta, gamma.
    pub fn three() -> Self {
        Self::start(["alpha", "beta", "gamma"].map(Plan::new))
    }

    /// Waits until each sees all alive, with their reports.
    pub fn agree(&self) {
        for peer in &self.peers {
            until(&format!("{} sees all", peer.name), || {
                let list = get(&peer.state, "/v1/clusters")?;
                let clusters = list["clusters"].as_array().cloned().unwrap_or_default();
                let good = |c: &&Value| {
                    c["liveness"] == "alive"
                        && (c["witness"] == true || !c["gpus"].as_object().is_none_or(|g| g.is_empty()))
                };
                let alive = clusters.iter().filter(good).count();
                if alive == self.peers.len() { Ok(()) } else { Err(format!("{list}")) }
            });
        }
    }

    /// A peer by name.
    pub fn peer(&self, name: &str) -> &PeerProcess {
        self.peers.iter().find(|p| p.name == name).expect("a peer")
    }

    /// A peer by name.
    pub fn peer_mut(&mut self, name: &str) -> &mut PeerProcess {
        self.peers.iter_mut().find(|p| p.name == name).expect("a peer")
    }

    /// A state folder by peer name.
    pub fn state(&self, name: &str) -> &Path {
        &self.peer(name).state
    }
}

/// A small file system of its own, while it lives.
pub struct SmallDisk(pub PathBuf);

impl SmallDisk {
    /// None where this user may not mount.
    pub fn mount(at: &Path, mebibytes: u32) -> Option<Self> {
        fs::create_dir_all(at).expect("a folder");
        let size = format!("size={mebibytes}m");
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output();
        done.is_ok_and(|d| d.status.success()).then(|| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that is being killed may still be in it. Nobody could do more about a failure.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}
