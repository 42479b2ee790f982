//! The policy as a whole: order, backfill, gangs, victims, estimates.
// tidy: long because each rule of the policy has its case here

use super::*;
use crate::base::{Bytes, MilliCpu};
use crate::core::books::WHOLE;

pub(super) fn at(secs: u64) -> Instant {
    Instant(secs * 1_000_000)
}
pub(super) fn nodes(count: u32, gpus: u32) -> Vec<NodeCapacity> {
    group("n", count, gpus, "A100-80G", 64)
}
fn group(name: &str, count: u32, gpus: u32, model: &str, cores: u64) -> Vec<NodeCapacity> {
    vec![NodeCapacity {
        name: name.into(),
        count,
        gpu_model: (gpus > 0).then(|| model.into()),
        gpus,
        gpu_memory: Bytes(0),
        cpus: MilliCpu(cores * 1_000),
        memory: Bytes(0),
        declared: true,
    }]
}

type S = Scheduler<u32>;

pub(super) fn ask(s: &S, ranks: u32, gpus: u32, run: Option<u64>) -> Request {
    let resources = Resources { gpus, gpu: vec![], cpus: MilliCpu(1_000), memory: Bytes(0) };
    Request {
        tenant: "t".into(),
        priority: 50,
        ranks,
        need: s.need(&resources),
        max_runtime: run.map(Span::secs),
        preemptible: false,
        token: false,
        lean: false,
        since: 0,
    }
}

pub(super) fn granted(decisions: &[Decision<u32>]) -> Vec<u32> {
    let key = |d: &Decision<u32>| match d {
        Decision::Grant { key, .. } => Some(*key),
        _ => None,
    };
    decisions.iter().filter_map(key).collect()
}
fn sent_away(decisions: &[Decision<u32>]) -> Vec<u32> {
    let victims = |d: &Decision<u32>| match d {
        Decision::Preempt { victims, .. } => victims.clone(),
        _ => vec![],
    };
    decisions.iter().flat_map(victims).collect()
}
pub(super) fn all(_: &u32) -> bool {
    true
}

/// Jobs of 7, 7, 6 and 3 cores on two machines of 10: the first 7 on each, then 3 beside one of them, then the 6.
#[test]
fn two_machines_of_ten_and_jobs_of_seven_seven_six_three() {
    let mut s = S::new(&group("w", 2, 0, "", 10), Config::default());
    for (key, cores) in [(1, 7), (2, 7), (3, 6), (4, 3)] {
        let mut request = ask(&s, 1, 0, Some(100));
        request.need.cpus = cores * 1_000;
        request.since = i64::from(key);
        s.join(key, request, at(0));
    }
    let first = s.decide(at(0), &all);
    // The 3 fits beside a 7 and is over no later than that: it does not make the 6 wait.
    assert_eq!(granted(&first), [1, 2, 4]);
    assert!(matches!(first[2], Decision::Grant { why: Why::EndsBefore(_) | Why::Beside, .. }), "{first:?}");
    assert_eq!(s.reservations()[0].at, Some(at(110)));
    // Whatever happens, nothing is overbooked.
    assert!(s.decide(at(50), &all).is_empty());
    s.end(&1, at(100));
    assert_eq!(granted(&s.decide(at(100), &all)), [3]);
    assert!(s.books().nodes().iter().all(|n| n.cpus <= 10_000));
}

#[test]
fn backfill_never_delays_the_first_in_line() {
    let mut s = S::new(&nodes(2, 8), Config::default());
    s.start(1, ask(&s, 1, 8, Some(1_000)), s.fit_now(&ask(&s, 1, 8, None), at(0)).expect("free"), at(0));
    // The head needs both nodes: at 1010 s.
    s.join(2, ask(&s, 2, 8, Some(500)), at(0));
    s.join(3, ask(&s, 1, 4, Some(2_000)), at(0));
    s.join(4, ask(&s, 1, 4, None), at(0));
    s.join(5, ask(&s, 1, 4, Some(900)), at(0));
    let decisions = s.decide(at(0), &all);
    // Only what ends in time may pass.
    assert_eq!(granted(&decisions), [5]);
    assert!(matches!(decisions[0], Decision::Grant { why: Why::EndsBefore(t), .. } if t == at(1_010)));
    // The same for one that comes later.
    s.join(6, ask(&s, 1, 4, Some(5_000)), at(1));
    assert!(s.decide_one(6, at(1), &all).is_empty());
    s.join(7, ask(&s, 1, 4, Some(100)), at(2));
    assert_eq!(granted(&s.decide_one(7, at(2), &all)), [7]);
    for key in [5, 7, 1] {
        s.end(&key, at(1_000));
    }
    assert_eq!(granted(&s.decide(at(1_000), &all)), [2]);
}

#[test]
fn what_the_head_does_not_need_may_be_taken_for_ever() {
    // The head needs 12 of 16; at its time 4 are left over.
    let mut s = S::new(&nodes(2, 8), Config::default());
    s.start(1, ask(&s, 1, 6, Some(100)), s.fit_now(&ask(&s, 1, 6, None), at(0)).expect("free"), at(0));
    s.join(2, ask(&s, 3, 4, None), at(0));
    s.join(3, ask(&s, 1, 4, None), at(0));
    s.join(4, ask(&s, 1, 4, None), at(0));
    let decisions = s.decide(at(0), &all);
    // One of them: then exactly the head's share is left. The other would delay it.
    assert_eq!(granted(&decisions).len(), 1, "{decisions:?}");
    s.end(&1, at(100));
    assert!(granted(&s.decide(at(100), &all)).contains(&2));
}

/// A stream of small jobs without a known end, two a second, on eight nodes of eight: a gang of 64 GPUs starts as
/// soon as those that ran when its time was up have ended.
#[test]
fn small_jobs_do_not_starve_a_gang_of_64() {
    let mut s = S::new(&nodes(8, 8), Config::default());
    let mut next = 1_000;
    let mut ends: Vec<(u64, u32)> = Vec::new();
    s.join(1, Request { since: 10_000_000, ..ask(&s, 8, 8, None) }, at(10));
    let mut started = None;
    for t in 0..400u64 {
        let over: Vec<u32> = ends.iter().filter(|(end, _)| *end == t).map(|(_, k)| *k).collect();
        for key in over {
            s.end(&key, at(t));
        }
        for _ in 0..2 {
            next += 1;
            // Older than the gang by tenant, so that order alone does not help it.
            s.join(next, Request { tenant: format!("t{}", next % 7), ..ask(&s, 1, 1, None) }, at(t));
        }
        for key in granted(&s.decide(at(t), &all)) {
            match key {
                1 => started = Some(t),
                key => ends.push((t + 60, key)),
            }
        }
        if started.is_some() {
            break;
        }
    }
    let started = started.expect("it starts");
    // 30 s until its nodes are held, 60 s until the last of those has ended.
    assert!((60..=110).contains(&started), "started at {started}");
}

#[test]
fn an_attempt_without_a_limit_frees_nothing_by_estimate() {
    let mut s = S::new(&nodes(1, 8), Config::default());
    s.start(1, ask(&s, 1, 8, None), s.fit_now(&ask(&s, 1, 8, None), at(0)).expect("free"), at(0));
    s.join(2, ask(&s, 1, 8, Some(10)), at(0));
    assert!(s.decide(at(0), &all).is_empty());
    assert_eq!(s.reservations()[0].at, None);
    assert_eq!(s.prospects(at(0), 9)[0].starts_in, None);
    // With a limit it is known.
    s.end(&1, at(1));
    s.take_back(&2, at(1));
    s.start(3, ask(&s, 1, 8, Some(100)), s.fit_now(&ask(&s, 1, 8, None), at(0)).expect("free"), at(1));
    s.join(4, ask(&s, 1, 1, Some(10)), at(1));
    s.decide(at(1), &all);
    let told = s.prospects(at(1), 9);
    let of = |key: u32| told.iter().find(|p| p.key == key).expect("waits").clone();
    assert_eq!(of(2).starts_in, Some(Span::secs(110)));
    assert_eq!((of(4).ahead, told[0].key), (1, 2));
    assert!(of(4).starts_in >= of(2).starts_in);
    assert!(s.waits(at(1), 0)["A100-80G"] > Span::ZERO);
    let longer = s.waits(at(1), 80)["A100-80G"];
    assert!(longer > s.waits(at(1), 0)["A100-80G"], "what others wait for below comes first");
}

#[test]
fn other_models_do_not_wait_for_the_head() {
    let mut both = nodes(1, 8);
    both.extend(group("l", 1, 8, "L4", 64));
    let mut s = S::new(&both, Config::default());
    let of = |s: &S, model: &str, gpus: u32| {
        let resources = Resources { gpus, gpu: vec![model.into()], cpus: MilliCpu(0), memory: Bytes(0) };
        Request { need: s.need(&resources), ..ask(s, 1, 0, None) }
    };
    let held = of(&s, "A100-80G", 4);
    let shares = s.fit_now(&held, at(0)).expect("free");
    s.start(1, held, shares, at(0));
    s.join(2, of(&s, "A100-80G", 8), at(0));
    s.decide(at(100), &all);
    assert!(s.reservations()[0].binding);
    s.join(3, of(&s, "L4", 8), at(100));
    assert_eq!(granted(&s.decide_one(3, at(100), &all)), [3]);
    // A second head, of the other model, has its own reservation.
    s.join(4, of(&s, "L4", 2), at(100));
    s.decide(at(200), &all);
    assert_eq!(s.reservations().iter().map(|r| r.key).collect::<Vec<_>>(), [2, 4]);
    s.join(5, of(&s, "A100-80G", 1), at(200));
    assert!(s.decide_one(5, at(200), &all).is_empty());
}

fn urgent(s: &S, ranks: u32, gpus: u32) -> Request {
    Request { priority: 90, token: true, ..ask(s, ranks, gpus, None) }
}

fn run_one(s: &mut S, key: u32, gpus: u32, priority: u8, preemptible: bool, since: u64) {
    let request = Request { priority, preemptible, ..ask(s, 1, gpus, None) };
    let shares = s.fit_now(&request, at(0)).expect("room");
    s.start(key, request, shares, at(since));
}

#[test]
fn the_fewest_the_lowest_the_youngest_go() {
    let mut s = S::new(&nodes(2, 8), Config::default());
    run_one(&mut s, 1, 8, 20, true, 0);
    for (key, priority, since) in [(2, 30, 1), (3, 10, 2), (4, 10, 5), (5, 10, 3)] {
        run_one(&mut s, key, 2, priority, true, since);
    }
    let price = |s: &S, gpus| {
        let mut t = s.clone();
        t.join(9, urgent(s, 1, gpus), at(10));
        sent_away(&t.decide(at(10), &all))
    };
    // One is enough: of those that suffice the lowest priority, the youngest.
    assert_eq!(price(&s, 2), [4]);
    // Three: one of priority 20 that is large is fewer than two low ones.
    assert_eq!(price(&s, 3), [1]);
    // Without the token, of the same priority, or where nobody may go, nothing happens.
    let mut t = s.clone();
    t.join(9, Request { token: false, ..urgent(&s, 1, 2) }, at(10));
    assert_eq!(t.victims_of(&9, at(10)), Some(1));
    assert!(t.decide(at(10), &all).is_empty());
    let mut t = s.clone();
    t.join(9, Request { priority: 10, ..urgent(&s, 1, 2) }, at(10));
    assert_eq!(t.victims_of(&9, at(10)), None);
    let mut t = S::new(&nodes(1, 8), Config::default());
    run_one(&mut t, 1, 8, 10, false, 0);
    t.join(9, urgent(&t, 1, 1), at(10));
    assert!(t.decide(at(10), &all).is_empty());
    let mut t = S::new(&nodes(2, 8), Config { preemption: false, ..Config::default() });
    run_one(&mut t, 1, 8, 10, true, 0);
    run_one(&mut t, 2, 8, 10, true, 0);
    t.join(9, urgent(&t, 1, 1), at(10));
    assert!(t.decide(at(10), &all).is_empty());
}

/// A gang that is sent away leaves node by node, late: nobody else gets what it leaves, and nothing is started before
/// the last of it is gone.
#[test]
fn the_leftovers_of_a_slow_exit_are_kept_for_the_urgent_job() {
    let mut s = S::new(&nodes(4, 8), Config::default());
    for key in 1..=4 {
        run_one(&mut s, key, 8, 20, true, u64::from(key));
    }
    s.join(10, urgent(&s, 4, 8), at(10));
    let mut went = sent_away(&s.decide(at(10), &all));
    went.sort_unstable();
    assert_eq!(went, [1, 2, 3, 4]);
    // Small ones come all the time, some that are short.
    for key in 20..40 {
        s.join(key, ask(&s, 1, 1, Some(if key % 2 == 0 { 5 } else { 500 })), at(11));
        assert!(s.decide_one(key, at(11), &all).is_empty());
    }
    for (gone, t) in [(1, 20), (2, 45), (3, 300)] {
        s.end(&gone, at(t));
        let decisions = s.decide(at(t), &all);
        assert!(sent_away(&decisions).is_empty(), "nobody goes twice");
        if t < 45 {
            assert!(granted(&decisions).iter().all(|k| *k >= 20 && k % 2 == 0), "{decisions:?}");
            for key in granted(&decisions) {
                s.end(&key, at(t));
            }
        }
    }
    let mut free = s.clone();
    // A request of the same class that came later stays behind, whatever its tenant used.
    free.join(11, Request { tenant: "other".into(), token: false, ..urgent(&s, 1, 1) }, at(301));
    let held: Vec<u32> = free.running().keys().copied().collect();
    for key in held {
        free.end(&key, at(302));
    }
    assert_eq!(granted(&free.decide(at(302), &all))[0], 10);
}

#[test]
fn a_grant_that_nobody_takes_waits_again_as_old_as_it_was() {
    let mut s = S::new(&nodes(1, 8), Config::default());
    s.join(1, Request { since: -5, ..ask(&s, 1, 8, None) }, at(0));
    s.join(2, Request { since: 5, ..ask(&s, 1, 8, None) }, at(0));
    assert_eq!(granted(&s.decide(at(0), &all)), [1]);
    s.take_back(&1, at(5));
    assert_eq!(granted(&s.decide(at(5), &|k| *k != 1)), [2], "its owner is away");
    s.end(&2, at(6));
    assert_eq!(granted(&s.decide(at(6), &all)), [1]);
    s.begins(&1, at(7));
    assert!(!s.leave(&1) && s.end(&1, at(8)).is_some() && s.end(&1, at(8)).is_none());
    assert_eq!(s.books().nodes()[0].whole(), 8);
}

#[test]
fn absurd_figures_do_no_harm() {
    let mut s = S::new(&nodes(2, 8), Config::default());
    let huge = Resources { gpus: u32::MAX, gpu: vec![], cpus: MilliCpu(u64::MAX), memory: Bytes(u64::MAX) };
    for (key, request) in [
        (1, Request { need: s.need(&huge), ..ask(&s, u32::MAX, 0, Some(u64::MAX)) }),
        (2, Request { since: i64::MIN, priority: 255, ..ask(&s, 4_096, 8, Some(0)) }),
        (3, Request { since: i64::MAX, ..ask(&s, 1, 0, Some(u64::MAX)) }),
        (4, Request { ranks: 0, ..ask(&s, 0, 8, None) }),
    ] {
        s.join(key, request, at(0));
    }
    let mut started = granted(&s.decide(Instant(u64::MAX), &all));
    started.sort_unstable();
    assert_eq!(started, [3, 4]);
    s.prospects(Instant(u64::MAX), 10);
    s.waits(at(1), 0);
    for key in 1..=4 {
        s.end(&key, at(0));
        s.leave(&key);
    }
    assert_eq!((s.waiting_count(), s.books().nodes()[0].cpus), (0, 64_000));
}

#[test]
fn the_least_fragmentation_is_chosen() {
    // Two nodes with 4 GPUs; on one the CPU is nearly used up. Jobs of the mix want 8 cores per GPU.
    let mut s = S::new(&group("n", 2, 4, "T4", 40), Config::default());
    let mix = Need { cpus: 8_000, ..ask(&s, 1, 1, None).need };
    *s.mix_mut() = Mix::of([(mix.clone(), 10)]);
    let mut hog = ask(&s, 1, 0, None);
    hog.need.cpus = 20_000;
    let shares = s.fit_now(&hog, at(0)).expect("free");
    let poor = shares[0].node;
    s.start(1, hog, shares, at(0));
    // One GPU and few cores: it goes where the GPUs could not be used anyway.
    let mut one = ask(&s, 1, 2, None);
    one.need.cpus = 1_000;
    assert_eq!(s.fit_now(&one, at(0)).expect("free")[0].node, poor);
    // Shares of one GPU go together.
    let half = Request { need: Need { milli: WHOLE / 2, cpus: 100, ..mix }, ..ask(&s, 1, 1, None) };
    let first = s.fit_now(&half, at(0)).expect("free");
    s.start(2, half.clone(), first.clone(), at(0));
    assert_eq!(s.fit_now(&half, at(0)).expect("free"), first);
}

#[test]
fn gpus_that_are_near_are_given_together() {
    use crate::model::topology::{NVLINK, Topology};
    let islands = Topology::of_sets(8, &[(NVLINK, vec![0, 2, 4, 6]), (NVLINK, vec![1, 3, 5, 7])]);
    let config = Config { topologies: [("n".to_owned(), islands)].into(), ..Config::default() };
    let mut s = S::new(&nodes(1, 8), config);
    let pair = ask(&s, 1, 2, None);
    for (key, gpus) in [(1, [0, 2]), (2, [4, 6]), (3, [1, 3])] {
        let shares = s.fit_now(&pair, at(0)).expect("free");
        assert_eq!(shares[0].gpus, gpus);
        s.start(key, pair.clone(), shares, at(0));
    }
    // The broken island's rest is not taken for three.
    s.end(&1, at(1));
    assert_eq!(s.fit_now(&pair, at(0)).expect("free")[0].gpus, [0, 2]);
}

/// 100,000 waiting: a join, a repeat and a pass stay small. Counted in requests looked at, not in time.
#[test]
fn a_hundred_thousand_wait() {
    let mut s = S::new(&nodes(100, 8), Config::default());
    for node in 0..100u32 {
        run_one(&mut s, 1_000_000 + node, 8, 50, false, 0);
    }
    let requests: Vec<Request> =
        (0..20).map(|t| Request { tenant: format!("t{t}"), ..ask(&s, 1, 1 + t % 8, None) }).collect();
    for key in 0..100_000u32 {
        let request = requests[key as usize % 20].clone();
        s.join(key, Request { since: i64::from(key), ..request }, at(1));
        assert!(s.decide_one(key, at(1), &all).is_empty());
    }
    let mut looked = std::cell::Cell::new(0usize);
    s.end(&1_000_000, at(2));
    let decisions = s.decide(at(2), &|_| {
        looked.set(looked.get() + 1);
        true
    });
    assert!(*looked.get_mut() <= s.config().depth, "{looked:?}");
    assert!(!granted(&decisions).is_empty());
    assert_eq!(s.prospects(at(2), 1_000).len(), 1_000);
    assert!(s.place_at_most(50) >= 99_000);
}

/// A quarter of 16 GPUs is kept: ordinary requests leave it alone, urgent ones and those that come back use it.
#[test]
fn a_part_is_kept_for_what_comes_back_and_for_the_urgent() {
    let mut s = S::new(&nodes(2, 8), Config { buffer_milli: 250, ..Config::default() });
    assert_eq!(s.buffer(), (4, 75));
    for key in 1..=4 {
        s.join(key, Request { since: i64::from(key), ..ask(&s, 1, 4, None) }, at(0));
    }
    assert_eq!(granted(&s.decide(at(0), &all)).len(), 3, "12 of 16");
    assert!(s.buffered(&4) && !s.buffered(&1));
    // Without GPUs it is none of this.
    s.join(5, ask(&s, 1, 0, None), at(0));
    assert_eq!(granted(&s.decide(at(0), &all)), [5]);
    s.join(6, Request { priority: 75, ..ask(&s, 1, 2, None) }, at(1));
    s.join(7, ask(&s, 1, 2, None), at(1));
    s.returns(7);
    let mut both = granted(&s.decide(at(1), &all));
    both.sort_unstable();
    assert_eq!(both, [6, 7]);
    // A request that would leave less can never be granted, and is told so.
    let whole = ask(&s, 2, 8, None);
    assert!(s.beyond_buffer(&whole, false) && !s.beyond_buffer(&whole, true));
    // Small ones pass a larger one for a while only.
    s.end(&1, at(2));
    s.join(8, ask(&s, 1, 1, Some(5)), at(2));
    assert_eq!(s.books().free_milli(), 4_000);
    assert!(granted(&s.decide(at(2), &all)).is_empty());
    s.end(&6, at(3));
    assert_eq!(granted(&s.decide(at(3), &all)), [8]);
    s.join(9, Request { since: 39_000_000, ..ask(&s, 1, 1, Some(5)) }, at(40));
    assert!(granted(&s.decide(at(40), &all)).is_empty(), "the four that wait since the beginning come first");
    s.end(&7, at(41));
    s.end(&8, at(41));
    assert_eq!(granted(&s.decide(at(41), &all))[0], 4);
}

/// A tenant below its guaranteed share takes back what another has borrowed, whatever the priority, and no more.
#[test]
fn what_was_borrowed_is_taken_back_and_no_more() {
    let mut s = S::new(&nodes(1, 8), Config::default());
    for key in 1..=4 {
        let request = Request { tenant: "rich".into(), priority: 60, ..ask(&s, 1, 2, None) };
        let shares = s.fit_now(&request, at(0)).expect("room");
        s.start(key, request, shares, at(u64::from(key)));
    }
    let poor = |s: &S, gpus| Request { tenant: "poor".into(), token: true, ..ask(s, 1, gpus, None) };
    let victims = |s: &S, gpus| {
        let mut t = s.clone();
        t.join(9, poor(s, gpus), at(10));
        sent_away(&t.decide(at(10), &all))
    };
    assert!(victims(&s, 2).is_empty(), "without a guarantee nothing is his");
    s.set_standings(Standings {
        owns: [("poor".to_owned(), 4)].into(),
        borrowed: [("rich".to_owned(), 4)].into(),
        loans: (1..=4).collect(),
    });
    assert_eq!(victims(&s, 2), [4], "the youngest");
    assert_eq!(victims(&s, 4).len(), 2);
    assert!(victims(&s, 6).is_empty(), "six are not his own");
    let more = [("poor".to_owned(), 8)].into();
    s.set_standings(Standings {
        owns: more,
        borrowed: [("rich".to_owned(), 4)].into(),
        loans: (1..=4).collect(),
    });
    assert!(victims(&s, 6).is_empty(), "rich keeps what is its own");
    // What must not be stopped is not lent.
    s.set_standings(Standings {
        owns: [("poor".to_owned(), 4)].into(),
        borrowed: [("rich".to_owned(), 4)].into(),
        loans: [1].into(),
    });
    assert_eq!(victims(&s, 2), [1]);
}

/// A job that waits at several clusters keeps capacity free at one of them.
#[test]
fn a_lean_request_keeps_nothing_and_nobody_behind_it_does() {
    let begin = || {
        let mut s = S::new(&nodes(2, 8), Config::default());
        for key in [1, 2] {
            s.join(key, ask(&s, 1, 5, None), at(0));
        }
        assert_eq!(granted(&s.decide(at(0), &all)), [1, 2]);
        s
    };
    let waits = |s: &mut S, lean: bool| {
        let gang = Request { lean, ..ask(s, 1, 8, None) };
        s.join(10, gang, at(40));
        // As large, and would have a place if it came first.
        s.join(11, Request { since: 1, ..ask(s, 2, 8, None) }, at(40));
        assert_eq!(granted(&s.decide(at(40), &all)), [] as [u32; 0]);
        for key in [20, 21] {
            s.join(key, Request { since: 2, ..ask(s, 1, 3, None) }, at(41));
        }
    };
    let mut firm = begin();
    waits(&mut firm, false);
    assert_eq!(granted(&firm.decide(at(41), &all)).len(), 1, "a node is kept for the gang");
    let mut lean = begin();
    waits(&mut lean, true);
    assert!(lean.reservations().is_empty(), "{:?}", lean.reservations());
    assert_eq!(granted(&lean.decide(at(41), &all)), [20, 21]);
    // It is granted as any other when it fits, in its turn.
    lean.end(&1, at(50));
    lean.end(&20, at(50));
    lean.end(&21, at(50));
    assert_eq!(granted(&lean.decide(at(50), &all)), [10]);
    // Nobody is in front of the other gang now.
    assert_eq!(lean.reservations().first().map(|r| r.key), Some(11));
    // Who may send others away is kept for what these leave, whatever it says.
    let mut s = begin();
    let request = Request { lean: true, ..urgent(&s, 1, 8) };
    for r in s.running.values_mut() {
        r.request.preemptible = true;
    }
    s.join(30, request, at(60));
    assert_eq!(sent_away(&s.decide(at(60), &all)).len(), 1);
    assert_eq!(s.reservations().first().map(|r| r.key), Some(30));
}
