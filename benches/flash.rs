//! How long until the last of N peers has heard of an event: Starling's flash, Starling's gossip alone, and
//! the user event of Debian's `serf`, in turn in the same run. All are real processes on loopback.
//!
//! The event is `drain` (or `undrain`) at one peer: it goes out by flash, and the same change travels in
//! the peer's gossiped queue facet, which nothing but gossip carries: one origin, both paths. Each time is
//! from just before the request is written to the peer's (agent's) own socket. "seen" ends when a watcher
//! of the last peer reads the event from its API, for both programs alike; "heard" is stamped inside the
//! last peer. The floor is what the machine itself needs: a plain UDP datagram each to as many plain processes.
#![allow(clippy::disallowed_methods, reason = "measures and bounds real time, outside the product")]

mod common;
#[path = "common/floor.rs"]
mod floor;
#[path = "common/serf.rs"]
mod serf;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use common::fleet::{Fleet, Heard, post, watch};
use common::{Args, Sample, bar, boot_us, cores, load, print, table};
use floor::Floor;
use serde_json::{Value, json};
use serf::Serf;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout_at};

const HELP: &str = "flash: time until the last of N peers has an event
  --peers 16,64   sizes of the mesh
  --rounds 15     events of each kind
  --no-serf       without serf's agents
  --alone         each has the machine to itself, one after the other: ours, serf's, ours again
  --json          one JSON document";

/// An event that somebody has not heard after this long counts as missed.
const ROUND_MAX: Duration = Duration::from_secs(15);
/// Between events, so that gossip is as quiet as in a quiet mesh.
const PAUSE: Duration = Duration::from_millis(700);
/// Serf's time over ours.
const GOAL: f64 = 50.0;

fn main() -> ExitCode {
    if std::env::args().any(|arg| arg == floor::CHILD) {
        // Its parent reads nothing of it but its address, and ends it.
        return floor::child().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let args = Args::read(HELP, &["--peers", "--rounds", "--no-serf", "--alone", "--json"]);
    common::run(Duration::from_secs(580), bench(args))
}

async fn bench(args: Args) -> anyhow::Result<()> {
    let (mut rows, mut documents) = (Vec::new(), Vec::new());
    for count in args.numbers("--peers", &[16, 64]) {
        let (rounds, no_serf) = (args.number("--rounds", 15), args.has("--no-serf"));
        let result = match args.has("--alone") {
            true => alone(count, rounds).await?,
            false => size(count, rounds, no_serf).await?,
        };
        rows.extend(result.rows());
        documents.push(result.document());
    }
    let head = [
        "path",
        "peers",
        "rounds",
        "missed",
        "last seen p50 ms",
        "p90 ms",
        "last heard p50 ms",
        "serf / this",
        "load",
    ];
    let text =
        format!("{}\ngoal: flash at most 1/{GOAL:.0} of serf ({} cores)", table(&head, &rows), cores());
    print(&args, &json!({ "bench": "flash", "cores": cores(), "goal": GOAL, "sizes": documents }), &text);
    Ok(())
}

/// What one path took, milliseconds until the last peer.
#[derive(Default)]
struct Path {
    seen: Sample,
    heard: Sample,
    missed: u64,
}

impl Path {
    fn document(&self) -> Value {
        json!({ "rounds": self.seen.len(), "missed": self.missed, "last_seen_ms_p50": self.seen.median(),
                "last_seen_ms_p90": self.seen.quantile(0.9), "last_heard_ms_p50": self.heard.median() })
    }

    fn row(&self, name: &str, count: usize, serf: f64, load: &str) -> Vec<String> {
        let number = |x: f64| if x.is_nan() { "-".into() } else { format!("{x:.2}") };
        let (seen, ratio) = (&self.seen, serf / self.seen.median());
        vec![
            name.into(),
            count.to_string(),
            seen.len().to_string(),
            self.missed.to_string(),
            number(seen.median()),
            number(seen.quantile(0.9)),
            number(self.heard.median()),
            number(ratio),
            load.into(),
        ]
    }
}

struct Measured {
    count: usize,
    formed: Duration,
    flash: Path,
    gossip: Path,
    floor: Path,
    serf: Result<(String, Path), String>,
    load: String,
}

impl Measured {
    fn serf_ms(&self) -> f64 {
        self.serf.as_ref().map_or(f64::NAN, |(_, path)| path.seen.median())
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let (n, serf, load) = (self.count, self.serf_ms(), self.load.as_str());
        let mut rows =
            vec![self.flash.row("flash", n, serf, load), self.gossip.row("gossip alone", n, serf, load)];
        rows.push(self.floor.row("floor: plain UDP", n, serf, load));
        match &self.serf {
            Ok((version, path)) => rows.push(path.row(version, n, serf, load)),
            Err(why) => rows.push(vec![format!("NO SERF, NO COMPARISON: {why}"), n.to_string()]),
        }
        rows
    }

    fn document(&self) -> Value {
        let serf = match &self.serf {
            Ok((version, path)) => json!({ "version": version, "path": path.document() }),
            Err(why) => json!({ "missing": why }),
        };
        json!({ "peers": self.count, "formed_s": self.formed.as_secs_f64(), "flash": self.flash.document(),
                "gossip": self.gossip.document(), "floor": self.floor.document(), "serf": serf, "load": self.load,
                "serf_over_flash": self.serf_ms() / self.flash.seen.median() })
    }
}

async fn size(count: usize, rounds: u64, no_serf: bool) -> anyhow::Result<Measured> {
    let mut ours = Ours::start(count, rounds).await?;
    let serf = if no_serf { Err(anyhow::anyhow!("left out by --no-serf")) } else { Theirs::start(count) };
    if let Err(why) = &serf {
        eprintln!("NO COMPARISON WITH SERF: {why:#}");
    }
    let mut serf = serf.map_err(|why| format!("{why:#}"));
    for round in 0..rounds {
        ours.round(round).await?;
        if let Ok(serf) = &mut serf {
            serf.round(round).await?;
        }
    }
    let serf = serf.map(|s| (s.serf.version.clone(), s.path));
    let (formed, (flash, gossip, floor)) = (ours.fleet.formed, std::mem::take(&mut ours.paths));
    Ok(Measured { count, formed, flash, gossip, floor, serf, load: load() })
}

/// Half of our rounds, all of serf's, the other half of ours: nobody's processes are there while others are measured.
async fn alone(count: usize, rounds: u64) -> anyhow::Result<Measured> {
    let half = rounds.div_ceil(2);
    let mut ours = Ours::start(count, half).await?;
    for round in 0..half {
        ours.round(round).await?;
    }
    let (formed, paths) = (ours.fleet.formed, std::mem::take(&mut ours.paths));
    drop(ours);
    let serf = match Theirs::start(count) {
        Err(why) => {
            eprintln!("NO COMPARISON WITH SERF: {why:#}");
            Err(format!("{why:#}"))
        }
        Ok(mut serf) => {
            for round in 0..rounds {
                tokio::time::sleep(PAUSE).await;
                serf.round(round).await?;
            }
            Ok((serf.serf.version.clone(), serf.path))
        }
    };
    let mut ours = Ours::start(count, rounds - half).await?;
    ours.paths = paths;
    for round in half..rounds {
        ours.round(round).await?;
    }
    let (flash, gossip, floor) = std::mem::take(&mut ours.paths);
    Ok(Measured { count, formed, flash, gossip, floor, serf, load: load() })
}

/// A mesh that is listened to, and the plain datagrams beside it.
struct Ours {
    fleet: Fleet,
    plain: Floor,
    heard: UnboundedReceiver<Heard>,
    draining: Vec<bool>,
    /// Flash, gossip, floor.
    paths: (Path, Path, Path),
    progress: indicatif::ProgressBar,
}

impl Ours {
    async fn start(count: usize, rounds: u64) -> anyhow::Result<Self> {
        let fleet = Fleet::start(count, "").await?;
        let (to, heard) = unbounded_channel();
        for (n, peer) in fleet.peers.iter().enumerate() {
            watch(n, peer.client.clone(), to.clone()).await?;
        }
        let plain = Floor::start(count - 1)?;
        let progress = bar(rounds, &format!("events, {count} peers"));
        Ok(Self { fleet, plain, heard, draining: vec![false; count], paths: Default::default(), progress })
    }

    async fn round(&mut self, round: u64) -> anyhow::Result<()> {
        let origin = (round as usize * 7) % self.draining.len();
        self.draining[origin] = !self.draining[origin];
        tokio::time::sleep(PAUSE).await;
        let (flash, gossip, floor) = &mut self.paths;
        let draining = self.draining[origin];
        starling_round(&self.fleet, origin, draining, &mut self.heard, (flash, gossip)).await?;
        tokio::time::sleep(PAUSE).await;
        match tokio::task::block_in_place(|| self.plain.round())? {
            Some(ms) => floor.seen.add(ms),
            None => floor.missed += 1,
        }
        self.progress.inc(1);
        Ok(())
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

/// Serf's agents, listened to.
struct Theirs {
    serf: Serf,
    seen: UnboundedReceiver<serf::Seen>,
    path: Path,
}

impl Theirs {
    fn start(count: usize) -> anyhow::Result<Self> {
        let serf = tokio::task::block_in_place(|| Serf::start(count))?;
        let (to, seen) = unbounded_channel();
        for (n, agent) in serf.agents.iter().enumerate() {
            agent.watch(n, to.clone())?;
        }
        Ok(Self { serf, seen, path: Path::default() })
    }

    async fn round(&mut self, round: u64) -> anyhow::Result<()> {
        let origin = (round as usize * 7) % self.serf.agents.len();
        serf_round(&self.serf, origin, round, &mut self.seen, &mut self.path).await
    }
}

/// Drains (or not) one peer, and waits until all others have heard of it on both paths.
async fn starling_round(
    fleet: &Fleet,
    origin: usize,
    draining: bool,
    heard: &mut UnboundedReceiver<Heard>,
    paths: (&mut Path, &mut Path),
) -> anyhow::Result<()> {
    while heard.try_recv().is_ok() {}
    let peer = &fleet.peers[origin];
    let wanted = [format!("heard.flash drain {draining}"), format!("heard.gossip queue closed {draining}")];
    let mut news: [BTreeMap<usize, (u64, u64)>; 2] = Default::default();
    let others = fleet.peers.len() - 1;
    let begun = boot_us();
    let client = peer.client.clone();
    let ask =
        tokio::spawn(
            async move { post(&client, if draining { "/v1/drain" } else { "/v1/undrain" }, None).await },
        );
    let end = Instant::now() + ROUND_MAX;
    while news.iter().any(|n| n.len() < others) {
        let Ok(Some(one)) = timeout_at(end, heard.recv()).await else { break };
        let which = wanted.iter().position(|w| *w == one.what);
        if let Some(which) =
            which.filter(|_| one.from == peer.name && one.heard >= begun && one.peer != origin)
        {
            news[which].entry(one.peer).or_insert((one.heard, one.seen));
        }
    }
    ask.await??;
    for (path, news) in [paths.0, paths.1].into_iter().zip(&news) {
        if news.len() < others {
            path.missed += 1;
            continue;
        }
        let ms = |at: Option<u64>| at.unwrap_or(begun).saturating_sub(begun) as f64 / 1e3;
        path.heard.add(ms(news.values().map(|n| n.0).max()));
        path.seen.add(ms(news.values().map(|n| n.1).max()));
    }
    Ok(())
}

async fn serf_round(
    serf: &Serf,
    origin: usize,
    round: u64,
    seen: &mut UnboundedReceiver<serf::Seen>,
    path: &mut Path,
) -> anyhow::Result<()> {
    // Greeted before the clock starts: only the request itself is in the time.
    let mut stream = serf.agents[origin].rpc()?;
    let mut news = BTreeMap::new();
    let others = serf.agents.len() - 1;
    let begun = boot_us();
    tokio::task::block_in_place(|| serf::send(&mut stream, round))?;
    let end = Instant::now() + ROUND_MAX;
    while news.len() < others {
        let Ok(Some(one)) = timeout_at(end, seen.recv()).await else { break };
        if one.number == round && one.peer != origin {
            news.entry(one.peer).or_insert(one.seen);
        }
    }
    match news.values().max() {
        Some(last) if news.len() == others => path.seen.add(last.saturating_sub(begun) as f64 / 1e3),
        _ => path.missed += 1,
    }
    Ok(())
}
