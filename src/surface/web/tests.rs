//! Tests of the page on a peer that is a fake.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use tower::ServiceExt;

use super::*;
use crate::surface::fake::Fake;
use std::sync::Arc;

pub(super) async fn get(fake: &Arc<Fake>, path: &str) -> (StatusCode, HeaderMap, String) {
    let router = crate::surface::router(fake.clone());
    let request = Request::get(path).body(Body::empty()).expect("a request");
    let response = router.oneshot(request).await.expect("infallible");
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 22).await.expect("a body");
    (parts.status, parts.headers, String::from_utf8(bytes.to_vec()).expect("UTF-8"))
}

#[tokio::test]
async fn every_view_is_whole_and_sealed() {
    let fake = Fake::new("a");
    fake.knows("b", None);
    // No such name is taken by a submit; a record of a hostile peer may hold one.
    let mut spec = Fake::spec("run: [\"true\"]\n");
    spec.name = "<script>alert(1)</script>".into();
    let job = fake.put(spec);
    let id = job.to_string();
    fake.place(job, "a");
    for path in VIEWS.iter().map(|(path, _)| (*path).to_owned()).chain([
        format!("/jobs/{id}"),
        format!("/jobs/{}", &id[..6]),
        "/clusters/a".into(),
        "/clusters/b".into(),
        "/jobs?q=script&state=running&sort=-gpus&page=7".into(),
        "/links?show=loss".into(),
        "/events?kind=job.&q=x".into(),
    ]) {
        let (status, headers, text) = get(&fake, &path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
        assert_eq!(headers["content-security-policy"], POLICY, "{path}");
        assert!(text.contains("</main>") && text.contains("aria-current=page"), "{path}");
        assert!(!text.contains("<script>"), "{path}: markup from a job's name");
        assert!(
            !text.contains("style=") && !text.contains("onclick"),
            "{path}: inline things are forbidden by the policy"
        );
        let own = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!own.contains("http://") && !own.contains("https://"), "{path}: something from elsewhere");
        assert!(text.len() < 300_000, "{path}: {} bytes", text.len());
    }
}

#[tokio::test]
async fn what_is_not_there_is_a_page_with_its_status() {
    let fake = Fake::new("a");
    for (path, want) in [
        ("/jobs/zzzzzz", StatusCode::NOT_FOUND),
        ("/jobs/!!", StatusCode::BAD_REQUEST),
        ("/clusters/nowhere", StatusCode::NOT_FOUND),
        ("/links?show=colour", StatusCode::BAD_REQUEST),
        ("/jobs?nothing=1", StatusCode::BAD_REQUEST),
    ] {
        let (status, headers, text) = get(&fake, path).await;
        assert_eq!(status, want, "{path}");
        assert!(headers["content-type"].to_str().expect("text").starts_with("text/html"), "{path}");
        assert!(text.contains("Cannot show this"), "{path}: {text}");
    }
    let (status, headers, _) = get(&fake, "/nothing").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(headers["content-type"].to_str().expect("text").starts_with("application/json"));
}

#[tokio::test]
async fn ten_thousand_jobs_are_a_light_page() {
    let fake = Fake::new("a");
    for n in 0..10_000 {
        fake.put(Fake::spec(&format!("name: job-{n}\ntenant: t{}\nrun: [\"true\"]\n", n % 40)));
    }
    let (status, _, text) = get(&fake, "/jobs").await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.len() < 100_000, "{} bytes", text.len());
    assert_eq!(text.matches("<tr data-key=").count(), 50);
    assert!(text.contains("10\u{202f}000"), "the count of all");
    let (_, _, text) = get(&fake, "/jobs?q=job-9999").await;
    assert_eq!(text.matches("<tr data-key=").count(), 1);
    let (_, _, text) = get(&fake, "/jobs?page=199").await;
    assert_eq!(text.matches("<tr data-key=").count(), 50);
    assert!(!text.contains("rel=next") && text.contains("rel=prev"));
}
