//! The OpenAPI document by itself. That answers are as it says, every test of the router looks at.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::routes::ROUTES;
use super::shapes::{ERRORS, SHAPES};
use super::{conforms, openapi};
use crate::base::{JobId, PeerName};
use crate::core::api::ClientError;
use crate::runtime::CallError;

/// Every `$ref` below a value.
fn references<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            out.extend(map.get("$ref").and_then(Value::as_str));
            map.values().for_each(|v| references(v, out));
        }
        Value::Array(list) => list.iter().for_each(|v| references(v, out)),
        _ => {}
    }
}

#[test]
fn every_operation_says_what_it_takes_and_gives() {
    let routes: Vec<_> = ROUTES.iter().map(|r| (r.method, r.path)).collect();
    let shapes: Vec<_> = SHAPES.iter().map(|s| (s.method, s.path)).collect();
    assert_eq!(routes, shapes);
    let document = openapi::build();
    for (route, shape) in ROUTES.iter().zip(SHAPES) {
        let operation = &document["paths"][route.path][route.method.to_ascii_lowercase()];
        let good = &operation["responses"][shape.gives[0].0.to_string()];
        let schema = &good["content"][route.answers]["schema"];
        assert!(schema.is_object(), "{} {}: {good}", route.method, route.path);
        assert_eq!(operation["requestBody"].is_object(), shape.body.is_some(), "{}", route.path);
        for status in shape.errors() {
            assert!(ERRORS.iter().any(|(s, ..)| *s == status), "{}: {status} has no name", route.path);
        }
    }
}

/// What is referred to is there, and what is there is referred to.
#[test]
fn every_reference_leads_somewhere() {
    let document = openapi::build();
    let mut to = Vec::new();
    references(&document, &mut to);
    assert!(to.len() > 200, "only {}", to.len());
    for to in &to {
        let pointer = to.strip_prefix('#').expect("in the document");
        assert!(document.pointer(pointer).is_some(), "{to}");
    }
    let used: BTreeSet<&str> = to.into_iter().collect();
    let named = document["components"]["schemas"].as_object().expect("schemas");
    assert!(named.len() > 60, "only {}", named.len());
    for name in named.keys() {
        let path = format!("#/components/schemas/{name}");
        assert!(used.contains(path.as_str()), "nothing refers to {name}");
        assert!(!name.ends_with(|c: char| c.is_ascii_digit()), "{name}: two types have one name");
    }
}

/// Codes are documented under their statuses, in the document and on the page of the API.
#[test]
fn every_code_is_listed() {
    let page = include_str!("../../../docs/reference/api.md");
    for (status, _, codes) in ERRORS {
        for code in *codes {
            assert!(page.contains(&format!("`{code}`")), "api.md lacks {code} ({status})");
        }
    }
    let (job, peer) = (JobId([1; 20]), PeerName::new("a").expect("a name"));
    let core = [
        ClientError::NoSuchJob(job),
        ClientError::FitsNowhere { nearest: "a".into(), missing: "8 H100".into() },
        ClientError::Unknown { answered: 1, needed: 2, job: None },
        ClientError::DiskFull,
        ClientError::TooMany(1),
        ClientError::TooLarge(1),
        ClientError::NoHomes { alive: 1, needed: 3 },
        ClientError::GroupsFitNowhere("no".into()),
        ClientError::OverQuota("no".into()),
        ClientError::NoReservation("no".into()),
        ClientError::NoSuchTenant("t".into()),
        ClientError::KeyUndecided("no".into()),
        ClientError::KeyReused(job),
    ];
    let core = core.into_iter().map(super::ApiError::Core);
    let call = [
        CallError::NoSuchPeer(peer.clone()),
        CallError::Unreachable(peer.clone(), peer.clone()),
        CallError::Stopping,
    ];
    let own = [
        super::ApiError::BadRequest("no".into()),
        super::ApiError::NoRoute("/".into()),
        super::ApiError::Unauthorized,
        super::ApiError::Forbidden("no".into()),
        super::ApiError::NotFound("a".into()),
        super::ApiError::StillHome(peer, 1),
        super::ApiError::Overloaded,
        super::ApiError::TooSlow(1),
        super::ApiError::Internal("x"),
        super::ApiError::InvalidSpec(Vec::new()),
        super::ApiError::TooLarge(1),
    ];
    for error in core.chain(call.into_iter().map(super::ApiError::Call)).chain(own) {
        let code = error.code();
        let status = axum::response::IntoResponse::into_response(error).status().as_u16();
        let listed = ERRORS.iter().find(|(s, ..)| *s == status).map(|(_, _, codes)| *codes);
        assert!(listed.is_some_and(|codes| codes.contains(&code.as_str())), "{status} {code}");
    }
}

/// The check that the other tests lean on finds what it is there to find.
#[test]
fn the_check_sees_what_is_wrong() {
    let document = openapi::build();
    let good = json!({ "clusters": [], "isolated": false });
    let check = |value: &Value| conforms::answer(&document, "GET", "/v1/clusters", 200, value);
    assert_eq!(check(&good), Ok(()));
    for (wrong, why) in [
        (json!({ "clusters": [] }), "isolated is missing"),
        (json!({ "clusters": [], "isolated": 0 }), "not of type boolean"),
        (json!({ "clusters": [{}], "isolated": false }), "it.clusters[0]: "),
        (json!({ "clusters": [], "isolated": false, "more": 1 }), "it.more is not in the document"),
    ] {
        let error = check(&wrong).expect_err("wrong");
        assert!(error.contains(why), "{error}");
    }
    let error = json!({ "error": { "code": "a", "message": "b", "hint": "c" } });
    assert_eq!(conforms::answer(&document, "GET", "/v1/clusters", 401, &error), Ok(()));
    assert!(conforms::answer(&document, "GET", "/v1/clusters", 418, &error).is_err());
    let ended = json!({ "kind": "exited", "value": "0" });
    let outcome = &document["components"]["schemas"]["Outcome"];
    assert!(conforms::value(&document, outcome, &ended).is_err());
    assert_eq!(conforms::value(&document, outcome, &json!({ "kind": "exited", "value": 0 })), Ok(()));
    assert_eq!(conforms::value(&document, outcome, &json!({ "kind": "lost" })), Ok(()));
    let job = json!({ "run": "x", "nodes": "two" });
    assert!(conforms::request(&document, "POST", "/v1/jobs", &job).is_err());
}
