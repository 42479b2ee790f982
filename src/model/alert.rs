//! What a peer finds wrong and tells the others of it: alerts, what was said to people about them, and silences.
//!
//! All of it is soft state and travels by gossip. What was said (`Mark`) and what shall not be said (`Silence`) are kept
//! by every peer that hears them, the newer one in the place of the older, so that the loss of one peer forgets neither.

use ring::digest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::{IncidentId, Span, WallTime};

/// What can be wrong. The text of each is stable: in the configuration, the API and the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AlertKind {
    /// A peer reaches no other.
    Isolated,
    /// A cluster is not heard.
    Cluster,
    /// The contact of a cluster was not renewed for too long.
    Contact,
    /// Something happened that must never happen.
    Invariant,
    /// A disk is full, or nearly.
    Disk,
    /// Too many attempts were lost with their cluster.
    AttemptsLost,
    /// A link loses packets, or works one way only.
    Link,
    /// A peer sends nearly as much as its best link carries.
    LinkBusy,
    /// Commits take too long.
    DiskSlow,
    /// Changes of records find no majority in time.
    Commits,
    /// A certificate ends soon.
    Certificate,
    /// A tenant is at its limit.
    Quota,
    /// Placements take too long.
    ScheduleSlow,
    /// Programs start too late.
    StartSlow,
    /// The event log has gaps.
    EventLog,
    /// GPUs are idle while claims wait.
    GpusIdle,
    /// Of a newer version.
    #[serde(other)]
    Other,
}

impl AlertKind {
    /// All that this version knows, the gravest first.
    pub const ALL: [Self; 16] = [
        Self::Isolated,
        Self::Cluster,
        Self::Contact,
        Self::Invariant,
        Self::Disk,
        Self::AttemptsLost,
        Self::Link,
        Self::LinkBusy,
        Self::DiskSlow,
        Self::Commits,
        Self::Certificate,
        Self::Quota,
        Self::ScheduleSlow,
        Self::StartSlow,
        Self::EventLog,
        Self::GpusIdle,
    ];

    /// As in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Isolated => "isolated",
            Self::Cluster => "cluster",
            Self::Contact => "contact",
            Self::Invariant => "invariant",
            Self::Disk => "disk",
            Self::AttemptsLost => "attempts-lost",
            Self::Link => "link",
            Self::LinkBusy => "link-busy",
            Self::DiskSlow => "disk-slow",
            Self::Commits => "commits",
            Self::Certificate => "certificate",
            Self::Quota => "quota",
            Self::ScheduleSlow => "schedule-slow",
            Self::StartSlow => "start-slow",
            Self::EventLog => "event-log",
            Self::GpusIdle => "gpus-idle",
            Self::Other => "other",
        }
    }

    /// One by its text.
    pub fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// How long it must hold before it is an incident, unless configured: as the rules in `deploy/prometheus` have it.
    pub fn holds(self) -> Span {
        match self {
            Self::Contact | Self::Invariant | Self::Disk | Self::EventLog => Span::ZERO,
            Self::Isolated | Self::Cluster => Span::secs(2),
            Self::Certificate => Span::secs(60),
            Self::Link | Self::Quota => Span::secs(120),
            Self::AttemptsLost | Self::Commits => Span::secs(300),
            Self::LinkBusy | Self::DiskSlow | Self::ScheduleSlow => Span::secs(600),
            Self::StartSlow => Span::secs(900),
            Self::GpusIdle | Self::Other => Span::secs(1_800),
        }
    }

    /// What to do about it.
    pub fn todo(self) -> &'static str {
        match self {
            Self::Isolated => {
                "its own network is the likely fault: check UDP, firewalls, `advertise`; ask a peer on the other side"
            }
            Self::Cluster => {
                "look at the machine; its jobs go on under their guards for their grace, then elsewhere; one that is gone for good: `starling member remove NAME`"
            }
            Self::Contact => {
                "too few homes of its contact answer: `starling clusters`, `starling links` there; its attempts stop when their grace is over"
            }
            Self::Invariant => {
                "`starling events --past --kind invariant`; keep the state folder and report it"
            }
            Self::Disk => "free space on the disk of the state folder; it takes jobs again by itself",
            Self::AttemptsLost => {
                "`starling events --past --kind job.lost --since 1h` names them and their clusters"
            }
            Self::Link => "check UDP in both directions and the path's load: `starling links`",
            Self::LinkBusy => "lower `timing.probe_share`, or limit what moves",
            Self::DiskSlow => "give the state folder a faster disk, or one of its own",
            Self::Commits => "homes are away or slow: `starling clusters`, `starling doctor`",
            Self::Certificate => "a member that holds the CA key must be reachable from it",
            Self::Quota => "`starling tenant show NAME`; raise the limit, or let the work wait",
            Self::ScheduleSlow => "`starling why ID` of a job that waits; `starling view`, `starling links`",
            Self::StartSlow => {
                "images and data are the usual reasons: `starling events --past --job ID` of a slow one"
            }
            Self::EventLog => "its disk is too slow or full",
            Self::GpusIdle => "`starling why ID` of a claim that waits there says what it lacks",
            Self::Other => "",
        }
    }
}

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Should be looked at.
    Warning,
    /// Somebody must look now.
    Critical,
    /// Of a newer version.
    #[serde(other)]
    Other,
}

impl Severity {
    /// As in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
            Self::Other => "other",
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Alert {
    /// What kind.
    pub kind: AlertKind,
    /// What it is about: a cluster, `a to b`, a tenant.
    pub subject: String,
    /// How much it matters.
    pub severity: Severity,
    /// One sentence with its figures.
    pub text: String,
}

impl Alert {
    /// The incident that it is, the same at every peer.
    pub fn id(&self) -> IncidentId {
        incident_id(self.kind, &self.subject)
    }
}

/// The id of what is wrong with something. The same whenever it happens again, so that a silence outlives a recovery.
pub fn incident_id(kind: AlertKind, subject: &str) -> IncidentId {
    let mut hash = digest::Context::new(&digest::SHA256);
    for part in ["incident", kind.as_str(), subject] {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let mut id = [0; 10];
    id.copy_from_slice(&hash.finish().as_ref()[..10]);
    IncidentId(id)
}

/// What was last said to people about one incident through one notifier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Which incident,
    pub id: IncidentId,
    /// its kind
    pub kind: AlertKind,
    /// and subject, for whoever says the end of one that it never saw.
    pub subject: String,
    /// Through which notifier.
    pub via: String,
    /// Counts what was said: odd when it was said that it began, even when it was said that it is over. The higher one
    /// is the newer one.
    pub n: u32,
    /// When.
    pub at: WallTime,
}

impl Mark {
    /// The last word was that it began.
    pub fn is_open(&self) -> bool {
        self.n % 2 == 1
    }
}

/// Nothing is said about some incidents until a time. Their end is said all the same to whom their beginning was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// An incident's id, a kind, or `kind:subject`.
    pub what: String,
    /// Until then; one that is over is kept for a while, so that it replaces an older one everywhere.
    pub until: WallTime,
    /// When it was made: the newer one holds.
    pub made: WallTime,
    /// Who made it.
    pub by: String,
}

impl Silence {
    /// It is about this.
    pub fn covers(&self, kind: AlertKind, subject: &str) -> bool {
        let what = self.what.as_str();
        what == kind.as_str()
            || what.strip_prefix(kind.as_str()).and_then(|rest| rest.strip_prefix(':')) == Some(subject)
            || what == incident_id(kind, subject).to_string()
    }
}

/// Facet `alerts`: what a peer finds wrong with itself, what it holds open, and what it knows of what was said.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AlertsReport {
    /// What only it can see.
    pub own: Vec<Alert>,
    /// Incidents that it holds open, and since when.
    pub open: Vec<(IncidentId, WallTime)>,
    /// Notifiers that it can send through.
    pub notifiers: Vec<String>,
    /// What was said.
    pub marks: Vec<Mark>,
    /// What shall not be said.
    pub silences: Vec<Silence>,
}

impl AlertsReport {
    /// Bounds of what is told: a facet's value is bounded.
    pub const OWN_MAX: usize = 12;
    /// Incidents told as open.
    pub const OPEN_MAX: usize = 64;
    /// Notifiers of one peer.
    pub const NOTIFIERS_MAX: usize = 8;
    /// Marks that are told and kept.
    pub const MARKS_MAX: usize = 40;
    /// Silences that are told and kept.
    pub const SILENCES_MAX: usize = 32;
    /// Characters of a text, of a subject or name.
    pub const TEXT_MAX: usize = 200;
    /// See above.
    pub const NAME_MAX: usize = 130;

    /// What is wrong with its size or texts; nothing where it may be believed.
    pub fn check(&self) -> Result<(), String> {
        for (what, n, max) in [
            ("own", self.own.len(), Self::OWN_MAX),
            ("open", self.open.len(), Self::OPEN_MAX),
            ("notifiers", self.notifiers.len(), Self::NOTIFIERS_MAX),
            ("marks", self.marks.len(), Self::MARKS_MAX),
            ("silences", self.silences.len(), Self::SILENCES_MAX),
        ] {
            if n > max {
                return Err(format!("{what} has {n} of at most {max}"));
            }
        }
        let alerts = self.own.iter().flat_map(|a| [(&a.subject, Self::NAME_MAX), (&a.text, Self::TEXT_MAX)]);
        let marks = self.marks.iter().flat_map(|m| [(&m.subject, Self::NAME_MAX), (&m.via, Self::NAME_MAX)]);
        let silences = self.silences.iter().flat_map(|s| [(&s.what, 200), (&s.by, Self::NAME_MAX)]);
        let notifiers = self.notifiers.iter().map(|n| (n, Self::NAME_MAX));
        for (text, max) in alerts.chain(marks).chain(silences).chain(notifiers) {
            if text.chars().count() > max || text.chars().any(char::is_control) {
                return Err("a text is too long or has control characters".into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::text::words;

    #[test]
    fn ids_are_the_same_everywhere_and_kinds_read_back() {
        // Fixed for ever: peers of different versions must mean the same incident.
        assert_eq!(incident_id(AlertKind::Cluster, "c3").to_string(), "3dn7tt3h45o2b4lo");
        assert_ne!(incident_id(AlertKind::Cluster, "c3"), incident_id(AlertKind::Cluster, "c4"));
        for kind in AlertKind::ALL {
            assert_eq!(AlertKind::named(kind.as_str()), Some(kind));
            assert_eq!(serde_json::to_string(&kind).expect("json"), format!("\"{}\"", kind.as_str()));
            assert!(!kind.todo().is_empty());
        }
        let newer: Alert = serde_json::from_str(
            r#"{"kind":"moon-phase","subject":"a","severity":"dire","text":"t","more":1}"#,
        )
        .expect("what a newer version says does not spoil the rest");
        assert_eq!((newer.kind, newer.severity), (AlertKind::Other, Severity::Other));
    }

    #[test]
    fn a_silence_covers_an_id_a_kind_or_one_subject() {
        let silence =
            |what: &str| Silence { what: what.into(), until: WallTime(9), made: WallTime(1), by: "x".into() };
        let id = incident_id(AlertKind::Link, "a to b").to_string();
        for (what, covers) in [
            ("link", true),
            ("link:a to b", true),
            ("link:a to c", false),
            ("cluster", false),
            ("link-busy", false),
            (id.as_str(), true),
        ] {
            assert_eq!(silence(what).covers(AlertKind::Link, "a to b"), covers, "{what}");
        }
        assert!(!silence("link").covers(AlertKind::LinkBusy, "a"));
    }

    #[test]
    fn what_is_told_is_bounded() {
        let alert = Alert {
            kind: AlertKind::Disk,
            subject: "a".into(),
            severity: Severity::Critical,
            text: words(&"x\n".repeat(1_000), AlertsReport::TEXT_MAX),
        };
        let mut report = AlertsReport { own: vec![alert; AlertsReport::OWN_MAX], ..AlertsReport::default() };
        assert_eq!(report.check(), Ok(()));
        report.own.push(report.own[0].clone());
        assert!(report.check().is_err());
        report.own.truncate(1);
        report.own[0].text = "a\u{1b}[31m".into();
        assert!(report.check().is_err());
    }
}
