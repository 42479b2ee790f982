//! Gangs: their launcher and their nodes' guards end one by one.

use super::*;
use crate::backends::local::files::AttemptDir;

impl Desk {
    /// A gang of two that runs.
    pub(super) fn gang(&self, n: u8, grace: Option<Span>) -> Vec<AttemptDir> {
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
    pub(super) fn lapse(&self, n: u8) {
        if let Some(live) = open(&self.keeper.live).get_mut(&key(n)) {
            (live.kept.grace, live.hold.leased_at) = (Some(Span::ZERO), Instant(0));
        }
    }
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

#[test]
fn the_first_node_that_failed_decides_for_a_gang() {
    let ended =
        |outcome, at| Ended { outcome, started_at: Some(WallTime(at)), at: WallTime(at), output_lost: 0 };
    let whole = ended(Outcome::Exited(9), 50);
    let nodes = [
        ended(Outcome::Stopped(BY_SCHEDULER.into()), 30),
        ended(Outcome::Exited(4), 20),
        ended(Outcome::Exited(5), 25),
    ];
    let all = gang_outcome(whole.clone(), &nodes);
    assert_eq!((all.outcome, all.started_at), (Outcome::Exited(4), Some(WallTime(20))));
    assert_eq!(gang_outcome(ended(Outcome::Cancelled, 50), &nodes).outcome, Outcome::Cancelled);
    let good = [ended(Outcome::Exited(0), 20)];
    assert_eq!(gang_outcome(ended(Outcome::Exited(0), 50), &good).outcome, Outcome::Exited(0));
    let told = [ended(Outcome::Cancelled, 20)];
    assert_eq!(gang_outcome(ended(Outcome::Exited(143), 50), &told).outcome, Outcome::Cancelled);
}

/// Its node's guard was killed: the kernel and Slurm say that it is gone, and nobody else will say more.
#[test]
fn a_gang_whose_guard_was_killed_has_ended_for_the_next_run_too() {
    let desk = Desk::new();
    let nodes = desk.gang(1, None);
    desk.keeper.dir(key(1)).write_ended(&ended(Outcome::Exited(9))).expect("writes");
    nodes[0].write_ended(&ended(Outcome::Exited(4))).expect("writes");
    desk.list(&[job(1, NativeState::Completed)]);
    assert_eq!(desk.ended(), Some(Outcome::Exited(4)));
    let mut desk = desk;
    for run in 1..=2 {
        desk = desk.again();
        assert_eq!((desk.keeper.live_count(), desk.ended()), (0, Some(Outcome::Exited(4))), "run {run}");
    }
}
