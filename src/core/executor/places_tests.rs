//! What a long queue costs while nothing happens in it: counted, not timed.

use super::*;

fn made(mesh: &Mesh) -> u64 {
    mesh.sites[&name("a")].core.counters().get("places_made").copied().unwrap_or(0)
}

/// Claims are repeated all the time; the whole queue is not looked at for each of them, and yet everybody knows his place.
#[test]
fn places_are_made_anew_when_the_queue_has_changed_and_not_when_a_claim_is_repeated() {
    let mut mesh = Mesh::new(&[("a", 8)]);
    let runs = mesh.place("a", job(8, 50));
    let waits: Vec<JobId> = (0..60).map(|_| mesh.submit("a", job(8, 50))).collect();
    mesh.run(Span::secs(60));
    let before = made(&mesh);
    let claims = mesh.claims;
    mesh.run(Span::secs(60));
    assert!(mesh.claims - claims >= 120, "{} claims: nothing is asked", mesh.claims - claims);
    assert!(made(&mesh) - before <= 3, "the queue was looked at {} times", made(&mesh) - before);
    let place = |mesh: &mut Mesh, job: JobId| match mesh.ask("a", ClientRequest::Why { job }) {
        ClientResponse::Why(report) => report.clusters[0].claim,
        other => panic!("{other:?}"),
    };
    let last = waits.into_iter().find(|job| place(&mut mesh, *job) == Some(59)).expect("60 wait");
    mesh.finish(runs);
    mesh.run(Span::secs(25));
    assert_eq!(place(&mut mesh, last), Some(58), "one has started");
}

/// Who is further behind than is counted has no place and no start, and not those of another time.
#[test]
fn who_is_no_longer_found_has_no_old_place() {
    let mut mesh = Mesh::new(&[("a", 8)]);
    let hour = Some(Span::secs(3_600));
    mesh.place("a", JobSpec { max_runtime: hour, ..job(8, 50) });
    let low = mesh.submit("a", JobSpec { max_runtime: hour, ..job(8, 10) });
    mesh.run(Span::secs(3));
    let of = |mesh: &Mesh| {
        let queue = mesh.sites[&name("a")].core.inspect(Look { claims: 2_000, reasons: false }).queue;
        (queue.iter().find(|c| c.job == low).expect("it waits").starts_in, queue.len())
    };
    assert!(of(&mesh).0.is_some());
    let home = crate::base::Home { peer: name("a"), store: StoreId([1; 16]) };
    for sequence in 10_000..11_001 {
        let homes = crate::base::BoundedVec::try_from(vec![home.clone()]).expect("one");
        let birth = crate::model::record::Birth { tenant: "t".into(), minter: name("a"), sequence, homes };
        let claim = Claim {
            birth,
            epoch: crate::base::Epoch(1),
            nodes: 1,
            resources: job(8, 90).resources,
            priority: 90,
            image: false,
            max_runtime: hour,
        };
        let message = Message::ClaimWith { claim: Box::new(claim), terms: Terms::default() };
        let now = mesh.time();
        let site = mesh.sites.get_mut(&name("a")).expect("a");
        site.core.step(now, Input::Message { from: name("a"), message });
    }
    mesh.run(Span::secs(3));
    let (starts_in, waiting) = of(&mesh);
    assert!(waiting > 1_000, "{waiting}");
    assert_eq!(starts_in, None);
}

fn passes(mesh: &Mesh, peer: &str) -> u64 {
    mesh.sites[&name(peer)].core.inspect(Look::default()).counters["queue_passes"]
}

/// Each job that starts is withdrawn everywhere else: the whole queue is looked at again only where somebody waited for its sake.
#[test]
fn a_withdrawn_claim_is_looked_behind_only_where_somebody_waited_for_its_sake() {
    let mut mesh = Mesh::new(&[("a", 8)]);
    mesh.place("a", job(4, 50));
    let gang = mesh.submit("a", job(8, 50));
    mesh.run(Span::secs(2));
    let behind: Vec<JobId> = (0..30).map(|_| mesh.submit("a", job(8, 50))).collect();
    mesh.run(Span::secs(60));
    // Half is free, and kept for the one that was there first.
    let small = mesh.submit("a", job(2, 50));
    mesh.run(Span::secs(10));
    assert_ne!(mesh.get("a", small).state, JobState::Running);
    let cancel = |mesh: &mut Mesh, job| mesh.ask("a", ClientRequest::Cancel { job, by: "u".into() });
    let before = (passes(&mesh, "a"), mesh.now);
    assert!(before.0 > 60, "at least one a second");
    for job in &behind[..20] {
        cancel(&mut mesh, *job);
    }
    let seconds = mesh.now.since(before.1).0.div_ceil(1_000_000);
    let looked = passes(&mesh, "a") - before.0;
    assert!(looked <= seconds + 1, "{looked} times in {seconds} s for 20 that were not in front");
    for job in behind[20..].iter().copied().chain([gang]) {
        assert_ne!(
            mesh.get("a", small).state,
            JobState::Running,
            "it is kept for those that were there first"
        );
        cancel(&mut mesh, job);
    }
    assert_eq!(mesh.running("a"), 2, "at once, with the last of those in front");
}

/// What a grant holds is its own: that a job of the cluster's starts is no reason to look at all others again later.
#[test]
fn a_grant_that_was_taken_is_not_looked_behind() {
    let mut mesh = Mesh::new(&[("a", 8)]);
    mesh.place("a", job(4, 50));
    for _ in 0..5 {
        mesh.submit("a", job(8, 50));
    }
    mesh.run(Span::secs(60));
    let mut count = |asked: u32| {
        let before = passes(&mesh, "a");
        for n in 0..20 {
            if n < asked {
                mesh.submit("a", JobSpec { max_runtime: Some(Span::secs(10)), ..job(1, 90) });
            }
            mesh.run(Span::millis(1_030));
        }
        passes(&mesh, "a") - before
    };
    let (quiet, busy) = (count(0), count(4));
    assert_eq!(mesh.running("a"), 5);
    // One for each that joined above those that wait.
    assert!(busy <= quiet + 4, "{busy} looks where nothing was given back, {quiet} before");
}
