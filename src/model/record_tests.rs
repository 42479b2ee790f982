//! What each change to a job's record does, and what it refuses.

use super::*;
use crate::base::StoreId;
use crate::model::spec_input::parse_spec;

fn record(spec: &str) -> JobRecord {
    let home = Home { peer: PeerName::new("a").expect("a name"), store: StoreId([1; 16]) };
    let birth = Birth {
        tenant: "default".into(),
        minter: home.peer.clone(),
        sequence: 1,
        homes: vec![home].try_into().expect("one"),
    };
    let spec = parse_spec(spec.as_bytes()).expect("a spec").spec;
    JobRecord::new(birth, spec, TraceId([1; 16]), WallTime(1))
}

fn place(epoch: u64) -> Change {
    let cluster = PeerName::new("c").expect("a name");
    let placement = Placement {
        cluster,
        contact: ContactId([7; 20]),
        incarnation: 1,
        series: 1,
        contact_homes: BoundedVec::default(),
        at: WallTime(2),
    };
    Change::Place { placement, epoch: Epoch(epoch) }
}

fn close(epoch: u64, outcome: Outcome) -> Change {
    Change::Close { epoch: Epoch(epoch), outcome, started_at: None, at: WallTime(3), note: None, nodes: None }
}

fn free(epoch: u64) -> Change {
    Change::Free { epoch: Epoch(epoch), contact: ContactId([7; 20]), incarnation: 1, at: WallTime(4) }
}

fn after(mut record: JobRecord, changes: &[Change]) -> JobRecord {
    for change in changes {
        record = record.apply(change).expect("holds");
        assert!(record.reflects(change), "{change:?}");
    }
    record
}

#[test]
fn one_executor_per_epoch_and_epochs_rise_by_one() {
    let placed = after(record("run: 'true'"), &[place(1)]);
    assert_eq!(placed.apply(&place(2)), Err(Refused::Placed(PeerName::new("c").expect("a name"), Epoch(1))));
    assert_eq!(record("run: 'true'").apply(&place(2)), Err(Refused::Stale(Epoch(2))));
    let freed = after(placed, &[free(1)]);
    assert_eq!((freed.state, freed.losses), (JobState::Pending, 1));
    assert_eq!(freed.apply(&place(1)), Err(Refused::Stale(Epoch(1))));
    assert_eq!(after(freed, &[place(2)]).epoch, Epoch(2));
}

#[test]
fn nothing_follows_an_end() {
    let done = after(record("run: 'true'"), &[place(1), close(1, Outcome::Exited(0))]);
    assert_eq!(done.state, JobState::Succeeded);
    for change in [place(2), free(1), close(1, Outcome::Exited(1))] {
        assert_eq!(done.apply(&change), Err(Refused::Final(JobState::Succeeded)));
    }
}

#[test]
fn a_finished_job_that_was_given_up_is_not_run_again() {
    let freed = after(record("run: 'true'"), &[place(1), free(1)]);
    let done = freed.apply(&close(1, Outcome::Exited(0))).expect("nothing newer was placed");
    assert_eq!((done.state, done.losses), (JobState::Succeeded, 0));
    assert_eq!(freed.apply(&close(1, Outcome::Exited(1))), Err(Refused::Stale(Epoch(1))));
    let placed = after(freed, &[place(2)]);
    assert_eq!(placed.apply(&close(1, Outcome::Exited(0))), Err(Refused::Stale(Epoch(1))));
}

#[test]
fn freeing_and_rebinding_name_the_binding_they_saw() {
    let placed = after(record("run: 'true'"), &[place(1)]);
    let to = (ContactId([8; 20]), 1);
    let rebind = |from| Change::Rebind { epoch: Epoch(1), from, to, series: 2, homes: vec![] };
    let rebound = after(placed, &[rebind((ContactId([7; 20]), 1))]);
    assert_eq!(rebound.apply(&free(1)), Err(Refused::Unbound));
    assert_eq!(rebound.apply(&rebind((ContactId([7; 20]), 1))), Err(Refused::Unbound));
}

#[test]
fn a_cancel_wins_unless_the_job_had_succeeded() {
    let intent = CancelIntent { by: "me".into(), at: WallTime(2) };
    let cancel = Change::Cancel { intent };
    assert_eq!(after(record("run: 'true'"), std::slice::from_ref(&cancel)).state, JobState::Cancelled);
    let asked = after(record("run: 'true'"), &[place(1), cancel]);
    assert_eq!(asked.state, JobState::Placed);
    assert_eq!(after(asked.clone(), &[close(1, Outcome::Exited(0))]).state, JobState::Succeeded);
    assert_eq!(after(asked, &[close(1, Outcome::Signaled(15))]).state, JobState::Cancelled);
}

#[test]
fn the_nodes_of_an_attempt_stay_as_they_were_told_first() {
    let nodes = Some("n[1-2]\u{1b}".to_owned());
    let started = Change::Started { epoch: Epoch(1), at: WallTime(2), nodes: nodes.clone() };
    let end = |nodes: Option<&str>| Change::Close {
        epoch: Epoch(1),
        outcome: Outcome::Exited(0),
        started_at: Some(WallTime(2)),
        at: WallTime(3),
        note: None,
        nodes: nodes.map(str::to_owned),
    };
    let of = |record: &JobRecord| record.attempts.last().and_then(|a| a.nodes.clone());
    let runs = after(record("run: 'true'"), &[place(1), started]);
    assert_eq!(of(&runs).as_deref(), Some("n[1-2]"));
    assert_eq!(of(&after(runs.clone(), &[end(Some("other"))])).as_deref(), Some("n[1-2]"));
    // So short that only its end was told.
    assert_eq!(of(&after(record("run: 'true'"), &[place(1), end(Some("n3"))])).as_deref(), Some("n3"));
    assert_eq!(of(&after(record("run: 'true'"), &[place(1), end(None)])), None);
    // The version before reads it, and drops what it does not know.
    let mut old = serde_json::to_value(&runs).expect("plain");
    old["attempts"][0].as_object_mut().expect("an object").remove("nodes");
    assert_eq!(of(&serde_json::from_value(old).expect("is read")), None);
}

#[test]
fn what_a_cluster_says_of_an_end_stands_in_the_reason_and_with_its_attempt() {
    let note = Some("killed for memory".to_owned());
    let end = Change::Close {
        epoch: Epoch(1),
        outcome: Outcome::Signaled(9),
        started_at: None,
        at: WallTime(3),
        note: note.clone(),
        nodes: None,
    };
    let done = after(record("run: 'false'"), &[place(1), end.clone()]);
    assert!(done.reason.starts_with("ended by signal 9 at "), "{}", done.reason);
    assert!(done.reason.ends_with(" (killed for memory)"), "{}", done.reason);
    assert_eq!(done.attempts.last().and_then(|a| a.note.clone()), note);
    // The version before reads it, and drops what it does not know.
    let mut old = serde_json::to_value(&done).expect("plain");
    old["attempts"][0].as_object_mut().expect("an object").remove("note");
    let read: JobRecord = serde_json::from_value(old).expect("is read");
    assert_eq!(read.attempts.last().and_then(|a| a.note.clone()), None);
    let retried = after(record("run: 'false'\nretries: 1"), &[place(1), end]);
    assert!(
        retried.reason.contains("retry 1 of 1") && retried.reason.contains("memory"),
        "{}",
        retried.reason
    );
}

#[test]
fn failures_are_retried_and_a_refusal_by_the_cluster_counts_for_nothing() {
    let retry = after(record("run: 'false'\nretries: 1"), &[place(1), close(1, Outcome::Exited(1))]);
    assert_eq!((retry.state, retry.failures), (JobState::Pending, 1));
    assert_eq!(after(retry, &[place(2), close(2, Outcome::Signaled(9))]).state, JobState::Failed);
    let mut job = record("run: 'true'");
    for epoch in 1..=20 {
        job = after(job, &[place(epoch), close(epoch, Outcome::Refused("drains".into()))]);
        assert_eq!((job.state, job.failures), (JobState::Pending, 0));
    }
    let mut job = record("run: 'true'");
    for epoch in 1..=NOT_STARTED_MAX as u64 {
        job = after(job, &[place(epoch), close(epoch, Outcome::NotStarted("no such program".into()))]);
    }
    assert_eq!(job.state, JobState::Failed);
}

#[test]
fn a_field_of_a_later_version_is_kept() {
    let mut text = serde_json::to_value(record("run: 'true'")).expect("json");
    text["from_the_future"] = serde_json::json!({"x": 1});
    let read: JobRecord = serde_json::from_value(text).expect("reads");
    let written = serde_json::to_value(after(read, &[place(1)])).expect("json");
    assert_eq!(written["from_the_future"]["x"], 1);
}

#[test]
fn contact_changes_are_conditional() {
    let me = PeerName::new("c").expect("a name");
    let contact = ContactRecord {
        cluster: me.clone(),
        series: 1,
        homes: BoundedVec::default(),
        incarnation: 1,
        nonce: (1, 1),
        holder: me,
        ext: BTreeMap::new(),
    };
    let by = PeerName::new("h").expect("a name");
    let renewed = contact.apply(&ContactChange::Renew { incarnation: 1, nonce: (1, 2) }).expect("renews");
    let take = |nonce| ContactChange::TakeOver { expect: (1, nonce), nonce: (9, 9), by: by.clone() };
    assert_eq!(renewed.apply(&take((1, 1))), Err(Refused::Unbound));
    let taken = renewed.apply(&take((1, 2))).expect("takes over");
    assert_eq!(taken.apply(&ContactChange::Renew { incarnation: 1, nonce: (1, 3) }), Err(Refused::Unbound));
    assert_eq!(taken.apply(&ContactChange::Renew { incarnation: 2, nonce: (1, 3) }), Err(Refused::Unbound));
    let claimed = taken.apply(&ContactChange::Claim { above: 1, nonce: (1, 4) }).expect("claims");
    assert_eq!((claimed.incarnation, claimed.holder.as_str()), (3, "c"));
}

fn home(peer: &str) -> Home {
    Home { peer: PeerName::new(peer).expect("a name"), store: StoreId([2; 16]) }
}

#[test]
fn a_sealed_generation_changes_no_more_and_is_carried_over_once() {
    let placed = after(record("run: x"), &[place(1)]);
    let seal = |generation, peers: &[&str]| Change::Seal {
        generation,
        next: peers.iter().map(|p| home(p)).collect(),
    };
    let sealed = after(placed.clone(), &[seal(0, &["d", "e", "f"])]);
    assert_eq!((sealed.generation, sealed.homes(), sealed.version), (0, placed.homes(), placed.version + 1));
    for change in [
        close(1, Outcome::Exited(0)),
        free(1),
        seal(0, &["x"]),
        Change::Cancel { intent: CancelIntent { by: "b".into(), at: WallTime(1) } },
        Change::Started { epoch: Epoch(1), at: WallTime(1), nodes: None },
    ] {
        assert_eq!(sealed.apply(&change), Err(Refused::Sealed(0)), "{change:?}");
    }
    let next = sealed.installed().expect("sealed");
    assert_eq!((next.generation, next.homes().len(), next.sealed.clone()), (1, 3, None));
    assert_eq!(next.homes()[0], home("d"));
    assert!(next.version > sealed.version && next.id() == placed.id() && next.epoch == placed.epoch);
    assert!(next.reflects(&seal(0, &["d", "e", "f"])) && next.installed().is_none());
    // A late seal of the old generation does nothing here, and a finished record moves as well.
    assert_eq!(next.apply(&seal(0, &["x"])), Err(Refused::Sealed(0)));
    let done = after(next, &[close(1, Outcome::Exited(0)), seal(1, &["d", "e"])]);
    assert_eq!(done.installed().expect("sealed").state, JobState::Succeeded);
}

#[test]
fn a_home_set_is_one_to_five_members_each_once() {
    let seal = |peers: &[&str]| Change::Seal { generation: 0, next: peers.iter().map(|p| home(p)).collect() };
    for bad in [&[][..], &["a", "a"], &["a", "b", "c", "d", "e", "f"]] {
        assert_eq!(record("run: x").apply(&seal(bad)), Err(Refused::BadHomes), "{bad:?}");
    }
    assert!(record("run: x").apply(&seal(&["a", "b", "c", "d", "e"])).is_ok());
}

#[test]
fn an_operators_word_frees_the_attempt_it_names_and_no_other() {
    let confirm =
        |epoch| Change::ConfirmLost { epoch: Epoch(epoch), cluster: None, by: "ann".into(), at: WallTime(5) };
    let placed = after(record("{run: x, on_lost_contact: {grace: never}}"), &[place(1)]);
    assert_eq!(placed.apply(&confirm(2)), Err(Refused::Stale(Epoch(2))));
    // A placement that was never chosen may have had this epoch at another cluster (seed 6022 of `--reserved`).
    let there = |peer: &str| Change::ConfirmLost {
        epoch: Epoch(1),
        cluster: Some(PeerName::new(peer).expect("a name")),
        by: "ann".into(),
        at: WallTime(5),
    };
    let elsewhere = Err(Refused::Placed(PeerName::new("c").expect("a name"), Epoch(1)));
    assert_eq!(placed.apply(&there("d")), elsewhere);
    assert!(placed.apply(&there("c")).is_ok());
    let lost = after(placed, &[confirm(1)]);
    assert_eq!((lost.state, lost.losses, lost.placement.clone()), (JobState::Pending, 1, None));
    assert!(lost.reason.contains("confirmed by ann"), "{}", lost.reason);
    // The attempt was alive after all, and says so: nothing of it counts once a newer one is placed.
    let again = after(lost, &[place(2)]);
    assert_eq!(again.apply(&close(1, Outcome::Exited(0))), Err(Refused::Stale(Epoch(1))));
}

#[test]
fn a_move_names_its_cluster_until_the_next_placement() {
    let to = |peer: &str| Change::Move {
        intent: MoveIntent { to: PeerName::new(peer).expect("a name"), by: "ann".into(), at: WallTime(5) },
    };
    let placed = after(record("run: x"), &[place(1)]);
    assert_eq!(placed.apply(&to("c")), Err(Refused::Here(PeerName::new("c").expect("a name"))));
    let moving = after(placed, &[to("d"), close(1, Outcome::Stopped("drain".into()))]);
    assert_eq!((moving.state, moving.failures), (JobState::Pending, 0));
    assert!(moving.moving.is_some() && moving.reason.contains("go on at d"), "{}", moving.reason);
    assert!(after(moving.clone(), &[place(2)]).moving.is_none());
    let Some(intent) = moving.moving.clone() else { panic!("moving") };
    assert!(after(moving, &[Change::MoveOver { intent }]).moving.is_none());
}

#[test]
fn a_job_that_takes_its_machines_down_is_held_until_it_is_released() {
    let mut job = record("run: x");
    for n in 1..=u64::from(LOSSES_MAX) {
        assert!(job.held.is_none(), "after {n}");
        job = after(job, &[place(n), free(n)]);
        assert!(n < 2 || n == u64::from(LOSSES_MAX) || job.hold > Span::ZERO, "it backs off");
    }
    let n = u64::from(LOSSES_MAX) + 1;
    assert!(matches!(job.apply(&place(n)), Err(Refused::Held(_))), "{}", job.reason);
    assert!(job.reason.contains("release"));
    let free_again = after(job, &[Change::Release { by: "ann".into() }, place(n)]);
    assert_eq!(free_again.state, JobState::Placed);
    // A new checkpoint shows that it gets somewhere.
    let checkpoint = Checkpoint { epoch: Epoch(n), uri: "u".into() };
    let mut job = after(free_again, &[Change::Publish { checkpoint }]);
    for n in n..n + u64::from(LOSSES_MAX) - 1 {
        job = after(job, &[free(n), place(n + 1)]);
    }
    assert!(job.held.is_none());
}

/// Nobody honest gets there; a member that lies may send such a record, and must not stop the peer.
#[test]
fn numbers_at_their_end_neither_wrap_nor_repeat() {
    let mut job = record("run: x");
    (job.epoch, job.version, job.generation) = (Epoch(u64::MAX), u64::MAX, u32::MAX);
    (job.failures, job.losses) = (u32::MAX, u32::MAX);
    assert_eq!(job.apply(&place(u64::MAX)), Err(Refused::Stale(Epoch(u64::MAX))));
    let sealed = job.apply(&Change::Seal { generation: u32::MAX, next: vec![home("d")] }).expect("sealed");
    assert_eq!((sealed.version, sealed.installed()), (u64::MAX, None));
    let mut contact = ContactRecord {
        cluster: PeerName::new("c").expect("a name"),
        series: 1,
        homes: BoundedVec::default(),
        incarnation: u64::MAX,
        nonce: (1, 1),
        holder: PeerName::new("c").expect("a name"),
        ext: BTreeMap::new(),
    };
    let by = PeerName::new("h").expect("a name");
    let take = ContactChange::TakeOver { expect: (u64::MAX, (1, 1)), nonce: (2, 2), by };
    assert_eq!(contact.apply(&take), Err(Refused::Unbound));
    contact.holder = PeerName::new("h").expect("a name");
    assert_eq!(contact.apply(&ContactChange::Claim { above: 1, nonce: (3, 3) }), Err(Refused::Unbound));
}
