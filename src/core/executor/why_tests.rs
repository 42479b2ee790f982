//! What the queue of a cluster says of each that waits there.

use super::*;

fn queue(mesh: &Mesh, peer: &str) -> Vec<ClaimView> {
    mesh.sites[&name(peer)].core.inspect(Look { claims: 1_000, reasons: true }).queue
}

fn at_a(gpus: u32, priority: u8) -> JobSpec {
    let mut spec = job(gpus, priority);
    spec.placement.clusters = vec![name("a")];
    spec
}

/// Two words were said of all of them; now each lacks something of its own, with the figures.
#[test]
fn each_that_waits_says_what_it_lacks() {
    let mut mesh = Mesh::new(&[("a", 8)]);
    let hour = Some(Span::secs(3_600));
    let firm = JobSpec { preemptible: Some(false), max_runtime: hour, ..at_a(5, 50) };
    mesh.place("a", firm);
    let large = mesh.submit("a", at_a(6, 50));
    // The first in line has its place by now: a long one that would fit must not take it.
    mesh.run(Span::secs(3));
    let long = mesh.submit("a", JobSpec { max_runtime: Some(Span::secs(7_200)), ..at_a(3, 50) });
    let mut greedy = at_a(0, 50);
    greedy.resources.cpus = MilliCpu(64_000);
    let cpus = mesh.submit("a", greedy);
    mesh.run(Span::secs(40));
    let said = queue(&mesh, "a");
    let of = |job: JobId| said.iter().find(|c| c.job == job).unwrap_or_else(|| panic!("{job}: {said:?}"));
    assert_eq!(of(large).why, "3 of 6 GPUs wanted are free");
    let wait = of(large).starts_in.expect("the end of what runs is known");
    assert!(wait > Span::secs(3_500) && wait < Span::secs(3_620), "{wait}");
    let behind = format!("there is room, kept for {} ahead of it, which starts in ", large.short());
    assert!(of(long).why.starts_with(&behind), "{:?}", of(long).why);
    assert_eq!(of(cpus).why, "63.90 CPUs are free, wants 1 x 64");
    // What holds for all is said of all.
    mesh.input(&name("a"), Input::DiskFull(true));
    let said = queue(&mesh, "a");
    assert!(
        !said.is_empty() && said.iter().all(|c| c.why == "nothing starts here now: disk nearly full"),
        "{said:?}"
    );
}

/// An urgent one waits for the end of those that it sends away.
#[test]
fn who_sends_others_away_says_how_many() {
    let mut mesh = Mesh::new(&[("a", 8)]);
    mesh.exit = Span::secs(60);
    for _ in 0..2 {
        mesh.place("a", at_a(4, 20));
    }
    let urgent = mesh.submit("a", at_a(8, 90));
    mesh.run(Span::secs(12));
    assert_eq!(mesh.stops.len(), 2, "{:?}", mesh.stops);
    let said = queue(&mesh, "a");
    let first = said.iter().find(|c| c.job == urgent).expect("it waits");
    assert_eq!((first.why.as_str(), first.granted), ("2 attempts were told to stop for it", false));
}

/// A grant that is not taken yet is no lack of room.
#[test]
fn a_grant_says_how_long_it_is_held() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8)]);
    mesh.drop = |message| matches!(message, Message::Grant { .. });
    let mut spec = at_a(1, 50);
    spec.placement.clusters = vec![name("b")];
    // Some of them are driven by a, which never hears that they may start.
    for _ in 0..8 {
        mesh.submit("a", spec.clone());
    }
    mesh.run(Span::secs(2));
    let said = queue(&mesh, "b");
    assert!(!said.is_empty() && said.len() < 8, "{said:?}");
    assert!(said.iter().all(|c| c.granted && c.why.starts_with("holds a grant, for ")), "{said:?}");
}

/// A peer of the version before tells no reason, and reads what it does not know as nothing.
#[test]
fn a_claim_of_an_older_version_reads() {
    let old = serde_json::json!({
        "job": JobId([1; 20]), "owner": "a", "priority": 50, "gpus": 4, "granted": false, "age": 5,
    });
    let read: ClaimView = serde_json::from_value(old.clone()).expect("reads");
    assert_eq!((read.why.as_str(), read.starts_in), ("", None));
    assert_eq!(serde_json::to_value(&read).expect("a document"), old);
}

/// Asked without it, nothing is looked at: that is asked many times a second.
#[test]
fn reasons_are_found_only_where_they_are_asked_for() {
    let mut mesh = Mesh::new(&[("a", 8)]);
    mesh.place("a", job(8, 50));
    for _ in 0..3 {
        mesh.submit("a", job(8, 50));
    }
    mesh.run(Span::secs(2));
    let found = || crate::base::work::done("reasons of claims");
    let before = found();
    let core = &mesh.sites[&name("a")].core;
    let report = core.inspect(Look::default());
    assert_eq!((report.queue.len(), report.queue_total), (0, Some(3)));
    assert!(report.queue_oldest.is_some_and(|age| age >= Span::secs(2)), "{:?}", report.queue_oldest);
    let report = core.inspect(Look { claims: 2, reasons: false });
    assert_eq!((report.queue.len(), report.queue_total), (2, Some(3)));
    assert!(report.queue.iter().all(|c| c.why.is_empty()), "{:?}", report.queue);
    assert_eq!(found(), before);
    let report = core.inspect(Look { claims: 2, reasons: true });
    assert!(report.queue.iter().all(|c| !c.why.is_empty()), "{:?}", report.queue);
    assert_eq!(found() - before, 2, "of those only that are told");
    let waits: Vec<JobId> = queue(&mesh, "a").iter().map(|c| c.job).collect();
    for job in waits {
        mesh.ask("a", ClientRequest::Cancel { job, by: "me".into() });
    }
    mesh.run(Span::secs(2));
    let report = mesh.sites[&name("a")].core.inspect(Look::default());
    assert_eq!((report.queue_total, report.queue_oldest), (Some(0), None));
}

/// What was estimated while it waited is not told of a grant.
#[test]
fn a_grant_has_no_estimate() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8)]);
    let hour = Some(Span::secs(3_600));
    let first = mesh.place("b", JobSpec { max_runtime: hour, ..job(8, 50) });
    let mut spec = JobSpec { max_runtime: hour, ..job(8, 50) };
    spec.placement.clusters = vec![name("b")];
    for _ in 0..8 {
        mesh.submit("a", spec.clone());
    }
    mesh.run(Span::secs(3));
    let said = queue(&mesh, "b");
    assert!(said.len() == 8 && said.iter().all(|c| c.starts_in.is_some()), "{said:?}");
    mesh.drop = |message| matches!(message, Message::Grant { .. });
    mesh.finish(first);
    // Those that b drives itself take their grants; the first of the others does not.
    let granted = (0..100).find_map(|_| {
        let running: Vec<JobId> = mesh.sites[&name("b")].runs.keys().map(|k| k.job).collect();
        running.into_iter().for_each(|job| mesh.finish(job));
        mesh.run(Span::millis(100));
        queue(&mesh, "b").into_iter().find(|c| c.granted)
    });
    let granted = granted.expect("one of them has a grant");
    assert_eq!(granted.starts_in, None, "{granted:?}");
}

/// Grants that nobody takes do not use up the reasons.
#[test]
fn reasons_are_told_of_those_that_wait() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8)]);
    mesh.drop = |message| matches!(message, Message::Grant { .. });
    let at_b = |gpus| {
        let mut spec = job(gpus, 50);
        spec.placement.clusters = vec![name("b")];
        spec
    };
    let core = mesh.sites.get_mut(&name("b")).expect("b");
    let home = crate::base::Home { peer: name("a"), store: StoreId([1; 16]) };
    let now = Now { mono: mesh.now, wall: WallTime(0) };
    for sequence in 0..300 {
        let homes = crate::base::BoundedVec::try_from(vec![home.clone()]).expect("one");
        let birth = crate::model::record::Birth { tenant: "t".into(), minter: name("a"), sequence, homes };
        let spec = at_b(u32::from(sequence == 0) * 8);
        let claim = Claim {
            birth,
            epoch: crate::base::Epoch(1),
            nodes: 1,
            resources: spec.resources,
            priority: 50,
            image: false,
            max_runtime: None,
        };
        let message = Message::ClaimWith { claim: Box::new(claim), terms: Terms::default() };
        core.core.step(now, Input::Message { from: name("a"), message });
    }
    let waits = mesh.submit("a", at_b(4));
    mesh.run(Span::millis(500));
    let said = queue(&mesh, "b");
    assert!(said.iter().filter(|c| c.granted).count() > 256, "{}", said.len());
    let last = said.iter().find(|c| c.job == waits).expect("it waits");
    assert_eq!((last.why.as_str(), last.granted), ("0 of 4 GPUs wanted are free", false));
}
