//! From submit to the job's first instruction, at 3 peers: on the cluster asked, on another one, and
//! wherever the placement says. The end is the job's own word: it writes the time into a file.
#![allow(clippy::disallowed_methods, reason = "measures and bounds real time, outside the product")]

mod common;

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use common::fleet::{Fleet, post, text};
use common::{Args, Sample, bar, cores, load, print, table};
use serde_json::{Value, json};

const HELP: &str = "start: time from POST to the job's first instruction
  --jobs 40   of each kind, one after the other
  --json      one JSON document";

const CONFIG: &str =
    "[[nodes]]\nname = \"n\"\ngpu = \"A100-80G\"\ngpus = 8\ncpus = 64\nmemory = \"256GiB\"\n";

fn main() -> ExitCode {
    let args = Args::read(HELP, &["--jobs", "--json"]);
    common::run(Duration::from_secs(300), bench(args))
}

/// One kind of job and what it took.
struct Kind {
    name: &'static str,
    placement: &'static str,
    started_ms: Sample,
    answered_ms: Sample,
}

fn wall_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}

async fn bench(args: Args) -> anyhow::Result<()> {
    let fleet = Fleet::start(3, CONFIG).await?;
    let kind = |name, placement| Kind {
        name,
        placement,
        started_ms: Sample::default(),
        answered_ms: Sample::default(),
    };
    let mut kinds = [
        kind("local", r#","placement":{"clusters":["p00"]}"#),
        kind("another cluster", r#","placement":{"clusters":["p01"]}"#),
        kind("wherever", ""),
    ];
    let jobs = args.number("--jobs", 40);
    let progress = bar(jobs * kinds.len() as u64, "jobs, one after the other");
    for n in 0..jobs {
        for (k, kind) in kinds.iter_mut().enumerate() {
            one(&fleet, &format!("{k}-{n}"), kind).await?;
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let rows: Vec<Vec<String>> = kinds
        .iter()
        .map(|k| {
            let number = |x: f64| format!("{x:.1}");
            let s = &k.started_ms;
            vec![
                k.name.into(),
                s.len().to_string(),
                number(k.answered_ms.median()),
                number(s.median()),
                number(s.quantile(0.99)),
                number(s.max()),
            ]
        })
        .collect();
    let head = ["job runs at", "jobs", "answered p50 ms", "started p50 ms", "p99 ms", "max ms"];
    let text = format!("{}\nload average {} on {} cores", table(&head, &rows), load(), cores());
    let kinds: Vec<Value> = kinds
        .iter()
        .map(|k| json!({ "kind": k.name, "jobs": k.started_ms.len(), "answered_ms_p50": k.answered_ms.median(), "started_ms_p50": k.started_ms.median(), "started_ms_p99": k.started_ms.quantile(0.99) }))
        .collect();
    print(&args, &json!({ "bench": "start", "kinds": kinds, "load": load(), "cores": cores() }), &text);
    Ok(())
}

/// Submits one job at the first peer and waits until it has succeeded.
async fn one(fleet: &Fleet, name: &str, kind: &mut Kind) -> anyhow::Result<()> {
    let ledger = fleet.dir.path().join(format!("started-{name}"));
    let run = json!(format!("date +%s%N > {}", ledger.display()));
    let resources = r#"{"gpus":1,"gpu":"A100-80G","cpus":1,"memory":"1GiB"}"#;
    let spec = format!(r#"{{"name":"start-{name}","run":{run},"resources":{resources}{}}}"#, kind.placement);
    let client = &fleet.peers[0].client;
    let begun = wall_ms();
    let job = post(client, "/v1/jobs", Some(&spec)).await?;
    kind.answered_ms.add(wall_ms() - begun);
    let id = text(&job, "id").or_else(|_| text(&job["job"], "id"))?.to_owned();
    let ended: Value = client.get(&format!("/v1/jobs/{id}/wait?timeout=60s")).await?;
    let said = std::fs::read_to_string(&ledger).with_context(|| format!("the job wrote nothing: {ended}"))?;
    let Ok(nanos) = said.trim().parse::<f64>() else {
        bail!("the job wrote {said:?}, not one time: {ended}")
    };
    kind.started_ms.add(nanos / 1e6 - begun);
    Ok(())
}
