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
    Change::Close { epoch: Epoch(epoch), outcome, started_at: None, at: WallTime(3) }
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
