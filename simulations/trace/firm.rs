//! Starling's own rules in one place, without peers: where a job's firm claim stands, and for whom clusters hold nodes. What
//! the rules are worth by themselves, so that what is lost by peers that learn of things later can be seen beside it.

use std::collections::{BTreeMap, BTreeSet};

use starling::base::Span;
use starling::core::schedule::elsewhere::{Elsewhere, Keep};

use super::load::Site;
use super::rivals::Sim;

/// Users' sides look this often, and clusters tell what they hold.
pub const ROUND_EVERY: Span = Span::secs(60);

/// Of the jobs that wait: where each is firm.
#[derive(Default)]
pub struct Firm {
    waits: BTreeMap<usize, Option<usize>>,
    /// A round is on the agenda.
    goes_on: bool,
}

impl Firm {
    /// One more. True if the first round is to come.
    pub fn waits(&mut self, job: usize) -> bool {
        self.waits.insert(job, None);
        !std::mem::replace(&mut self.goes_on, true)
    }
    pub fn waits_no_more(&mut self, job: usize) {
        self.waits.remove(&job);
    }
    /// Another round is to come.
    pub fn again(&mut self) -> bool {
        self.goes_on = !self.waits.is_empty();
        self.goes_on
    }
    pub fn at(&self, job: usize) -> Option<usize> {
        self.waits.get(&job).copied().flatten()
    }
}

impl Sim<'_> {
    /// As `core/owner/firm.rs` chooses: the fewest ahead, of equals the largest; it moves where less than half as many are ahead.
    /// Here all answers are there at once, and nobody is sent away: so without that rule's moves to a larger cluster while the
    /// answers are still coming, and without the preemption token.
    /// Returns the clusters that have something to look at.
    pub(super) fn firm_round(&mut self) -> BTreeSet<usize> {
        let mut touched = self.tell_keeps();
        let place = |site: usize| -> BTreeMap<usize, usize> {
            self.places[site].in_order(self.now).enumerate().map(|(n, job)| (job, n)).collect()
        };
        let places: Vec<_> = (0..self.places.len()).map(place).collect();
        let ahead = |job: usize, site: usize| places[site].get(&job).copied();
        let size = |site: usize| u64::MAX - Site::gpus_total(&self.trace.sites[site]);
        let mut moves = Vec::new();
        for (&job, &now) in &self.firm.waits {
            let ranked = self.stands[job].iter().filter_map(|&s| Some((ahead(job, s)?, size(s), s)));
            let Some((n, _, best)) = ranked.min() else { continue };
            let stays = now.filter(|&s| ahead(job, s).is_some_and(|mine| n >= mine.div_ceil(2)));
            if stays.is_none() && now != Some(best) {
                moves.push((job, now, best));
            }
        }
        for (job, before, best) in moves {
            self.firm.waits.insert(job, Some(best));
            for site in before.into_iter().chain([best]) {
                if self.places[site].waits_for(&job) {
                    let request = self.request(job, site);
                    self.places[site].join(job, request, self.now);
                    touched.insert(site);
                }
            }
        }
        touched
    }

    /// Clusters hear what the others hold. Returns those for which that is news.
    fn tell_keeps(&mut self) -> BTreeSet<usize> {
        let now = self.now;
        let of = |site: usize| -> Vec<Keep<usize>> {
            let keeps = self.places[site].keeps(now).map(|(key, r)| Keep {
                key: *key,
                priority: r.priority,
                since: r.since,
                gpus: r.gpus(),
                pools: r.need.pools.clone(),
            });
            keeps.collect()
        };
        let all: Vec<_> = (0..self.places.len()).map(of).collect();
        let gpus: u64 = self.trace.sites.iter().map(Site::gpus_total).sum();
        let mut touched = BTreeSet::new();
        for site in 0..self.places.len() {
            let others = (0..all.len()).filter(|&s| s != site).flat_map(|s| all[s].clone());
            let pools = self.places[site].books().pools().len();
            let elsewhere = Elsewhere { keeps: others.collect(), gpus: vec![gpus; pools] };
            if self.places[site].set_elsewhere(elsewhere) {
                touched.insert(site);
            }
        }
        touched
    }
}
