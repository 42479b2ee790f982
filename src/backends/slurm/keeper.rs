//! The peer's book of attempts on a Slurm cluster: what was asked for, what guards said, what Slurm says.
//!
//! Three voices, in this order of trust. A guard's `ended` is how it ended. Slurm's own word that a job is over
//! ends an attempt whose guard did not get to say it, except where only a node was lost: there the guard may live
//! on, and is waited for until its last lease has run out. That a job is *not in a list* means nothing by itself.
//! All calls block on the disk a little.
// tidy: long because every voice changes the same entry of one book

mod cancels;
mod folders;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Mutex;

use data_encoding::HEXLOWER;

use self::cancels::Cancels;
use self::folders::{last_line, lives, may_run};
use super::SlurmConfig;
use super::driver::{NativeJob, NativeState, Submission, SubmitError};
use super::nodes::NodeMap;
use super::prepare::{self, Kept, native_name, read_tag, tag};
use super::seldom::Seldom;
use crate::backends::hold::{Hold, Outbox, Renewals, open};
use crate::backends::line::Hears;
use crate::backends::local::clock;
use crate::backends::local::files::{
    Binding, Ended, Started, Stop, optional, read_json, write_json_unsynced,
};
use crate::backends::local::guard::remote::{Answer, Question, What};
use crate::backends::local::guard::{self, BY_SCHEDULER};
use crate::base::text::{WORDS_MAX, words};
use crate::base::{ContactId, Instant, Span};
use crate::core::api::{AttemptKey, StartCommand};
use crate::core::{BackendCommand, BackendEvent};
use crate::model::Outcome;

/// Lists, one after another, in which an attempt must be missing before Slurm is asked about it by number.
pub const MISSING_LISTS: u32 = 2;
/// A batch job that vanished before it began is made anew this often.
const SUBMITS_MAX: u32 = 4;
/// A batch job may be missing from a list that was asked for this soon after it was made.
const FRESH: Span = Span::secs(5);
/// How long Slurm is waited for to say why it ended an attempt.
const WHY_PATIENCE: Span = Span::secs(60);
/// After its time for the end is over, an attempt is ended by scancel too.
const CANCEL_AFTER: Span = Span::secs(5);
/// Slurm's default, where it has not said what it is.
const KILL_WAIT: Span = Span::secs(30);
/// An adopted attempt that waits in Slurm's queue, and that the core has not asked for again by then, is given up.
const WANTED_WITHIN: Span = Span::secs(300);
const UNWANTED: &str = "nobody asked for it after the peer was started again";
const UNSEEN: &str = "Slurm says that it is over, and its guard's lock cannot be seen";

/// Where an attempt stands with Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// To be submitted.
    Wanted,
    /// sbatch runs.
    Submitting,
    /// It was submitted, or may have been.
    Submitted,
}

/// An attempt that has not ended, as far as is known.
#[derive(Debug)]
struct Live {
    kept: Kept,
    hold: Hold,
    phase: Phase,
    native: Option<u64>,
    submits: u32,
    since: Instant,
    announced: bool,
    /// Lists in a row that it was missing from.
    missing: u32,
    /// It was seen in a list by name.
    seen: Option<NativeJob>,
    /// When that list was asked for.
    seen_at: Instant,
    pending_since: Option<Instant>,
    /// The core knows it.
    wanted: bool,
    /// A cancel is under way, or was taken.
    cancelled: bool,
    /// One was asked for: what failed may have been done all the same.
    tidied: bool,
    /// Its guard was told by Slurm to end; since when the reason is waited for.
    asking_why: Option<(Instant, Ended)>,
    /// What it has not told over the line is looked for in files.
    on_line: Option<Instant>,
}

/// What the loop must do with Slurm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Submit this.
    Submit(AttemptKey, Submission),
    /// Ask about this number.
    Ask(AttemptKey, u64),
    /// Cancel this number, if it still has the attempt's name.
    Cancel(AttemptKey, u64),
}

/// See the module.
pub struct Keeper {
    pub(super) config: SlurmConfig,
    /// What is to be said and done.
    pub(super) out: Outbox<Act>,
    live: Mutex<BTreeMap<AttemptKey, Live>>,
    forgotten: Mutex<VecDeque<AttemptKey>>,
    cancels: Mutex<Cancels>,
    renewals: Renewals,
    map: Mutex<NodeMap>,
    /// What is asked of Slurm seldom.
    pub(super) seldom: Seldom,
    wanted_within: Span,
}

impl Keeper {
    pub(super) fn new(mut config: SlurmConfig) -> io::Result<Self> {
        let mut private = fs::DirBuilder::new();
        private.recursive(true).mode(0o700);
        private.create(&config.shared)?;
        config.shared = fs::canonicalize(&config.shared)?;
        private.create(config.attempts())?;
        private.create(config.bin_folder())?;
        Ok(Self {
            config,
            out: Outbox::default(),
            live: Mutex::default(),
            forgotten: Mutex::default(),
            cancels: Mutex::default(),
            renewals: Renewals::default(),
            map: Mutex::default(),
            seldom: Seldom::default(),
            wanted_within: WANTED_WITHIN,
        })
    }

    pub(super) fn set_map(&self, map: NodeMap) {
        *open(&self.map) = map;
    }
    pub(super) fn map(&self) -> NodeMap {
        open(&self.map).clone()
    }
    /// Attempts that have not ended.
    #[cfg(test)]
    pub fn live_count(&self) -> usize {
        open(&self.live).len()
    }

    /// The attempt of a native job, if the job is this peer's: name *and* comment say so, and we know it.
    pub(super) fn ours(&self, job: &NativeJob) -> Option<AttemptKey> {
        let (key, mark) = read_tag(&job.comment)?;
        let ours = open(&self.live).get(&key).is_some_and(|l| l.kept.mark == mark);
        (job.name == native_name(key) && ours).then_some(key)
    }

    // Guards.

    fn guards_secret(&self, key: AttemptKey) -> Option<Vec<u8>> {
        let known = open(&self.live).get(&key).map(|l| l.kept.secret.clone());
        // A guard of an attempt that is over is told so, if its folder is still there.
        let text = match known {
            Some(text) => text,
            None => self.kept(key)?.secret,
        };
        HEXLOWER.decode(text.as_bytes()).ok()
    }

    /// A guard spoke, and proved that it is one.
    fn guard_spoke(&self, question: Question) -> Answer {
        let Question { key, part, nonce, what, .. } = question;
        let answer = self.answer(key, nonce);
        if let Some(live) = open(&self.live).get_mut(&key) {
            live.on_line = Some(clock::now());
        }
        match what {
            What::Ask | What::Begin => {}
            What::Started(started) if part.is_empty() || part == "node-0" => {
                self.started(key, &part, started);
            }
            What::Started(_) => {}
            What::Ended(ended) => self.guard_ended(key, &part, ended),
        }
        answer
    }

    fn answer(&self, key: AttemptKey, nonce: String) -> Answer {
        let mut live = open(&self.live);
        let Some(live) = live.get_mut(&key) else {
            return Hold::unknown(nonce);
        };
        let stop = live.hold.stop.map(|(stop, _)| stop);
        live.hold.answer(nonce, stop, &self.renewals, clock::now())
    }

    /// Answers the questions that guards without a line left in their folders.
    pub(super) fn answer_files(&self) {
        let quiet: Vec<(AttemptKey, u32)> = {
            let now = clock::now();
            let live = open(&self.live);
            let quiet = |l: &Live| {
                let every = l.kept.grace.map_or(Span::secs(10), |g| g.scale(1, 5).min(Span::secs(20)));
                l.phase == Phase::Submitted && l.on_line.is_none_or(|at| now.since(at) > every)
            };
            live.iter().filter(|(_, l)| quiet(l)).map(|(k, l)| (*k, l.kept.parts)).collect()
        };
        for (key, parts) in quiet {
            for dir in std::iter::once(self.dir(key)).chain(self.node_dirs(key, parts)) {
                let question: Option<Question> =
                    optional(read_json(&dir.file("question.json"))).ok().flatten();
                let Some(question) = question.filter(|q| q.key == key) else { continue };
                let answer = self.answer(key, question.nonce);
                if let Err(error) = write_json_unsynced(&dir.file("answer.json"), &answer) {
                    tracing::warn!(%key, trace = self.dir(key).trace(), %error, "a guard cannot be answered");
                }
            }
        }
    }

    pub(super) fn renewed(&self, contact: ContactId, incarnation: u64, sent_at: Instant) {
        let live = open(&self.live);
        self.renewals.renewed((contact, incarnation), sent_at, live.values().map(|l| &l.hold));
        drop(live);
        self.answer_files();
    }

    fn started(&self, key: AttemptKey, part: &str, started: Started) {
        let mut live = open(&self.live);
        let Some(live) = live.get_mut(&key) else { return };
        // Of a gang the first node's program counts, not the launcher.
        if live.announced || (live.kept.parts > 0 && part.is_empty()) {
            return;
        }
        live.announced = true;
        self.say_started(key, started);
    }

    fn say_started(&self, key: AttemptKey, started: Started) {
        self.say_where(key, started.nodes);
        self.out.say(BackendEvent::Started { key, at: started.at });
    }

    fn say_where(&self, key: AttemptKey, nodes: Option<String>) {
        if let Some(nodes) = nodes {
            self.out.say(BackendEvent::Where { key, nodes });
        }
    }

    fn guard_ended(&self, key: AttemptKey, part: &str, ended: Ended) {
        let parts = open(&self.live).get(&key).map(|l| l.kept.parts);
        match parts {
            Some(0) if part.is_empty() => self.settle(key, ended),
            Some(_) => self.check(key),
            None => {}
        }
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

    fn start(&self, start: &StartCommand) {
        let key = start.key;
        let dir = self.dir(key);
        match self.closed(key) {
            Ok(Some(ended)) => return self.say_ended(key, ended),
            Ok(None) => {}
            Err(error) => {
                return tracing::error!(%key, trace = self.dir(key).trace(), %error, "an attempt's end cannot be read");
            }
        }
        if let Some(live) = open(&self.live).get_mut(&key) {
            live.wanted = true;
            if live.announced
                && let Ok(Some(started)) = self.started_file(key, live.kept.parts)
            {
                self.say_started(key, started);
            }
            return;
        }
        if dir.path().exists() {
            // Known to the disk and not to us: it will be looked at when it is adopted.
            return tracing::warn!(%key, trace = self.dir(key).trace(), "an attempt's folder is there that was not adopted");
        }
        self.renewals.first(start.binding, start.renewed_at);
        let kill_wait = self.seldom.kill_wait().unwrap_or(KILL_WAIT);
        match prepare::prepare(start, &self.config, &self.map(), kill_wait, &dir) {
            Ok(Some(kept)) => {
                let live = Live::new(kept, Binding::to(start.binding));
                open(&self.live).insert(key, live);
                self.submit(key);
            }
            Ok(None) => {
                tracing::warn!(%key, trace = self.dir(key).trace(), "an attempt's name was taken meanwhile")
            }
            Err(why) => self.close_unstarted(key, Outcome::NotStarted(why)),
        }
    }

    fn submit(&self, key: AttemptKey) {
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return };
        (live.phase, live.submits, live.since) = (Phase::Submitting, live.submits + 1, clock::now());
        (live.missing, live.native, live.seen) = (0, None, None);
        let submission = live.kept.submission(key, self.dir(key).path());
        drop(all);
        self.out.act(Act::Submit(key, submission));
    }

    /// What became of a submission.
    pub(super) fn submitted(&self, key: AttemptKey, result: Result<u64, SubmitError>) {
        let dir = self.dir(key);
        if let Ok(id) = &result {
            // Only a hint for people and for the next run; the name is what counts.
            let _ = write_json_unsynced(&dir.file("native.json"), id);
        }
        {
            let mut all = open(&self.live);
            let Some(live) = all.get_mut(&key) else {
                // Stopped meanwhile: the token is gone, and what was made is taken back.
                if let Ok(id) = result {
                    drop(all);
                    self.cancel(key, id);
                }
                return;
            };
            (live.phase, live.since) = (Phase::Submitted, clock::now());
            if let Ok(id) = &result {
                live.native = Some(*id);
            }
        }
        match result {
            Ok(_) => {}
            Err(SubmitError::Unknown(why)) => {
                tracing::warn!(%key, trace = self.dir(key).trace(), "whether Slurm took an attempt is not known, it is looked for: {why}");
            }
            Err(SubmitError::Refused(why)) => match dir.revoke_token() {
                Ok(true) => self.close_unstarted(key, Outcome::NotStarted(why)),
                // An earlier submission of the same attempt has begun.
                _ => {
                    tracing::info!(%key, trace = self.dir(key).trace(), "refused by Slurm, and it runs already: {why}")
                }
            },
        }
    }

    /// Under a name that nothing ever ran under, and now never will.
    fn close_unstarted(&self, key: AttemptKey, outcome: Outcome) {
        // Slurm's words may be longer than the file may be.
        let outcome = match outcome {
            Outcome::NotStarted(why) => Outcome::NotStarted(words(&why, WORDS_MAX)),
            Outcome::Refused(why) => Outcome::Refused(words(&why, WORDS_MAX)),
            other => other,
        };
        let ended = Ended { outcome, started_at: None, at: clock::wall(), output_lost: 0 };
        if let Err(error) = self.dir(key).close_unstarted(&ended) {
            tracing::warn!(%key, trace = self.dir(key).trace(), %error, "that an attempt did not start could not be written");
        }
        open(&self.live).remove(&key);
        self.say_end(key, ended);
    }

    /// Says an end once, whoever told of it first.
    fn drop_live(&self, key: AttemptKey, ended: Ended) {
        let Some(live) = open(&self.live).remove(&key) else { return };
        if live.announced { self.say_end(key, ended) } else { self.say_ended(key, ended) }
    }

    /// With where it ran: its start may have been told to an earlier run of the peer, or to none.
    fn say_ended(&self, key: AttemptKey, ended: Ended) {
        let parts = self.kept(key).map_or(0, |kept| kept.parts);
        if let Ok(Some(started)) = self.started_file(key, parts) {
            self.say_where(key, started.nodes);
        }
        self.say_end(key, ended);
    }

    fn say_end(&self, key: AttemptKey, ended: Ended) {
        let Ended { outcome, started_at, at, .. } = ended;
        self.out.say(BackendEvent::Ended { key, outcome, started_at, at });
    }

    fn stop(&self, key: AttemptKey, stop: Stop) {
        let dir = self.dir(key);
        match self.closed(key) {
            Ok(Some(ended)) => return self.say_ended(key, ended),
            Ok(None) => {}
            Err(error) => {
                return tracing::error!(%key, trace = self.dir(key).trace(), %error, "an attempt's end cannot be read");
            }
        }
        if !dir.path().exists() || dir.revoke_token().unwrap_or(false) {
            let native = open(&self.live).get(&key).and_then(Live::number);
            if let Some(id) = native {
                self.cancel(key, id);
            }
            return self.close_unstarted(key, guard::stopped_by(stop.reason));
        }
        let fenced_for_ever = {
            let mut all = open(&self.live);
            let Some(live) = all.get_mut(&key) else { return };
            live.hold.stop(stop, clock::now());
            live.hold.for_ever(live.kept.grace, stop.reason)
        };
        if fenced_for_ever {
            // Nobody could ever prove that it has ended. Its record moved on: that was an operator's word.
            let ended = Ended {
                outcome: guard::stopped_by(stop.reason),
                started_at: None,
                at: clock::wall(),
                output_lost: 0,
            };
            return self.write_end(key, ended);
        }
        if let Err(error) = dir.write_stop(stop) {
            tracing::error!(%key, trace = self.dir(key).trace(), %error, "an attempt could not be told to stop by its file");
        }
        dir.wake();
        self.out.wake(key);
    }

    // Ends.

    /// Writes the end where the guard did not, and says it.
    fn write_end(&self, key: AttemptKey, ended: Ended) {
        if let Err(error) = self.dir(key).write_ended(&ended) {
            // Tried again at the next look.
            return tracing::error!(%key, trace = self.dir(key).trace(), %error, "how an attempt ended could not be written");
        }
        self.close(key, ended);
    }

    /// A next run of the peer shall not wait for guards of nodes that this one has given up, or found killed.
    fn close(&self, key: AttemptKey, ended: Ended) {
        let parts = open(&self.live).get(&key).map_or(0, |l| l.kept.parts);
        for node in self.node_dirs(key, parts).iter().filter(|node| matches!(node.ended(), Ok(None))) {
            let _ = node.write_ended(&ended);
        }
        self.drop_live(key, ended);
    }

    /// A guard's word is final, unless Slurm made it end: then Slurm says why.
    fn settle(&self, key: AttemptKey, ended: Ended) {
        if ended.outcome != Outcome::Stopped(BY_SCHEDULER.into()) {
            return self.close(key, ended);
        }
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return };
        let since = live.asking_why.as_ref().map_or(clock::now(), |(at, _)| *at);
        live.asking_why = Some((since, ended.clone()));
        let late = clock::now().since(since) > WHY_PATIENCE;
        // Our own cancel is not somebody's wish.
        let tidied = live.tidied && live.hold.stop.is_none();
        // A list from before its end shows a queue that it has left since; that it is over stays so.
        let seen_at = live.seen_at;
        let native = live.seen.clone().filter(|n| n.state.is_over() || seen_at > since);
        // Whatever Slurm means to do with it under this number: its right to run is spent.
        let left =
            live.number().filter(|_| !native.as_ref().is_some_and(|n| n.state.is_over()) && !live.cancelled);
        let why = native.and_then(|n| why_ended(&n, tidied)).or(late.then_some(None));
        if why.is_some() && left.is_some() {
            live.cancel();
        }
        drop(all);
        let Some(why) = why else { return };
        if let Some(id) = left {
            self.cancel(key, id);
        }
        let outcome = why.unwrap_or(ended.outcome.clone());
        self.write_end(key, Ended { outcome, ..ended });
    }

    /// Looks into an attempt's folder.
    pub(super) fn check(&self, key: AttemptKey) {
        let Some((parts, announced)) = open(&self.live).get(&key).map(|l| (l.kept.parts, l.announced)) else {
            return;
        };
        if !announced && let Ok(Some(started)) = self.started_file(key, parts) {
            self.started(key, if parts == 0 { "" } else { "node-0" }, started);
        }
        let whole = match self.dir(key).ended() {
            Ok(Some(ended)) => ended,
            Ok(None) => return,
            Err(error) => {
                return tracing::warn!(%key, trace = self.dir(key).trace(), %error, "an attempt's end cannot be read");
            }
        };
        if parts == 0 {
            return self.settle(key, whole);
        }
        // The launcher is gone; every node's guard must be, too.
        let mut nodes: Vec<Ended> = Vec::new();
        for node in &self.node_dirs(key, parts) {
            match node.ended() {
                Ok(Some(ended)) => nodes.push(ended),
                _ if !may_run(node) => {}
                _ => {
                    // Slurm ends what is left, and its word that it did counts.
                    let mut all = open(&self.live);
                    let Some(live) = all.get_mut(&key) else { return };
                    let state = live.seen.as_ref().map(|n| n.state);
                    let lives = lives(node);
                    let failed = state == Some(NativeState::NodeFail);
                    if lives == Some(true) || failed || !state.is_some_and(NativeState::is_over) {
                        let late = clock::now().since(live.since) > CANCEL_AFTER;
                        let left = live.number().filter(|_| late && !live.cancelled);
                        if left.is_some() {
                            live.cancel();
                        }
                        drop(all);
                        if let Some(id) = left {
                            self.cancel(key, id);
                        }
                        if failed && lives != Some(true) {
                            self.fence(key, "its node failed");
                        }
                        return;
                    }
                    if lives.is_none() {
                        drop(all);
                        return self.fence(key, UNSEEN);
                    }
                }
            }
        }
        let ended = gang_outcome(whole, &nodes);
        self.settle(key, ended);
    }

    /// One whole list of Slurm's jobs. True if something of an attempt is open that only a next list can close.
    pub(super) fn seen(&self, jobs: &[NativeJob], asked_at: Instant) {
        let mut by_name: BTreeMap<&str, Vec<&NativeJob>> = BTreeMap::new();
        for job in jobs.iter().filter(|j| j.name.starts_with("starling-")) {
            by_name.entry(&job.name).or_default().push(job);
        }
        let keys: Vec<(AttemptKey, String)> =
            open(&self.live).iter().map(|(key, l)| (*key, tag(*key, &l.kept.mark))).collect();
        for (key, tag) in keys {
            let name = native_name(key);
            // One of the same name without our tag is somebody else's, and stays untouched.
            let all = by_name.get(name.as_str()).into_iter().flatten().filter(|j| j.comment == tag);
            // Where it was made twice, the one that is not over counts, else the last.
            let job = all.max_by_key(|j| (!j.state.is_over(), j.id)).map(|j| (*j).clone());
            match job {
                Some(job) => self.seen_one(key, job, asked_at),
                None => self.missing(key, asked_at),
            }
            self.check(key);
            self.overdue(key);
        }
        self.cancel_left(jobs, asked_at);
    }

    fn seen_one(&self, key: AttemptKey, job: NativeJob, asked_at: Instant) {
        {
            let mut all = open(&self.live);
            let Some(live) = all.get_mut(&key) else { return };
            live.missing = 0;
            live.native = Some(job.id);
            if live.phase == Phase::Wanted {
                live.phase = Phase::Submitted;
            }
            if job.state == NativeState::Pending {
                live.pending_since.get_or_insert(clock::now());
            } else {
                live.pending_since = None;
            }
            if live.hold.fenced.is_some() && job.state == NativeState::Active {
                live.hold.fenced = None;
            }
            (live.seen, live.seen_at) = (Some(job.clone()), asked_at);
        }
        match job.state {
            NativeState::Pending => self.pending(key, &job),
            NativeState::Active | NativeState::Other => {}
            _ => self.over(key, &job),
        }
    }

    /// It waits in Slurm's queue; if it ran before, it was requeued over our "no".
    fn pending(&self, key: AttemptKey, job: &NativeJob) {
        let dir = self.dir(key);
        if dir.token_taken() {
            let over = matches!(dir.ended(), Ok(None)) && job.restarts > 0;
            if over && self.guards_gone(key) == Some(true) {
                self.cancel(key, job.id);
                let outcome = Outcome::Stopped("requeued by Slurm".into());
                self.write_end(key, self.end_now(key, outcome));
            }
            return;
        }
        let now = clock::now();
        let (since, wanted, age) = {
            let all = open(&self.live);
            let Some(live) = all.get(&key) else { return };
            (live.pending_since, live.wanted, now.since(live.since))
        };
        let too_long = since.is_some_and(|at| now.since(at) > self.config.pending_max);
        let why = if too_long {
            format!(
                "Slurm did not start it within {} s: {}",
                self.config.pending_max.as_secs_f64(),
                job.reason
            )
        } else if !wanted && age > self.wanted_within {
            UNWANTED.to_owned()
        } else {
            return;
        };
        if dir.revoke_token().unwrap_or(false) {
            self.cancel(key, job.id);
            self.close_unstarted(key, Outcome::Refused(why));
        }
    }

    fn end_now(&self, key: AttemptKey, outcome: Outcome) -> Ended {
        let parts = open(&self.live).get(&key).map_or(0, |l| l.kept.parts);
        let started_at = self.started_file(key, parts).ok().flatten().map(|s| s.at);
        Ended { outcome, started_at, at: clock::wall(), output_lost: 0 }
    }

    /// Whether every guard that began is gone, by the locks that they hold; none where that cannot be known. Slurm
    /// may say of a run that it is over and mean another: a controller that was killed starts what it had
    /// forgotten to have started, the second guard finds the right to run taken, and that run "completes".
    fn guards_gone(&self, key: AttemptKey) -> Option<bool> {
        let parts = open(&self.live).get(&key).map_or(0, |l| l.kept.parts);
        for dir in std::iter::once(self.dir(key)).chain(self.node_dirs(key, parts)) {
            if !dir.token_taken() || matches!(dir.ended(), Ok(Some(_))) {
                continue;
            }
            match lives(&dir) {
                Some(true) => return Some(false),
                Some(false) => {}
                None => return None,
            }
        }
        Some(true)
    }

    /// Slurm says that it is over.
    fn over(&self, key: AttemptKey, job: &NativeJob) {
        let dir = self.dir(key);
        if !matches!(dir.ended(), Ok(None)) {
            return;
        }
        if dir.revoke_token().unwrap_or(false) {
            // Its guard never began.
            let last = last_line(&dir);
            let outcome = match job.state {
                NativeState::Cancelled => Outcome::Cancelled,
                NativeState::Preempted => Outcome::Stopped("preempted by Slurm".into()),
                NativeState::NodeFail => Outcome::Stopped("its node failed before it began".into()),
                _ => Outcome::NotStarted(format!("Slurm: {} {}: {last}", job.word, job.reason)),
            };
            return self.close_unstarted(key, outcome);
        }
        match self.guards_gone(key) {
            // The guard's word comes first, and it is still to come.
            Some(false) => return,
            Some(true) if job.state != NativeState::NodeFail => {}
            _ if job.state == NativeState::NodeFail => return self.fence(key, "its node failed"),
            _ => return self.fence(key, UNSEEN),
        }
        let outcome = slurm_outcome(job)
            .unwrap_or_else(|| Outcome::Stopped(format!("its guard was ended: Slurm says {}", job.word)));
        self.write_end(key, self.end_now(key, outcome));
    }

    /// Nobody can say that it has ended: its guard gets no more time, and when what it has is over, it has.
    fn fence(&self, key: AttemptKey, why: &str) {
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return };
        let now = clock::now();
        if live.hold.fence(why, now) {
            tracing::warn!(%key, trace = self.dir(key).trace(), "{why}: waiting until its guard's time is over");
        }
        // What was told to end before it was fenced, and has no time that could be over, ends by that word alone.
        let told = live.hold.stop.map(|(stop, _)| stop.reason);
        let told = told.filter(|reason| live.hold.for_ever(live.kept.grace, *reason));
        if told.is_none() && !live.hold.is_over(live.kept.grace, now) {
            return;
        }
        drop(all);
        let outcome = told.map_or_else(|| Outcome::Stopped(why.to_owned()), guard::stopped_by);
        self.write_end(key, self.end_now(key, outcome));
    }

    fn missing(&self, key: AttemptKey, asked_at: Instant) {
        let ask = {
            let mut all = open(&self.live);
            let Some(live) = all.get_mut(&key) else { return };
            if live.phase != Phase::Submitted || asked_at < live.since + FRESH {
                if live.phase == Phase::Wanted {
                    live.missing += 1;
                }
                (live.phase == Phase::Wanted && live.missing >= MISSING_LISTS).then_some(None)
            } else {
                live.missing += 1;
                (live.missing >= MISSING_LISTS).then_some(live.native)
            }
        };
        match ask {
            None => {}
            Some(Some(id)) => self.out.act(Act::Ask(key, id)),
            // Nothing ever gave it a number: two whole lists without its name are all that can be had.
            Some(None) => self.absent(key),
        }
    }

    /// Slurm's own record about a number that was missing from lists: its job, or that there is none.
    pub(super) fn asked(&self, key: AttemptKey, job: Option<NativeJob>) {
        let Some(tag) = open(&self.live).get(&key).map(|l| tag(key, &l.kept.mark)) else { return };
        match job.filter(|j| j.name == native_name(key) && (j.comment == tag || j.comment.is_empty())) {
            // When it was asked is not kept: only that it is over is believed for good.
            Some(job) => self.seen_one(key, job, Instant(0)),
            None => self.absent(key),
        }
        self.check(key);
    }

    /// It is provably not there.
    fn absent(&self, key: AttemptKey) {
        let dir = self.dir(key);
        match dir.ended() {
            Ok(None) => {}
            Ok(Some(_)) => return self.launcher_ended(key),
            Err(_) => return,
        }
        if dir.token_taken() {
            if self.guards_gone(key) != Some(false) {
                self.fence(key, "Slurm has no record of it any more");
            }
            return;
        }
        let known = open(&self.live).get(&key).map(|l| (l.submits, l.wanted, l.since));
        let Some((submits, wanted, since)) = known else { return };
        if !wanted {
            if clock::now().since(since) > self.wanted_within && dir.revoke_token().unwrap_or(false) {
                self.close_unstarted(key, Outcome::Refused(UNWANTED.into()));
            }
            return;
        }
        if submits < SUBMITS_MAX {
            // It did not begin, and even if the first one comes to light again, only one of them begins.
            tracing::warn!(%key, trace = self.dir(key).trace(), "Slurm lost an attempt that had not begun: submitted again");
            return self.submit(key);
        }
        if dir.revoke_token().unwrap_or(false) {
            let why = format!("Slurm lost it {submits} times before it began");
            self.close_unstarted(key, Outcome::Refused(why));
        }
    }

    /// Of a gang that is provably not there, a node's guard has not said its end: it is waited for as long as it may live.
    fn launcher_ended(&self, key: AttemptKey) {
        self.check(key);
        let open_gang =
            open(&self.live).get(&key).is_some_and(|l| l.kept.parts > 0 && l.asking_why.is_none());
        if open_gang && self.guards_gone(key) != Some(false) {
            self.fence(key, "Slurm has no record of it any more");
        }
    }

    /// What was told to stop and does not.
    fn overdue(&self, key: AttemptKey) {
        let cancel = {
            let mut all = open(&self.live);
            let Some(live) = all.get_mut(&key) else { return };
            if let Some((_, why)) = live.hold.fenced.clone() {
                drop(all);
                return self.fence(key, &why);
            }
            let late = live.hold.stop.is_some_and(|(_, at)| clock::now() > at + CANCEL_AFTER);
            match live.number() {
                Some(id) if late && !live.cancelled => {
                    live.cancel();
                    Some(id)
                }
                _ => None,
            }
        };
        if let Some(id) = cancel {
            self.cancel(key, id);
        }
    }

    /// What can be seen without Slurm.
    pub(super) fn look_into_folders(&self) {
        let keys: Vec<AttemptKey> = open(&self.live).keys().copied().collect();
        keys.into_iter().for_each(|key| self.check(key));
        self.answer_files();
    }
}

impl Hears for Keeper {
    fn secret(&self, key: AttemptKey) -> Option<Vec<u8>> {
        self.guards_secret(key)
    }
    fn heard(&self, question: Question) -> Answer {
        self.guard_spoke(question)
    }
}

impl Live {
    fn new(kept: Kept, binding: Binding) -> Self {
        let now = clock::now();
        Self {
            kept,
            hold: Hold::new(binding, now),
            phase: Phase::Wanted,
            native: None,
            submits: 0,
            since: now,
            announced: false,
            missing: 0,
            seen: None,
            seen_at: Instant(0),
            pending_since: None,
            wanted: true,
            cancelled: false,
            tidied: false,
            asking_why: None,
            on_line: None,
        }
    }
    fn cancel(&mut self) {
        (self.cancelled, self.tidied) = (true, true);
    }
    fn number(&self) -> Option<u64> {
        self.seen.as_ref().map(|n| n.id).or(self.native)
    }
}

/// Why Slurm told an attempt's guard to end, as the attempt's batch job shows it: none where it does not yet, an
/// inner none where it never will. A batch job that waits, or ended in its own way after it was started again, was
/// requeued: its second guard found the right to run taken.
fn why_ended(job: &NativeJob, tidied: bool) -> Option<Option<Outcome>> {
    let requeued = Outcome::Stopped("requeued by Slurm".into());
    match job.state {
        NativeState::Pending => Some(Some(requeued)),
        NativeState::Active | NativeState::Other => None,
        NativeState::Cancelled if tidied => Some((job.restarts > 0).then_some(requeued)),
        _ => Some(slurm_outcome(job).or((job.restarts > 0).then_some(requeued))),
    }
}

/// How Slurm says that an attempt ended which its guard could not report. None where the guard must have died.
pub fn slurm_outcome(job: &NativeJob) -> Option<Outcome> {
    match job.state {
        NativeState::Timeout => Some(Outcome::TimedOut),
        NativeState::Cancelled => Some(Outcome::Cancelled),
        NativeState::Preempted => Some(Outcome::Stopped("preempted by Slurm".into())),
        NativeState::NodeFail => Some(Outcome::Stopped("its node failed".into())),
        NativeState::OutOfMemory => Some(Outcome::Signaled(9)),
        _ => None,
    }
}

/// The first node that failed decides for all; a stop of the whole counts as such.
fn gang_outcome(whole: Ended, nodes: &[Ended]) -> Ended {
    let by_itself = |e: &&Ended| {
        matches!(&e.outcome, Outcome::Signaled(_) | Outcome::NotStarted(_))
            || matches!(&e.outcome, Outcome::Exited(code) if *code != 0)
    };
    let started_at = nodes.iter().filter_map(|e| e.started_at).min();
    let whole_stopped = matches!(whole.outcome, Outcome::Cancelled | Outcome::TimedOut | Outcome::Stopped(_));
    let told = nodes.iter().find(|e| {
        matches!(&e.outcome, Outcome::Cancelled | Outcome::TimedOut)
            || matches!(&e.outcome, Outcome::Stopped(why) if why != BY_SCHEDULER)
    });
    let outcome = match (whole_stopped, nodes.iter().filter(by_itself).min_by_key(|e| e.at), told) {
        (true, ..) => whole.outcome.clone(),
        (false, Some(first), _) => first.outcome.clone(),
        (false, None, Some(told)) => told.outcome.clone(),
        (false, None, None) => whole.outcome.clone(),
    };
    Ended { outcome, started_at: started_at.or(whole.started_at), ..whole }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
