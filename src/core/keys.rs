//! Idempotency keys: the same key gives the same job, whichever peer is asked.
//!
//! A peer knows a key by its own row (it minted or found the job) or by a record that it holds as a home. Before it mints
//! a job under a key that it does not know it asks every other member; two that ask for one key at once hear of each
//! other, and the one whose name sorts first goes first. A home set that could have taken the job unseen, because too many
//! of it do not answer, is a refusal. See docs/decisions/idempotency-keys.md.

use std::collections::BTreeMap;
use std::sync::Arc;

use ring::digest;
use serde::{Deserialize, Serialize};

use super::acceptor::{Value, ValueError};
use super::api::{ClientError, Now, Table, Write};
use super::client::Submit;
use super::message::{ASKS_KEYS, KeyKnown, KeyWord, Message, RecordKey};
use super::peer::{Peer, Timer};
use crate::base::{Instant, JobId, KeyId, PeerName, Span, WallTime};
use crate::model::JobRecord;
use crate::model::record::key_id;
use crate::model::report::Liveness;
use crate::model::spec::JobSpec;

/// An idempotency key is kept this long by the time of day (milliseconds), and by the clock that nobody sets;
pub(super) const KEPT_MS: u64 = 24 * 3600 * 1000;
const KEPT_AT_LEAST: Span = Span::secs(3600);
/// and at most so many.
const ROWS_MAX: usize = 200_000;
/// Who has not answered is asked again this often,
const ASK_EVERY: Span = Span::millis(250);
/// who asks for the same key itself as often, since it is soon done;
const YIELD_EVERY: Span = Span::millis(50);
/// who says nothing for this long counts as silent,
const SILENT_AFTER: Span = Span::secs(1);
/// and a peer that goes first has this long.
const YIELD_FOR: Span = Span::secs(6);
/// A peer that wakes this late has slept.
const SLEPT: Span = Span::millis(500);
/// Submits that wait for one key's question.
const WAITING_MAX: usize = 256;
/// Members that are named in a refusal.
const NAMED_MAX: usize = 5;

/// What a key stands for.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct KeyRow {
    record: JobRecord,
    spec_hash: [u8; 32],
    at: WallTime,
    /// In memory since then.
    #[serde(skip)]
    since: Instant,
    /// Its row's key on disk.
    #[serde(skip)]
    row: Vec<u8>,
}

/// What was heard of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// No word yet.
    No,
    /// It asks for the key itself, and goes first.
    Asks,
    /// It knows of no job.
    Nothing,
}

/// The question for one key.
struct Asking {
    tenant: String,
    begun: Instant,
    next: Option<Instant>,
    waiting: Vec<Submit>,
    /// By member: the number of the newest question, and what was answered to that one.
    heard: BTreeMap<PeerName, (u64, Heard)>,
}

/// Keys known here, and those that are asked for.
#[derive(Default)]
pub(super) struct Keys {
    rows: BTreeMap<KeyId, KeyRow>,
    asking: BTreeMap<KeyId, Asking>,
    started: Instant,
    counter: u64,
}

fn row_key(tenant: &str, key: &str) -> Vec<u8> {
    format!("key/{tenant}/{key}").into_bytes()
}

fn spec_hash(spec: &JobSpec) -> [u8; 32] {
    let bytes = serde_json::to_vec(spec).expect("a spec has only plain fields");
    digest::digest(&digest::SHA256, &bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The same was asked for. Of a reservation from now on, "now" is another moment at every try.
fn same_asked(known: &JobRecord, spec: &JobSpec, now: WallTime) -> bool {
    if known.spec == *spec {
        return true;
    }
    let (Some(old), Some(new)) = (&known.spec.reserve, &spec.reserve) else { return false };
    let at_once = old.begins_at_once(known.submitted_at) && new.begins_at_once(now);
    let same_end = old.until == new.until || old.length() == new.length();
    let with_old = JobSpec { reserve: Some(old.clone()), ..spec.clone() };
    at_once && same_end && old.at == new.at && known.spec == with_old
}

impl Keys {
    pub fn recover(meta: &BTreeMap<Vec<u8>, Vec<u8>>, now: Instant) -> Result<Self, ValueError> {
        let mut keys = Keys { started: now, ..Keys::default() };
        for (key, bytes) in meta {
            let Some(rest) = std::str::from_utf8(key).ok().and_then(|k| k.strip_prefix("key/")) else {
                continue;
            };
            let Some((tenant, name)) = rest.split_once('/') else { continue };
            let mut row: KeyRow =
                serde_json::from_slice(bytes).map_err(|e| ValueError::Malformed(e.to_string()))?;
            (row.since, row.row) = (now, key.clone());
            keys.rows.insert(key_id(tenant, name), row);
        }
        Ok(keys)
    }
}

/// A caller's retry comes within minutes: one step of the time of day must not make it a second job.
fn is_over(now: Now, at: WallTime, since: Instant) -> bool {
    now.wall.0.saturating_sub(at.0) > KEPT_MS && now.mono.since(since) > KEPT_AT_LEAST
}

impl Peer {
    /// The job of a key, as far as is known here, and whether this spec is the one that it was given with.
    pub(super) fn key_known(&self, key: &KeyId, spec: &JobSpec) -> Option<(JobRecord, bool)> {
        let record = self.record_of_key(key)?.clone();
        // The specs are compared too: a later version hashes one with more fields.
        let hash =
            self.keys.rows.get(key).filter(|row| row.record.birth == record.birth).map(|r| r.spec_hash);
        let same =
            hash.is_some_and(|hash| hash == spec_hash(spec)) || same_asked(&record, spec, self.now.wall);
        Some((record, same))
    }

    fn record_of_key(&self, key: &KeyId) -> Option<&JobRecord> {
        let row = self.keys.rows.get(key).filter(|row| !is_over(self.now, row.at, row.since));
        let held = || {
            let record = self.acceptor.of_key(key)?;
            (!is_over(self.now, record.submitted_at, self.keys.started)).then_some(record)
        };
        row.map(|row| &row.record).or_else(held)
    }

    /// Notes what a key stands for from now on; on disk before any home hears of the job.
    pub(super) fn remember_key(&mut self, key: &str, record: &JobRecord) {
        let now = self.now;
        let rows = &self.keys.rows;
        let over = rows.iter().filter(|(_, row)| is_over(now, row.at, row.since)).map(|(id, _)| *id).take(64);
        let excess = rows.keys().next().copied().filter(|_| rows.len() >= ROWS_MAX);
        let gone: Vec<KeyId> = over.chain(excess).collect();
        for row in gone.iter().filter_map(|id| self.keys.rows.remove(id)).collect::<Vec<_>>() {
            self.write(Write { table: Table::Meta, key: row.row, value: None });
        }
        let (tenant, row) = (&record.spec.tenant, row_key(&record.spec.tenant, key));
        let (spec_hash, at) = (spec_hash(&record.spec), record.submitted_at);
        let known = KeyRow { record: record.clone(), spec_hash, at, since: now.mono, row };
        let bytes = serde_json::to_vec(&known).expect("a key row has only plain fields");
        self.write(Write { table: Table::Meta, key: known.row.clone(), value: Some(bytes) });
        self.keys.rows.insert(key_id(tenant, key), known);
    }

    /// Most homes of this job hold another one of its key, so it is not chosen and never will be: nothing of it stays here.
    pub(super) fn lost_its_key(&mut self, job: &JobId) {
        self.count("keys_lost");
        let rows = self.keys.rows.iter().filter(|(_, row)| row.record.id() == *job);
        for id in rows.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some(row) = self.keys.rows.remove(&id) {
                self.write(Write { table: Table::Meta, key: row.row, value: None });
            }
        }
        for write in self.acceptor.forget(job) {
            self.write(write);
        }
    }

    /// Asks the others for a key that is not known here; the submit goes on when they have answered.
    pub(super) fn ask_for_key(&mut self, key: KeyId, submit: Submit) {
        if let Some(asking) = self.keys.asking.get_mut(&key) {
            if asking.waiting.len() >= WAITING_MAX {
                let why = format!("{WAITING_MAX} requests with this key wait already");
                return self.reply_error(submit.token, ClientError::KeyUndecided(why));
            }
            return asking.waiting.push(submit);
        }
        let asking = Asking {
            tenant: submit.spec.tenant.clone(),
            begun: self.now.mono,
            next: None,
            waiting: vec![submit],
            heard: BTreeMap::new(),
        };
        self.keys.asking.insert(key, asking);
        self.ask_key_again(key, ASK_EVERY);
        self.key_check(key);
    }

    /// Of an older version, it would not understand the question: keys of jobs that it took are its own.
    fn cannot_be_asked(&self, peer: &PeerName) -> bool {
        self.wire_of(peer).is_some_and(|wire| wire < ASKS_KEYS)
    }

    /// Sends the question to every member that has not answered it, and sets the clock for the next time.
    fn ask_key_again(&mut self, key: KeyId, pause: Span) {
        let others: Vec<PeerName> =
            self.view.members.keys().filter(|p| **p != self.cfg.name).cloned().collect();
        let Some(mut asking) = self.keys.asking.remove(&key) else { return };
        for peer in others {
            // One that was not heard yet may be of an older version.
            if self.wire_of(&peer).is_none_or(|wire| wire < ASKS_KEYS) {
                continue;
            }
            let (number, heard) = *asking.heard.entry(peer.clone()).or_insert_with(|| {
                self.keys.counter += 1;
                (self.keys.counter, Heard::No)
            });
            if heard != Heard::Nothing {
                self.send(peer, Message::Key(KeyWord::Ask { key, number }), false);
            }
        }
        let next = self.now.mono + pause;
        if let Some(before) = asking.next.replace(next) {
            self.timers.remove(&(before, Timer::Key(key)));
        }
        self.timers.insert((next, Timer::Key(key)));
        self.keys.asking.insert(key, asking);
    }

    /// After a sleep what was heard before it says nothing of what came meanwhile: all are asked anew.
    fn anew_after_sleep(&mut self, key: KeyId) -> bool {
        let now = self.now.mono;
        let Some(asking) = self.keys.asking.get_mut(&key) else { return false };
        if asking.next.is_none_or(|due| now.since(due) < SLEPT) {
            return false;
        }
        (asking.begun, asking.heard) = (now, BTreeMap::new());
        self.count("keys_asked_anew");
        self.ask_key_again(key, ASK_EVERY);
        true
    }

    pub(super) fn on_key_timer(&mut self, key: KeyId) {
        if self.anew_after_sleep(key) {
            return;
        }
        let Some(asking) = self.keys.asking.get(&key) else { return };
        let yields = asking.heard.values().any(|(_, heard)| *heard == Heard::Asks);
        self.ask_key_again(key, if yields { YIELD_EVERY } else { ASK_EVERY });
        self.key_check(key);
    }

    pub(super) fn on_key_word(&mut self, from: PeerName, word: KeyWord) {
        match word {
            // What it holds may be an older copy of what it held: its "nothing" would be a lie.
            KeyWord::Ask { .. } if !self.disk_confirmed() => {}
            KeyWord::Ask { key, number } => {
                let knows = self.key_answer(&from, &key);
                // A job that is told of must be on this disk, or a crash here makes it a job that nobody knows.
                let durable = matches!(knows, KeyKnown::Job { .. });
                self.send(from, Message::Key(KeyWord::Told { key, number, knows }), durable);
            }
            KeyWord::Told { key, number, knows } => self.on_key_told(&from, key, number, knows),
        }
    }

    fn key_answer(&mut self, from: &PeerName, key: &KeyId) -> KeyKnown {
        if let Some(record) = self.record_of_key(key) {
            let job = record.id();
            return match Value::job(record.clone()).encode() {
                Ok(value) => KeyKnown::Job { job, value },
                // It was encoded before.
                Err(_) => KeyKnown::Asks,
            };
        }
        let me = self.cfg.name.clone();
        let Some(asking) = self.keys.asking.get_mut(key) else { return KeyKnown::Nothing };
        if me < *from {
            return KeyKnown::Asks;
        }
        // It goes first. What it said before it asked is worth nothing now: it is asked anew, under a new number.
        self.keys.counter += 1;
        asking.heard.insert(from.clone(), (self.keys.counter, Heard::Asks));
        KeyKnown::Nothing
    }

    fn on_key_told(&mut self, from: &PeerName, key: KeyId, number: u64, knows: KeyKnown) {
        let Some(asking) = self.keys.asking.get_mut(&key) else { return };
        let tenant = asking.tenant.clone();
        let Some((asked, heard)) = asking.heard.get_mut(from) else { return };
        match knows {
            KeyKnown::Job { job, value } => {
                let Ok(Value::Job(record)) = Value::decode(&RecordKey::Job(job), &value) else { return };
                // Rows of the version before have no key in their records.
                if record.spec.tenant == tenant && record.key.is_none_or(|k| k == key) {
                    self.key_found(key, job, &record);
                }
            }
            _ if *asked != number => {}
            KeyKnown::Asks => {
                *heard = Heard::Asks;
                self.key_check(key);
            }
            KeyKnown::Nothing => {
                *heard = Heard::Nothing;
                self.key_check(key);
            }
        }
    }

    /// Somebody knows the job: it is this peer's answer, too.
    fn key_found(&mut self, key: KeyId, job: JobId, record: &Arc<JobRecord>) {
        let Some(waiting) = self.key_asked(&key) else { return };
        self.count("keys_found");
        if record.generation > 0 {
            self.learn(RecordKey::Job(job), record.generation, record.homes().to_vec());
        }
        if let Some(text) = waiting.iter().find_map(|submit| submit.key.clone()) {
            self.remember_key(&text, record);
        }
        for submit in waiting {
            self.submit(submit);
        }
    }

    /// The question is over: who waits for it.
    fn key_asked(&mut self, key: &KeyId) -> Option<Vec<Submit>> {
        let asking = self.keys.asking.remove(key)?;
        if let Some(at) = asking.next {
            self.timers.remove(&(at, Timer::Key(*key)));
        }
        Some(asking.waiting)
    }

    /// Mints the job once nobody can know of one, or refuses where that cannot be known.
    fn key_check(&mut self, key: KeyId) {
        // A home of it by now.
        if self.record_of_key(&key).is_some() {
            for submit in self.key_asked(&key).unwrap_or_default() {
                self.submit(submit);
            }
            return;
        }
        if self.anew_after_sleep(key) {
            return;
        }
        let Some(asking) = self.keys.asking.get(&key) else { return };
        let patient = self.now.mono.since(asking.begun) < SILENT_AFTER;
        let heard = |peer: &PeerName| asking.heard.get(peer).map_or(Heard::No, |(_, heard)| *heard);
        let (mut silent, mut first) = (Vec::new(), Vec::new());
        for member in self.view.members.values().filter(|m| m.peer != self.cfg.name) {
            match heard(&member.peer) {
                Heard::Nothing => {}
                Heard::Asks => first.push(member.peer.clone()),
                Heard::No if self.cannot_be_asked(&member.peer) => {}
                // Lost ones are asked, and not waited for.
                Heard::No if patient && member.liveness != Liveness::Lost => return,
                Heard::No => silent.push(member.peer.clone()),
            }
        }
        if !first.is_empty() && self.now.mono.since(asking.begun) < YIELD_FOR {
            return;
        }
        silent.extend(first.iter().cloned());
        let undecided = !first.is_empty() || self.could_hide(&key, &silent);
        let Some(waiting) = self.key_asked(&key) else { return };
        if undecided {
            self.count("keys_undecided");
            let named: Vec<&str> = silent.iter().take(NAMED_MAX).map(PeerName::as_str).collect();
            let more = silent.len() - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let why = format!("{}{more} do not answer and may hold a job of it", named.join(", "));
            for submit in waiting {
                self.reply_error(submit.token, ClientError::KeyUndecided(why.clone()));
            }
            return;
        }
        for submit in waiting {
            // The first that may be taken is the job; the others are told of it.
            match self.record_of_key(&key) {
                Some(_) => self.submit(submit),
                None => self.mint(submit, Some(key)),
            }
        }
    }

    /// True if most homes that the ring proposed for this key while the silent members were there are among these: then
    /// they may have taken a job that nobody else has heard of.
    fn could_hide(&self, key: &KeyId, silent: &[PeerName]) -> bool {
        if silent.is_empty() {
            return false;
        }
        let mut then = (*self.view).clone();
        for peer in silent {
            if let Some(member) = then.members.get_mut(peer) {
                member.liveness = Liveness::Alive;
            }
        }
        let Ok(homes) = self.ring.homes(&then, key.ring_key(), self.cfg.replicas, None) else { return false };
        homes.iter().filter(|home| silent.contains(&home.peer)).count() > homes.len() / 2
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
