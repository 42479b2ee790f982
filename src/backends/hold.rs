//! What an attempt under a guard on another machine lives by, and how its keeper talks to the loop beside it: the
//! same for every cluster that somebody else schedules.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::local::files::{Binding, Stop};
use super::local::guard::remote::Answer;
use crate::base::{ContactId, Instant, Span};
use crate::core::BackendEvent;
use crate::core::api::{AttemptKey, StopReason};

/// A panic elsewhere leaves these maps whole: every change is one call.
pub(super) fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counted renewals of the contacts that attempts are bound to.
#[derive(Debug, Default)]
pub(super) struct Renewals(Mutex<BTreeMap<(ContactId, u64), Instant>>);

impl Renewals {
    /// What a new attempt was bound with, unless there is something newer.
    pub fn first(&self, contact: (ContactId, u64), sent_at: Instant) {
        open(&self.0).entry(contact).or_insert(sent_at);
    }
    /// A renewal that counts. What none of these is bound to is forgotten.
    pub fn renewed<'h>(
        &self,
        (contact, incarnation): (ContactId, u64),
        sent_at: Instant,
        holds: impl Iterator<Item = &'h Hold>,
    ) {
        let each = |hold: &Hold| hold.binding.each().map(|b| (b.contact, b.incarnation));
        let used: BTreeSet<(ContactId, u64)> = holds.flat_map(each).collect();
        let mut renewals = open(&self.0);
        renewals.retain(|binding, _| used.contains(binding));
        renewals.insert((contact, incarnation), sent_at);
    }
    /// The older one of all that it is bound to. Without one of them none counts.
    fn oldest(&self, binding: Binding) -> Option<Instant> {
        let renewals = open(&self.0);
        binding.each().map(|b| renewals.get(&(b.contact, b.incarnation)).copied()).min().flatten()
    }
}

/// The life of one attempt, as far as its peer gives it.
#[derive(Debug, Clone)]
pub(super) struct Hold {
    pub binding: Binding,
    /// Until when a guard may believe that it may live: grace counted from our last answer.
    pub leased_at: Instant,
    /// Its node or its record was lost: no more answers, since when and why.
    pub fenced: Option<(Instant, String)>,
    /// It is to stop, and when it is killed.
    pub stop: Option<(Stop, Instant)>,
}

impl Hold {
    /// Nobody knows how lately an earlier run of the peer answered: as if just now.
    pub fn new(binding: Binding, now: Instant) -> Self {
        Self { binding, leased_at: now, fenced: None, stop: None }
    }

    /// A later word may only make the end come sooner, and a cancel is a cancel.
    pub fn stop(&mut self, stop: Stop, now: Instant) {
        let kill_at = now + stop.notice;
        let at = self.stop.map_or(kill_at, |(_, at)| at.min(kill_at));
        let reason = match self.stop {
            Some((old, _)) if stop.reason != StopReason::Cancel => old.reason,
            _ => stop.reason,
        };
        self.stop = Some((Stop { reason, ..stop }, at));
    }

    /// What its guard hears, and with which word to stop.
    pub fn answer(&mut self, nonce: String, stop: Option<Stop>, renewals: &Renewals, now: Instant) -> Answer {
        if self.fenced.is_some() {
            return Answer { nonce, stop, ..Answer::default() };
        }
        let oldest = renewals.oldest(self.binding);
        if oldest.is_some() {
            self.leased_at = now;
        }
        Answer { nonce, age_us: oldest.map(|at| now.since(at).0), stop, ..Answer::default() }
    }

    /// What a guard hears of an attempt that is not known.
    pub fn unknown(nonce: String) -> Answer {
        let stop = Stop { reason: StopReason::Superseded, notice: Span::ZERO };
        Answer { nonce, stop: Some(stop), ..Answer::default() }
    }

    /// Its guard gets no more time. True the first time.
    pub fn fence(&mut self, why: &str, now: Instant) -> bool {
        let first = self.fenced.is_none();
        self.fenced.get_or_insert_with(|| (now, why.to_owned()));
        first
    }

    /// Whether this word ends what nobody could ever prove to have ended: its record moved on, which was an operator's
    /// word, or it is not to run again. Any other reason places it elsewhere, beside what may still run here.
    pub fn for_ever(&self, grace: Option<Span>, reason: StopReason) -> bool {
        let last = matches!(reason, StopReason::Superseded | StopReason::Cancel);
        self.fenced.is_some() && grace.is_none() && last
    }

    /// Whether what its guard may believe is over. Never without a grace.
    pub fn is_over(&self, grace: Option<Span>, now: Instant) -> bool {
        // The guard counts from when it asked, which was before we answered.
        grace.is_some_and(|grace| now >= self.leased_at + grace.scale(1_020, 1_000) + Span::secs(3))
    }
}

/// What a keeper has to say and wants done, for the loop that carries it out.
#[derive(Debug)]
pub(super) struct Outbox<A> {
    /// There is something.
    pub changed: Notify,
    events: Mutex<VecDeque<BackendEvent>>,
    acts: Mutex<VecDeque<A>>,
    wakes: Mutex<Vec<AttemptKey>>,
}

impl<A> Default for Outbox<A> {
    fn default() -> Self {
        Self {
            changed: Notify::new(),
            events: Mutex::default(),
            acts: Mutex::default(),
            wakes: Mutex::default(),
        }
    }
}

impl<A> Outbox<A> {
    pub fn say(&self, event: BackendEvent) {
        open(&self.events).push_back(event);
        self.changed.notify_one();
    }
    pub fn act(&self, act: A) {
        open(&self.acts).push_back(act);
        self.changed.notify_one();
    }
    /// A guard shall ask.
    pub fn wake(&self, key: AttemptKey) {
        open(&self.wakes).push(key);
        self.changed.notify_one();
    }
    pub fn next_event(&self) -> Option<BackendEvent> {
        open(&self.events).pop_front()
    }
    pub fn take_acts(&self) -> Vec<A> {
        open(&self.acts).drain(..).collect()
    }
    pub fn take_wakes(&self) -> Vec<AttemptKey> {
        std::mem::take(&mut *open(&self.wakes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: (ContactId, u64) = (ContactId([1; 20]), 1);
    const TWO: (ContactId, u64) = (ContactId([2; 20]), 7);

    fn at(secs: u64) -> Instant {
        Instant(secs * 1_000_000)
    }

    #[test]
    fn two_contacts_let_it_live_by_the_older_renewal_and_by_none_without_both() {
        let mut hold = Hold::new(Binding { and: Some(TWO), ..Binding::to(ONE) }, at(0));
        let renewals = Renewals::default();
        renewals.first(ONE, at(10));
        assert_eq!(hold.answer("n".into(), None, &renewals, at(20)).age_us, None);
        assert_eq!(hold.leased_at, at(0), "no time was given");
        renewals.renewed(TWO, at(14), [&hold].into_iter());
        let answer = hold.answer("n".into(), None, &renewals, at(20));
        assert_eq!((answer.age_us, hold.leased_at), (Some(10_000_000), at(20)));
        // What nobody is bound to is forgotten.
        let other = Hold::new(Binding::to(TWO), at(0));
        renewals.renewed(TWO, at(15), [&other].into_iter());
        assert_eq!(renewals.oldest(Binding::to(ONE)), None);
    }

    #[test]
    fn a_fenced_one_gets_no_time_and_is_over_when_its_grace_is() {
        let mut hold = Hold::new(Binding::to(ONE), at(100));
        let renewals = Renewals::default();
        renewals.first(ONE, at(100));
        assert!(hold.fence("its node is gone", at(101)) && !hold.fence("again", at(102)));
        assert_eq!(
            hold.fenced.as_ref().map(|(at, why)| (*at, why.as_str())),
            Some((at(101), "its node is gone"))
        );
        assert_eq!(hold.answer("n".into(), None, &renewals, at(110)).age_us, None);
        assert_eq!(hold.leased_at, at(100));
        let grace = Some(Span::secs(100));
        assert!(!hold.is_over(grace, at(204)) && hold.is_over(grace, at(205)));
        assert!(!hold.is_over(None, at(1_000_000)), "never without an operator's word");
    }

    #[test]
    fn what_nobody_can_prove_to_have_ended_ends_by_the_record_alone() {
        let mut hold = Hold::new(Binding::to(ONE), at(0));
        let all = [StopReason::Cancel, StopReason::Superseded, StopReason::Drain, StopReason::Timeout];
        assert!(all.iter().all(|r| !hold.for_ever(None, *r)), "it may say itself how it ends");
        hold.fence("its node is gone", at(1));
        assert_eq!(all.map(|r| hold.for_ever(None, r)), [true, true, false, false]);
        assert!(!hold.for_ever(Some(Span::secs(9)), StopReason::Cancel), "its grace ends it");
    }

    #[test]
    fn a_later_stop_only_hastens_and_a_cancel_stays_one() {
        let mut hold = Hold::new(Binding::to(ONE), at(0));
        let stop = |reason, notice| Stop { reason, notice: Span::secs(notice) };
        hold.stop(stop(StopReason::Cancel, 10), at(0));
        hold.stop(stop(StopReason::Superseded, 60), at(5));
        assert_eq!(hold.stop.map(|(s, at)| (s.reason, at)), Some((StopReason::Cancel, at(10))));
        let mut hold = Hold::new(Binding::to(ONE), at(0));
        hold.stop(stop(StopReason::Superseded, 60), at(0));
        hold.stop(stop(StopReason::Cancel, 1), at(5));
        assert_eq!(hold.stop.map(|(s, at)| (s.reason, at)), Some((StopReason::Cancel, at(6))));
    }
}
