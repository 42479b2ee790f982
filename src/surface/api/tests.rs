//! Jobs through the router.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::routes::ROUTES;
use super::{conforms, openapi, router};
use crate::base::{Epoch, JobId};
use crate::core::api::{AttemptKey, AttemptView, ClientError};
use crate::model::record::Change;
use crate::surface::fake::Fake;

pub(super) async fn send(
    router: &Router,
    method: &str,
    uri: &str,
    body: impl Into<Body>,
) -> (StatusCode, Vec<u8>) {
    let request = Request::builder().method(method).uri(uri).body(body.into()).expect("request");
    let answer = async {
        let response = router.clone().oneshot(request).await.expect("infallible");
        let status = response.status();
        (status, axum::body::to_bytes(response.into_body(), 1 << 24).await.expect("body").to_vec())
    };
    tokio::time::timeout(Duration::from_secs(20), answer).await.expect("in time")
}

pub(super) async fn json_of(router: &Router, method: &str, uri: &str, body: &str) -> (u16, Value) {
    let (status, bytes) = send(router, method, uri, body.to_owned()).await;
    let answer = serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{uri}: {e}"));
    as_documented(method, uri, body, status.as_u16(), &answer);
    (status.as_u16(), answer)
}

/// Whatever these tests ask is in the API's document, and answered as it says.
fn as_documented(method: &str, uri: &str, body: &str, status: u16, answer: &Value) {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(openapi::build);
    if conforms::operation(&DOCUMENT, method, uri).is_none() {
        assert!(matches!(status, 404 | 405), "{method} {uri} gives {status} and is not in the document");
        return;
    }
    conforms::answer(&DOCUMENT, method, uri, status, answer).unwrap_or_else(|e| panic!("{e}\n{answer:#}"));
    let taken = serde_json::from_str(body).ok().filter(|b: &Value| status < 300 && b.is_object());
    if let Some(body) = taken.filter(|b| b.as_object().is_some_and(|map| !map.is_empty())) {
        conforms::request(&DOCUMENT, method, uri, &body).unwrap_or_else(|e| panic!("{e}\n{body:#}"));
    }
}

fn code(value: &Value) -> &str {
    value["error"]["code"].as_str().unwrap_or("no code")
}

const JOB: &str = "name: train\nrun: ./train.sh\nresources: {gpus: 8}\n";

#[tokio::test]
async fn submit_takes_yaml_json_and_an_envelope() {
    let fake = Fake::new("a");
    let app = router(fake.clone());
    let (status, yaml) = json_of(&app, "POST", "/v1/jobs", JOB).await;
    assert_eq!((status, &yaml["existed"], &yaml["homes"]), (201, &json!(false), &json!(["a"])), "{yaml}");
    assert!(yaml["hints"][0].as_str().is_some_and(|h| h.starts_with("starling logs ")), "{yaml}");
    let body = json!({"spec": {"run": "true"}, "key": "k1"}).to_string();
    let (_, first) = json_of(&app, "POST", "/v1/jobs", &body).await;
    let (status, again) = json_of(&app, "POST", "/v1/jobs", &body).await;
    assert_eq!((status, &again["existed"], &again["id"]), (201, &json!(true), &first["id"]));
    let other = json!({"spec": "run: 'false'", "key": "k1"}).to_string();
    let (status, refused) = json_of(&app, "POST", "/v1/jobs", &other).await;
    assert_eq!((status, code(&refused)), (409, "key_reused"));
    assert_eq!(fake.state.lock().expect("state").records.len(), 2);
}

#[tokio::test]
async fn bad_submissions_name_what_is_wrong_and_store_nothing() {
    let fake = Fake::new("a");
    let app = router(fake.clone());
    let big = format!("run: \"{}\"", "x".repeat(10 << 20));
    let long = format!("run: \"{}\"", "x".repeat(50 << 10));
    for (body, status, want) in [
        (big.as_str(), 413, "too_large"),
        (long.as_str(), 413, "too_large"),
        ("run: x\nspeed: 9\nnodes: -4", 422, "invalid_spec"),
        ("", 422, "invalid_spec"),
        (r#"{"spec": {"run": "x"}, "kee": "k"}"#, 400, "bad_request"),
        (r#"{"spec": {"run": "x"}, "key": "a b"}"#, 400, "bad_request"),
        (r#"{"spec": {"run": "x"}, "spec": {"run": "y"}, "key": "k"}"#, 400, "bad_request"),
        (r#"{"spec": {"run": "x"}, "key": "k", "key": "l"}"#, 400, "bad_request"),
        (r#"{"spec": {"run": "x", "run": "y"}}"#, 400, "bad_request"),
        (r#"{"spec": {"run": "x", "env": {"A": "1", "A": "2"}}}"#, 400, "bad_request"),
    ] {
        let (got, answer) = json_of(&app, "POST", "/v1/jobs", body).await;
        assert_eq!((got, code(&answer)), (status, want), "{answer}");
        assert!(answer["error"]["hint"].as_str().is_some_and(|h| !h.is_empty()));
    }
    let (_, answer) = json_of(&app, "POST", "/v1/jobs", "run: x\nspeed: 9\nnodes: -4").await;
    assert_eq!(answer["error"]["details"].as_array().map(Vec::len), Some(2), "every mistake: {answer}");
    let (status, bytes) = send(&app, "POST", "/v1/jobs", vec![0xff, 0xfe]).await;
    assert_eq!(status, 400, "{}", String::from_utf8_lossy(&bytes));
    assert!(fake.state.lock().expect("state").records.is_empty());
}

#[tokio::test]
async fn no_body_has_a_name_twice_and_no_request_two_keys() {
    let app = router(Fake::new("a"));
    for (method, path, body) in [
        ("PUT", "/v1/tenants/x", r#"{"gpus": 2, "gpus": 3}"#),
        ("PUT", "/v1/tenants/x", r#"{"keep": {"a": 1, "a": 2}}"#),
        ("POST", "/v1/tenants/x/reclaim", r#"{"cluster": "a", "cluster": "b"}"#),
        ("POST", "/v1/reservations", r#"{"gpus": 1, "for": "1h", "gpus": 2}"#),
        ("POST", "/v1/jobs/abcd/checkpoint", r#"{"epoch": 1, "uri": "a", "uri": "b"}"#),
        ("POST", "/v1/jobs/abcd/move", r#"{"to": "a", "to": "b"}"#),
        ("POST", "/v1/jobs/abcd/confirm-lost", r#"{"epoch": 1, "epoch": 2}"#),
        ("POST", "/v1/silences", r#"{"for": "1h", "for": "2h"}"#),
    ] {
        let (status, answer) = json_of(&app, method, path, body).await;
        assert_eq!((status, code(&answer)), (400, "bad_request"), "{path}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("written twice"), "{path}: {message}");
    }
    for (second, want) in [("one", 201), ("two", 400)] {
        let request =
            Request::post("/v1/jobs").header("idempotency-key", "one").header("idempotency-key", second);
        let response = app.clone().oneshot(request.body(Body::from(JOB)).expect("request")).await;
        assert_eq!(response.expect("infallible").status().as_u16(), want, "{second}");
    }
}

#[tokio::test]
async fn errors_of_the_core_keep_their_meaning() {
    let fake = Fake::new("a");
    let app = router(fake.clone());
    let job = Some(JobId([1; 20]));
    for (error, status, want) in [
        (ClientError::Unknown { answered: 1, needed: 2, job }, 504, "outcome_unknown"),
        (ClientError::DiskFull, 503, "disk_full"),
        (ClientError::NoHomes { alive: 1, needed: 3 }, 503, "no_homes"),
        (ClientError::KeyUndecided("b does not answer".into()), 503, "key_undecided"),
        (ClientError::FitsNowhere { nearest: "a".into(), missing: "8 H100".into() }, 422, "fits_nowhere"),
        (ClientError::TooLarge(70_000), 413, "too_large"),
    ] {
        fake.state.lock().expect("state").fails = Some(error);
        let (got, answer) = json_of(&app, "POST", "/v1/jobs", JOB).await;
        assert_eq!((got, code(&answer)), (status, want), "{answer}");
    }
}

#[tokio::test]
async fn a_dry_run_explains_and_stores_nothing() {
    let fake = Fake::new("a");
    let (status, why) = json_of(&router(fake.clone()), "POST", "/v1/jobs?dry_run=true", JOB).await;
    assert_eq!(status, 200);
    assert_eq!(why["clusters"][0]["queue_place"], 2, "{why}");
    assert!(fake.state.lock().expect("state").records.is_empty());
}

#[tokio::test]
async fn ids_are_found_by_prefix_or_said_to_be_ambiguous() {
    let fake = Fake::new("a");
    let app = router(fake.clone());
    let id = fake.put(Fake::spec(JOB));
    let (status, job) = json_of(&app, "GET", &format!("/v1/jobs/{}", id.short()), "").await;
    assert_eq!((status, &job["id"], &job["spec"]["name"]), (200, &json!(id), &json!("train")));
    let twin = {
        let mut state = fake.state.lock().expect("state");
        let mut n = 1_000;
        // A minted id with the same first 4 characters takes too long to find: 2 would do as well, and so
        // the test looks for a pair that shares them, which about 1,500 ids hold.
        let base = state.records[&id].clone();
        let mut seen = std::collections::BTreeMap::new();
        loop {
            let mut record = base.clone();
            record.birth.sequence = n;
            let other = record.id();
            state.records.insert(other, record);
            if let Some(first) = seen.insert(other.to_string()[..4].to_owned(), other) {
                break (first, other);
            }
            n += 1;
        }
    };
    let (status, answer) = json_of(&app, "GET", &format!("/v1/jobs/{}", &twin.0.to_string()[..4]), "").await;
    assert_eq!((status, code(&answer)), (409, "ambiguous"));
    let details = answer["error"]["details"].to_string();
    assert!(details.contains(&twin.0.to_string()) && details.contains(&twin.1.to_string()), "{details}");
    for (id, status, want) in [
        ("zzzzzzzz", 404, "no_such_job"),
        ("abc", 400, "bad_request"),
        ("a.b.c.d", 400, "bad_request"),
        (&JobId([9; 20]).to_string(), 404, "no_such_job"),
    ] {
        let (got, answer) = json_of(&app, "GET", &format!("/v1/jobs/{id}"), "").await;
        assert_eq!((got, code(&answer)), (status, want), "{id}: {answer}");
    }
}

#[tokio::test]
async fn waiting_ends_with_the_job_or_with_the_time() {
    let fake = Fake::new("a");
    let app = router(fake.clone());
    let id = fake.put(Fake::spec(JOB));
    let (status, answer) = json_of(&app, "GET", &format!("/v1/jobs/{id}/wait?timeout=10ms"), "").await;
    assert_eq!((status, &answer["done"]), (200, &json!(false)));
    fake.place(id, "a");
    let (app, fake) = (app.clone(), fake.clone());
    let waiting =
        tokio::spawn(
            async move { json_of(&app, "GET", &format!("/v1/jobs/{id}/wait?timeout=60s"), "").await },
        );
    while fake.events.receiver_count() == 0 {
        tokio::task::yield_now().await;
    }
    fake.close(id, 0);
    let (_, answer) = waiting.await.expect("no panic");
    assert_eq!((&answer["done"], &answer["job"]["state"]), (&json!(true), &json!("succeeded")));
}

#[tokio::test]
async fn cancel_and_checkpoint_meet_the_record() {
    let fake = Fake::new("a");
    let app = router(fake.clone());
    let id = fake.put(Fake::spec(JOB));
    fake.place(id, "a");
    let publish = |epoch: u64| json!({"epoch": epoch, "uri": "s3://b/c"}).to_string();
    let (status, _) = json_of(&app, "POST", &format!("/v1/jobs/{id}/checkpoint"), &publish(1)).await;
    assert_eq!(status, 200);
    fake.change(
        id,
        Change::Free {
            epoch: Epoch(1),
            contact: crate::base::ContactId([3; 20]),
            incarnation: 1,
            at: crate::base::WallTime(5),
        },
    );
    fake.place(id, "a");
    let (status, _) = json_of(&app, "POST", &format!("/v1/jobs/{id}/checkpoint"), &publish(2)).await;
    assert_eq!(status, 200);
    let (status, answer) = json_of(&app, "POST", &format!("/v1/jobs/{id}/checkpoint"), &publish(1)).await;
    assert_eq!((status, code(&answer)), (409, "refused"), "an older epoch: {answer}");
    let (status, answer) = json_of(&app, "POST", &format!("/v1/jobs/{id}/cancel"), "").await;
    assert_eq!((status, &answer["state"]), (200, &json!("running")), "it still has to stop");
    fake.close(id, 0);
    let (status, answer) = json_of(&app, "POST", &format!("/v1/jobs/{id}/cancel"), "").await;
    assert_eq!((status, code(&answer)), (409, "refused"));
}

/// What is not there, or not so, is named as what it is, with where to look.
#[tokio::test]
async fn what_is_not_there_is_named_by_its_kind() {
    let fake = Fake::new("a");
    let app = router(fake.clone());
    let id = fake.put(Fake::spec("run: x\nnodes: 2\n"));
    fake.place(id, "a");
    let nothing = JobId([9; 20]);
    for (method, path, body, status, want, parts) in [
        ("GET", format!("/v1/jobs/{id}/logs?rank=7"), "", 404, "not_found", ["rank 7", "ranks 0 to 1"]),
        ("POST", format!("/v1/jobs/{id}/release"), "", 409, "refused", ["not held", "running"]),
        (
            "GET",
            "/v1/reservations/zzzz".into(),
            "",
            404,
            "no_such_reservation",
            ["no reservation zzzz", "starling reservations"],
        ),
        (
            "GET",
            format!("/v1/reservations/{nothing}"),
            "",
            404,
            "no_such_reservation",
            ["no reservation", "starling reservations"],
        ),
        (
            "GET",
            format!("/v1/reservations/{id}"),
            "",
            404,
            "no_such_reservation",
            ["that is a job", "starling reservations"],
        ),
        ("DELETE", "/v1/reservations/z!".into(), "", 400, "bad_request", ["reservation id", ""]),
        (
            "GET",
            "/v1/incidents/zzzz".into(),
            "",
            404,
            "no_such_incident",
            ["no incident zzzz", "starling incidents"],
        ),
        (
            "POST",
            "/v1/silences".into(),
            r#"{"what": "nokind", "for": "1h"}"#,
            404,
            "no_such_incident",
            ["nokind", "attempts-lost"],
        ),
        (
            "POST",
            "/v1/silences".into(),
            r#"{"what": "no-kind", "for": "1h"}"#,
            400,
            "bad_request",
            ["what: ", "attempts-lost"],
        ),
        (
            "POST",
            "/v1/silences".into(),
            r#"{"what": "nokind:x", "for": "1h"}"#,
            400,
            "bad_request",
            ["no kind", "attempts-lost"],
        ),
    ] {
        let (got, answer) = json_of(&app, method, &path, body).await;
        assert_eq!((got, code(&answer)), (status, want), "{path}: {answer}");
        let said = format!("{} {}", answer["error"]["message"], answer["error"]["hint"]);
        assert!(parts.iter().all(|part| said.contains(part)), "{path}: {said}");
    }
    // The last rank is there, as far as the record knows; so it is asked for, and this peer has none of its logs.
    let (status, answer) = json_of(&app, "GET", &format!("/v1/jobs/{id}/logs?rank=1"), "").await;
    assert!(
        status == 404 && answer["error"]["message"].as_str().is_some_and(|m| m.contains("logs of attempt")),
        "{answer}"
    );
    fake.close(id, 0);
    let (status, answer) = json_of(&app, "POST", &format!("/v1/jobs/{id}/release"), "").await;
    assert_eq!((status, code(&answer)), (409, "refused"), "{answer}");
    assert!(
        answer["error"]["message"].as_str().is_some_and(|m| m.contains("ended as succeeded")),
        "{answer}"
    );
}

fn attempt(job: JobId, phase: &str) -> AttemptView {
    AttemptView {
        job,
        epoch: Epoch(1),
        name: "train".into(),
        tenant: "default".into(),
        gpus: 8,
        phase: phase.into(),
        age: crate::base::Span::ZERO,
        staging: None,
    }
}

#[tokio::test]
async fn logs_follow_until_the_attempt_ends_and_are_there_afterwards() {
    use futures::StreamExt;
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("rank-0.out");
    std::fs::write(&file, "one\n").expect("write");
    let (b, a) = (Fake::new("b"), Fake::new("a"));
    a.knows("b", Some(router(b.clone())));
    let id = a.put(Fake::spec(JOB));
    a.place(id, "b");
    let key = AttemptKey { job: id, epoch: Epoch(1) };
    b.logs.lock().expect("logs").insert(key, vec![file.clone()]);
    b.state.lock().expect("state").attempts = vec![attempt(id, "running")];
    let app = router(a.clone());
    let request =
        Request::get(format!("/v1/jobs/{id}/logs?follow=true")).body(Body::empty()).expect("request");
    let response = app.clone().oneshot(request).await.expect("infallible");
    assert_eq!(response.status(), 200);
    let mut body = response.into_body().into_data_stream();
    let next = tokio::time::timeout(Duration::from_secs(20), body.next()).await.expect("in time");
    assert_eq!(&next.expect("a chunk").expect("bytes")[..], b"one\n");
    std::fs::write(&file, "one\ntwo\n").expect("write");
    b.state.lock().expect("state").attempts.clear();
    let rest =
        tokio::time::timeout(Duration::from_secs(20), body.collect::<Vec<_>>()).await.expect("it ends");
    let rest: Vec<u8> = rest.into_iter().flat_map(|c| c.expect("bytes")).collect();
    assert_eq!(rest, b"two\n");
    a.close(id, 0);
    let (status, past) = send(&app, "GET", &format!("/v1/jobs/{id}/logs?epoch=1&tail=1"), "").await;
    assert_eq!((status, past), (StatusCode::OK, b"two\n".to_vec()));
    let (status, answer) = json_of(&app, "GET", &format!("/v1/jobs/{id}/logs?epoch=7"), "").await;
    assert_eq!((status, code(&answer)), (404, "not_found"));
    let (status, answer) = json_of(&app, "GET", &format!("/v1/jobs/{id}/logs?rank=x"), "").await;
    assert_eq!((status, code(&answer)), (400, "bad_request"));
}

#[tokio::test]
async fn every_route_is_in_the_document_and_the_reverse() {
    let app: Router = router(Fake::new("a") as Arc<dyn crate::runtime::PeerHandle>);
    let (_, document) = json_of(&app, "GET", "/v1/openapi.json", "").await;
    let mut listed: Vec<(String, String)> = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            listed.push((path.clone(), method.to_ascii_uppercase()));
        }
    }
    let mut routed: Vec<_> = ROUTES.iter().map(|r| (r.path.to_owned(), r.method.to_owned())).collect();
    routed.sort();
    listed.sort();
    assert_eq!(listed, routed);
    let mut ids: Vec<String> = document["paths"]
        .as_object()
        .into_iter()
        .flatten()
        .flat_map(|(_, m)| m.as_object().into_iter().flatten())
        .map(|(_, o)| o["operationId"].to_string())
        .collect();
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count, "operation ids are unique");
    for (path, method) in listed {
        let uri = path.replace("{id}", "zzzz").replace("{name}", "nobody");
        let (status, bytes) = send(&app, if method == "GET" { "HEAD" } else { &method }, &uri, "").await;
        let no_route = serde_json::from_slice::<Value>(&bytes).is_ok_and(|v| code(&v) == "no_route");
        assert!(status != 405 && !no_route, "{method} {path}: {status}");
    }
    let page = include_str!("../../../docs/reference/api.md");
    for route in ROUTES {
        assert!(
            page.contains(&format!("`{} {}`", route.method, route.path)),
            "api.md lacks {} {}",
            route.method,
            route.path
        );
    }
}
