//! Which jobs the loss of a cluster touches, and what is being done for each: read from the records that the living
//! homes hold, the newest version of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, timeout_at};

use crate::base::{JobId, PeerName, Span, WallTime};
use crate::core::api::JobFilter;
use crate::model::report::Liveness;
use crate::model::{JobRecord, JobState};
use crate::runtime::PeerSettings;
use crate::surface::api::{Api, ApiResult, resolve};
use crate::surface::documents::{Doing, TouchedJob, TouchedList, boottime_now, wall_now};

/// Jobs that are listed.
pub const LISTED_MAX: usize = 500;
/// Jobs of one home that are looked at.
const LOOKED_MAX: usize = 20_000;
/// What was lost so long before an incident began is part of it: a takeover may be noted by a clock that is behind.
pub const BEFORE_MS: u64 = 60_000;
/// A list is shown again for so long, or ten times as long as it took to make.
const FRESH: Duration = Duration::from_secs(1);
const PEER_ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// One answer, however many clusters are lost: what is not known by then is left out, and who was not heard is named.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(6);
const ASKED_AT_ONCE: usize = 16;
/// Clusters whose lists are kept.
const KEPT_MAX: usize = 16;

/// What the loss touches, by this peer's own records.
pub async fn here(api: &Api, cluster: &PeerName, since: WallTime) -> ApiResult<TouchedList> {
    let filter =
        JobFilter { touched: Some((cluster.clone(), since)), limit: LOOKED_MAX, ..JobFilter::default() };
    let records = resolve::local_jobs(api, filter).await?;
    let view = api.handle.view();
    let now = wall_now();
    let heard = view.members.get(cluster).and_then(|m| m.report.as_ref());
    let heard = heard.map(|r| WallTime(now.0.saturating_sub(boottime_now().since(r.heard_at).as_millis())));
    let settings = api.handle.settings();
    let all: Vec<TouchedJob> = records.iter().map(|r| told(r, cluster, now, heard, &settings)).collect();
    Ok(ordered(all, Vec::new()))
}

/// What one answer about several clusters has in common.
pub struct Patience {
    until: Instant,
    /// They did not answer about a cluster before: they are not waited for again.
    silent: BTreeSet<PeerName>,
}

impl Patience {
    /// From now on.
    pub fn new() -> Self {
        Self { until: Instant::now() + ANSWER_WITHIN, silent: BTreeSet::new() }
    }
}

/// Of all living members, with this one; within the patience.
pub async fn touched(
    api: &Api,
    cluster: &PeerName,
    since: WallTime,
    patience: &mut Patience,
) -> Arc<TouchedList> {
    // Held while the mesh is asked, so that many who look ask once.
    let Ok(mut kept) = timeout_at(patience.until, api.desk.touched.lock()).await else {
        let view = api.handle.view();
        let living = view.members.values().filter(|m| m.liveness == Liveness::Alive);
        return Arc::new(ordered(Vec::new(), living.map(|m| m.peer.clone()).collect()));
    };
    if let Some((until, list)) = kept.get(cluster)
        && Instant::now() < *until
    {
        return list.clone();
    }
    let began = Instant::now();
    let list = Arc::new(ask(api, cluster, since, patience).await);
    if kept.len() >= KEPT_MAX {
        kept.retain(|_, (until, _)| *until > began);
    }
    if kept.len() < KEPT_MAX {
        kept.insert(cluster.clone(), (Instant::now() + FRESH.max(began.elapsed() * 10), list.clone()));
    }
    list
}

async fn ask(api: &Api, cluster: &PeerName, since: WallTime, patience: &mut Patience) -> TouchedList {
    let until = patience.until;
    let me = api.handle.about().name;
    let view = api.handle.view();
    let others = view.members.values().filter(|m| m.liveness == Liveness::Alive && m.peer != me);
    let others: BTreeSet<PeerName> = others.map(|m| m.peer.clone()).collect();
    let uri = format!("/v1/local/touched?cluster={cluster}&since={}", since.0);
    let mut unanswered: Vec<PeerName> = others.intersection(&patience.silent).cloned().collect();
    let mut waited: BTreeSet<PeerName> = others.difference(&patience.silent).cloned().collect();
    let mut newest: BTreeMap<JobId, TouchedJob> = BTreeMap::new();
    let mut take = |list: TouchedList| {
        for job in list.jobs {
            match newest.get(&job.id) {
                Some(known) if known.version >= job.version => {}
                _ => drop(newest.insert(job.id, job)),
            }
        }
    };
    match timeout_at(until, here(api, cluster, since)).await {
        Ok(Ok(list)) => take(list),
        Ok(Err(_)) | Err(_) => unanswered.push(me),
    }
    let mut answers = futures::stream::iter(waited.clone())
        .map(|peer| {
            let (api, uri) = (api.clone(), uri.clone());
            async move {
                let asked = resolve::ask(&api, &peer, "GET", uri);
                let answer = tokio::time::timeout(PEER_ANSWERS_WITHIN, asked).await;
                let list = answer.ok().and_then(Result::ok);
                (peer, list.and_then(|bytes| serde_json::from_slice::<TouchedList>(&bytes).ok()))
            }
        })
        .buffer_unordered(ASKED_AT_ONCE);
    while let Ok(Some((peer, list))) = timeout_at(until, answers.next()).await {
        waited.remove(&peer);
        match list {
            Some(list) => take(list),
            None => {
                patience.silent.insert(peer.clone());
                unanswered.push(peer);
            }
        }
    }
    drop(answers);
    // Time ran out before they were heard.
    unanswered.extend(waited);
    unanswered.sort();
    ordered(newest.into_values().collect(), unanswered)
}

/// What needs somebody first; bounded.
fn ordered(mut jobs: Vec<TouchedJob>, unanswered: Vec<PeerName>) -> TouchedList {
    jobs.sort_by_key(|job| (job.doing, job.id));
    let total = jobs.len() as u64;
    jobs.truncate(LISTED_MAX);
    TouchedList { jobs, total, unanswered }
}

/// One job: what is being done for it.
fn told(
    record: &JobRecord,
    lost: &PeerName,
    now: WallTime,
    heard: Option<WallTime>,
    settings: &PeerSettings,
) -> TouchedJob {
    let mut until_ms = None;
    let epoch = record.epoch.0;
    let short = record.id().short();
    let (doing, text) = match &record.placement {
        _ if record.state.is_final() => (Doing::Ended, format!("has ended: {}", record.reason)),
        _ if record.held.is_some() => {
            let why = record.held.as_deref().unwrap_or_default();
            (Doing::Held, format!("held: {why}; `starling job {short} release`"))
        }
        Some(placement) if placement.cluster == *lost => match record.spec.on_lost_contact.grace {
            None => {
                let text = format!(
                    "goes on at {lost} if that lives, and nowhere else (grace: never); once its machines are off: `starling job {short} confirm-lost`"
                );
                (Doing::Held, text)
            }
            Some(grace) => {
                let wait = grace.scale(1_000 + 2 * settings.rho_milli, 1_000) + settings.margin;
                let until = heard.unwrap_or(now).0.saturating_add(wait.as_millis());
                until_ms = Some(until);
                let left = Span::millis(until.saturating_sub(now.0).div_ceil(1_000) * 1_000);
                let text = if left == Span::ZERO {
                    format!("its grace of {grace} is over: it is taken over now")
                } else {
                    format!("may go on at {lost} for its grace of {grace}; taken over in about {left}")
                };
                (Doing::WaitsGrace, text)
            }
        },
        Some(placement) if record.state == JobState::Running => {
            (Doing::RunsAgain, format!("runs again at {} as epoch {epoch}", placement.cluster))
        }
        Some(placement) => {
            (Doing::Starting, format!("starts again at {} as epoch {epoch}", placement.cluster))
        }
        None => (Doing::TakenOver, format!("taken over, waits for a cluster: {}", record.reason)),
    };
    TouchedJob {
        id: record.id(),
        name: record.spec.name.clone(),
        tenant: record.spec.tenant.clone(),
        state: record.state,
        version: record.version,
        doing,
        text,
        cluster: record.placement.as_ref().map(|p| p.cluster.clone()),
        epoch,
        until_ms,
    }
}
