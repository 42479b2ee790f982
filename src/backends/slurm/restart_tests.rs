//! What another run of the peer makes of what the one before left.

use super::*;

#[test]
fn where_it_ran_is_told_with_an_end_that_came_while_the_peer_was_away() {
    let desk = Desk::new();
    desk.submitted(1);
    let dir = desk.keeper.dir(key(1));
    assert!(dir.take_token().expect("takes"));
    dir.write_started(&started("n[1-2]")).expect("writes");
    dir.write_ended(&ended(Outcome::Exited(0))).expect("writes");
    let desk = desk.again();
    assert_eq!(tells_where(&desk.events()), Some("n[1-2]"));
    // Also when it is asked for again, or told to stop.
    desk.keeper.command(BackendCommand::Stop { key: key(1), notice: Span::ZERO, reason: StopReason::Cancel });
    assert_eq!(tells_where(&desk.events()), Some("n[1-2]"));

    // Of a gang, from its first node.
    let desk = Desk::new();
    let nodes = desk.gang(2, None);
    nodes[0].write_started(&started("n[3-4]")).expect("writes");
    for dir in nodes.iter().chain([&desk.keeper.dir(key(2))]) {
        dir.write_ended(&ended(Outcome::Exited(0))).expect("writes");
    }
    let events = desk.again().events();
    assert_eq!(tells_where(&events), Some("n[3-4]"), "{events:?}");
}

#[test]
fn a_gang_has_not_ended_with_its_launcher_after_a_restart_either() {
    let desk = Desk::new();
    let nodes = desk.gang(1, Some(Span::secs(3_600)));
    desk.keeper.dir(key(1)).write_ended(&ended(Outcome::Exited(9))).expect("writes");
    nodes[0].write_ended(&ended(Outcome::Exited(4))).expect("writes");
    let desk = desk.again();
    assert_eq!(desk.ended(), None, "one node's guard may live");
    desk.keeper.command(BackendCommand::Stop { key: key(1), notice: Span::ZERO, reason: StopReason::Drain });
    desk.keeper.command(BackendCommand::Start(Box::new(start(key(1), script("true")))));
    assert_eq!(desk.ended(), None, "nor by being asked for or told to stop");
    nodes[1].write_ended(&ended(Outcome::Exited(0))).expect("writes");
    desk.keeper.check(key(1));
    assert_eq!(desk.ended(), Some(Outcome::Exited(4)), "the first node that failed decides");
    assert_eq!(desk.again().ended(), Some(Outcome::Exited(4)), "again and again");
}

#[test]
fn a_cancel_that_was_not_taken_is_asked_for_by_the_next_run() {
    let desk = Desk::new();
    desk.submitted(1);
    desk.keeper.command(BackendCommand::Stop { key: key(1), notice: Span::ZERO, reason: StopReason::Cancel });
    assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(1), 101)]);
    let desk = desk.again();
    desk.list(&[job(1, NativeState::Pending), job(2, NativeState::Pending)]);
    assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(1), 101)]);
    desk.list(&[job(1, NativeState::Pending)]);
    assert!(desk.keeper.out.take_acts().is_empty(), "it was taken");
}

/// Stopped while sbatch ran: what it made is known to the next run, which asks for its cancel once more.
#[test]
fn a_number_that_came_after_the_stop_is_kept() {
    let desk = Desk::new();
    desk.begin(1, None);
    desk.keeper.command(BackendCommand::Stop { key: key(1), notice: Span::ZERO, reason: StopReason::Cancel });
    assert!(desk.keeper.out.take_acts().is_empty(), "nothing to cancel yet");
    desk.keeper.submitted(key(1), Ok(101));
    assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(1), 101)]);
    let desk = desk.again();
    desk.list(&[job(1, NativeState::Pending)]);
    assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(1), 101)]);
}

/// Whether it never began or all its guards have ended: it is over, and its cancel may have failed.
#[test]
fn a_gang_that_is_over_is_not_told_as_running_and_its_cancel_is_asked_for_again() {
    for began in [false, true] {
        let desk = Desk::new();
        if began {
            let nodes = desk.gang(1, Some(Span::secs(3_600)));
            desk.keeper.dir(key(1)).write_ended(&ended(Outcome::Exited(9))).expect("writes");
            for (node, code) in nodes.iter().zip([4, 0]) {
                node.write_ended(&ended(Outcome::Exited(code))).expect("writes");
            }
        } else {
            let spec = crate::model::JobSpec { nodes: 2, ..script("true") };
            desk.keeper.command(BackendCommand::Start(Box::new(start(key(1), spec))));
            desk.keeper.submitted(key(1), Ok(101));
            let reason = StopReason::Cancel;
            desk.keeper.command(BackendCommand::Stop { key: key(1), notice: Span::ZERO, reason });
        }
        let desk = desk.again();
        let events = desk.events();
        let running = events.iter().find_map(|e| match e {
            BackendEvent::Adopted { running } => Some(running.len()),
            _ => None,
        });
        assert_eq!(running, Some(0), "{began}");
        let end = if began { Outcome::Exited(4) } else { Outcome::Cancelled };
        let told = |events: &[BackendEvent]| {
            events.iter().any(|e| matches!(e, BackendEvent::Ended { outcome, .. } if *outcome == end))
        };
        assert!(told(&events), "{began}: {events:?}");
        desk.keeper.command(BackendCommand::Start(Box::new(start(key(1), script("true")))));
        assert!(told(&desk.events()), "{began}: the same when it is asked for again");
        desk.list(&[job(1, NativeState::Pending)]);
        assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(1), 101)], "{began}");
    }
}

/// Its batch job is gone, and so is whoever wanted it: its folder shall not stay for ever.
#[test]
fn what_nobody_asks_for_and_slurm_does_not_have_is_given_up() {
    let desk = Desk::new();
    desk.submitted(1);
    let mut desk = desk.again();
    for _ in 0..MISSING_LISTS {
        desk.list(&[]);
    }
    assert_eq!((desk.ended(), desk.keeper.live_count()), (None, 1), "it may still be asked for");
    desk.age(1);
    // A machine that was just started has no time that is long ago.
    desk.keeper.wanted_within = Span::ZERO;
    desk.list(&[]);
    assert!(matches!(desk.ended(), Some(Outcome::Refused(why)) if why.contains("nobody asked")));
    assert_eq!(desk.keeper.live_count(), 0);
    assert!(desk.keeper.out.take_acts().is_empty(), "nothing was submitted");
}
