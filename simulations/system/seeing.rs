//! What people see of a mesh: events and audit through any peer, metrics and what is built on them, the doctor.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use axum::http::Method;
use serde_json::Value;

use super::harness::*;
use super::mesh::{Mesh, Plan};

/// Families that no dashboard and no rule shows, name by name, and why not. A new one goes on the dashboard or in here.
const NOT_SHOWN: [(&str, &str, &[&str]); 8] = [
    (
        "ordinary work of the core; what is refused or fails is shown",
        "starling_core_",
        &[
            "answers_ignored",
            "asked_before_confirmed",
            "clusters_rested",
            "contact_taken",
            "disk_confirmed",
            "grants_declined",
            "hints_refreshed",
            "hints_settled",
            "jobs_freed",
            "keys_asked_anew",
            "keys_found",
            "keys_held_twice",
            "keys_lost",
            "places_made",
            "queue_passes",
            "policies_set",
            "records_forgotten",
            "records_unsettled",
            "register_in_flight",
            "reservations_held",
            "shares_moved",
            "shares_reclaimed",
            "shares_unknown",
            "takeovers_tried",
        ],
    ),
    (
        "the event invariant.violated has an alert",
        "starling_core_",
        &[
            "invariant_I1_violated",
            "invariant_I2_violated",
            "invariant_I3_violated",
            "invariant_I4_violated",
            "invariant_I5_violated",
            "invariant_I6_violated",
            "invariant_I7_violated",
            "invariant_I8_violated",
        ],
    ),
    (
        "traffic of gossip: its lag and what is dropped are shown",
        "starling_gossip_",
        &[
            "dropped_messages",
            "heard_build",
            "heard_capacity",
            "heard_contact",
            "heard_health",
            "heard_links",
            "heard_members",
            "heard_other",
            "heard_queue",
            "rounds_paced",
            "sent_bytes",
            "sent_messages",
            "sent_shed",
        ],
    ),
    ("traffic of the member list", "starling_mesh_", &["member_lines_taken", "member_pulls"]),
    (
        "traffic by kind: its bytes and what is lost are shown",
        "starling_net_",
        &[
            "dials",
            "flash_detours",
            "flash_forwarded",
            "flash_repeated",
            "frames_in",
            "frames_out",
            "joins",
            "links_up",
            "probe_bytes",
            "probes",
            "relayed_frames",
            "relayed_requests",
            "renewals",
        ],
    ),
    (
        "batches and rows: the time of a commit is shown",
        "starling_store_",
        &["commit_batches", "commits", "writes"],
    ),
    ("up{} says it", "starling_", &["up_seconds"]),
    ("the log's size is bounded", "starling_", &["event_log_lines"]),
];

fn not_shown() -> BTreeSet<String> {
    NOT_SHOWN
        .iter()
        .flat_map(|(_, start, names)| names.iter().map(move |name| format!("{start}{name}")))
        .collect()
}

/// Single figures that the page and the command line show. A new one goes on the dashboard or in here.
const MEANT: [&str; 6] = [
    "starling_attempts",
    "starling_certificate_age_seconds",
    "starling_claims",
    "starling_closed",
    "starling_draining",
    "starling_link_age_seconds",
];

fn metrics(mesh: &Mesh, name: &str) -> String {
    use starling::surface::client::{Client, Target};
    let client = Client::new(Target::Unix(mesh.state(name).join("api.sock")), None, None).expect("a client");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let within = std::time::Duration::from_secs(20);
        let mut answer =
            client.open(axum::http::Method::GET, "/metrics", None, &[], within).await.expect("metrics");
        let mut text = Vec::new();
        while let Some(chunk) = answer.chunk().await.expect("metrics") {
            text.extend_from_slice(&chunk);
        }
        String::from_utf8(text).expect("text")
    })
}

/// The families of a text, each with its type; it must be well formed.
fn families(text: &str) -> BTreeMap<String, String> {
    assert!(text.ends_with("\n# EOF\n"), "the end is missing");
    let mut helped = BTreeSet::new();
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for line in text.lines().filter(|l| *l != "# EOF") {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a text");
            assert!(!help.trim().is_empty() && helped.insert(name.to_owned()), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(helped.contains(name), "no help for {name}");
            assert!(found.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().expect("a name");
            let known = |end: &str| name.strip_suffix(end).and_then(|n| found.get(n));
            let good = match found.get(name) {
                Some(kind) => kind == "gauge",
                None => {
                    known("_total").is_some_and(|k| k == "counter")
                        || ["_bucket", "_sum", "_count"]
                            .iter()
                            .any(|e| known(e).is_some_and(|k| k == "histogram"))
                }
            };
            assert!(good, "a line of no family or of the wrong type: {line}");
            let value = line.rsplit(' ').next().expect("a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    found
}

/// Names that a file of deploy/ asks for.
pub(super) fn named(file: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ':'))
        .filter(|word| word.starts_with("starling_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn dashboards_and_rules_name_what_a_live_peer_has() {
    let probed = |name| Plan { probe_every: "5s", ..Plan::new(name) };
    let mesh = Mesh::start(["alpha", "beta", "gamma"].map(probed));
    let id = submit(mesh.state("alpha"), "name: a\nresources: {gpus: 1}\nrun: [\"true\"]\n");
    succeeded(mesh.state("alpha"), &id);
    let runs = submit(mesh.state("alpha"), "name: b\nresources: {gpus: 1}\nrun: [sleep, \"600\"]\n");
    in_state(mesh.state("alpha"), &runs, &["running"]);
    let links =
        |l: &Value| l["links"].as_array().is_some_and(|l| l.iter().any(|l| !l["bandwidth_bps"].is_null()));
    until("bandwidth is measured", || {
        let found = get(mesh.state("alpha"), "/v1/links")?;
        if links(&found) { Ok(()) } else { Err(found.to_string()) }
    });
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for name in ["alpha", "beta", "gamma"] {
        all.extend(families(&metrics(&mesh, name)));
    }
    let family = |name: &str| {
        let short = ["_bucket", "_sum", "_count", "_total"].iter().find_map(|e| name.strip_suffix(e));
        all.contains_key(name) || short.is_some_and(|s| all.contains_key(s))
    };
    let mut shown = BTreeSet::new();
    for file in ["prometheus/rules.yml", "prometheus/rules_test.yml", "grafana/starling.json"] {
        let names = named(file);
        assert!(names.len() > 4, "{file}: {names:?}");
        for name in names {
            // Only where GPUs can be measured.
            assert!(
                family(&name) || name == "starling_gpu_use_ratio",
                "{file} names {name}, which no peer has"
            );
            let short =
                ["_bucket", "_total"].iter().find_map(|e| name.strip_suffix(e)).unwrap_or(&name).to_owned();
            shown.insert(short);
        }
    }
    let meant = not_shown();
    let single: Vec<&str> =
        all.keys().filter(|n| !shown.contains(*n) && !meant.contains(*n)).map(String::as_str).collect();
    assert_eq!(single, MEANT, "not shown anywhere");
    let both: Vec<&String> = meant.intersection(&shown).collect();
    assert!(both.is_empty(), "shown after all: {both:?}");
    // The core names a counter when it counts it for the first time.
    let gone: Vec<&String> =
        meant.iter().filter(|n| !all.contains_key(*n) && !n.starts_with("starling_core_")).collect();
    assert!(gone.is_empty(), "no peer has these: {gone:?}");
}

fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("readable").path();
        match path.is_dir() {
            true => sources(&path, text),
            false => text.push_str(&fs::read_to_string(&path).expect("UTF-8")),
        }
    }
}

#[test]
fn counters_of_the_core_that_are_not_shown_are_real_ones_and_all_others_are_shown() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    sources(&root.join("src/core"), &mut text);
    let counted = |text: &str| -> BTreeSet<String> {
        let after = |mark: &str| -> Vec<String> {
            text.split(mark).skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
        };
        [after("self.count(\""), after("counters.insert(\"")].concat().into_iter().collect()
    };
    let mut real = counted(&text);
    assert!(real.len() > 25, "{real:?}");
    let model = fs::read_to_string(root.join("src/model/invariants.rs")).expect("UTF-8");
    real.extend(model.split("=> \"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned));
    let shown = named("grafana/starling.json");
    let hidden: BTreeSet<String> = not_shown();
    let core = |name: &String| format!("starling_core_{name}");
    let nowhere: Vec<&String> = real
        .iter()
        .filter(|n| !hidden.contains(&core(n)) && !shown.contains(&format!("{}_total", core(n))))
        .collect();
    assert!(nowhere.is_empty(), "neither on the dashboard nor meant to be hidden: {nowhere:?}");
    let stale: Vec<&String> = hidden
        .iter()
        .filter(|n| n.strip_prefix("starling_core_").is_some_and(|short| !real.contains(short)))
        .collect();
    assert!(stale.is_empty(), "the core counts no such thing: {stale:?}");
}

/// Events are written down in bunches; who reads them has all that came before the answer he got, without waiting.
#[test]
fn what_came_before_an_answer_is_among_the_events_at_once() {
    let mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha");
    for n in 0..20 {
        let id = submit(state, &format!("name: n{n}\nresources: {{cpus: 1, memory: 1M}}\nrun: [\"true\"]\n"));
        let past = get(state, &format!("/v1/history?kind=job.submitted&job={id}")).expect("answers");
        assert_eq!(past["events"].as_array().map(Vec::len), Some(1), "{n}: {past:#}");
    }
}

#[test]
fn events_and_audit_are_read_through_any_peer_and_a_changed_byte_is_found() {
    let mesh = Mesh::three();
    let (a, b) = (mesh.state("alpha"), mesh.state("beta"));
    let id = submit(
        a,
        "name: there\ntenant: vision\nresources: {gpus: 1}\nplacement: {clusters: [gamma]}\nrun: [sleep, \"600\"]\n",
    );
    in_state(a, &id, &["running"]);
    cli(b, &["cancel", &id[..8]]).ok();
    ended(a, &id);
    let kinds = |out: &Value| -> BTreeSet<String> {
        out["events"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|e| Some(e["kind"].as_str()?.to_owned()))
            .collect()
    };
    for name in ["alpha", "beta", "gamma"] {
        let past = until("all events are told", || {
            let past = cli(mesh.state(name), &["--json", "events", "--past", "--job", &id]).ok().json();
            let found = kinds(&past);
            let wanted = ["job.placed", "attempt.started", "attempt.ended", "job.closed"];
            if wanted.iter().all(|k| found.contains(*k)) { Ok(past) } else { Err(past.to_string()) }
        });
        assert_eq!(past["unanswered"], Value::Array(Vec::new()), "{past:#}");
        let started =
            past["events"].as_array().and_then(|l| l.iter().find(|e| e["kind"] == "attempt.started"));
        let started = started.expect("it started");
        assert_eq!((&started["peer"], &started["tenant"]), (&"gamma".into(), &"vision".into()), "{past:#}");
        assert!(started["took_ms"].is_u64() && started["trace"].is_string(), "{started:#}");
    }
    let of_tenant = cli(a, &["--json", "events", "--tenant", "nobody"]).ok().json();
    assert_eq!(of_tenant["events"], Value::Array(Vec::new()), "{of_tenant:#}");
    // Who did it stands where it was done.
    let audit = cli(b, &["--json", "audit"]).ok().json();
    let entry = &audit["entries"][0];
    assert_eq!(entry["what"], "POST /v1/jobs/{id}/cancel", "{audit:#}");
    assert_eq!((&entry["object"], &entry["status"]), (&id.as_str().into(), &200.into()), "{audit:#}");
    assert!(entry["before"].as_str().is_some_and(|t| t.starts_with("running at gamma")), "{audit:#}");
    assert!(entry["who"].as_str().is_some_and(|t| t.starts_with("local user")), "{audit:#}");
    // Only submitting has a dry run: the words hide no other call.
    for (method, path) in [
        (Method::POST, format!("/v1/jobs/{id}/cancel?dry_run=true")),
        (Method::POST, "/v1/tokens?dry_run=true".to_owned()),
    ] {
        let _whatever_it_says = ask(b, method, &path, None, &[]);
    }
    let audit = cli(b, &["--json", "audit"]).ok().json();
    let what: Vec<&Value> = audit["entries"].as_array().into_iter().flatten().map(|e| &e["what"]).collect();
    assert_eq!(
        what,
        ["POST /v1/tokens", "POST /v1/jobs/{id}/cancel", "POST /v1/jobs/{id}/cancel"],
        "{audit:#}"
    );
    let told = cli(b, &["audit", "verify"]).ok().out;
    assert!(told.contains("3 entries hold"), "{told}");
    let files = b.join("events");
    let file = fs::read_dir(&files)
        .expect("a folder")
        .flatten()
        .map(|e| e.path())
        .find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("audit-")))
        .expect("an audit");
    let changed = fs::read_to_string(&file).expect("text").replace("local user", "local luser");
    fs::write(&file, changed).expect("written");
    for args in [&["audit", "verify"][..], &["audit", "verify", "--files"]] {
        let out = cli(b, args);
        assert!(out.code == 5 && out.out.contains("BROKEN"), "{out:?}");
    }
}

#[test]
fn a_clock_made_for_tests_is_said_at_the_start_and_by_the_doctor() {
    let folder = tempfile::tempdir().expect("a folder");
    let (state, log, clock) =
        (folder.path().join("alpha"), folder.path().join("log"), folder.path().join("clock"));
    fs::write(&clock, "0 0 0 0\n").expect("a clock that runs as the machine's does");
    let mut up = command();
    up.args(["up", "--name", "alpha", "--state"]).arg(&state).env("STARLING_TEST_CLOCK", &clock);
    up.stdout(std::process::Stdio::null()).stderr(fs::File::create(&log).expect("a log"));
    let mut child = up.spawn().expect("the binary starts");
    let seen = std::panic::catch_unwind(|| {
        until("it answers", || get(&state, "/v1/peer"));
        let words = fs::read_to_string(&log).expect("its words");
        assert!(words.contains("warning: STARLING_TEST_CLOCK is set"), "{words}");
        let out = cli(&state, &["doctor"]);
        assert!(out.out.contains("made for tests, not the machine's own: alpha"), "{out:?}");
        assert_eq!(cli(&state, &["--json", "doctor"]).code, out.code);
    });
    child.kill().expect("killed");
    child.wait().expect("gone");
    if let Err(why) = seen {
        std::panic::resume_unwind(why);
    }
}

#[test]
fn the_doctor_says_what_is_wrong() {
    let mut mesh = Mesh::three();
    let well = until("all is well", || {
        let out = cli(mesh.state("alpha"), &["--json", "doctor"]);
        let bad = |f: &&Value| f["weight"] == "bad" || f["about"] == "links" && f["weight"] != "ok";
        let found = out.json();
        match found["findings"].as_array().and_then(|l| l.iter().find(bad)) {
            None if out.code == 0 => Ok(found),
            other => Err(format!("{other:?}")),
        }
    });
    let about: BTreeSet<&str> =
        well["findings"].as_array().into_iter().flatten().filter_map(|f| f["about"].as_str()).collect();
    for wanted in [
        "members",
        "size",
        "links",
        "requests",
        "clocks",
        "certificates",
        "settings",
        "ports",
        "versions",
        "disk",
        "records",
        "homes",
    ] {
        assert!(about.contains(wanted), "{wanted}: {well:#}");
    }
    mesh.peer_mut("gamma").kill();
    until("the lost peer is named", || {
        let out = cli(mesh.state("alpha"), &["doctor"]);
        if out.code == 5 && out.out.contains("gamma is") && out.out.contains("->") {
            Ok(())
        } else {
            Err(format!("{out:?}"))
        }
    });
}
