//! Grants: said twice, of clusters that nobody has heard yet, and of such as no longer fit.

use super::*;

/// A grant that is said twice, as when its claim was: it is being taken, and must not be given back for that.
#[test]
fn a_grant_that_comes_twice_is_not_given_to_another() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8), ("c", 8)]);
    mesh.twice = |m| matches!(m, Message::Grant { .. });
    let only_b = || {
        let mut spec = job(8, 50);
        spec.placement.clusters = vec![name("b")];
        spec
    };
    let jobs: Vec<JobId> = (0..4).map(|_| mesh.submit("a", only_b())).collect();
    mesh.run(Span::secs(5));
    for job in &jobs {
        let record = mesh.get("a", *job);
        assert!(record.attempts.iter().all(|a| a.outcome.is_none()), "{:?}", record.attempts);
    }
    assert_eq!(mesh.running("b"), 1);
    // Nor once the record says that it was taken.
    for job in jobs {
        mesh.run(Span::secs(5));
        let record = mesh.get("a", job);
        assert!(
            record.attempts.iter().all(|a| !matches!(a.outcome, Some(Outcome::Refused(_)))),
            "{record:?}"
        );
        mesh.finish(job);
    }
}

/// What a cluster is, it says itself; until that was heard it is asked for no job, so that none runs where it must not.
#[test]
fn a_cluster_that_nobody_has_heard_yet_is_not_asked() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8), ("c", 8)]);
    mesh.unheard = [name("b"), name("c")].into();
    mesh.run(Span::secs(1));
    let mut chosen = job(8, 50);
    chosen.placement.clusters = vec![name("b")];
    let mut elsewhere = job(8, 50);
    elsewhere.placement.regions = vec!["elsewhere".into()];
    let (chosen, elsewhere) = (mesh.submit("a", chosen), mesh.submit("a", elsewhere));
    mesh.run(Span::secs(3));
    assert_eq!(["a", "c"].map(|p| mesh.running(p)), [0, 0], "b was named, c may be anything");
    mesh.unheard.clear();
    mesh.run(Span::secs(5));
    let record = mesh.get("a", chosen);
    assert_eq!((record.state, record.attempts.len()), (JobState::Running, 1), "{record:?}");
    assert_eq!(record.placement.map(|p| p.cluster), Some(name("b")));
    assert!(mesh.get("a", elsewhere).attempts.is_empty());
}

/// A cluster grants without looking at what its owner knows: what has become too dear since it was asked is given back.
#[test]
fn a_grant_of_a_cluster_that_no_longer_fits_is_not_taken() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8), ("c", 8)]);
    let holders = ["a", "b", "c"].map(|cluster| {
        let mut spec = job(8, 50);
        spec.placement.clusters = vec![name(cluster)];
        mesh.submit("a", spec)
    });
    mesh.run(Span::secs(3));
    let mut cheap = job(8, 50);
    (cheap.placement.clusters, cheap.placement.price_max_milli) = (vec![name("b")], Some(100));
    let cheap = mesh.submit("a", cheap);
    mesh.run(Span::secs(3));
    mesh.prices.insert(name("b"), 1_000);
    mesh.tell_views();
    mesh.finish(holders[1]);
    mesh.run(Span::secs(20));
    assert!(mesh.get("a", cheap).attempts.is_empty(), "it costs ten times what it may");
    mesh.prices.clear();
    mesh.run(Span::secs(20));
    assert_eq!(mesh.get("a", cheap).state, JobState::Running);
}
