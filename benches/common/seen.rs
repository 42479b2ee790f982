//! What events, audit, metrics and alerts cost a commit: three peers in this process, with which the same loads are run
//! with and without them in turn.

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;
use starling::app::{Running, Settings, Wish, up};
use starling::base::{Bytes, MilliCpu, PeerName, Span};
use starling::model::NodeCapacity;
use starling::model::report::Liveness;
use starling::runtime::PeerHandle;

use crate::common::fleet::{FleetPeer, folder};
use crate::common::{Args, Sample, bar, cores, load, print, table};
use crate::{Load, PEERS, ask_on, checkpoints, hold, run_idle, submits};

/// After they were ended or begun anew, before it is measured.
const TURN: Duration = Duration::from_millis(500);

/// A load under both ways.
struct Both {
    what: &'static str,
    connections: usize,
    without: Load,
    with: Load,
    /// Rate with, as a share of the rate without, of each pair.
    ratio: Sample,
}

/// The whole bench.
pub async fn seeing(args: &Args) -> anyhow::Result<()> {
    let connections = args.numbers("--connections", &[8, 64]);
    let (rounds, span) = (args.number("--rounds", 4), Duration::from_secs(args.number("--seconds", 3)));
    let dir = folder()?;
    let mut mesh: Vec<Running> = Vec::new();
    for n in 0..PEERS {
        let join = match mesh.first() {
            Some(first) => Some((first.node.token_create(Span::secs(60)).await?, first.quic)),
            None => None,
        };
        mesh.push(start(dir.path(), n, join).await?);
    }
    let alive = |p: &Running| {
        p.node.view().members.values().filter(|m| m.liveness == Liveness::Alive).count() == PEERS
    };
    let formed = async {
        while !mesh.iter().all(alive) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), formed).await.is_err() {
        bail!("the mesh has not formed after 30 s");
    }
    let inside = |n: usize| FleetPeer::inside(&name(n), dir.path().join(name(n)).join("api.sock"));
    let peers = (0..PEERS).map(inside).collect::<anyhow::Result<Vec<_>>>()?;
    let holders = hold(&peers).await?;
    let running = run_idle(&peers, connections.iter().copied().max().unwrap_or(1)).await?;
    let new = |what, n: &usize| Both {
        what,
        connections: *n,
        without: Load::new(String::new()),
        with: Load::new(String::new()),
        ratio: Sample::default(),
    };
    let mut all: Vec<Both> = connections.iter().map(|n| new("record commit", n)).collect();
    all.extend(connections.iter().map(|n| new("submit", n)));
    let progress = bar(rounds * 2 * all.len() as u64, "loads in turn");
    // One load after the other: jobs pile up with the submits, which come last.
    for both in &mut all {
        for round in 0..rounds {
            let mut pair = [0.0; 2];
            for turn in [round % 2 == 0, round % 2 == 1] {
                mesh.iter_mut().for_each(|p| p.see(turn));
                tokio::time::sleep(TURN).await;
                let one = if turn { &mut both.with } else { &mut both.without };
                let (count, seconds) = (one.latency_ms.len(), one.seconds);
                if both.what == "submit" {
                    ask_on(&peers, both.connections, span, one, submits()).await?;
                } else {
                    let tag = format!("{round}{turn}");
                    ask_on(&peers, both.connections, span, one, checkpoints(&running, tag)).await?;
                }
                let done = (one.latency_ms.len() - count) as f64;
                pair[usize::from(turn)] = done / (one.seconds - seconds);
                progress.inc(1);
            }
            both.ratio.add(pair[1] / pair[0]);
        }
    }
    progress.finish_and_clear();
    for id in holders.into_iter().chain(running) {
        // With so many jobs this may take longer than a caller waits; they end by themselves.
        if let Err(why) = crate::post(&peers[0].client, &format!("/v1/jobs/{id}/cancel"), None).await {
            eprintln!("left to end by itself: {id}: {why:#}");
            break;
        }
    }
    futures::future::join_all(mesh.into_iter().map(|p| p.run(std::future::ready(())))).await;
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let head = [
        "load",
        "per second without",
        "with",
        "with / without",
        "quartiles",
        "p50 ms without",
        "with",
        "p99 ms without",
        "with",
    ];
    let text = format!("{}\nload average {} on {} cores", table(&head, &rows), load(), cores());
    let loads: Vec<_> = all
        .iter()
        .map(|b| {
            let (p50, p99) = (|l: &Load| l.latency_ms.median(), |l: &Load| l.latency_ms.quantile(0.99));
            json!({ "load": b.what, "connections": b.connections, "without": b.without.rate(), "with": b.with.rate(),
                "ratio": b.ratio.median(), "ratio_p25": b.ratio.quantile(0.25), "ratio_p75": b.ratio.quantile(0.75),
                "p50_ms_without": p50(&b.without), "p50_ms_with": p50(&b.with),
                "p99_ms_without": p99(&b.without), "p99_ms_with": p99(&b.with) })
        })
        .collect();
    print(
        args,
        &json!({ "bench": "submit", "mode": "seeing", "loads": loads, "load": load(), "cores": cores() }),
        &text,
    );
    Ok(())
}

fn row(both: &Both) -> Vec<String> {
    let two = |x: f64| format!("{x:.2}");
    vec![
        format!("{}, {PEERS} peers, {} connections", both.what, both.connections),
        format!("{:.0}", both.without.rate()),
        format!("{:.0}", both.with.rate()),
        two(both.ratio.median()),
        format!("{:.2} to {:.2}", both.ratio.quantile(0.25), both.ratio.quantile(0.75)),
        two(both.without.latency_ms.median()),
        two(both.with.latency_ms.median()),
        two(both.without.latency_ms.quantile(0.99)),
        two(both.with.latency_ms.quantile(0.99)),
    ]
}

fn name(n: usize) -> String {
    format!("p{n:02}")
}

async fn start(
    root: &std::path::Path,
    n: usize,
    join: Option<(String, std::net::SocketAddr)>,
) -> anyhow::Result<Running> {
    let mut settings = Settings::new(root.join(name(n)));
    settings.wish = Wish {
        name: Some(PeerName::new(&name(n)).ok().context("a peer's name")?),
        join: join.map(|(token, at)| (token, at.to_string())),
    };
    settings.self_exe = Some(env!("CARGO_BIN_EXE_starling").into());
    settings.nodes = vec![NodeCapacity {
        name: "n".into(),
        count: 1,
        gpu_model: Some("A100-80G".into()),
        gpus: 8,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(256),
        declared: true,
    }];
    Ok(up(settings).await?)
}
