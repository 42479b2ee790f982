//! What a peer measures of itself for its alerts: counters of the last ten minutes, and how things stand.

use std::collections::VecDeque;
use std::sync::PoisonError;

use crate::base::{Instant, Span};
use crate::core::alerts::{Facts, TenantUse, Window};
use crate::core::api::Look;
use crate::core::{ClientRequest, ClientResponse};
use crate::model::tenant::Limits;
use crate::surface::api::{Api, local};
use crate::surface::documents::{boottime_now, wall_now};
use crate::surface::measure::{Histogram, quantile};

/// The window.
const BACK: Span = Span::secs(600);

/// Counters at one moment.
#[derive(Debug, Clone, Default)]
struct Sample {
    at: Instant,
    schedule: Histogram,
    start: Histogram,
    /// Upper bounds and cumulative counts of the store's commits.
    commits: Vec<(f64, u64)>,
    timeouts: u64,
    placed: u64,
    lost: u64,
    gaps: u64,
    invariants: u64,
    bytes_out: u64,
}

/// Samples of the window.
#[derive(Default)]
pub struct Measured {
    samples: VecDeque<Sample>,
}

impl Measured {
    /// Takes a sample and says how things stand.
    pub async fn facts(&mut self, api: &Api) -> Facts {
        let report = local::core_report(api, Look::default()).await.unwrap_or_default();
        let now = self.sample(api, report.counters.get("register_timeouts").copied().unwrap_or(0));
        let view = api.handle.view();
        let about = api.handle.about();
        let own = view.members.get(&about.name).and_then(|m| m.report.clone());
        let queue = own.as_ref().and_then(|r| r.queue.clone()).unwrap_or_default();
        let health = own.as_ref().and_then(|r| r.health.clone());
        let sum = |map: &std::collections::BTreeMap<String, u32>| map.values().map(|n| u64::from(*n)).sum();
        let all: u64 = sum(&queue.gpus_total);
        let best = own.iter().flat_map(|r| &r.links).filter_map(|l| l.bandwidth_bps).max();
        Facts {
            certificate_left: Span::millis(about.certificate.1.0.saturating_sub(wall_now().0)),
            contact_age: report.contacts.iter().map(|(_, _, age)| *age).min(),
            disk_free: health.as_ref().map(|h| h.disk_free),
            disk_full: health.as_ref().is_some_and(|h| h.disk_full),
            gpus: (all.saturating_sub(sum(&queue.gpus_free)), all),
            queued: queue.queued.into(),
            window: self.window(&now, best),
            tenants: tenants(api).await,
        }
    }

    fn sample(&mut self, api: &Api, timeouts: u64) -> Sample {
        let measures = api.measures.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let kind = |name: &str| measures.kinds.get(name).copied().unwrap_or(0);
        let text = api.handle.metrics();
        let commit = |line: &str| {
            let (bound, count) =
                line.strip_prefix("starling_store_commit_seconds_bucket{le=\"")?.split_once("\"} ")?;
            Some((bound.parse().ok()?, count.trim().parse().ok()?))
        };
        let bytes = |line: &str| line.strip_prefix("starling_net_bytes_out_total ")?.trim().parse().ok();
        let sample = Sample {
            at: boottime_now(),
            commits: text.lines().filter_map(commit).collect(),
            timeouts,
            placed: kind("job.placed"),
            lost: kind("job.lost_contact"),
            invariants: kind("invariant.violated"),
            gaps: api.handle.log().map_or(0, |log| log.counters().0),
            bytes_out: text.lines().find_map(bytes).unwrap_or(0),
            schedule: measures.schedule,
            start: measures.start,
        };
        while self.samples.front().is_some_and(|s| sample.at.since(s.at) > BACK) {
            self.samples.pop_front();
        }
        self.samples.push_back(sample.clone());
        sample
    }

    fn window(&self, now: &Sample, best_bps: Option<u64>) -> Window {
        let zero = Sample { at: now.at, ..Sample::default() };
        // The first sample of a process that has just started counts from zero: its counters did, too.
        let first = if self.samples.len() > 1 { self.samples.front().unwrap_or(&zero) } else { &zero };
        let seconds = now.at.since(first.at).as_secs_f64();
        let span = |x: f64| Span::millis((x * 1e3) as u64);
        let grown = |of: fn(&Sample) -> u64| of(now).saturating_sub(of(first));
        let commits: Vec<u64> = now
            .commits
            .iter()
            .enumerate()
            .map(|(i, (_, n))| n.saturating_sub(first.commits.get(i).map_or(0, |(_, old)| *old)))
            .collect();
        let bounds: Vec<f64> = now.commits.iter().map(|(bound, _)| *bound).collect();
        let all = commits.last().copied().unwrap_or(0);
        let use_of = |bps: u64| (grown(|s| s.bytes_out) as f64 * 8e3 / seconds / bps.max(1) as f64) as u64;
        Window {
            schedule: now.schedule.since(&first.schedule).quantile(950).map(span),
            start: now.start.since(&first.start).quantile(950).map(span),
            commit: quantile(&bounds, &commits, all, 990).map(span),
            timeouts: if seconds >= 60.0 { (grown(|s| s.timeouts) as f64 * 1e3 / seconds) as u64 } else { 0 },
            placed: grown(|s| s.placed),
            lost: grown(|s| s.lost),
            gaps: grown(|s| s.gaps),
            invariants: grown(|s| s.invariants),
            link_use_milli: best_bps.filter(|_| seconds >= 60.0).map(use_of),
        }
    }
}

/// Tenants with limits, by what this cluster uses of them.
async fn tenants(api: &Api) -> Vec<TenantUse> {
    let Ok(ClientResponse::Tenants(list)) = api.handle.call(ClientRequest::Tenants).await else {
        return Vec::new();
    };
    // GPU time counts over all clusters and since a reset: `waits` says when it is used up.
    let used = |limits: &Limits, here: &crate::model::tenant::Amount| {
        let parts = [(limits.gpus, here.gpus), (limits.cpus, here.cpus), (limits.memory, here.memory)];
        let share = |(limit, n): (Option<u64>, u64)| {
            limit.map(|limit| (u128::from(n) * 1_000 / u128::from(limit.max(1))) as u64)
        };
        parts.into_iter().filter_map(share).max().unwrap_or(0)
    };
    list.into_iter()
        .filter(|report| !report.card.removed)
        .map(|report| TenantUse {
            used_milli: used(&report.card.limits, &report.here.used),
            waits: report.here.waits,
            tenant: report.card.tenant,
        })
        .collect()
}
