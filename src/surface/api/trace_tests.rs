//! A trace put together from a record that moved twice, with and without what peers noted.

use super::*;
use crate::base::{BoundedVec, Home, StoreId, TraceId};
use crate::model::record::{Birth, Change, MoveIntent};
use crate::model::trace::TraceParent;
use crate::model::{Outcome, Placement};
use crate::runtime::eventlog::Entry;
use crate::surface::documents::HistoryEntry;

fn peer(name: &str) -> PeerName {
    name.parse().expect("a name")
}

fn place(record: &JobRecord, cluster: &str, at: u64) -> JobRecord {
    let placement = Placement {
        cluster: peer(cluster),
        contact: Default::default(),
        incarnation: 1,
        series: 1,
        contact_homes: BoundedVec::default(),
        at: WallTime(at),
    };
    record.apply(&Change::Place { placement, epoch: record.epoch.next() }).expect("placed")
}

fn ran(record: &JobRecord, from: u64, to: u64, outcome: Outcome) -> JobRecord {
    let epoch = record.epoch;
    let record = record.apply(&Change::Started { epoch, at: WallTime(from), nodes: None }).expect("started");
    let close = Change::Close {
        epoch,
        outcome,
        started_at: Some(WallTime(from)),
        at: WallTime(to),
        note: None,
        nodes: None,
    };
    record.apply(&close).expect("closed")
}

/// Moved twice: a on 1..10 s, then b, then c, which ends it.
fn moved_twice(parent: Option<TraceParent>) -> JobRecord {
    let homes = vec![Home { peer: peer("a"), store: StoreId([1; 16]) }];
    let homes = BoundedVec::try_from(homes).expect("one home");
    let birth = Birth { tenant: "t".into(), minter: peer("a"), sequence: 1, homes };
    let spec = crate::surface::fake::Fake::spec("name: train\nrun: [\"true\"]\n");
    let mut record = JobRecord::new(birth, spec, TraceId([7; 16]), WallTime(1_000));
    record.trace_parent = parent.map(|p| p.span);
    let stopped = || Outcome::Stopped("a move".into());
    let to = |record: &JobRecord, name: &str, at| {
        let intent = MoveIntent { to: peer(name), by: "me".into(), at: WallTime(at) };
        record.apply(&Change::Move { intent }).expect("moves")
    };
    let record = place(&record, "a", 2_000);
    let record = ran(&to(&record, "b", 9_000), 3_000, 10_000, stopped());
    let record = place(&record, "b", 11_000);
    let record = ran(&to(&record, "c", 19_000), 12_000, 20_000, stopped());
    ran(&place(&record, "c", 21_000), 22_000, 30_000, Outcome::Exited(0))
}

fn event(record: &JobRecord, by: &str, spans: Vec<SpanNote>) -> HistoryEntry {
    let trace = Some(record.trace);
    let event = crate::core::api::Event {
        trace,
        spans,
        ..crate::core::api::Event::new("job.x", Some(record.id()), "x")
    };
    HistoryEntry { peer: peer(by), entry: Entry::new(event, WallTime(5_000)) }
}

fn is_one_tree(found: &TraceDocument) {
    assert_eq!(found.spans.iter().filter(|s| s.depth == 0).count(), 1);
    for (n, span) in found.spans.iter().enumerate().skip(1) {
        let parent = span.parent.as_ref().expect("a parent");
        let above = found.spans[..n].iter().rfind(|s| s.id == *parent).expect("the parent comes before");
        assert_eq!(span.depth, above.depth + 1, "{span:?}");
    }
}

#[test]
fn a_job_that_moved_twice_is_one_tree_also_from_the_record_alone() {
    let record = moved_twice(None);
    let list = HistoryList { events: Vec::new(), unanswered: vec![peer("b")] };
    let found = assemble(&record, list, WallTime(99_000));
    is_one_tree(&found);
    let rows: Vec<(&str, Option<u64>, u64, Option<u64>)> =
        found.spans.iter().map(|s| (s.name.as_str(), s.epoch, s.from_ms, s.to_ms)).collect();
    let want = [
        ("job", None, 1_000, Some(30_000)),
        ("queue", Some(1), 1_000, Some(2_000)),
        ("attempt", Some(1), 2_000, Some(10_000)),
        ("start", Some(1), 2_000, Some(3_000)),
        ("run", Some(1), 3_000, Some(10_000)),
        ("queue", Some(2), 10_000, Some(11_000)),
        ("move", Some(2), 10_000, Some(12_000)),
        ("attempt", Some(2), 11_000, Some(20_000)),
        ("start", Some(2), 11_000, Some(12_000)),
        ("run", Some(2), 12_000, Some(20_000)),
        ("queue", Some(3), 20_000, Some(21_000)),
        ("move", Some(3), 20_000, Some(22_000)),
        ("attempt", Some(3), 21_000, Some(30_000)),
        ("start", Some(3), 21_000, Some(22_000)),
        ("run", Some(3), 22_000, Some(30_000)),
    ];
    assert_eq!(rows, want);
    assert_eq!(found.unanswered, [peer("b")]);
    let notes: Vec<&str> = found.spans.iter().filter(|s| s.name == "move").map(|s| s.note.as_str()).collect();
    assert_eq!(notes, ["a to b", "b to c"]);
}

#[test]
fn what_peers_noted_hangs_in_its_place_and_changes_no_time_of_the_record() {
    let parent: TraceParent =
        "00-07070707070707070707070707070707-00f067aa0ba902b7-01".parse().expect("a parent");
    let record = moved_twice(Some(parent));
    let note = |name: &str, epoch, from, to| SpanNote::new(name, Epoch(epoch), WallTime(from), WallTime(to));
    let events = vec![
        event(
            &record,
            "a",
            vec![
                note(trace::SUBMIT, 0, 990, 1_010).at(&peer("a")),
                note(trace::COMMIT, 0, 1_000, 1_009).under(trace::SUBMIT).note("new record"),
                note(trace::CLAIM, 1, 1_100, 1_200).at(&peer("b")),
                note(trace::CLAIM, 1, 1_100, 1_900).at(&peer("a")),
                // A clock that is off does not move what the record says.
                note(trace::RUN, 1, 77_000, 78_000),
            ],
        ),
        event(
            &record,
            "b",
            vec![
                note(trace::STAGE, 2, 11_000, 11_400).at(&peer("b")),
                note(trace::START, 2, 11_400, 12_000).at(&peer("b")),
                note(trace::CHECKPOINT, 2, 15_000, 15_020).note("file:/c"),
                // Of a later version, or under a span that nobody told of.
                note("novel", 2, 15_000, 15_100),
                note(trace::COMMIT, 9, 16_000, 16_100).under(trace::ATTEMPT),
            ],
        ),
    ];
    // The same once more: asked of two peers, or written twice after a restart.
    let events = events.iter().chain(&events).cloned().collect();
    let found = assemble(&record, HistoryList { events, unanswered: Vec::new() }, WallTime(99_000));
    is_one_tree(&found);
    let one = |name: &str, epoch: Option<u64>| {
        let mut all = found.spans.iter().filter(|s| s.name == name && s.epoch == epoch);
        let first = all.next().unwrap_or_else(|| panic!("no {name} {epoch:?}: {:#?}", found.spans));
        assert!(all.next().is_none() || name == "claim", "{name} is there once");
        first
    };
    assert_eq!((one("run", Some(1)).from_ms, one("run", Some(1)).to_ms), (3_000, Some(10_000)));
    assert_eq!(
        (one("start", Some(2)).from_ms, one("start", Some(2)).peer.clone()),
        (11_400, Some(peer("b")))
    );
    assert_eq!(one("checkpoint", Some(2)).parent.as_ref(), Some(&one("run", Some(2)).id));
    assert_eq!(one("claim", Some(1)).parent.as_ref(), Some(&one("queue", Some(1)).id));
    assert_eq!(one("commit", None).parent.as_ref(), Some(&one("submit", None).id));
    assert_eq!(one("novel", Some(2)).depth, 1);
    assert_eq!(one("commit", Some(9)).depth, 1);
    assert_eq!(found.spans[0].parent.as_deref(), Some("00f067aa0ba902b7"), "under the caller's span");
    assert!(found.events.iter().all(|e| e.entry.spans.is_empty()), "spans are told once");
}

#[test]
fn one_that_waits_has_an_open_wait() {
    let record = moved_twice(None);
    let mut waits = record.clone();
    waits.state = crate::model::JobState::Pending;
    waits.finished_at = None;
    let found = assemble(&waits, HistoryList::default(), WallTime(40_000));
    is_one_tree(&found);
    let last = found.spans.last().expect("spans");
    assert_eq!((last.name.as_str(), last.epoch, last.from_ms, last.to_ms), ("queue", Some(4), 30_000, None));
    assert_eq!((found.spans[0].to_ms, found.to_ms), (None, 40_000));
}
