//! Peers in a row of seconds: what each sees, what is an incident, and who tells.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::*;
use crate::base::{Bytes, IncidentId, Instant, PeerName, Span, StoreId, WallTime};
use crate::core::Now;
use crate::core::testing::name;
use crate::model::alert::{Alert, AlertKind, AlertsReport, Mark, Severity, Silence, incident_id};
use crate::model::config::{AlertsConfig, NotifierConfig, Through};
use crate::model::report::{LinkSample, Liveness, MemberView, Report, View};

fn at(second: u64) -> Now {
    Now { mono: Instant(second * 1_000_000), wall: WallTime(1_000_000_000 + second * 1_000) }
}

fn rules() -> AlertsConfig {
    let notifier = NotifierConfig {
        name: "ops".into(),
        through: Through::Command { run: vec!["/bin/true".into()] },
        severity: Severity::Warning,
        kinds: BTreeSet::new(),
        timeout: Span::secs(1),
    };
    AlertsConfig { notifiers: vec![notifier], ..AlertsConfig::default() }
}

fn report(peer: &PeerName, alerts: Option<AlertsReport>, links: Vec<LinkSample>) -> Report {
    Report {
        peer: peer.clone(),
        store: StoreId::default(),
        capacity: None,
        queue: None,
        contact: None,
        health: None,
        build: None,
        links,
        data: None,
        images: None,
        alerts: alerts.map(Arc::new),
        heard_at: Instant(0),
    }
}

fn view(members: &[(&str, Liveness)], isolated: bool) -> View {
    let member = |(peer, liveness): &(&str, Liveness)| {
        let peer = name(peer);
        let report = Some(Arc::new(report(&peer, None, Vec::new())));
        let view = MemberView {
            peer: peer.clone(),
            store: StoreId::default(),
            witness: false,
            liveness: *liveness,
            draining: false,
            report,
        };
        (peer, view)
    };
    View { members: members.iter().map(member).collect(), isolated }
}

fn step(book: &mut Book, second: u64, view: &View, own: &[Alert]) -> Vec<Turn> {
    let seen = of_members(view, &name("a"), own);
    book.step(at(second), &seen, view.isolated, &AlertsConfig::default())
}

fn cluster(peer: &str) -> IncidentId {
    incident_id(AlertKind::Cluster, peer)
}

use Liveness::{Alive, Lost, Suspect};

#[test]
fn a_lost_cluster_is_one_incident_from_suspicion_to_recovery() {
    let mut book = Book::default();
    let well = view(&[("a", Alive), ("b", Alive), ("c", Alive)], false);
    let doubt = view(&[("a", Alive), ("b", Alive), ("c", Suspect)], false);
    let gone = view(&[("a", Alive), ("b", Alive), ("c", Lost)], false);
    assert_eq!(step(&mut book, 0, &well, &[]), []);
    assert_eq!(step(&mut book, 1, &doubt, &[]), []);
    assert!(book.holds(cluster("c")), "it may be in a moment");
    // One second of silence and back is nothing.
    assert_eq!(step(&mut book, 2, &well, &[]), []);
    assert!(!book.holds(cluster("c")));
    assert_eq!(step(&mut book, 3, &doubt, &[]), []);
    let turns = step(&mut book, 5, &doubt, &[]);
    let [Turn::Opened(opened)] = turns.as_slice() else { panic!("{turns:?}") };
    assert_eq!((opened.id, opened.severity), (cluster("c"), Severity::Warning));
    assert_eq!(opened.opened, at(3).wall, "it began when it was first seen");
    let turns = step(&mut book, 13, &gone, &[]);
    assert!(matches!(turns.as_slice(), [Turn::Graver(i)] if i.severity == Severity::Critical), "{turns:?}");
    assert_eq!(step(&mut book, 14, &gone, &[]), []);
    // Another peer saw it a little earlier; a year is none of it.
    book.told(cluster("c"), at(1).wall);
    book.told(cluster("c"), WallTime(0));
    assert_eq!(book.get(cluster("c")).expect("open").opened, at(1).wall);
    assert_eq!(step(&mut book, 20, &well, &[]), [], "for a while it may come back");
    let turns = step(&mut book, 30, &well, &[]);
    let [Turn::Recovered(over)] = turns.as_slice() else { panic!("{turns:?}") };
    assert_eq!((over.recovered, over.severity), (Some(at(30).wall), Severity::Critical));
    assert_eq!((book.open().count(), book.past().count()), (0, 1));
}

#[test]
fn who_reaches_nobody_says_that_of_itself_and_nothing_of_the_others() {
    let mut book = Book::default();
    let alone = view(&[("a", Alive), ("b", Suspect), ("c", Lost)], true);
    let before = view(&[("a", Alive), ("b", Alive), ("c", Lost)], false);
    for second in 0..4 {
        step(&mut book, second, &before, &[]);
    }
    assert!(book.get(cluster("c")).is_some());
    for second in 4..60 {
        step(&mut book, second, &alone, &[]);
    }
    let open: Vec<_> = book.open().map(|i| (i.kind, i.subject.as_str(), i.under)).collect();
    let isolated = incident_id(AlertKind::Isolated, "a");
    assert_eq!(open.len(), 2, "{open:?}");
    assert!(open.contains(&(AlertKind::Isolated, "a", None)));
    // What was open before is neither over nor a matter of its own: it is explained.
    assert!(open.contains(&(AlertKind::Cluster, "c", Some(isolated))));
    let also: Vec<_> = book.get(isolated).expect("open").also.iter().map(|a| a.subject.clone()).collect();
    assert_eq!(also, ["b", "c"]);
}

#[test]
fn what_a_lost_cluster_said_of_itself_hangs_under_its_loss() {
    let full = Alert {
        kind: AlertKind::Disk,
        subject: "somebody else".into(),
        severity: Severity::Critical,
        text: "full".into(),
    };
    let lie = Alert { kind: AlertKind::Cluster, subject: "b".into(), ..full.clone() };
    let alerts = AlertsReport { own: vec![full, lie], ..AlertsReport::default() };
    let mut members = view(&[("a", Alive), ("b", Alive), ("c", Alive)], false);
    let c = members.members.get_mut(&name("c")).expect("a member");
    c.report = Some(Arc::new(report(&name("c"), Some(alerts), Vec::new())));
    let mut book = Book::default();
    let turns = step(&mut book, 0, &members, &[]);
    let [Turn::Opened(disk)] = turns.as_slice() else { panic!("{turns:?}") };
    assert_eq!(disk.subject, "c", "a member speaks of itself only");
    members.members.get_mut(&name("c")).expect("a member").liveness = Lost;
    for second in 1..40 {
        step(&mut book, second, &members, &[]);
    }
    let loss = book.get(cluster("c")).expect("open");
    assert_eq!(loss.also.iter().map(|a| a.kind).collect::<Vec<_>>(), [AlertKind::Disk]);
    assert_eq!(book.get(disk.id).expect("still open").under, Some(loss.id));
    // A disk that fills while its cluster is away is no incident of its own.
    let mut fresh = Book::default();
    for second in 0..40 {
        step(&mut fresh, second, &members, &[]);
    }
    assert_eq!(fresh.open().map(|i| i.kind).collect::<Vec<_>>(), [AlertKind::Cluster]);
}

#[test]
fn links_are_judged_between_living_members_only() {
    let link = |to: &str, loss_ppm: u32, direct: bool| LinkSample {
        to: name(to),
        rtt_us: 100,
        loss_ppm,
        bandwidth_bps: None,
        bandwidth_at: None,
        at: WallTime(1),
        direct,
    };
    let mut v = view(&[("a", Alive), ("b", Alive), ("c", Lost)], false);
    let mut links = |from: &str, links: Vec<LinkSample>| {
        let r = report(&name(from), None, links);
        v.members.get_mut(&name(from)).expect("a member").report = Some(Arc::new(r));
    };
    links("a", vec![link("b", 60_000, true), link("c", 900_000, true)]);
    links("b", vec![link("a", 50_000, true)]);
    let texts = |v: &View| -> Vec<String> {
        of_links(v, &AlertsConfig::default()).into_iter().map(|s| s.alert.text).collect()
    };
    assert_eq!(texts(&v), ["a to b: 6.0 % of packets are lost"]);
    let mut links = |from: &str, links: Vec<LinkSample>| {
        let r = report(&name(from), None, links);
        v.members.get_mut(&name(from)).expect("a member").report = Some(Arc::new(r));
    };
    links("a", vec![link("b", 0, true)]);
    links("b", vec![link("a", 0, false)]);
    assert_eq!(texts(&v), ["a to b works, and not back"]);
}

#[test]
fn a_peer_knows_what_is_wrong_with_itself() {
    let rules = AlertsConfig::default();
    let well = Facts {
        certificate_left: Span::secs(20 * 86_400),
        contact_age: Some(Span::secs(2)),
        disk_free: Some(Bytes::gib(50)),
        gpus: (6, 8),
        queued: 3,
        ..Facts::default()
    };
    assert_eq!(of_self(&name("a"), &well, &rules), []);
    let window = Window {
        schedule: Some(Span::secs(10)),
        start: Some(Span::secs(300)),
        commit: Some(Span::millis(512)),
        timeouts: 51,
        placed: 100,
        lost: 6,
        gaps: 1,
        invariants: 1,
        link_use_milli: Some(801),
    };
    let tenants = vec![
        TenantUse { tenant: "t".into(), used_milli: 899, waits: None },
        TenantUse { tenant: "u".into(), used_milli: 900, waits: None },
    ];
    let bad = Facts {
        certificate_left: Span::secs(2 * 86_400),
        contact_age: Some(Span::secs(31)),
        disk_free: Some(Bytes::mib(900)),
        gpus: (2, 8),
        window,
        tenants,
        ..well.clone()
    };
    let kinds: BTreeSet<AlertKind> = of_self(&name("a"), &bad, &rules).into_iter().map(|a| a.kind).collect();
    // All but the least of them: what is told is bounded.
    assert_eq!(kinds.len(), AlertsReport::OWN_MAX);
    for kind in [AlertKind::Invariant, AlertKind::Contact, AlertKind::AttemptsLost, AlertKind::Quota] {
        assert!(kinds.contains(&kind), "{kind:?} of {kinds:?}");
    }
    assert!(!kinds.contains(&AlertKind::GpusIdle), "the least of thirteen");
    let few = Facts { window: Window { placed: 9, lost: 9, ..Window::default() }, ..well };
    assert_eq!(of_self(&name("a"), &few, &rules), [], "nine placements say nothing of a share");
}

/// Peers that all see the same, with marks that travel for some seconds.
struct World {
    peers: BTreeMap<&'static str, Peer>,
    dead: BTreeSet<&'static str>,
    /// Marks on their way: when they arrive.
    wire: Vec<(u64, Mark)>,
    travels: u64,
    told: Vec<(u64, &'static str, Mark)>,
    silence: Option<Silence>,
}

#[derive(Default)]
struct Peer {
    book: Book,
    marks: Marks,
    silences: Silences,
    line: Line,
}

impl World {
    fn new(travels: u64) -> Self {
        let peers = ["a", "b", "c", "d", "e"].map(|n| (n, Peer::default())).into();
        Self { peers, dead: BTreeSet::new(), wire: Vec::new(), travels, told: Vec::new(), silence: None }
    }

    /// One second; `gone` is what all see as lost, beside those that are dead.
    fn second(&mut self, second: u64, gone: &[&'static str]) {
        let rules = rules();
        let away = |n: &str| gone.contains(&n) || self.dead.contains(n);
        let names: Vec<&'static str> = self.peers.keys().copied().collect();
        let liveness: Vec<(&str, Liveness)> =
            names.iter().map(|n| (*n, if away(n) { Lost } else { Alive })).collect();
        let v = view(&liveness, false);
        let living: BTreeSet<PeerName> = names.iter().filter(|n| !away(n)).map(|n| name(n)).collect();
        let open: BTreeMap<&str, BTreeSet<IncidentId>> =
            self.peers.iter().map(|(n, p)| (*n, p.book.open().map(|i| i.id).collect())).collect();
        for n in names.iter().copied().filter(|n| !away(n)) {
            let peer = self.peers.get_mut(n).expect("a peer");
            for (_, mark) in self.wire.iter().filter(|(when, _)| *when <= second) {
                peer.marks.take(mark);
            }
            if let Some(silence) = &self.silence {
                peer.silences.take(silence, at(second).wall);
            }
            let seen = of_members(&v, &name(n), &[]);
            peer.book.step(at(second), &seen, false, &rules);
            let elsewhere =
                open.iter().filter(|(o, _)| **o != n && !away(o)).flat_map(|(_, ids)| ids.clone());
            let look = Look {
                me: &name(n),
                book: &peer.book,
                marks: &peer.marks,
                silences: &peer.silences,
                rules: &rules,
                senders: &BTreeMap::from([("ops".to_owned(), living.clone())]),
                open_elsewhere: &elsewhere.collect(),
            };
            for Due { mark } in peer.line.due(at(second), &look) {
                peer.marks.take(&mark);
                self.wire.push((second + self.travels, mark.clone()));
                self.told.push((second, n, mark));
            }
        }
    }

    fn words(&self) -> Vec<(bool, u32)> {
        self.told.iter().map(|(_, _, m)| (m.is_open(), m.n)).collect()
    }
}

#[test]
fn one_incident_is_told_once_and_its_end_once_by_whoever() {
    for travels in 0..12 {
        let mut world = World::new(travels);
        for second in 0..400 {
            world.second(second, if (30..200).contains(&second) { &["e"] } else { &[] });
        }
        assert_eq!(world.words(), [(true, 1), (false, 2)], "{travels}: {:?}", world.told);
        let (when, who, mark) = &world.told[0];
        assert_eq!(mark.id, cluster("e"));
        let line = ["a", "b", "c", "d"].map(name);
        assert_eq!(*order(mark.id, "ops", &line)[0], name(who), "the first in line tells");
        assert!((60..=66).contains(when), "after notify_after: {when}");
        // And again when it happens again.
        for second in 400..600 {
            world.second(second, if second < 500 { &["e"] } else { &[] });
        }
        assert_eq!(world.words()[2..], [(true, 3), (false, 4)]);
    }
}

#[test]
fn the_next_one_tells_when_the_first_dies_before_it_could() {
    let line = ["a", "b", "c", "d"].map(name);
    let firsts: Vec<&str> = order(cluster("e"), "ops", &line).into_iter().map(|n| n.as_str()).collect();
    let known = |n: &str| ["a", "b", "c", "d"].into_iter().find(|k| *k == n).expect("one of them");
    // The first two die, one after the other, each just before its turn; their own losses are incidents, too.
    let mut world = World::new(2);
    for second in 0..300 {
        if second == 61 {
            world.dead.insert(known(firsts[0]));
        }
        if second == 63 {
            world.dead.insert(known(firsts[1]));
        }
        world.second(second, if second >= 30 { &["e"] } else { &[] });
    }
    let of_e: Vec<_> = world.told.iter().filter(|(_, _, m)| m.id == cluster("e")).collect();
    assert_eq!(of_e.len(), 1, "{of_e:?}");
    let (when, who, _) = of_e[0];
    assert!(*who == firsts[2] || *who == firsts[3], "{of_e:?}");
    assert!(*when <= 61 + 2 * 15 + 4, "within a place in line for each that died: {when}");
}

#[test]
fn a_mark_that_never_arrives_costs_a_word_too_many_and_not_more_than_one_a_peer() {
    let mut world = World::new(1_000_000);
    for second in 0..300 {
        world.second(second, if second >= 30 { &["e"] } else { &[] });
    }
    assert!((2..=4).contains(&world.told.len()), "at least once: {:?}", world.told);
    assert!(world.words().iter().all(|w| *w == (true, 1)), "the same word: its key tells");
}

#[test]
fn what_is_silenced_is_not_told_until_the_silence_is_over() {
    let silence = |until: u64| Silence {
        what: "cluster:e".into(),
        until: at(until).wall,
        made: at(0).wall,
        by: "x".into(),
    };
    let mut world = World::new(1);
    world.silence = Some(silence(200));
    for second in 0..400 {
        world.second(second, if second >= 30 { &["e"] } else { &[] });
    }
    assert_eq!(world.words(), [(true, 1)]);
    assert!(world.told[0].0 >= 200, "{:?}", world.told);
    // One that begins and ends in silence is never heard of.
    let mut world = World::new(1);
    world.silence = Some(silence(200));
    for second in 0..400 {
        world.second(second, if (30..150).contains(&second) { &["e"] } else { &[] });
    }
    assert_eq!(world.words(), []);
}

#[test]
fn marks_and_silences_are_bounded_and_the_newer_one_holds() {
    let mark = |subject: &str, n: u32, at: u64| Mark {
        id: cluster(subject),
        kind: AlertKind::Cluster,
        subject: subject.into(),
        via: "ops".into(),
        n,
        at: WallTime(at),
    };
    let mut marks = Marks::default();
    assert!(marks.take(&mark("x", 2, 5)));
    assert!(!marks.take(&mark("x", 1, 9)) && !marks.take(&mark("x", 2, 9)), "an older word");
    assert!(marks.take(&mark("open", 1, 1)));
    for n in 0..200 {
        marks.take(&mark(&format!("p{n}"), 2, 100 + n));
    }
    assert_eq!(marks.all().count(), AlertsReport::MARKS_MAX);
    assert_eq!(marks.n(cluster("open"), "ops"), 1, "what was said to be open is remembered longest");
    let silence = |what: &str, until: u64, made: u64| Silence {
        what: what.into(),
        until: WallTime(until),
        made: WallTime(made),
        by: "x".into(),
    };
    let now = WallTime(1_000);
    let mut silences = Silences::default();
    assert!(silences.take(&silence("link", 9_000, 10), now));
    assert!(silences.until(AlertKind::Link, "a to b", now).is_some());
    assert!(silences.take(&silence("link", 0, 11), now), "ended");
    assert!(!silences.take(&silence("link", 9_000, 10), now), "the old word comes again by gossip");
    assert_eq!(silences.until(AlertKind::Link, "a to b", now), None);
    for n in 0..100 {
        silences.take(&silence(&format!("link:{n}"), 9_000, 10), now);
    }
    assert_eq!(silences.all().count(), AlertsReport::SILENCES_MAX);
    assert!(!silences.take(&silence("link:new", 9_000, 10), now), "no room");
}
