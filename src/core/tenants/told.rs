//! A new disk hears which tenants are limited before it gives out capacity.
//!
//! Cards are announced when they change and now and then; a disk that begins in between knows none, and would start
//! jobs of a tenant that everybody else holds to its limits. So a peer whose disk is new asks, and its cluster stays
//! closed until one that has been told itself has said all that it knows. In a mesh where nobody has been told (it has
//! just begun, or its builds do not know the question) the word of most members is enough.

use std::ops::Bound::{Excluded, Unbounded};

use super::*;
use crate::core::message::{ASKS_TENANTS, TenantsWord};
use crate::core::past::MARK_KEY;

/// A row that is there while this disk has not been told.
const UNTOLD_KEY: &[u8] = b"tenants/untold";
/// Nobody is asked more often.
const ASK_EVERY: Span = Span::secs(1);
/// Whoever does not answer within this is not waited for where most members are of older builds.
const PATIENCE: Span = Span::secs(3);

/// What this disk has heard of the tenants there are.
#[derive(Default)]
pub struct Told {
    /// Not yet all that somebody knows who was told.
    untold: bool,
    /// Members that have said all that they know, and were not told themselves.
    said: BTreeSet<PeerName>,
    /// When each was asked first, and last.
    asked: BTreeMap<PeerName, (Instant, Instant)>,
}

impl Told {
    /// Of a disk that the core has never used, or has never been told on. How often the store was opened says
    /// nothing: a new one may be opened by a start that ended before it began.
    pub fn recover(meta: &BTreeMap<Vec<u8>, Vec<u8>>) -> Self {
        Self { untold: !meta.contains_key(MARK_KEY) || meta.contains_key(UNTOLD_KEY), ..Self::default() }
    }
}

impl Peer {
    /// Why nothing is given out here yet.
    pub(in crate::core) fn tenants_unheard(&self) -> Option<String> {
        self.tenants.told.untold.then(|| "has not heard yet which tenants are limited".to_owned())
    }

    /// At the begin of a life: what is not known must stay so over a crash.
    pub(in crate::core) fn note_untold(&mut self) {
        if self.tenants.told.untold {
            self.write(Write { table: Table::Meta, key: UNTOLD_KEY.to_vec(), value: Some(Vec::new()) });
        }
    }

    /// Asks whoever has not answered, and looks whether enough have.
    pub(in crate::core) fn ask_tenants(&mut self) {
        if !self.tenants.told.untold || !self.view.members.contains_key(&self.cfg.name) {
            return;
        }
        let now = self.now.mono;
        let others = self.view.members.keys().filter(|p| **p != self.cfg.name);
        let wire = |p: &PeerName| self.wire_of(p);
        let (mut silent, mut said, mut older) = (Vec::new(), 1, 0);
        for peer in others {
            match wire(peer) {
                // One of an older build knows no such question.
                Some(wire) if wire < ASKS_TENANTS => older += 1,
                _ if self.tenants.told.said.contains(peer) => said += 1,
                Some(_) => silent.push(peer.clone()),
                None => {}
            }
        }
        let members = self.view.members.len();
        // Older ones count only where whoever could know better has had the time to say so.
        let asked_long = |peer: &PeerName| {
            self.tenants.told.asked.get(peer).is_some_and(|(first, _)| now.since(*first) >= PATIENCE)
        };
        if 2 * said > members || (2 * (said + older) > members && silent.iter().all(asked_long)) {
            return self.tenants_told();
        }
        for peer in silent {
            let asked = self.tenants.told.asked.get(&peer).copied();
            if asked.is_none_or(|(_, last)| now.since(last) >= ASK_EVERY) {
                let first = asked.map_or(now, |(first, _)| first);
                self.tenants.told.asked.insert(peer.clone(), (first, now));
                self.send(peer, Message::TenantsWord(TenantsWord::Ask { after: None }), false);
            }
        }
    }

    pub(in crate::core) fn on_tenants_word(&mut self, from: PeerName, word: TenantsWord) {
        match word {
            TenantsWord::Ask { after } => {
                let begin = after.map_or(Unbounded, Excluded);
                let mut rest =
                    self.tenants.cards.range::<String, _>((begin, Unbounded)).map(|(_, card)| card);
                let cards: Vec<Card> = rest.by_ref().take(CARDS_MAX).cloned().collect();
                let more = rest.next().is_some();
                let told = !self.tenants.told.untold;
                self.send(from, Message::TenantsWord(TenantsWord::Tell { cards, more, told }), false);
            }
            TenantsWord::Tell { cards, more, told } => {
                self.on_tenants(&from, &cards);
                // Only who was asked may open this cluster.
                let Some((first, _)) = self.tenants.told.asked.get(&from).copied() else { return };
                if !self.tenants.told.untold {
                    return;
                }
                match (more, cards.last()) {
                    (true, Some(last)) => {
                        let after = Some(last.tenant.clone());
                        self.tenants.told.asked.insert(from.clone(), (first, self.now.mono));
                        self.send(from, Message::TenantsWord(TenantsWord::Ask { after }), false);
                    }
                    _ if told => self.tenants_told(),
                    _ => {
                        self.tenants.told.said.insert(from);
                        self.ask_tenants();
                    }
                }
            }
        }
    }

    fn tenants_told(&mut self) {
        self.tenants.told = Told::default();
        self.write(Write { table: Table::Meta, key: UNTOLD_KEY.to_vec(), value: None });
        self.cluster_opened();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::StoreId;
    use crate::core::api::{DiskImage, Now};
    use crate::core::message::SPEAKS;
    use crate::core::testing::{config, name};
    use crate::model::report::{BuildReport, Liveness, MemberView, Report, View};

    fn member(peer: &str, wire: Option<u16>) -> (PeerName, MemberView) {
        let (peer, store) = (name(peer), StoreId([1; 16]));
        let build = wire.map(|wire| BuildReport { version: String::new(), wire });
        let report = Report {
            peer: peer.clone(),
            store,
            capacity: None,
            queue: None,
            contact: None,
            health: None,
            build,
            links: vec![],
            data: None,
            images: None,
            alerts: None,
            heard_at: Instant(0),
        };
        let (liveness, report) = (Liveness::Alive, Some(std::sync::Arc::new(report)));
        let member =
            MemberView { peer: peer.clone(), store, witness: false, liveness, draining: false, report };
        (peer, member)
    }

    fn card(tenant: &str) -> Card {
        let homes = vec![Home { peer: name("b"), store: StoreId([2; 16]) }];
        Card {
            tenant: tenant.into(),
            held_by: homes.clone(),
            homes,
            generation: 0,
            limits: Limits::default(),
            limits_version: 1,
            removed: false,
            era: 0,
        }
    }

    /// One core whose disk is new, and its view of members of these builds.
    fn begun(wires: &[Option<u16>]) -> Peer {
        let (mut peer, out) =
            Peer::recover(config("a", StoreId([1; 16])), &DiskImage::default(), Now::default())
                .expect("empty");
        let noted = |o: &Output| matches!(o, Output::Write(w) if w.key == UNTOLD_KEY && w.value.is_some());
        assert!(out.iter().any(noted));
        let others = ["b", "c", "d", "e"].into_iter().zip(wires).map(|(peer, wire)| member(peer, *wire));
        let members = others.chain([member("a", Some(SPEAKS))]).collect();
        peer.view = std::sync::Arc::new(View { members, isolated: false });
        peer.ask_tenants();
        peer
    }

    fn asked(peer: &mut Peer) -> usize {
        let ask = |o: &Output| {
            matches!(o, Output::Send { message: Message::TenantsWord(TenantsWord::Ask { .. }), .. })
        };
        std::mem::take(&mut peer.out).iter().filter(|o| ask(o)).count()
    }

    #[test]
    fn one_that_was_told_is_enough_and_one_that_was_not_is_not() {
        let mut peer = begun(&[Some(SPEAKS); 4]);
        assert!(peer.tenants_unheard().is_some_and(|why| why.contains("limited")));
        assert_eq!(asked(&mut peer), 4);
        let tell = |told, more, cards| TenantsWord::Tell { cards, more, told };
        peer.on_tenants_word(name("b"), tell(false, false, vec![]));
        peer.on_tenants_word(name("b"), tell(false, false, vec![]));
        assert!(peer.tenants_unheard().is_some(), "two of five, and one of them twice");
        let first = card("t1");
        peer.on_tenants_word(name("c"), tell(true, true, vec![first]));
        assert!(peer.tenants_unheard().is_some(), "there is more to come");
        assert_eq!(asked(&mut peer), 1, "the next page");
        peer.on_tenants_word(name("c"), tell(true, false, vec![card("t2")]));
        assert_eq!(peer.tenants_unheard(), None);
        assert!(peer.knows_tenant("t1") && peer.knows_tenant("t2"));
    }

    #[test]
    fn in_a_mesh_that_begins_most_are_enough() {
        let mut peer = begun(&[Some(SPEAKS); 4]);
        for from in ["b", "c"] {
            let word = TenantsWord::Tell { cards: vec![], more: false, told: false };
            peer.on_tenants_word(name(from), word);
        }
        assert_eq!(peer.tenants_unheard(), None);
        assert_eq!(begun(&[]).tenants_unheard(), None, "alone");
        assert_eq!(
            begun(&[Some(ASKS_TENANTS - 1); 2]).tenants_unheard(),
            None,
            "older builds know no answer"
        );
        assert!(begun(&[None, None]).tenants_unheard().is_some(), "who has not been heard yet may know");
    }

    #[test]
    fn what_was_not_told_is_still_not_after_a_crash() {
        let used = (MARK_KEY.to_vec(), 7u64.to_be_bytes().to_vec());
        let row = BTreeMap::from([used.clone(), (UNTOLD_KEY.to_vec(), Vec::new())]);
        assert!(Told::recover(&row).untold);
        assert!(!Told::recover(&BTreeMap::from([used])).untold, "a disk of an older build is no new disk");
    }

    /// As after a quarantine, or after a start whose join failed: the store counts more than one start.
    #[test]
    fn a_disk_that_the_core_never_used_is_new_however_often_it_was_opened() {
        let cfg =
            crate::core::api::CoreConfig { boot: 2, first_boot: false, ..config("a", StoreId([1; 16])) };
        let (peer, _) = Peer::recover(cfg, &DiskImage::default(), Now::default()).expect("empty");
        assert!(peer.tenants_unheard().is_some());
    }

    #[test]
    fn older_builds_do_not_outvote_one_that_knows() {
        let old = Some(ASKS_TENANTS - 1);
        let mut peer = begun(&[old, old, old, Some(SPEAKS)]);
        assert!(peer.tenants_unheard().is_some(), "four of five count, and one may know");
        assert_eq!(asked(&mut peer), 1);
        peer.now.mono = peer.now.mono + PATIENCE;
        peer.ask_tenants();
        assert_eq!(peer.tenants_unheard(), None, "it had its time");
        let mut peer = begun(&[old, old, old, Some(SPEAKS)]);
        peer.on_tenants_word(
            name("e"),
            TenantsWord::Tell { cards: vec![card("t")], more: false, told: true },
        );
        assert!(peer.tenants_unheard().is_none() && peer.knows_tenant("t"));
    }

    #[test]
    fn nobody_opens_it_unasked() {
        let mut peer = begun(&[None, None, Some(SPEAKS), Some(SPEAKS)]);
        let word = || TenantsWord::Tell { cards: vec![], more: false, told: true };
        peer.on_tenants_word(name("b"), word());
        assert!(peer.tenants_unheard().is_some());
        peer.on_tenants_word(name("d"), word());
        assert_eq!(peer.tenants_unheard(), None);
    }

    #[test]
    fn cards_are_told_in_pages() {
        let mut peer = begun(&[]);
        let names: Vec<String> = (0..CARDS_MAX + 3).map(|n| format!("t{n:03}")).collect();
        for tenant in &names {
            peer.learn_card(&card(tenant));
        }
        let (mut after, mut heard) = (None, Vec::new());
        loop {
            peer.out.clear();
            peer.on_tenants_word(name("b"), TenantsWord::Ask { after });
            let Some(Output::Send {
                message: Message::TenantsWord(TenantsWord::Tell { cards, more, told }),
                ..
            }) = peer.out.pop()
            else {
                panic!("an answer")
            };
            assert!(told && cards.len() <= CARDS_MAX);
            heard.extend(cards.into_iter().map(|c| c.tenant));
            if !more {
                break;
            }
            after = heard.last().cloned();
        }
        assert_eq!(heard, names);
    }
}
