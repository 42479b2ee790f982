//! Documents about incidents, the jobs that they touch, and silences.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::{IncidentId, JobId, PeerName};
use crate::core::alerts::Incident;
use crate::model::JobState;
use crate::model::alert::{Alert, AlertKind, Mark, Severity};

/// What is being done for a job that an incident touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Doing {
    /// Nothing is done before somebody says so.
    Held,
    /// Its grace runs: it may go on where it is until a time, and is not started elsewhere before.
    WaitsGrace,
    /// It was taken over and waits for a cluster.
    TakenOver,
    /// It is placed at another cluster and has not started yet.
    Starting,
    /// It runs again at another cluster.
    RunsAgain,
    /// It has ended.
    Ended,
}

impl Doing {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::WaitsGrace => "waits for its grace",
            Self::TakenOver => "taken over",
            Self::Starting => "starts again",
            Self::RunsAgain => "runs again",
            Self::Ended => "ended",
        }
    }
}

/// A job that an incident touches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TouchedJob {
    /// Its id.
    pub id: JobId,
    /// Name.
    pub name: String,
    /// Tenant.
    pub tenant: String,
    /// Where it stands.
    pub state: JobState,
    /// Version of its record.
    pub version: u64,
    /// What is being done for it.
    pub doing: Doing,
    /// The same in one sentence.
    pub text: String,
    /// The cluster that has it now.
    pub cluster: Option<PeerName>,
    /// Its attempt.
    pub epoch: u64,
    /// About when its grace is over, where that is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

/// Jobs that the loss of a cluster touches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct TouchedList {
    /// The jobs, those for which something is to be done first.
    pub jobs: Vec<TouchedJob>,
    /// How many there are in all; more than are listed where there are very many.
    pub total: u64,
    /// Living members that did not answer.
    #[serde(default)]
    pub unanswered: Vec<PeerName>,
}

/// When people were last told of an incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NoticeDocument {
    /// Through which notifier.
    pub via: String,
    /// `open` or `recovered`.
    pub status: String,
    /// When.
    pub at_ms: u64,
}

/// An incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IncidentDocument {
    /// The same at every peer, and again when it happens again.
    pub id: IncidentId,
    /// What kind.
    pub kind: AlertKind,
    /// What it is about.
    pub subject: String,
    /// How much it matters.
    pub severity: Severity,
    /// One sentence.
    pub text: String,
    /// What to do.
    pub todo: String,
    /// When it began.
    pub opened_at_ms: u64,
    /// When it last changed.
    pub updated_at_ms: u64,
    /// When it was over; none while it lasts.
    pub recovered_at_ms: Option<u64>,
    /// It is explained by this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<IncidentId>,
    /// Alerts that it explains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Alert>,
    /// Nothing is said about it until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silenced_until_ms: Option<u64>,
    /// What was said about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<NoticeDocument>,
    /// The jobs that it touches; only of a cluster that is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<TouchedList>,
}

impl IncidentDocument {
    /// Without jobs, notices and silence.
    pub fn new(incident: &Incident) -> Self {
        Self {
            id: incident.id,
            kind: incident.kind,
            subject: incident.subject.clone(),
            severity: incident.severity,
            text: incident.text.clone(),
            todo: incident.kind.todo().into(),
            opened_at_ms: incident.opened.0,
            updated_at_ms: incident.updated.0,
            recovered_at_ms: incident.recovered.map(|at| at.0),
            under: incident.under,
            also: incident.also.clone(),
            silenced_until_ms: None,
            notices: Vec::new(),
            jobs: None,
        }
    }
}

impl From<&Mark> for NoticeDocument {
    fn from(mark: &Mark) -> Self {
        let status = if mark.is_open() { "open" } else { "recovered" };
        Self { via: mark.via.clone(), status: status.into(), at_ms: mark.at.0 }
    }
}

/// Incidents as the answering peer sees them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct IncidentList {
    /// Those that last, the gravest first.
    pub open: Vec<IncidentDocument>,
    /// Those that are over, the newest first; since this peer's start.
    pub past: Vec<IncidentDocument>,
}

/// A silence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilenceDocument {
    /// An incident's id, a kind, or `kind:subject`.
    pub what: String,
    /// Until then.
    pub until_ms: u64,
    /// When it was made.
    pub made_ms: u64,
    /// Who made it.
    pub by: String,
}

/// Silences that hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SilenceList {
    /// The silences.
    pub silences: Vec<SilenceDocument>,
}

/// What a notifier is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Notice {
    /// 1; grows when a field changes its meaning.
    pub version: u32,
    /// `open` or `recovered`.
    pub status: String,
    /// The same for the same word about the same incident, whoever says it: what arrives twice can be told by it.
    pub key: String,
    /// The mesh.
    pub mesh: String,
    /// The peer that says it.
    pub peer: PeerName,
    /// When.
    pub at_ms: u64,
    /// The incident.
    pub incident: IncidentDocument,
}

/// Answer to a silence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilencedDocument {
    /// An incident's id, a kind, or `kind:subject`.
    pub what: String,
    /// Until then.
    pub until_ms: u64,
}
