//! Reservations in a small mesh of real cores.

use super::*;
use crate::model::reserve::{Asked, At, reservation};

impl Mesh {
    fn asked(&self, gpus: u32, ahead: u64, length: u64) -> Asked {
        let from = WallTime(self.time().wall.0 + ahead * 1_000);
        Asked { gpus, models: vec![], from, until: WallTime(from.0 + length * 1_000) }
    }

    fn try_reserve(&mut self, peer: &str, tenant: &str, asked: &Asked, at: At) -> ClientResponse {
        let spec = reservation("r", tenant, asked, at, self.time().wall).expect("good");
        self.ask(peer, ClientRequest::Submit { spec: Box::new(spec), key: None })
    }

    fn reserve(&mut self, peer: &str, tenant: &str, asked: &Asked, at: At) -> JobId {
        match self.try_reserve(peer, tenant, asked, at) {
            ClientResponse::Submitted { job, .. } => job,
            other => panic!("{other:?}"),
        }
    }

    /// What a cluster tells of reservations: (GPUs, used, confirmed).
    fn keeps(&self, peer: &str) -> Vec<(u32, u32, bool)> {
        let queue = self.sites[&name(peer)].told.0.clone().unwrap_or_default();
        queue.reserved.iter().map(|r| (r.gpus, r.used, r.confirmed)).collect()
    }
}

fn named(names: &[&str]) -> At {
    At::Named(names.iter().map(|n| name(n)).collect())
}

fn of(tenant: &str, spec: JobSpec) -> JobSpec {
    JobSpec { tenant: tenant.into(), preemptible: Some(false), ..spec }
}

/// Another's job waits with the reason, the tenant's starts at once, and at the end the rest is free again.
#[test]
fn a_reservation_from_its_begin_to_its_end() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 4), ("c", 0)]);
    let asked = mesh.asked(8, 60, 120);
    let id = mesh.reserve("b", "t", &asked, named(&["a"]));
    mesh.run(Span::secs(4));
    let record = mesh.get("c", id);
    assert_eq!((record.state, record.parts().len()), (JobState::Running, 1), "{}", record.reason);
    assert_eq!(mesh.keeps("a"), [(8, 0, true)]);
    assert_eq!(mesh.reserved("a"), 0, "before its time it is not taken");
    let mut other = of("u", job(8, 90));
    other.placement.clusters = vec![name("a")];
    let waits = mesh.submit("a", other);
    mesh.run(Span::secs(5));
    assert_eq!(mesh.running("a"), 0);
    let all = ["a", "b", "c"].map(|peer| match mesh.ask(peer, ClientRequest::Why { job: waits }) {
        ClientResponse::Why(why) => why.clusters,
        other => panic!("{other:?}"),
    });
    let reasons: Vec<&super::super::placement::Reason> =
        all.iter().flatten().flat_map(|c| &c.reasons).collect();
    let why = reasons.iter().find(|r| r.code() == "reserved").expect("the reason").to_string();
    assert!(why.contains("8 GPUs are reserved for tenant t from 1970-01-01T00:01:"), "{why}");
    // A dry run says so as well, and nothing to the tenant itself.
    let dry = |mesh: &mut Mesh, tenant: &str| match mesh
        .ask("b", ClientRequest::WhySpec { spec: Box::new(of(tenant, job(8, 50))) })
    {
        ClientResponse::Why(why) => {
            why.clusters.iter().find(|c| c.cluster == name("a")).map(|c| c.words()).unwrap_or_default()
        }
        other => panic!("{other:?}"),
    };
    assert!(dry(&mut mesh, "u").contains("reserved for tenant t"));
    assert_eq!(dry(&mut mesh, "t"), "");
    // One that ends in time runs.
    let short = JobSpec { max_runtime: Some(Span::secs(15)), ..of("u", job(8, 50)) };
    let short = mesh.place("a", short);
    mesh.finish(short);
    mesh.run(Span::secs(60));
    assert_eq!((mesh.running("a"), mesh.reserved("a")), (0, 8), "its time has begun");
    assert!(dry(&mut mesh, "u").contains("reserved for tenant t"));
    assert_eq!(dry(&mut mesh, "t"), "");
    // The tenant's job starts at once.
    let own = mesh.submit("c", of("t", job(8, 10)));
    mesh.run(Span::secs(2));
    assert_eq!(mesh.get("a", own).state, JobState::Running);
    assert_eq!(mesh.keeps("a"), [(8, 8, true)]);
    mesh.finish(own);
    mesh.run(Span::secs(2));
    assert_eq!(mesh.get("b", waits).state, JobState::Pending);
    mesh.run(Span::secs(120));
    assert_eq!(mesh.get("b", waits).state, JobState::Running);
    assert_eq!(
        (mesh.get("a", id).state, mesh.keeps("a").len(), mesh.reserved("a")),
        (JobState::Succeeded, 0, 0)
    );
}

#[test]
fn it_is_refused_with_the_reason_and_the_next_time() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8), ("c", 8)]);
    let first = mesh.asked(6, 100, 1_000);
    let id = mesh.reserve("a", "t", &first, named(&["a"]));
    mesh.run(Span::secs(4));
    assert_eq!(mesh.get("a", id).state, JobState::Running);
    let second = mesh.asked(3, 500, 1_000);
    let id = mesh.reserve("b", "u", &second, named(&["b", "a"]));
    mesh.run(Span::secs(6));
    let record = mesh.get("a", id);
    assert_eq!(record.state, JobState::Failed);
    let next = crate::model::timestamp::to_rfc3339(first.until);
    assert!(record.reason.contains("a: 2 of 3 GPUs can be kept"), "{}", record.reason);
    assert!(record.reason.contains("6 are reserved for others then"), "{}", record.reason);
    assert!(record.reason.contains(&format!("it could be kept from {next}")), "{}", record.reason);
    // All or nothing: b keeps nothing of it.
    mesh.run(Span::secs(40));
    assert_eq!((mesh.keeps("b"), mesh.keeps("a").len()), (vec![], 1));
    // Elsewhere it can be had, at as many clusters as it names.
    let id = mesh.reserve("b", "u", &mesh.asked(3, 450, 1_000), At::Any(2));
    mesh.run(Span::secs(6));
    let parts: Vec<String> = mesh.get("c", id).parts().iter().map(|p| p.cluster.to_string()).collect();
    assert_eq!(parts, ["b", "c"]);
    let id = mesh.reserve("b", "u", &mesh.asked(6, 450, 1_000), At::Any(1));
    mesh.run(Span::secs(10));
    let record = mesh.get("c", id);
    assert_eq!(record.state, JobState::Failed);
    assert!(record.reason.contains("no cluster can keep it"), "{}", record.reason);
    // What can never be is refused at the door.
    for (gpus, at) in [(9, named(&["a"])), (1, named(&["nobody"])), (9, At::Any(1))] {
        let asked = mesh.asked(gpus, 10, 100);
        let said = mesh.try_reserve("a", "t", &asked, at);
        assert!(matches!(said, ClientResponse::Error(_)), "{said:?}");
    }
}

/// Two owners race for two clusters, again and again: each cluster keeps no more than it has, and whoever has one part has both.
#[test]
fn two_that_race_for_two_clusters_do_not_hold_half_each() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8), ("c", 8)]);
    for _ in 0..4 {
        let asked = mesh.asked(5, 30, 60);
        let specs = ["t", "u"].map(|tenant| {
            reservation("r", tenant, &asked, named(&["a", "b"]), mesh.time().wall).expect("good")
        });
        let tokens = [900_001, 900_002];
        for ((peer, spec), token) in ["a", "b"].iter().zip(specs).zip(tokens) {
            let request = ClientRequest::Submit { spec: Box::new(spec), key: None };
            mesh.input(&name(peer), Input::Client { token, request });
        }
        mesh.settle();
        mesh.run(Span::secs(20));
        let ids = tokens.map(|token| match mesh.replies.remove(&token) {
            Some(ClientResponse::Submitted { job, .. }) => job,
            other => panic!("{other:?}"),
        });
        let states = ids.map(|id| mesh.get("c", id).state);
        let won = states.iter().filter(|s| **s == JobState::Running).count();
        assert_eq!((won, states.iter().filter(|s| **s == JobState::Failed).count()), (1, 1), "{states:?}");
        assert_eq!((mesh.keeps("a"), mesh.keeps("b")), (vec![(5, 0, true)], vec![(5, 0, true)]));
        mesh.run(Span::secs(100));
        assert!(mesh.keeps("a").is_empty());
    }
}

/// The confirmation is never made, or never heard of: what is held is let go, or found to be confirmed.
#[test]
fn what_was_never_confirmed_is_let_go() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8), ("c", 8)]);
    // b never answers: a holds its part meanwhile.
    mesh.drop = |message| {
        matches!(
            message,
            Message::Reserve(
                crate::core::reserve::ReserveWord::Held { .. }
                    | crate::core::reserve::ReserveWord::Drop { .. }
            )
        )
    };
    let asked = mesh.asked(8, 300, 600);
    let id = mesh.reserve("c", "t", &asked, named(&["a"]));
    mesh.run(Span::secs(3));
    let owner = mesh.get("c", id).homes()[0].peer.to_string();
    if owner == "a" {
        // It hears itself.
        assert_eq!(mesh.get("c", id).state, JobState::Running);
        return;
    }
    assert_eq!(mesh.keeps("a"), [(8, 0, false)]);
    mesh.run(Span::secs(20));
    assert_eq!(mesh.get("c", id).state, JobState::Failed, "silence is a no");
    assert_eq!(mesh.keeps("a").len(), 1);
    mesh.run(Span::secs(40));
    assert_eq!(mesh.keeps("a"), [], "by the record, since nobody said so");
}

#[test]
fn looks_that_are_lost_cost_time_and_nothing_else() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8), ("c", 8)]);
    mesh.drop = |message| matches!(message, Message::Look { .. });
    let asked = mesh.asked(8, 300, 600);
    let id = mesh.reserve("c", "t", &asked, named(&["a", "b", "c"]));
    mesh.run(Span::secs(6));
    assert_eq!(mesh.get("c", id).state, JobState::Running);
    mesh.run(Span::secs(40));
    for peer in ["a", "b", "c"] {
        assert_eq!(mesh.keeps(peer), [(8, 0, true)], "{peer} has asked the record");
    }
    let said = mesh.ask("b", ClientRequest::Cancel { job: id, by: "me".into() });
    assert_eq!(said, ClientResponse::Cancelled { state: JobState::Cancelled });
    mesh.run(Span::secs(75));
    for peer in ["a", "b", "c"] {
        assert_eq!(mesh.keeps(peer), [], "{peer} has asked the record");
    }
}

#[test]
fn a_mesh_under_upgrade_refuses_it_by_name() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8)]);
    mesh.wire = SPEAKS_RESERVE - 1;
    mesh.run(Span::secs(1));
    let asked = mesh.asked(8, 300, 600);
    let said = mesh.try_reserve("a", "t", &asked, named(&["a"]));
    let ClientResponse::Error(ClientError::NoReservation(why)) = said else { panic!("{said:?}") };
    assert!(why.contains('b') && why.contains("upgrade"), "{why}");
}

/// A tenant's limit holds for what is reserved: its share is kept at the cluster while the time runs.
#[test]
fn a_reservation_counts_against_the_limit() {
    let mut mesh = Mesh::new(&[("a", 8), ("b", 8), ("c", 8)]);
    let limits =
        crate::model::tenant::LimitsPatch { gpus: Some(Some(8)), grace: Some(None), ..Default::default() };
    let said = mesh.ask("a", ClientRequest::TenantSet { tenant: "t".into(), patch: Some(Box::new(limits)) });
    assert!(matches!(said, ClientResponse::Tenant(_)), "{said:?}");
    mesh.run(Span::secs(3));
    let asked = mesh.asked(5, 70, 300);
    let said = mesh.try_reserve("a", "t", &asked, At::Any(2));
    assert!(matches!(said, ClientResponse::Error(ClientError::OverQuota(_))), "{said:?}");
    let id = mesh.reserve("a", "t", &asked, named(&["b"]));
    mesh.run(Span::secs(4));
    assert_eq!(mesh.get("a", id).state, JobState::Running);
    mesh.run(Span::secs(75));
    // Five of the eight are kept at b: elsewhere three are left.
    let elsewhere = |gpus| {
        let mut spec = of("t", job(gpus, 50));
        spec.placement.clusters = vec![name("c")];
        spec
    };
    let four = mesh.submit("a", elsewhere(4));
    mesh.run(Span::secs(8));
    assert_eq!(mesh.get("a", four).state, JobState::Pending);
    mesh.ask("a", ClientRequest::Cancel { job: four, by: "me".into() });
    let three = mesh.submit("a", elsewhere(3));
    mesh.run(Span::secs(20));
    assert_eq!(mesh.get("a", three).state, JobState::Running);
    let mut own = of("t", job(5, 50));
    own.placement.clusters = vec![name("b")];
    let own = mesh.submit("a", own);
    mesh.run(Span::secs(2));
    assert_eq!(mesh.get("a", own).state, JobState::Running, "it needs to ask nobody");
}

/// Somebody who says how long he runs begins late, and the reservation lacks his GPUs. When he goes they are the tenant's, and
/// not those of who waits in front of it.
#[test]
fn what_comes_free_late_is_the_tenants() {
    let mut mesh = Mesh::new(&[("a", 8)]);
    let asked = mesh.asked(8, 40, 200);
    let id = mesh.reserve("a", "t", &asked, named(&["a"]));
    mesh.run(Span::secs(3));
    assert_eq!(mesh.get("a", id).state, JobState::Running);
    let late = mesh.place("a", JobSpec { max_runtime: Some(Span::secs(15)), ..of("u", job(8, 50)) });
    mesh.run(Span::secs(28));
    let key = mesh.sites[&name("a")].runs.keys().next().copied().expect("it runs");
    let at = mesh.time().wall;
    mesh.input(&name("a"), Input::Backend(BackendEvent::Started { key, at }));
    mesh.run(Span::secs(8));
    let other = mesh.submit("a", of("v", job(8, 90)));
    let own = mesh.submit("a", of("t", job(8, 10)));
    mesh.run(Span::secs(1));
    let short = mesh.sites[&name("a")].told.0.as_ref().map_or(0, |q| q.reserved[0].short);
    assert_eq!((mesh.running("a"), short), (1, 8), "it is still there");
    mesh.finish(late);
    mesh.run(Span::secs(4));
    assert_eq!(mesh.get("a", own).state, JobState::Running);
    assert_eq!(mesh.get("a", other).state, JobState::Pending);
    assert_eq!(mesh.keeps("a"), [(8, 8, true)]);
}

/// An older binary refuses the record instead of taking it for a job; a row of this build reads later.
#[test]
fn the_record_leads_with_a_version_of_its_own_and_rows_stay_readable() {
    let mut mesh = Mesh::new(&[("a", 8)]);
    let asked = mesh.asked(8, 300, 600);
    let id = mesh.reserve("a", "t", &asked, named(&["a"]));
    let record = mesh.get("a", id);
    let value = crate::core::value::Value::job(record.clone());
    let bytes = value.encode().expect("fits");
    assert_eq!(bytes[0], 5);
    assert_eq!(crate::core::value::Value::decode(&RecordKey::Job(id), &bytes), Ok(value));
    // As it is on disk, with a field of a later version.
    let row = r#"{"birth":BIRTH,"asked":{"gpus":8,"models":["H100-80G"],"from":5000,"until":605000},"round":1,
        "confirmed":true,"shares":[{"node":0,"gpus":[0,1,2,3,4,5,6,7]}],"later":1}"#;
    let row = row.replace("BIRTH", &serde_json::to_string(&record.birth).expect("plain"));
    let key = format!("reserve/{id}").into_bytes();
    let meta = BTreeMap::from([(b"mark".to_vec(), 7u64.to_be_bytes().to_vec()), (key, row.into_bytes())]);
    let disk = DiskImage { tables: [(Table::Meta, meta)].into() };
    let cfg = CoreConfig { nodes: nodes(8), ..config("a", StoreId([1; 16])) };
    let now = Now { mono: Instant(9_000_000), wall: WallTime(4_000) };
    let (mut core, _) = Peer::recover(cfg, &disk, now).expect("reads");
    let later = Now { mono: Instant(11_500_000), wall: WallTime(6_500) };
    let out = core.step(later, Input::Tick);
    let told = out.iter().find_map(|o| match o {
        Output::Report { queue, .. } => Some(queue),
        _ => None,
    });
    let told = told.expect("a report");
    assert_eq!((told.gpus_free["H100-80G"], told.gpus_reserved["H100-80G"]), (0, 8));
    assert_eq!((told.reserved.len(), told.reserved[0].id, told.reserved[0].confirmed), (1, id, true));
}
