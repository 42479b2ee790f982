//! How peers come to know a tenant's limits, in a small mesh of real cores.

use super::*;
use crate::core::api::ClientRequest;
use crate::core::homes_tests::Mesh;
use crate::core::testing::name;

const FIVE: &[&str] = &["a", "b", "c", "d", "e"];

fn limit(mesh: &mut Mesh, at: &str, gpus: u64) {
    let patch = LimitsPatch { gpus: Some(Some(gpus)), ..LimitsPatch::default() };
    let answer = mesh.ask(at, ClientRequest::TenantSet { tenant: "t".into(), patch: Some(Box::new(patch)) });
    assert!(matches!(answer, ClientResponse::Tenant(_)), "{answer:?}");
}

/// Homes of the tenant's ledger, the acting one first.
fn homes(mesh: &Mesh) -> Vec<PeerName> {
    let core = &mesh.peers[&name("a")];
    core.ring.order(ring_key("t")).into_iter().take(3).collect()
}

fn knows(mesh: &Mesh, peer: &PeerName, gpus: u64) -> bool {
    let card = mesh.peers[peer].tenants.limited("t");
    card.is_some_and(|card| card.limits.gpus == Some(gpus))
}

/// Which it is, the ring says; a filter is a plain function, and must know.
const ACTING: &str = "c";

fn begun() -> (Mesh, PeerName, &'static str) {
    let mesh = Mesh::new(FIVE, 3);
    let first = homes(&mesh).remove(0);
    assert_eq!(first, name(ACTING), "where the filters look");
    (mesh, first, FIVE[0])
}

/// The others' words did not come; its disk took the change itself.
#[test]
fn a_home_learns_limits_from_what_it_holds() {
    let (mut mesh, first, setter) = begun();
    limit(&mut mesh, setter, 12);
    mesh.run(Span::secs(5));
    assert!(knows(&mesh, &first, 12));
    mesh.drop = |_, _, message| matches!(message, Message::Tenants(_));
    limit(&mut mesh, setter, 6);
    mesh.run(Span::secs(5));
    assert!(knows(&mesh, &first, 6));
}

/// The acting home knows an older state, says so to all every 20 s, and is told better.
#[test]
fn whoever_says_what_is_old_is_told() {
    let (mut mesh, first, setter) = begun();
    limit(&mut mesh, setter, 12);
    mesh.run(Span::secs(5));
    mesh.drop = |from, to, _| from == ACTING || to == ACTING;
    limit(&mut mesh, setter, 6);
    mesh.run(Span::secs(5));
    mesh.drop = |_, _, _| false;
    assert!(knows(&mesh, &first, 12));
    mesh.run(Span::secs(25));
    assert!(FIVE.iter().all(|peer| knows(&mesh, &name(peer), 6)));
}

/// It missed all of it, and so says nothing: another home does.
#[test]
fn an_acting_home_that_knows_of_no_ledger_is_told() {
    let (mut mesh, first, setter) = begun();
    mesh.drop = |from, to, _| from == ACTING || to == ACTING;
    limit(&mut mesh, setter, 6);
    mesh.run(Span::secs(5));
    mesh.drop = |_, _, _| false;
    assert!(!knows(&mesh, &first, 6));
    mesh.run(Span::secs(70));
    assert!(FIVE.iter().all(|peer| knows(&mesh, &name(peer), 6)));
}
