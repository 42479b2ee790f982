//! Index lists, what a child is, and how an array and a waiting job come to their ends.

use super::*;
use crate::base::{BoundedVec, Home, PeerName, StoreId};
use crate::model::record::{CancelIntent, Change};
use crate::model::spec_input::parse_spec;

fn array(text: &str) -> ArraySpec {
    ArraySpec::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn index_lists_are_read_and_written() {
    let indices = |text: &str| -> Vec<u32> {
        let array = array(text);
        (0..array.len()).filter_map(|rank| array.index(rank)).collect()
    };
    assert_eq!(indices("3"), [0, 1, 2]);
    assert_eq!(indices("5-7%2"), [5, 6, 7]);
    assert_eq!(indices("9,1,10-15:2"), [9, 1, 10, 12, 14]);
    assert_eq!((array("0-499%50").at_once, array("0-499").at_once), (50, AT_ONCE_MAX));
    for text in ["3", "9,1,10-15:2%7", "10000"] {
        let read = array(text);
        assert_eq!(array(&read.to_string()), read);
        assert!((0..read.len()).all(|rank| read.rank(read.index(rank).expect("there")) == Some(rank)));
        assert_eq!(read.index(read.len()), None);
    }
    assert_eq!(array("10-15:2").rank(11), None);
    for bad in [
        "",
        "0",
        "x",
        "5-3",
        "1-9:0",
        "1,1",
        "0-9,9-12",
        "-1",
        "1-",
        "0-9%0",
        "0-9%1001",
        "0-9%",
        "5000000",
        "0-10000",
        "1000000",
        "0-4194304",
        &"1,".repeat(80),
    ] {
        assert!(ArraySpec::parse(bad).is_err(), "{bad}");
    }
    let million = ArraySpec::parse("1000000").expect_err("too many");
    assert!(million.contains("1000000 jobs") && million.contains("10000 at most"), "{million}");
}

fn parent(list: &str) -> JobRecord {
    let home =
        |n: u8| Home { peer: PeerName::new(&format!("p{n}")).expect("a name"), store: StoreId([n; 16]) };
    let homes = BoundedVec::try_from(vec![home(1), home(2), home(3)]).expect("three");
    let birth = Birth { tenant: "t".into(), minter: home(1).peer, sequence: 1 << 32, homes };
    let text = format!("{{name: sweep, run: x, env: {{A: b}}, array: \"{list}\"}}");
    let spec = parse_spec(text.as_bytes()).expect("a spec").spec;
    JobRecord::new(birth, spec, TraceId([5; 16]), WallTime(7))
}
fn change(record: &JobRecord, change: ArrayChange) -> Result<JobRecord, Refused> {
    record.apply(&Change::Array(change))
}
fn open(record: &JobRecord, to: u32) -> Result<JobRecord, Refused> {
    change(record, ArrayChange::Open { to })
}
fn ended(record: &JobRecord, ranks: &[(u32, End)]) -> JobRecord {
    change(record, ArrayChange::Ended { ranks: ranks.to_vec(), at: WallTime(9) }).expect("it holds")
}

#[test]
fn a_child_follows_from_its_parent() {
    let parent = parent("5-9:2%2");
    let (first, again) = (parent.child(1).expect("there"), parent.child(1).expect("there"));
    assert_eq!(first, again);
    assert_eq!(first.birth, parent.child_birth(1).expect("there"));
    assert_ne!(first.id(), parent.child(0).expect("there").id());
    assert_ne!(first.trace, parent.trace);
    assert_eq!((first.spec.name.as_str(), &first.spec.array), ("sweep-7", &None));
    assert_eq!(first.array_of, Some(ArrayOf { parent: parent.id(), index: 7 }));
    let env = |key: &str| first.spec.env.get(key).map(String::as_str);
    assert_eq!(
        (env("A"), env("STARLING_ARRAY_INDEX"), env("STARLING_ARRAY_COUNT")),
        (Some("b"), Some("7"), Some("3"))
    );
    assert_eq!((env("STARLING_ARRAY_MIN"), env("STARLING_ARRAY_MAX")), (Some("5"), Some("9")));
    assert_eq!(parent.child(3), None);
    // No two jobs of arrays share a number, and none has one that a minter gives out.
    let mut numbers = std::collections::BTreeSet::new();
    for sequence in
        [1 << 32, (1 << 32) + 1, 2 << 32, 3 << 50, (3 << 50) + 7, (1 << 52) - (1 << 32) + (1 << 29) - 1]
    {
        let birth = Birth { sequence, ..parent.birth.clone() };
        let array = JobRecord { birth, ..parent.clone() };
        for rank in 0..3 {
            let number = array.child_birth(rank).expect("in range").sequence;
            assert!(number >> 63 == 1 && numbers.insert(number), "{sequence} {rank}");
        }
    }
    let late = JobRecord { birth: Birth { sequence: 1 << 29, ..parent.birth.clone() }, ..parent.clone() };
    assert_eq!(late.child_birth(0), None);
    let mut long = parent.clone();
    long.spec.name = "n".repeat(128);
    assert_eq!(long.child(0).expect("there").spec.name.len(), 128);
}

#[test]
fn no_more_are_open_than_may_be_at_once() {
    let fresh = parent("0-9%3");
    assert!(open(&fresh, 4).is_err() && open(&fresh, 11).is_err());
    let three = open(&fresh, 3).expect("three");
    assert_eq!(
        (three.state, three.reason.as_str()),
        (JobState::Running, "0 of 10 jobs have ended, 3 are under way")
    );
    assert!(open(&three, 4).is_err());
    let two = ended(&three, &[(1, End::Ok), (1, End::Failed), (7, End::Ok)]);
    let state = two.array.as_ref().expect("an array");
    assert_eq!((state.done(), state.ok), (1, 1), "once, and not what is not open");
    assert!(open(&two, 5).is_err() && open(&two, 4).is_ok());
    assert!(two.reflects(&Change::Array(ArrayChange::Open { to: 3 })));
    assert!(!two.reflects(&Change::Array(ArrayChange::Open { to: 4 })));
    // Open never goes back.
    assert_eq!(open(&two, 1).expect("no change").array.map(|a| a.opened), Some(3));
}

#[test]
fn an_array_ends_as_its_jobs_do() {
    let all = |ends: [End; 2]| ended(&open(&parent("2"), 2).expect("both"), &[(0, ends[0]), (1, ends[1])]);
    let good = all([End::Ok, End::Ok]);
    assert_eq!((good.state, good.reason.as_str()), (JobState::Succeeded, "2 of 2 jobs succeeded"));
    let bad = all([End::Ok, End::Failed]);
    assert_eq!((bad.state, bad.reason.as_str()), (JobState::Failed, "1 of 2 jobs succeeded, 1 failed"));
    assert_eq!(bad.finished_at, Some(WallTime(9)));
    assert_eq!(all([End::Cancelled, End::Ok]).state, JobState::Failed);
    assert!(matches!(open(&bad, 2), Err(Refused::Final(_))));
}

#[test]
fn a_cancelled_array_opens_no_more_and_ends_with_its_last_job() {
    let cancel = || Change::Cancel { intent: CancelIntent { by: "me".into(), at: WallTime(8) } };
    let at_once = parent("0-9").apply(&cancel()).expect("pending");
    assert_eq!(at_once.state, JobState::Cancelled);
    let one = open(&parent("0-9%2"), 2).expect("two").apply(&cancel()).expect("runs");
    assert!(!one.state.is_final() && one.reason.starts_with("cancel asked by me"), "{}", one.reason);
    assert_eq!(open(&one, 2), Err(Refused::Cancelled));
    let half = ended(&one, &[(0, End::Cancelled)]);
    assert!(!half.state.is_final());
    let over = ended(&half, &[(1, End::Ok)]);
    assert_eq!(
        (over.state, over.reason.as_str()),
        (JobState::Cancelled, "cancelled by me: 1 of 10 jobs succeeded, 1 were cancelled")
    );
}

#[test]
fn a_job_waits_for_others_and_ends_when_they_end_wrong() {
    let mut waits = parent("2");
    (waits.spec.array, waits.array) = (None, None);
    let other = parent("3").birth;
    waits.spec.after = vec![After { birth: other.clone(), on: On::Ok }, After { birth: other, on: On::Any }];
    assert_eq!(waits.waits_for().map(|(i, _)| i).collect::<Vec<_>>(), [0, 1]);
    let one = change(&waits, ArrayChange::Met { which: 0 }).expect("met");
    assert_eq!((one.reason.as_str(), one.waits_for().count()), ("waits for 1 jobs to end", 1));
    assert!(one.reflects(&Change::Array(ArrayChange::Met { which: 0 })));
    assert!(change(&one, ArrayChange::Met { which: 2 }).is_err());
    let both = change(&one, ArrayChange::Met { which: 1 }).expect("met");
    assert_eq!((both.reason.as_str(), both.waits_for().count()), ("waits for a cluster", 0));
    let never =
        change(&one, ArrayChange::Unmet { why: "x failed".into(), at: WallTime(9) }).expect("never ran");
    assert_eq!((never.state, never.reason.as_str()), (JobState::Cancelled, "x failed"));
    for (on, state, met) in [
        (On::Ok, JobState::Succeeded, true),
        (On::Ok, JobState::Cancelled, false),
        (On::Fail, JobState::Failed, true),
        (On::Fail, JobState::Succeeded, false),
        (On::Any, JobState::Cancelled, true),
    ] {
        assert_eq!(on.met_by(state), met, "{on:?} {state:?}");
    }
}

#[test]
fn the_largest_array_fits_a_record() {
    let mut large = parent("10000");
    for from in (0..10_000).step_by(1_000) {
        large = open(&large, from + 1_000).expect("room");
        let ranks: Vec<(u32, End)> = (from..from + 1_000).map(|rank| (rank, End::Ok)).collect();
        large = ended(&large, &ranks);
    }
    assert_eq!(large.state, JobState::Succeeded);
    assert!(serde_json::to_vec(&large).expect("json").len() < 8 * 1024);
}
