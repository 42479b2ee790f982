//! Each finding: what makes it, and what does not.

use serde_json::{Value, json};

use super::*;
use crate::model::report::Liveness;
use crate::surface::api::tests::json_of;
use crate::surface::fake::{Fake, name};

fn document(text: &str, change: impl FnOnce(&mut Value)) -> PeerDocument {
    let mut value = json!({
        "name": text, "mesh": "m", "store": "s", "boot": 1, "listen": "127.0.0.1:1", "api": null, "version": "0",
        "certificate_from_ms": 0, "certificate_until_ms": 100 * 86_400_000_u64, "started_at_ms": 0, "draining": false,
        "isolated": false, "members": {}, "now_ms": 50_000,
    });
    change(&mut value);
    serde_json::from_value(value).expect("a peer")
}

fn about<'a>(found: &'a [Finding], what: &str) -> &'a Finding {
    found.iter().find(|f| f.about == what).unwrap_or_else(|| panic!("nothing about {what}: {found:?}"))
}

/// What the doctor at a peer says of one thing.
async fn says(fake: &std::sync::Arc<Fake>, what: &str) -> (String, String) {
    let app = crate::surface::router(fake.clone());
    let (status, found) = json_of(&app, "GET", "/v1/doctor", "").await;
    assert_eq!(status, 200, "{found}");
    let list = found["findings"].as_array().cloned().unwrap_or_default();
    let one =
        list.iter().find(|f| f["about"] == what).unwrap_or_else(|| panic!("nothing about {what}: {found}"));
    let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
    (text("weight"), text("text"))
}

#[test]
fn another_process_with_the_same_identity_is_named() {
    let me = name("beta");
    let told = |why: &str| vec![(name("alpha"), why.to_owned())];
    assert_eq!(refused(&me, &[]), None);
    let found = refused(&me, &told("beta has started again since (boot 8)")).expect("one");
    assert_eq!((found.weight, found.about.as_str()), (Weight::Bad, "identity"));
    assert!(found.text.contains("alpha says that beta has started again since (boot 8)"), "{found:?}");
    assert!(found.todo.contains("copied"), "{found:?}");
    let disk = refused(&me, &told("beta is linked already with disk 01")).expect("one");
    assert_eq!(disk.about, "identity");
    // Another peer's start is not this one's.
    assert_eq!(refused(&me, &told("gamma has started again since (boot 8)")).expect("one").about, "refused");
    // Of whatever many say, this comes first: the rest follows from it.
    let both = [told("it was removed"), told("beta has started again since (boot 8)")].concat();
    assert_eq!(refused(&me, &both).expect("one").about, "identity");
    let found = refused(&me, &told("it was removed")).expect("one");
    assert_eq!((found.about.as_str(), found.weight), ("refused", Weight::Bad));
    assert!(found.text.contains("alpha takes no link from this peer: it was removed"), "{found:?}");
}

#[test]
fn clocks_certificates_and_silence_are_judged_by_what_peers_answer() {
    let me = document("a", |_| {});
    let of = |change: fn(&mut Value), before: u64, after: u64| {
        of_answers(&me, vec![(name("b"), before, after, Some(document("b", change)))], 0)
    };
    // Its clock was read between question and answer.
    assert_eq!(about(&of(|_| {}, 40_000, 60_000), "clocks").weight, Weight::Ok);
    assert_eq!(about(&of(|_| {}, 52_000, 52_001), "clocks").weight, Weight::Ok, "as much as is let pass");
    for (before, after) in [(52_001, 52_001), (40_000, 47_999)] {
        let found = of(|_| {}, before, after);
        let clocks = about(&found, "clocks");
        assert_eq!((clocks.weight, clocks.text.as_str()), (Weight::Warn, "off from a's: b by 2.0 s"));
    }
    let well = of(|_| {}, 50_000, 50_000);
    assert_eq!(about(&well, "certificates").weight, Weight::Ok);
    assert_eq!(about(&well, "requests").text, "2 peers answer requests");
    let ends = of(|v| v["certificate_until_ms"] = (5 * 86_400_000_u64 - 1).into(), 50_000, 50_000);
    let ends = about(&ends, "certificates");
    assert_eq!((ends.weight, ends.text.as_str()), (Weight::Bad, "b in 5.0 days"));
    let just = of(|v| v["certificate_until_ms"] = (5 * 86_400_000_u64).into(), 50_000, 50_000);
    assert_eq!(about(&just, "certificates").weight, Weight::Ok);
    let silent = of_answers(&me, vec![(name("b"), 0, 1, None)], 0);
    let silent = about(&silent, "requests");
    assert_eq!((silent.weight, silent.text.as_str()), (Weight::Bad, "looks alive and does not answer: b"));
}

#[test]
fn versions_and_closed_clusters_are_told() {
    let cluster = |text: &str, version: &str| {
        let fake = Fake::new(text);
        let view = crate::runtime::PeerHandle::view(&*fake);
        let mut document = ClusterDocument::new(&view.members[&name(text)], Some(1));
        document.version = Some(version.into());
        document
    };
    let (a, mut b) = (cluster("a", "1"), cluster("b", "1"));
    assert_eq!(versions(&[a.clone(), b.clone()]).text, "all are 1");
    b.version = Some("2".into());
    let found = versions(&[a.clone(), b.clone()]);
    assert_eq!((found.weight, found.text.as_str()), (Weight::Note, "1 at a; 2 at b"));
    assert_eq!(closed(&b), None);
    b.closed = Some("disk nearly full".into());
    assert_eq!(closed(&b).expect("one").text, "b takes no new work: disk nearly full");
    b.liveness = "lost".into();
    assert_eq!(closed(&b), None, "that it is lost is another finding");
    assert_eq!(versions(&[a, b]).weight, Weight::Ok, "a peer that is gone does not count");
}

#[tokio::test]
async fn members_and_size_are_told() {
    let fake = Fake::new("a");
    assert_eq!(says(&fake, "size").await, ("note".into(), "a mesh of one: its disk is the only copy".into()));
    fake.knows("b", Some(crate::surface::router(Fake::new("b"))));
    let (weight, text) = says(&fake, "size").await;
    assert!(weight == "warn" && text.starts_with("two members"), "{weight} {text}");
    fake.knows("c", Some(crate::surface::router(Fake::new("c"))));
    assert_eq!(says(&fake, "size").await.0, "ok");
    assert_eq!(says(&fake, "members").await, ("ok".into(), "all 3 are alive".into()));
    fake.state.lock().expect("state").away.insert(name("c"), Liveness::Suspect);
    assert_eq!(says(&fake, "members").await, ("bad".into(), "c is suspect".into()));
    fake.state.lock().expect("state").isolated = true;
    assert_eq!(says(&fake, "members").await, ("bad".into(), "a reaches no other member".into()));
}

#[tokio::test]
async fn records_below_their_majority_and_a_silent_core_are_told() {
    let fake = Fake::new("a");
    let job = fake.put(Fake::spec("run: x"));
    assert_eq!(says(&fake, "records").await.0, "ok");
    fake.state.lock().expect("state").away.insert(name("a"), Liveness::Lost);
    let (weight, text) = says(&fake, "records").await;
    assert_eq!(weight, "bad");
    assert_eq!(text, format!("1 live jobs have too few homes to change: {}", job.short()));
    fake.place(job, "a");
    fake.close(job, 0);
    assert_eq!(says(&fake, "records").await.0, "ok", "what has ended changes no more");
    let shut = crate::core::api::ClientError::Unknown { answered: 0, needed: 1, job: None };
    fake.state.lock().expect("state").fails = Some(shut);
    assert_eq!(says(&fake, "records").await, ("bad".into(), "this peer's core does not answer".into()));
}
