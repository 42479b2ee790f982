//! What another run of the peer makes of what the one before left, and gangs whose launcher has ended.

use super::*;

fn ended(outcome: Outcome) -> Ended {
    Ended { outcome, started_at: Some(WallTime(5)), at: WallTime(9), output_lost: 0 }
}

fn started(nodes: &str) -> Started {
    Started { at: WallTime(5), nodes: Some(nodes.to_owned()) }
}

impl Desk {
    /// Another run of the peer over the same folders.
    fn again(self) -> Self {
        let keeper = Keeper::new(self.keeper.config.clone()).expect("a book");
        keeper.adopt().expect("adopts");
        Self { _folder: self._folder, keeper }
    }
    fn events(&self) -> Vec<BackendEvent> {
        std::iter::from_fn(|| self.keeper.out.next_event()).collect()
    }
    /// A gang of two that runs.
    fn gang(&self, n: u8, grace: Option<Span>) -> Vec<AttemptDir> {
        let mut spec = script("true");
        (spec.nodes, spec.on_lost_contact.grace) = (2, grace);
        self.keeper.command(BackendCommand::Start(Box::new(start(key(n), spec))));
        self.keeper.submitted(key(n), Ok(100 + u64::from(n)));
        if let Some(live) = open(&self.keeper.live).get_mut(&key(n)) {
            live.kept.mark = "mark".into();
        }
        self.age(n);
        let nodes = self.keeper.node_dirs(key(n), 2);
        for dir in nodes.iter().chain([&self.keeper.dir(key(n))]) {
            assert!(dir.take_token().expect("takes"), "it runs");
        }
        self.keeper.out.take_acts();
        self.events();
        nodes
    }
    /// What its guards may believe is over.
    fn lapse(&self, n: u8) {
        if let Some(live) = open(&self.keeper.live).get_mut(&key(n)) {
            (live.kept.grace, live.hold.leased_at) = (Some(Span::ZERO), Instant(0));
        }
    }
}

fn tells_where(events: &[BackendEvent]) -> Option<&str> {
    let end = events.iter().position(|e| matches!(e, BackendEvent::Ended { .. }))?;
    events[..end].iter().find_map(|e| match e {
        BackendEvent::Where { nodes, .. } => Some(nodes.as_str()),
        _ => None,
    })
}

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

/// Its start was not heard; its end comes over the line, or is Slurm's word.
#[test]
fn where_it_ran_is_told_with_an_end_whose_start_was_not_heard() {
    for over_the_line in [true, false] {
        let desk = Desk::new();
        desk.submitted(1);
        let dir = desk.keeper.dir(key(1));
        assert!(dir.take_token().expect("takes"));
        dir.write_started(&started("n7")).expect("writes");
        if over_the_line {
            desk.keeper.guard_ended(key(1), "", ended(Outcome::Exited(0)));
        } else {
            desk.list(&[job(1, NativeState::Timeout)]);
        }
        assert_eq!(tells_where(&desk.events()), Some("n7"), "{over_the_line}");
    }
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

/// The launcher sees the others end with the failed node, and ends; nobody ever says that the failed one has ended.
#[test]
fn a_gang_that_lost_a_node_ends_when_that_ones_time_is_over() {
    for lost in ["failed", "forgotten"] {
        let desk = Desk::new();
        let nodes = desk.gang(1, Some(Span::secs(3_600)));
        desk.keeper.dir(key(1)).write_ended(&ended(Outcome::Exited(9))).expect("writes");
        nodes[0].write_ended(&ended(Outcome::Stopped(BY_SCHEDULER.into()))).expect("writes");
        let look = |desk: &Desk| match lost {
            "failed" => desk.list(&[job(1, NativeState::NodeFail)]),
            _ => desk.keeper.asked(key(1), None),
        };
        look(&desk);
        assert_eq!(desk.ended(), None, "{lost}: it may run there still");
        desk.lapse(1);
        look(&desk);
        let Some(Outcome::Stopped(why)) = desk.ended() else { panic!("{lost}: it never ends") };
        let end = desk.again().ended();
        assert_eq!(end, Some(Outcome::Stopped(why)), "{lost}: what was given up stays so");
    }
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

#[test]
fn words_of_slurm_are_cut_and_the_last_line_is_read_from_its_end() {
    let desk = Desk::new();
    desk.begin(1, None);
    let long = "no\u{1b}[2J ".repeat(1 << 20);
    desk.keeper.submitted(key(1), Err(SubmitError::Refused(long)));
    let Some(Outcome::NotStarted(why)) = desk.ended() else { panic!("refused") };
    assert!(why.len() <= WORDS_MAX && !why.contains(char::is_control), "{why}");
    assert!(desk.again().ended().is_some(), "what was written can be read");

    let desk = Desk::new();
    let dir = desk.keeper.dir(key(1));
    fs::create_dir_all(dir.path()).expect("a folder");
    let mut text = b"first\n\xff\xfe\n".repeat(100_000);
    text.extend_from_slice(b"guard: \xffno such\x1b file\n\n");
    fs::write(dir.file("slurm.out"), &text).expect("writes");
    assert_eq!(last_line(&dir), "guard: \u{fffd}no such  file");
    fs::write(dir.file("slurm.out"), "x".repeat(100_000)).expect("writes");
    assert!(last_line(&dir).len() <= LINE_BYTES);
}

/// Its shared folder has no locks that work, or the way to one is lost: a list that says "completed" may mean the second
/// run of a controller that forgot the first, and a node's guard may live.
#[test]
fn a_nodes_guard_whose_lock_cannot_be_seen_is_not_taken_for_gone() {
    for how in ["no locks", "an error", "it is free"] {
        let desk = Desk::new();
        let nodes = desk.gang(1, Some(Span::secs(3_600)));
        desk.keeper.dir(key(1)).write_ended(&ended(Outcome::Exited(9))).expect("writes");
        nodes[0].write_ended(&ended(Outcome::Exited(4))).expect("writes");
        match how {
            "no locks" => fs::write(nodes[1].file("no-lock"), "").expect("writes"),
            "an error" => {
                fs::remove_file(nodes[1].file("lock")).expect("removes");
                fs::create_dir(nodes[1].file("lock")).expect("a folder in its place");
            }
            _ => {}
        }
        desk.list(&[job(1, NativeState::Completed)]);
        if how == "it is free" {
            assert_eq!(desk.ended(), Some(Outcome::Exited(4)), "the kernel knows that it is gone");
            continue;
        }
        assert_eq!(desk.ended(), None, "{how}: it may run there still");
        desk.lapse(1);
        desk.list(&[job(1, NativeState::Completed)]);
        assert!(matches!(desk.ended(), Some(Outcome::Stopped(_))), "{how}: its time is over");
    }
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

/// The operator's word came first, then its node was lost: that word ends it all the same.
#[test]
fn a_stray_without_a_grace_that_was_told_to_end_ends_when_it_is_fenced() {
    for (reason, end) in [
        (StopReason::Cancel, Some(Outcome::Cancelled)),
        (StopReason::Superseded, Some(Outcome::Stopped("superseded".into()))),
        (StopReason::Drain, None),
    ] {
        let desk = Desk::new();
        desk.begin(1, None);
        desk.keeper.submitted(key(1), Ok(101));
        desk.age(1);
        assert!(desk.keeper.dir(key(1)).take_token().expect("takes"));
        desk.keeper.command(BackendCommand::Stop { key: key(1), notice: Span::ZERO, reason });
        assert_eq!(desk.ended(), None, "its guard may say how it ends");
        desk.list(&[job(1, NativeState::NodeFail)]);
        assert_eq!(desk.ended(), end, "{reason:?}");
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
