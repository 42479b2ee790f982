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
