//! The score: physical figures on one scale, weighed by a policy. Lower is better.
//!
//! The scale is hours of the job. Time counts as it is. Money counts in what an hour of the job's GPUs costs at a usual
//! price, energy in what they draw: so a dollar means less to a gang of 512 than to a single GPU, and an hour of waiting
//! the same to both. Nothing is compared with the other clusters: a score does not change because another
//! cluster came or went.

use super::estimate::Estimate;
use crate::model::policy::{Term, Weights};
use crate::model::spec::JobSpec;

/// A usual price of a GPU hour.
pub const USD_PER_GPU_HOUR: f64 = 2.0;
/// A usual draw of a GPU.
pub const KW_PER_GPU: f64 = 0.5;

/// The job's GPUs, for bringing money and energy to hours; one for a job without.
pub(super) fn gpus(spec: &JobSpec) -> f64 {
    spec.gpus_total().max(1) as f64
}

/// The terms of a score, unweighted, in the order of [`Term::ALL`].
pub fn terms(spec: &JobSpec, e: &Estimate) -> [f64; 6] {
    let hours = |s: crate::base::Span| s.as_secs_f64() / 3_600.0;
    [
        hours(e.start),
        hours(e.wait),
        hours(e.data) + hours(e.image),
        e.usd / (USD_PER_GPU_HOUR * gpus(spec)),
        e.kwh / (KW_PER_GPU * gpus(spec)),
        e.load,
    ]
}

/// The terms, weighed and added.
pub fn weigh(weights: &Weights, terms: &[f64; 6]) -> f64 {
    Term::ALL.iter().zip(terms).map(|(term, value)| weights.of(*term) * value).sum()
}
