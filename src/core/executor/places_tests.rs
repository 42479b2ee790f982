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
