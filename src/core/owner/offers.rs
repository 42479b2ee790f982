//! The grants that an owner is offered: which is taken, and which given back.
//!
//! A grant is taken at once unless a cluster that is expected to be better has not answered yet (a moment's patience), or
//! is worth waiting for by the same figures that `why` shows. An estimate that a queue does not keep is believed for as
//! long as it said, and no longer than the job has waited already: so patience is bounded by what it may save.

use super::claims::{Laid, Offer, TAKE_SLACK};
use super::*;
use crate::base::{BoundedVec, WallTime};
use crate::core::placement::Pick;
use crate::model::record::contact_id;

/// Said of a cluster that was asked when it still fitted.
const NO_MORE: &str = "its grant was given back: by what it says of itself now it cannot run this job";
/// A grant waits this long for a better cluster's first answer.
pub(super) const PATIENCE_FOR_BETTER: Span = Span::millis(300);

impl Peer {
    /// A cluster holds capacity for a job: take it with one swap, keep it for a moment, or give it back.
    pub(in crate::core) fn on_grant(
        &mut self,
        from: PeerName,
        job: JobId,
        epoch: Epoch,
        held: Span,
        terms: (ContactId, u64, Vec<Home>, u64),
    ) {
        if self.gangs.claims(&job) {
            return self.group_granted(from, job, epoch, held, terms);
        }
        let now = self.now.mono;
        let (contact, series, homes, incarnation) = terms;
        let certified = contact_id(&from, series, &homes) == contact;
        let record = self.acceptor.job_shared(&job);
        let wanted = record
            .clone()
            .filter(|r| r.placement.is_none() && !r.state.is_final() && r.epoch.next() == epoch);
        let standing = |d: &Driven| d.claims.get(&from).is_some_and(|l| l.refused.is_none());
        let driven = self.owner.jobs.get(&job);
        let taking = driven.and_then(|d| d.placing.as_ref()).is_some_and(|(c, e)| *c == from && *e == epoch);
        let taken =
            |r: &JobRecord| r.epoch == epoch && r.placement.as_ref().is_some_and(|p| p.cluster == from);
        if taking || record.as_deref().is_some_and(|r| taken(r) && self.acts_for(r)) {
            // The grant that is taken, once more: given back now, its capacity would be given to others.
            return;
        }
        let free = driven.is_some_and(|d| d.placing.is_none() && standing(d));
        let (Some(record), true, Ok(homes)) = (wanted, certified && free, BoundedVec::try_from(homes)) else {
            return self.send(from, Message::Withdraw { job, epoch }, false);
        };
        self.owner.strikes.remove(&from);
        let offer = Offer {
            epoch,
            until: now + held,
            since: now,
            came: self.now.wall,
            terms: (contact, series, homes, incarnation),
        };
        if let Some(driven) = self.owner.jobs.get_mut(&job) {
            if let Some(laid) = driven.claims.get_mut(&from) {
                // It has answered; what it may say again comes later.
                (laid.ahead, laid.tries, laid.prospects.starts_in) = (Some(0), 0, None);
            }
            let before = driven.offers.get(&from).filter(|o| o.epoch == epoch);
            let (since, came) = before.map_or((now, offer.came), |o| (o.since, o.came));
            driven.offers.insert(from.clone(), Offer { since, came, ..offer });
        }
        if record.moving.is_some() {
            self.placer.update(&self.view);
            if self.placer.never(&record.spec, &from) {
                return self.decline(job, epoch, from, NO_MORE);
            }
            self.take_offer(job, &record, from);
        } else if !self.take_best_offer(job, &record) {
            let due = self.claims_due(&job);
            self.drive_at(job, due);
        }
    }

    /// Takes the best grant that is held for a job, unless a better one is worth waiting for. True if it was taken.
    pub(super) fn take_best_offer(&mut self, job: JobId, record: &JobRecord) -> bool {
        let now = self.now.mono;
        let epoch = record.epoch.next();
        let Some(driven) = self.owner.jobs.get_mut(&job) else { return false };
        driven.offers.retain(|_, o| o.epoch == epoch && o.until > now);
        let from: Vec<PeerName> = driven.offers.keys().cloned().collect();
        self.placer.update(&self.view);
        for cluster in from {
            // It was asked when it still fitted, and grants without looking.
            if self.placer.never(&record.spec, &cluster) {
                self.decline(job, epoch, cluster, NO_MORE);
            }
        }
        let Some(driven) = self.owner.jobs.get(&job).filter(|d| !d.offers.is_empty()) else { return false };
        let from = driven.held_from.filter(|(v, _)| *v == record.version).map_or(now, |(_, at)| at);
        let picks = self.picks(job, record, 256, now.since(from));
        let Some(driven) = self.owner.jobs.get(&job) else { return false };
        let soonest = |c: &PeerName| picks.iter().find(|p| p.cluster == *c).map(|p| p.soonest);
        // One that should not be asked now, as it drains, comes after all others.
        let ranked = driven.offers.iter().map(|(c, o)| (soonest(c).unwrap_or(f64::MAX), c, o));
        let Some((mine, cluster, offer)) = ranked.min_by(|a, b| a.0.total_cmp(&b.0)) else { return false };
        let (cluster, since) = (cluster.clone(), offer.since);
        let mut better = picks.iter().filter(|p| p.score + TAKE_SLACK < mine);
        let laid = |p: &&Pick| driven.claims.get(&p.cluster).filter(|l| l.refused.is_none());
        // Said to fit now, and not heard of yet: it may grant this moment.
        let hurry = now.since(since) >= PATIENCE_FOR_BETTER;
        let unheard = |p: &Pick| laid(&p).is_some_and(|l| l.ahead.is_none()) && !hurry;
        // Busy, but by its figures the job starts sooner (or cheaper) there than here.
        let worth = |p: &Pick| !p.fits_now && laid(&p).is_some();
        let (mut wait, mut decline) = (false, false);
        for p in better.by_ref() {
            wait |= unheard(p);
            decline |= worth(p);
        }
        if decline {
            self.decline(job, epoch, cluster, "its grant was given back: waiting elsewhere is better");
            return false;
        }
        if wait {
            return false;
        }
        self.take_offer(job, record, cluster);
        true
    }

    fn decline(&mut self, job: JobId, epoch: Epoch, cluster: PeerName, why: &str) {
        self.count("grants_declined");
        let now = self.now.mono;
        if let Some(driven) = self.owner.jobs.get_mut(&job) {
            driven.offers.remove(&cluster);
            if let Some(laid) = driven.claims.get_mut(&cluster) {
                laid.refused = Some((now, why.into()));
            }
        }
        self.send(cluster, Message::Withdraw { job, epoch }, false);
    }

    fn take_offer(&mut self, job: JobId, record: &JobRecord, cluster: PeerName) {
        let Some(driven) = self.owner.jobs.get_mut(&job) else { return };
        let Some(offer) = driven.offers.remove(&cluster) else { return };
        driven.placing = Some((cluster.clone(), offer.epoch));
        driven.waited = waited(record, &driven.claims, &cluster, &offer, self.now.wall);
        let (contact, series, contact_homes, incarnation) = offer.terms;
        let at = self.now.wall;
        self.placer.give(&cluster, record.spec.gpus_total(), self.now.mono);
        let placement = Placement { cluster, contact, incarnation, series, contact_homes, at };
        let change = Change::Place { placement, epoch: offer.epoch };
        self.propose(Origin::Job(record.birth.clone()), Task::Job(change), Purpose::Place(job), PATIENCE);
    }
}

/// The spans of a job's wait that ends with this grant: the wait, each claim, the grant.
fn waited(
    record: &JobRecord,
    claims: &BTreeMap<PeerName, Laid>,
    taken: &PeerName,
    offer: &Offer,
    now: WallTime,
) -> Vec<SpanNote> {
    let epoch = offer.epoch;
    let begun = record.attempts.iter().rev().find_map(|a| a.ended_at).unwrap_or(record.submitted_at);
    let mut spans = vec![SpanNote::new(trace::QUEUE, epoch, begun, now).at(taken).note(&*record.reason)];
    for (cluster, laid) in claims.iter().filter(|(_, l)| l.epoch == epoch) {
        let (to, note) = match (&laid.refused, laid.ahead) {
            _ if cluster == taken => (offer.came, "granted".to_owned()),
            (Some((_, why)), _) => (now, format!("refused: {why}")),
            (None, Some(ahead)) => (now, format!("not granted yet, {ahead} ahead")),
            (None, None) => (now, "no answer yet".to_owned()),
        };
        spans.push(SpanNote::new(trace::CLAIM, epoch, laid.since, to).at(cluster).note(note));
    }
    spans.push(SpanNote::new(trace::GRANT, epoch, offer.came, now).at(taken));
    spans
}
