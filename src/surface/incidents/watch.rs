//! The watch: one task that looks, keeps the book, and tells.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::facts::Measured;
use super::{Desk, Setup, durable, notify, one};
use crate::base::text::words;
use crate::base::{IncidentId, Instant, PeerName, Span, WallTime};
use crate::core::Now;
use crate::core::alerts::{Due, Line, Look, Seen, Turn, of_links, of_members, of_self};
use crate::core::api::Event;
use crate::model::alert::{Alert, AlertsReport, Mark};
use crate::model::config::{AlertsConfig, NotifierConfig};
use crate::model::report::{Liveness, Report, View};
use crate::runtime::PeerHandle;
use crate::surface::api::{Api, Watched};
use crate::surface::documents::{IncidentDocument, Notice, boottime_now, wall_now};

/// Between two looks.
const TICK: Duration = Duration::from_secs(1);
/// Between two measurements of itself.
const FACTS_EVERY: Span = Span::secs(15);
/// Between two looks at all links: as many as the square of the mesh.
const LINKS_EVERY: Span = Span::secs(10);
/// Notices that are under way at once.
const FLIGHTS_MAX: usize = 4;

type Key = (IncidentId, String, u32);
/// Living members by the notifiers that they can send through.
type Senders = BTreeMap<String, BTreeSet<PeerName>>;

/// A notice that was tried.
#[derive(Debug, Clone, Copy)]
struct Flight {
    tries: u32,
    /// Not before; none while one is under way.
    next: Option<Instant>,
}

struct Watch {
    api: Api,
    me: PeerName,
    rules: AlertsConfig,
    folder: Option<PathBuf>,
    measured: Measured,
    own: Vec<Alert>,
    links: Vec<Seen>,
    facts_at: Option<Instant>,
    links_at: Option<Instant>,
    line: Line,
    flights: BTreeMap<Key, Flight>,
    landed: mpsc::Sender<(Mark, Result<(), String>)>,
    /// Reports as last read, to see which are new.
    read: BTreeMap<PeerName, Arc<Report>>,
    said: Option<AlertsReport>,
}

/// Looks until `cancel`.
pub async fn watch(handle: Arc<dyn PeerHandle>, watched: Watched, setup: Setup, cancel: CancellationToken) {
    let me = handle.about().name;
    let api = Api::new(handle, watched);
    let (landed, mut landing) = mpsc::channel(FLIGHTS_MAX * 2);
    let mut watch = Watch {
        me,
        rules: setup.rules,
        folder: setup.folder,
        measured: Measured::default(),
        own: Vec::new(),
        links: Vec::new(),
        facts_at: None,
        links_at: None,
        line: Line::default(),
        flights: BTreeMap::new(),
        landed,
        read: BTreeMap::new(),
        said: None,
        api,
    };
    watch.recall().await;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let desk = watch.api.desk.clone();
    loop {
        tokio::select! { biased;
            () = cancel.cancelled() => return,
            Some((mark, done)) = landing.recv() => watch.land(&mark, done),
            () = desk.woken.notified() => {}
            _ = ticks.tick() => {}
        }
        watch.look().await;
    }
}

fn now() -> Now {
    Now { mono: boottime_now(), wall: wall_now() }
}

impl Watch {
    fn desk(&self) -> &Desk {
        &self.api.desk
    }

    /// What was kept over a restart.
    async fn recall(&mut self) {
        let Some(folder) = self.folder.clone() else { return };
        let kept = match tokio::task::spawn_blocking(move || durable::load(&folder)).await {
            Ok(Ok(kept)) => kept,
            Ok(Err(error)) => {
                return tracing::error!(%error, "incidents.json cannot be read: silences made here may be forgotten");
            }
            Err(_) => return,
        };
        let mut held = self.desk().held();
        for mark in &kept.marks {
            held.marks.take(mark);
        }
        for silence in &kept.silences {
            held.silences.take(silence, wall_now());
        }
    }

    async fn look(&mut self) {
        let at = now();
        let due = |last: Option<Instant>, every: Span| last.is_none_or(|last| at.mono.since(last) >= every);
        if due(self.facts_at, FACTS_EVERY) {
            self.facts_at = Some(at.mono);
            let facts = self.measured.facts(&self.api).await;
            self.own = of_self(&self.me, &facts, &self.rules);
        }
        let view = self.api.handle.view();
        if due(self.links_at, LINKS_EVERY) {
            self.links_at = Some(at.mono);
            self.links = of_links(&view, &self.rules);
        }
        self.hear(&view);
        let mut seen = of_members(&view, &self.me, &self.own);
        // A link is looked at seldom: what has changed since says nothing while its ends are not alive.
        seen.extend(self.links.iter().cloned());
        let turns = self.desk().held().book.step(at, &seen, view.isolated, &self.rules);
        for turn in &turns {
            self.note(turn);
        }
        let (open, senders) = elsewhere(&view, &self.me, &self.rules);
        {
            let mut held = self.api.desk.held();
            for (id, since) in &open {
                held.book.told(*id, *since);
            }
        }
        let open_elsewhere: BTreeSet<IncidentId> = open.into_iter().map(|(id, _)| id).collect();
        let due = {
            let held = self.api.desk.held();
            let look = Look {
                me: &self.me,
                book: &held.book,
                marks: &held.marks,
                silences: &held.silences,
                rules: &self.rules,
                senders: &senders,
                open_elsewhere: &open_elsewhere,
            };
            self.line.due(at, &look)
        };
        self.send(at, due).await;
        self.tell();
        self.save().await;
    }

    /// Takes in what other members have heard.
    fn hear(&mut self, view: &View) {
        let mut held = self.api.desk.held();
        let now = wall_now();
        self.read.retain(|name, _| view.members.contains_key(name));
        for (name, member) in view.members.iter().filter(|(name, _)| **name != self.me) {
            let Some(report) = &member.report else { continue };
            let old = self.read.get(name);
            let same = |old: &Arc<Report>| Arc::ptr_eq(old, report) || old.alerts == report.alerts;
            if old.is_some_and(same) {
                continue;
            }
            self.read.insert(name.clone(), report.clone());
            let Some(alerts) = &report.alerts else { continue };
            for mark in &alerts.marks {
                held.unsaved |= held.marks.take(mark);
            }
            for silence in &alerts.silences {
                held.unsaved |= held.silences.take(silence, now);
            }
        }
    }

    /// An event for the log.
    fn note(&self, turn: &Turn) {
        let (kind, i, what) = match turn {
            Turn::Opened(i) => ("incident.opened", i, "began"),
            Turn::Graver(i) => ("incident.graver", i, "is graver"),
            Turn::Recovered(i) => ("incident.recovered", i, "is over"),
        };
        let text = format!("{} {} ({}) {what}: {}", i.id, i.kind.as_str(), i.severity.as_str(), i.text);
        self.api.handle.note(Event::new(kind, None, text));
    }

    /// Starts what is due and not under way.
    async fn send(&mut self, at: Now, due: Vec<Due>) {
        let keys: BTreeSet<Key> = due.iter().map(|d| (d.mark.id, d.mark.via.clone(), d.mark.n)).collect();
        // What is no longer due was said by somebody else, or is over.
        self.flights.retain(|key, flight| flight.next.is_none() || keys.contains(key));
        for Due { mark } in due {
            let key = (mark.id, mark.via.clone(), mark.n);
            let flight = self.flights.get(&key).copied();
            let waits = flight.is_some_and(|f| f.next.is_none_or(|next| next > at.mono));
            let under_way = self.flights.values().filter(|f| f.next.is_none()).count();
            let notifier = self.rules.notifiers.iter().find(|n| n.name == mark.via).cloned();
            let Some(notifier) = notifier.filter(|_| !waits && under_way < FLIGHTS_MAX) else { continue };
            self.flights.insert(key, Flight { tries: flight.map_or(0, |f| f.tries), next: None });
            tokio::spawn(deliver(self.api.clone(), self.me.clone(), notifier, mark, self.landed.clone()));
        }
    }

    /// A try has ended.
    fn land(&mut self, mark: &Mark, done: Result<(), String>) {
        let key = (mark.id, mark.via.clone(), mark.n);
        let tries = self.flights.remove(&key).map_or(0, |f| f.tries) + 1;
        let word = if mark.is_open() { "began" } else { "is over" };
        let what = format!("{} {} {}", mark.id, mark.kind.as_str(), mark.subject);
        let mut held = self.api.desk.held();
        let (kind, text) = match done {
            Ok(()) => {
                held.sent.taken += 1;
                held.unsaved |= held.marks.take(mark);
                ("incident.told", format!("{what}: {} was told that it {word}", mark.via))
            }
            Err(why) => {
                held.sent.failed += 1;
                let next = notify::pause(tries);
                self.flights.insert(key, Flight { tries, next: Some(boottime_now() + next) });
                let why: String = why.chars().take(200).collect();
                (
                    "incident.not_told",
                    format!("{what}: {} was not told: {why}; tried again in {next}", mark.via),
                )
            }
        };
        drop(held);
        self.api.handle.note(Event::new(kind, None, text));
    }

    /// Gossips what changed.
    fn tell(&mut self) {
        let held = self.api.desk.held();
        let mut open: Vec<_> = held.book.open().map(|i| (i.severity, i.id, i.opened)).collect();
        open.sort_by_key(|(severity, id, _)| (std::cmp::Reverse(*severity), *id));
        let report = AlertsReport {
            own: self.own.clone(),
            open: open.into_iter().map(|(_, id, at)| (id, at)).take(AlertsReport::OPEN_MAX).collect(),
            notifiers: self.rules.notifiers.iter().map(|n| n.name.clone()).collect(),
            marks: held.marks.all().cloned().collect(),
            silences: held.silences.all().cloned().collect(),
        };
        drop(held);
        if self.said.as_ref().is_some_and(|said| same_word(said, &report)) {
            return;
        }
        // A peer that has nothing to say says nothing: most never do.
        if self.said.is_none() && report == AlertsReport::default() {
            return;
        }
        self.api.handle.tell_alerts(report.clone());
        self.said = Some(report);
    }

    async fn save(&self) {
        let Some(folder) = self.folder.clone() else { return };
        let kept = {
            let mut held = self.api.desk.held();
            if !std::mem::take(&mut held.unsaved) {
                return;
            }
            durable::Kept {
                marks: held.marks.all().cloned().collect(),
                silences: held.silences.all().cloned().collect(),
            }
        };
        let saved = tokio::task::spawn_blocking(move || durable::save(&folder, &kept)).await;
        if !matches!(saved, Ok(Ok(()))) {
            self.api.desk.held().unsaved = true;
            tracing::warn!(?saved, "marks and silences were not put on disk");
        }
    }
}

/// Figures in the texts of a peer's own alerts change all the time: that alone is not said again.
fn same_word(a: &AlertsReport, b: &AlertsReport) -> bool {
    let own = |r: &AlertsReport| -> Vec<_> {
        r.own.iter().map(|a| (a.kind, a.subject.clone(), a.severity)).collect()
    };
    let rest = |r: &AlertsReport| AlertsReport { own: Vec::new(), ..r.clone() };
    own(a) == own(b) && rest(a) == rest(b)
}

/// What other living members hold open, and who can send through which notifier, this peer too.
fn elsewhere(view: &View, me: &PeerName, rules: &AlertsConfig) -> (Vec<(IncidentId, WallTime)>, Senders) {
    let mut open = Vec::new();
    let mut senders = Senders::new();
    for notifier in &rules.notifiers {
        senders.entry(notifier.name.clone()).or_default().insert(me.clone());
    }
    let others = view.members.values().filter(|m| m.peer != *me && m.liveness == Liveness::Alive);
    for member in others {
        let Some(alerts) = member.report.as_ref().and_then(|r| r.alerts.as_ref()) else { continue };
        open.extend(alerts.open.iter().copied());
        for via in &alerts.notifiers {
            if let Some(line) = senders.get_mut(via) {
                line.insert(member.peer.clone());
            }
        }
    }
    (open, senders)
}

/// Makes the notice with what is known now, and tries it once.
async fn deliver(
    api: Api,
    me: PeerName,
    notifier: NotifierConfig,
    mark: Mark,
    landed: mpsc::Sender<(Mark, Result<(), String>)>,
) {
    let at = wall_now();
    let status = if mark.is_open() { "open" } else { "recovered" };
    let known = one(&api, mark.id, at).await.filter(|d| mark.is_open() || d.recovered_at_ms.is_some());
    let mut incident = known.unwrap_or_else(|| ended(&mark, at.0));
    // What a person reads at night, not an inventory.
    if let Some(jobs) = &mut incident.jobs {
        jobs.jobs.truncate(100);
    }
    let notice = Notice {
        version: 1,
        status: status.into(),
        key: format!("{}/{}/{}", mark.id, mark.via, mark.n),
        mesh: api.handle.about().mesh,
        peer: me,
        at_ms: at.0,
        incident,
    };
    let done = match serde_json::to_vec(&notice) {
        Ok(bytes) => notify::tell(&notifier, bytes.into(), &notice.key).await,
        Err(e) => Err(e.to_string()),
    };
    // The watch ends before its flights: then nobody waits for them.
    let _ = landed.send((Mark { at: wall_now(), ..mark }, done)).await;
}

/// An incident that this peer never saw, or only before its restart: what its mark says of it.
fn ended(mark: &Mark, at_ms: u64) -> IncidentDocument {
    IncidentDocument {
        id: mark.id,
        kind: mark.kind,
        subject: words(&mark.subject, AlertsReport::NAME_MAX),
        severity: crate::model::alert::Severity::Info,
        text: format!("{} {}", mark.kind.as_str(), mark.subject),
        todo: String::new(),
        opened_at_ms: mark.at.0,
        updated_at_ms: at_ms,
        recovered_at_ms: Some(at_ms),
        under: None,
        also: Vec::new(),
        silenced_until_ms: None,
        notices: Vec::new(),
        jobs: None,
    }
}
