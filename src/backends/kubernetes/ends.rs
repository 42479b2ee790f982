//! What is concluded of what Kubernetes says, and what is not.
// tidy: long because all that is concluded of an attempt is to be read in one place

use super::api::ApiError;
use super::feed::Mirror;
use super::keeper::{Act, Begun, Keeper, Seen};
use super::names;
use super::nodes::Load;
use super::objects::Job;
use super::pods::{PodView, Trouble};
use super::waits::{failed_with, overdue, told, waits};
use crate::backends::hold::open;
use crate::backends::local::clock;
use crate::backends::local::files::{Ended, write_json};
use crate::backends::local::guard::{BY_SCHEDULER, stopped_by};
use crate::base::{Bytes, Instant, Span};
use crate::core::BackendEvent;
use crate::core::api::{AttemptKey, StopReason};
use crate::model::Outcome;

/// Answers, one after another, that must say that there is no Job of a name.
pub const ABSENT_ANSWERS: u32 = 2;
/// Between two of them.
const LOOK_EVERY: Span = Span::secs(2);
/// A Job that vanished before its attempt began is made anew this often.
const MAKES_MAX: u32 = 4;
/// Between two tries to make a Job, at first.
const MAKE_AGAIN: Span = Span::secs(1);
/// After its time for the end is over, an attempt's pods are ended by Kubernetes too.
const END_AFTER: Span = Span::secs(5);
/// A Job is over, and its pods are waited for so long to say how.
pub(super) const OVER_PATIENCE: Span = Span::secs(5);
/// A guard that says nothing for so long may be gone; one that speaks lives, whatever became of its pod's object.
const SILENT: Span = Span::secs(30);
/// Kubernetes ended it, and is waited for so long to say why.
const WHY_PATIENCE: Span = Span::secs(30);
/// Why it was stopped where its queue needed the room.
const TAKEN_BACK: &str = "preempted: its queue suspended its Job again";
/// A gang that has found room for a part of its pods only gives it back after so long.
const GANG_PATIENCE: Span = Span::secs(30);

/// What became of making a Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Made {
    /// It is there, with this identity; pods may come.
    There(String, bool),
    /// There is one of its name that is not ours.
    Foreign,
    /// No PodGroup can be made in this folder.
    NoGroup(String, String),
    /// The server said no.
    Refused(u16, String),
    /// It is not known.
    Unknown(String),
}

/// What is known of the cluster at a look.
pub(super) struct Sight<'a> {
    /// Our Jobs.
    pub jobs: &'a Mirror<Job>,
    /// All pods.
    pub pods: &'a Mirror<(Load, Option<PodView>)>,
    /// Both are known as they are now.
    pub fresh: bool,
}

impl Keeper {
    /// Reads what Kubernetes said meanwhile.
    pub(super) fn digest(&self) {
        while let Some(seen) = self.next_seen() {
            match seen {
                Seen::Job(job, there) => self.job_seen(&job, there),
                Seen::Pod(pod, there) => self.pod_seen(*pod, there),
                Seen::Event(key, why) => {
                    if let Some(live) = open(&self.live).get_mut(&key)
                        && live.begun.is_none()
                        && live.event.is_none()
                    {
                        live.event = Some((why, clock::now()));
                    }
                }
            }
        }
    }

    /// The attempt of a Job, if it is this peer's: name *and* labels say so, and we know it.
    fn of_job(&self, job: &Job) -> Option<AttemptKey> {
        let labels = &job.metadata.labels;
        let (key, mark) = names::read_labels(labels)?;
        let all = self.labels(key, mark).iter().all(|(k, v)| labels.get(k) == Some(v));
        (all && job.metadata.name == names::native_name(key) && self.is_ours(key, mark)).then_some(key)
    }

    pub(super) fn job_seen(&self, job: &Job, there: bool) {
        let Some(key) = self.of_job(job) else { return };
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return };
        if there {
            live.uid = Some(job.metadata.uid.clone());
            live.absent = (0, clock::now());
            live.released |= !job.spec.suspend && !live.holding;
        }
        let over = job.is("Complete").or(job.is("Failed")).is_some();
        if over {
            live.over_since.get_or_insert(clock::now());
        }
        let deleted_by_others = job.metadata.deletion_timestamp.is_some()
            && !over
            && live.hold.stop.is_none()
            && live.back.is_none();
        live.job = Some(job.clone());
        drop(all);
        if deleted_by_others {
            tracing::warn!(%key, trace = self.dir(key).trace(), "somebody deleted the Job of an attempt: it is cancelled");
            let notice = self.config.notice;
            self.command(crate::core::BackendCommand::Stop { key, notice, reason: StopReason::Cancel });
        }
    }

    pub(super) fn pod_seen(&self, pod: PodView, there: bool) {
        let key = pod.key;
        if !self.is_ours(key, &pod.mark) {
            return;
        }
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return };
        if !there || matches!(pod.trouble, Some(Trouble::Deleted(_))) {
            // Its guard asked, and is not there any more to be told.
            live.asked.retain(|_, (uid, _)| *uid != pod.uid);
        }
        if there {
            live.pods.insert(pod.uid.clone(), pod.clone());
            if !live.kept.guarded {
                self.placed(live, &pod);
            }
        }
        if live.begun.is_none() && !live.kept.guarded && (pod.running || pod.ended.is_some()) {
            // Without a guard nobody asks: what runs, runs.
            let pods = [(pod.index, pod.uid.clone())].into();
            let written = write_json(&self.dir(key).file("begun.json"), &Begun { pods });
            if let Err(error) = written.and_then(|()| self.dir(key).take_token()) {
                return tracing::error!(%key, trace = self.dir(key).trace(), %error, "that an attempt began could not be written");
            }
            live.begun = Some(Begun { pods: [(pod.index, pod.uid.clone())].into() });
            live.back = None;
        }
        let Some(begun) = &mut live.begun else {
            let pulled_since = live.pulling_since;
            let verdict = waits(live, &pod, there);
            let staging = told(live, pulled_since);
            if !there {
                live.pods.remove(&pod.uid);
            }
            drop(all);
            if let Some(staging) = staging {
                self.out.say(BackendEvent::Staging { key, staging: Box::new(staging) });
            }
            return verdict.map_or((), |outcome| self.give_up(key, outcome));
        };
        if !live.kept.guarded && !begun.pods.contains_key(&pod.index) {
            begun.pods.insert(pod.index, pod.uid.clone());
            let _ = write_json(&self.dir(key).file("begun.json"), begun);
        }
        let mine = begun.pods.get(&pod.index) == Some(&pod.uid);
        let (guarded, at) = (live.kept.guarded, clock::wall());
        if live.hold.fenced.is_some() && mine && there && pod.running {
            live.hold.fenced = None;
        }
        if !there {
            live.pods.remove(&pod.uid);
        }
        if mine && pod.trouble == Some(Trouble::OutOfMemory) {
            let limit = match live.kept.memory {
                Bytes(0) => String::new(),
                memory => format!("; it may take {memory}"),
            };
            live.note = Some(format!("killed for memory: OOMKilled{limit}"));
        }
        let said = live.said.get(&pod.index).map(|(ended, _)| ended.clone());
        let suspended = live.kept.queued && live.job.as_ref().is_some_and(|j| j.spec.suspend);
        let deleted =
            live.job.as_ref().is_some_and(|j| j.metadata.deletion_timestamp.is_some()) && !live.deleted;
        drop(all);
        if !mine {
            return;
        }
        if pod.running && !guarded {
            self.started(key, at);
        }
        if pod.running || pod.ended.is_some() {
            self.read_output(key, &pod, pod.ended.is_some());
        }
        let none = Ended { outcome: Outcome::Exited(0), started_at: None, at, output_lost: 0 };
        let taken_back = suspended && matches!(pod.trouble, Some(Trouble::Deleted(_)));
        let by_pod = pod.outcome(guarded).map(|outcome| match outcome {
            Outcome::Stopped(_) if taken_back => {
                Ended { outcome: Outcome::Stopped(TAKEN_BACK.into()), ..none }
            }
            outcome => Ended { outcome, ..none },
        });
        let Some(word) = pod.last_word().filter(|_| guarded).or(by_pod).or(said.filter(|_| !there)) else {
            return;
        };
        // A guard that was told to end by its kubelet: Kubernetes says why.
        let outcome = if word.outcome != Outcome::Stopped(BY_SCHEDULER.into()) {
            word.outcome.clone()
        } else if deleted {
            Outcome::Cancelled
        } else if taken_back {
            Outcome::Stopped(TAKEN_BACK.into())
        } else {
            pod.trouble.as_ref().map_or(word.outcome.clone(), |why| match why {
                Trouble::Deadline => Outcome::TimedOut,
                why => Outcome::Stopped(why.to_string()),
            })
        };
        self.part_ended(key, pod.index, Ended { outcome, ..word });
    }

    /// A guard's word is final, unless Kubernetes made it end, or may have: then Kubernetes says why.
    pub(super) fn guard_ended(&self, key: AttemptKey, index: u32, ended: Ended) {
        // Of a SIGKILL that nobody here asked for Kubernetes may know that it was for memory.
        let to_learn = [Outcome::Stopped(BY_SCHEDULER.into()), Outcome::Signaled(9)];
        if to_learn.contains(&ended.outcome) {
            if let Some(live) = open(&self.live).get_mut(&key) {
                live.said.insert(index, (ended, clock::now()));
            }
            return;
        }
        self.part_ended(key, index, ended);
    }

    /// One part is over for good.
    pub(super) fn part_ended(&self, key: AttemptKey, index: u32, ended: Ended) {
        let (all_over, failed) = {
            let mut all = open(&self.live);
            let Some(live) = all.get_mut(&key) else { return };
            if live.parts.contains_key(&index) {
                return;
            }
            let failed = ended.outcome != Outcome::Exited(0) && live.first_failure.is_none();
            if failed {
                // Nodes' clocks differ: what was heard first was first.
                live.first_failure = Some(ended.clone());
            }
            live.parts.insert(index, ended);
            (live.parts.len() >= live.kept.parts as usize, failed)
        };
        if all_over {
            self.finish(key);
        } else if failed {
            self.out.wake(key);
        }
    }

    /// Every part is over.
    fn finish(&self, key: AttemptKey) {
        let ended = {
            let all = open(&self.live);
            let Some(live) = all.get(&key) else { return };
            let Some(any) = live.first_failure.as_ref().or(live.parts.values().next()) else { return };
            let told = matches!(any.outcome, Outcome::Stopped(_) | Outcome::Signaled(_));
            let outcome = match live.hold.stop {
                // Whoever ended it where no guard stands, or the guard could not say it: it was told to.
                Some((stop, _)) if told => stopped_by(stop.reason),
                _ => any.outcome.clone(),
            };
            let started = live.parts.values().filter_map(|e| e.started_at).min();
            let started_at = started.or_else(|| self.dir(key).started().ok().flatten().map(|s| s.at));
            let at = live.parts.values().map(|e| e.at).max().unwrap_or_else(clock::wall);
            let output_lost = live.parts.values().map(|e| e.output_lost).sum();
            Ended { outcome, started_at, at, output_lost }
        };
        self.write_end(key, ended);
    }

    /// It did not begin, and is not to, if nobody has the right to run it yet. Where that right is not asked for, it
    /// is found out first whether it runs.
    fn give_up(&self, key: AttemptKey, outcome: Outcome) {
        match self.dir(key).revoke_token() {
            Ok(true) => self.close_unstarted(key, outcome),
            Ok(false) => {
                let unseen = open(&self.live).get(&key).is_some_and(|l| self.may_run_unseen(key, l));
                if unseen {
                    self.begin_back(key, outcome, false);
                }
            }
            Err(error) => {
                tracing::warn!(%key, trace = self.dir(key).trace(), %error, "an attempt could not be taken back")
            }
        }
    }

    /// What became of making its Job.
    pub(super) fn made(&self, key: AttemptKey, made: Made) {
        {
            let mut all = open(&self.live);
            let Some(live) = all.get_mut(&key) else {
                drop(all);
                // Stopped meanwhile: the right to run is gone, and what was made is taken back.
                return self.out.act(Act::Remove(key));
            };
            live.busy = false;
            live.since = clock::now();
            if let Made::There(uid, released) = &made {
                live.uid = Some(uid.clone());
                live.released |= released;
                live.holding &= !released;
                live.pending_since.get_or_insert(clock::now());
            }
        }
        match made {
            Made::There(..) => {}
            Made::Foreign => {
                let why = format!("a Job {} is there that is not this peer's", names::native_name(key));
                self.give_up(key, Outcome::NotStarted(why));
            }
            Made::NoGroup(folder, why) => {
                self.group_refused(&folder, &why);
                self.give_up(key, Outcome::Refused(format!("its PodGroup cannot be made: {why}")));
            }
            // A quota or a rule of the cluster says nothing about the job; elsewhere it may run.
            Made::Refused(403, why) => self.give_up(key, Outcome::Refused(why)),
            Made::Refused(_, why) => self.give_up(key, Outcome::NotStarted(why)),
            Made::Unknown(why) => {
                tracing::warn!(%key, trace = self.dir(key).trace(), "whether Kubernetes has an attempt's Job is not known: {why}")
            }
        }
    }

    /// Its pods were taken back, or not.
    pub(super) fn held(&self, key: AttemptKey, done: bool) {
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return };
        live.busy = false;
        live.since = clock::now();
        if done {
            (live.released, live.short_since) = (false, None);
            live.asked.clear();
            if live.kept.guarded {
                live.pods.clear();
            }
        }
        live.holding = done;
    }

    /// The server's own word about the Job of an attempt.
    pub(super) fn looked(&self, key: AttemptKey, answer: Result<Job, ApiError>) {
        {
            let mut all = open(&self.live);
            let Some(live) = all.get_mut(&key) else { return };
            live.busy = false;
            match &answer {
                Err(ApiError::Absent) => live.absent = (live.absent.0 + 1, clock::now()),
                _ => live.absent = (0, clock::now()),
            }
        }
        match answer {
            Ok(job) if self.of_job(&job) == Some(key) => self.job_seen(&job, true),
            // One of its name that is not ours: ours is not there, as certainly as can be.
            Ok(_) => self.give_up(key, Outcome::Refused("another Job has its name".into())),
            Err(ApiError::Absent) => self.absent(key),
            Err(error) => {
                tracing::info!(%key, trace = self.dir(key).trace(), %error, "whether an attempt's Job is still there is unknown")
            }
        }
    }

    /// It is provably not there, if it was said often enough.
    fn absent(&self, key: AttemptKey) {
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return };
        if live.absent.0 < ABSENT_ANSWERS || live.begun.is_some() || !live.wanted || live.busy {
            // What has begun is asked for at its pods and its guard.
            return;
        }
        if self.may_run_unseen(key, live) {
            // Somebody deleted it and what kept it. Made again it would run beside what may be left.
            drop(all);
            return self.begin_back(key, Outcome::Cancelled, true);
        }
        if live.makes < MAKES_MAX {
            tracing::warn!(%key, trace = self.dir(key).trace(), "the Job of an attempt that had not begun is gone: made again");
            (live.busy, live.makes, live.uid, live.absent) = (true, live.makes + 1, None, (0, clock::now()));
            live.released = false;
            live.pods.clear();
            let release = live.kept.parts == 1 || live.kept.group.is_some();
            drop(all);
            return self.out.act(Act::Make(key, release));
        }
        let makes = live.makes;
        drop(all);
        self.give_up(key, Outcome::Refused(format!("its Job was gone {makes} times before it began")));
    }

    /// Nobody can say that it has ended: its guard gets no more time, and when what it has is over, it has.
    fn fence(&self, key: AttemptKey, why: &str) {
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return };
        let now = clock::now();
        if live.hold.fence(why, now) {
            tracing::warn!(%key, trace = self.dir(key).trace(), "{why}: waiting until its guard's time is over");
        }
        if !live.hold.is_over(live.kept.grace, now) {
            return;
        }
        let why = live.hold.fenced.as_ref().map_or(why.to_owned(), |(_, why)| why.clone());
        let missing: Vec<u32> = (0..live.kept.parts).filter(|n| !live.parts.contains_key(n)).collect();
        drop(all);
        for index in missing {
            let outcome = Outcome::Stopped(why.clone());
            self.part_ended(
                key,
                index,
                Ended { outcome, started_at: None, at: clock::wall(), output_lost: 0 },
            );
        }
    }

    /// One look at every attempt; what time alone brings is done here.
    pub(super) fn look(&self, sight: &Sight<'_>) {
        let keys: Vec<AttemptKey> = open(&self.live).keys().copied().collect();
        for key in keys {
            self.look_at(key, sight);
        }
        self.close_read();
    }

    fn look_at(&self, key: AttemptKey, sight: &Sight<'_>) {
        let now = clock::now();
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return };
        if let Some((_, at)) = live.hold.stop
            && now > at + END_AFTER
            && sight.fresh
            && !std::mem::replace(&mut live.deleted, true)
        {
            self.out.act(Act::End(key, live.uid.clone()));
        }
        // Guards that Kubernetes ended without ever saying why.
        let late = live
            .said
            .iter()
            .filter(|(n, (_, at))| now.since(*at) > WHY_PATIENCE && !live.parts.contains_key(n));
        let late: Vec<(u32, Ended)> = late.map(|(n, (ended, _))| (*n, ended.clone())).collect();
        if !late.is_empty() {
            drop(all);
            return late.into_iter().for_each(|(index, ended)| self.part_ended(key, index, ended));
        }
        if live.begun.is_some() {
            drop(all);
            return self.look_at_begun(key, sight, now);
        }
        let pulled_since = live.pulling_since;
        if let Some(staging) = told(live, pulled_since) {
            self.out.say(BackendEvent::Staging { key, staging: Box::new(staging) });
        }
        if live.busy {
            return;
        }
        let unseen = self.may_run_unseen(key, live);
        if unseen && live.back.is_some() {
            live.busy = sight.fresh;
            if sight.fresh {
                self.out.act(Act::GiveBack(key));
            }
            return;
        }
        let age = now.since(live.since);
        let stopped = live.hold.stop.map(|(stop, _)| stopped_by(stop.reason));
        let late = || {
            let late = overdue(live, &self.config.limits(), now).or_else(|| self.orphaned(live));
            late.filter(|_| sight.fresh || !unseen)
        };
        if let Some(outcome) = stopped.or_else(late) {
            drop(all);
            return self.give_up(key, outcome);
        }
        if live.uid.is_none() && unseen && live.makes == 0 {
            // Pods were let come by an earlier run of the peer, and its Job is gone.
            let gone = sight.fresh && sight.jobs.lists() > 0 && live.wanted && age > MAKE_AGAIN;
            let outcome = match live.kept.queued {
                true => Outcome::Refused("its Job is not there".into()),
                false => Outcome::Cancelled,
            };
            drop(all);
            return if gone {
                self.begin_back(key, outcome, true)
            };
        }
        if live.uid.is_none() {
            // An adopted one may be in a list that is still to come.
            let known = live.makes > 0 || (sight.fresh && sight.jobs.lists() > 0);
            let pause = MAKE_AGAIN.scale(1 << live.makes.min(5), 1);
            if known && live.wanted && age > pause {
                (live.busy, live.makes) = (true, live.makes + 1);
                let release = live.kept.parts == 1 || live.kept.group.is_some();
                self.out.act(Act::Make(key, release));
            }
            return;
        }
        let listed = live.job.as_ref().is_some_and(|j| {
            sight.jobs.read().contains_key(&format!("{}/{}", j.metadata.name, j.metadata.uid))
        });
        if sight.fresh && live.job.is_some() && !listed && now.since(live.absent.1) > LOOK_EVERY {
            live.busy = true;
            return self.out.act(Act::Look(key));
        }
        if live.kept.queued || live.kept.group.is_some() && live.released {
            return;
        }
        if !live.released {
            let single = live.kept.parts == 1;
            let left = unseen && !live.pods.is_empty();
            let fits = (single
                || sight.fresh && {
                    let loads =
                        sight.pods.read().iter().map(|(k, (load, _))| (k.clone(), load.clone())).collect();
                    self.fits(&live.kept, &loads)
                })
                && !left;
            live.doing =
                if fits { "its pods may come".into() } else { "suspended until the gang fits".into() };
            if fits && age > MAKE_AGAIN {
                live.busy = true;
                self.out.act(Act::Make(key, true));
            }
        } else if live.kept.parts > 1 && !live.holding {
            let short = live.pods.values().any(|p| matches!(p.trouble, Some(Trouble::Unschedulable(_))));
            let some = live.pods.values().any(|p| p.node.is_some());
            if !(short && some) {
                live.short_since = None;
            } else if now.since(*live.short_since.get_or_insert(now)) > GANG_PATIENCE {
                tracing::info!(%key, trace = self.dir(key).trace(), "a gang found room for a part of its pods only: given back until it fits");
                (live.busy, live.holding) = (true, true);
                self.out.act(Act::Hold(key));
            }
        }
    }

    /// Of an attempt that began: is there anybody left who could say how it ends?
    fn look_at_begun(&self, key: AttemptKey, sight: &Sight<'_>, now: Instant) {
        if !sight.fresh || sight.pods.lists() == 0 {
            return;
        }
        let mut all = open(&self.live);
        let Some(live) = all.get_mut(&key) else { return };
        let Some(begun) = live.begun.clone() else { return };
        let over = live.over_since.is_some_and(|at| now.since(at) > OVER_PATIENCE);
        let complete = live.job.as_ref().is_some_and(|j| j.is("Complete").is_some());
        if over && complete {
            // Kubernetes' own record that every pod of it ended well.
            let missing: Vec<u32> = (0..live.kept.parts).filter(|n| !live.parts.contains_key(n)).collect();
            drop(all);
            let ended =
                Ended { outcome: Outcome::Exited(0), started_at: None, at: clock::wall(), output_lost: 0 };
            return missing.into_iter().for_each(|n| self.part_ended(key, n, ended.clone()));
        }
        let quiet = |n: &u32| live.heard.get(n).is_none_or(|at| now.since(*at) > SILENT);
        let known = |uid: &String| live.pods.get(uid).is_some_and(|p| !p.over);
        let lost = begun.pods.iter().find(|(n, uid)| !live.parts.contains_key(n) && !known(uid) && quiet(n));
        let Some((index, uid)) = lost.map(|(n, uid)| (*n, uid.clone())) else {
            // A guard that speaks lives.
            if live.hold.fenced.is_some() && live.kept.guarded {
                live.hold.fenced = None;
            }
            return;
        };
        if let Some(code) = live.job.as_ref().filter(|_| over).and_then(failed_with) {
            // The pod is gone, and its Job still says how it ended.
            drop(all);
            let outcome = Outcome::Exited(code);
            let ended = Ended { outcome, started_at: None, at: clock::wall(), output_lost: 0 };
            return self.part_ended(key, index, ended);
        }
        let why = match live.pods.get(&uid).and_then(|p| p.trouble.clone()) {
            Some(trouble) => trouble.to_string(),
            None => "its pod is gone, and nobody saw how it ended".into(),
        };
        drop(all);
        self.fence(key, &why);
    }
}
