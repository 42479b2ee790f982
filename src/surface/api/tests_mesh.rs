//! Answers about and over the mesh.

use serde_json::json;

use super::router;
use super::tests::{json_of, send};
use crate::base::{JobId, Span};
use crate::core::api::{ClaimView, InspectReport, Look};
use crate::surface::documents::InspectDocument;
use crate::surface::fake::{Fake, name};

#[tokio::test]
async fn lists_merge_the_newest_version_and_name_who_is_silent() {
    let (a, b) = (Fake::new("a"), Fake::new("b"));
    a.knows("b", Some(router(b.clone())));
    a.knows("c", None);
    let id = a.put(Fake::spec("run: x"));
    let only_b = b.put(Fake::spec("run: y\ntenant: blue"));
    {
        let record = a.state.lock().expect("state").records[&id].clone();
        b.state.lock().expect("state").records.insert(id, record);
    }
    b.place(id, "b");
    let app = router(a.clone());
    let (status, list) = json_of(&app, "GET", "/v1/jobs", "").await;
    assert_eq!((status, list["jobs"].as_array().map(Vec::len)), (200, Some(2)), "{list}");
    assert_eq!(list["unanswered"], json!(["c"]));
    let of = |id: crate::base::JobId| {
        list["jobs"].as_array().expect("jobs").iter().find(|j| j["id"] == json!(id)).expect("there")
    };
    assert_eq!((&of(id)["state"], &of(id)["version"]), (&json!("running"), &json!(3)));
    // Here it is still pending: the older version must not pass for a pending job.
    let (_, pending) = json_of(&app, "GET", "/v1/jobs?state=pending", "").await;
    assert_eq!(pending["jobs"].as_array().map(Vec::len), Some(1));
    assert_eq!(pending["jobs"][0]["id"], json!(only_b));
    let (_, blue) = json_of(&app, "GET", "/v1/jobs?tenant=blue&limit=1", "").await;
    assert_eq!(blue["jobs"].as_array().map(Vec::len), Some(1));
    for bad in ["limit=0", "limit=10001", "state=tired", "colour=red", "limit=x"] {
        let (status, answer) = json_of(&app, "GET", &format!("/v1/jobs?{bad}"), "").await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("bad_request")), "{bad}");
    }
}

#[tokio::test]
async fn why_is_asked_at_the_acting_owner_and_falls_back() {
    let (a, b) = (Fake::new("a"), Fake::new("b"));
    let id = b.put(Fake::spec("run: y"));
    let record = b.state.lock().expect("state").records[&id].clone();
    a.state.lock().expect("state").records.insert(id, record);
    a.knows("b", Some(router(b)));
    let app = router(a.clone());
    let (_, why) = json_of(&app, "GET", &format!("/v1/jobs/{id}/why"), "").await;
    assert_eq!(why["asked"], "b", "b is its only home");
    a.knows("b", None);
    let (status, why) = json_of(&app, "GET", &format!("/v1/jobs/{id}/why"), "").await;
    assert_eq!((status, &why["asked"]), (200, &json!("a")));
}

#[tokio::test]
async fn the_mesh_is_shown() {
    let a = Fake::new("a");
    a.knows("b", None);
    let app = router(a.clone());
    let (_, list) = json_of(&app, "GET", "/v1/clusters", "").await;
    assert_eq!(list["clusters"][0]["gpus"]["A100-80G"], json!({"total": 8, "free": 3, "reserved": 0}));
    let (status, report) = json_of(&app, "GET", "/v1/clusters/b?report=true", "").await;
    assert_eq!(
        (status, &report["cluster_id"], &report["gpu_busy"]),
        (200, &json!("b"), &json!(5)),
        "{report}"
    );
    let (status, _) = json_of(&app, "GET", "/v1/clusters/nobody", "").await;
    assert_eq!(status, 404);
    let (_, links) = json_of(&app, "GET", "/v1/links", "").await;
    assert_eq!((&links["links"][0]["from"], &links["links"][0]["rtt_ms"]), (&json!("b"), &json!(1.5)));
    let (_, view) = json_of(&app, "GET", "/v1/view", "").await;
    assert_eq!(view["pools"][0]["gpus"]["A100-80G"]["total"], 16, "{view}");
    assert_eq!(view["pools"][0]["children"][1]["children"][0]["name"], "b");
    let (_, peer) = json_of(&app, "GET", "/v1/peer", "").await;
    assert_eq!(peer["members"], json!({"alive": 2}));
    let (_, inspect) = json_of(&app, "GET", "/v1/local/inspect", "").await;
    assert_eq!(inspect["core"]["counters"]["commits"], 7);
    let (status, text) = send(&app, "GET", "/metrics", "").await;
    let text = String::from_utf8(text).expect("text");
    assert_eq!(status, 200);
    for line in [
        "starling_fake 1",
        "starling_core_commits_total 7",
        "starling_members{liveness=\"alive\"} 2",
        "starling_api_requests_total{route=\"/v1/clusters/{name}\",status=\"404\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"), "as OpenMetrics ends");
}

#[tokio::test]
async fn members_tokens_and_drain() {
    let (a, b) = (Fake::new("a"), Fake::new("b"));
    a.knows("b", Some(router(b.clone())));
    let app = router(a.clone());
    let (status, token) = json_of(&app, "POST", "/v1/tokens", r#"{"ttl": "5m"}"#).await;
    assert_eq!((status, &token["token"]), (201, &json!("token-300000")));
    for bad in [r#"{"ttl": "2h"}"#, r#"{"ttl": "0s"}"#, r#"{"tll": "5m"}"#, "nonsense"] {
        assert_eq!(json_of(&app, "POST", "/v1/tokens", bad).await.0, 400, "{bad}");
    }
    // What is said in a body would be ignored: another cluster would be drained than the one that is meant.
    for (method, uri) in [("POST", "/v1/drain"), ("POST", "/v1/undrain"), ("DELETE", "/v1/members/b")] {
        assert_eq!(json_of(&app, method, uri, r#"{"cluster":"b"}"#).await.0, 400, "{uri}");
    }
    assert!(!a.state.lock().expect("state").draining && !b.state.lock().expect("state").draining);
    let (status, _) = json_of(&app, "POST", "/v1/drain?cluster=b", "").await;
    assert_eq!(status, 200);
    assert!(b.state.lock().expect("state").draining && !a.state.lock().expect("state").draining);
    assert_eq!(json_of(&app, "POST", "/v1/undrain?cluster=b", "").await.0, 200);
    assert!(!b.state.lock().expect("state").draining);
    assert_eq!(json_of(&app, "POST", "/v1/drain?cluster=zz", "").await.0, 404);
    let (status, answer) = json_of(&app, "DELETE", "/v1/members/b", "").await;
    assert_eq!((status, &answer["existed"]), (200, &json!(false)));
    assert!(a.state.lock().expect("state").removed.contains(&name("b")));
    let (status, answer) = json_of(&app, "PUT", "/v1/members", "").await;
    assert_eq!((status, &answer["error"]["code"]), (405, &json!("method_not_allowed")));
    let (status, answer) = json_of(&app, "GET", "/nothing", "").await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("no_route")));
}

/// The first form of this check looked for the number where it is not, and let everybody go.
#[tokio::test]
async fn a_member_that_holds_records_is_not_removed_by_mistake() {
    let (a, b) = (Fake::new("a"), Fake::new("b"));
    a.knows("b", Some(router(b.clone())));
    for other in ["c", "d"] {
        a.knows(other, Some(router(Fake::new(other))));
    }
    b.put(Fake::spec("run: x"));
    let app = router(a.clone());
    let (status, answer) = json_of(&app, "DELETE", "/v1/members/b", "").await;
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("still_home")), "{answer}");
    assert!(answer["error"]["message"].as_str().is_some_and(|m| m.contains("holds 1 records")), "{answer}");
    assert!(!a.state.lock().expect("state").removed.contains(&name("b")));
    assert_eq!(json_of(&app, "DELETE", "/v1/members/c", "").await.0, 200, "it holds none");
    assert_eq!(json_of(&app, "DELETE", "/v1/members/b?force=true", "").await.0, 200);
    // It looks alive and does not answer: that is no leave to go.
    let lone = Fake::new("a");
    for other in ["b", "c", "d"] {
        lone.knows(other, None);
    }
    let (status, answer) = json_of(&router(lone), "DELETE", "/v1/members/b", "").await;
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("refused")), "{answer}");
}

#[tokio::test]
async fn events_stream() {
    use futures::StreamExt;
    use tower::ServiceExt;
    let a = Fake::new("a");
    let id = a.put(Fake::spec("run: y"));
    let request =
        axum::http::Request::get("/v1/events?kind=job.").body(axum::body::Body::empty()).expect("request");
    let response = router(a.clone()).oneshot(request).await.expect("infallible");
    let mut body = response.into_body().into_data_stream();
    let noise = crate::core::api::Event::new("peer.x", None, "no");
    a.events.send(noise).expect("a reader");
    a.place(id, "a");
    let next = tokio::time::timeout(std::time::Duration::from_secs(20), body.next()).await.expect("in time");
    let text = String::from_utf8(next.expect("chunk").expect("bytes").to_vec()).expect("text");
    assert!(text.contains("event: job.changed") && text.contains(&id.to_string()), "{text}");
}

fn claim(n: u16) -> ClaimView {
    let mut job = [0; 20];
    job[..2].copy_from_slice(&n.to_be_bytes());
    ClaimView {
        job: JobId(job),
        owner: name("a"),
        priority: 50,
        gpus: 8,
        granted: false,
        age: Span::secs(n.into()),
        why: "3 of 8 GPUs wanted are free".into(),
        starts_in: None,
    }
}

#[tokio::test]
async fn a_queue_is_told_as_far_as_is_asked_with_how_many_there_are() {
    let (a, b) = (Fake::new("a"), Fake::new("b"));
    b.state.lock().expect("state").queue = (1..=1_003).map(claim).collect();
    a.knows("b", Some(router(b.clone())));
    let app = router(a.clone());
    for (query, claims) in [("", 1_000), ("?limit=2", 2), ("?limit=10000", 1_003)] {
        let (status, queue) = json_of(&app, "GET", &format!("/v1/clusters/b/queue{query}"), "").await;
        assert_eq!((status, queue["claims"].as_array().map(Vec::len)), (200, Some(claims)), "{query}");
        assert_eq!((&queue["total"], &queue["claims"][1]["place"]), (&json!(1_003), &json!(2)), "{query}");
    }
    let looks: Vec<Look> = std::mem::take(&mut b.state.lock().expect("state").looks);
    let asked: Vec<usize> = looks.iter().filter(|l| l.reasons).map(|l| l.claims).collect();
    assert_eq!(asked, [1_000, 2, 10_000], "no more is looked at than is told");
    for bad in ["limit=0", "limit=10001", "limit=x", "claims=1"] {
        let (status, answer) = json_of(&app, "GET", &format!("/v1/clusters/b/queue?{bad}"), "").await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("bad_request")), "{bad}");
    }
    let app = router(b);
    let (_, inspect) = json_of(&app, "GET", "/v1/local/inspect?claims=3&reasons=false", "").await;
    assert_eq!(inspect["core"]["queue"].as_array().map(Vec::len), Some(3));
    assert_eq!(
        (&inspect["core"]["queue_total"], inspect["core"]["queue"][0].get("why")),
        (&json!(1_003), None)
    );
    assert_eq!(json_of(&app, "GET", "/v1/local/inspect?claims=10001", "").await.0, 400);
}

/// One of the version before does not read what is asked, and tells all without their number.
#[tokio::test]
async fn a_queue_of_an_older_version_is_cut() {
    let a = Fake::new("a");
    let core = InspectReport { queue: (1..=5).map(claim).collect(), ..InspectReport::default() };
    let old = move || async move { axum::Json(InspectDocument { peer: name("b"), core }) };
    a.knows("b", Some(axum::Router::new().route("/v1/local/inspect", axum::routing::get(old))));
    let (status, queue) = json_of(&router(a), "GET", "/v1/clusters/b/queue?limit=2", "").await;
    assert_eq!((status, queue["claims"].as_array().map(Vec::len)), (200, Some(2)), "{queue}");
    assert_eq!(queue["total"], 5);
}

#[tokio::test]
async fn a_peer_that_stays_silent_is_no_conflict() {
    let a = Fake::new("a");
    let never = axum::routing::get(std::future::pending::<String>);
    a.knows("b", Some(axum::Router::new().route("/v1/local/inspect", never)));
    let (status, answer) = json_of(&router(a), "GET", "/v1/clusters/b/queue", "").await;
    assert_eq!((status, &answer["error"]["code"]), (504, &json!("timeout")), "{answer}");
    assert!(
        answer["error"]["message"].as_str().is_some_and(|m| m.contains("b did not answer within")),
        "{answer}"
    );
}

/// What is asked many times a second leaves the queue alone.
#[tokio::test]
async fn health_metrics_and_facts_do_not_look_into_the_queue() {
    let a = Fake::new("a");
    a.state.lock().expect("state").queue = (1..=3).map(claim).collect();
    let app = router(a.clone());
    assert_eq!(send(&app, "GET", "/healthz", "").await.0, 200);
    let text = String::from_utf8(send(&app, "GET", "/metrics", "").await.1).expect("text");
    assert!(
        text.contains("\nstarling_claims 3\n") && text.contains("\nstarling_claim_oldest_seconds 3"),
        "{text}"
    );
    let looks = std::mem::take(&mut a.state.lock().expect("state").looks);
    assert_eq!(looks, [Look::default(); 2]);
}
