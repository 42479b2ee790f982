//! Why each claim waits, in words and numbers: for people who look at this cluster's queue.

use super::*;
use crate::core::api::Look;
use crate::core::placement::Reason;
use crate::core::schedule::stand::{Looked, Stand};
use crate::model::report::Liveness;

/// Of the first so many in line it is said.
const SAID_MAX: usize = 256;

impl Peer {
    /// The claims: those that hold a grant, then the others in order.
    pub(in crate::core) fn queue_view(&self, look: Look) -> Vec<ClaimView> {
        let (exec, now) = (&self.exec, self.now.mono);
        let of_all = if look.reasons { self.why_nothing_starts() } else { None };
        let made = exec.places_of.map_or(now, |(at, _)| at);
        let mut looked = Looked::default();
        let granted = exec.grants.keys().copied();
        let order = granted.chain(exec.sched.in_order(now).map(|key| key.job));
        let known = order.filter_map(|job| Some((job, exec.claims.get(&job)?)));
        known
            .take(look.claims)
            .enumerate()
            .map(|(n, (job, w))| ClaimView {
                job,
                owner: w.owner.clone(),
                priority: w.claim.priority,
                gpus: gpus_of(&w.claim),
                granted: exec.grants.contains_key(&job),
                age: now.since(w.arrived),
                why: match look.reasons && n < SAID_MAX {
                    true => self.why_waits(&job, w, of_all.as_deref(), &mut looked),
                    false => String::new(),
                },
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

    fn why_waits(&self, job: &JobId, w: &Waiting, of_all: Option<&str>, looked: &mut Looked) -> String {
        #[cfg(test)]
        crate::base::work::count("reasons of claims");
        let (sched, now) = (&self.exec.sched, self.now.mono);
        if let Some(grant) = self.exec.grants.get(job) {
            return format!(
                "holds a grant, for {} more: its owner has not taken it yet",
                grant.until.since(now)
            );
        }
        if let Some(why) = of_all {
            return why.to_owned();
        }
        let away = self.view.members.get(&w.owner).is_some_and(|m| m.liveness == Liveness::Lost);
        if away && w.owner != self.cfg.name {
            return format!("{}, which asks for it, is out of reach", w.owner);
        }
        if !w.prospects.waits.is_empty() {
            return w.prospects.waits.clone();
        }
        let key = w.key(*job);
        match sched.stand(&key, now, looked) {
            None => String::new(),
            Some(Stand::Sends(1)) => "1 attempt was told to stop for it".into(),
            Some(Stand::Sends(n)) => format!("{n} attempts were told to stop for it"),
            Some(Stand::Lacks(lack)) if sched.yields(&key) => format!("{lack}; {}", Reason::OlderFirst),
            Some(Stand::Lacks(lack)) => lack.to_string(),
            Some(_) if sched.buffered(&key) => self.buffer_words(),
            Some(stand) => {
                let reserved = self.reserved_against(&key);
                match stand {
                    _ if !reserved.is_empty() => reserved,
                    Stand::Behind(first, Some(wait)) => {
                        format!(
                            "there is room, kept for {} ahead of it, which starts in {wait}",
                            first.job.short()
                        )
                    }
                    Stand::Behind(first, None) => {
                        format!("there is room, kept for {} ahead of it", first.job.short())
                    }
                    _ => "there is room: the queue is about to be looked at again".into(),
                }
            }
        }
    }

    /// What is kept free here, in words.
    pub(super) fn buffer_words(&self) -> String {
        let (kept, priority) = self.exec.sched.buffer();
        format!("{kept} GPUs are kept free for jobs that ran before and priority {priority}")
    }
}
