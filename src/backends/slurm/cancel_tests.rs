//! Batch jobs that are to be cancelled, and what becomes of a cancel that fails.

use super::*;

/// What this peer cancelled itself, to tidy up, was nobody's wish to end the job.
#[test]
fn our_own_cancel_is_not_taken_for_somebodys() {
    let requeued = NativeJob { restarts: 1, ..job(1, NativeState::Cancelled) };
    assert_eq!(why_ended(&requeued, true), Some(Some(Outcome::Stopped("requeued by Slurm".into()))));
    assert_eq!(why_ended(&requeued, false), Some(Some(Outcome::Cancelled)));
    assert_eq!(why_ended(&job(1, NativeState::Cancelled), true), Some(None));
}

/// Of an attempt that lives and of one that is over; what failed may have been done all the same.
#[test]
fn a_cancel_that_failed_is_asked_for_again() {
    let desk = Desk::new();
    desk.submitted(1);
    assert!(desk.keeper.dir(key(1)).take_token().expect("takes"), "it runs");
    desk.keeper.command(BackendCommand::Stop { key: key(1), notice: Span::ZERO, reason: StopReason::Cancel });
    if let Some((_, at)) = open(&desk.keeper.live).get_mut(&key(1)).and_then(|l| l.hold.stop.as_mut()) {
        *at = Instant(0);
    }
    let runs = [job(1, NativeState::Active), job(2, NativeState::Pending)];
    for _ in 0..3 {
        desk.list(&runs);
        assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(1), 101)]);
        desk.list(&runs);
        assert!(desk.keeper.out.take_acts().is_empty(), "one at a time");
        desk.keeper.cancel_failed(key(1), 101);
    }
    let tidied = open(&desk.keeper.live).get(&key(1)).map(|l| l.tidied);
    assert_eq!(tidied, Some(true), "what is cancelled now may be our own work");

    desk.submitted(2);
    desk.keeper.command(BackendCommand::Stop { key: key(2), notice: Span::ZERO, reason: StopReason::Cancel });
    assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(2), 102)]);
    desk.keeper.cancel_failed(key(2), 102);
    desk.list(&[]);
    let of_two = |desk: &Desk| {
        let acts = desk.keeper.out.take_acts();
        acts.into_iter().filter(|a| matches!(a, Act::Cancel(k, _) if *k == key(2))).count()
    };
    assert_eq!(of_two(&desk), 0, "an empty list says nothing");
    desk.list(&runs);
    assert_eq!(of_two(&desk), 1);
    desk.list(&runs);
    assert_eq!(of_two(&desk), 0, "it was taken");
    desk.keeper.cancel_failed(key(2), 102);
    let theirs = NativeJob { name: "theirs".into(), ..job(2, NativeState::Active) };
    desk.list(&[theirs]);
    assert_eq!(of_two(&desk), 0, "the number is another job's now");
}

/// The list that was asked for before it was submitted cannot name it.
#[test]
fn an_older_list_does_not_drop_a_cancel_that_failed() {
    let desk = Desk::new();
    let asked_before = clock::now();
    desk.submitted(1);
    desk.keeper.command(BackendCommand::Stop { key: key(1), notice: Span::ZERO, reason: StopReason::Cancel });
    desk.keeper.out.take_acts();
    desk.keeper.cancel_failed(key(1), 101);
    desk.keeper.seen(&[job(2, NativeState::Active)], asked_before);
    desk.list(&[job(1, NativeState::Pending)]);
    assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(1), 101)]);
    // One that was asked for long after, and does not name it, does.
    desk.keeper.cancel_failed(key(1), 101);
    desk.keeper.seen(&[job(2, NativeState::Active)], clock::now() + FRESH);
    desk.list(&[job(1, NativeState::Pending)]);
    assert!(desk.keeper.out.take_acts().is_empty());
}
