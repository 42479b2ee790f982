//! Spans at a collector of the test, which decodes them.

use std::sync::Mutex;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode as Http};
use axum::routing::post;

use super::*;
use crate::base::{Epoch, JobId, TraceId, WallTime};
use crate::model::trace::SpanNote;
use crate::surface::fake::Fake;

const LONG: Duration = Duration::from_secs(30);

/// A collector that refuses its first requests.
struct Collector {
    refusals: Mutex<usize>,
    got: Mutex<Vec<(HeaderMap, ExportTraceServiceRequest)>>,
    arrived: tokio::sync::Notify,
}

async fn take_in(State(c): State<Arc<Collector>>, headers: HeaderMap, body: Bytes) -> Http {
    let mut refusals = c.refusals.lock().expect("refusals");
    if *refusals > 0 {
        *refusals -= 1;
        return Http::SERVICE_UNAVAILABLE;
    }
    let request = ExportTraceServiceRequest::decode(body).expect("OTLP's protobuf");
    c.got.lock().expect("got").push((headers, request));
    c.arrived.notify_one();
    Http::OK
}

async fn collector(refusals: usize) -> (Arc<Collector>, String) {
    let c = Arc::new(Collector {
        refusals: Mutex::new(refusals),
        got: Mutex::default(),
        arrived: tokio::sync::Notify::new(),
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let router = Router::new().route("/v1/traces", post(take_in)).with_state(c.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (c, address)
}

fn event(job: JobId, spans: Vec<SpanNote>) -> Event {
    let (tenant, trace) = (Some("team".to_owned()), Some(TraceId([9; 16])));
    Event { tenant, trace, spans, ..Event::new("attempt.ended", Some(job), "ended") }
}

fn run(failed: bool) -> SpanNote {
    let here = "alpha".parse().expect("a name");
    SpanNote::new(trace::RUN, Epoch(2), WallTime(1_000), WallTime(4_500))
        .at(&here)
        .failed(failed)
        .note("exit 1")
}

fn to(address: &str, more: &[(&'static str, &'static str)]) -> Endpoint {
    let variable = |name: &str| more.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    Endpoint::find(Some(address), None, variable).expect("good").expect("set")
}

#[tokio::test]
async fn a_collector_gets_the_spans_in_otlp_also_when_it_was_busy_at_first() {
    let (collector, address) = collector(1).await;
    let fake = Fake::new("alpha");
    let (counters, cancel) = (Arc::new(Counters::default()), CancellationToken::new());
    let to = to(&address, &[("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic abc, x-scope=one")]);
    let task = tokio::spawn(export(fake.clone(), to, counters.clone(), cancel.clone()));
    let job = JobId([4; 20]);
    // It listens once it has begun.
    while fake.events.receiver_count() == 0 {
        tokio::task::yield_now().await;
    }
    fake.events.send(event(job, vec![run(true)])).expect("somebody listens");
    fake.events.send(Event::new("contact.taken", None, "no span in it")).expect("somebody listens");
    tokio::time::timeout(LONG, collector.arrived.notified()).await.expect("spans arrive");
    cancel.cancel();
    task.await.expect("ends");
    let got = collector.got.lock().expect("got");
    let (headers, request) = &got[0];
    assert_eq!(headers["content-type"], "application/x-protobuf");
    assert_eq!(
        (&headers["authorization"], &headers["x-scope"]),
        (&"Basic abc".parse().expect("h"), &"one".parse().expect("h"))
    );
    let of = &request.resource_spans[0];
    let words = |all: &[KeyValue]| -> Vec<(String, String)> {
        let text = |kv: &KeyValue| match kv.value.as_ref().and_then(|v| v.value.clone()) {
            Some(Value::StringValue(text)) => text,
            other => panic!("a text: {other:?}"),
        };
        all.iter().map(|kv| (kv.key.clone(), text(kv))).collect()
    };
    let about = words(&of.resource.as_ref().expect("a resource").attributes);
    assert!(about.contains(&("service.name".into(), "starling".into())), "{about:?}");
    assert!(about.contains(&("service.instance.id".into(), "alpha".into())), "{about:?}");
    let span = &of.scope_spans[0].spans[0];
    assert_eq!(span.trace_id, [9; 16]);
    assert_eq!(span.span_id, run(true).id(&TraceId([9; 16]), &job).0);
    let above = trace::span_id(&TraceId([9; 16]), &job, trace::ATTEMPT, Epoch(2), "");
    assert_eq!(span.parent_span_id, above.0, "under its attempt, whoever notes that");
    assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (1_000_000_000, 4_500_000_000));
    assert_eq!((span.name.as_str(), span.kind), ("run", SpanKind::Internal as i32));
    assert_eq!(
        span.status.as_ref().map(|s| (s.code, s.message.as_str())),
        Some((StatusCode::Error as i32, "exit 1"))
    );
    let said = words(&span.attributes);
    for (key, value) in [("starling.cluster", "alpha"), ("starling.epoch", "2"), ("starling.tenant", "team")]
    {
        assert!(said.contains(&(key.into(), value.into())), "{said:?}");
    }
    assert!(counters.failures.load(Ordering::Relaxed) >= 1, "the first try was refused");
    assert_eq!(counters.dropped.load(Ordering::Relaxed), 0);
}

#[test]
fn bytes_are_a_number_and_no_signature_leaves() {
    let from = "s3://b/c?X-Amz-Signature=0123abcd";
    let note = run(false).bytes(Some(crate::base::Bytes(5_000))).note(from);
    let event = event(JobId([4; 20]), vec![note, run(false)]);
    let sent = spans(&event);
    let value = |span: &Span, key: &str| {
        span.attributes.iter().find(|a| a.key == key).and_then(|a| a.value.as_ref()?.value.clone())
    };
    assert_eq!(value(&sent[0], "starling.bytes"), Some(Value::IntValue(5_000)));
    assert_eq!(value(&sent[1], "starling.bytes"), None);
    let said = Value::StringValue("s3://b/c?X-Amz-Signature=REDACTED".into());
    assert_eq!(value(&sent[0], "starling.note"), Some(said));
}

#[tokio::test]
async fn a_peer_that_stops_sends_what_it_still_has() {
    let (collector, address) = collector(0).await;
    let fake = Fake::new("alpha");
    let cancel = CancellationToken::new();
    let task = tokio::spawn(export(fake.clone(), to(&address, &[]), Arc::default(), cancel.clone()));
    while fake.events.receiver_count() == 0 {
        tokio::task::yield_now().await;
    }
    fake.events.send(event(JobId([4; 20]), vec![run(false)])).expect("somebody listens");
    while !fake.events.is_empty() {
        tokio::task::yield_now().await;
    }
    cancel.cancel();
    task.await.expect("ends");
    tokio::time::timeout(LONG, collector.arrived.notified()).await.expect("it arrived");
}

#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let (mut queue, counters) = (VecDeque::new(), Counters::default());
    let event = event(JobId([4; 20]), vec![run(false); 100]);
    for _ in 0..QUEUE_MAX / 100 + 2 {
        take(&event, &mut queue, &counters);
    }
    assert_eq!(queue.len(), QUEUE_MAX);
    let made = (QUEUE_MAX / 100 + 2) * 100;
    assert_eq!(counters.dropped.load(Ordering::Relaxed), (made - QUEUE_MAX) as u64);
}

#[tokio::test]
async fn a_batch_that_nobody_takes_is_given_up_and_counted() {
    // A port that was free a moment ago: nobody answers there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let counters = Arc::new(Counters::default());
    let resource = Resource::default();
    let way = Way {
        to: to(&address, &[]),
        tls: None,
        pause: Duration::from_millis(1),
        resource,
        counters: counters.clone(),
    };
    let batch = spans(&event(JobId([4; 20]), vec![run(false); 3]));
    Arc::new(way).send(batch).await;
    assert_eq!(counters.dropped.load(Ordering::Relaxed), 3);
    assert_eq!(counters.failures.load(Ordering::Relaxed), u64::from(TRIES));
}

#[test]
fn where_it_goes_is_configured_or_said_by_the_usual_variables() {
    let none = |_: &str| None;
    assert_eq!(Endpoint::find(None, None, none), Ok(None));
    let text = |configured: Option<&str>, variables: &[(&str, &str)]| {
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Endpoint::find(configured, None, variable).map(|e| e.map(|e| e.to_string()).unwrap_or_default())
    };
    let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:4318/otlp/");
    let whole = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://t/in");
    assert_eq!(text(Some("http://[::1]:4318"), &[base]).as_deref(), Ok("http://::1:4318/v1/traces"));
    assert_eq!(text(None, &[base]).as_deref(), Ok("http://b:4318/otlp/v1/traces"));
    assert_eq!(text(None, &[base, whole]).as_deref(), Ok("https://t:443/in"));
    for bad in ["collector:4318", "ftp://x", "http://", "not an address"] {
        assert!(text(Some(bad), &[]).is_err(), "{bad}");
    }
    for bad in ["no value", "a=%zz", "a=%2", "a=%FF", "a%20b=c", "a=%0A"] {
        assert!(text(Some("http://a"), &[("OTEL_EXPORTER_OTLP_HEADERS", bad)]).is_err(), "{bad}");
    }
    let headers =
        to("http://a", &[("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20YTpi%3D, x-a=1%2C2")]).headers;
    let want = [("authorization", "Basic YTpi="), ("x-a", "1,2")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    assert_eq!(headers, want, "as W3C Baggage is read");
}
