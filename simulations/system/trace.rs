//! A job's trace over peers, attempts and moves; the terminal's views of it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use axum::http::Method;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use serde_json::{Value, json};

use super::harness::*;
use super::mesh::{Mesh, Plan};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Spans that arrived at a collector: id, parent, name, who sent it.
type Arrived = Arc<Mutex<Vec<(Vec<u8>, Vec<u8>, String, Vec<u8>)>>>;

/// A collector as small as can be: reads each request and answers 200. Its thread ends with the test's process.
fn collector() -> (Arrived, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let arrived = Arrived::default();
    let into = arrived.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let mut bytes = Vec::new();
            let mut piece = [0; 16_384];
            let body = loop {
                let n = stream.read(&mut piece).unwrap_or(0);
                bytes.extend_from_slice(&piece[..n]);
                let head = bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4);
                let text = String::from_utf8_lossy(&bytes[..head.unwrap_or(0)]).to_lowercase();
                let length = text
                    .lines()
                    .find_map(|l| l.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
                match (head, length) {
                    (Some(head), Some(length)) if bytes.len() >= head + length => {
                        assert!(text.starts_with("post /v1/traces "), "{text}");
                        break Some(bytes[head..head + length].to_vec());
                    }
                    _ if n == 0 => break None,
                    _ => {}
                }
            };
            let Some(body) = body else { continue };
            let request = ExportTraceServiceRequest::decode(&body[..]).expect("OTLP's protobuf");
            let mut all = into.lock().expect("the list");
            for of in request.resource_spans {
                for span in of.scope_spans.into_iter().flat_map(|s| s.spans) {
                    all.push((span.span_id, span.parent_span_id, span.name, span.trace_id));
                }
            }
            drop(all);
            // A peer that went away meanwhile wants no answer.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    (arrived, address)
}

fn spans(trace: &Value) -> &Vec<Value> {
    trace["spans"].as_array().expect("spans")
}

fn named<'a>(trace: &'a Value, name: &str) -> Vec<&'a Value> {
    spans(trace).iter().filter(|s| s["name"] == name).collect()
}

/// Every span but the first hangs under one that comes before it.
fn is_one_tree(trace: &Value) {
    let mut depth = BTreeMap::new();
    for (n, span) in spans(trace).iter().enumerate() {
        let above = depth.get(span["parent"].as_str().unwrap_or_default());
        match n {
            0 => assert_eq!((&span["name"], &span["depth"]), (&json!("job"), &json!(0))),
            _ => assert_eq!(span["depth"].as_u64(), above.map(|d: &u64| d + 1), "{span:#}\n{trace:#}"),
        }
        depth.insert(span["id"].as_str().expect("an id"), span["depth"].as_u64().expect("a depth"));
    }
    assert_eq!(depth.len(), spans(trace).len(), "ids are there once");
}

fn moved_to(mesh: &Mesh, id: &str, cluster: &str) {
    cli(mesh.state("alpha"), &["move", id, cluster]).ok();
    until(&format!("it runs at {cluster}"), || {
        let job = job(mesh.state("alpha"), id)?;
        let runs = job["state"] == "running" && job["cluster"] == cluster;
        if runs { Ok(()) } else { Err(job.to_string()) }
    });
}

#[test]
fn a_job_that_moved_twice_is_one_trace_also_without_a_peer() {
    let (arrived, collector) = collector();
    let mut mesh = Mesh::start(
        ["alpha", "beta", "gamma"]
            .map(|name| Plan { tables: format!("[trace]\notlp = \"{collector}\"\n"), ..Plan::new(name) }),
    );
    let folder = mesh.folder.path().to_owned();
    let (go, said) = (folder.join("go"), folder.join("said"));
    let spec = format!(
        "name: wanders\nresources: {{gpus: 1, cpus: 1, memory: 1G}}\nplacement: {{regions: [eu-central, us-east, ap-south]}}\n\
         run: 'echo epoch $STARLING_EPOCH; echo $TRACEPARENT >> {}; trap \"exit 143\" TERM; while [ ! -e {} ]; do sleep 0.05; done'\n",
        said.display(),
        go.display()
    );
    let taken =
        ask(mesh.state("alpha"), Method::POST, "/v1/jobs", Some(spec.as_bytes()), &[("traceparent", PARENT)]);
    let id = taken.expect("taken")["id"].as_str().expect("an id").to_owned();
    let first =
        in_state(mesh.state("alpha"), &id, &["running"])["cluster"].as_str().expect("a cluster").to_owned();
    let others: Vec<&str> = ["alpha", "beta", "gamma"].into_iter().filter(|n| *n != first).collect();
    moved_to(&mesh, &id, others[0]);
    moved_to(&mesh, &id, others[1]);
    std::fs::write(&go, "").expect("written");
    let job = succeeded(mesh.state("alpha"), &id);
    let path = format!("/v1/jobs/{id}/trace");

    // One tree under the caller's span, every attempt and both moves, with the times of the record.
    let trace = until("every peer's part is there", || {
        let trace = get(mesh.state("beta"), &path)?;
        let whole = ["submit", "claim", "grant", "stage", "start", "commit"]
            .iter()
            .all(|n| !named(&trace, n).is_empty());
        let stages = named(&trace, "stage").len();
        if whole && stages == 3 { Ok(trace) } else { Err(trace.to_string()) }
    });
    is_one_tree(&trace);
    assert_eq!((&trace["trace"], &trace["done"]), (&json!(TRACE), &json!(true)));
    assert_eq!(trace["unanswered"], json!([]));
    assert_eq!(spans(&trace)[0]["parent"], "b7ad6b7169203331", "{trace:#}");
    for (attempt, n) in job["attempts"].as_array().expect("attempts").iter().zip(0..) {
        let at = |name: &str| named(&trace, name)[n].clone();
        let near = |a: &Value, b: &Value| {
            let ms = |v: &Value| v.as_i64().expect("milliseconds");
            assert!((ms(a) - ms(b)).abs() < 1_000, "{a} is not {b}\n{trace:#}\n{job:#}");
        };
        near(&at("attempt")["from_ms"], &attempt["placed_at_ms"]);
        near(&at("run")["from_ms"], &attempt["started_at_ms"]);
        near(&at("run")["to_ms"], &attempt["ended_at_ms"]);
        assert_eq!(at("run")["cluster"], attempt["cluster"]);
        // What is noted fits together: staged, then started, then run, without a gap.
        near(&at("stage")["from_ms"], &at("attempt")["from_ms"]);
        near(&at("start")["from_ms"], &at("stage")["to_ms"]);
        near(&at("start")["to_ms"], &at("run")["from_ms"]);
    }
    let moves: Vec<&str> =
        named(&trace, "move").iter().map(|s| s["note"].as_str().expect("a note")).collect();
    assert_eq!(moves, [format!("{first} to {}", others[0]), format!("{} to {}", others[0], others[1])]);
    // The program of each attempt was told the span that it runs in.
    let told = std::fs::read_to_string(&said).expect("lines");
    let runs: Vec<String> = named(&trace, "run")
        .iter()
        .map(|s| format!("00-{TRACE}-{}-01", s["id"].as_str().expect("an id")))
        .collect();
    assert_eq!(told.lines().collect::<Vec<_>>(), runs);
    // Every event and every log line of the job carries the trace.
    let events = trace["events"].as_array().expect("events");
    assert!(events.len() >= 10 && events.iter().all(|e| e["trace"] == TRACE), "{events:#?}");
    for peer in &mesh.peers {
        let text = std::fs::read_to_string(peer.state.with_extension("log")).expect("a log");
        let without: Vec<&str> = text.lines().filter(|l| l.contains(&id) && !l.contains(TRACE)).collect();
        assert!(without.is_empty(), "{}: {without:#?}", peer.name);
    }
    // The logs of all attempts are there, wherever they ran.
    for epoch in 1..=3 {
        let out = cli(mesh.state("gamma"), &["logs", &id, "--epoch", &epoch.to_string()]).ok().out;
        assert_eq!(out.lines().next(), Some(format!("epoch {epoch}").as_str()));
    }

    // At the collector it is the same tree: every parent is there, or is the caller's.
    until("the collector has every span", || {
        let all = arrived.lock().expect("the list");
        let mine: Vec<_> = all.iter().filter(|(.., trace)| *trace == hex(TRACE)).collect();
        let lost: Vec<_> = mine
            .iter()
            .filter(|(_, above, ..)| {
                *above != hex("b7ad6b7169203331") && !mine.iter().any(|(id, ..)| id == above)
            })
            .collect();
        let count = |name: &str| mine.iter().filter(|(.., n, _)| n == name).count();
        let whole = ["job", "submit", "queue", "attempt", "run", "move"].map(count);
        if lost.is_empty() && whole == [1, 1, 3, 3, 3, 2] {
            Ok(())
        } else {
            Err(format!("{whole:?} {lost:?}"))
        }
    });

    // A peer goes: the outline stands, and it is said who is missing.
    let gone = others[0];
    mesh.peers.iter_mut().find(|p| p.name == gone).expect("it").kill();
    let asked = mesh.peers.iter().find(|p| p.name != gone).expect("another").state.clone();
    let less = get(&asked, &path).expect("a trace without it");
    is_one_tree(&less);
    assert_eq!(less["unanswered"], json!([gone]), "{less:#}");
    for name in ["attempt", "run", "move", "queue"] {
        assert_eq!(named(&less, name).len(), named(&trace, name).len(), "{name}: {less:#}");
    }
    let drawn = cli(&asked, &["trace", &id[..8]]).ok().out;
    for part in ["wanders", TRACE, "attempt 3", "move", &format!("no answer from {gone}")] {
        assert!(drawn.contains(part), "{part}:\n{drawn}");
    }
    assert!(!drawn.contains('\u{1b}'), "no colours where no terminal is:\n{drawn}");
    let data = cli(&asked, &["--json", "trace", &id]).ok().json();
    assert_eq!(data["trace"], TRACE);
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).expect("hex")).collect()
}

#[test]
fn top_and_watch_serve_scripts_too() {
    let mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha");
    let bad = submit(state, "name: fails\nrun: 'echo the last words; exit 3'\n");
    let watched = cli(state, &["watch", &bad]);
    assert_eq!(watched.code, 1, "as wait: {watched:?}");
    assert!(watched.out.contains("failed") && watched.out.contains("the last words"), "{watched:?}");
    let good = submit(state, "name: works\nrun: [\"true\"]\n");
    let watched = cli(state, &["--json", "watch", &good]).ok();
    let last: Value = serde_json::from_str(watched.out.lines().last().expect("lines")).expect("a document");
    assert_eq!(last["state"], "succeeded");
    let long = submit(state, "name: lasts\nrun: [sleep, \"600\"]\n");
    in_state(state, &long, &["running"]);
    assert_eq!(cli(state, &["watch", &long, "--timeout", "1s"]).code, 6);
    assert_eq!(cli(state, &["watch", "aaaaaaaa"]).code, 3);

    let frame = cli(state, &["top", "--once"]).ok().out;
    assert!(frame.contains("starling top at alpha") && frame.contains("eu-central"), "{frame}");
    let frame = cli(state, &["top", "--once", "--view", "jobs"]).ok().out;
    for part in ["fails", "works", "lasts", "running"] {
        assert!(frame.contains(part), "{part}:\n{frame}");
    }
    let data = cli(state, &["--json", "top"]).ok().json();
    assert_eq!(data["jobs"]["jobs"].as_array().map(Vec::len), Some(3), "{data:#}");
    assert_eq!(cli(state, &["top"]).code, 2, "without a terminal it says what to give");
    cli(state, &["cancel", &long]).ok();
}
