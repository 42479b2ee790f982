//! Telling people, over real sockets and programs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use tokio::net::TcpListener;

use super::*;
use crate::base::Span;
use crate::model::config::{NotifierConfig, Through};

type Taken = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;

fn notifier(through: Through) -> NotifierConfig {
    NotifierConfig {
        name: "ops".into(),
        through,
        severity: Severity::Warning,
        kinds: BTreeSet::new(),
        timeout: Span::secs(5),
    }
}

fn webhook(url: String, ca: Option<PathBuf>) -> NotifierConfig {
    let headers = BTreeMap::from([("Authorization".to_owned(), "Bearer x".to_owned())]);
    notifier(Through::Webhook { url, headers, ca })
}

/// A router that takes at `/take`, refuses at `/refuse` and is silent at `/silent`.
fn receiver() -> (axum::Router, Taken) {
    let taken = Taken::default();
    let into = taken.clone();
    let take = move |headers: HeaderMap, body: Bytes| async move {
        into.lock().expect("taken").push((headers, body));
    };
    let refuse = || async { (StatusCode::SERVICE_UNAVAILABLE, "come back\u{1b}later") };
    let silent = || std::future::pending::<()>();
    let router = axum::Router::new()
        .route("/take", axum::routing::post(take))
        .route("/refuse", axum::routing::post(refuse))
        .route("/silent", axum::routing::post(silent));
    (router, taken)
}

async fn serve(router: axum::Router, tls: Option<Arc<rustls::ServerConfig>>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (router, tls) = (router.clone(), tls.clone());
            tokio::spawn(async move {
                let service = hyper_util::service::TowerToHyperService::new(router);
                let builder = hyper::server::conn::http1::Builder::new();
                match tls {
                    None => {
                        drop(builder.serve_connection(hyper_util::rt::TokioIo::new(stream), service).await)
                    }
                    Some(tls) => {
                        if let Ok(stream) = tokio_rustls::TlsAcceptor::from(tls).accept(stream).await {
                            let io = hyper_util::rt::TokioIo::new(stream);
                            drop(builder.serve_connection(io, service).await);
                        }
                    }
                }
            });
        }
    });
    at
}

async fn tell(notifier: &NotifierConfig) -> Result<(), String> {
    notify::tell(notifier, Bytes::from_static(b"{\"version\":1}"), "id/ops/1").await
}

#[tokio::test]
async fn a_webhook_is_taken_refused_or_late() {
    let (router, taken) = receiver();
    let at = serve(router, None).await;
    assert_eq!(tell(&webhook(format!("http://{at}/take"), None)).await, Ok(()));
    {
        let taken = taken.lock().expect("taken");
        let (headers, body) = &taken[0];
        assert_eq!(&body[..], b"{\"version\":1}");
        assert_eq!(
            (&headers["content-type"], &headers["authorization"]),
            (&"application/json".parse().expect("a value"), &"Bearer x".parse().expect("a value"))
        );
        assert_eq!(headers["x-starling-key"], "id/ops/1");
    }
    let refused = tell(&webhook(format!("http://{at}/refuse"), None)).await.expect_err("refused");
    assert!(refused.contains("503") && refused.contains("come back later"), "{refused:?}");
    let late = NotifierConfig { timeout: Span::millis(100), ..webhook(format!("http://{at}/silent"), None) };
    assert!(tell(&late).await.expect_err("late").contains("not taken within"));
    // Nobody listens at a port that was just given back.
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    assert!(
        tell(&webhook(format!("http://{free}/take?key=secret"), None))
            .await
            .is_err_and(|e| !e.contains("secret"))
    );
}

#[tokio::test]
async fn https_trusts_whom_it_is_told_to_trust_and_nobody_else() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate");
    let folder = tempfile::tempdir().expect("a folder");
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, made.cert.pem()).expect("written");
    let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a configuration");
    let (router, taken) = receiver();
    let port = serve(router, Some(Arc::new(tls))).await.port();
    let url = format!("https://localhost:{port}/take");
    assert_eq!(tell(&webhook(url.clone(), Some(ca.clone()))).await, Ok(()));
    assert_eq!(taken.lock().expect("taken").len(), 1);
    // Another name than the certificate's, and a certificate that nobody of the trusted ones signed.
    let other = webhook(format!("https://127.0.0.1:{port}/take"), Some(ca.clone()));
    assert!(tell(&other).await.is_err());
    let stranger = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate");
    std::fs::write(&ca, stranger.cert.pem()).expect("written");
    assert!(tell(&webhook(url, Some(ca))).await.is_err());
    assert_eq!(taken.lock().expect("taken").len(), 1, "nothing was sent to a stranger");
}

#[tokio::test]
async fn a_command_reads_the_notice_and_says_whether_it_took_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("said");
    let shell = |line: String| notifier(Through::Command { run: vec!["/bin/sh".into(), "-c".into(), line] });
    assert_eq!(tell(&shell(format!("cat > {}", file.display()))).await, Ok(()));
    assert_eq!(std::fs::read(&file).expect("a file"), b"{\"version\":1}");
    assert!(tell(&shell("exit 3".into())).await.expect_err("refused").contains("exit status: 3"));
    let late = NotifierConfig { timeout: Span::millis(100), ..shell("exec sleep 600".into()) };
    assert!(tell(&late).await.is_err());
    // What it started goes with it.
    let mark = folder.path().join("child");
    let line = format!("sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait", mark.display());
    let late = NotifierConfig { timeout: Span::millis(500), ..shell(line) };
    assert!(tell(&late).await.is_err());
    let child: i32 = std::fs::read_to_string(&mark).expect("it began").trim().parse().expect("a number");
    let lives = || crate::backends::local::processes::read(child).is_some_and(|p| !p.zombie);
    let begun = tokio::time::Instant::now();
    while lives() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "the child outlives its notifier");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    // Arguments are arguments: nothing is read as a shell's.
    let plain = Through::Command { run: vec!["/bin/echo".into(), "$(exit 1); `exit 1`".into()] };
    assert_eq!(tell(&notifier(plain)).await, Ok(()));
    assert!(tell(&notifier(Through::Command { run: vec!["/nowhere/x".into()] })).await.is_err());
}

#[tokio::test]
async fn a_list_over_many_lost_clusters_comes_in_time_and_says_who_was_not_heard() {
    let fake = crate::surface::fake::Fake::new("alpha");
    let hangs =
        axum::Router::new().route("/v1/local/touched", axum::routing::get(std::future::pending::<()>));
    // More than are asked at once: one round of them after the other.
    let silent: Vec<String> = (0..60).map(|n| format!("p{n:02}")).collect();
    silent.iter().for_each(|name| fake.knows(name, Some(hangs.clone())));
    let api = Api::new(fake, crate::surface::api::Watched::default());
    let lost = |n: u32| crate::core::alerts::Seen {
        alert: crate::model::alert::Alert {
            kind: AlertKind::Cluster,
            subject: format!("lost-{n}"),
            severity: Severity::Critical,
            text: "away".into(),
        },
        under: None,
    };
    let seen: Vec<_> = (0..40).map(lost).collect();
    let rules = AlertsConfig::default();
    for at in [1, 10_000] {
        let now = crate::core::Now { mono: crate::base::Instant(at * 1_000_000), wall: WallTime(at * 1_000) };
        api.desk.held().book.step(now, &seen, false, &rules);
    }
    let begun = Instant::now();
    let list = list(&api, WallTime(10_000_000)).await;
    let took = begun.elapsed();
    assert!(took <= jobs::ANSWER_WITHIN + std::time::Duration::from_secs(1), "{took:?}");
    assert_eq!(list.open.len(), 40, "each is there");
    for incident in &list.open {
        let jobs = incident.jobs.as_ref().expect("jobs");
        assert!(silent.iter().all(|name| jobs.unanswered.iter().any(|p| p.as_str() == name)), "{incident:?}");
    }
}

#[test]
fn what_was_said_and_silenced_is_there_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(durable::load(folder.path()).expect("none is nothing"), durable::Kept::default());
    let desk = Desk::default();
    let silence = |until: u64, made: u64| Silence {
        what: "link".into(),
        until: WallTime(until),
        made: WallTime(made),
        by: "x".into(),
    };
    desk.silence(&silence(9_000, 100), WallTime(1)).expect("taken");
    // The clock was set back: the newer word holds all the same.
    desk.silence(&silence(50, 5), WallTime(5)).expect("taken");
    assert_eq!(desk.silences(WallTime(60)), []);
    let kept = durable::Kept { marks: Vec::new(), silences: desk.held().silences.all().cloned().collect() };
    durable::save(folder.path(), &kept).expect("saved");
    assert_eq!(durable::load(folder.path()).expect("read"), kept);
    std::fs::write(folder.path().join("incidents.json"), "{\"marks\": 7}").expect("written");
    assert!(durable::load(folder.path()).is_err());
}

/// Facts are taken all the time: the queue is left alone for them.
#[tokio::test]
async fn facts_do_not_look_into_the_queue() {
    let fake = crate::surface::fake::Fake::new("a");
    let api = crate::surface::api::Api::new(fake.clone(), Default::default());
    facts::Measured::default().facts(&api).await;
    assert_eq!(fake.state.lock().expect("state").looks, [crate::core::api::Look::default()]);
}
