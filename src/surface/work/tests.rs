//! Tests of the work, with the judge's word on it.

use super::checkpoint::Store;
use super::train::{Model, Plan, train};
use super::*;
use crate::surface::ledger::{Expected, judge};

fn identity(dir: &Path, epoch: u64, cluster: &str) -> Identity {
    let checkpoint = Some(dir.join("ckpt"));
    Identity { job: "j".into(), rank: 0, epoch, cluster: cluster.into(), checkpoint }
}

fn plan(steps: u64) -> Plan {
    Plan { steps, step: Duration::ZERO, checkpoint_every: 5 }
}

fn stop() -> Stop {
    Stop::listen().expect("signals")
}

#[test]
fn the_loss_goes_down() {
    let mut model = Model::new();
    let mut before = model.loss();
    for step in 0..200 {
        model.step(step);
        if step % 50 == 49 {
            assert!(model.loss() < before, "step {step}: {} after {before}", model.loss());
            before = model.loss();
        }
    }
    assert!(before < 0.01, "{before}");
}

#[tokio::test]
async fn a_run_that_goes_on_is_the_run_that_stopped() {
    let dir = tempfile::tempdir().expect("dir");
    let ledger = dir.path().join("ledger");
    let judged =
        || judge(std::slice::from_ref(&ledger), &[Expected { job: "j".into(), ranks: 1 }]).expect("read");
    // Cut off after 7 of 20 steps: 5 are kept.
    let mut cut = Model::new();
    {
        let me = identity(dir.path(), 1, "a");
        let mut notes = Notes::open(me.clone(), Some(&ledger)).expect("ledger");
        let store = Store::new(&dir.path().join("ckpt"), "j", 0, 1).expect("store");
        store.claim().expect("claim");
        let now = || boottime_now().0;
        notes.add(Kind::Begin, Some(0), Some(20), now()).expect("note");
        for step in 0..7 {
            cut.step(step);
            notes.add(Kind::Step, Some(step), None, now()).expect("note");
            if step == 4 {
                store.save(5, &cut.0).expect("save");
                notes.add(Kind::Checkpoint, Some(5), None, now()).expect("note");
            }
        }
    }
    assert_eq!(judged().lost, 1);
    train(&identity(dir.path(), 2, "b"), plan(20), Some(&ledger), &mut stop()).await.expect("it goes on");
    let verdict = judged();
    assert!(verdict.holds(), "{verdict:?}");
    assert_eq!(verdict.moved, 1);
    let mut straight = Model::new();
    (0..20).for_each(|step| straight.step(step));
    let kept = Store::new(&dir.path().join("ckpt"), "j", 0, 3).expect("store").claim().expect("claim");
    assert_eq!(kept.weights, straight.0.map(f64::to_bits), "to the last bit");
    // Its result may be lost with its cluster: the work is not done again.
    train(&identity(dir.path(), 4, "c"), plan(20), Some(&ledger), &mut stop()).await.expect("nothing to do");
    let verdict = judged();
    assert!(verdict.holds(), "{verdict:?}");
    assert_eq!(verdict.again, 1);
}

#[tokio::test]
async fn a_newer_epoch_fences_an_older_one() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("deep/ckpt");
    let old = Store::new(&path, "j", 0, 1).expect("store");
    let new = Store::new(&path, "j", 0, 2).expect("store");
    old.claim().expect("claim");
    old.save(3, &[1.0]).expect("save");
    assert_eq!(new.claim().expect("claim").next, 3);
    for refused in [old.save(4, &[2.0]), old.claim().map(|_| ())] {
        assert!(matches!(refused, Err(WorkError::Fenced { ours: 1, theirs: 2 })), "{refused:?}");
    }
    assert_eq!(new.claim().expect("claim").next, 3, "untouched");
    let other = Store::new(&path, "k", 0, 9).expect("store");
    assert!(matches!(other.claim(), Err(WorkError::Checkpoint(..))), "another job's is not taken over");
    assert_eq!(new.claim().expect("claim").next, 3, "nor is what it has kept from going on");
    std::fs::write(path.with_extension("epoch-2"), "{").expect("write");
    assert!(matches!(new.claim(), Err(WorkError::Checkpoint(..))), "a broken one is not overwritten");
}

#[tokio::test]
async fn a_folder_holds_a_file_per_rank() {
    let dir = tempfile::tempdir().expect("dir");
    for rank in [0, 3] {
        Store::new(dir.path(), "j", rank, 1).expect("store").claim().expect("claim");
        assert!(dir.path().join(format!("rank-{rank}.ckpt.epoch-1")).exists());
    }
}

#[tokio::test]
async fn a_checkpoint_of_an_earlier_build_is_gone_on_from() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("ckpt");
    std::fs::write(&path, r#"{"job":"j","epoch":1,"next":7,"weights":[0]}"#).expect("written");
    let claim = |job: &str, epoch| Store::new(&path, job, 0, epoch).expect("store").claim();
    assert!(matches!(claim("k", 2), Err(WorkError::Checkpoint(..))), "another job's");
    assert_eq!(claim("j", 2).expect("claim").next, 7);
    std::fs::write(&path, r#"{"job":"j","epoch":1,"next":9,"weights":[0]}"#).expect("written");
    assert_eq!(claim("j", 3).expect("claim").next, 7, "what the old one writes later counts no more");
}

/// Its machine sleeps in the middle of a save: the next epoch waits for nothing, and what the old one writes when it wakes
/// takes nothing back.
#[tokio::test]
async fn an_epoch_that_sleeps_while_it_saves_holds_up_nobody() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("ckpt");
    let (old, new) =
        (Store::new(&path, "j", 0, 1).expect("store"), Store::new(&path, "j", 0, 2).expect("store"));
    old.claim().expect("claim");
    old.save(3, &[1.0]).expect("save");
    let late = std::fs::read(path.with_extension("epoch-1")).expect("kept");
    assert_eq!(new.claim().expect("claim").next, 3);
    new.save(8, &[2.0]).expect("save");
    // As its rename would, which was all that was left to do.
    std::fs::write(path.with_extension("epoch-1"), late).expect("late");
    assert!(matches!(old.save(4, &[1.5]), Err(WorkError::Fenced { ours: 1, theirs: 2 })));
    assert_eq!(Store::new(&path, "j", 0, 3).expect("store").claim().expect("claim").next, 8);
    let names = |end: &str| {
        let all = std::fs::read_dir(dir.path()).expect("listed").map(|e| e.expect("an entry").file_name());
        all.filter(|n| n.to_string_lossy().contains(end)).count()
    };
    assert_eq!((names("epoch-"), names("begun-")), (1, 1), "what is old goes");
}

#[tokio::test]
async fn sleep_is_done_once() {
    let dir = tempfile::tempdir().expect("dir");
    let ledger = dir.path().join("ledger");
    for epoch in 1..3 {
        sleep(&identity(dir.path(), epoch, "a"), 1, Some(&ledger), &mut stop()).await.expect("sleeps");
    }
    let verdict = judge(&[ledger], &[Expected { job: "j".into(), ranks: 1 }]).expect("read");
    assert!(verdict.holds(), "{verdict:?}");
    assert_eq!(verdict.again, 1);
}
