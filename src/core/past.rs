//! Whether this disk is the newest that it ever was. A store that was put back from an older copy has forgotten
//! what it promised, and must not answer as if it had not.
//!
//! Each disk counts its commits: the *mark*, one small row in a batch that is written anyway. Every two seconds, if
//! the mark has grown, the peer tells it to some others in turn, who keep the newest that they heard. A peer that
//! starts asks everybody: until most of the mesh has answered, it answers for nothing and proposes nothing. Where
//! somebody has seen more than this disk holds, or the same boot of another process, the store goes into
//! quarantine: the runtime puts it aside and begins a new one, which is a new disk (docs/protocol.md).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::acceptor::ValueError;
use super::api::{CoreConfig, Output, Table, Write};
use super::message::{DiskLife, DiskWord, Message, SeenDisk};
use super::peer::{Peer, Timer};
use crate::base::{Instant, PeerName, Span, StoreId};
use crate::model::report::Liveness;

/// Others are asked again this often while the peer waits for them,
const ASK_EVERY: Span = Span::millis(400);
/// and after that seldom, until each of them has answered once.
const TELL_EVERY: Span = Span::secs(2);
/// A mark is told to so many others at once.
const TOLD: usize = 4;
/// Once most of the mesh has answered, the others are waited for so long. What they say later still counts.
const PATIENCE: Span = Span::secs(5);
/// Marks that were heard go to this disk along with its own commits, at most this often.
const NOTE_EVERY: Span = Span::secs(2);

/// A disk that was ever used holds it: the core writes it with its first commit.
pub(super) const MARK_KEY: &[u8] = b"mark";
const SEEN_PREFIX: &[u8] = b"seen/";

/// What this peer has seen of another one's disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Remembered {
    store: StoreId,
    seen: SeenDisk,
}

/// This disk's past, and what is known of the others'.
#[derive(Debug, Default)]
pub(super) struct Past {
    life: DiskLife,
    mark: u64,
    /// Which mark each other was told last.
    told: BTreeMap<PeerName, u64>,
    confirmed: bool,
    /// Why this store must not be used any more.
    over: Option<String>,
    answered: BTreeSet<PeerName>,
    /// Since when most of the mesh has answered.
    most_since: Option<Instant>,
    others: BTreeMap<PeerName, Remembered>,
    /// Those of them that this disk does not hold yet, and when they may go there.
    unnoted: BTreeSet<PeerName>,
    note_at: Instant,
}

impl Past {
    pub fn recover(
        cfg: &CoreConfig,
        meta: &BTreeMap<Vec<u8>, Vec<u8>>,
        nonce: u64,
    ) -> Result<Self, ValueError> {
        let number = |row: &Vec<u8>| row.as_slice().try_into().map(u64::from_be_bytes);
        let malformed = |what: &str| ValueError::Malformed(what.into());
        let mark =
            meta.get(MARK_KEY).map_or(Ok(0), number).map_err(|_| malformed("the mark is no number"))?;
        let mut others = BTreeMap::new();
        for (key, row) in meta.range(SEEN_PREFIX.to_vec()..).take_while(|(k, _)| k.starts_with(SEEN_PREFIX)) {
            let name =
                std::str::from_utf8(&key[SEEN_PREFIX.len()..]).ok().and_then(|n| PeerName::new(n).ok());
            let name = name.ok_or_else(|| malformed("key of a seen disk"))?;
            let seen = serde_json::from_slice(row).map_err(|e| ValueError::Malformed(e.to_string()))?;
            others.insert(name, seen);
        }
        let life = DiskLife { store: cfg.store, boot: cfg.boot, nonce, start: mark };
        // A disk that was never used before has no past.
        Ok(Self { life, mark, confirmed: cfg.first_boot, others, ..Self::default() })
    }
}

/// What was seen is more than this life of the disk can have grown out of.
fn contradicts(life: &DiskLife, seen: &SeenDisk) -> Option<String> {
    if seen.boot > life.boot {
        return Some(format!("it was seen at start {}, and this is start {}", seen.boot, life.boot));
    }
    if seen.boot == life.boot && seen.nonce != life.nonce {
        return Some(format!("start {} was seen before, of another process", life.boot));
    }
    let grown = seen.boot < life.boot && seen.mark > life.start;
    grown.then(|| format!("it was seen with {} commits, and holds {}", seen.mark, life.start))
}

impl Peer {
    /// False until the others have confirmed that this disk has lost nothing: until then the peer answers for
    /// nothing and proposes nothing.
    pub fn disk_confirmed(&self) -> bool {
        self.past.confirmed && self.past.over.is_none()
    }

    /// At the end of each step: its writes are one commit more.
    pub(super) fn count_commit(&mut self) {
        if self.out.iter().any(|o| matches!(o, Output::Write(_))) {
            if !self.past.unnoted.is_empty() && self.now.mono >= self.past.note_at {
                self.past.note_at = self.now.mono + NOTE_EVERY;
                for peer in std::mem::take(&mut self.past.unnoted) {
                    self.note_disk(&peer);
                }
            }
            self.past.mark += 1;
            let value = Some(self.past.mark.to_be_bytes().to_vec());
            self.write(Write { table: Table::Meta, key: MARK_KEY.to_vec(), value });
        }
    }

    /// Asks who has not answered yet, and tells what has grown.
    pub(super) fn on_past_timer(&mut self) {
        self.confirm_disk();
        self.ask_tenants();
        let settled = self.disk_confirmed();
        self.timer_in(if settled { TELL_EVERY } else { ASK_EVERY }, Timer::Past);
        if self.past.over.is_some() {
            return;
        }
        let life = self.past.life;
        if !self.cfg.first_boot {
            for peer in self.silent_members(settled) {
                self.send(peer, Message::Disk(DiskWord::Ask { life }), false);
            }
        }
        if settled {
            self.tell_mark();
        }
    }

    /// Those who have waited longest are told first: in a small mesh each of them every few seconds.
    fn tell_mark(&mut self) {
        let (life, mark) = (self.past.life, self.past.mark);
        let others =
            self.view.members.values().filter(|m| m.peer != self.cfg.name && m.liveness != Liveness::Lost);
        let told = |p: &PeerName| self.past.told.get(p).copied().unwrap_or_default();
        let mut due: Vec<(u64, PeerName)> = others.map(|m| (told(&m.peer), m.peer.clone())).collect();
        due.retain(|(told, _)| *told < mark);
        due.sort_unstable();
        for (_, peer) in due.into_iter().take(TOLD) {
            self.past.told.insert(peer.clone(), mark);
            // After the writes that it counts.
            self.send(peer, Message::Disk(DiskWord::Mark { life, mark }), true);
        }
    }

    /// Members that have not said what they saw: all that may be there, or only those that are.
    fn silent_members(&self, alive_only: bool) -> Vec<PeerName> {
        let asks = |l: Liveness| l == Liveness::Alive || (!alive_only && l == Liveness::Suspect);
        let members = self.view.members.values().filter(|m| m.peer != self.cfg.name && asks(m.liveness));
        members.filter(|m| !self.past.answered.contains(&m.peer)).map(|m| m.peer.clone()).collect()
    }

    /// Looks whether enough have answered.
    pub(super) fn confirm_disk(&mut self) {
        if self.past.confirmed || self.past.over.is_some() || self.view.members.is_empty() {
            return;
        }
        let (answered, members) = (self.past.answered.len(), self.view.members.len());
        let alone = self.view.members.keys().all(|p| *p == self.cfg.name);
        // With this peer they are most of the mesh: a side that is cut off decides little anyway.
        let most = answered > 0 && 2 * (answered + 1) > members;
        if most && self.past.most_since.is_none() {
            self.past.most_since = Some(self.now.mono);
        }
        let waited = self.past.most_since.is_some_and(|at| self.now.mono.since(at) >= PATIENCE);
        let all = self.silent_members(false).is_empty();
        if !(alone || (most && (all || waited))) {
            return;
        }
        self.past.confirmed = true;
        if !(alone || all) {
            let text = format!("not all members have said what they saw of disk {}", self.cfg.store);
            self.event("disk.unconfirmed", None, text);
        }
        self.resume_operations();
    }

    pub(super) fn on_disk_word(&mut self, from: PeerName, word: DiskWord) {
        match word {
            DiskWord::Mark { life, mark } => {
                let before = self.remember_disk(&from, &life, mark.max(life.start));
                if before.as_ref().is_some_and(|seen| contradicts(&life, seen).is_some()) {
                    // It began without asking us: it may still be stopped.
                    self.send(from, Message::Disk(DiskWord::Seen { nonce: life.nonce, seen: before }), false);
                }
            }
            DiskWord::Ask { life } => {
                let before = self.remember_disk(&from, &life, life.start);
                self.send(from, Message::Disk(DiskWord::Seen { nonce: life.nonce, seen: before }), true);
            }
            DiskWord::Seen { nonce, seen } => {
                if nonce != self.past.life.nonce || self.past.over.is_some() {
                    return;
                }
                self.past.answered.insert(from.clone());
                if let Some(why) = seen.and_then(|seen| contradicts(&self.past.life, &seen)) {
                    return self.quarantine(&from, &why);
                }
                self.confirm_disk();
            }
        }
    }

    fn quarantine(&mut self, by: &PeerName, why: &str) {
        let why = format!("disk {} is an older copy: {why} ({by} says)", self.cfg.store);
        self.count("disk_rolled_back");
        self.event("disk.rolled_back", None, why.clone());
        self.past.over = Some(why.clone());
        self.out.push(Output::Quarantine { why });
    }

    /// Keeps the newest of what was seen; gives what it was before, unless that was of this very life.
    fn remember_disk(&mut self, from: &PeerName, life: &DiskLife, mark: u64) -> Option<SeenDisk> {
        let new = SeenDisk { boot: life.boot, nonce: life.nonce, mark };
        let held = self.past.others.get(from).filter(|r| r.store == life.store).map(|r| r.seen);
        let keep = match held {
            Some(seen) if (seen.boot, seen.nonce) == (new.boot, new.nonce) => seen.mark >= mark,
            // What contradicts it, or an older life that speaks late.
            Some(seen) => seen.boot > new.boot || contradicts(life, &seen).is_some(),
            // Of a disk that is not the one heard of so far, only what the member list names is remembered.
            None => self.view.members.get(from).is_none_or(|m| {
                m.store != life.store && self.past.others.get(from).is_some_and(|r| r.store == m.store)
            }),
        };
        if !keep {
            self.past.others.insert(from.clone(), Remembered { store: life.store, seen: new });
            self.past.unnoted.insert(from.clone());
        }
        held.filter(|seen| (seen.boot, seen.nonce) != (new.boot, new.nonce))
    }

    fn note_disk(&mut self, peer: &PeerName) {
        let Some(remembered) = self.past.others.get(peer) else { return };
        let value = serde_json::to_vec(remembered).expect("what was seen has only plain fields");
        let key = [SEEN_PREFIX, peer.as_str().as_bytes()].concat();
        self.write(Write { table: Table::Meta, key, value: Some(value) });
    }

    /// Who goes away may come back with an older disk, and this peer may have been started anew by then.
    pub(super) fn note_disks_of_absent(&mut self) {
        let away = |p: &PeerName| self.view.members.get(p).is_none_or(|m| m.liveness != Liveness::Alive);
        let gone: Vec<PeerName> = self.past.others.keys().filter(|p| away(p)).cloned().collect();
        for peer in gone {
            if self.view.members.contains_key(&peer) {
                if self.past.unnoted.remove(&peer) {
                    self.note_disk(&peer);
                }
            } else if !self.view.members.is_empty() {
                self.past.others.remove(&peer);
                let key = [SEEN_PREFIX, peer.as_str().as_bytes()].concat();
                self.write(Write { table: Table::Meta, key, value: None });
            }
        }
    }
}

/// Rows of an old store that a new one may take over: what a caller's idempotency keys stand for.
pub fn outlives_quarantine(write: &Write) -> bool {
    write.table == Table::Meta && write.key.starts_with(b"key/")
}

#[cfg(test)]
mod tests {
    use super::super::testing::{config, name};
    use super::super::{DiskImage, Input, Now};
    use super::*;
    use crate::base::{StoreId, WallTime};
    use crate::model::report::{MemberView, View};

    const STORE: StoreId = StoreId([1; 16]);

    fn at(ms: u64) -> Now {
        Now { mono: Instant(ms * 1000), wall: WallTime(ms) }
    }

    fn view(names: &[&str]) -> View {
        let member = |n: &&str| {
            let member = MemberView {
                peer: name(n),
                store: if *n == "a" { STORE } else { StoreId([2; 16]) },
                witness: true,
                liveness: Liveness::Alive,
                draining: false,
                report: None,
            };
            (name(n), member)
        };
        View { members: names.iter().map(member).collect(), isolated: false }
    }

    /// A disk that was started `boot` times and has so many commits.
    fn started(peer: &str, boot: u64, mark: u64, members: &[&str]) -> Peer {
        let store = if peer == "a" { STORE } else { StoreId([2; 16]) };
        let cfg = CoreConfig { boot, first_boot: boot == 1, seed: boot, ..config(peer, store) };
        let mut disk = DiskImage::default();
        if mark > 0 {
            let row = (MARK_KEY.to_vec(), mark.to_be_bytes().to_vec());
            disk.tables.insert(Table::Meta, BTreeMap::from([row]));
        }
        let (mut core, _) = Peer::recover(cfg, &disk, at(1)).expect("its disk");
        core.step(at(1), Input::View(view(members).into()));
        core
    }

    fn says(core: &mut Peer, now: Now, from: &str, word: DiskWord) -> Vec<Output> {
        core.step(now, Input::Message { from: name(from), message: Message::Disk(word) })
    }

    fn life(core: &Peer) -> DiskLife {
        core.past.life
    }

    #[test]
    fn nobody_is_asked_at_a_first_start_and_nobody_can_be_in_a_mesh_of_one() {
        assert!(started("a", 1, 0, &["a", "b", "c"]).disk_confirmed());
        assert!(started("a", 7, 90, &["a"]).disk_confirmed());
        assert!(!started("a", 7, 90, &["a", "b"]).disk_confirmed());
        assert!(!started("a", 7, 90, &[]).disk_confirmed(), "who is a member is not known yet");
    }

    #[test]
    fn most_of_the_mesh_must_have_answered_and_who_is_silent_is_waited_for_a_while() {
        let mut core = started("a", 2, 90, &["a", "b", "c", "d", "e"]);
        let seen = DiskWord::Seen { nonce: life(&core).nonce, seen: None };
        says(&mut core, at(10), "b", seen);
        core.step(at(60_000), Input::Tick);
        assert!(!core.disk_confirmed(), "two of five are not most");
        says(&mut core, at(60_010), "c", seen);
        assert!(!core.disk_confirmed(), "d and e are there and may know more");
        core.step(at(64_900), Input::Tick);
        assert!(!core.disk_confirmed());
        core.step(at(65_400), Input::Tick);
        assert!(core.disk_confirmed());
        // An answer to another life says nothing of this one.
        let stale = DiskWord::Seen { nonce: 1, seen: Some(SeenDisk { boot: 9, nonce: 3, mark: 9_999 }) };
        says(&mut core, at(65_500), "d", stale);
        assert!(core.disk_confirmed());
        // A late one that has seen more still ends it.
        let more =
            DiskWord::Seen { nonce: life(&core).nonce, seen: Some(SeenDisk { boot: 1, nonce: 3, mark: 91 }) };
        let out = says(&mut core, at(65_600), "d", more);
        assert!(!core.disk_confirmed());
        assert!(out.iter().any(|o| matches!(o, Output::Quarantine { .. })));
    }

    #[test]
    fn what_is_more_than_it_can_have_grown_out_of() {
        let life = DiskLife { store: STORE, boot: 5, nonce: 7, start: 100 };
        let seen = |boot, nonce, mark| contradicts(&life, &SeenDisk { boot, nonce, mark }).is_some();
        assert!(!seen(4, 1, 100) && seen(4, 1, 101));
        assert!(seen(6, 1, 3), "a later start was seen");
        assert!(seen(5, 8, 3), "another process of the same start");
        assert!(!seen(5, 7, 900), "its own life");
    }

    #[test]
    fn what_was_seen_outlives_the_one_who_saw_it() {
        let mut b = started("b", 1, 0, &["a", "b"]);
        let first = DiskLife { store: STORE, boot: 3, nonce: 9, start: 40 };
        says(&mut b, at(10), "a", DiskWord::Mark { life: first, mark: 70 });
        says(&mut b, at(11), "a", DiskWord::Mark { life: first, mark: 60 });
        // The peer goes away: that is when its mark is put on the disk at the latest.
        let mut away = view(&["a", "b"]);
        away.members.get_mut(&name("a")).expect("a").liveness = Liveness::Lost;
        let out = b.step(at(20), Input::View(away.into()));
        let mut disk = DiskImage::default();
        for output in out {
            if let Output::Write(Write { table, key, value: Some(value) }) = output {
                disk.tables.entry(table).or_default().insert(key, value);
            }
        }
        let cfg = CoreConfig { boot: 2, first_boot: false, ..config("b", StoreId([2; 16])) };
        let (mut b, _) = Peer::recover(cfg, &disk, at(30)).expect("its disk");
        // It knows no members yet, and says what it knows.
        let copy = DiskLife { store: STORE, boot: 3, nonce: 10, start: 20 };
        let out = says(&mut b, at(31), "a", DiskWord::Ask { life: copy });
        let told = out.iter().find_map(|o| match o {
            Output::Send { message: Message::Disk(DiskWord::Seen { seen, .. }), .. } => Some(*seen),
            _ => None,
        });
        assert_eq!(told, Some(Some(SeenDisk { boot: 3, nonce: 9, mark: 70 })));
        // Nor does the copy's own word replace it.
        says(&mut b, at(32), "a", DiskWord::Mark { life: copy, mark: 500 });
        assert_eq!(b.past.others[&name("a")].seen.mark, 70);
    }

    #[test]
    fn an_unconfirmed_disk_neither_answers_nor_asks() {
        use super::super::message::{RecordKey, RegisterBody, RegisterRequest};
        let mut core = started("a", 2, 90, &["a", "b", "c"]);
        let request = RegisterRequest {
            op: 1,
            key: RecordKey::Job(Default::default()),
            generation: 0,
            store: STORE,
            body: RegisterBody::Read,
        };
        let ask = |core: &mut Peer, ms| {
            core.step(at(ms), Input::Message { from: name("b"), message: Message::Register(request.clone()) })
        };
        let speaks = |out: &[Output]| {
            out.iter()
                .any(|o| matches!(o, Output::Send { message: Message::Answer(_) | Message::Register(_), .. }))
        };
        assert!(!speaks(&ask(&mut core, 2)));
        assert!(!speaks(&core.step(at(8_000), Input::Tick)));
        let seen = DiskWord::Seen { nonce: life(&core).nonce, seen: None };
        says(&mut core, at(8_001), "b", seen);
        says(&mut core, at(8_002), "c", seen);
        assert!(core.disk_confirmed() && speaks(&ask(&mut core, 8_003)));
    }
}
