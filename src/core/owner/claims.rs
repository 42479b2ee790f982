//! The owner's claims: where they stand, and whom not to ask for a while.
//!
//! A claim costs a message now and then, so a job that waits has claims at more clusters the longer it waits, and is
//! pulled by whichever has room (`offers`).

use super::super::message::{Claim, Prospects, Terms};
use super::offers::PATIENCE_FOR_BETTER;
use super::*;
use crate::base::{BoundedVec, Epoch, Home, WallTime};
use crate::core::api::Candidate;
use crate::core::placement::{Ask, Pick, Reason};
use crate::model::Outcome;
use crate::model::gpu;
use crate::model::spec::{JobSpec, Run};

/// A cluster that refused a job is not asked for it again for this long.
const REFUSED_FOR: Span = Span::secs(10);
/// A claim that was sent so often without an answer counts as refused.
const TRIES_MAX: u32 = 3;
/// Claims of one job at most, however long it waits,
const CLAIMS_MOST: usize = 64;
/// doubled this often,
const CLAIMS_GROW: Span = Span::secs(5);
/// and of all jobs of this owner together, beyond `claims_max` each.
const CLAIMS_BUDGET: usize = 50_000;
/// How much worse (in weighed hours) a cluster may be than the best one and still get a claim: the view may be wrong.
const CLAIM_SLACK: f64 = 0.5;
/// A grant this much worse than what is to be had elsewhere is not taken at once.
pub(super) const TAKE_SLACK: f64 = 0.05;
/// After so many refusals or losses in a row, over all jobs, a cluster rests,
const STRIKES_FREE: u32 = 3;
/// this long, doubled with each further one,
const REST: Span = Span::secs(10);
/// up to this.
const REST_MAX: Span = Span::secs(300);
/// A cluster where an attempt of the job could not start, or was lost, is not asked for it again for this long.
const FAILED_FOR_MS: u64 = 30_000;
/// Clusters remembered for their strikes.
const STRIKES_KEPT: usize = 4_096;

/// One standing claim.
#[derive(Debug, Clone)]
pub(super) struct Laid {
    pub epoch: Epoch,
    /// When it was laid first.
    pub since: WallTime,
    pub sent_at: Instant,
    /// Until it is repeated.
    pub every: Span,
    pub ahead: Option<u32>,
    pub refused: Option<(Instant, String)>,
    /// Times sent since the last answer.
    pub tries: u32,
    /// Nothing is kept free for it there: as it was sent last.
    pub lean: bool,
    /// What the cluster said last of the job's chances there.
    pub prospects: Prospects,
}

/// A grant that waits a moment for a better one.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub epoch: Epoch,
    pub until: Instant,
    pub since: Instant,
    /// When the grant came, for people.
    pub came: WallTime,
    pub terms: (ContactId, u64, BoundedVec<Home, 5>, u64),
}

/// Refusals and losses of one cluster in a row.
#[derive(Debug, Clone, Default)]
pub(super) struct Strikes {
    count: u32,
    until: Instant,
}

impl Peer {
    /// A cluster refused, or lost what it was given.
    pub(in crate::core) fn strike(&mut self, cluster: &PeerName, lost: bool) {
        let now = self.now.mono;
        if self.owner.strikes.len() >= STRIKES_KEPT && !self.owner.strikes.contains_key(cluster) {
            self.owner.strikes.retain(|_, s| s.until > now);
        }
        let strikes = self.owner.strikes.entry(cluster.clone()).or_default();
        strikes.count = strikes.count.saturating_add(if lost { STRIKES_FREE } else { 1 });
        if strikes.count >= STRIKES_FREE {
            let doubled = 1 << (strikes.count - STRIKES_FREE).min(10);
            strikes.until = now + REST.scale(doubled, 1).min(REST_MAX);
            self.count("clusters_rested");
        }
    }

    fn resting(&self, cluster: &PeerName) -> Option<(u32, Span)> {
        let s = self.owner.strikes.get(cluster)?;
        (s.until > self.now.mono).then(|| (s.count, s.until.since(self.now.mono)))
    }

    /// It refused this job a moment ago.
    pub(super) fn rests_for(&self, job: &JobId, cluster: &PeerName) -> bool {
        let laid = self.owner.claims(job).and_then(|claims| claims.get(cluster));
        let refused = laid.and_then(|l| l.refused.as_ref());
        refused.is_some_and(|(at, _)| self.now.mono.since(*at) < REFUSED_FOR)
    }

    /// The job's last attempts there failed to start or were lost, just now.
    fn failed_lately(&self, record: &JobRecord, cluster: &PeerName) -> bool {
        let now = self.now.wall.0;
        record.attempts.iter().rev().take(3).any(|a| {
            let bad = matches!(a.outcome, Some(Outcome::NotStarted(_) | Outcome::Refused(_) | Outcome::Lost));
            bad && a.cluster == *cluster && a.ended_at.is_some_and(|at| now.abs_diff(at.0) < FAILED_FOR_MS)
        })
    }

    /// How many claims a job that has waited so long may have.
    fn claims_wanted(&self, waited: Span) -> usize {
        let least = self.cfg.claims_max;
        let share = CLAIMS_BUDGET / self.owner.jobs.len().max(1);
        let doubled = u32::try_from(waited.0 / CLAIMS_GROW.0).unwrap_or(u32::MAX).min(6);
        (least << doubled).min(CLAIMS_MOST).min(share).max(least)
    }

    /// The best clusters for a job as they are known now, best first.
    pub(super) fn picks(&mut self, job: JobId, record: &JobRecord, most: usize, waited: Span) -> Vec<Pick> {
        let (now, salt) = (self.now.mono, job.ring_key() | 1);
        let told = self.told(&job);
        self.placer.update(&self.view);
        self.placer.best(&record.spec, &Ask { now, most, salt, waited, told: &told })
    }

    /// When the job would start at each cluster that queues it, as these said last.
    pub(in crate::core) fn told(&self, job: &JobId) -> Vec<(PeerName, Span)> {
        let laid = self.owner.claims(job).into_iter().flatten().filter(|(_, l)| l.refused.is_none());
        laid.filter_map(|(c, l)| Some((c.clone(), l.prospects.starts_in?))).collect()
    }

    /// Where claims should stand now: at the best, and where they stand already and still may.
    pub(super) fn choose_claims(&mut self, job: JobId, record: &JobRecord, waited: Span) -> Vec<PeerName> {
        let now = self.now.mono;
        let want = self.claims_wanted(waited);
        let out: std::collections::BTreeSet<PeerName> = {
            let claims = self.owner.claims(&job).into_iter().flatten();
            let refused = claims
                .filter(|(_, l)| l.refused.as_ref().is_some_and(|(at, _)| now.since(*at) < REFUSED_FOR));
            refused.map(|(c, _)| c.clone()).collect()
        };
        let picks = self.picks(job, record, (want + out.len() + self.owner.strikes.len()).min(256), waited);
        let asked_last =
            |p: &&Pick| self.resting(&p.cluster).is_some() || self.failed_lately(record, &p.cluster);
        let best = |a: &&Pick, b: &&Pick| a.score.total_cmp(&b.score);
        // One that refuses or rests is no measure for the others.
        let open = picks.iter().filter(|p| !out.contains(&p.cluster) && !asked_last(p)).min_by(best);
        let Some(first) = open.or_else(|| picks.iter().min_by(best)) else { return Vec::new() };
        // Where waiting is best anyway, a grant of a worse one would only be given back.
        let most = first.score + if first.fits_now { CLAIM_SLACK } else { TAKE_SLACK };
        let near = |p: &&Pick| p.soonest <= most && !out.contains(&p.cluster);
        let mut wanted: Vec<PeerName> = picks
            .iter()
            .filter(near)
            .filter(|p| !asked_last(p))
            .take(want)
            .map(|p| p.cluster.clone())
            .collect();
        if wanted.is_empty() {
            // Only such as were bad lately: one of them is better than none.
            let rest = picks.iter().filter(|p| !out.contains(&p.cluster)).take(self.cfg.claims_max);
            wanted = rest.map(|p| p.cluster.clone()).collect();
        }
        // A claim that stands keeps its place in that queue, unless the cluster is far worse by now.
        let standing = self.owner.claims(&job).into_iter().flatten();
        for (cluster, _) in standing.filter(|(_, l)| l.refused.is_none() && l.ahead.is_some()) {
            let worth = picks.iter().any(|p| p.cluster == *cluster && p.soonest <= most);
            if worth && wanted.len() < CLAIMS_MOST && !wanted.contains(cluster) {
                wanted.push(cluster.clone());
            }
        }
        wanted
    }

    /// How many GPUs that would do each of these clusters has in all.
    fn sizes(&self, spec: &JobSpec, clusters: &[PeerName]) -> BTreeMap<PeerName, u64> {
        let wanted = &spec.resources.gpu;
        let does = |model: &str| wanted.is_empty() || wanted.iter().any(|w| gpu::matches(w, model));
        let of = |cluster: &PeerName| {
            let queue = self.view.members.get(cluster)?.report.as_ref()?.queue.as_ref()?;
            let gpus = queue.gpus_total.iter().filter(|(model, _)| does(model));
            Some((cluster.clone(), gpus.map(|(_, n)| u64::from(*n)).sum()))
        };
        clusters.iter().filter_map(of).collect()
    }

    pub(super) fn lay_claims(&mut self, job: JobId, record: &JobRecord, epoch: Epoch, wanted: &[PeerName]) {
        let (now, every_max) = (self.now.mono, self.cfg.pace.claim_every_max);
        let sizes = if wanted.len() > 1 { self.sizes(&record.spec, wanted) } else { BTreeMap::new() };
        let Some(driven) = self.owner.jobs.get_mut(&job) else { return };
        let dropped: Vec<PeerName> = driven
            .claims
            .iter()
            .filter(|(c, l)| !wanted.contains(c) && l.refused.is_none())
            .map(|(c, _)| c.clone())
            .collect();
        driven.claims.retain(|c, l| wanted.contains(c) || l.refused.is_some());
        driven.offers.retain(|c, _| wanted.contains(c));
        firm::give_token(driven, now);
        let firm = firm::choose(driven, wanted, &sizes, self.now.wall);
        let token = driven.token.as_ref().map(|(cluster, _)| cluster.clone());
        let (mut lay, mut silent) = (Vec::new(), Vec::new());
        for cluster in wanted {
            let laid = driven.claims.get(cluster);
            if laid.is_some_and(|l| l.refused.is_none() && now.since(l.sent_at) < l.every) {
                continue;
            }
            let tries = laid.filter(|l| l.refused.is_none()).map_or(0, |l| l.tries);
            if tries >= TRIES_MAX {
                silent.push(cluster.clone());
                continue;
            }
            let ahead = laid.and_then(|l| l.ahead);
            let answered = laid.filter(|l| l.ahead.is_some() && l.refused.is_none());
            let every = answered.map_or(CLAIM_EVERY, |l| l.every.scale(2, 1).min(every_max).max(CLAIM_EVERY));
            let prospects = laid.map(|l| l.prospects.clone()).unwrap_or_default();
            let since = laid.map_or(self.now.wall, |l| l.since);
            let laid = Laid {
                epoch,
                since,
                sent_at: now,
                every,
                ahead,
                refused: None,
                tries: tries + 1,
                lean: firm.as_ref() != Some(cluster),
                prospects,
            };
            driven.claims.insert(cluster.clone(), laid);
            lay.push(cluster.clone());
        }
        for cluster in &silent {
            if let Some(laid) = driven.claims.get_mut(cluster) {
                laid.refused = Some((now, format!("no answer to {TRIES_MAX} claims")));
            }
        }
        for cluster in silent {
            self.strike(&cluster, false);
            self.send(cluster, Message::Withdraw { job, epoch }, false);
        }
        for cluster in dropped {
            self.send(cluster, Message::Withdraw { job, epoch }, false);
        }
        let spec = &record.spec;
        for cluster in lay {
            let claim = Claim {
                birth: record.birth.clone(),
                epoch,
                nodes: spec.nodes,
                resources: spec.resources.clone(),
                priority: spec.priority,
                image: spec.image.is_some() || spec.run == Run::Image,
                max_runtime: spec.max_runtime,
            };
            let speaks = self.speaks_terms(&cluster);
            if !speaks && self.card_of(&spec.tenant).is_some() {
                // It could not be told of the tenant's limits.
                continue;
            }
            let message = match speaks {
                true => Message::ClaimWith {
                    claim: Box::new(claim),
                    terms: Terms {
                        preemptible: spec.may_be_preempted(),
                        token: token.as_ref() == Some(&cluster),
                        // Between peers whose clocks differ this is off by as much: it only orders a tenant's own jobs.
                        waited: Span::millis(self.now.wall.0.saturating_sub(record.submitted_at.0)),
                        card: self.card_of(&spec.tenant),
                        gathers: false,
                        lean: firm.as_ref() != Some(&cluster),
                    },
                },
                false => Message::Claim(Box::new(claim)),
            };
            self.send(cluster, message, false);
        }
    }

    /// When the job's claims are to be looked at again: a job that waits everywhere as seldom as they are repeated.
    pub(super) fn claims_due(&self, job: &JobId) -> Instant {
        let now = self.now.mono;
        let Some(driven) = self.owner.jobs.get(job) else { return now + CLAIM_EVERY };
        let standing = driven.claims.values();
        let every = standing.map(|l| if l.refused.is_some() { CLAIM_EVERY } else { l.every }).min();
        let due = now + every.unwrap_or(CLAIM_EVERY);
        let offers = driven.offers.values().map(|o| o.since + PATIENCE_FOR_BETTER).min();
        offers.map_or(due, |at| due.min(at.max(now + Span::millis(5))))
    }

    pub(in crate::core) fn on_claim_state(
        &mut self,
        from: &PeerName,
        job: JobId,
        epoch: Epoch,
        ahead: u32,
        refused: Option<String>,
        prospects: Prospects,
    ) {
        if self.gangs.claims(&job) {
            return self.group_waits(from, job, epoch, ahead, refused, &prospects);
        }
        let now = self.now.mono;
        let Some(driven) = self.owner.jobs.get_mut(&job) else { return };
        let Some(laid) = driven.claims.get_mut(from).filter(|l| l.epoch == epoch) else { return };
        (laid.ahead, laid.tries) = (Some(ahead), 0);
        // Somebody could be sent away for it: who may do so is looked at once all have answered.
        let victims = prospects.victims.is_some_and(|n| n > 0);
        laid.prospects = prospects;
        let waits = !driven.offers.is_empty() || victims;
        match refused {
            Some(why) => {
                laid.refused = Some((now, why));
                driven.offers.remove(from);
                self.strike(from, false);
                self.drive_soon(job);
            }
            None => {
                // Whoever queues it does not refuse.
                self.owner.strikes.remove(from);
                if waits {
                    self.drive_soon(job);
                }
            }
        }
    }

    /// Adds to the rows of `why` what the clusters said to this owner's claims.
    pub(in crate::core) fn note_claims(&self, record: &JobRecord, clusters: &mut [Candidate]) {
        let none = BTreeMap::new();
        let claims = self.owner.claims(&record.id()).unwrap_or(&none);
        for row in clusters {
            if let Some((strikes, left)) = self.resting(&row.cluster).filter(|_| row.fits_ever) {
                row.reasons.push(Reason::RestsAfter { strikes, left });
            }
            let Some(laid) = claims.get(&row.cluster) else { continue };
            match &laid.refused {
                Some((_, why)) => row.reasons.push(Reason::Refused { why: why.clone() }),
                None => {
                    row.claim = laid.ahead;
                    row.reasons.push(Reason::ClaimStands { ahead: laid.ahead });
                    let waits = Some(&laid.prospects.waits).filter(|waits| !waits.is_empty());
                    // There may be room, and the tenant may not have it.
                    row.fits_now &= waits.is_none();
                    row.reasons.extend(waits.map(|why| Reason::Quota { text: why.clone(), passing: true }));
                    row.reasons.extend(laid.prospects.yields.then_some(Reason::OlderFirst));
                    let reserved = &laid.prospects.reserved;
                    if !reserved.is_empty() {
                        row.fits_now = false;
                        row.reasons.retain(|r| !matches!(r, Reason::Reserved { .. }));
                        row.reasons.push(Reason::Reserved { text: reserved.clone() });
                    }
                }
            }
        }
    }
}
