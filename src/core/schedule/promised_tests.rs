//! Promised capacity: who may use it until when, who must go, and where it is pinned.

use super::super::tests::{all, ask, at, granted, nodes};
use super::super::*;
use super::*;

type S = Scheduler<u32>;

fn id(n: u8) -> JobId {
    JobId([n; 20])
}

fn promise(s: &S, n: u8, tenant: &str, gpus: u32, (from, until): (u64, u64)) -> Promise {
    let resources = crate::model::Resources { gpus: 1, ..Default::default() };
    let need = s.need(&resources);
    Promise { id: id(n), tenant: tenant.into(), gpus, need, from: at(from), until: at(until), shares: vec![] }
}

fn set(s: &mut S, list: Vec<Promise>) {
    let capacity = nodes(s.books().nodes().len() as u32, 8);
    s.set_promises(&capacity, list);
}

/// Pins each as a cluster does, and says which could not be.
fn pin(s: &mut S, now: u64, asked: Vec<Promise>) -> Vec<Result<u32, Short>> {
    let mut said = Vec::new();
    for one in asked {
        let plan = s.plan_promise(&one, at(now), &|_| false);
        said.push(plan.clone().map(|shares| count(&shares)));
        if let Ok(shares) = plan {
            let list = s.promises().iter().cloned().chain([Promise { shares, ..one }]).collect();
            set(s, list);
        }
    }
    said
}

/// Of another tenant than the promises of these tests.
fn other(s: &S, gpus: u32, run: Option<u64>) -> Request {
    Request { tenant: "other".into(), ..ask(s, 1, gpus, run) }
}

#[test]
fn others_use_it_only_if_they_end_before() {
    let mut s = S::new(&nodes(2, 8), Config::default());
    let (t, late) = (promise(&s, 1, "t", 16, (1_000, 2_000)), promise(&s, 2, "u", 1, (1_999, 2_100)));
    let Err(short) = pin(&mut s, 0, vec![t, late]).remove(1) else { panic!("all is promised") };
    assert_eq!((short.can, short.promised, short.next), (0, 16, Some(at(2_000))));
    s.join(1, other(&s, 8, Some(900)), at(0));
    s.join(2, other(&s, 8, None), at(0));
    s.join(3, other(&s, 8, Some(995)), at(0));
    assert_eq!(granted(&s.decide(at(0), &all)), [1], "the others might still run then");
    assert_eq!((s.held_back_by(&2, at(0)), s.held_back_by(&1, at(0))), (Some(id(1)), None));
    // Its own tenant may.
    s.join(4, ask(&s, 1, 8, None), at(0));
    assert_eq!(granted(&s.decide(at(1), &all)), [4]);
    s.end(&1, at(900));
    s.end(&4, at(900));
    assert!(granted(&s.decide(at(1_000), &all)).is_empty());
    assert_eq!(granted(&s.decide(at(2_000), &all)), [2, 3], "at its end it is everybody's again");
}

#[test]
fn its_tenant_starts_first_and_inside() {
    let mut s = S::new(&nodes(4, 8), Config { depth: 2, buffer_milli: 600, ..Config::default() });
    let t = promise(&s, 1, "t", 16, (0, 2_000));
    assert_eq!(pin(&mut s, 0, vec![t]), [Ok(16)]);
    let pinned: BTreeSet<u32> = s.promises()[0].shares.iter().map(|x| x.node).collect();
    assert_eq!(pinned.len(), 2, "whole nodes");
    // A crowd of higher priority is in front, more than a pass looks at; and most of the cluster is a buffer.
    for key in 10..30 {
        s.join(key, Request { priority: 60, ..other(&s, 8, None) }, at(0));
    }
    s.join(1, ask(&s, 2, 8, None), at(0));
    let decisions = s.decide(at(1), &all);
    assert_eq!(granted(&decisions), [1]);
    let Decision::Grant { shares, why: Why::Reserved, .. } = &decisions[0] else { panic!("{decisions:?}") };
    assert!(shares.iter().all(|share| pinned.contains(&share.node)));
    assert_eq!(s.use_of(&s.promises()[0]).0, 16);
    // One more of the tenant is like all others.
    s.join(2, ask(&s, 1, 8, None), at(0));
    assert!(granted(&s.decide(at(2), &all)).is_empty());
    // What comes free inside is still its tenant's, and nobody else's.
    s.end(&1, at(10));
    assert_eq!(granted(&s.decide(at(11), &all)), [2]);
    assert_eq!(s.use_of(&s.promises()[0]).1.len(), 1);
}

#[test]
fn whoever_is_on_it_goes_with_notice_before_the_start() {
    let mut s = S::new(&nodes(1, 8), Config::default());
    let t = promise(&s, 1, "t", 8, (1_000, 2_000));
    pin(&mut s, 0, vec![t]);
    let loose = |s: &S| Request { preemptible: true, ..other(s, 8, None) };
    s.join(1, loose(&s), at(0));
    assert_eq!(granted(&s.decide(at(0), &all)), [1]);
    assert!(s.clear_promised(at(969)).is_empty());
    assert_eq!(s.clear_promised(at(970)), [(id(1), vec![1])]);
    assert!(s.clear_promised(at(971)).is_empty(), "told once");
    s.end(&1, at(990));
    // Nor does the next one come in for the last seconds.
    s.join(2, loose(&s), at(990));
    assert!(s.decide(at(990), &all).is_empty());
    s.join(3, Request { preemptible: true, ..other(&s, 1, Some(5)) }, at(2_000));
    assert_eq!(granted(&s.decide(at(2_000), &all)), [2], "the first of the two");
}

#[test]
fn who_waits_behind_a_promise_is_passed_by_nobody_for_ever() {
    // Two nodes are promised later, one is busy for long: a job of two nodes without an end waits for the promise to end.
    let mut s = S::new(&nodes(3, 8), Config::default());
    let t = promise(&s, 1, "t", 16, (1_000, 2_000));
    pin(&mut s, 0, vec![t]);
    s.join(1, other(&s, 8, Some(3_000)), at(0));
    assert_eq!(granted(&s.decide(at(0), &all)), [1], "beside what is promised");
    s.join(2, Request { tenant: "gang".into(), ..ask(&s, 2, 8, None) }, at(1));
    assert!(s.decide(at(1), &all).is_empty());
    assert_eq!(s.reservations()[0].at, Some(at(2_000)));
    // Short ones still pass, on what is promised too.
    s.join(3, other(&s, 8, Some(500)), at(2));
    assert_eq!(granted(&s.decide(at(2), &all)), [3]);
    let starts = s.prospects(at(3), 10);
    assert_eq!(starts.iter().find(|p| p.key == 2).and_then(|p| p.starts_in), Some(Span::secs(1_997)));
}

#[test]
fn an_urgent_job_sends_nobody_away_for_capacity_that_is_promised() {
    let mut s = S::new(&nodes(1, 8), Config::default());
    let t = promise(&s, 1, "t", 8, (1_000, 2_000));
    pin(&mut s, 0, vec![t]);
    let low = Request { preemptible: true, priority: 10, ..other(&s, 8, None) };
    s.join(1, low, at(0));
    assert_eq!(granted(&s.decide(at(0), &all)), [1]);
    let urgent = |run| Request { priority: 90, token: true, ..other(&s, 8, run) };
    let (long, short) = (urgent(None), urgent(Some(100)));
    s.join(2, long, at(5));
    assert_eq!(s.victims_of(&2, at(5)), None, "it could not start there");
    s.join(3, short, at(5));
    assert_eq!(s.victims_of(&3, at(5)), Some(1));
    s.leave(&2);
    let decisions = s.decide(at(6), &all);
    assert_eq!(decisions, [Decision::Preempt { key: 3, victims: vec![1] }]);
}

#[test]
fn cpus_of_promised_gpus_are_kept_as_well() {
    // 64 cores, 8 GPUs: half of both.
    let mut s = S::new(&nodes(1, 8), Config::default());
    let t = promise(&s, 1, "t", 4, (0, 2_000));
    pin(&mut s, 0, vec![t]);
    let cores = |s: &S, tenant: &str, cores: u64, gpus: u32| {
        let mut request = Request { tenant: tenant.into(), ..ask(s, 1, gpus, None) };
        request.need.cpus = cores * 1_000;
        request
    };
    s.join(1, cores(&s, "other", 20, 0), at(0));
    s.join(2, cores(&s, "other", 20, 0), at(0));
    assert_eq!(granted(&s.decide(at(0), &all)), [1], "32 of 64 are left to others");
    s.join(3, cores(&s, "t", 32, 4), at(1));
    assert_eq!(granted(&s.decide(at(1), &all)), [3]);
    // Its own part is used: the 12 that are left are anybody's.
    s.leave(&2);
    s.join(4, cores(&s, "other", 12, 0), at(2));
    assert_eq!(granted(&s.decide(at(2), &all)), [4]);
}

#[test]
fn it_is_pinned_elsewhere_where_nodes_go_away() {
    let mut s = S::new(&nodes(3, 8), Config::default());
    let t = promise(&s, 1, "t", 16, (1_000, 2_000));
    let u = promise(&s, 2, "u", 8, (1_500, 2_500));
    assert_eq!(pin(&mut s, 0, vec![t, u]), [Ok(16), Ok(8)]);
    assert!(s.repin(at(1)).is_empty(), "nothing has changed");
    let disjoint = |s: &S| {
        let gpus = |p: &Promise| -> Vec<(u32, u32)> {
            p.shares.iter().flat_map(|x| x.gpus.iter().map(|g| (x.node, *g)).collect::<Vec<_>>()).collect()
        };
        let all: Vec<(u32, u32)> = s.promises().iter().flat_map(gpus).collect();
        all.iter().collect::<BTreeSet<_>>().len() == all.len()
    };
    assert!(disjoint(&s));
    s.renew(&nodes(2, 8), &[], &BTreeMap::new());
    let changed = s.repin(at(2));
    assert!(!changed.is_empty() && disjoint(&s));
    let pinned: u32 = s.promises().iter().map(Promise::pinned).sum();
    assert_eq!(pinned, 16, "what there is, and no more");
    s.renew(&nodes(3, 8), &[], &BTreeMap::new());
    s.repin(at(3));
    assert_eq!(s.promises().iter().map(Promise::pinned).sum::<u32>(), 24);
    assert!(disjoint(&s));
    // A job that others placed there, and that may not be stopped, is gone round too.
    let on = s.promises()[0].shares[0].clone();
    let hog = Request { tenant: "hog".into(), ..ask(&s, 1, 8, None) };
    let first = s.promises()[0].clone();
    set(&mut s, vec![first]);
    s.start(9, hog, vec![on.clone()], at(4));
    assert_eq!(s.repin(at(950)), [id(1)]);
    assert!(s.promises()[0].shares.iter().all(|x| x.node != on.node));
    assert_eq!(s.promises()[0].pinned(), 16);
}

#[test]
fn a_plan_counts_what_stays_and_says_when() {
    let mut s = S::new(&nodes(2, 8), Config::default());
    let start = |s: &mut S, key, node: u32, run, preemptible| {
        let request = Request { preemptible, ..other(s, 8, run) };
        let share = NodeShare { node, gpus: (0..8).collect() };
        s.start(key, request, vec![share], at(0));
    };
    start(&mut s, 1, 0, Some(490), false);
    start(&mut s, 2, 1, None, false);
    let far = promise(&s, 9, "z", 1, (9_000, 9_100));
    set(&mut s, vec![far]);
    let plan =
        |s: &S, gpus, from| s.plan_promise(&promise(s, 1, "t", gpus, (from, from + 100)), at(0), &|_| false);
    let Err(short) = plan(&s, 16, 0) else { panic!("both are busy") };
    assert_eq!((short.can, short.held, short.next), (0, 16, None), "one of them has no end");
    let Err(short) = plan(&s, 8, 100) else { panic!("both are busy") };
    assert_eq!((short.can, short.next), (0, Some(at(500))));
    assert_eq!(plan(&s, 8, 500).map(|x| x[0].node), Ok(0));
    // Whoever may be stopped is no obstacle, and is spared where there is room without him.
    s.end(&2, at(0));
    start(&mut s, 2, 1, None, true);
    assert_eq!(plan(&s, 8, 100).map(|x| x[0].node), Ok(1));
    assert_eq!(plan(&s, 8, 600).map(|x| x[0].node), Ok(0));
    assert_eq!(plan(&s, 16, 600).map(|x| count(&x)), Ok(16));
    let firm = Config { preemption: false, ..Config::default() };
    let mut s = S::new(&nodes(1, 8), firm);
    start(&mut s, 2, 0, None, true);
    let far = promise(&s, 9, "z", 0, (9_000, 9_100));
    set(&mut s, vec![far]);
    assert!(plan(&s, 8, 600).is_err(), "here nobody is sent away");
}
