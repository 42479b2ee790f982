//! Why each claim waits, in words and numbers: for people who look at this cluster's queue.

use super::*;
use crate::core::api::Look;
use crate::core::placement::Reason;
use crate::core::schedule::stand::{Looked, Stand};
use crate::core::tenants::Room;
use crate::model::report::Liveness;

/// Of the first so many in line that hold no grant it is said.
const SAID_MAX: usize = 256;

impl Peer {
    /// The claims: those that hold a grant, then the others in order.
    pub(in crate::core) fn queue_view(&self, look: Look) -> Vec<ClaimView> {
        let (exec, now) = (&self.exec, self.now.mono);
        let made = exec.places_of.map_or(now, |(at, _)| at);
        let mut why = Why::new(self, look);
        let granted = exec.grants.keys().copied();
        let order = granted.chain(exec.sched.in_order(now).map(|key| key.job));
        let known = order.filter_map(|job| Some((job, exec.claims.get(&job)?)));
        known
            .take(look.claims)
            .map(|(job, w)| ClaimView {
                job,
                owner: w.owner.clone(),
                priority: w.claim.priority,
                gpus: gpus_of(&w.claim),
                granted: exec.grants.contains_key(&job),
                age: now.since(w.arrived),
                why: why.of(&job, w),
                starts_in: w.prospects.starts_in.map(|wait| wait - now.since(made)),
            })
            .collect()
    }

    /// Why no claim at all is granted.
    fn why_nothing_starts(&self) -> Option<String> {
        let closed = self.closed_for().map(|why| format!("nothing starts here now: {why}"));
        let stale = || "nothing starts here until the cluster's contact is renewed".to_owned();
        closed.or_else(|| self.contact_fresh().is_none().then(stale))
    }

    /// What is kept free here, in words.
    pub(super) fn buffer_words(&self) -> String {
        let (kept, priority) = self.exec.sched.buffer();
        format!("{kept} GPUs are kept free for jobs that ran before and priority {priority}")
    }
}

/// One look at a queue: what holds for many is found once.
struct Why<'a> {
    peer: &'a Peer,
    /// Of so many more.
    left: usize,
    reasons: bool,
    of_all: Option<String>,
    limits: Room,
    looked: Looked,
}

impl<'a> Why<'a> {
    fn new(peer: &'a Peer, look: Look) -> Self {
        let (left, of_all, limits) = match look.reasons && look.claims > 0 {
            true => (SAID_MAX, peer.why_nothing_starts(), peer.quota_room()),
            false => (0, None, Room::default()),
        };
        Self { peer, left, reasons: look.reasons, of_all, limits, looked: Looked::default() }
    }

    /// Empty where it is not said.
    fn of(&mut self, job: &JobId, w: &Waiting) -> String {
        let peer = self.peer;
        let (sched, now) = (&peer.exec.sched, peer.now.mono);
        if let Some(grant) = peer.exec.grants.get(job) {
            return match self.reasons {
                true => format!(
                    "holds a grant, for {} more: its owner has not taken it yet",
                    grant.until.since(now)
                ),
                false => String::new(),
            };
        }
        let Some(left) = self.left.checked_sub(1) else { return String::new() };
        self.left = left;
        #[cfg(test)]
        crate::base::work::count("reasons of claims");
        if let Some(why) = &self.of_all {
            return why.clone();
        }
        let away = peer.view.members.get(&w.owner).is_some_and(|m| m.liveness == Liveness::Lost);
        if away && w.owner != peer.cfg.name {
            return format!("{}, which asks for it, is out of reach", w.owner);
        }
        if !w.prospects.waits.is_empty() {
            return w.prospects.waits.clone();
        }
        let key = w.key(*job);
        let lets = self.limits.lets(&w.claim);
        let Some(stand) = sched.stand(&key, now, &mut self.looked) else {
            return if lets { String::new() } else { peer.quota_says(&w.claim.birth.tenant) };
        };
        match stand {
            Stand::Sends(1) => "1 attempt was told to stop for it".into(),
            Stand::Sends(n) => format!("{n} attempts were told to stop for it"),
            Stand::Lacks(lack) if sched.yields(&key) => format!("{lack}; {}", Reason::OlderFirst),
            Stand::Lacks(lack) => lack.to_string(),
            Stand::Promised(id) => peer.reserved_says(&id),
            // A pass asks for more only for the first that are held back.
            _ if !lets => peer.quota_says(&w.claim.birth.tenant),
            Stand::Buffer => peer.buffer_words(),
            Stand::BehindBuffer(first) => {
                format!("there is room, kept for {} ahead of it; {}", first.job.short(), peer.buffer_words())
            }
            Stand::Behind(first, Some(wait)) => {
                format!("there is room, kept for {} ahead of it, which starts in {wait}", first.job.short())
            }
            Stand::Behind(first, None) => {
                format!("there is room, kept for {} ahead of it", first.job.short())
            }
            Stand::Fits => "there is room: the queue is about to be looked at again".into(),
        }
    }
}
