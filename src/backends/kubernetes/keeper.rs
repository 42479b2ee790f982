//! The peer's book of attempts on a Kubernetes cluster: what was asked for, what guards said, what Kubernetes says.
//!
//! Three voices, in this order of trust. A guard's word is how its part ended. A kubelet's word that a container has
//! terminated ends a part whose guard did not get to say it. That an object is gone ends nothing: the guard that may
//! live on is waited for until its last lease has run out. `ends` draws these conclusions; here are the commands, and
//! the right to run, which is one file that names the pods that have it, written once. All calls block on the disk a
//! little.
// tidy: long because every command and every voice changes the same entry of one book

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Mutex;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use super::back::Back;
use super::features::Features;
use super::make::{self, Kept};
use super::nodes::{Load, NodeMap};
use super::objects::Job;
use super::pods::PodView;
use super::waits::unknown_features;
use super::{KubernetesConfig, follow, names};
use crate::backends::hold::{Hold, Outbox, Renewals, open};
use crate::backends::line::Hears;
use crate::backends::local::files::{AttemptDir, Binding, Ended, Stop, optional, read_json, write_json};
use crate::backends::local::guard::remote::{Answer, LineFile, Question, What};
use crate::backends::local::guard::{self};
use crate::backends::local::{clock, parse_key_of};
use crate::base::{ContactId, Instant, Span, WallTime};
use crate::core::api::{AttemptKey, StartCommand, StopReason};
use crate::core::{BackendCommand, BackendEvent};
use crate::model::Outcome;
use crate::model::staging::Part;

/// A pod of a gang that has not asked for so long is not there.
const ASKED_WITHIN: Span = Span::secs(10);
/// File of what is said of an end beside its outcome.
const NOTE: &str = "note.json";
/// The end waits so long for the rest of the output.
const OUTPUT_PATIENCE: Span = Span::secs(10);

/// Which pods have the right to run, by rank. Written once, before any of them is told.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Begun {
    pub pods: BTreeMap<u32, String>,
}

/// An attempt that has not ended, as far as is known.
#[derive(Debug)]
pub(super) struct Live {
    pub kept: Kept,
    pub hold: Hold,
    /// Its Job is there, with this identity.
    pub uid: Option<String>,
    /// The Job is being made, released or looked for.
    pub busy: bool,
    /// Pods may come.
    pub released: bool,
    /// Pods are being taken back: none begins.
    pub holding: bool,
    /// A part of the gang has had no room since then.
    pub short_since: Option<Instant>,
    /// Times that its Job was made.
    pub makes: u32,
    /// Since when it stands as it does.
    pub since: Instant,
    pub announced: bool,
    pub wanted: bool,
    pub begun: Option<Begun>,
    /// Pods of a gang that asked: identity, and when.
    pub asked: BTreeMap<u32, (String, Instant)>,
    /// How parts ended, the first that did not end well first.
    pub parts: BTreeMap<u32, Ended>,
    pub first_failure: Option<Ended>,
    /// Pods, by identity.
    pub pods: BTreeMap<String, PodView>,
    /// When each part's guard spoke last.
    pub heard: BTreeMap<u32, Instant>,
    /// Guards that Kubernetes ended, and why it did is still to be learned: their word, and since when.
    pub said: BTreeMap<u32, (Ended, Instant)>,
    /// The Job as it was last seen.
    pub job: Option<Job>,
    /// Proofs in a row that there is no Job of its name, and when the last one came.
    pub absent: (u32, Instant),
    /// Its Job is over, says its status, since when.
    pub over_since: Option<Instant>,
    /// Why pods cannot be made, and since when.
    pub event: Option<(String, Instant)>,
    /// Since when its image is being pulled.
    pub pulling_since: Option<Instant>,
    /// The pull as it was told,
    pub image: Option<Part>,
    /// and the wait for room.
    pub room: Option<Part>,
    /// What is to be said of its end beside the outcome.
    pub note: Option<String>,
    pub pending_since: Option<Instant>,
    /// What it waits for.
    pub doing: String,
    /// Deleted because it did not stop.
    pub deleted: bool,
    /// It is to be given back, and may run unseen.
    pub back: Option<Back>,
    /// Nodes of its pods, by identity, where no guard stands.
    pub placed: BTreeMap<String, String>,
}

/// What the loop must do with Kubernetes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Act {
    /// Make the Job and what belongs to it, as far as it is not there; and let pods come.
    Make(AttemptKey, bool),
    /// Take pods back that hold a part of what a gang needs.
    Hold(AttemptKey),
    /// Is there a Job of this name?
    Look(AttemptKey),
    /// Is there a pod that may run of what is to be given back?
    GiveBack(AttemptKey),
    /// It has ended, and its queue must not let it begin again: delete its Job.
    Withdraw(AttemptKey),
    /// End the pods of what does not stop: of the Job with this identity, where one was seen.
    End(AttemptKey, Option<String>),
    /// The result is kept: delete what is there.
    Remove(AttemptKey),
    /// Read the output of a pod.
    Follow(AttemptKey, Box<PodView>),
}

/// See the module.
pub struct Keeper {
    pub(super) config: KubernetesConfig,
    /// What is to be said and done.
    pub(super) out: Outbox<Act>,
    pub(super) live: Mutex<BTreeMap<AttemptKey, Live>>,
    forgotten: Mutex<VecDeque<AttemptKey>>,
    renewals: Renewals,
    /// Ended, and the rest of the output is still being read: since when.
    closing: Mutex<BTreeMap<AttemptKey, (Ended, Instant)>>,
    /// Output being read, by attempt and pod.
    reading: Mutex<BTreeMap<(AttemptKey, String), bool>>,
    map: Mutex<NodeMap>,
    /// What the cluster has for gangs and queues.
    pub(super) features: Mutex<Features>,
    line: Mutex<Option<LineFile>>,
    seen: Mutex<VecDeque<Seen>>,
}

/// Something that Kubernetes said.
#[derive(Debug)]
pub(super) enum Seen {
    /// A Job of ours, and whether it is still there.
    Job(Box<Job>, bool),
    /// A pod of ours, and whether it is still there.
    Pod(Box<PodView>, bool),
    /// Why pods of a Job cannot be made.
    Event(AttemptKey, String),
}

impl Keeper {
    pub(super) fn new(config: KubernetesConfig) -> io::Result<Self> {
        let mut private = fs::DirBuilder::new();
        private.recursive(true).mode(0o700);
        private.create(config.attempts())?;
        Ok(Self {
            config,
            out: Outbox::default(),
            live: Mutex::default(),
            forgotten: Mutex::default(),
            renewals: Renewals::default(),
            closing: Mutex::default(),
            reading: Mutex::default(),
            map: Mutex::default(),
            features: Mutex::default(),
            line: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    /// The folder of an attempt.
    pub(super) fn dir(&self, key: AttemptKey) -> AttemptDir {
        AttemptDir::new(self.config.attempts().join(key.to_string()))
    }

    /// Kubernetes said something; it is read in turn.
    pub(super) fn note(&self, seen: Seen) {
        open(&self.seen).push_back(seen);
        self.out.changed.notify_one();
    }
    pub(super) fn next_seen(&self) -> Option<Seen> {
        open(&self.seen).pop_front()
    }
    pub(super) fn has_seen(&self) -> bool {
        !open(&self.seen).is_empty()
    }
    pub(super) fn set_map(&self, map: NodeMap) {
        *open(&self.map) = map;
    }
    pub(super) fn map(&self) -> NodeMap {
        open(&self.map).clone()
    }
    pub(super) fn set_line(&self, line: LineFile) {
        *open(&self.line) = Some(line);
    }
    pub(super) fn labels(&self, key: AttemptKey, mark: &str) -> BTreeMap<String, String> {
        names::labels(key, mark, self.config.peer.as_str(), &self.config.mesh)
    }

    /// Whether an attempt with this mark is this peer's and has not ended.
    pub(super) fn is_ours(&self, key: AttemptKey, mark: &str) -> bool {
        open(&self.live).get(&key).is_some_and(|l| l.kept.mark == mark)
    }

    /// The folder's description of an attempt, whether it lives or not.
    pub(super) fn kept(&self, key: AttemptKey) -> Option<Kept> {
        let known = open(&self.live).get(&key).map(|l| l.kept.clone());
        known.or_else(|| read_json(&self.dir(key).file("kubernetes.json")).ok())
    }

    // Guards.

    fn guard_spoke(&self, question: Question) -> Answer {
        let Question { key, part, guard, nonce, what } = question;
        let index: u32 = part.strip_prefix("node-").and_then(|n| n.parse().ok()).unwrap_or(0);
        let begin = match &what {
            What::Begin => Some(self.begin(key, index, &guard)),
            _ => None,
        };
        let mut answer = self.answer(key, nonce);
        if self.has_right(key, index, &guard)
            && let Some(live) = open(&self.live).get_mut(&key)
        {
            live.heard.insert(index, clock::now());
        }
        if let Some((may, master)) = begin {
            (answer.may, answer.master) = (may, master);
        }
        match what {
            What::Ask | What::Begin => {}
            What::Started(started) => {
                if index == 0 && self.has_right(key, index, &guard) {
                    self.started(key, started.at);
                }
            }
            What::Ended(ended) => {
                if self.has_right(key, index, &guard) {
                    self.guard_ended(key, index, ended);
                }
            }
        }
        answer
    }

    fn has_right(&self, key: AttemptKey, index: u32, guard: &str) -> bool {
        let live = open(&self.live);
        let begun = live.get(&key).and_then(|l| l.begun.as_ref());
        begun.is_some_and(|b| b.pods.get(&index).is_some_and(|uid| uid == guard))
    }

    /// A guard wants to run its part: whether it may, and where the gang's first node is.
    fn begin(&self, key: AttemptKey, index: u32, guard: &str) -> (Option<bool>, Option<String>) {
        let dir = self.dir(key);
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return (Some(false), None) };
        if let Some(begun) = &live.begun {
            let may = begun.pods.get(&index).is_some_and(|uid| uid == guard);
            return (Some(may), live.master());
        }
        if live.hold.stop.is_some() || live.hold.fenced.is_some() || index >= live.kept.parts {
            return (Some(false), None);
        }
        if live.holding {
            return (None, None);
        }
        let now = clock::now();
        live.asked.insert(index, (guard.to_owned(), now));
        live.asked.retain(|_, (_, at)| now.since(*at) < ASKED_WITHIN);
        // The address of the first is told to all, and Kubernetes may know it a moment later.
        let gang = live.kept.parts > 1;
        if live.asked.len() < live.kept.parts as usize || (gang && live.master().is_none()) {
            return (None, None);
        }
        let pods = live.asked.iter().map(|(index, (uid, _))| (*index, uid.clone())).collect();
        let begun = Begun { pods };
        // Once written, these and no others: also after a crash between the two.
        let decided = write_json(&dir.file("begun.json"), &begun).and_then(|()| dir.take_token());
        match decided {
            Ok(true) => {
                let may = begun.pods.get(&index).is_some_and(|uid| uid == guard);
                live.doing = "running".into();
                let mine = |p: &&PodView| begun.pods.values().any(|uid| *uid == p.uid);
                let pods: Vec<PodView> = live.pods.values().filter(mine).cloned().collect();
                let master = live.master();
                live.begun = Some(begun);
                drop(all);
                // Their containers run already, and nothing will say so again.
                for pod in pods {
                    self.read_output(key, &pod, false);
                }
                (Some(may), master)
            }
            Ok(false) => (Some(false), None),
            Err(error) => {
                tracing::warn!(%key, trace = self.dir(key).trace(), %error, "the right to run an attempt could not be written");
                (None, None)
            }
        }
    }

    fn answer(&self, key: AttemptKey, nonce: String) -> Answer {
        let mut live = open(&self.live);
        let Some(live) = live.get_mut(&key) else {
            return Hold::unknown(nonce);
        };
        let mut stop = live.hold.stop.map(|(stop, _)| stop);
        if stop.is_none() && live.first_failure.is_some() {
            // The gang has failed: whoever is left is told.
            stop = Some(Stop { reason: StopReason::Superseded, notice: self.config.notice });
        }
        live.hold.answer(nonce, stop, &self.renewals, clock::now())
    }

    pub(super) fn renewed(&self, contact: ContactId, incarnation: u64, sent_at: Instant) {
        let live = open(&self.live);
        self.renewals.renewed((contact, incarnation), sent_at, live.values().map(|l| &l.hold));
    }

    pub(super) fn started(&self, key: AttemptKey, at: WallTime) {
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return };
        if std::mem::replace(&mut live.announced, true) {
            return;
        }
        live.doing = "running".into();
        drop(all);
        if let Err(error) =
            self.dir(key).write_started(&crate::backends::local::files::Started { at, nodes: None })
        {
            tracing::warn!(%key, trace = self.dir(key).trace(), %error, "that an attempt started could not be written");
        }
        self.out.say(BackendEvent::Started { key, at });
    }

    // Commands.

    pub(super) fn command(&self, command: BackendCommand) {
        match command {
            BackendCommand::Start(start) => self.start(&start),
            BackendCommand::Stop { key, notice, reason } => self.stop(key, Stop { reason, notice }),
            BackendCommand::Rebind { key, to, and } => self.rebind(key, Binding { and, ..Binding::to(to) }),
            BackendCommand::Forget { key } => self.forget(key),
        }
    }

    fn rebind(&self, key: AttemptKey, binding: Binding) {
        if let Err(error) = self.dir(key).rebind(binding) {
            // It lives by the old one, which is no longer renewed: safe, and it will end.
            return tracing::warn!(%key, trace = self.dir(key).trace(), %error, "an attempt could not be bound to a new contact");
        }
        if let Some(live) = open(&self.live).get_mut(&key) {
            live.hold.binding = binding;
        }
        self.out.wake(key);
    }

    pub(super) fn start(&self, start: &StartCommand) {
        let key = start.key;
        let dir = self.dir(key);
        match dir.ended() {
            Ok(Some(ended)) => return self.say_ended(key, ended),
            Ok(None) => {}
            Err(error) => {
                return tracing::error!(%key, trace = self.dir(key).trace(), %error, "an attempt's end cannot be read");
            }
        }
        if let Some(live) = open(&self.live).get_mut(&key) {
            live.wanted = true;
            if live.announced
                && let Ok(Some(started)) = dir.started()
            {
                self.out.say(BackendEvent::Started { key, at: started.at });
            }
            return;
        }
        if dir.path().exists() {
            // Known to the disk and not to us: it will be looked at when it is adopted.
            return tracing::warn!(%key, trace = self.dir(key).trace(), "an attempt's folder is there that was not adopted");
        }
        let Some(gangs) = self.gangs_for(start) else {
            let staging = Box::new(unknown_features());
            self.out.say(BackendEvent::Staging { key, staging });
            return tracing::info!(%key, trace = dir.trace(), "an attempt waits until it is known what the cluster has for gangs and queues");
        };
        self.renewals.first(start.binding, start.renewed_at);
        let line = open(&self.line).clone();
        match make::prepare(start, &self.config, &self.map(), gangs, line.as_ref(), &dir) {
            Ok(Some(kept)) => {
                let mut live = Live::new(kept, Binding::to(start.binding));
                live.busy = true;
                live.makes = 1;
                let release = live.kept.parts == 1 || live.kept.group.is_some();
                open(&self.live).insert(key, live);
                self.out.act(Act::Make(key, release));
            }
            Ok(None) => {
                tracing::warn!(%key, trace = self.dir(key).trace(), "an attempt's name was taken meanwhile")
            }
            Err(why) => self.close_unstarted(key, Outcome::NotStarted(why)),
        }
    }

    /// Under a name that nothing ever ran under, and now never will.
    pub(super) fn close_unstarted(&self, key: AttemptKey, outcome: Outcome) {
        let ended = Ended { outcome, started_at: None, at: clock::wall(), output_lost: 0 };
        if let Err(error) = self.dir(key).close_unstarted(&ended) {
            tracing::warn!(%key, trace = self.dir(key).trace(), %error, "that an attempt did not start could not be written");
        }
        if open(&self.live).remove(&key).is_some() {
            self.out.act(Act::Remove(key));
        }
        self.say_ended(key, ended);
    }

    pub(super) fn say_ended(&self, key: AttemptKey, ended: Ended) {
        open(&self.closing).remove(&key);
        if let Ok(Some(text)) = optional(read_json::<String>(&self.dir(key).file(NOTE))) {
            self.out.say(BackendEvent::Note { key, text });
        }
        let Ended { outcome, started_at, at, .. } = ended;
        self.out.say(BackendEvent::Ended { key, outcome, started_at, at });
    }

    fn stop(&self, key: AttemptKey, stop: Stop) {
        self.unpark(key);
        let dir = self.dir(key);
        match dir.ended() {
            Ok(Some(ended)) => return self.say_ended(key, ended),
            Ok(None) => {}
            Err(error) => {
                return tracing::error!(%key, trace = self.dir(key).trace(), %error, "an attempt's end cannot be read");
            }
        }
        if !dir.path().exists() || dir.revoke_token().unwrap_or(false) {
            return self.close_unstarted(key, guard::stopped_by(stop.reason));
        }
        let (for_ever, unguarded, uid) = {
            let mut all = open(&self.live);
            let Some(live) = all.get_mut(&key) else { return };
            live.hold.stop(stop, clock::now());
            let unguarded = !live.kept.guarded && !std::mem::replace(&mut live.deleted, true);
            let for_ever = live.hold.for_ever(live.kept.grace, stop.reason);
            (for_ever, unguarded, live.uid.clone())
        };
        if for_ever {
            // Nobody could ever prove that it has ended. Its record moved on: that was an operator's word.
            let outcome = guard::stopped_by(stop.reason);
            return self
                .write_end(key, Ended { outcome, started_at: None, at: clock::wall(), output_lost: 0 });
        }
        if let Err(error) = dir.write_stop(stop) {
            tracing::error!(%key, trace = self.dir(key).trace(), %error, "that an attempt is to stop could not be written");
        }
        self.out.wake(key);
        if unguarded {
            // Nobody stands in the pod whom we could tell: its kubelet does.
            self.out.act(Act::End(key, uid));
        }
    }

    fn forget(&self, key: AttemptKey) {
        let dir = self.dir(key);
        match dir.ended() {
            Ok(Some(_)) if dir.forgotten().is_none() => {}
            Ok(_) => return,
            Err(error) => {
                return tracing::error!(%key, trace = self.dir(key).trace(), %error, "an attempt's end cannot be read");
            }
        }
        if dir.file("kubernetes.json").exists() {
            // Stays until Kubernetes has nothing of it any more, however often the peer begins anew.
            if let Err(error) = fs::rename(dir.file("kubernetes.json"), dir.file("remove.json")) {
                return tracing::warn!(%key, trace = self.dir(key).trace(), %error, "an attempt could not be cleaned up");
            }
            self.out.act(Act::Remove(key));
        }
        follow::forget(&dir.logs());
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

    /// What must be known to remove an attempt's objects: its mark, by which they are ours.
    pub(super) fn to_remove(&self, key: AttemptKey) -> Option<Kept> {
        let dir = self.dir(key);
        read_json(&dir.file("remove.json")).or_else(|_| read_json(&dir.file("kubernetes.json"))).ok()
    }

    /// Kubernetes has nothing of it any more.
    pub(super) fn removed(&self, key: AttemptKey) {
        let _ = fs::remove_file(self.dir(key).file("remove.json"));
    }

    /// Writes the end, and says it as soon as the output is read.
    pub(super) fn write_end(&self, key: AttemptKey, ended: Ended) {
        let note = open(&self.live).get(&key).and_then(|l| l.note.clone());
        if let Some(note) = note
            && let Err(error) = write_json(&self.dir(key).file(NOTE), &note)
        {
            tracing::warn!(%key, trace = self.dir(key).trace(), %error, "why an attempt ended could not be written");
        }
        if let Err(error) = self.dir(key).write_ended(&ended) {
            // Tried again at the next look.
            return tracing::error!(%key, trace = self.dir(key).trace(), %error, "how an attempt ended could not be written");
        }
        let Some(live) = open(&self.live).remove(&key) else { return };
        if live.kept.queued && ended.outcome != Outcome::Exited(0) {
            self.out.act(Act::Withdraw(key));
        }
        let pods: Vec<PodView> = live.pods.into_values().filter(|p| p.running || p.ended.is_some()).collect();
        let running = |uid: &String| live.begun.as_ref().is_none_or(|b| b.pods.values().any(|u| u == uid));
        let mut waits = false;
        for pod in pods.into_iter().filter(|p| running(&p.uid)) {
            waits |= self.read_output(key, &pod, true);
        }
        if waits {
            open(&self.closing).insert(key, (ended, clock::now()));
            self.out.changed.notify_one();
        } else {
            self.say_ended(key, ended);
        }
    }

    // Output.

    /// Begins to read a pod's output, once; true if there is still some to read.
    pub(super) fn read_output(&self, key: AttemptKey, pod: &PodView, over: bool) -> bool {
        if follow::is_done(&self.dir(key).logs(), pod.index, &pod.uid) {
            return false;
        }
        let mut reading = open(&self.reading);
        match reading.get_mut(&(key, pod.uid.clone())) {
            Some(ended) => *ended |= over,
            None => {
                reading.insert((key, pod.uid.clone()), over);
                drop(reading);
                self.out.act(Act::Follow(key, Box::new(pod.clone())));
            }
        }
        true
    }

    /// Whether a pod's container has ended, as far as is known.
    pub(super) fn output_is_over(&self, key: AttemptKey, uid: &str) -> bool {
        open(&self.reading).get(&(key, uid.to_owned())).copied().unwrap_or(true)
    }

    /// All of a pod's output was read.
    pub(super) fn output_read(&self, key: AttemptKey, uid: &str) {
        open(&self.reading).remove(&(key, uid.to_owned()));
        self.close_read();
    }

    /// Says the ends whose output is read, or waited for long enough.
    pub(super) fn close_read(&self) {
        let now = clock::now();
        let done: Vec<(AttemptKey, Ended)> = {
            let (reading, closing) = (open(&self.reading), open(&self.closing));
            let open_still = |key: &AttemptKey| reading.keys().any(|(k, _)| k == key);
            let ready = closing
                .iter()
                .filter(|(k, (_, since))| !open_still(k) || now.since(*since) > OUTPUT_PATIENCE);
            ready.map(|(k, (ended, _))| (*k, ended.clone())).collect()
        };
        for (key, ended) in done {
            self.say_ended(key, ended);
        }
    }

    /// Reads what an earlier run of the peer left, and says it.
    pub(super) fn adopt(&self) -> io::Result<()> {
        let (mut running, mut over, mut forgotten) = (Vec::new(), Vec::new(), Vec::new());
        for entry in fs::read_dir(self.config.attempts())? {
            let path = entry?.path();
            let Some(key) = parse_key_of(&path) else {
                if path.extension().is_some_and(|e| e.to_string_lossy().starts_with("new-")) {
                    fs::remove_dir_all(&path)?;
                }
                continue;
            };
            let dir = AttemptDir::new(path);
            if dir.file("remove.json").exists() {
                self.out.act(Act::Remove(key));
            }
            if let Some(when) = dir.forgotten() {
                forgotten.push((when, key));
            } else if let Some(ended) = dir.ended()? {
                if !dir.token_taken() && dir.file("kubernetes.json").exists() {
                    // It never began: nothing of it is needed.
                    self.out.act(Act::Remove(key));
                }
                let kept = optional(read_json::<Kept>(&dir.file("kubernetes.json")))?;
                if kept.is_some_and(|k| k.queued) && ended.outcome != Outcome::Exited(0) {
                    self.out.act(Act::Withdraw(key));
                }
                over.push((key, ended));
            } else {
                let kept: Kept = match read_json(&dir.file("kubernetes.json")) {
                    Ok(kept) => kept,
                    Err(_) if dir.never_made() => {
                        fs::remove_dir_all(dir.path())?;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let mut live = Live::new(kept, dir.binding()?);
                live.wanted = false;
                // The decision counts from when it was written, told or not.
                live.begun = optional(read_json(&dir.file("begun.json")))?;
                if live.begun.is_some() && !dir.token_taken() {
                    dir.take_token()?;
                }
                live.announced = false;
                if !live.kept.guarded {
                    if live.kept.files.is_empty() {
                        // An earlier version let pods come without a note of it.
                        dir.take_token()?;
                    }
                    live.placed = self.placed_before(key)?;
                }
                // Without a guard the right to run says only that pods may come.
                if dir.token_taken() && (live.kept.guarded || live.begun.is_some()) {
                    running.push(key);
                }
                if let Some(stop) = dir.stop()? {
                    live.hold.stop(stop, clock::now());
                }
                open(&self.live).insert(key, live);
            }
        }
        forgotten.sort();
        *open(&self.forgotten) = forgotten.into_iter().map(|(_, key)| key).collect();
        self.out.say(BackendEvent::Adopted { running: running.clone() });
        for key in running {
            if let Ok(Some(started)) = self.dir(key).started() {
                self.started(key, started.at);
            }
        }
        for (key, ended) in over {
            self.say_ended(key, ended);
        }
        Ok(())
    }

    /// Log files of an attempt.
    pub(super) fn logs(&self, key: AttemptKey) -> Option<Vec<std::path::PathBuf>> {
        guard::logs::list(&self.dir(key).logs()).ok()
    }

    /// Whether a gang would find room now.
    pub(super) fn fits(&self, kept: &Kept, loads: &BTreeMap<String, Load>) -> bool {
        open(&self.map).fits(loads.values(), kept.parts, kept.gpus, kept.cpus, kept.memory)
    }
}

impl Hears for Keeper {
    fn secret(&self, key: AttemptKey) -> Option<Vec<u8>> {
        let text = self.kept(key)?.secret;
        // Of an attempt without a guard there is none, and an empty one must open nothing.
        HEXLOWER.decode(text.as_bytes()).ok().filter(|s| s.len() == 32)
    }
    fn heard(&self, question: Question) -> Answer {
        self.guard_spoke(question)
    }
}

impl Live {
    pub fn new(kept: Kept, binding: Binding) -> Self {
        let now = clock::now();
        Self {
            kept,
            hold: Hold::new(binding, now),
            uid: None,
            busy: false,
            released: false,
            holding: false,
            short_since: None,
            makes: 0,
            since: now,
            announced: false,
            wanted: true,
            begun: None,
            asked: BTreeMap::new(),
            parts: BTreeMap::new(),
            first_failure: None,
            pods: BTreeMap::new(),
            heard: BTreeMap::new(),
            said: BTreeMap::new(),
            job: None,
            absent: (0, now),
            over_since: None,
            event: None,
            pulling_since: None,
            image: None,
            room: None,
            note: None,
            pending_since: None,
            doing: String::new(),
            deleted: false,
            back: None,
            placed: BTreeMap::new(),
        }
    }

    /// Address of the gang's first pod.
    fn master(&self) -> Option<String> {
        let uid = match &self.begun {
            Some(begun) => begun.pods.get(&0)?,
            None => &self.asked.get(&0)?.0,
        };
        self.pods.get(uid).map(|p| p.ip.clone()).filter(|ip| !ip.is_empty())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_of_the_log_about_an_attempt_carry_its_trace() {
        let sources = [
            include_str!("back.rs"),
            include_str!("ends.rs"),
            include_str!("features.rs"),
            include_str!("follow.rs"),
            include_str!("keeper.rs"),
            include_str!("remove.rs"),
            include_str!("run.rs"),
        ];
        let mut about = 0;
        for line in sources.iter().flat_map(|s| s.split("tracing::").skip(1)) {
            let fields = line.split(';').next().unwrap_or_default();
            if fields.contains("key") || fields.contains("pod =") {
                assert!(fields.contains("trace = "), "{fields}");
                about += 1;
            }
        }
        assert!(about > 20, "{about}");
    }
}
