//! The checker itself: what it accepts, what it refuses, and that it agrees with trying every order.

use starling::base::{BoundedVec, Epoch, Home, PeerName, Rng, Span, StoreId, TraceId, WallTime};
use starling::model::record::{Birth, CancelIntent, Change, Refused};
use starling::model::spec::{Communication, JobSpec, OnLostContact, PlacementSpec, Run, Then};
use starling::model::{JobRecord, JobState, Outcome, Placement, Resources};

use starling::surface::linear::job::{Ask, JobHistory, Op, Told, one_change};
use starling::surface::linear::{Interval, Register, RegisterOp, Sequential, Verdict, check};

fn span(call: u64, ret: u64) -> Interval {
    Interval { call, ret: Some(ret) }
}
fn open(call: u64) -> Interval {
    Interval { call, ret: None }
}

#[test]
fn registers_are_judged() {
    use RegisterOp::{Read, Write};
    let holds = |ops: &[(RegisterOp, Interval)]| {
        let register = Register { ops: ops.iter().map(|(op, _)| *op).collect() };
        check(&register, &ops.iter().map(|(_, i)| *i).collect::<Vec<_>>()).holds()
    };
    assert!(holds(&[]));
    assert!(holds(&[(Write(1), span(0, 1)), (Read(1), span(2, 3))]));
    assert!(!holds(&[(Write(1), span(0, 1)), (Read(0), span(2, 3))]));
    assert!(holds(&[(Write(1), span(0, 5)), (Read(0), span(1, 2)), (Read(1), span(3, 4))]));
    assert!(!holds(&[(Write(1), span(0, 5)), (Read(1), span(1, 2)), (Read(0), span(3, 4))]));
    // What was never answered may have happened, late, or not at all.
    assert!(holds(&[(Write(1), open(0)), (Read(0), span(1, 2)), (Read(1), span(8, 9))]));
    assert!(holds(&[(Write(1), open(0)), (Read(0), span(8, 9))]));
    assert!(!holds(&[(Write(1), open(5)), (Read(1), span(1, 2))]));
    assert!(!holds(&[(Write(1), open(0)), (Read(1), span(1, 2)), (Read(0), span(3, 4))]));
}

/// Tries every order of every subset that holds all answered operations.
fn by_force(register: &Register, intervals: &[Interval]) -> bool {
    fn go(register: &Register, intervals: &[Interval], done: u32, state: u8) -> bool {
        let left: Vec<usize> = (0..intervals.len()).filter(|op| done & (1 << op) == 0).collect();
        if left.iter().all(|&op| intervals[op].ret.is_none()) {
            return true;
        }
        left.iter().any(|&op| {
            let early = left.iter().all(|&o| intervals[o].ret.is_none_or(|ret| intervals[op].call <= ret));
            early
                && register.step(&state, op).is_some_and(|next| go(register, intervals, done | 1 << op, next))
        })
    }
    go(register, intervals, 0, register.first())
}

#[test]
fn it_agrees_with_trying_every_order() {
    let mut rng = Rng::new(77);
    let (mut yes, mut no) = (0, 0);
    for _ in 0..4_000 {
        let n = 2 + rng.below(6) as usize;
        let mut ops = Vec::new();
        let mut intervals = Vec::new();
        for _ in 0..n {
            let value = rng.below(3) as u8;
            let write = rng.chance(0.5);
            ops.push(if write { RegisterOp::Write(value) } else { RegisterOp::Read(value) });
            let call = rng.below(12);
            let ret = (!write || rng.chance(0.7)).then(|| call + rng.below(8));
            intervals.push(Interval { call, ret });
        }
        let register = Register { ops };
        let expected = by_force(&register, &intervals);
        assert_eq!(check(&register, &intervals).holds(), expected, "{:?} {intervals:?}", register.ops);
        *(if expected { &mut yes } else { &mut no }) += 1;
    }
    assert!(yes > 500 && no > 500, "{yes} held, {no} did not");
}

fn record() -> JobRecord {
    let home = Home { peer: PeerName::new("a").expect("a name"), store: StoreId([1; 16]) };
    let birth = Birth {
        tenant: "t".into(),
        minter: home.peer.clone(),
        sequence: 1,
        homes: BoundedVec::try_from(vec![home]).expect("one home"),
    };
    let spec = JobSpec {
        name: "j".into(),
        tenant: "t".into(),
        priority: 50,
        resources: Resources::default(),
        nodes: 1,
        run: Run::Argv(vec!["x".into()]),
        env: Default::default(),
        workdir: None,
        image: None,
        data: vec![],
        checkpoint: None,
        communication: Communication::Sync,
        max_runtime: None,
        retries: 0,
        on_lost_contact: OnLostContact { grace: Some(Span::secs(9)), then: Then::Restart },
        placement: PlacementSpec::default(),
        data_sizes: Default::default(),
        groups: Default::default(),
        array: None,
        after: vec![],
        warn: None,
        preemptible: None,
        reserve: None,
    };
    JobRecord::new(birth, spec, TraceId::default(), WallTime(1))
}

fn changed(record: &JobRecord, changes: &[Change]) -> JobRecord {
    changes.iter().fold(record.clone(), |r, c| r.apply(c).expect("the change holds"))
}

fn place(record: &JobRecord) -> Change {
    let placement = Placement {
        cluster: PeerName::new("b").expect("a name"),
        contact: Default::default(),
        incarnation: 1,
        series: 1,
        contact_homes: BoundedVec::default(),
        at: WallTime(2),
    };
    Change::Place { placement, epoch: record.epoch.next() }
}

fn cancel() -> Change {
    Change::Cancel { intent: CancelIntent { by: "u".into(), at: WallTime(5) } }
}

fn op(interval: Interval, ask: Ask, told: Told) -> Op {
    Op { interval, ask, told: Some(told) }
}
fn read(interval: Interval, record: &JobRecord) -> Op {
    op(interval, Ask::Get, Told::Record(Box::new(record.clone())))
}
fn verdict(ops: Vec<Op>) -> bool {
    JobHistory::new(ops).check().holds()
}

#[test]
fn reads_of_a_job_never_go_back() {
    let first = record();
    let placed = changed(&first, &[place(&first)]);
    let freed = changed(
        &placed,
        &[Change::Free { epoch: Epoch(1), contact: Default::default(), incarnation: 1, at: WallTime(3) }],
    );
    let submit = || op(span(0, 1), Ask::Submit, Told::Submitted);
    assert!(verdict(vec![submit(), read(span(2, 3), &first), read(span(4, 5), &freed)]));
    assert!(!verdict(vec![submit(), read(span(2, 3), &placed), read(span(4, 5), &first)]));
    assert!(verdict(vec![submit(), read(span(2, 6), &placed), read(span(4, 5), &first)]));
    // Nobody may see a job that nobody submitted, nor miss one that was answered.
    assert!(!verdict(vec![read(span(2, 3), &first)]));
    assert!(!verdict(vec![submit(), op(span(2, 3), Ask::Get, Told::NoSuchJob)]));
    let unknown = Op { interval: open(0), ask: Ask::Submit, told: None };
    assert!(verdict(vec![
        unknown.clone(),
        op(span(2, 3), Ask::Get, Told::NoSuchJob),
        read(span(8, 9), &first)
    ]));
    assert!(!verdict(vec![unknown, read(span(2, 3), &first), op(span(8, 9), Ask::Get, Told::NoSuchJob)]));
}

#[test]
fn one_version_is_one_record() {
    let first = record();
    let placed = changed(&first, &[place(&first)]);
    let other = JobRecord { reason: "something else".into(), ..placed.clone() };
    let submit = || op(span(0, 1), Ask::Submit, Told::Submitted);
    assert!(!verdict(vec![submit(), read(span(2, 9), &placed), read(span(2, 9), &other)]));
    // The next version must be one change away, by the production's own meaning of a change.
    assert!(!verdict(vec![submit(), read(span(2, 3), &first), read(span(4, 5), &other)]));
    assert!(verdict(vec![submit(), read(span(2, 3), &first), read(span(4, 5), &placed)]));
}

#[test]
fn a_cancel_is_seen_from_then_on() {
    let first = record();
    let placed = changed(&first, &[place(&first)]);
    let cancelled = changed(&placed, &[cancel()]);
    let submit = || op(span(0, 1), Ask::Submit, Told::Submitted);
    let told = |state| op(span(4, 5), Ask::Cancel, Told::Cancelled(state));
    assert!(verdict(vec![submit(), told(JobState::Placed), read(span(6, 7), &cancelled)]));
    assert!(!verdict(vec![submit(), told(JobState::Placed), read(span(6, 7), &placed)]));
    assert!(verdict(vec![submit(), told(JobState::Placed), read(span(4, 7), &placed)]));
    let pending = changed(&first, &[cancel()]);
    assert_eq!(pending.state, JobState::Cancelled);
    assert!(verdict(vec![submit(), told(JobState::Cancelled), read(span(6, 7), &pending)]));
    // An end never changes.
    assert!(!verdict(vec![submit(), told(JobState::Succeeded), read(span(6, 7), &pending)]));
    assert!(!verdict(vec![submit(), told(JobState::Succeeded), read(span(6, 7), &placed)]));
    let late = op(span(8, 9), Ask::Publish(Epoch(1)), Told::Refused(Refused::Final(JobState::Cancelled)));
    assert!(verdict(vec![submit(), told(JobState::Cancelled), late.clone()]));
    assert!(!verdict(vec![submit(), told(JobState::Succeeded), late]));
}

#[test]
fn an_old_epoch_publishes_nothing() {
    let first = record();
    let placed = changed(&first, &[place(&first)]);
    let free = Change::Free { epoch: Epoch(1), contact: Default::default(), incarnation: 1, at: WallTime(3) };
    let again = changed(&placed, &[free]);
    let again = changed(&again, &[place(&again)]);
    let submit = || op(span(0, 1), Ask::Submit, Told::Submitted);
    let publish = |interval, epoch| op(interval, Ask::Publish(Epoch(epoch)), Told::Published);
    assert!(verdict(vec![submit(), publish(span(2, 3), 1), publish(span(4, 5), 2)]));
    assert!(!verdict(vec![submit(), publish(span(2, 3), 2), publish(span(4, 5), 1)]));
    assert!(!verdict(vec![submit(), read(span(2, 3), &again), publish(span(4, 5), 1)]));
    // Published, and yet the record shows none.
    assert!(!verdict(vec![submit(), publish(span(2, 3), 2), read(span(4, 5), &again)]));
}

#[test]
fn every_change_is_recognised_as_one() {
    let first = record();
    let placed = changed(&first, &[place(&first)]);
    let started = changed(&placed, &[Change::Started { epoch: Epoch(1), at: WallTime(3), nodes: None }]);
    let close = |outcome| Change::Close {
        epoch: Epoch(1),
        outcome,
        started_at: Some(WallTime(3)),
        at: WallTime(9),
        note: None,
        nodes: None,
    };
    let steps = [
        (first.clone(), placed.clone()),
        (placed.clone(), started.clone()),
        (started.clone(), changed(&started, &[close(Outcome::Exited(0))])),
        (started.clone(), changed(&started, &[close(Outcome::Exited(3))])),
        (started.clone(), changed(&started, &[close(Outcome::Stopped("drain".into()))])),
        (placed.clone(), changed(&placed, &[close(Outcome::NotStarted("no".into()))])),
        (started.clone(), changed(&started, &[cancel()])),
        (first.clone(), changed(&first, &[cancel()])),
    ];
    for (old, new) in &steps {
        assert!(one_change(old, new), "{:?} to {:?}", old.state, new.state);
    }
    for (old, new) in steps.iter().zip(steps.iter().skip(1)).map(|(a, b)| (&b.1, &a.0)) {
        assert!(!one_change(old, new), "{:?} to {:?}", old.state, new.state);
    }
    assert!(matches!(JobHistory::new(vec![]).check(), Verdict::Linearizable { .. }));
}
