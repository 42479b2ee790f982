//! Documents about reservations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::JobDocument;
use crate::base::{JobId, PeerName};
use crate::model::report::ReservedReport;
use crate::model::reserve::At;
use crate::model::{JobRecord, JobState};

/// When and where, inside the document of a reservation's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReservePartDocument {
    /// The clusters that were named; empty where the mesh chooses.
    pub asked_at: Vec<PeerName>,
    /// How many clusters.
    pub count: u32,
    /// From when on, milliseconds since 1970,
    pub from_ms: u64,
    /// and until when.
    pub until_ms: u64,
    /// The clusters that keep it, once it is confirmed.
    pub clusters: Vec<KeptDocument>,
}

/// One cluster's part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptDocument {
    /// Which cluster.
    pub cluster: PeerName,
    /// Why it could not keep it, if it could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// What it says itself, as the answering peer last heard; none where it was not heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<ReservedDocument>,
}

impl ReservePartDocument {
    /// Of a reservation's record; none for a job's.
    pub fn of(record: &JobRecord) -> Option<Self> {
        let reserve = record.spec.reserve.as_ref()?;
        let asked_at = match &reserve.at {
            At::Named(names) => names.clone(),
            At::Any(_) => Vec::new(),
        };
        let kept = record.parts().iter().map(|part| KeptDocument {
            cluster: part.cluster.clone(),
            lost: part.lost.clone(),
            says: None,
        });
        Some(Self {
            asked_at,
            count: u32::try_from(reserve.at.count()).unwrap_or(u32::MAX),
            from_ms: reserve.from.0,
            until_ms: reserve.until.0,
            clusters: kept.collect(),
        })
    }
}

/// What a cluster keeps, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReservedDocument {
    /// Which reservation.
    pub id: JobId,
    /// For whom.
    pub tenant: String,
    /// GPUs.
    pub gpus: u32,
    /// Of them: not there any more,
    pub short: u32,
    /// held by the tenant's jobs,
    pub used: u32,
    /// held by nobody.
    pub idle: u32,
    /// From when on, milliseconds since 1970,
    pub from_ms: u64,
    /// and until when.
    pub until_ms: u64,
    /// Confirmed; otherwise held until it is.
    pub confirmed: bool,
}

impl From<&ReservedReport> for ReservedDocument {
    fn from(r: &ReservedReport) -> Self {
        Self {
            id: r.id,
            tenant: r.tenant.clone(),
            gpus: r.gpus,
            short: r.short,
            used: r.used,
            idle: r.idle.values().fold(0, |sum, n| sum.saturating_add(*n)),
            from_ms: r.from.0,
            until_ms: r.until.0,
            confirmed: r.confirmed,
        }
    }
}

/// A reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReservationDocument {
    /// Its id.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// For whom.
    pub tenant: String,
    /// `pending`, `running` (confirmed), `succeeded` (its time is over), `failed` (refused), `cancelled`.
    pub state: JobState,
    /// It has ended.
    pub done: bool,
    /// In words.
    pub reason: String,
    /// GPUs in each cluster.
    pub gpus: u32,
    /// Models that will do; empty is any.
    pub gpu: Vec<String>,
    /// When and where.
    #[serde(flatten)]
    pub part: ReservePartDocument,
    /// When it was asked for.
    pub submitted_at_ms: u64,
    /// When it ended.
    pub finished_at_ms: Option<u64>,
    /// Peers that hold its record.
    pub homes: Vec<PeerName>,
}

impl ReservationDocument {
    /// From the document of its record; none where that is a job's.
    pub fn of(document: JobDocument) -> Option<Self> {
        Some(Self {
            id: document.id,
            name: document.name,
            tenant: document.tenant,
            state: document.state,
            done: document.done,
            reason: document.reason,
            gpus: document.nodes,
            gpu: document.gpu,
            part: document.reserve?,
            submitted_at_ms: document.submitted_at_ms,
            finished_at_ms: document.finished_at_ms,
            homes: document.homes,
        })
    }
}

/// Reservations, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ReservationList {
    /// The reservations.
    pub reservations: Vec<ReservationDocument>,
    /// There are more than were asked for.
    pub truncated: bool,
    /// Members whose part is missing, since they did not answer.
    pub unanswered: Vec<PeerName>,
    /// Where the next page begins: the `before` of its request. None on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
