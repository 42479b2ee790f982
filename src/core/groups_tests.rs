//! Jobs with groups in a small mesh of real cores.

use super::*;
use crate::base::Epoch;
use crate::model::spec::{Communication, Group, Groups};

fn gang(groups: &[u32]) -> JobSpec {
    let one = job(0, 50);
    let group = |(i, gpus): (usize, &u32)| {
        let mut resources = one.resources.clone();
        resources.gpus = *gpus;
        Group { name: format!("g{i}"), nodes: 1, resources }
    };
    let list = groups.iter().enumerate().map(group).collect();
    JobSpec { communication: Communication::Async, groups: Groups { list, traffic: vec![] }, ..one }
}

impl Mesh {
    fn groups(&mut self, peer: &str, job: JobId) -> Vec<JobId> {
        let record = self.get(peer, job);
        (0..record.children()).filter_map(|i| Some(record.child_birth(i)?.id())).collect()
    }

    /// Epochs of a job's groups that run, and where.
    fn parts(&self, groups: &[JobId]) -> Vec<(String, Epoch)> {
        let of = |(peer, site): (&PeerName, &Site)| {
            let here = site.runs.keys().filter(|k| groups.contains(&k.job));
            here.map(|k| (peer.to_string(), k.epoch)).collect::<Vec<_>>()
        };
        self.sites.iter().flat_map(of).collect()
    }

    fn fail(&mut self, group: JobId) {
        let now = self.now;
        for (_, (_, end)) in
            self.sites.values_mut().flat_map(|s| s.runs.iter_mut()).filter(|(k, _)| k.job == group)
        {
            *end = Some((now, Outcome::Exited(7)));
        }
    }

    fn idle(&self) -> bool {
        ["a", "b"].iter().all(|p| self.reserved(p) == 0 && self.running(p) == 0)
    }
}

#[test]
fn groups_start_together_and_end_together() {
    let mut mesh = Mesh::new(&[("a", 4), ("b", 4), ("c", 0)]);
    let id = mesh.submit("c", JobSpec { retries: 1, ..gang(&[4, 4]) });
    mesh.run(Span::secs(4));
    let groups = mesh.groups("a", id);
    assert_eq!(mesh.parts(&groups), [("a".to_owned(), Epoch(1)), ("b".to_owned(), Epoch(1))]);
    mesh.run(Span::secs(4));
    assert_eq!(mesh.get("b", id).state, JobState::Running);
    // One fails: the other is stopped, and both begin again under one epoch.
    mesh.fail(groups[0]);
    mesh.run(Span::secs(1));
    assert!(mesh.parts(&groups).iter().all(|(_, epoch)| *epoch == Epoch(1)));
    mesh.run(Span::secs(12));
    assert_eq!(mesh.parts(&groups), [("a".to_owned(), Epoch(2)), ("b".to_owned(), Epoch(2))]);
    let record = mesh.get("a", id);
    assert_eq!((record.failures, record.epoch), (1, Epoch(2)), "{}", record.reason);
    for group in &groups {
        mesh.finish(*group);
        mesh.run(Span::secs(1));
    }
    mesh.run(Span::secs(3));
    let record = mesh.get("a", id);
    assert_eq!(record.state, JobState::Succeeded, "{}", record.reason);
    for group in &groups {
        assert_eq!(mesh.get("b", *group).state, JobState::Succeeded);
    }
    assert!(mesh.idle());
}

#[test]
fn a_cancel_stops_every_group() {
    let mut mesh = Mesh::new(&[("a", 4), ("b", 4)]);
    let id = mesh.submit("a", gang(&[3, 3, 1]));
    mesh.run(Span::secs(6));
    let groups = mesh.groups("a", id);
    assert_eq!(mesh.parts(&groups).len(), 3);
    mesh.ask("b", ClientRequest::Cancel { job: id, by: "me".into() });
    mesh.run(Span::secs(8));
    assert_eq!(mesh.get("a", id).state, JobState::Cancelled);
    assert!(mesh.idle());
    // Before it was placed: at once.
    let full = mesh.place("a", job(4, 50));
    let waits = mesh.submit("a", gang(&[4, 4]));
    mesh.run(Span::secs(3));
    let asked = ["a", "b"].map(|peer| match mesh.ask(peer, ClientRequest::Why { job: waits }) {
        ClientResponse::Why(why) => why.summary,
        other => panic!("{other:?}"),
    });
    // Its owner knows.
    let why = asked.join("\n");
    assert!(why.contains("g0 at a waits") && why.contains("g1 at b is next"), "{why}");
    assert_eq!(mesh.reserved("b"), 0, "nothing is held while the first in order is waited for");
    mesh.ask("b", ClientRequest::Cancel { job: waits, by: "me".into() });
    assert_eq!(mesh.get("a", waits).state, JobState::Cancelled);
    mesh.finish(full);
    mesh.run(Span::secs(2));
    assert!(mesh.idle());
}

/// As one cluster is waited for the other becomes too dear: its part is not placed there.
#[test]
fn a_group_is_not_placed_where_it_no_longer_fits() {
    let mut mesh = Mesh::new(&[("a", 4), ("b", 4), ("c", 0)]);
    let full = mesh.place("a", job(4, 50));
    let mut spec = gang(&[4, 4]);
    spec.placement.price_max_milli = Some(100);
    let id = mesh.submit("c", spec);
    mesh.run(Span::secs(2));
    mesh.prices.insert(name("b"), 1_000);
    mesh.tell_views();
    mesh.finish(full);
    mesh.run(Span::secs(20));
    let groups = mesh.groups("a", id);
    assert!(mesh.parts(&groups).is_empty());
    assert!(mesh.idle(), "what was held is given back");
    mesh.prices.clear();
    mesh.run(Span::secs(90));
    let groups = mesh.groups("a", id);
    assert_eq!(mesh.parts(&groups).len(), 2);
}

/// The word that a group is to stop is lost, more than once, and its program would never end by itself.
#[test]
fn a_group_is_told_to_stop_until_it_has_heard() {
    let mut mesh = Mesh::new(&[("a", 4), ("b", 4), ("c", 0)]);
    let id = mesh.submit("c", gang(&[4, 4]));
    mesh.run(Span::secs(6));
    let groups = mesh.groups("a", id);
    assert_eq!(mesh.parts(&groups).len(), 2);
    mesh.drop = |message| matches!(message, Message::Look { .. });
    mesh.fail(groups[0]);
    mesh.run(Span::secs(10));
    let halted = mesh.get("c", groups[1]);
    assert!(halted.halted() && halted.placement.is_some(), "{}", halted.reason);
    mesh.drop = |_| false;
    mesh.run(Span::secs(40));
    assert_eq!(mesh.get("c", id).state, JobState::Failed);
    assert!(mesh.idle());
}

/// A grant that was said once more comes when its group has been placed there: nobody takes that back.
#[test]
fn a_late_grant_leaves_what_was_placed() {
    let mut mesh = Mesh::new(&[("a", 4), ("b", 4)]);
    let id = mesh.submit("a", gang(&[4, 4]));
    mesh.run(Span::secs(6));
    let groups = mesh.groups("a", id);
    let before = mesh.parts(&groups);
    assert_eq!(before.len(), 2);
    let placement = mesh.get("a", groups[1]).placement.expect("placed");
    let grant = Message::Grant {
        job: groups[1],
        epoch: Epoch(1),
        held: Span::secs(5),
        contact: placement.contact,
        series: placement.series,
        homes: placement.contact_homes.iter().cloned().collect(),
        incarnation: placement.incarnation,
    };
    for owner in ["a", "b"] {
        mesh.lines.clear();
        let message = grant.clone();
        let owns = mesh.sites[&name(owner)].core.gangs.claims(&groups[1]);
        let now = mesh.time();
        let site = mesh.sites.get_mut(&name(owner)).expect("a site");
        let out = site.core.step(now, Input::Message { from: placement.cluster.clone(), message });
        let withdrawn = |o: &Output| matches!(o, Output::Send { message: Message::Withdraw { .. }, .. });
        assert_eq!(out.iter().any(withdrawn), !owns, "{owner}: {out:?}");
    }
}

/// Two jobs that each want all of two clusters, given to different owners: one runs, the other holds nothing of it.
#[test]
fn two_jobs_with_halves_of_two_clusters_do_not_wait_for_each_other() {
    let mut mesh = Mesh::new(&[("a", 4), ("b", 4)]);
    let ids = [mesh.submit("a", gang(&[4, 4])), mesh.submit("b", gang(&[4, 4]))];
    let groups: Vec<Vec<JobId>> = ids.iter().map(|id| mesh.groups("a", *id)).collect();
    for _ in 0..2 {
        let mut waited = 0;
        let running = loop {
            mesh.run(Span::secs(1));
            waited += 1;
            assert!(waited < 40, "neither runs");
            // The moment of starting may show one of both.
            let whole = groups.iter().position(|g| mesh.parts(g).len() == 2);
            if let Some(whole) = whole {
                break whole;
            }
        };
        assert!(mesh.parts(&groups[1 - running]).is_empty());
        mesh.run(Span::secs(6));
        for group in &groups[running] {
            mesh.finish(*group);
        }
        mesh.run(Span::secs(3));
        assert_eq!(mesh.get("a", ids[running]).state, JobState::Succeeded);
    }
    assert!(mesh.idle() && mesh.sites.values().all(|s| s.peak <= 4));
}

/// Many at once, over three clusters, of all shapes: all end, no group of one runs under another epoch than the rest,
/// and no cluster gives out more than it has.
#[test]
fn many_jobs_with_groups_all_come_through() {
    let mut mesh = Mesh::new(&[("a", 4), ("b", 4), ("c", 4)]);
    let shapes: [&[u32]; 7] = [&[4, 4, 4], &[4, 4], &[2, 2, 2], &[3, 3], &[4, 1], &[4, 4, 2], &[1, 1, 1, 1]];
    let ids: Vec<JobId> =
        shapes.iter().enumerate().map(|(i, g)| mesh.submit(["a", "b", "c"][i % 3], gang(g))).collect();
    let groups: Vec<Vec<JobId>> = ids.iter().map(|id| mesh.groups("a", *id)).collect();
    for _ in 0..600 {
        mesh.run(Span::secs(1));
        for parts in &groups {
            let epochs: BTreeSet<Epoch> = mesh.parts(parts).into_iter().map(|(_, e)| e).collect();
            assert!(epochs.len() <= 1, "{epochs:?}");
            if mesh.parts(parts).len() == parts.len() {
                parts.iter().for_each(|g| mesh.finish(*g));
            }
        }
        if ids
            .iter()
            .all(|id| mesh.sites.values().any(|s| s.core.hint(id).is_some_and(|r| r.state.is_final())))
        {
            break;
        }
    }
    for id in ids {
        let record = mesh.get("a", id);
        assert_eq!(record.state, JobState::Succeeded, "{}", record.reason);
    }
    assert!(mesh.sites.values().all(|s| s.peak <= 4));
}

#[test]
fn what_can_never_be_together_is_refused_and_older_peers_get_no_group() {
    let mut mesh = Mesh::new(&[("a", 4), ("b", 4)]);
    let large = ClientRequest::Submit { spec: Box::new(gang(&[4, 4, 1])), key: None };
    match mesh.ask("a", large) {
        ClientResponse::Error(ClientError::GroupsFitNowhere(why)) => {
            assert!(why.contains("do not fit"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    mesh.wire = SPEAKS_GROUPS - 1;
    mesh.run(Span::secs(1));
    let id = mesh.submit("a", gang(&[2, 2]));
    mesh.run(Span::secs(5));
    let groups = mesh.groups("a", id);
    // Its own cluster reads what its owner does.
    assert!(mesh.parts(&groups).iter().all(|(peer, _)| peer == "a" || peer == "b"));
    let owners: BTreeSet<String> = mesh.parts(&groups).into_iter().map(|(peer, _)| peer).collect();
    assert!(owners.len() <= 1, "only where the owner itself is: {owners:?}");
}
