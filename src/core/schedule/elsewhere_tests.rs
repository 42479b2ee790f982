//! Who may have nodes held for it, beside what others hold.

use super::elsewhere::{Elsewhere, Keep};
use super::tests::{all, ask, at, granted, nodes};
use super::*;

type S = Scheduler<u32>;

/// Four nodes of 8 GPUs, each with a job of one GPU whose end nobody knows, and a gang of two nodes that waits.
fn full(config: Config) -> S {
    let mut s = S::new(&nodes(4, 8), config);
    for key in 1..=4 {
        s.join(key, ask(&s, 1, 5, None), at(0));
        assert_eq!(granted(&s.decide(at(0), &all)), [key]);
    }
    s.join(10, Request { since: 100_000_000, ..ask(&s, 2, 8, None) }, at(100));
    s
}

fn elsewhere(s: &S, key: u32, since: u64, gpus: u64, all_gpus: u64) -> Elsewhere<u32> {
    let pools = s.need(&Resources { gpus: 1, gpu: vec![], cpus: MilliCpu(0), memory: Bytes(0) }).pools;
    let keep =
        Keep { key, priority: 50, since: i64::try_from(since).expect("small") * 1_000_000, gpus, pools };
    Elsewhere { keeps: vec![keep], gpus: vec![all_gpus; 2] }
}

fn held(s: &mut S, now: u64) -> Vec<u32> {
    s.decide(at(now), &all);
    s.keeps(at(now)).map(|(key, _)| *key).collect()
}

use crate::base::{Bytes, MilliCpu};

#[test]
fn nodes_are_held_for_the_oldest_and_no_others_beyond_a_part_of_the_mesh() {
    let mut s = full(Config::default());
    assert!(held(&mut s, 101).is_empty(), "it has not starved yet");
    assert_eq!(held(&mut s, 200), [10], "nobody else is known");
    for (since, gpus, mesh, holds, why) in [
        (50, 16, 64, false, "an older one is first"),
        (150, 16, 64, true, "a younger one is not"),
        (50, 16, 640, true, "both are a twentieth of the mesh"),
        (50, 17, 640, false, "both are a little more"),
    ] {
        let told = elsewhere(&s, 77, since, gpus, mesh);
        s.set_elsewhere(told);
        assert_eq!(held(&mut s, 200) == [10], holds, "{why}");
        assert_eq!(s.yields(&10), !holds, "{why}");
    }
    // The same job, firm at another cluster until a moment ago.
    let told = elsewhere(&s, 10, 50, 16, 64);
    s.set_elsewhere(told);
    assert_eq!(held(&mut s, 201), [10]);
    // Another model.
    let mut other = elsewhere(&s, 77, 50, 16, 64);
    other.keeps[0].pools = vec![9];
    s.set_elsewhere(other);
    assert_eq!(held(&mut s, 202), [10]);
    let mut urgent = elsewhere(&s, 77, 500, 16, 64);
    urgent.keeps[0].priority = 51;
    s.set_elsewhere(urgent);
    assert!(held(&mut s, 203).is_empty(), "a higher priority is first, however young");
}

#[test]
fn what_waits_for_its_turn_elsewhere_neither_holds_nodes_nor_lets_others_hold_them() {
    let mut s = full(Config::default());
    let told = elsewhere(&s, 77, 50, 16, 64);
    s.set_elsewhere(told);
    s.join(11, Request { since: 101_000_000, ..ask(&s, 3, 8, None) }, at(200));
    assert!(held(&mut s, 300).is_empty(), "nobody behind it takes its place");
    // Small jobs use what nobody holds,
    s.join(20, ask(&s, 1, 3, None), at(300));
    assert_eq!(granted(&s.decide(at(300), &all)), [20]);
    // it starts as soon as it fits,
    for key in [1, 2, 20] {
        s.end(&key, at(400));
    }
    assert_eq!(granted(&s.decide(at(400), &all)), [10]);
    // and the one behind it is held for once nothing older is.
    s.set_elsewhere(Elsewhere::default());
    assert_eq!(held(&mut s, 401), [11]);
}

#[test]
fn what_is_held_for_very_long_no_longer_counts_against_others() {
    let mut s = full(Config::default());
    assert_eq!(held(&mut s, 200), [10]);
    let hour = 3_600;
    assert_eq!(held(&mut s, 200 + 72 * hour - 1), [10]);
    assert!(held(&mut s, 200 + 72 * hour).is_empty(), "not told any more");
    assert!(s.reservations().iter().any(|r| r.key == 10 && r.binding), "and held on");
}

#[test]
fn a_known_end_and_a_part_of_one_hold_as_ever() {
    // A reservation with a time costs the others little: they run before it.
    let mut s = S::new(&nodes(1, 8), Config::default());
    s.join(1, ask(&s, 1, 5, Some(1_000)), at(0));
    assert_eq!(granted(&s.decide(at(0), &all)), [1]);
    s.join(10, Request { since: 100_000_000, ..ask(&s, 1, 8, None) }, at(100));
    let told = elsewhere(&s, 77, 50, 16, 64);
    s.set_elsewhere(told);
    s.decide(at(200), &all);
    assert_eq!(s.reservations().len(), 1);
    assert!(!s.yields(&10));
    // Without any part allowed the oldest of all is still held for.
    let mut s = full(Config { drain_milli: 0, ..Config::default() });
    let told = elsewhere(&s, 77, 150, 16, 1 << 40);
    s.set_elsewhere(told);
    assert_eq!(held(&mut s, 200), [10]);
    let told = elsewhere(&s, 77, 50, 16, 1 << 40);
    s.set_elsewhere(told);
    assert!(held(&mut s, 200).is_empty());
}
