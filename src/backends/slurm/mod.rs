//! `slurm`: a Slurm cluster, driven from a login node with the rights of an ordinary user.
//!
//! An attempt is a batch job named from (job, epoch). Its batch step is `starling guard`, which starts the job,
//! once, whatever Slurm does with the batch job: the right to run is a file in the attempt's folder that one
//! process takes and nobody can take again. So a batch job that was acknowledged and lost, or made twice, or
//! requeued, never runs an attempt twice. The folder lies on a file system that the nodes share with the peer.
//!
//! Guards ask the peer over a TCP line how long they may live (`backends::line`); one `squeue` per interval, for all jobs,
//! says what Slurm knows (`keeper`); what cannot be known is *unknown*, and nothing follows from it.

mod answers;
pub mod commands;
mod config;
pub mod driver;
mod keeper;
pub mod nodes;
pub mod parse;
mod prepare;
pub mod rest;
mod seldom;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rustix::process::Signal;
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::config::SlurmConfig;
use self::driver::{Driver, DriverError, pause};
use self::keeper::{Act, Keeper};
use self::nodes::{Doubt, NodeMap};
use super::local::files::{optional, read_json};
use super::local::{LogLimits, clock};
use super::{Backend, Discovery, line};
use crate::base::{ContactId, Instant, PeerName, Span};
use crate::core::api::{AttemptKey, ClusterState, NodesNews};
use crate::core::{BackendCommand, BackendEvent};
use crate::model::NodeCapacity;

/// Calls to Slurm at once, beside the list.
const CALLS_AT_ONCE: usize = 8;
/// Lists between two looks at the nodes.
const NODES_EVERY: u32 = 5;
/// Without an answer for so long, nothing new is taken.
const UNKNOWN_AFTER: Span = Span::secs(10);

/// `USR1`, `SIGUSR1` or a number.
pub fn signal_number(name: &str) -> Option<i32> {
    let name = name.trim().to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let known = [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("TERM", Signal::TERM),
        ("CONT", Signal::CONT),
        ("ABRT", Signal::ABORT),
    ];
    let by_name = known.iter().find(|(n, _)| *n == name).map(|(_, s)| s.as_raw());
    by_name.or_else(|| name.parse().ok().filter(|n| Signal::from_named_raw(*n).is_some()))
}

/// Runs attempts on a Slurm cluster.
pub struct SlurmBackend {
    keeper: Arc<Keeper>,
    driver: Arc<dyn Driver>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl SlurmBackend {
    /// Makes its folders; asks nothing yet.
    pub fn new(config: SlurmConfig) -> anyhow::Result<Self> {
        let driver = rest::driver(&config)?;
        Self::with_driver(config, driver)
    }

    /// The same with another way to Slurm.
    pub fn with_driver(config: SlurmConfig, driver: Arc<dyn Driver>) -> anyhow::Result<Self> {
        let shared = config.shared.clone();
        let keeper = Keeper::new(config)
            .map_err(|e| anyhow::anyhow!("the shared folder {}: {e}", shared.display()))?;
        Ok(Self {
            keeper: Arc::new(keeper),
            driver,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// The folder of an attempt.
    pub fn attempt_dir(&self, key: AttemptKey) -> PathBuf {
        self.keeper.dir(key).path().to_owned()
    }
}

impl Drop for SlurmBackend {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Puts the guard's binary where the nodes see it, whole or not at all.
fn place_guard(from: &Path, to: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let same = |a: &Path, b: &Path| -> std::io::Result<bool> {
        if std::fs::metadata(a)?.len() != std::fs::metadata(b)?.len() {
            return Ok(false);
        }
        Ok(std::fs::read(a)? == std::fs::read(b)?)
    };
    if to.exists() && same(from, to)? {
        return Ok(());
    }
    let aside = to.with_extension(format!("new-{:08x}", rand::random::<u32>()));
    std::fs::copy(from, &aside)?;
    std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o700))?;
    std::fs::File::open(&aside)?.sync_all()?;
    std::fs::rename(&aside, to)
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[async_trait]
impl Backend for SlurmBackend {
    fn kind(&self) -> &'static str {
        "slurm"
    }

    async fn discover(&self) -> anyhow::Result<Discovery> {
        let config = &self.keeper.config;
        place_guard(&config.self_exe, &config.guard_path())
            .map_err(|e| anyhow::anyhow!("the guard's copy {}: {e}", config.guard_path().display()))?;
        let mut notes = vec![format!("Slurm is reached by {}", self.driver.describe())];
        self.keeper.seldom.ask_kill_wait(&*self.driver).await;
        let nodes = match self.driver.nodes().await {
            Ok(nodes) if !nodes.is_empty() => {
                let map = self.keeper.seldom.map(&self.keeper.config, &*self.driver, &nodes).await;
                for (name, state) in map.left_out.iter().take(20) {
                    notes.push(format!("node {name} is left out: {state}"));
                }
                self.keeper.keep_nodes(&map);
                let groups = map.groups.clone();
                self.keeper.set_map(map);
                groups
            }
            none => {
                let why = none.err().map_or_else(|| "it names no node".to_owned(), |error| error.to_string());
                notes.push(format!("Slurm does not answer, its nodes are taken as they last were: {why}"));
                let types = optional(read_json(&config.types_file())).ok().flatten().unwrap_or_default();
                self.keeper.set_map(NodeMap::of_types(types));
                optional(read_json::<Vec<NodeCapacity>>(&config.nodes_file()))
                    .ok()
                    .flatten()
                    .unwrap_or_default()
            }
        };
        Ok(Discovery { nodes, notes, ..Discovery::default() })
    }

    async fn adopt(&self, events: mpsc::Sender<BackendEvent>) -> anyhow::Result<()> {
        let config = &self.keeper.config;
        let listener = line::listen(config.listen, &config.line_file()).await?;
        let host = config.host.clone().unwrap_or_else(host_name);
        line::announce(listener.local_addr()?, &host, &config.line_file())?;
        let keeper = self.keeper.clone();
        tokio::task::spawn_blocking(move || keeper.adopt()).await??;
        let (wake, _) = broadcast::channel(1_024);
        let serve = line::serve(listener, self.keeper.clone(), wake.clone(), self.stop.clone());
        self.tasks.spawn(serve);
        let watch = Watch {
            keeper: self.keeper.clone(),
            driver: self.driver.clone(),
            calls: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            tasks: self.tasks.clone(),
            stop: self.stop.clone(),
            wake,
        };
        self.tasks.spawn(watch.clone().look());
        self.tasks.spawn(watch.pass_on(events));
        Ok(())
    }

    async fn command(&self, command: BackendCommand) {
        let keeper = self.keeper.clone();
        let done = tokio::task::spawn_blocking(move || keeper.command(command)).await;
        if let Err(error) = done {
            tracing::error!(%error, "a command to the Slurm backend was not carried out");
        }
    }

    async fn renewed(&self, contact: ContactId, incarnation: u64, sent_at: Instant) {
        let keeper = self.keeper.clone();
        let done = tokio::task::spawn_blocking(move || keeper.renewed(contact, incarnation, sent_at)).await;
        if let Err(error) = done {
            tracing::error!(%error, "guards cannot be shown a renewal");
        }
    }

    async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn logs(&self, key: AttemptKey) -> Option<Vec<PathBuf>> {
        self.keeper.logs(key)
    }
}

/// The loops between the book and Slurm.
#[derive(Clone)]
struct Watch {
    keeper: Arc<Keeper>,
    driver: Arc<dyn Driver>,
    calls: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
    wake: broadcast::Sender<AttemptKey>,
}

impl Watch {
    /// Passes events on and carries out what the book wants of Slurm.
    async fn pass_on(self, events: mpsc::Sender<BackendEvent>) {
        loop {
            for key in self.keeper.out.take_wakes() {
                // Without a guard on the line nobody hears it.
                let _ = self.wake.send(key);
            }
            for act in self.keeper.out.take_acts() {
                self.tasks.spawn(self.clone().carry_out(act));
            }
            while let Some(event) = self.keeper.out.next_event() {
                tokio::select! { biased;
                    () = self.stop.cancelled() => return,
                    sent = events.send(event) => if sent.is_err() { return },
                }
            }
            tokio::select! { biased;
                () = self.stop.cancelled() => return,
                () = self.keeper.out.changed.notified() => {}
            }
        }
    }

    /// Not cut short by a stop: what was begun at Slurm is noted.
    async fn carry_out(self, act: Act) {
        let Ok(_permit) = self.calls.acquire().await else { return };
        let keeper = self.keeper.clone();
        match act {
            Act::Submit(key, submission) => {
                let result = self.driver.submit(&submission).await;
                let _ = tokio::task::spawn_blocking(move || keeper.submitted(key, result)).await;
            }
            Act::Ask(key, id) => match self.driver.job(id).await {
                Ok(job) => {
                    let _ = tokio::task::spawn_blocking(move || keeper.asked(key, job)).await;
                }
                Err(error) => tracing::info!(%key, %error, "whether an attempt is still there is unknown"),
            },
            Act::Cancel(key, id) => {
                let taken = self.driver.cancel(id, &prepare::native_name(key)).await;
                if let Err(error) = &taken {
                    tracing::warn!(%key, id, %error, "a batch job could not be cancelled, it is tried again");
                }
                let done = move || match taken {
                    Ok(()) => keeper.cancelled(key, id),
                    Err(_) => keeper.cancel_failed(key, id),
                };
                let _ = tokio::task::spawn_blocking(done).await;
            }
        }
    }

    /// One list per interval, whatever the number of jobs; ever more seldom while there is no answer.
    async fn look(self) {
        let interval = self.keeper.config.interval;
        let (mut failures, mut round) = (0_u32, 0_u32);
        let mut answered = clock::now();
        let mut said: Option<ClusterState> = None;
        let mut news: Option<NodesNews> = None;
        let (mut no_jobs, mut no_nodes) = (Doubt::default(), Doubt::default());
        loop {
            let asked_at = clock::now();
            let list = tokio::select! { biased;
                () = self.stop.cancelled() => return,
                list = self.driver.jobs() => list,
            };
            let state = match list {
                Ok(jobs) => {
                    if failures > 0 || round.is_multiple_of(NODES_EVERY) {
                        self.look_at_nodes(&mut no_nodes).await;
                    }
                    (failures, answered, round) = (0, clock::now(), round.wrapping_add(1));
                    let now = self.keeper.map().news();
                    if news.as_ref() != Some(&now) {
                        news = Some(now.clone());
                        self.keeper.out.say(BackendEvent::Nodes(Box::new(now)));
                    }
                    let keeper = self.keeper.clone();
                    let believed = no_jobs.believes(jobs.is_empty());
                    let read = tokio::task::spawn_blocking(move || {
                        let state = keeper.map().state(&jobs, |job| keeper.ours(job));
                        keeper.seen(&jobs, asked_at);
                        keeper.answer_files();
                        state
                    });
                    read.await.ok().filter(|_| believed)
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let keeper = self.keeper.clone();
                    let _ = tokio::task::spawn_blocking(move || keeper.look_into_folders()).await;
                    self.unknown(&said, answered, &error)
                }
            };
            if let Some(state) = state
                && said.as_ref() != Some(&state)
            {
                said = Some(state.clone());
                self.keeper.out.say(BackendEvent::Cluster(Box::new(state)));
            }
            let pause = pause(interval, failures);
            tokio::select! { biased;
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(pause.to_std()) => {}
            }
        }
    }

    async fn look_at_nodes(&self, no_nodes: &mut Doubt) {
        self.keeper.seldom.ask_kill_wait(&*self.driver).await;
        match self.driver.nodes().await {
            Ok(nodes) if !no_nodes.believes(nodes.is_empty()) => {
                tracing::info!(
                    "Slurm names no node: unknown, taken as they last were until it says so again"
                );
            }
            Ok(nodes) => {
                let map = self.keeper.seldom.map(&self.keeper.config, &*self.driver, &nodes).await;
                if map != self.keeper.map() {
                    if !nodes.is_empty() {
                        self.keeper.keep_nodes(&map);
                    }
                    self.keeper.set_map(map);
                }
            }
            Err(error) => tracing::info!(%error, "Slurm's nodes are unknown, taken as they last were"),
        }
    }

    /// What is said while Slurm does not answer: everything as before, and nothing new is taken.
    fn unknown(
        &self,
        said: &Option<ClusterState>,
        answered: Instant,
        error: &DriverError,
    ) -> Option<ClusterState> {
        let silent = clock::now().since(answered) > UNKNOWN_AFTER;
        tracing::info!(%error, "Slurm does not answer");
        let why = format!("unknown: Slurm does not answer ({error})");
        let old = said.clone().unwrap_or_default();
        // The first reason stays: a report must not change with every try.
        let already = old.closed.as_ref().is_some_and(|c| c.starts_with("unknown:"));
        (silent && !already).then(|| ClusterState { nodes: Vec::new(), closed: Some(why), ..old })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(signal_number("USR1"), Some(10));
        assert_eq!(signal_number("sigterm"), Some(15));
        assert_eq!(signal_number("12"), Some(12));
        for bad in ["", "NOPE", "0", "-1", "999"] {
            assert_eq!(signal_number(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_guard_is_placed_whole_and_replaced_when_it_differs() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) = (folder.path().join("a"), folder.path().join("b"));
        for text in ["one", "two", "two"] {
            std::fs::write(&from, text).expect("writes");
            place_guard(&from, &to).expect("places");
            assert_eq!(std::fs::read_to_string(&to).expect("reads"), text);
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("lists").count(), 2, "nothing is left beside");
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod load_tests;
#[cfg(test)]
#[path = "watch_tests.rs"]
mod watch_tests;
