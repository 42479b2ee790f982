//! Peers in front of Slurm clusters, and one of this machine, as real processes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use super::harness::{cli, command, get, kill_attempts, until};

/// One peer; dropping it kills it.
pub struct Peer {
    pub name: &'static str,
    pub state: PathBuf,
    listen: String,
    /// Everything before the tables, and tables.
    backend: String,
    child: Option<Child>,
}

impl Peer {
    /// Starts one; `backend` is the head and the tables of its configuration that say what it drives.
    pub fn start(folder: &Path, name: &'static str, backend: &str, join: Option<&Peer>) -> Self {
        let state = folder.join(name);
        let mut peer =
            Self { name, state, listen: "127.0.0.1:0".into(), backend: backend.to_owned(), child: None };
        let join = join.map(|other| {
            let token = cli(&other.state, &["token", "create", "--json"]).ok().json();
            format!("{}@{}", token["token"].as_str().expect("a token"), other.listen)
        });
        peer.spawn(join.as_deref());
        peer.wait_up();
        let about = get(&peer.state, "/v1/peer").expect("answers");
        peer.listen = about["listen"].as_str().expect("an address").to_owned();
        peer
    }

    fn log(&self) -> PathBuf {
        self.state.with_extension("log")
    }

    fn spawn(&mut self, join: Option<&str>) {
        let region = if self.name == "loc" { "eu-central" } else { self.name };
        let text = format!(
            "name = \"{}\"\nregion = \"{region}\"\nlisten = \"{}\"\n{}\n[api]\nlisten = \"off\"\n\
             [timing]\nrenew_every = \"500ms\"\nmargin = \"1s\"\nprobe_every = \"never\"\n",
            self.name, self.listen, self.backend
        );
        let config = self.state.with_extension("toml");
        fs::write(&config, text).expect("a configuration");
        let log = File::options().create(true).append(true).open(self.log()).expect("a log");
        let mut up = command();
        up.arg("up").arg("--config").arg(config).arg("--state").arg(&self.state);
        if let Some(join) = join {
            up.args(["--join", join]);
        }
        up.env("RUST_LOG", "info,chitchat=error,quinn=error").stdout(Stdio::null()).stderr(log);
        self.child = Some(up.spawn().expect("the binary starts"));
    }

    fn wait_up(&mut self) {
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

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("ends");
        }
    }

    /// Starts a killed one again.
    pub fn again(&mut self) {
        self.spawn(None);
        self.wait_up();
    }

    /// A cluster as this peer sees it.
    pub fn cluster(&self, name: &str) -> Result<serde_json::Value, String> {
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

/// What makes a peer drive this cluster.
pub fn slurm(conf: &Path, more: &str) -> String {
    format!(
        "backend = \"slurm\"\n[slurm]\nconf = \"{}\"\ninterval = \"500ms\"\nguard_host = \"127.0.0.1\"\n{more}",
        conf.display()
    )
}
