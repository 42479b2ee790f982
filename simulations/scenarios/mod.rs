//! Scenarios from the field, told by hand and exactly: what people have seen schedulers do wrong.

pub mod field;

use std::collections::BTreeMap;

use starling::base::Span;
use starling::core::{ClientRequest, ClientResponse};
use starling::model::tenant::LimitsPatch;
use starling::model::{JobState, NodeCapacity};

use field::{FREED, Field, job, name, nodes};

const MODEL: &str = "A100-80G";
const HOUR: Span = Span::secs(3_600);

fn gpus(count: u32, each: u32) -> Vec<NodeCapacity> {
    vec![nodes(count, each, MODEL, 64)]
}

fn at(field: &Field) -> BTreeMap<usize, usize> {
    let mut sums = BTreeMap::new();
    for at in field.running().values() {
        *sums.entry(*at).or_default() += 1;
    }
    sums
}

/// 15 jobs lose their cluster at once, while 10 GPUs are free at one other and 5 at the next: every owner sees room
/// for all of them at the first, and yet they land 10 and 5.
#[test]
fn fifteen_evicted_jobs_land_ten_and_five() {
    let mut field = Field::new(&[gpus(1, 10), gpus(1, 5), gpus(1, 15), vec![]], 3);
    field.drain(0, true);
    field.drain(1, true);
    field.run_for(Span::secs(3));
    for n in 0..15 {
        field.submit(n % 4, job(&format!("j{n}"), 1, 1, ""), HOUR);
    }
    field.run_until(Span::secs(30), |f| at(f) == BTreeMap::from([(2, 15)])).expect("all run at the third");
    field.drain(0, false);
    field.drain(1, false);
    field.run_for(Span::secs(3));
    field.kill(2);
    let landed = field.run_until(FREED + Span::secs(5), |f| at(f).values().sum::<usize>() == 15);
    assert!(landed.is_some(), "{:?}", at(&field));
    assert_eq!(at(&field), BTreeMap::from([(0, 10), (1, 5)]));
    // Each went straight to where it could stay.
    for n in 0..15 {
        assert_eq!(field.runs_of(&format!("j{n}")).len(), 2, "{:?}", field.ran);
    }
    field.run_for(Span::secs(30));
    assert_eq!(at(&field), BTreeMap::from([(0, 10), (1, 5)]));
}

/// Gossip says that 8 are free where none is, at as many clusters as a job has claims; the only one with room looks
/// worse. No grant comes from those that are full, and the job is soon claimed where it can run.
#[test]
fn what_gossip_says_is_free_and_is_not_costs_a_moment() {
    let mut field = Field::new(&[gpus(1, 8), gpus(1, 8), gpus(1, 8), gpus(3, 8)], 3);
    for (n, pinned) in (0..3).chain([3, 3]).enumerate() {
        let wish = format!("placement: {{clusters: [c{pinned}]}}\n");
        field.submit(n % 4, job(&format!("full{n}"), 1, 8, &wish), HOUR);
    }
    field.run_until(Span::secs(20), |f| f.running().len() == 5).expect("all are full but for 8 GPUs");
    field.run_for(Span::secs(3));
    for i in 0..3 {
        field.lie(i, Some(8));
    }
    field.run_for(Span::secs(2));
    field.submit(0, job("misled", 1, 8, ""), HOUR);
    let took = field.run_until(Span::secs(10), |f| f.running().contains_key("misled"));
    assert!(took.is_some(), "it waits where nothing is free: {:?}", field.running());
    assert_eq!(field.running()["misled"], 3);
}

/// A cluster that refuses whatever is claimed there, and is the best one by all that is known.
#[test]
fn a_cluster_that_always_refuses_is_left_within_seconds() {
    let mut field = Field::new(&[gpus(2, 8), gpus(1, 8), vec![]], 1);
    field.submit(1, job("half", 1, 4, "placement: {clusters: [c1]}\n"), HOUR);
    field.run_until(Span::secs(10), |f| f.running().len() == 1).expect("it runs");
    field.refuse(0);
    field.run_for(Span::secs(2));
    for n in 0..4 {
        field.submit(n % 3, job(&format!("j{n}"), 1, 1, ""), HOUR);
        let took = field.run_until(Span::secs(10), |f| f.running().contains_key(&format!("j{n}")));
        assert!(took.is_some_and(|t| t < Span::secs(3)), "{took:?}");
        assert_eq!(field.running()[&format!("j{n}")], 1);
    }
    assert!(field.claims_refused > 0, "it was asked");
    assert!(field.claims_refused < 20, "and not again and again: {}", field.claims_refused);
}

/// The machine dies in the moment of its grant: the job was placed there and never ran.
#[test]
fn a_cluster_that_grants_and_dies_costs_a_bounded_time() {
    let mut field = Field::new(&[gpus(2, 8), gpus(1, 8), vec![], vec![]], 1);
    field.submit(1, job("half", 1, 4, "placement: {clusters: [c1]}\n"), HOUR);
    field.run_until(Span::secs(10), |f| f.running().len() == 1).expect("it runs");
    field.run_for(Span::secs(2));
    field.die_when_granting(0);
    // Its own peer must not be the owner, or nothing would have been granted to anybody.
    let mut named = 0;
    let took = loop {
        let spec = job(&format!("j{named}"), 1, 4, "");
        field.submit(2, spec, HOUR);
        let took = field.run_until(FREED + Span::secs(10), |f| f.running().len() > 1);
        assert!(took.is_some(), "{:?}", field.ran);
        if !field.lives(0) {
            break took;
        }
        named += 1;
        assert!(named < 8, "it never granted");
    };
    assert!(took.is_some_and(|t| t <= FREED + Span::secs(5)), "{took:?}");
    let runs = field.runs_of(&format!("j{named}"));
    assert_eq!(runs.iter().map(|r| r.at).collect::<Vec<_>>(), [1], "{runs:?}");
}

/// A gang is moved away and takes 9 s to end: neither does it begin elsewhere before that, nor does the next one begin
/// on GPUs that its leftovers still hold.
#[test]
fn the_leftovers_of_a_gang_are_waited_for() {
    let mut field = Field::new(&[gpus(2, 8), gpus(2, 8), vec![]], 3);
    let first = field.submit(0, job("first", 2, 8, "placement: {clusters: [c0, c1]}\n"), HOUR);
    field.run_until(Span::secs(10), |f| f.running().len() == 1).expect("it runs");
    let (here, there) = (field.running()["first"], 1 - field.running()["first"]);
    field.slow_exit.insert("first".into(), Span::secs(9));
    field.submit(2, job("second", 2, 8, &format!("placement: {{clusters: [c{here}]}}\n")), HOUR);
    field.run_for(Span::secs(3));
    assert_eq!(field.running().len(), 1, "there is no room for two");
    let moved = field.now;
    field.ask(2, ClientRequest::Move { job: first, to: name(there), by: "test".into() });
    field.run_until(Span::secs(40), |f| f.running().len() == 2).expect("both run");
    let old = &field.runs_of("first")[0];
    let ended = old.until.expect("it was stopped");
    assert!(ended.since(moved) >= Span::secs(9), "{old:?}");
    let (again, second) = (&field.runs_of("first")[1], &field.runs_of("second")[0]);
    assert!(again.from >= ended && again.at == there, "{again:?}");
    assert!(second.from >= ended && second.at == here, "{second:?}");
    assert!(second.from.since(ended) < Span::secs(2), "and not long after: {second:?}");
}

/// Two workers of 10 CPUs, jobs of 7, 7, 6 and 3: three start at once, the one of 6 when a 7 has ended.
#[test]
fn sevens_a_six_and_a_three_on_two_tens() {
    let worker = || vec![nodes(1, 0, "", 10)];
    let mut field = Field::new(&[worker(), worker(), vec![]], 3);
    for (name, cpus, secs) in [("a", 7, 60), ("b", 7, 90), ("six", 6, 60), ("three", 3, 300)] {
        let mut spec = job(name, 1, 0, "");
        spec.resources.cpus.0 = cpus * 1000;
        field.submit(0, spec, Span::secs(secs));
        field.run_for(Span::secs(1));
    }
    field.run_for(Span::secs(10));
    let running = field.running();
    assert_eq!(running.keys().map(String::as_str).collect::<Vec<_>>(), ["a", "b", "three"]);
    assert_ne!(running["a"], running["b"]);
    field.run_until(Span::secs(120), |f| f.running().contains_key("six")).expect("it gets its turn");
    let freed = field.ran.iter().filter(|r| r.job != "six").filter_map(|r| r.until).min().expect("one ended");
    let six = &field.runs_of("six")[0];
    assert!(six.from.since(freed) < Span::secs(2), "{six:?} and not at {freed:?}");
}

/// One node each of three models: who asks for the 80 GB one gets that, however free the others are.
#[test]
fn the_model_that_was_asked_for_is_the_one_that_runs_it() {
    let one = |model: &str| vec![nodes(1, 8, model, 64)];
    let mut field = Field::new(&[one("A100-40G"), one("A10"), one("A100-80G")], 3);
    let wanted = "resources: {gpus: 8, gpu: A100-80G}\n";
    let spec = |name: &str| {
        let mut spec = job(name, 1, 8, "");
        let parsed = starling::model::spec_input::parse_spec(format!("run: work\n{wanted}").as_bytes());
        spec.resources = parsed.expect("a job file").spec.resources;
        spec
    };
    field.submit(0, spec("first"), Span::secs(30));
    let second = field.submit(1, spec("second"), HOUR);
    field.run_until(Span::secs(10), |f| !f.running().is_empty()).expect("one runs");
    assert_eq!(field.running().into_values().collect::<Vec<_>>(), [2]);
    field.run_for(Span::secs(15));
    assert_eq!(field.running().len(), 1, "the other waits rather than run on what it did not ask for");
    let ClientResponse::Job(record) = field.ask(0, ClientRequest::Get { job: second }) else {
        panic!("its record")
    };
    assert!(matches!(record.state, JobState::Pending | JobState::Running | JobState::Placed));
    field
        .run_until(Span::secs(60), |f| f.runs_of("second").len() + f.runs_of("first").len() == 2)
        .expect("its turn");
    assert!(field.ran.iter().all(|r| r.at == 2), "{:?}", field.ran);
}

/// Three clusters full of low jobs, and one urgent job: one of them loses what it needs, the others lose nothing.
#[test]
fn one_urgent_job_and_three_full_clusters() {
    let mut field = Field::new(&[gpus(1, 4), gpus(1, 4), gpus(1, 4), vec![]], 3);
    for n in 0..12 {
        field.submit(n % 4, job(&format!("low{n}"), 1, 1, "priority: low\n"), HOUR);
    }
    field.run_until(Span::secs(30), |f| f.running().len() == 12).expect("all are full");
    field.run_for(Span::secs(5));
    field.submit(3, job("urgent", 1, 2, "priority: high\n"), HOUR);
    field.run_until(Span::secs(60), |f| f.running().contains_key("urgent")).expect("it runs");
    let at = field.running()["urgent"];
    let stopped: Vec<usize> =
        field.ran.iter().filter(|r| r.job != "urgent" && r.until.is_some()).map(|r| r.at).collect();
    assert_eq!(stopped, [at, at], "two go, both where it runs");
    field.run_for(Span::secs(60));
    assert_eq!(field.running().len(), 11, "and nobody else");
}

/// A tenant at its limit, with low work: its high job sends as much of its own away as the limit asks for, though
/// GPUs are free, and nothing of another tenant.
#[test]
fn a_tenant_at_its_limit_with_low_work_and_a_high_one_comes() {
    let mut field = Field::new(&[gpus(2, 8), vec![], vec![]], 3);
    let patch = LimitsPatch { gpus: Some(Some(4)), ..LimitsPatch::default() };
    let set = ClientRequest::TenantSet { tenant: "vision".into(), patch: Some(Box::new(patch)) };
    assert!(matches!(field.ask(1, set), ClientResponse::Tenant(_)));
    field.run_for(Span::secs(2));
    let tenant = |name: &str| format!("tenant: {name}\npriority: low\n");
    field.submit(1, job("other", 1, 4, &tenant("speech")), HOUR);
    for n in 0..4 {
        field.submit(n % 3, job(&format!("low{n}"), 1, 1, &tenant("vision")), HOUR);
    }
    field.run_until(Span::secs(40), |f| f.running().len() == 5).expect("it is at its limit");
    field.run_for(Span::secs(5));
    field.submit(2, job("high", 1, 2, "tenant: vision\npriority: high\n"), HOUR);
    let took = field.run_until(Span::secs(60), |f| f.running().contains_key("high"));
    assert!(took.is_some(), "{:?}", field.running());
    field.run_for(Span::secs(30));
    let running = field.running();
    assert!(running.contains_key("other") && running.len() == 4, "{running:?}");
    assert_eq!(running.keys().filter(|name| name.starts_with("low")).count(), 2);
}

/// One tenant has borrowed what is another's own: it gives back that, and no more, also to jobs of its own priority.
#[test]
fn what_is_guaranteed_is_taken_back_from_those_who_borrowed_it() {
    let mut field = Field::new(&[gpus(2, 4), vec![], vec![]], 3);
    for (tenant, borrow) in [("rich", 4), ("poor", 0)] {
        let patch = LimitsPatch { guaranteed: Some(4), borrow: Some(Some(borrow)), ..LimitsPatch::default() };
        let set = ClientRequest::TenantSet { tenant: tenant.into(), patch: Some(Box::new(patch)) };
        assert!(matches!(field.ask(1, set), ClientResponse::Tenant(_)));
    }
    field.run_for(Span::secs(2));
    for n in 0..8 {
        field.submit(n % 3, job(&format!("rich{n}"), 1, 1, "tenant: rich\n"), HOUR);
    }
    field.run_until(Span::secs(60), |f| f.running().len() == 8).expect("it borrows all");
    field.run_for(Span::secs(5));
    for n in 0..6 {
        field.submit(n % 3, job(&format!("poor{n}"), 1, 1, "tenant: poor\n"), HOUR);
    }
    let of = |f: &Field, tenant: &str| f.running().keys().filter(|name| name.starts_with(tenant)).count();
    field.run_until(Span::secs(120), |f| of(f, "poor") == 4).expect("what is its own");
    field.run_for(Span::secs(60));
    assert_eq!((of(&field, "poor"), of(&field, "rich")), (4, 4));
    let stopped = field.ran.iter().filter(|r| r.until.is_some()).count();
    assert_eq!(stopped, 4, "nobody else was stopped: {:?}", field.ran);
}
