//! Ledgers made by hand, one for each verdict.

use super::*;

/// A process: `p("j", epoch, pid, from)` begins, `.steps(a..b)` takes 10 us a step.
struct Hand {
    entries: Vec<Entry>,
    now: u64,
    base: Entry,
}

fn hand(job: &str, epoch: u64, pid: u32, cluster: &str, from: u64) -> Hand {
    let base = Entry {
        kind: Kind::Begin,
        job: job.into(),
        rank: 0,
        epoch,
        pid,
        cluster: cluster.into(),
        step: None,
        steps: Some(10),
        from_us: from,
        to_us: from,
    };
    Hand { entries: vec![base.clone()], now: from, base }
}

impl Hand {
    fn add(mut self, kind: Kind, step: Option<u64>, takes: u64) -> Self {
        let (from_us, to_us) = (self.now, self.now + takes);
        self.now = to_us;
        self.entries.push(Entry { kind, step, steps: None, from_us, to_us, ..self.base.clone() });
        self
    }
    fn steps(self, steps: std::ops::Range<u64>) -> Self {
        steps.fold(self, |hand, step| hand.add(Kind::Step, Some(step), 10))
    }
    fn kept(self, step: u64) -> Self {
        self.add(Kind::Checkpoint, Some(step), 0)
    }
    fn done(self) -> Self {
        self.add(Kind::Done, None, 0)
    }
    fn rank(mut self, rank: u32) -> Self {
        self.base.rank = rank;
        self.entries.iter_mut().for_each(|e| e.rank = rank);
        self
    }
}

fn verdict(hands: Vec<Hand>, ranks: u32) -> Verdict {
    let entries: Vec<Entry> = hands.into_iter().flat_map(|h| h.entries).collect();
    judge_entries(&entries, &[Expected { job: "j".into(), ranks }])
}

#[test]
fn a_straight_run_succeeds() {
    let v = verdict(vec![hand("j", 1, 7, "a", 0).steps(0..10).done()], 1);
    assert!(v.holds(), "{v:?}");
    assert_eq!((v.succeeded, v.moved), (1, 0));
}

#[test]
fn a_move_may_redo_what_no_checkpoint_held() {
    let v = verdict(
        vec![
            hand("j", 1, 7, "a", 0).steps(0..4).kept(4).steps(4..7),
            hand("j", 2, 8, "b", 1_000).steps(4..10).done(),
        ],
        1,
    );
    assert!(v.holds(), "{v:?}");
    assert_eq!(v.moved, 1);
    // The note of a checkpoint may be lost in the crash: then it goes on later, from what was done.
    let v = verdict(
        vec![hand("j", 1, 7, "a", 0).steps(0..6), hand("j", 2, 8, "b", 1_000).steps(6..10).done()],
        1,
    );
    assert!(v.holds(), "{v:?}");
}

#[test]
fn redoing_what_a_checkpoint_held_is_a_repeat() {
    let v = verdict(
        vec![hand("j", 1, 7, "a", 0).steps(0..4).kept(4), hand("j", 2, 8, "b", 1_000).steps(0..10).done()],
        1,
    );
    assert!(v.repeats > 0 && !v.holds(), "{v:?}");
    let v = verdict(vec![hand("j", 1, 7, "a", 0).steps(0..5).steps(4..10).done()], 1);
    assert_eq!(v.repeats, 1, "{v:?}");
}

#[test]
fn skipped_and_missing_steps_are_gaps() {
    let v = verdict(vec![hand("j", 1, 7, "a", 0).steps(0..3).steps(5..10).done()], 1);
    assert_eq!((v.gaps, v.succeeded, v.lost), (2, 0, 1), "{v:?}");
    let v =
        verdict(vec![hand("j", 1, 7, "a", 0).steps(0..3), hand("j", 2, 8, "b", 900).steps(5..10).done()], 1);
    assert_eq!(v.gaps, 2, "{v:?}");
    let v = verdict(vec![hand("j", 1, 7, "a", 0).steps(0..8).done()], 1);
    assert_eq!((v.gaps, v.lost), (2, 1), "{v:?}");
}

#[test]
fn two_alive_at_once_ran_twice() {
    let old = || hand("j", 1, 7, "a", 0).steps(0..6);
    let v = verdict(vec![old(), hand("j", 2, 8, "b", 59).steps(0..10).done()], 1);
    assert_eq!((v.run_twice, v.succeeded), (1, 0), "{v:?}");
    assert_eq!((v.overlaps, v.stale_writes), (1, 1), "{v:?}");
    let v = verdict(vec![old(), hand("j", 2, 8, "b", 60).steps(0..10).done()], 1);
    assert_eq!((v.run_twice, v.succeeded), (0, 1), "one ends as the other begins: {v:?}");
    // A short newer life inside a long older one, then a third: every pair counts.
    let long = hand("j", 1, 7, "a", 0).steps(0..10);
    let v = verdict(vec![long, hand("j", 2, 8, "b", 10), hand("j", 3, 9, "c", 95).steps(0..10).done()], 1);
    assert_eq!(v.run_twice, 1);
    assert_eq!(v.notes.iter().filter(|n| n.contains("at once")).count(), 2, "{v:?}");
}

#[test]
fn an_older_epoch_that_writes_after_a_newer_one_is_stale_even_alone() {
    // The newer one has ended by the time: nothing overlaps.
    let newer = hand("j", 2, 8, "b", 0).steps(0..4).kept(4);
    let v = verdict(vec![newer, hand("j", 1, 7, "a", 500).steps(4..10).done()], 1);
    assert_eq!((v.overlaps, v.stale_writes, v.run_twice, v.succeeded), (0, 1, 1, 0), "{v:?}");
    assert!(!v.holds());
    // Two processes of the older epoch: each is seen, whatever the other did.
    let v = verdict(
        vec![
            hand("j", 1, 6, "a", 0).steps(0..2),
            hand("j", 1, 7, "a", 90).steps(0..2),
            hand("j", 2, 8, "b", 80).steps(2..10).done(),
        ],
        1,
    );
    assert_eq!(v.stale_writes, 1, "{v:?}");
}

#[test]
fn one_epoch_started_twice_or_done_twice_ran_twice() {
    let v =
        verdict(vec![hand("j", 1, 7, "a", 0).steps(0..2), hand("j", 1, 8, "a", 500).steps(0..10).done()], 1);
    assert_eq!(v.run_twice, 1, "{v:?}");
    let v = verdict(vec![hand("j", 1, 7, "a", 0).steps(0..10).done(), hand("j", 2, 8, "b", 500).done()], 1);
    assert_eq!(v.run_twice, 1, "{v:?}");
}

#[test]
fn a_process_that_finds_all_done_is_counted_and_does_no_harm() {
    let again = hand("j", 2, 8, "b", 500).add(Kind::Again, None, 0);
    let v = verdict(vec![hand("j", 1, 7, "a", 0).steps(0..10).kept(10).done(), again], 1);
    assert!(v.holds(), "{v:?}");
    assert_eq!(v.again, 1);
}

#[test]
fn lost_and_unexpected_jobs() {
    let v = verdict(vec![hand("j", 1, 7, "a", 0).steps(0..5)], 1);
    assert_eq!((v.lost, v.succeeded), (1, 0));
    let v = verdict(vec![hand("k", 1, 7, "a", 0).steps(0..10).done()], 1);
    assert_eq!((v.lost, v.unexpected), (1, 1));
}

#[test]
fn every_rank_counts() {
    let run = |rank| hand("j", 1, 7 + rank, "a", 0).rank(rank).steps(0..10).done();
    assert!(verdict(vec![run(0), run(1)], 2).holds());
    assert_eq!(verdict(vec![run(0)], 2).lost, 1);
    assert_eq!(verdict(vec![run(0), hand("j", 1, 9, "a", 0).rank(1).steps(0..3)], 2).lost, 1);
}

#[test]
fn sleeps_have_no_steps() {
    let sleep = |epoch, pid, from| {
        let mut h = hand("j", epoch, pid, "a", from);
        h.entries[0].steps = None;
        h
    };
    let done = |h: Hand| h.add(Kind::Done, None, 100);
    assert!(verdict(vec![done(sleep(1, 1, 0))], 1).holds());
    assert!(verdict(vec![sleep(1, 1, 0), done(sleep(2, 2, 50))], 1).holds());
    assert_eq!(verdict(vec![done(sleep(1, 1, 0)), done(sleep(2, 2, 500))], 1).run_twice, 1);
}

#[test]
fn files_are_read_and_torn_lines_told() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("l");
    let mut ledger = Ledger::open(&path).expect("open");
    for entry in hand("j", 1, 7, "a", 0).steps(0..10).done().entries {
        ledger.add(&entry).expect("add");
    }
    assert!(is_done(&path, "j", 0).expect("read") && !is_done(&path, "j", 1).expect("read"));
    let expected = [Expected { job: "j".into(), ranks: 1 }];
    let missing = dir.path().join("missing");
    assert!(judge(&[path.clone(), missing], &expected).expect("read").holds());
    std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .expect("open")
        .write_all(b"{\"kind\":\"st")
        .expect("write");
    let v = judge(&[path], &expected).expect("read");
    assert_eq!((v.malformed, v.succeeded), (1, 1));
    assert!(!v.holds());
}
