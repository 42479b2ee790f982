//! What is wrong, from a view and from what a peer measures of itself.

use std::collections::BTreeMap;

use crate::base::text::words;
use crate::base::{Bytes, IncidentId, PeerName, Span};
use crate::model::alert::{Alert, AlertKind, AlertsReport, Severity, incident_id};
use crate::model::config::AlertsConfig;
use crate::model::report::{Liveness, MemberView, View};

/// Pairs of peers that are named at most; a mesh whose every link is bad has one reason, not thousands.
const LINKS_MAX: usize = 32;

/// An alert, and the incident that explains it, if one does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What is wrong.
    pub alert: Alert,
    /// It is part of this one: no incident of its own is opened for it.
    pub under: Option<IncidentId>,
}

fn alert(kind: AlertKind, subject: &str, severity: Severity, text: String) -> Alert {
    let subject = words(subject, AlertsReport::NAME_MAX);
    Alert { kind, subject, severity, text: words(&text, AlertsReport::TEXT_MAX) }
}

/// What is wrong with the members: what is seen of them, and what they say of themselves.
pub fn of_members(view: &View, me: &PeerName, own: &[Alert]) -> Vec<Seen> {
    let isolated = view.isolated.then(|| incident_id(AlertKind::Isolated, me.as_str()));
    let mut out: Vec<Seen> = Vec::new();
    if view.isolated {
        let text = format!("{me} reaches no other member: what it says of them is old");
        let alert = alert(AlertKind::Isolated, me.as_str(), Severity::Critical, text);
        out.push(Seen { alert, under: None });
    }
    out.extend(own.iter().map(|a| Seen { alert: a.clone(), under: None }));
    for (name, member) in view.members.iter().filter(|(name, _)| *name != me) {
        let away = match member.liveness {
            Liveness::Alive => None,
            Liveness::Suspect => Some((Severity::Warning, "is not heard; it may be gone, or only slow")),
            Liveness::Lost => Some((Severity::Critical, "is lost: not heard for long, or it said goodbye")),
        };
        let mut under = isolated;
        if let Some((severity, text)) = away {
            let alert = alert(AlertKind::Cluster, name.as_str(), severity, format!("{name} {text}"));
            under = under.or(Some(alert.id()));
            out.push(Seen { alert, under: isolated });
        }
        out.extend(said(name, member).map(|alert| Seen { alert, under }));
    }
    out
}

/// What a member says of itself. Only itself: what it says of others is not taken from it.
fn said<'a>(name: &'a PeerName, member: &'a MemberView) -> impl Iterator<Item = Alert> + 'a {
    let own = member.report.iter().filter_map(|r| r.alerts.as_ref()).flat_map(|a| &a.own);
    own.filter_map(move |a| match a.kind {
        AlertKind::Isolated | AlertKind::Cluster | AlertKind::Link | AlertKind::Other => None,
        AlertKind::Quota => Some(a.clone()),
        _ => Some(Alert { subject: name.to_string(), ..a.clone() }),
    })
}

/// What is wrong with the links between living members.
pub fn of_links(view: &View, rules: &AlertsConfig) -> Vec<Seen> {
    let alive: BTreeMap<&PeerName, &MemberView> =
        view.members.iter().filter(|(_, m)| m.liveness == Liveness::Alive).collect();
    let direct = |from: &PeerName, to: &PeerName| {
        let report = alive.get(from)?.report.as_ref()?;
        // Peers sort their links by name; one that does not is searched all the same.
        report.links.iter().find(|l| l.to == *to).map(|l| l.direct)
    };
    let mut out = Vec::new();
    for (from, member) in &alive {
        for link in member.report.iter().flat_map(|r| &r.links) {
            if !alive.contains_key(&link.to) || out.len() >= LINKS_MAX {
                continue;
            }
            let subject = format!("{from} to {}", link.to);
            let loss = link.loss_ppm / 1_000;
            let text = if link.direct && loss > rules.link_loss_milli {
                Some(format!("{subject}: {}.{} % of packets are lost", loss / 10, loss % 10))
            } else if link.direct && direct(&link.to, from) == Some(false) {
                Some(format!("{subject} works, and not back"))
            } else {
                None
            };
            if let Some(text) = text {
                let alert = alert(AlertKind::Link, &subject, Severity::Warning, text);
                out.push(Seen { alert, under: None });
            }
        }
    }
    out
}

/// What only the peer itself can see.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Until its certificate ends.
    pub certificate_left: Span,
    /// Since the newest counted renewal of its contact; none where it has no contact.
    pub contact_age: Option<Span>,
    /// Free on the disk of its state folder; none where it was not measured.
    pub disk_free: Option<Bytes>,
    /// It refuses new records.
    pub disk_full: bool,
    /// Used and all GPUs of its cluster.
    pub gpus: (u64, u64),
    /// Claims that wait there.
    pub queued: u64,
    /// What happened lately.
    pub window: Window,
    /// Tenants that have limits.
    pub tenants: Vec<TenantUse>,
}

/// What happened in the last ten minutes, or since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Window {
    /// Nineteen of twenty placements took at most this.
    pub schedule: Option<Span>,
    /// Nineteen of twenty programs started within this.
    pub start: Option<Span>,
    /// Ninety-nine of a hundred commits took at most this.
    pub commit: Option<Span>,
    /// Changes of records that found no majority in time, in a thousand seconds.
    pub timeouts: u64,
    /// Placements,
    pub placed: u64,
    /// and attempts lost with their cluster.
    pub lost: u64,
    /// Lines that the event log dropped.
    pub gaps: u64,
    /// Violated invariants.
    pub invariants: u64,
    /// Use of the best link, thousandths; none where no bandwidth was measured.
    pub link_use_milli: Option<u64>,
}

/// How much of its limit a tenant uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantUse {
    /// Which.
    pub tenant: String,
    /// Thousandths of its limit that this cluster alone uses.
    pub used_milli: u64,
    /// Why this cluster has not got more of it.
    pub waits: Option<String>,
}

/// Changes without a majority in a thousand seconds that are an alert: 0.05 a second.
const TIMEOUTS: u64 = 50;
/// So few placements say nothing of a share.
const PLACED_MIN: u64 = 10;

/// What is wrong with the peer itself.
pub fn of_self(me: &PeerName, facts: &Facts, rules: &AlertsConfig) -> Vec<Alert> {
    use Severity::{Critical, Info, Warning};
    let mut out = Vec::new();
    let mut add = |kind, severity, text: String| out.push(alert(kind, me.as_str(), severity, text));
    let w = &facts.window;
    if w.invariants > 0 {
        add(AlertKind::Invariant, Critical, format!("{me} saw something that must never happen"));
    }
    if let Some(age) = facts.contact_age.filter(|age| *age > rules.contact_age) {
        add(AlertKind::Contact, Critical, format!("the contact of {me} has not been renewed for {age}"));
    }
    match facts.disk_free {
        _ if facts.disk_full => {
            add(AlertKind::Disk, Critical, format!("{me} refuses new jobs: its disk is nearly full"));
        }
        Some(free) if free < rules.disk_low => {
            add(AlertKind::Disk, Warning, format!("the disk of {me} has {free} left"));
        }
        _ => {}
    }
    if facts.certificate_left < rules.certificate {
        let severity = if facts.certificate_left < Span::secs(86_400) { Critical } else { Warning };
        let text =
            format!("the certificate of {me} ends in {}: renewal does not work", facts.certificate_left);
        add(AlertKind::Certificate, severity, text);
    }
    if let Some(commit) = w.commit.filter(|c| *c >= rules.commit) {
        add(AlertKind::DiskSlow, Warning, format!("one commit in a hundred at {me} takes {commit} or more"));
    }
    if w.timeouts > TIMEOUTS {
        let text = format!("changes of records at {me} find no majority in time, {} in 1000 s", w.timeouts);
        add(AlertKind::Commits, Warning, text);
    }
    if w.placed >= PLACED_MIN && w.lost * 1_000 > w.placed * u64::from(rules.lost_milli) {
        let text = format!("{} of {} placements by {me} were lost with their cluster", w.lost, w.placed);
        add(AlertKind::AttemptsLost, Critical, text);
    }
    if let Some(p95) = w.schedule.filter(|p| *p >= rules.schedule) {
        let text = format!("one job in twenty waits {p95} or more for a placement by {me}");
        add(AlertKind::ScheduleSlow, Warning, text);
    }
    if let Some(p95) = w.start.filter(|p| *p >= rules.start) {
        let text = format!("one program in twenty at {me} starts {p95} or more after its admission");
        add(AlertKind::StartSlow, Warning, text);
    }
    if let Some(share) = w.link_use_milli.filter(|u| *u > u64::from(rules.link_use_milli)) {
        let text = format!("{me} sends at {} % of what its best link carries", share / 10);
        add(AlertKind::LinkBusy, Warning, text);
    }
    if w.gaps > 0 {
        add(AlertKind::EventLog, Warning, format!("the event log of {me} has gaps: {} lines", w.gaps));
    }
    let (used, all) = facts.gpus;
    if facts.queued > 0 && all > 0 && used * 1_000 < all * u64::from(rules.gpus_used_milli) {
        let text = format!("{used} of {all} GPUs at {me} are used while {} claims wait", facts.queued);
        add(AlertKind::GpusIdle, Info, text);
    }
    // A quota is the tenant's: clusters that see one see the same incident.
    for t in &facts.tenants {
        let text = match &t.waits {
            Some(why) => format!("tenant {}: {why}", t.tenant),
            None if t.used_milli >= u64::from(rules.quota_milli) => {
                format!("tenant {} uses {} % of its limit at {me}", t.tenant, t.used_milli / 10)
            }
            None => continue,
        };
        out.push(alert(AlertKind::Quota, &t.tenant, Warning, text));
    }
    // The gravest are told of.
    out.sort_by(|a, b| b.severity.cmp(&a.severity).then(a.kind.cmp(&b.kind)));
    out.truncate(AlertsReport::OWN_MAX);
    out
}
