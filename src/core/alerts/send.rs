//! Who tells people, and what was told: one member of those that can, the next one later.
//!
//! Members that can send through a notifier stand in line for an incident in an order that all compute alike. The first
//! tells; each next one waits `stagger` longer, so that what the first did not do is done. What was told is a mark, which
//! travels by gossip. Two may tell the same where the mark does not reach the second one in time: at least once, not
//! exactly once.

use std::collections::{BTreeMap, BTreeSet};

use ring::digest;

use super::book::{Book, Incident};
use crate::base::{IncidentId, Instant, PeerName, Span, WallTime};
use crate::core::Now;
use crate::model::alert::{AlertKind, AlertsReport, Mark, Silence};
use crate::model::config::{AlertsConfig, NotifierConfig};

/// A place in line counts when it has been the same for so long: views differ for a moment.
const SETTLE: Span = Span::secs(2);
/// Who has looked for less than this does not say that something is over: it may only not have seen it yet.
const LOOKED_MIN: Span = Span::secs(20);
/// A silence that is over is remembered so long, that it may replace an older one everywhere.
const OVER_KEPT_MS: u64 = 86_400_000;

/// The members in the order in which they tell of an incident through a notifier.
pub fn order<'a>(
    id: IncidentId,
    via: &str,
    members: impl IntoIterator<Item = &'a PeerName>,
) -> Vec<&'a PeerName> {
    let place = |name: &PeerName| {
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(&id.0);
        for part in [via, name.as_str()] {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let mut out = [0; 32];
        out.copy_from_slice(hash.finish().as_ref());
        out
    };
    let mut members: Vec<&PeerName> = members.into_iter().collect();
    members.sort_by_cached_key(|name| place(name));
    members
}

/// What was told, newest word each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marks(BTreeMap<(IncidentId, String), Mark>);

impl Marks {
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Mark> {
        self.0.values()
    }

    /// Of one incident.
    pub fn of(&self, id: IncidentId) -> impl Iterator<Item = &Mark> {
        self.0.range((id, String::new())..).take_while(move |((of, _), _)| *of == id).map(|(_, m)| m)
    }

    /// How often something was said.
    pub fn n(&self, id: IncidentId, via: &str) -> u32 {
        self.0.get(&(id, via.to_owned())).map_or(0, |m| m.n)
    }

    /// Takes one in, if it is newer. True if it was.
    pub fn take(&mut self, mark: &Mark) -> bool {
        if self.n(mark.id, &mark.via) >= mark.n {
            return false;
        }
        self.0.insert((mark.id, mark.via.clone()), mark.clone());
        while self.0.len() > AlertsReport::MARKS_MAX {
            // What is over goes first, the oldest of it.
            let oldest = self.0.iter().min_by_key(|(_, m)| (m.is_open(), m.at)).map(|(k, _)| k.clone());
            oldest.map(|key| self.0.remove(&key));
        }
        true
    }
}

/// What shall not be told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Silences(BTreeMap<String, Silence>);

impl Silences {
    /// All of them, also those that are over.
    pub fn all(&self) -> impl Iterator<Item = &Silence> {
        self.0.values()
    }

    /// Takes one in, if it is newer. True if it was; false also where there is no room for it.
    pub fn take(&mut self, silence: &Silence, now: WallTime) -> bool {
        self.0.retain(|_, s| s.until.0.saturating_add(OVER_KEPT_MS) > now.0);
        let known = self.0.get(&silence.what);
        if silence.until.0.saturating_add(OVER_KEPT_MS) <= now.0
            || known.is_some_and(|k| (k.made, k.until) >= (silence.made, silence.until))
        {
            return false;
        }
        if known.is_none() && self.0.len() >= AlertsReport::SILENCES_MAX {
            let over = self.0.values().find(|s| s.until <= now).map(|s| s.what.clone());
            match over {
                Some(what) => drop(self.0.remove(&what)),
                None => return false,
            }
        }
        self.0.insert(silence.what.clone(), silence.clone());
        true
    }

    /// Until when nothing is said about this.
    pub fn until(&self, kind: AlertKind, subject: &str, now: WallTime) -> Option<WallTime> {
        let covering = self.0.values().filter(|s| s.until > now && s.covers(kind, subject));
        covering.map(|s| s.until).max()
    }
}

/// Something that this peer shall say now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// The mark that stands for it once it is said.
    pub mark: Mark,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    since: Instant,
    place: usize,
    place_since: Instant,
}

/// What this peer waits to say.
#[derive(Debug, Clone, Default)]
pub struct Line {
    waiting: BTreeMap<(IncidentId, String, u32), Wait>,
}

/// What is looked at to know what is due.
pub struct Look<'a> {
    /// This peer.
    pub me: &'a PeerName,
    /// Its incidents.
    pub book: &'a Book,
    /// What was said.
    pub marks: &'a Marks,
    /// What shall not be said.
    pub silences: &'a Silences,
    /// When.
    pub rules: &'a AlertsConfig,
    /// Living members, this one too, by the notifiers that they can send through.
    pub senders: &'a BTreeMap<String, BTreeSet<PeerName>>,
    /// Incidents that another living member holds open.
    pub open_elsewhere: &'a BTreeSet<IncidentId>,
}

impl Line {
    /// What is due now.
    pub fn due(&mut self, now: Now, look: &Look<'_>) -> Vec<Due> {
        let mut wanted: BTreeMap<(IncidentId, String, u32), Mark> = BTreeMap::new();
        for notifier in &look.rules.notifiers {
            let open = look.book.open().filter(|i| begins(now, i, notifier, look));
            let begun = open.map(|i| (i.id, i.kind, i.subject.clone()));
            let marked = look.marks.all().filter(|m| m.via == notifier.name && ends(now, m, look));
            let over = marked.map(|m| (m.id, m.kind, m.subject.clone()));
            for (id, kind, subject) in begun.chain(over) {
                let n = look.marks.n(id, &notifier.name).saturating_add(1);
                let via = notifier.name.clone();
                wanted.insert((id, via.clone(), n), Mark { id, kind, subject, via, n, at: now.wall });
            }
        }
        self.waiting.retain(|key, _| wanted.contains_key(key));
        let mut due = Vec::new();
        for (key, mark) in wanted {
            let senders = look.senders.get(&mark.via).into_iter().flatten();
            let line = order(mark.id, &mark.via, senders);
            let place = line.iter().position(|m| *m == look.me).unwrap_or(line.len());
            let fresh = Wait { since: now.mono, place, place_since: now.mono };
            let wait = self.waiting.entry(key).or_insert(fresh);
            if wait.place != place {
                (wait.place, wait.place_since) = (place, now.mono);
            }
            let turn = look.rules.stagger.scale(place as u64, 1);
            if now.mono.since(wait.since) >= turn && now.mono.since(wait.place_since) >= SETTLE {
                due.push(Due { mark });
            }
        }
        due
    }
}

/// It is to be said that it began.
fn begins(now: Now, incident: &Incident, notifier: &NotifierConfig, look: &Look<'_>) -> bool {
    incident.under.is_none()
        && incident.severity >= notifier.severity
        && (notifier.kinds.is_empty() || notifier.kinds.contains(&incident.kind))
        && now.mono.since(incident.grave_since) >= look.rules.notify_after
        && look.marks.n(incident.id, &notifier.name).is_multiple_of(2)
        && look.silences.until(incident.kind, &incident.subject, now.wall).is_none()
}

/// It is to be said that it is over: nobody who is heard sees it any more.
fn ends(now: Now, mark: &Mark, look: &Look<'_>) -> bool {
    mark.is_open()
        && !look.book.holds(mark.id)
        && !look.open_elsewhere.contains(&mark.id)
        && look.book.looked_for(now.mono) >= LOOKED_MIN
}
