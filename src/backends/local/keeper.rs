//! The peer's book of attempts on this machine. All calls block on the disk a little.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{Mode, mkfifoat};
use tokio::sync::Notify;

use super::environment::{self, Host};
use super::files::{self, AttemptDir, Binding, Ended, Stop};
use super::lease::Lease;
use super::{LocalConfig, clock, container, discovery, guard, orphan, parse_key_of};
use crate::backends::Discovery;
use crate::base::{ContactId, Instant};
use crate::core::api::{AttemptKey, StartCommand};
use crate::core::{BackendCommand, BackendEvent};
use crate::model::Outcome;
use crate::model::staging::Staging;
use crate::model::topology::Topology;
use crate::transport::private;

/// Commands and checks of one attempt come one after another; attempts share this many locks.
const LOCKS: usize = 64;

/// An attempt that has not ended, as far as was read.
#[derive(Default)]
struct Live {
    /// The guard, where this process started it.
    child: Option<Child>,
    announced: bool,
    complained: bool,
    /// What was said of what it needs.
    staged: Option<Staging>,
}

/// See the module.
pub struct Keeper {
    pub(super) config: LocalConfig,
    /// Wakes the watcher: there are events.
    pub(super) changed: Notify,
    live: Mutex<BTreeMap<AttemptKey, Live>>,
    locks: Vec<Mutex<()>>,
    events: Mutex<VecDeque<BackendEvent>>,
    forgotten: Mutex<VecDeque<AttemptKey>>,
    ended: Mutex<Vec<Child>>,
    /// Renewals that this run has written, until those of earlier runs were dropped.
    leases: Mutex<Option<BTreeSet<PathBuf>>>,
    runtime: OnceLock<Option<PathBuf>>,
    gpus: OnceLock<Option<Vec<u32>>>,
    topologies: OnceLock<BTreeMap<String, Topology>>,
}

/// A panic elsewhere leaves these maps whole: every change is one call.
fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    pub(super) fn new(mut config: LocalConfig) -> io::Result<Self> {
        private::make(&config.state_dir)?;
        // Guards start elsewhere: every path they get is absolute.
        config.state_dir = fs::canonicalize(&config.state_dir)?;
        private::folder(&config.attempts())?;
        private::folder(&config.contacts())?;
        match mkfifoat(rustix::fs::CWD, config.news(), Mode::RUSR | Mode::WUSR) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => {
                private::tighten(&config.news())?;
            }
            Err(e) => return Err(e.into()),
        }
        Ok(Self {
            config,
            changed: Notify::new(),
            live: Mutex::default(),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            events: Mutex::default(),
            forgotten: Mutex::default(),
            ended: Mutex::default(),
            leases: Mutex::new(Some(BTreeSet::new())),
            runtime: OnceLock::new(),
            gpus: OnceLock::new(),
            topologies: OnceLock::new(),
        })
    }

    pub(super) fn dir(&self, key: AttemptKey) -> AttemptDir {
        AttemptDir::new(self.config.attempts().join(key.to_string()))
    }

    fn hold(&self, key: AttemptKey) -> MutexGuard<'_, ()> {
        let spread =
            key.job.0.iter().fold(key.epoch.0, |sum, b| sum.wrapping_mul(31).wrapping_add(u64::from(*b)));
        open(&self.locks[usize::try_from(spread % LOCKS as u64).unwrap_or(0)])
    }

    fn say(&self, event: BackendEvent) {
        open(&self.events).push_back(event);
        self.changed.notify_one();
    }
    pub(super) fn next_event(&self) -> Option<BackendEvent> {
        open(&self.events).pop_front()
    }
    pub(super) fn live(&self) -> Vec<AttemptKey> {
        open(&self.live).keys().copied().collect()
    }

    fn runtime(&self) -> Option<PathBuf> {
        let find = || std::env::var_os("PATH").and_then(|path| container::find(&path));
        self.runtime.get_or_init(|| self.config.container_runtime.clone().or_else(find)).clone()
    }

    pub(super) fn topologies(&self) -> BTreeMap<String, Topology> {
        self.topologies.get().cloned().unwrap_or_default()
    }

    pub(super) fn discover(&self) -> Discovery {
        let mut found = discovery::Found::default();
        let mut nodes: Vec<_> = if self.config.declared.is_empty() {
            found = discovery::look(self.config.peer.as_str(), self.config.canonical_gpu);
            found.node.clone().into_iter().collect()
        } else {
            let declare = |mut node: crate::model::NodeCapacity| {
                node.declared = true;
                node
            };
            self.config.declared.iter().cloned().map(declare).collect()
        };
        let gpus = self.config.declared.is_empty().then(|| found.gpus.clone());
        self.gpus.get_or_init(|| gpus);
        if let Some(node) = &found.node {
            self.topologies.get_or_init(|| [(node.name.clone(), found.topology.clone())].into());
        }
        let runtime = self.runtime();
        if runtime.is_none() {
            found.notes.push("no podman or docker: jobs with an image cannot run here".into());
        }
        let shell = std::path::Path::new(environment::SHELL).exists();
        if self.config.declared.is_empty()
            && let Some(why) = discovery::runs_nothing(shell, runtime.is_some())
        {
            nodes.clear();
            found.warnings.push(why);
        }
        let name = runtime.and_then(|r| Some(r.file_name()?.to_string_lossy().into_owned()));
        let (notes, warnings) = (found.notes, found.warnings);
        Discovery { nodes, container_runtime: name, images: Vec::new(), notes, warnings }
    }

    /// Reads what an earlier run of the peer left, and says it.
    pub(super) fn adopt(&self) -> io::Result<()> {
        let (mut running, mut orphans, mut over, mut forgotten) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for entry in fs::read_dir(self.config.attempts())? {
            let path = entry?.path();
            let Some(key) = parse_key_of(&path) else {
                // Prepared by half when the peer died.
                if path.extension().is_some_and(|e| e.to_string_lossy().starts_with("new-")) {
                    fs::remove_dir_all(&path)?;
                }
                continue;
            };
            let dir = AttemptDir::new(path);
            if let Some(when) = dir.forgotten() {
                forgotten.push((when, key));
            } else if let Some(ended) = dir.ended()? {
                over.push((key, ended));
            } else if dir.locked()? {
                running.push((key, dir));
            } else if !dir.token_taken() && dir.revoke_token()? {
                // Never begun, and now never will be under this folder; a new command makes a new one.
                fs::remove_dir_all(dir.path())?;
            } else {
                orphans.push(key);
            }
        }
        forgotten.sort();
        *open(&self.forgotten) = forgotten.into_iter().map(|(_, key)| key).collect();
        self.drop_old_leases(&running)?;
        self.say(BackendEvent::Adopted { running: running.iter().map(|(key, _)| *key).collect() });
        for key in running.into_iter().map(|(key, _)| key).chain(orphans) {
            open(&self.live).insert(key, Live::default());
            self.check(key);
        }
        for (key, ended) in over {
            self.say_ended(key, ended);
        }
        Ok(())
    }

    /// Renewals of contacts that no running attempt follows are of no use; but a contact may have been renewed already, or be
    /// renewed meanwhile.
    fn drop_old_leases(&self, running: &[(AttemptKey, AttemptDir)]) -> io::Result<()> {
        let mut leases = open(&self.leases);
        let mut used = leases.take().unwrap_or_default();
        for (_, dir) in running {
            let contacts = self.config.contacts();
            let leases = dir.binding()?.each().map(|b| files::lease_path(&contacts, b));
            used.extend(leases.flat_map(|path| [path.with_extension("tmp"), path]));
        }
        for entry in fs::read_dir(self.config.contacts())? {
            let path = entry?.path();
            if !used.contains(&path) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    pub(super) fn renewed(&self, contact: ContactId, incarnation: u64, sent_at: Instant) -> io::Result<()> {
        let lease = Lease::new(sent_at, clock::boot_id()?);
        let path = files::lease_path(&self.config.contacts(), Binding::to((contact, incarnation)));
        let mut leases = open(&self.leases);
        if let Some(written) = leases.as_mut() {
            written.insert(path.clone());
            written.insert(path.with_extension("tmp"));
        }
        lease.write(&path)
    }

    pub(super) fn command(&self, command: BackendCommand) {
        match command {
            BackendCommand::Start(start) => self.start(&start),
            BackendCommand::Stop { key, notice, reason } => self.stop(key, Stop { reason, notice }),
            BackendCommand::Rebind { key, to, and } => {
                let _held = self.hold(key);
                let dir = self.dir(key);
                match dir.rebind(Binding { and, ..Binding::to(to) }) {
                    Ok(()) => dir.wake(),
                    Err(error) => {
                        tracing::warn!(%key, trace = self.dir(key).trace(), %error, "an attempt could not be bound to a new contact")
                    }
                }
            }
            BackendCommand::Forget { key } => self.forget(key),
        }
    }

    fn start(&self, start: &StartCommand) {
        let key = start.key;
        let _held = self.hold(key);
        let dir = self.dir(key);
        match self.prepare(start, &dir) {
            Ok(true) => {}
            Ok(false) => return,
            Err(reason) => return self.close_unstarted(key, Outcome::NotStarted(reason)),
        }
        match self.spawn_guard(&dir) {
            Ok(child) => {
                open(&self.live).insert(key, Live { child: Some(child), ..Live::default() });
            }
            Err(error) => match dir.revoke_token() {
                Ok(true) => {
                    let reason = format!("its guard could not be started: {error}");
                    self.close_unstarted(key, Outcome::NotStarted(reason));
                }
                _ => {
                    tracing::error!(%key, trace = self.dir(key).trace(), %error, "a guard could not be started")
                }
            },
        }
    }

    /// True if a guard is wanted. What is known already is said again.
    fn prepare(&self, start: &StartCommand, dir: &AttemptDir) -> Result<bool, String> {
        let key = start.key;
        if dir.path().exists() {
            match dir.ended() {
                Ok(Some(ended)) => self.say_ended(key, ended),
                Ok(None) if open(&self.live).contains_key(&key) => {
                    if let Ok(Some(started)) = dir.started() {
                        self.say(BackendEvent::Started { key, at: started.at });
                    }
                }
                Ok(None) => return Ok(true),
                Err(error) => {
                    tracing::error!(%key, trace = self.dir(key).trace(), %error, "an attempt's end cannot be read")
                }
            }
            return Ok(false);
        }
        let runtime = start.spec.image.as_ref().and_then(|_| self.runtime());
        let gpus = self.gpus.get().and_then(Option::as_deref);
        let host = Host { config: &self.config, dir: dir.path(), runtime: runtime.as_deref(), gpus };
        let spec = environment::guard_spec(start, &host)?;
        let (contact, incarnation) = start.binding;
        let made = dir.prepare(&spec, Binding::to((contact, incarnation)));
        let made = made.map_err(|e| format!("its folder could not be made: {e}"))?;
        if made && !spec.staging.parts.is_empty() {
            self.say(BackendEvent::Staging { key, staging: Box::new(spec.staging) });
        }
        Ok(made)
    }

    fn spawn_guard(&self, dir: &AttemptDir) -> io::Result<Child> {
        Command::new(&self.config.self_exe)
            .arg("guard")
            .arg(dir.path())
            .env_clear()
            .envs(environment::guard_env())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(dir.guard_log()?)
            .spawn()
    }

    /// Under a name that nothing ever ran under, and now never will.
    fn close_unstarted(&self, key: AttemptKey, outcome: Outcome) {
        let ended = Ended { outcome, started_at: None, at: clock::wall(), output_lost: 0 };
        if let Err(error) = self.dir(key).close_unstarted(&ended) {
            // It did not start; a full disk must not keep that from being said.
            tracing::warn!(%key, trace = self.dir(key).trace(), %error, "that an attempt did not start could not be written");
        }
        self.say_ended(key, ended);
    }

    fn stop(&self, key: AttemptKey, stop: Stop) {
        let _held = self.hold(key);
        let dir = self.dir(key);
        match dir.ended() {
            Ok(Some(ended)) => return self.say_ended(key, ended),
            Ok(None) => {}
            Err(error) => {
                return tracing::error!(%key, trace = self.dir(key).trace(), %error, "an attempt's end cannot be read");
            }
        }
        let unstarted = !dir.path().exists() || dir.revoke_token().unwrap_or(false);
        if unstarted {
            if let Some(child) = open(&self.live).remove(&key).and_then(|l| l.child) {
                open(&self.ended).push(child);
            }
            return self.close_unstarted(key, guard::stopped_by(stop.reason));
        }
        match dir.write_stop(stop) {
            Ok(()) => dir.wake(),
            Err(error) => {
                tracing::error!(%key, trace = self.dir(key).trace(), %error, "an attempt could not be told to stop")
            }
        }
    }

    fn forget(&self, key: AttemptKey) {
        let _held = self.hold(key);
        let dir = self.dir(key);
        match dir.ended() {
            Ok(Some(_)) if dir.forgotten().is_none() => {}
            Ok(Some(_)) => return,
            Ok(None) => {
                return tracing::debug!(%key, trace = self.dir(key).trace(), "asked to forget an attempt that has not ended");
            }
            Err(error) => {
                return tracing::error!(%key, trace = self.dir(key).trace(), %error, "an attempt's end cannot be read");
            }
        }
        if let Err(error) = dir.forget() {
            return tracing::warn!(%key, trace = self.dir(key).trace(), %error, "an attempt could not be cleaned up");
        }
        let mut forgotten = open(&self.forgotten);
        forgotten.push_back(key);
        while forgotten.len() > self.config.attempts_kept {
            let Some(oldest) = forgotten.pop_front() else { break };
            if let Err(error) = fs::remove_dir_all(self.dir(oldest).path()) {
                tracing::warn!(key = %oldest, trace = self.dir(oldest).trace(), %error, "an old attempt's folder could not be removed");
            }
        }
    }

    /// Looks whether an attempt started or ended, or lost its guard.
    pub(super) fn check(&self, key: AttemptKey) {
        let _held = self.hold(key);
        let dir = self.dir(key);
        let announced = match open(&self.live).get(&key) {
            Some(live) => live.announced,
            None => return,
        };
        if !announced {
            self.look_at_staging(key, &dir);
        }
        if !announced && let Ok(Some(started)) = dir.started() {
            if let Some(live) = open(&self.live).get_mut(&key) {
                live.announced = true;
            }
            self.say(BackendEvent::Started { key, at: started.at });
        }
        // Whether the guard lives is asked first: the last thing that it does is to write the end.
        let ended = match self.guarded(key, &dir) {
            Ok(true) => dir.ended(),
            Ok(false) => {
                // A full disk may have kept its folder from being made, or the word that it did not start
                // from being written: a folder is made whole, so nothing ran in this one.
                if matches!(dir.ended(), Ok(None)) && dir.never_made() {
                    let why = "the disk was full when it was to start".to_owned();
                    return self.close_unstarted(key, Outcome::NotStarted(why));
                }
                dir.ended().and_then(|e| e.map_or_else(|| orphan::close(&dir).map(Some), |e| Ok(Some(e))))
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(Some(ended)) => {
                if let Some(child) = open(&self.live).remove(&key).and_then(|l| l.child) {
                    open(&self.ended).push(child);
                }
                self.say_ended(key, ended);
            }
            Ok(None) => {}
            Err(error) => self.complain(key, &error),
        }
    }

    /// Says how far what it needs has come, where that is something new. Attempts are looked at once a second.
    fn look_at_staging(&self, key: AttemptKey, dir: &AttemptDir) {
        // One that cannot be read is no news.
        let Ok(Some(staging)) = dir.staging() else { return };
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key).filter(|live| live.staged.as_ref() != Some(&staging)) else {
            return;
        };
        live.staged = Some(staging.clone());
        drop(all);
        self.say(BackendEvent::Staging { key, staging: Box::new(staging) });
    }

    fn complain(&self, key: AttemptKey, error: &io::Error) {
        if let Some(live) = open(&self.live).get_mut(&key)
            && !std::mem::replace(&mut live.complained, true)
        {
            tracing::error!(%key, trace = self.dir(key).trace(), %error, "an attempt without a guard is still open; trying on");
        }
    }

    fn guarded(&self, key: AttemptKey, dir: &AttemptDir) -> io::Result<bool> {
        if let Some(live) = open(&self.live).get_mut(&key)
            && let Some(child) = &mut live.child
        {
            if child.try_wait()?.is_none() {
                return Ok(true);
            }
            // Another one may have been first to take the lock.
            live.child = None;
        }
        dir.locked()
    }

    /// Takes the exit codes of guards that are done.
    pub(super) fn reap(&self) {
        open(&self.ended).retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    fn say_ended(&self, key: AttemptKey, ended: Ended) {
        let Ended { outcome, started_at, at, .. } = ended;
        self.say(BackendEvent::Ended { key, outcome, started_at, at });
    }
}
