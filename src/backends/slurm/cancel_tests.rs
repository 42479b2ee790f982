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

fn forget(desk: &Desk, n: u8) {
    desk.keeper.command(BackendCommand::Forget { key: key(n) });
    assert!(desk.keeper.dir(key(n)).forgotten().is_some(), "it is forgotten");
}

fn stop(desk: &Desk, n: u8) {
    desk.keeper.command(BackendCommand::Stop { key: key(n), notice: Span::ZERO, reason: StopReason::Cancel });
    assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(n), 100 + u64::from(n))]);
}

/// What it did is not known, or known to be nothing: the next run asks for it again, although the core knows nothing of
/// that attempt any more.
#[test]
fn a_cancel_that_was_not_taken_outlives_the_peer_also_where_it_is_forgotten() {
    for how in ["failed", "failed after it was forgotten", "under way"] {
        let desk = Desk::new();
        desk.submitted(1);
        stop(&desk, 1);
        if how == "failed" {
            desk.keeper.cancel_failed(key(1), 101);
        }
        forget(&desk, 1);
        if how == "failed after it was forgotten" {
            desk.keeper.cancel_failed(key(1), 101);
        }
        let runs = [job(1, NativeState::Pending)];
        let mut desk = desk;
        // As often as it takes.
        for run in 1..=3 {
            desk = desk.again();
            desk.list(&runs);
            assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(1), 101)], "{how}, run {run}");
        }
        desk.keeper.cancelled(key(1), 101);
        let desk = desk.again();
        desk.list(&runs);
        assert!(desk.keeper.out.take_acts().is_empty(), "{how}: it was taken");
        assert!(!desk.keeper.dir(key(1)).file("native.json").exists(), "{how}: nothing is left to do");
    }
}

/// Slurm names it no more: there is nothing to cancel, and nothing is kept for it.
#[test]
fn what_slurm_does_not_have_any_more_is_no_longer_kept_for_its_cancel() {
    let desk = Desk::new();
    desk.submitted(1);
    stop(&desk, 1);
    desk.keeper.cancel_failed(key(1), 101);
    forget(&desk, 1);
    let number = desk.keeper.dir(key(1)).file("native.json");
    desk.list(&[job(2, NativeState::Active)]);
    assert!(number.exists(), "a list of about that time says nothing");
    desk.keeper.seen(&[job(2, NativeState::Active)], clock::now() + FRESH);
    assert!(!number.exists());
    // Nor is anything where there is nothing to cancel.
    desk.submitted(2);
    stop(&desk, 2);
    desk.keeper.cancelled(key(2), 102);
    forget(&desk, 2);
    assert!(!desk.keeper.dir(key(2)).file("native.json").exists());
}

/// sbatch gave no number, a list did.
#[test]
fn the_number_of_one_that_was_found_by_its_name_is_kept_for_its_cancel() {
    let desk = Desk::new();
    desk.begin(1, Some(Span::millis(1)));
    desk.keeper.submitted(key(1), Err(SubmitError::Unknown("timed out".into())));
    desk.list(&[job(1, NativeState::Pending)]);
    stop(&desk, 1);
    let desk = desk.again();
    desk.list(&[job(1, NativeState::Pending)]);
    assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(1), 101)]);
}

/// Old folders make room for newer ones, but for those that are still needed.
#[test]
fn the_folder_of_one_that_is_still_to_be_cancelled_stays() {
    let mut desk = Desk::new();
    desk.keeper.config.attempts_kept = 1;
    for n in 1..=3 {
        desk.submitted(n);
        stop(&desk, n);
        if n == 1 {
            desk.keeper.cancel_failed(key(n), 101);
        } else {
            desk.keeper.cancelled(key(n), 100 + u64::from(n));
        }
        forget(&desk, n);
    }
    let there = |n| desk.keeper.dir(key(n)).path().exists();
    assert_eq!([1, 2, 3].map(there), [true, false, true], "and takes no other's place");
    desk.list(&[job(1, NativeState::Pending)]);
    desk.keeper.cancelled(key(1), 101);
    desk.keeper.out.take_acts();
    desk.submitted(4);
    stop(&desk, 4);
    desk.keeper.cancelled(key(4), 104);
    forget(&desk, 4);
    assert_eq!([1, 3, 4].map(there), [false, false, true]);
}
