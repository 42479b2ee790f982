//! What a cluster does with an attempt that has ended and whose record does not say so yet.

use super::*;
use crate::base::{BoundedVec, StoreId};
use crate::core::api::{DiskImage, Now};
use crate::core::past::MARK_KEY;
use crate::core::testing::{config, name, spec};
use crate::model::Resources;

const STORE: StoreId = StoreId([1; 16]);

/// A peer that finds the row of an ended attempt on its disk; the record's home is another peer.
fn peer() -> (Peer, AttemptKey, Birth) {
    let home = Home { peer: name("b"), store: StoreId([2; 16]) };
    let homes = BoundedVec::try_from(vec![home]).expect("one");
    let birth = Birth { tenant: "t".into(), minter: name("b"), sequence: 1, homes };
    let at = WallTime(5);
    let row = Row {
        birth: birth.clone(),
        epoch: Epoch(1),
        spec: spec(),
        shares: Vec::new(),
        binding: (ContactId([3; 20]), 1),
        moving_to: None,
        preempted: None,
        closed: Some(Closed {
            outcome: Outcome::Exited(0),
            started_at: Some(at),
            at,
            note: None,
            nodes: None,
        }),
        trail: None,
    };
    let key = AttemptKey { job: birth.id(), epoch: Epoch(1) };
    let mut disk = DiskImage::default();
    let bytes = serde_json::to_vec(&row).expect("plain");
    disk.tables.entry(Table::Attempts).or_default().insert(row_key(&key), bytes);
    // It was used before.
    let mark = (MARK_KEY.to_vec(), 9u64.to_be_bytes().to_vec());
    disk.tables.entry(Table::Meta).or_default().extend([mark]);
    let now = Now { mono: Instant(1), wall: WallTime(1) };
    let (mut peer, _) = Peer::recover(config("a", STORE), &disk, now).expect("its disk");
    peer.out.clear();
    (peer, key, birth)
}

#[test]
fn a_job_that_ended_here_is_not_claimed_again_before_that_is_told() {
    let (mut peer, key, birth) = peer();
    let claim = Claim {
        birth,
        epoch: Epoch(2),
        nodes: 1,
        resources: Resources::default(),
        priority: 50,
        image: false,
        max_runtime: None,
    };
    peer.on_claim(name("b"), claim.clone(), Terms::default());
    let said = peer.out.iter().find_map(|o| match o {
        Output::Send { message: Message::ClaimState { refused, .. }, .. } => refused.clone(),
        _ => None,
    });
    assert!(said.is_some_and(|why| why.contains("is being recorded")), "{:?}", peer.out);
    // And the record is told at once.
    let told = |o: &Output| matches!(o, Output::Send { message: Message::Register(_), .. });
    assert!(peer.out.iter().any(told), "{:?}", peer.out);
    // Once it is told another reason counts: this peer runs nothing at all.
    peer.out.clear();
    peer.closed_recorded(key, OpResult::Forgotten);
    peer.on_claim(name("b"), claim, Terms::default());
    let refusals: Vec<&Output> = peer.out.iter().filter(|o| matches!(o, Output::Send { .. })).collect();
    assert!(format!("{refusals:?}").contains("does not fit"), "{refusals:?}");
}

#[test]
fn how_far_it_has_come_is_bounded_shown_while_it_starts_and_in_its_spans() {
    use crate::base::Bytes;
    use crate::model::staging::{Part, PartKind, PartState, Staging};
    let (mut peer, key, _) = peer();
    let attempt = peer.exec.attempts.get_mut(&key).expect("its row");
    let trail = Trail { trace: TraceId([5; 16]), placed_at: WallTime(1_000), from: None };
    (attempt.phase, attempt.handed) = (Phase::Starting, Some(WallTime(2_000)));
    (attempt.row.closed, attempt.row.trail) = (None, Some(trail));
    let image = |state, done: u64| Part {
        state,
        done: Some(Bytes(done)),
        from: Some(WallTime(2_100)),
        ..Part::needed(PartKind::Image, "s3://u:p@h/x")
    };
    let say = |peer: &mut Peer, parts| {
        let staging = Box::new(Staging { parts, at: WallTime(2_500) });
        peer.on_backend(BackendEvent::Staging { key, staging });
    };
    say(&mut peer, vec![image(PartState::Comes, 10); 1_000]);
    let view = peer.exec.attempts_view(Instant(1)).remove(0).staging.expect("while it starts");
    assert_eq!((view.parts.len(), view.parts[0].name.as_str()), (64, "s3://REDACTED@h/x"));
    let data = Part::needed(PartKind::Data, "there").there(Some(Bytes(99)));
    say(&mut peer, vec![data, image(PartState::Comes, 70)]);
    peer.out.clear();
    peer.on_backend(BackendEvent::Started { key, at: WallTime(3_000) });
    let spans: Vec<SpanNote> = peer
        .out
        .iter()
        .filter_map(|o| match o {
            Output::Event(e) if e.kind == "attempt.started" => Some(e.spans.clone()),
            _ => None,
        })
        .flatten()
        .collect();
    let named = |name: &str| -> Vec<&SpanNote> { spans.iter().filter(|s| s.name == name).collect() };
    assert_eq!(named(trace::START)[0].bytes, Some(Bytes(70)), "what was there was not moved");
    let brought = named(trace::BRING);
    assert_eq!((brought.len(), brought[0].bytes), (1, Some(Bytes(70))), "{spans:?}");
    assert_eq!((brought[0].from, brought[0].to), (WallTime(2_100), WallTime(3_000)));
    // A word that comes late changes nothing.
    say(&mut peer, vec![image(PartState::Comes, 1)]);
    assert_eq!(peer.exec.attempts_view(Instant(1))[0].staging, None, "it runs");
    // What the version before says of an attempt is read.
    let mut old = serde_json::to_value(&peer.exec.attempts_view(Instant(1))[0]).expect("plain");
    old.as_object_mut().expect("an object").remove("staging");
    assert!(serde_json::from_value::<AttemptView>(old).is_ok());
}

#[test]
fn where_it_runs_is_told_to_the_record_with_its_start_and_kept_to_its_end() {
    let (mut peer, key, _) = peer();
    let attempt = peer.exec.attempts.get_mut(&key).expect("its row");
    (attempt.phase, attempt.row.closed, attempt.busy) = (Phase::Starting, None, false);
    peer.out.clear();
    peer.on_backend(BackendEvent::Where { key, nodes: "n[1-2]".repeat(100) });
    peer.on_backend(BackendEvent::Started { key, at: WallTime(3_000) });
    let attempt = peer.exec.attempts.get_mut(&key).expect("its row");
    assert_eq!(attempt.nodes.as_ref().map(String::len), Some(300), "bounded");
    assert!(attempt.nodes.as_ref().is_some_and(|n| n.ends_with('…')), "and says so");
    attempt.busy = true;
    let at = WallTime(4_000);
    peer.on_backend(BackendEvent::Ended { key, outcome: Outcome::Exited(0), started_at: None, at });
    let row = &peer.exec.attempts[&key].row;
    let mut text = serde_json::to_value(row).expect("plain");
    assert!(text["closed"]["nodes"].as_str().is_some_and(|n| n.starts_with("n[1-2]n")), "{text}");
    // What the version before wrote is read.
    text["closed"].as_object_mut().expect("an object").remove("nodes");
    let read: Row = serde_json::from_value(text).expect("is read");
    assert!(read.closed.is_some_and(|c| c.nodes.is_none()));
}

#[test]
fn what_a_backend_says_of_an_end_is_kept_with_it_and_bounded() {
    let (mut peer, key, _) = peer();
    let attempt = peer.exec.attempts.get_mut(&key).expect("its row");
    (attempt.phase, attempt.row.closed, attempt.busy) = (Phase::Running, None, true);
    peer.on_backend(BackendEvent::Note { key, text: "killed for memory ".repeat(100) });
    let at = WallTime(4_000);
    peer.on_backend(BackendEvent::Ended { key, outcome: Outcome::Signaled(9), started_at: None, at });
    let row = &peer.exec.attempts[&key].row;
    let note = row.closed.as_ref().and_then(|c| c.note.clone()).expect("kept");
    assert_eq!((note.len(), note.starts_with("killed for memory")), (300, true));
    // The version before writes none.
    let mut old = serde_json::to_value(row).expect("plain");
    old["closed"].as_object_mut().expect("an object").remove("note");
    let read: Row = serde_json::from_value(old).expect("is read");
    assert!(read.closed.is_some_and(|c| c.note.is_none()));
}

/// What a scheduler says may have any length, and a report takes 512 bytes: one that is not taken would leave the others
/// with the last one, which says that the cluster is open.
#[test]
fn the_words_of_a_scheduler_are_told_as_one_short_line() {
    use crate::core::api::ClusterState;
    let (mut peer, key, _) = peer();
    let fits = |why: &str| why.len() <= 512 && !why.contains(char::is_control);
    let long = format!("unknown: Slurm does not answer (\u{1b}[2J\n{})", "né ".repeat(1_000));
    let state = ClusterState { closed: Some(long.clone()), ..ClusterState::default() };
    peer.on_backend(BackendEvent::Cluster(Box::new(state)));
    let why = peer.closed_for().expect("nothing is taken");
    assert!(fits(&why) && why.starts_with("unknown: Slurm does not answer (") && why.ends_with('…'), "{why}");

    let attempt = peer.exec.attempts.get_mut(&key).expect("its row");
    (attempt.phase, attempt.row.closed, attempt.busy) = (Phase::Starting, None, true);
    let (outcome, at) = (Outcome::NotStarted(long), WallTime(4_000));
    peer.on_backend(BackendEvent::Ended { key, outcome, started_at: None, at });
    let closed = peer.exec.attempts[&key].row.closed.as_ref().expect("its end");
    let Outcome::NotStarted(why) = &closed.outcome else { panic!("{closed:?}") };
    assert!(fits(why) && why.ends_with('…'), "{why}");
}

#[test]
fn an_end_that_nobody_is_left_to_hear_is_dropped() {
    let (mut peer, key, _) = peer();
    peer.closed_recorded(key, OpResult::Timeout { answered: 0, needed: 1 });
    assert!(peer.exec.attempts.contains_key(&key), "unknown is not forgotten");
    peer.out.clear();
    peer.closed_recorded(key, OpResult::Forgotten);
    assert!(peer.exec.attempts.is_empty());
    let gone = |o: &Output| matches!(o, Output::Write(w) if w.key == row_key(&key) && w.value.is_none());
    assert!(peer.out.iter().any(gone), "{:?}", peer.out);
}

#[test]
fn a_forgotten_job_runs_no_further() {
    let (mut peer, key, _) = peer();
    if let Some(attempt) = peer.exec.attempts.get_mut(&key) {
        (attempt.phase, attempt.row.closed) = (Phase::Running, None);
    }
    peer.looked(key.job, OpResult::Forgotten);
    let stops = |o: &Output| {
        matches!(o, Output::Backend(BackendCommand::Stop { reason: StopReason::Superseded, .. }))
    };
    assert!(peer.out.iter().any(stops), "{:?}", peer.out);
}

/// The row and the guard's file come first: after a crash in between, the attempt would live by the contact that
/// its record has left.
#[test]
fn a_binding_moves_only_after_both_contacts_are_on_disk() {
    let (mut peer, key, _) = peer();
    let next = NextBinding { to: (ContactId([4; 20]), 1), series: 2, homes: Vec::new() };
    if let Some(attempt) = peer.exec.attempts.get_mut(&key) {
        (attempt.phase, attempt.row.closed, attempt.row.moving_to) = (Phase::Running, None, Some(next));
    }
    peer.propose_rebind(key);
    let sent: Vec<bool> = peer
        .out
        .iter()
        .filter_map(|o| match o {
            Output::Send { message: Message::Register(_), durable, .. } => Some(*durable),
            _ => None,
        })
        .collect();
    assert_eq!(sent, [true]);
    // A start later it is not known yet: before anything is renewed the guard is told again.
    if let Some(attempt) = peer.exec.attempts.get_mut(&key) {
        attempt.rebinding = false;
    }
    peer.out.clear();
    peer.rebind_attempts();
    let told = |o: &Output| {
        matches!(o, Output::Backend(BackendCommand::Rebind { to, and, .. })
            if *to == (ContactId([4; 20]), 1) && *and == Some((ContactId([3; 20]), 1)))
    };
    assert!(peer.out.iter().any(told), "{:?}", peer.out);
}

/// What tenants used outlives the process, decayed by the time that has passed; nonsense in its row is as good as none.
#[test]
fn usage_outlives_a_restart() {
    let (peer, ..) = peer();
    let cfg = CoreConfig { nodes: peer.cfg.nodes.clone(), ..peer.cfg.clone() };
    let now = |secs: u64| Now { mono: Instant(secs * 1_000_000), wall: WallTime(secs * 1_000) };
    let none = BTreeMap::new();
    let mut exec = Executor::recover(&cfg, &none, &none, now(0)).expect("empty");
    assert_eq!(exec.usage_row(Instant(61_000_000), WallTime(61_000)), None, "nobody used anything");
    exec.sched.restore_usage("t", 100.0, Instant(61_000_000));
    assert_eq!(exec.usage_row(Instant(62_000_000), WallTime(62_000)), None, "once a minute");
    let row = exec.usage_row(Instant(121_000_000), WallTime(121_000)).expect("a row");
    let used = |row: Vec<u8>, secs: u64| {
        let meta = BTreeMap::from([(USAGE_KEY.to_vec(), row)]);
        let exec = Executor::recover(&cfg, &none, &meta, now(secs)).expect("reads");
        exec.sched.accounts().top(Instant(secs * 1_000_000), 9)
    };
    let half = cfg.schedule.half_life.as_secs_f64() as u64;
    let later = used(row.clone(), 121 + half);
    assert!(later.len() == 1 && (49.0..51.0).contains(&later[0].1), "{later:?}");
    // A clock for people that went back makes nobody richer.
    assert!(used(row, 1)[0].1 <= 100.0);
    assert!(used(b"nonsense".to_vec(), 1).is_empty());
}

/// A start costs the same beside any number of attempts.
#[test]
fn a_start_does_not_look_at_all_attempts() {
    let (mut peer, key, _) = peer();
    let attempt = peer.exec.attempts.get_mut(&key).expect("its row");
    (attempt.phase, attempt.row.closed) = (Phase::Starting, None);
    attempt.admitted = Instant(1);
    for n in 0..50 {
        let other = AttemptKey { job: JobId([n; 20]), epoch: Epoch(1) };
        let attempt = peer.exec.attempts[&key].clone();
        peer.exec.attempts.insert(other, attempt);
    }
    peer.now.mono = Instant(7_000_001);
    peer.out.clear();
    let before = crate::base::work::done("attempts_view");
    peer.on_backend(BackendEvent::Started { key, at: WallTime(7_000) });
    assert_eq!(crate::base::work::done("attempts_view"), before);
    let took = peer.out.iter().find_map(|o| match o {
        Output::Event(e) if e.kind == "attempt.started" => e.took,
        _ => None,
    });
    assert_eq!(took, Some(Span::secs(7)), "{:?}", peer.out);
}

/// What the eye on the invariants gathers does not grow with the attempts of other nodes.
#[test]
fn an_admission_is_held_against_its_own_nodes() {
    let (mut peer, key, _) = peer();
    for n in 0..50 {
        let other = AttemptKey { job: JobId([n; 20]), epoch: Epoch(1) };
        let mut attempt = peer.exec.attempts[&key].clone();
        (attempt.phase, attempt.row.closed) = (Phase::Running, None);
        attempt.row.shares = vec![NodeShare { node: u32::from(n), gpus: vec![0, 1] }];
        peer.exec.attempts.insert(other, attempt);
    }
    let before = crate::base::work::done("gpus gathered");
    peer.watch_admit(key, &[NodeShare { node: 3, gpus: vec![2] }]);
    assert_eq!(crate::base::work::done("gpus gathered") - before, 2);
    assert_eq!(peer.counters().get("invariant_I6_violated"), None);
    peer.watch_admit(key, &[NodeShare { node: 3, gpus: vec![1] }]);
    assert_eq!(peer.counters().get("invariant_I6_violated"), Some(&1));
}

#[test]
fn the_last_that_were_closed_are_remembered_and_no_more() {
    let key = |n: u64| AttemptKey { job: JobId([3; 20]), epoch: Epoch(n) };
    let mut done = Done::default();
    for n in 0..DONE_MAX as u64 {
        done.note(key(n));
        done.note(key(0));
    }
    assert!(
        done.contains(&key(0)) && done.contains(&key(DONE_MAX as u64 - 1)),
        "one that is told twice is one"
    );
    done.note(key(DONE_MAX as u64));
    assert!(!done.contains(&key(0)) && done.contains(&key(1)));
    assert_eq!((done.order.len(), done.keys.len()), (DONE_MAX, DONE_MAX));
}

#[test]
fn a_scheduler_that_never_answered_is_told_though_there_is_no_node() {
    let at = |ms: u64| Now { mono: Instant(ms * 1_000), wall: WallTime(ms) };
    let (mut peer, _) = Peer::recover(config("a", STORE), &DiskImage::default(), at(1)).expect("empty");
    let mut told = |ms, closed: Option<&str>| {
        let state =
            crate::core::api::ClusterState { closed: closed.map(str::to_owned), ..Default::default() };
        let event = crate::core::BackendEvent::Cluster(Box::new(state));
        let out = peer.step(at(ms), crate::core::Input::Backend(event));
        out.into_iter().find_map(|o| match o {
            Output::Report { queue, .. } => Some(queue.closed),
            _ => None,
        })
    };
    assert_eq!(told(2_000, Some("unknown: no answer")), Some(Some("unknown: no answer".to_owned())));
    // What still closes it is its own: alone, it has heard of no tenants.
    let own = "has not heard yet which tenants are limited".to_owned();
    assert_eq!(told(60_000, None), Some(Some(own)), "and that it answers now");
}
