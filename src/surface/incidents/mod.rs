//! The alerts of a peer at work: looks at the view every second ([`watch`]), keeps incidents, tells people through
//! notifiers, and answers who asks. The rules are pure and lie in `core::alerts`; docs/alerts.md says what is promised.

mod durable;
mod facts;
pub(crate) mod jobs;
mod notify;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::base::{IncidentId, PeerName, WallTime};
use crate::core::alerts::{Book, Marks, Silences};
use crate::model::alert::{AlertKind, AlertsReport, Severity, Silence};
use crate::model::config::AlertsConfig;
use crate::surface::api::Api;
use crate::surface::documents::*;

pub use watch::watch;

/// What the watch is told at its start.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Thresholds and notifiers.
    pub rules: AlertsConfig,
    /// Where marks and silences are kept over a restart; none keeps them in memory only.
    pub folder: Option<PathBuf>,
}

/// Counts of one peer's notices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Said and taken.
    pub taken: u64,
    /// Tries that failed.
    pub failed: u64,
}

#[derive(Default)]
struct Held {
    book: Book,
    marks: Marks,
    silences: Silences,
    sent: Sent,
    /// Marks or silences changed since they were last put on disk.
    unsaved: bool,
}

/// Incidents, marks and silences of one peer: shared by the watch, the API and the page.
#[derive(Default)]
pub struct Desk {
    held: Mutex<Held>,
    /// Something was asked for that the watch should see at once.
    woken: Notify,
    /// What the loss of a cluster touches, for a moment.
    touched: tokio::sync::Mutex<BTreeMap<PeerName, (Instant, Arc<TouchedList>)>>,
}

/// Why a silence was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SilenceError {
    /// As many as are kept hold already.
    #[error(
        "{} silences hold already, as many as are kept: end one, or silence a whole kind",
        AlertsReport::SILENCES_MAX
    )]
    Full,
}

impl Desk {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open incidents by severity, for metrics.
    pub fn counts(&self) -> BTreeMap<Severity, u64> {
        let mut counts: BTreeMap<Severity, u64> =
            [Severity::Info, Severity::Warning, Severity::Critical].map(|s| (s, 0)).into();
        for incident in self.held().book.open() {
            *counts.entry(incident.severity).or_default() += 1;
        }
        counts
    }

    /// What was sent.
    pub fn sent(&self) -> Sent {
        self.held().sent
    }

    /// Silences that hold.
    pub fn silences(&self, now: WallTime) -> Vec<SilenceDocument> {
        let held = self.held();
        let holding = held.silences.all().filter(|s| s.until > now);
        holding
            .map(|s| SilenceDocument {
                what: s.what.clone(),
                until_ms: s.until.0,
                made_ms: s.made.0,
                by: s.by.clone(),
            })
            .collect()
    }

    /// Takes a silence.
    pub fn silence(&self, silence: &Silence, now: WallTime) -> Result<(), SilenceError> {
        let mut held = self.held();
        // A clock that was set back must not make a new word weaker than the one before.
        let newest = held.silences.all().filter(|s| s.what == silence.what).map(|s| s.made.0).max();
        let made = WallTime(silence.made.0.max(newest.map_or(0, |at| at + 1)));
        if !held.silences.take(&Silence { made, ..silence.clone() }, now) {
            return Err(SilenceError::Full);
        }
        held.unsaved = true;
        drop(held);
        self.woken.notify_one();
        Ok(())
    }

    /// One incident without its jobs; none where none of this id was seen since the start.
    fn document(&self, id: IncidentId, now: WallTime) -> Option<IncidentDocument> {
        let held = self.held();
        let incident = held.book.get(id)?;
        let mut document = IncidentDocument::new(incident);
        document.silenced_until_ms =
            held.silences.until(incident.kind, &incident.subject, now).map(|at| at.0);
        document.notices = held.marks.of(id).map(NoticeDocument::from).collect();
        Some(document)
    }

    /// Ids that begin so, open ones and those that are over.
    pub fn named(&self, prefix: &str) -> Vec<IncidentId> {
        let held = self.held();
        let all = held.book.open().chain(held.book.past());
        let mut ids: Vec<IncidentId> =
            all.map(|i| i.id).filter(|id| id.to_string().starts_with(prefix)).collect();
        ids.sort();
        ids.dedup();
        ids
    }
}

/// One incident with the jobs that it touches.
pub(crate) async fn one(api: &Api, id: IncidentId, now: WallTime) -> Option<IncidentDocument> {
    with_jobs(api, id, now, &mut jobs::Patience::new()).await
}

async fn with_jobs(
    api: &Api,
    id: IncidentId,
    now: WallTime,
    patience: &mut jobs::Patience,
) -> Option<IncidentDocument> {
    let mut document = api.desk.document(id, now)?;
    if document.kind == AlertKind::Cluster {
        let since = WallTime(document.opened_at_ms.saturating_sub(jobs::BEFORE_MS));
        if let Ok(cluster) = PeerName::new(&document.subject) {
            document.jobs = Some((*jobs::touched(api, &cluster, since, patience).await).clone());
        }
    }
    Some(document)
}

/// All of them; those that last with the jobs that they touch, as far as they are known in time.
pub(crate) async fn list(api: &Api, now: WallTime) -> IncidentList {
    let (mut open, past): (Vec<_>, Vec<_>) = {
        let held = api.desk.held();
        let key = |i: &crate::core::alerts::Incident| (i.id, i.severity, i.opened);
        (held.book.open().map(key).collect(), held.book.past().cloned().collect())
    };
    open.sort_by_key(|(id, severity, opened)| (std::cmp::Reverse((*severity, *opened)), *id));
    let (mut out, mut patience) = (IncidentList::default(), jobs::Patience::new());
    for (id, _, _) in open {
        // It may have ended since.
        let document = with_jobs(api, id, now, &mut patience).await;
        out.open.extend(document.filter(|d| d.recovered_at_ms.is_none()));
    }
    out.past = past.iter().map(IncidentDocument::new).collect();
    out
}
