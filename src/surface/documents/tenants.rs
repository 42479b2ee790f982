//! Documents about tenants.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::PeerName;
use crate::core::tenants::{SpendReport, TenantReport};
use crate::model::tenant::{Amount, Limits};

const MS_PER_HOUR: f64 = 3_600_000.0;

fn hours(ms: u64) -> f64 {
    ms as f64 / MS_PER_HOUR
}

/// What a tenant may use; null is no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LimitsDocument {
    /// GPUs at once.
    pub gpus: Option<u64>,
    /// CPU cores at once.
    pub cpus: Option<f64>,
    /// Bytes of memory at once.
    pub memory_bytes: Option<u64>,
    /// GPU-hours in all.
    pub gpu_hours: Option<f64>,
    /// GPUs of its own.
    pub guaranteed: u64,
    /// GPUs that it may borrow.
    pub borrow: Option<u64>,
    /// Part in fair share.
    pub weight: u32,
    /// Longest grace of its jobs, milliseconds; null takes `never` too.
    pub grace_ms: Option<u64>,
    /// GPUs kept at clusters.
    pub keep: BTreeMap<PeerName, u64>,
}

/// An amount of everything that is limited.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct AmountDocument {
    /// GPUs.
    pub gpus: u64,
    /// CPU cores.
    pub cpus: f64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// GPU-hours.
    pub gpu_hours: f64,
}

/// What the ledger says of one cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShareDocument {
    /// Which.
    pub cluster: PeerName,
    /// What it may spend without asking.
    pub held: AmountDocument,
    /// GPU-hours that it has used up and told.
    pub spent_gpu_hours: f64,
}

/// What one cluster says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpendDocument {
    /// Which.
    pub cluster: PeerName,
    /// It knows of the limits.
    pub knows: bool,
    /// What it may spend without asking.
    pub share: AmountDocument,
    /// What attempts and grants hold there.
    pub used: AmountDocument,
    /// Why it has not got more.
    pub waits: Option<String>,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantDocument {
    /// Its name.
    pub tenant: String,
    /// The ledger's id.
    pub ledger: String,
    /// Peers that hold the ledger.
    pub homes: Vec<PeerName>,
    /// What it may use; null where nothing is limited any more.
    pub limits: Option<LimitsDocument>,
    /// All shares together.
    pub held: AmountDocument,
    /// GPU-hours used since the last reset.
    pub spent_gpu_hours: f64,
    /// Shares, by cluster.
    pub shares: Vec<ShareDocument>,
    /// What clusters say; only where one tenant is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<SpendDocument>,
    /// Clusters that did not answer: whether they know of the limits is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<PeerName>,
}

/// Tenants that have ledgers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct TenantList {
    /// The tenants, by name.
    pub tenants: Vec<TenantDocument>,
}

impl From<Amount> for AmountDocument {
    fn from(a: Amount) -> Self {
        Self {
            gpus: a.gpus,
            cpus: a.cpus as f64 / 1000.0,
            memory_bytes: a.memory,
            gpu_hours: hours(a.gpu_ms),
        }
    }
}

impl From<&Limits> for LimitsDocument {
    fn from(l: &Limits) -> Self {
        Self {
            gpus: l.gpus,
            cpus: l.cpus.map(|milli| milli as f64 / 1000.0),
            memory_bytes: l.memory,
            gpu_hours: l.gpu_ms.map(hours),
            guaranteed: l.guaranteed,
            borrow: l.borrow,
            weight: l.weight,
            grace_ms: l.grace.map(|g| g.as_millis()),
            keep: l.keep.clone(),
        }
    }
}

impl SpendDocument {
    /// What a cluster says.
    pub fn new(cluster: PeerName, here: SpendReport) -> Self {
        Self { cluster, knows: true, share: here.share.into(), used: here.used.into(), waits: here.waits }
    }
}

impl From<TenantReport> for TenantDocument {
    fn from(report: TenantReport) -> Self {
        let TenantReport { card, ledger, .. } = report;
        let shares = ledger.iter().flat_map(|l| &l.shares).map(|s| ShareDocument {
            cluster: s.home.peer.clone(),
            held: s.held.into(),
            spent_gpu_hours: hours(s.spent),
        });
        let spent = ledger.as_ref().map_or(0, |l| l.spent());
        let total = ledger.as_ref().map(|l| l.total()).unwrap_or_default();
        // What is used up is no longer held.
        let held = Amount { gpu_ms: total.gpu_ms.saturating_sub(spent), ..total };
        Self {
            ledger: card.id().to_string(),
            homes: card.held_by.iter().map(|home| home.peer.clone()).collect(),
            limits: (!card.removed).then(|| LimitsDocument::from(&card.limits)),
            tenant: card.tenant,
            held: held.into(),
            spent_gpu_hours: hours(spent),
            shares: shares.collect(),
            clusters: Vec::new(),
            unanswered: Vec::new(),
        }
    }
}
