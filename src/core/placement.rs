//! Where a job may and should run: filter, estimate, score; pure functions over a view, explained in words and numbers.
//!
//! - `reason`: why not, typed. `filter`: finds the reasons. `estimate`: seconds, bytes, USD, kWh. `score`: weighs them.
//! - `index`: the same, kept between decisions. `groups`: task groups over the link matrix.

pub mod estimate;
mod filter;
pub mod groups;
mod index;
mod reason;
pub mod score;
mod site;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use estimate::Estimate;
pub use filter::REPORT_AGE_MAX;
pub use index::{Ask, Explained, Index, Pick};
pub use reason::Reason;

use super::api::Candidate;
use crate::base::{Instant, PeerName, Span};
use crate::model::policy::Term;
use crate::model::report::View;
use crate::model::spec::JobSpec;

/// All clusters for one job, best first, by the default weights: those that could ever run it, then the rest.
/// `assigned` is what was given out there and the report does not show yet, in GPUs.
pub fn candidates(
    spec: &JobSpec,
    view: &View,
    assigned: &BTreeMap<PeerName, u64>,
    now: Instant,
) -> Vec<Candidate> {
    let mut index = Index::default();
    index.update(&Arc::new(view.clone()));
    for (cluster, gpus) in assigned {
        index.give(cluster, *gpus, now);
    }
    explained(&mut index, spec, now, &[])
}

/// The same from an index that is kept, knowing when some clusters would start this very job.
pub(super) fn explained(
    index: &mut Index,
    spec: &JobSpec,
    now: Instant,
    told: &[(PeerName, Span)],
) -> Vec<Candidate> {
    let heard: BTreeMap<PeerName, Instant> = index.heard();
    let row = |e: Explained| {
        let (estimate, terms, score) = match e.figures {
            Some((estimate, terms, score)) => (Some(estimate), terms, Some(score)),
            None => (None, [0.0; 6], None),
        };
        let terms = Term::ALL.iter().zip(terms).filter(|_| score.is_some());
        Candidate {
            report_age: heard.get(&e.cluster).map(|at| now.since(*at)),
            cluster: e.cluster,
            fits_ever: e.fits_ever,
            fits_now: e.fits_now,
            reasons: e.reasons,
            score,
            terms: terms.map(|(term, value)| (term.as_str().to_owned(), value)).collect(),
            estimate,
            claim: None,
        }
    };
    index.explain(spec, now, told).into_iter().map(row).collect()
}
