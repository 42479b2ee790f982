//! Which alerts are incidents, since when, and what hangs under them.

use std::collections::{BTreeMap, VecDeque};

use super::observe::Seen;
use crate::base::{IncidentId, Instant, Span, WallTime};
use crate::core::Now;
use crate::model::alert::{Alert, AlertKind, Severity};
use crate::model::config::AlertsConfig;

/// Incidents that are open at once; more of them have one reason.
const OPEN_MAX: usize = 512;
/// Incidents that are over, the newest.
const PAST_MAX: usize = 200;
/// Alerts that hang under one incident.
const ALSO_MAX: usize = 64;
/// What others say of its begin is taken from so far back.
const BEFORE_MAX_MS: u64 = 3_600_000;

/// Something that is wrong, or was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incident {
    /// The same at every peer, and again when it happens again.
    pub id: IncidentId,
    /// What kind.
    pub kind: AlertKind,
    /// What it is about.
    pub subject: String,
    /// How much it matters now; of one that is over, at its worst.
    pub severity: Severity,
    /// One sentence.
    pub text: String,
    /// When it began, as the first peer that still sees it says.
    pub opened: WallTime,
    /// When its text or severity last changed.
    pub updated: WallTime,
    /// When it was over.
    pub recovered: Option<WallTime>,
    /// It is explained by this one.
    pub under: Option<IncidentId>,
    /// What it explains.
    pub also: Vec<Alert>,
    /// Since when it has mattered as much, here.
    pub(super) grave_since: Instant,
    seen_at: Instant,
}

/// What changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// It began.
    Opened(Incident),
    /// It matters more now.
    Graver(Incident),
    /// It is over.
    Recovered(Incident),
}

/// The incidents of one peer.
#[derive(Debug, Clone, Default)]
pub struct Book {
    began: Option<Instant>,
    pending: BTreeMap<IncidentId, Instant>,
    open: BTreeMap<IncidentId, Incident>,
    past: VecDeque<Incident>,
}

impl Book {
    /// Open incidents.
    pub fn open(&self) -> impl Iterator<Item = &Incident> {
        self.open.values()
    }

    /// Those that are over, the newest first.
    pub fn past(&self) -> impl Iterator<Item = &Incident> {
        self.past.iter()
    }

    /// One that is open, or the last time it was.
    pub fn get(&self, id: IncidentId) -> Option<&Incident> {
        self.open.get(&id).or_else(|| self.past.iter().find(|i| i.id == id))
    }

    /// It is open, or may be in a moment.
    pub fn holds(&self, id: IncidentId) -> bool {
        self.open.contains_key(&id) || self.pending.contains_key(&id)
    }

    /// How long this peer has looked.
    pub fn looked_for(&self, now: Instant) -> Span {
        self.began.map_or(Span::ZERO, |began| now.since(began))
    }

    /// Another member holds it open since then.
    pub fn told(&mut self, id: IncidentId, since: WallTime) {
        if let Some(incident) = self.open.get_mut(&id)
            && since < incident.opened
            && incident.opened.0 - since.0 < BEFORE_MAX_MS
        {
            incident.opened = since;
        }
    }

    /// Takes in what is seen now.
    pub fn step(&mut self, now: Now, seen: &[Seen], isolated: bool, rules: &AlertsConfig) -> Vec<Turn> {
        self.began.get_or_insert(now.mono);
        let mut turns = Vec::new();
        let pending = std::mem::take(&mut self.pending);
        let mut also: BTreeMap<IncidentId, Vec<Alert>> = BTreeMap::new();
        for one in seen {
            let id = one.alert.id();
            if let Some(parent) = one.under {
                also.entry(parent).or_default().push(one.alert.clone());
            }
            if let Some(incident) = self.open.get_mut(&id) {
                turns.extend(incident.refresh(now, one).then(|| Turn::Graver(incident.clone())));
                continue;
            }
            // Who is cut off knows nothing new of others; what is explained is no incident of its own.
            let not_new = one.under.is_some() || (isolated && one.alert.kind != AlertKind::Isolated);
            if not_new || self.open.len() >= OPEN_MAX {
                continue;
            }
            let first = pending.get(&id).copied().unwrap_or(now.mono);
            if now.mono.since(first) < rules.holds(one.alert.kind) {
                self.pending.insert(id, first);
                continue;
            }
            let held = now.mono.since(first).as_millis();
            let incident = Incident::new(now, WallTime(now.wall.0.saturating_sub(held)), one);
            turns.push(Turn::Opened(incident.clone()));
            self.open.insert(id, incident);
        }
        for (id, incident) in &mut self.open {
            let mut alerts = also.remove(id).unwrap_or_default();
            alerts.truncate(ALSO_MAX);
            if incident.seen_at == now.mono {
                incident.also = alerts;
            } else if isolated && incident.kind != AlertKind::Isolated {
                // Neither seen nor over: nobody knows from here.
                incident.seen_at = now.mono;
            }
        }
        let over = |i: &Incident| now.mono.since(i.seen_at) >= rules.recover_after;
        let ids: Vec<IncidentId> = self.open.values().filter(|i| over(i)).map(|i| i.id).collect();
        for id in ids {
            let Some(mut incident) = self.open.remove(&id) else { continue };
            incident.recovered = Some(now.wall);
            incident.updated = now.wall;
            self.past.retain(|p| p.id != id || p.opened != incident.opened);
            self.past.push_front(incident.clone());
            self.past.truncate(PAST_MAX);
            turns.push(Turn::Recovered(incident));
        }
        turns
    }
}

impl Incident {
    fn new(now: Now, opened: WallTime, seen: &Seen) -> Self {
        let a = &seen.alert;
        Self {
            id: a.id(),
            kind: a.kind,
            subject: a.subject.clone(),
            severity: a.severity,
            text: a.text.clone(),
            opened,
            updated: now.wall,
            recovered: None,
            under: seen.under,
            also: Vec::new(),
            grave_since: now.mono,
            seen_at: now.mono,
        }
    }

    /// Takes in how it is now. True if it matters more than before.
    fn refresh(&mut self, now: Now, seen: &Seen) -> bool {
        self.under = seen.under;
        // Several say it of themselves (a quota): the gravest word holds.
        if self.seen_at == now.mono && seen.alert.severity <= self.severity {
            return false;
        }
        self.seen_at = now.mono;
        let graver = seen.alert.severity > self.severity;
        if seen.alert.severity != self.severity {
            self.updated = now.wall;
            self.severity = seen.alert.severity;
        }
        if graver {
            self.grave_since = now.mono;
        }
        self.text.clone_from(&seen.alert.text);
        graver
    }
}
