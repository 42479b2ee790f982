//! The book against what Slurm may say, without a Slurm.

use super::*;
use crate::backends::conformance::{key, script, start};
use crate::base::{PeerName, WallTime};
use crate::core::api::StopReason;

#[path = "cancel_tests.rs"]
mod cancel;
#[path = "gang_tests.rs"]
mod gang;
#[path = "restart_tests.rs"]
mod restart;

struct Desk {
    _folder: tempfile::TempDir,
    keeper: Keeper,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let peer = PeerName::new("here").expect("a name");
        let config = SlurmConfig::new(folder.path().join("shared"), "/bin/true".into(), peer);
        let keeper = Keeper::new(config).expect("a book");
        keeper.adopt().expect("adopts");
        assert!(matches!(keeper.out.next_event(), Some(BackendEvent::Adopted { .. })));
        Self { _folder: folder, keeper }
    }
    /// Submits attempt `n` and gives it Slurm's number 100 + n.
    fn submitted(&self, n: u8) {
        self.begin(n, Some(Span::millis(1)));
        self.keeper.submitted(key(n), Ok(100 + u64::from(n)));
        self.age(n);
    }
    fn begin(&self, n: u8, grace: Option<Span>) {
        let mut spec = script("true");
        spec.on_lost_contact.grace = grace;
        self.keeper.command(BackendCommand::Start(Box::new(start(key(n), spec))));
        assert!(matches!(self.keeper.out.take_acts().as_slice(), [Act::Submit(..)]));
        if let Some(live) = open(&self.keeper.live).get_mut(&key(n)) {
            live.kept.mark = "mark".into();
        }
    }
    /// It was submitted long ago.
    fn age(&self, n: u8) {
        if let Some(live) = open(&self.keeper.live).get_mut(&key(n)) {
            live.since = Instant(0);
        }
    }
    fn list(&self, jobs: &[NativeJob]) {
        self.keeper.seen(jobs, clock::now());
    }
    fn ended(&self) -> Option<Outcome> {
        std::iter::from_fn(|| self.keeper.out.next_event()).find_map(|e| match e {
            BackendEvent::Ended { outcome, .. } => Some(outcome),
            _ => None,
        })
    }
    /// Another run of the peer over the same folders.
    fn again(self) -> Self {
        let keeper = Keeper::new(self.keeper.config.clone()).expect("a book");
        keeper.adopt().expect("adopts");
        Self { _folder: self._folder, keeper }
    }
    fn events(&self) -> Vec<BackendEvent> {
        std::iter::from_fn(|| self.keeper.out.next_event()).collect()
    }
}

fn ended(outcome: Outcome) -> Ended {
    Ended { outcome, started_at: Some(WallTime(5)), at: WallTime(9), output_lost: 0 }
}

fn started(nodes: &str) -> Started {
    Started { at: WallTime(5), nodes: Some(nodes.to_owned()) }
}

fn tells_where(events: &[BackendEvent]) -> Option<&str> {
    let end = events.iter().position(|e| matches!(e, BackendEvent::Ended { .. }))?;
    events[..end].iter().find_map(|e| match e {
        BackendEvent::Where { nodes, .. } => Some(nodes.as_str()),
        _ => None,
    })
}

/// Attempt `n`'s batch job.
fn job(n: u8, state: NativeState) -> NativeJob {
    NativeJob {
        id: 100 + u64::from(n),
        name: native_name(key(n)),
        comment: tag(key(n), "mark"),
        state,
        word: format!("{state:?}"),
        reason: "r".into(),
        status: 0,
        restarts: 0,
        user: "u".into(),
        parts: Vec::new(),
        partition: "main".into(),
        gpus_wanted: 0,
    }
}

#[test]
fn an_empty_list_ends_nothing() {
    let desk = Desk::new();
    desk.submitted(1);
    assert!(desk.keeper.dir(key(1)).take_token().expect("takes"), "it runs");
    desk.list(&[]);
    assert!(desk.keeper.out.take_acts().is_empty(), "one list says nothing");
    desk.list(&[]);
    assert_eq!(desk.keeper.out.take_acts(), [Act::Ask(key(1), 101)]);
    // An error instead of an answer: asked again, nothing concluded.
    desk.list(&[]);
    assert_eq!(desk.keeper.out.take_acts(), [Act::Ask(key(1), 101)]);
    assert_eq!(desk.ended(), None);
    // Slurm still has it.
    desk.keeper.asked(key(1), Some(job(1, NativeState::Active)));
    desk.list(&[]);
    assert!(desk.keeper.out.take_acts().is_empty() && desk.ended().is_none(), "counted from anew");
}

#[test]
fn what_slurm_lost_before_it_began_is_submitted_again_and_begins_once() {
    let desk = Desk::new();
    desk.submitted(1);
    for round in 1..SUBMITS_MAX {
        desk.list(&[]);
        desk.list(&[]);
        assert_eq!(desk.keeper.out.take_acts(), [Act::Ask(key(1), 100 + u64::from(1_u8))], "round {round}");
        desk.keeper.asked(key(1), None);
        assert!(matches!(desk.keeper.out.take_acts().as_slice(), [Act::Submit(..)]));
        desk.keeper.submitted(key(1), Ok(101));
        desk.age(1);
    }
    desk.list(&[]);
    desk.list(&[]);
    desk.keeper.asked(key(1), None);
    assert!(matches!(desk.ended(), Some(Outcome::Refused(why)) if why.contains("lost it 4 times")));
    assert!(!desk.keeper.dir(key(1)).take_token().expect("asks"), "and now it never begins");
}

#[test]
fn a_number_that_is_another_jobs_now_is_not_ours() {
    let desk = Desk::new();
    desk.submitted(1);
    let other = NativeJob { name: "theirs".into(), comment: String::new(), ..job(1, NativeState::Active) };
    desk.list(std::slice::from_ref(&other));
    desk.list(std::slice::from_ref(&other));
    assert_eq!(desk.keeper.out.take_acts(), [Act::Ask(key(1), 101)]);
    desk.keeper.asked(key(1), Some(other));
    assert!(
        matches!(desk.keeper.out.take_acts().as_slice(), [Act::Submit(..)]),
        "ours is gone, theirs is not touched"
    );
}

#[test]
fn one_of_the_same_name_without_our_comment_is_somebody_elses() {
    let desk = Desk::new();
    desk.submitted(1);
    let native = NativeJob { id: 7, comment: "mine".into(), ..job(1, NativeState::Cancelled) };
    assert_eq!(desk.keeper.ours(&native), None);
    desk.list(&[native, job(1, NativeState::Active)]);
    assert_eq!(desk.ended(), None, "its end is not ours");
    desk.keeper.command(BackendCommand::Stop { key: key(1), notice: Span::ZERO, reason: StopReason::Cancel });
    assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(1), 101)]);
    assert_eq!(desk.ended(), Some(Outcome::Cancelled));
}

#[test]
fn slurms_ends_are_told_apart() {
    for (n, state, wanted) in [
        (1, NativeState::Timeout, Outcome::TimedOut),
        (2, NativeState::Preempted, Outcome::Stopped("preempted by Slurm".into())),
        (3, NativeState::Cancelled, Outcome::Cancelled),
        (4, NativeState::OutOfMemory, Outcome::Signaled(9)),
        (5, NativeState::Failed, Outcome::Stopped("its guard was ended: Slurm says Failed".into())),
    ] {
        let desk = Desk::new();
        desk.submitted(n);
        assert!(desk.keeper.dir(key(n)).take_token().expect("takes"));
        desk.list(&[job(n, NativeState::Active)]);
        assert_eq!(desk.ended(), None);
        desk.list(&[job(n, state)]);
        assert_eq!(desk.ended(), Some(wanted), "{state:?}");
        assert_eq!(desk.keeper.live_count(), 0);
    }
}

#[test]
fn the_guards_word_comes_before_slurms_and_slurm_says_why_it_ended_one() {
    let desk = Desk::new();
    desk.submitted(1);
    let dir = desk.keeper.dir(key(1));
    assert!(dir.take_token().expect("takes"));
    let ended = |outcome| Ended { outcome, started_at: None, at: WallTime(1), output_lost: 0 };
    dir.write_ended(&ended(Outcome::Exited(3))).expect("writes");
    desk.list(&[job(1, NativeState::Cancelled)]);
    assert_eq!(desk.ended(), Some(Outcome::Exited(3)));

    desk.submitted(2);
    let dir = desk.keeper.dir(key(2));
    assert!(dir.take_token().expect("takes"));
    dir.write_ended(&ended(Outcome::Stopped(BY_SCHEDULER.into()))).expect("writes");
    desk.list(&[job(2, NativeState::Active)]);
    assert_eq!(desk.ended(), None, "why is not known yet");
    desk.list(&[job(2, NativeState::Timeout)]);
    assert_eq!(desk.ended(), Some(Outcome::TimedOut));
}

#[test]
fn a_requeue_over_our_no_ends_the_attempt() {
    let desk = Desk::new();
    desk.submitted(1);
    assert!(desk.keeper.dir(key(1)).take_token().expect("takes"));
    desk.list(&[NativeJob { restarts: 1, ..job(1, NativeState::Pending) }]);
    assert_eq!(desk.ended(), Some(Outcome::Stopped("requeued by Slurm".into())));
    assert_eq!(desk.keeper.out.take_acts(), [Act::Cancel(key(1), 101)]);
}

/// Its guard heard Slurm's SIGTERM and said so, as it mostly does: the reason is told at the next list, and what Slurm
/// queued again is taken back.
#[test]
fn a_requeue_that_the_guard_heard_is_told_as_one_at_once() {
    let word = Outcome::Stopped(BY_SCHEDULER.into());
    let requeued = Outcome::Stopped("requeued by Slurm".into());
    let cancel = vec![Act::Cancel(key(1), 101)];
    for (state, restarts, wanted, acts) in [
        (NativeState::Pending, 1, Some(&requeued), cancel.clone()),
        // Some versions count the restart when it starts again.
        (NativeState::Pending, 0, Some(&requeued), cancel),
        (NativeState::Active, 1, None, Vec::new()),
        (NativeState::Completed, 1, Some(&requeued), Vec::new()),
        (NativeState::Cancelled, 1, Some(&Outcome::Cancelled), Vec::new()),
        (NativeState::Failed, 0, Some(&word), Vec::new()),
    ] {
        let desk = Desk::new();
        desk.submitted(1);
        let dir = desk.keeper.dir(key(1));
        assert!(dir.take_token().expect("takes"));
        desk.list(&[job(1, NativeState::Active)]);
        let ended = Ended { outcome: word.clone(), started_at: None, at: WallTime(1), output_lost: 0 };
        dir.write_ended(&ended).expect("writes");
        desk.keeper.check(key(1));
        assert_eq!(desk.ended(), None, "the next list says why");
        desk.list(&[NativeJob { restarts, ..job(1, state) }]);
        assert_eq!(desk.ended().as_ref(), wanted, "{state:?} {restarts}");
        assert_eq!(desk.keeper.out.take_acts(), acts, "{state:?} {restarts}");
    }
}

/// It began and was cancelled between two lists: the one that shows it waiting is from before, and is no requeue.
#[test]
fn a_list_from_before_its_end_is_no_requeue() {
    let desk = Desk::new();
    desk.submitted(1);
    desk.list(&[job(1, NativeState::Pending)]);
    let asked_before = clock::now();
    let dir = desk.keeper.dir(key(1));
    assert!(dir.take_token().expect("takes"));
    let outcome = Outcome::Stopped(BY_SCHEDULER.into());
    dir.write_ended(&Ended { outcome, started_at: None, at: WallTime(1), output_lost: 0 }).expect("writes");
    desk.keeper.check(key(1));
    // Nor is one that was under way then.
    desk.keeper.seen(&[job(1, NativeState::Pending)], asked_before);
    assert_eq!((desk.ended(), desk.keeper.out.take_acts()), (None, Vec::new()));
    desk.list(&[job(1, NativeState::Cancelled)]);
    assert_eq!(desk.ended(), Some(Outcome::Cancelled));
}

#[test]
fn after_a_failed_node_the_guards_time_must_be_over() {
    let desk = Desk::new();
    desk.begin(1, Some(Span::secs(3_600)));
    desk.keeper.submitted(key(1), Ok(101));
    assert!(desk.keeper.dir(key(1)).take_token().expect("takes"));
    desk.list(&[job(1, NativeState::NodeFail)]);
    desk.list(&[job(1, NativeState::NodeFail)]);
    assert_eq!(desk.ended(), None, "it may run there still");
    let question = Question {
        key: key(1),
        part: String::new(),
        guard: String::new(),
        nonce: "n".into(),
        what: What::Ask,
    };
    assert_eq!(desk.keeper.heard(question).age_us, None, "and gets no more time");
    if let Some(live) = open(&desk.keeper.live).get_mut(&key(1)) {
        live.kept.grace = Some(Span::ZERO);
        live.hold.leased_at = Instant(0);
    }
    desk.list(&[job(1, NativeState::NodeFail)]);
    assert_eq!(desk.ended(), Some(Outcome::Stopped("its node failed".into())));
}

#[test]
fn without_a_grace_only_an_operators_word_ends_it() {
    let desk = Desk::new();
    desk.begin(1, None);
    desk.keeper.submitted(key(1), Ok(101));
    desk.age(1);
    assert!(desk.keeper.dir(key(1)).take_token().expect("takes"));
    for _ in 0..3 {
        desk.list(&[job(1, NativeState::NodeFail)]);
    }
    assert_eq!(desk.ended(), None);
    desk.keeper.command(BackendCommand::Stop {
        key: key(1),
        notice: Span::ZERO,
        reason: StopReason::Superseded,
    });
    assert_eq!(desk.ended(), Some(Outcome::Stopped("superseded".into())));
}

#[test]
fn a_submission_of_unknown_outcome_is_looked_for_by_name() {
    let desk = Desk::new();
    desk.begin(1, None);
    desk.keeper.submitted(key(1), Err(SubmitError::Unknown("timed out".into())));
    desk.age(1);
    desk.list(&[job(1, NativeState::Pending)]);
    assert!(desk.keeper.out.take_acts().is_empty() && desk.ended().is_none(), "it was taken");
    desk.begin(2, None);
    desk.keeper.submitted(key(2), Err(SubmitError::Unknown("timed out".into())));
    desk.age(2);
    desk.list(&[]);
    assert!(desk.keeper.out.take_acts().is_empty());
    desk.age(1);
    desk.list(&[job(1, NativeState::Pending)]);
    assert!(matches!(desk.keeper.out.take_acts().as_slice(), [Act::Submit(k, _)] if *k == key(2)));
    desk.begin(3, None);
    desk.keeper.submitted(key(3), Err(SubmitError::Refused("no such partition".into())));
    assert_eq!(desk.ended(), Some(Outcome::NotStarted("no such partition".into())));
}

#[test]
fn a_lease_is_as_old_as_the_older_of_two_contacts() {
    let desk = Desk::new();
    desk.submitted(1);
    let ask = |desk: &Desk| {
        let question = Question {
            key: key(1),
            part: String::new(),
            guard: String::new(),
            nonce: "n".into(),
            what: What::Ask,
        };
        desk.keeper.heard(question).age_us
    };
    assert!(ask(&desk).is_some(), "the renewal that came with the command");
    let other = ContactId([7; 20]);
    let contact = crate::backends::conformance::CONTACT;
    desk.keeper.command(BackendCommand::Rebind { key: key(1), to: (other, 1), and: Some((contact, 1)) });
    assert_eq!(ask(&desk), None, "the new one was never renewed");
    desk.keeper.renewed(other, 1, Instant(clock::now().0 - 5_000_000));
    desk.keeper.renewed(contact, 1, clock::now());
    assert!(ask(&desk).is_some_and(|age| age >= 5_000_000));
    assert_eq!(desk.keeper.out.take_wakes(), [key(1)], "its guard is told to ask");
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
    assert!(last_line(&dir).len() <= folders::LINE_BYTES);
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
