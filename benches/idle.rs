//! What a peer costs while nothing happens: CPU, memory and bytes on the wire, for meshes of 16, 64 and
//! 100 whole peers in this one process (each with its own state folder, store, backend and API).
#![allow(clippy::disallowed_methods, reason = "measures and bounds real time, outside the product")]

mod common;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use common::{Args, Sample, bar, cores, fleet, load, print, table};
use indicatif::ProgressBar;
use serde_json::json;
use starling::app::{Running, Settings, Wish, up};
use starling::base::{PeerName, Span};
use starling::model::report::Liveness;
use starling::runtime::PeerHandle;

const HELP: &str = "idle: CPU, memory and traffic of a quiet peer
  --peers 16,64,100   sizes of the mesh, all in this process
  --settle 10         seconds between the mesh's agreement and the measurement
  --seconds 20        of measurement
  --counters          what all peers counted until then, per peer
  --seeing            instead: what events, audit, metrics, alerts and the page's memory cost while nobody looks: they are
                      ended and begun anew in turn, --rounds 4 times, each way --seconds long
  --json              one JSON document";

/// A mesh that has not formed by then is reported as such.
const FORM_MAX: Duration = Duration::from_secs(150);

fn main() -> ExitCode {
    let known = ["--peers", "--settle", "--seconds", "--counters", "--seeing", "--rounds", "--json"];
    let args = Args::read(HELP, &known);
    common::run(Duration::from_secs(580), bench(args))
}

struct Idle {
    count: usize,
    formed: f64,
    cpu_ms_per_s: f64,
    rss_mb: f64,
    bytes_per_s: f64,
    frames_per_s: f64,
    load: String,
}

async fn bench(args: Args) -> anyhow::Result<()> {
    // Each peer holds some files and sockets.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most)
        .context("raising the limit of open files")?;
    if args.has("--seeing") {
        return seeing(&args).await;
    }
    let mut results = Vec::new();
    for count in args.numbers("--peers", &[16, 64, 100]) {
        results.push(
            size(count, args.number("--settle", 10), args.number("--seconds", 20), args.has("--counters"))
                .await?,
        );
    }
    let rows: Vec<Vec<String>> = results
        .iter()
        .map(|r| {
            let number = |x: f64| format!("{x:.1}");
            vec![
                r.count.to_string(),
                number(r.formed),
                number(r.cpu_ms_per_s),
                number(r.rss_mb),
                format!("{:.0}", r.bytes_per_s),
                number(r.frames_per_s),
                r.load.clone(),
            ]
        })
        .collect();
    let head = [
        "peers",
        "formed s",
        "CPU ms/s per peer",
        "MB per peer",
        "bytes/s sent per peer",
        "frames/s",
        "load",
    ];
    let text = format!("{}\n{} cores for all peers of a mesh", table(&head, &rows), cores());
    let sizes: Vec<_> = results
        .iter()
        .map(|r| json!({ "peers": r.count, "formed_s": r.formed, "cpu_ms_per_s": r.cpu_ms_per_s, "rss_mb": r.rss_mb, "bytes_per_s": r.bytes_per_s, "frames_per_s": r.frames_per_s, "load": r.load }))
        .collect();
    print(&args, &json!({ "bench": "idle", "cores": cores(), "sizes": sizes }), &text);
    Ok(())
}

/// A mesh of whole peers in this process, once each sees all others alive, and how long that took.
struct Mesh {
    peers: Vec<Running>,
    formed: f64,
    // After the peers, which write into it.
    _dir: tempfile::TempDir,
}

impl Mesh {
    async fn form(count: usize, progress: &ProgressBar, counters: bool) -> anyhow::Result<Self> {
        let (dir, begun) = (fleet::folder()?, Instant::now());
        let mut peers = vec![start(dir.path(), 0, None).await?];
        // A few at a time, each through a peer that is up already.
        while peers.len() < count {
            let wave = (peers.len()..count.min(peers.len() + 4)).map(|n| {
                let (node, at, dir) = (peers[fleet::via(n)].node.clone(), peers[fleet::via(n)].quic, &dir);
                async move {
                    let token = node.token_create(Span::secs(600)).await?;
                    start(dir.path(), n, Some((token, at))).await
                }
            });
            let started = futures::future::join_all(wave.collect::<Vec<_>>()).await;
            for peer in started {
                peers.push(peer?);
                progress.inc(1);
            }
        }
        let all_alive = |p: &Running| {
            p.node.view().members.values().filter(|m| m.liveness == Liveness::Alive).count() == count
        };
        while !peers.iter().all(all_alive) {
            if begun.elapsed() > FORM_MAX {
                if counters {
                    show_counters("not formed", &peers);
                }
                let agreed = peers.iter().filter(|p| all_alive(p)).count();
                bail!("{agreed} of {count} peers see all others alive after {} s", FORM_MAX.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let formed = begun.elapsed().as_secs_f64();
        Ok(Self { peers, formed, _dir: dir })
    }

    async fn end(self) {
        futures::future::join_all(self.peers.into_iter().map(|p| p.run(std::future::ready(())))).await;
    }
}

async fn size(count: usize, settle: u64, seconds: u64, counters: bool) -> anyhow::Result<Idle> {
    let before = memory()?;
    let progress = bar(count as u64, &format!("starting {count} peers"));
    let mesh = Mesh::form(count, &progress, counters).await?;
    if counters {
        show_counters("formed", &mesh.peers);
    }
    progress.set_message(format!("{count} quiet peers"));
    tokio::time::sleep(Duration::from_secs(settle)).await;
    let (cpu, wire, at) = (cpu_ms(), traffic(&mesh.peers), Instant::now());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    if counters {
        show_counters("at rest", &mesh.peers);
    }
    let per_peer = at.elapsed().as_secs_f64() * count as f64;
    let now = traffic(&mesh.peers);
    let result = Idle {
        count,
        formed: mesh.formed,
        cpu_ms_per_s: (cpu_ms() - cpu) / per_peer,
        rss_mb: memory()?.saturating_sub(before) as f64 / 1e6 / count as f64,
        bytes_per_s: now.0.saturating_sub(wire.0) as f64 / per_peer,
        frames_per_s: now.1.saturating_sub(wire.1) as f64 / per_peer,
        load: load(),
    };
    progress.set_message("ending them");
    mesh.end().await;
    progress.finish_and_clear();
    Ok(result)
}

/// After what people may see was ended or begun anew, before it is measured.
const TURN: Duration = Duration::from_secs(2);

/// The same mesh with and without what people may see, in turn.
async fn seeing(args: &Args) -> anyhow::Result<()> {
    let (rounds, seconds) = (args.number("--rounds", 4), args.number("--seconds", 20));
    let mut rows = Vec::new();
    let mut sizes = Vec::new();
    for count in args.numbers("--peers", &[100]) {
        let progress = bar(count as u64, &format!("starting {count} peers"));
        let mut mesh = Mesh::form(count, &progress, false).await?;
        tokio::time::sleep(Duration::from_secs(args.number("--settle", 10))).await;
        let (mut with, mut without, mut cost) = (Sample::default(), Sample::default(), Sample::default());
        for round in 0..rounds {
            let mut pair = [0.0; 2];
            // Now the one first, now the other: a machine that slows down slows both.
            for turn in [round % 2 == 0, round % 2 == 1] {
                mesh.peers.iter_mut().for_each(|p| p.see(turn));
                tokio::time::sleep(TURN).await;
                let (cpu, at) = (cpu_ms(), Instant::now());
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                pair[usize::from(turn)] = (cpu_ms() - cpu) / at.elapsed().as_secs_f64() / count as f64;
            }
            without.add(pair[0]);
            with.add(pair[1]);
            cost.add(pair[1] - pair[0]);
        }
        let formed = mesh.formed;
        mesh.end().await;
        progress.finish_and_clear();
        let spread = format!("{:.2} to {:.2}", cost.quantile(0.0), cost.max());
        let two = |x: f64| format!("{x:.2}");
        // Milliseconds in a second are thousandths of a core.
        let share = format!("{:.3} %", cost.median() / 10.0);
        rows.push(vec![
            count.to_string(),
            two(without.median()),
            two(with.median()),
            two(cost.median()),
            spread,
            share,
            load(),
        ]);
        sizes.push(json!({
            "peers": count, "formed_s": formed, "without_cpu_ms_per_s": without.median(),
            "with_cpu_ms_per_s": with.median(), "cost_cpu_ms_per_s": cost.median(),
            "cost_least": cost.quantile(0.0), "cost_most": cost.max(), "rounds": rounds, "load": load(),
        }));
    }
    let head = [
        "peers",
        "CPU ms/s per peer without",
        "with",
        "cost, median of pairs",
        "spread",
        "of a core",
        "load",
    ];
    let text = format!(
        "{}\n{} cores for all peers of a mesh; goal at most 1 % of a core",
        table(&head, &rows),
        cores()
    );
    print(args, &json!({ "bench": "idle", "mode": "seeing", "cores": cores(), "sizes": sizes }), &text);
    Ok(())
}

async fn start(
    root: &std::path::Path,
    n: usize,
    join: Option<(String, std::net::SocketAddr)>,
) -> anyhow::Result<Running> {
    let name = PeerName::new(&format!("p{n:03}")).ok().context("a peer's name")?;
    let mut settings = Settings::new(root.join(name.as_str()));
    settings.wish = Wish { name: Some(name), join: join.map(|(token, at)| (token, at.to_string())) };
    // No attempt is started here; a guard would be this binary otherwise.
    settings.self_exe = Some(env!("CARGO_BIN_EXE_starling").into());
    Ok(up(settings).await?)
}

/// User and system time of this process.
fn cpu_ms() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// Resident memory of this process.
fn memory() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split_whitespace().nth(1).context("no statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// All counters of transport and gossip since the start, per peer.
fn show_counters(when: &str, peers: &[Running]) {
    let mut sums = BTreeMap::<&str, u64>::new();
    for peer in peers {
        for (name, n) in peer.node.net().counters().into_iter().chain(peer.node.mesh().counters()) {
            *sums.entry(name).or_default() += n;
        }
    }
    let told = |(name, n): (&str, u64)| format!("{name} {:.1}", n as f64 / peers.len() as f64);
    let all: Vec<_> = sums.into_iter().filter(|(_, n)| *n > 0).map(told).collect();
    eprintln!("{when}: {}", all.join(", "));
}

/// Bytes and frames that all peers sent, before encryption.
fn traffic(peers: &[Running]) -> (u64, u64) {
    let of = |p: &Running, name: &str| {
        p.node.net().counters().into_iter().filter(|(n, _)| *n == name).map(|(_, v)| v).sum::<u64>()
    };
    let sum = |name| peers.iter().map(|p| of(p, name)).sum();
    (sum("bytes_out"), sum("frames_out"))
}
