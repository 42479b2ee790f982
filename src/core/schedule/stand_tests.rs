//! Of what would fit, why it does not start.

use super::super::tests::{all, ask, at, granted, nodes};
use super::super::*;
use super::*;
use crate::base::work;
use crate::core::schedule::promised::Promise;

type S = Scheduler<u32>;

fn stands(s: &S, key: u32, now: u64) -> Option<Stand<u32>> {
    s.stand(&key, at(now), &mut Looked::default())
}

/// Two heads, each of its own model. What takes any model is not in the way of one of them alone: together they bar it.
#[test]
fn several_reservations_together_leave_no_room() {
    let mut both = nodes(1, 8);
    both.extend(nodes(1, 8).into_iter().map(|n| NodeCapacity { gpu_model: Some("L4".into()), ..n }));
    let mut s = S::new(&both, Config::default());
    let of = |s: &S, model: &str, gpus: u32, run| {
        let gpu = vec![model.into()];
        let resources = Resources { gpus, gpu, cpus: MilliCpu(1_000), memory: Bytes(0) };
        Request { need: s.need(&resources), ..ask(s, 1, 0, run) }
    };
    for (key, model) in [(1, "A100-80G"), (2, "L4")] {
        let request = of(&s, model, 4, Some(1_000));
        let shares = s.fit_now(&request, at(0)).expect("free");
        s.start(key, request, shares, at(0));
    }
    s.join(3, of(&s, "A100-80G", 8, None), at(0));
    s.join(4, Request { since: 1, ..of(&s, "L4", 8, None) }, at(0));
    s.join(5, Request { since: 2, ..ask(&s, 1, 4, None) }, at(0));
    assert!(s.decide(at(100), &all).is_empty());
    assert_eq!(s.reservations().len(), 2);
    let Some(Stand::Behind(3, Some(wait))) = stands(&s, 5, 100) else { panic!("{:?}", stands(&s, 5, 100)) };
    assert!(wait > Span::secs(900) && wait < Span::secs(920), "{wait}");
    // What is over before them is in nobody's way.
    s.join(6, Request { since: 3, ..ask(&s, 1, 4, Some(10)) }, at(100));
    assert_eq!(stands(&s, 6, 100), Some(Stand::Fits));
}

/// What comes free beside the buffer is kept for one that waits for it: who is behind it hears so.
#[test]
fn behind_one_that_waits_for_room_beside_the_buffer() {
    let mut s = S::new(&nodes(2, 8), Config { buffer_milli: 250, ..Config::default() });
    let held = ask(&s, 1, 8, None);
    let shares = s.fit_now(&held, at(0)).expect("free");
    s.start(1, held, shares, at(0));
    s.join(2, ask(&s, 1, 6, None), at(0));
    s.join(3, Request { since: 39_000_000, ..ask(&s, 1, 1, None) }, at(39));
    assert!(granted(&s.decide(at(40), &all)).is_empty());
    assert_eq!(stands(&s, 2, 40), Some(Stand::Buffer));
    assert_eq!(stands(&s, 3, 40), Some(Stand::BehindBuffer(2)));
    // Who may use the buffer is not behind it, nor anybody once that one has gone.
    s.join(4, Request { priority: 75, ..ask(&s, 1, 1, None) }, at(40));
    assert_eq!(stands(&s, 4, 40), Some(Stand::Fits));
    s.leave(&2);
    assert_eq!(stands(&s, 3, 40), Some(Stand::Fits));
}

/// A copy of the books for each that waits would be dear: one serves all beside the same promises.
#[test]
fn one_look_copies_the_books_once_for_the_same_promises() {
    let mut s = S::new(&nodes(2, 8), Config::default());
    let resources = Resources { gpus: 1, ..Default::default() };
    let (need, id) = (s.need(&resources), crate::base::JobId([1; 20]));
    let shares = Vec::new();
    let mut promise =
        Promise { id, tenant: "theirs".into(), gpus: 16, need, from: at(0), until: at(9_000), shares };
    promise.shares = s.plan_promise(&promise, at(0), &|_| false).expect("all is free");
    s.set_promises(&nodes(2, 8), vec![promise]);
    for key in 0..30 {
        s.join(key, ask(&s, 1, 1 + key % 8, None), at(0));
    }
    assert!(s.decide(at(1), &all).is_empty());
    let (before, mut looked) = (work::done("books beside promises"), Looked::default());
    for key in 0..30 {
        assert_eq!(s.stand(&key, at(1), &mut looked), Some(Stand::Promised(id)), "{key}");
    }
    assert_eq!(work::done("books beside promises") - before, 1);
}
