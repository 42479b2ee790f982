//! `starling demo`: a mesh of real peers, real jobs, and one peer that is killed half way.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::super::cli::{DemoArgs, DemoScenario, page_link};
use super::super::documents::{JobDocument, PeerDocument};
use super::super::ledger::{self, Expected, Kind};
use super::judgement::Summary;
use super::live::Live;
use super::{Fleet, FleetError, FleetPeer, Shape, acceptance, block, io};
use crate::base::{Bytes, MilliCpu, PeerName, Span};
use crate::model::NodeCapacity;
use crate::model::config::Config;
use crate::model::spec::{CheckpointSpec, JobSpec, Run};
use crate::model::spec_input::parse_spec;

/// The jobs of docs/examples/, which the binary carries along.
const EXAMPLES: [(&str, &str); 5] = [
    ("train.yaml", include_str!("../../../docs/examples/train.yaml")),
    ("gang.yaml", include_str!("../../../docs/examples/gang.yaml")),
    ("placed.yaml", include_str!("../../../docs/examples/placed.yaml")),
    ("awk.yaml", include_str!("../../../docs/examples/awk.yaml")),
    ("retry.yaml", include_str!("../../../docs/examples/retry.yaml")),
];
/// How long the jobs go on without contact here, so that nobody has to wait two minutes.
const GRACE: Span = Span::secs(4);
/// All jobs must have ended within this.
const WITHIN: Duration = Duration::from_secs(300);
/// A job is killed with its peer when it has got this far.
const HALF_WAY: u64 = 15;

/// Runs the demo to its end.
pub fn main(args: DemoArgs) -> ExitCode {
    if args.scenario == DemoScenario::Acceptance {
        return match block(acceptance::run(&args)) {
            Ok(acceptance) => acceptance.show(args.json),
            Err(error) => failed(&error),
        };
    }
    match block(run(&args)) {
        Ok(summary) => {
            if args.json {
                println!("{}", serde_json::to_string(&summary).unwrap_or_default());
            } else {
                print!("{}", summary.text());
            }
            if summary.holds() { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &FleetError) -> ExitCode {
    eprintln!("starling: demo: {error}");
    ExitCode::from(70)
}

/// Peers of 2 x 8 A100-80G and 8 H100, declared: nothing real is behind them.
pub(super) fn nodes() -> Vec<NodeCapacity> {
    let group = |name: &str, count, model: &str| NodeCapacity {
        name: name.into(),
        count,
        gpu_model: Some(model.into()),
        gpus: 8,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(512),
        declared: true,
    };
    vec![group("a100", 2, "A100-80G"), group("h100", 1, "H100")]
}

async fn run(args: &DemoArgs) -> Result<Summary, FleetError> {
    // A mesh that stays has a page; one that ends by itself needs no port for it.
    let with_page = |_: u32, config: &mut Config| config.api.listen = Some(([127, 0, 0, 1], 0).into());
    let adapt: Option<&super::Adapt> = if args.keep { Some(&with_page) } else { None };
    let shape =
        Shape { clusters: args.clusters, nodes: nodes(), attempts_kept: 1_000, adapt, ..Shape::default() };
    let fleet_say = |text: &str| eprintln!("{text}");
    let mut fleet = Fleet::start(&shape, args.dir.as_deref(), fleet_say).await?;
    eprintln!("{} peers agree; their GPUs are declared, not real (virtual)", fleet.peers.len());
    if args.keep {
        say_pages(&fleet).await;
    }
    let outcome = show(&mut fleet, args).await;
    if args.keep {
        eprintln!("the mesh is left running:");
        for peer in &fleet.peers {
            eprintln!("  {}", left_running(&peer.name, &peer.dir, peer.is_up()));
        }
        say_pages(&fleet).await;
        let pids: Vec<String> =
            fleet.peers.iter().filter_map(FleetPeer::pid).map(|p| p.to_string()).collect();
        if !pids.is_empty() {
            eprintln!("  stop it with: kill {}", pids.join(" "));
        }
        fleet.leave();
    } else {
        let keep_files = outcome.as_ref().map_or(true, |s| !s.holds());
        if keep_files {
            eprintln!("logs and ledgers are kept in {}", fleet.dir.display());
        }
        fleet.stop(keep_files).await;
    }
    outcome
}

/// How a peer that stays is asked, or one that was killed is brought back.
fn left_running(name: &PeerName, dir: &Path, up: bool) -> String {
    let state = dir.join("state");
    match up {
        true => format!("{name:<4} starling --state {} clusters", state.display()),
        false => format!(
            "{name:<4} was killed; to start it again: starling up --config {} --state {}",
            dir.join("starling.toml").display(),
            state.display()
        ),
    }
}

/// The page of each peer that answers, with the token that opens it.
async fn say_pages(fleet: &Fleet) {
    for peer in &fleet.peers {
        let Ok(about) = peer.client.get::<PeerDocument>("/v1/peer").await else { continue };
        let token = std::fs::read_to_string(peer.state().join("api.token")).ok();
        if let Some(address) = about.api {
            let link = page_link(&address, "localhost", token.as_deref().map(str::trim));
            eprintln!("  {:<4} page: {link}", peer.name);
        }
    }
}

/// One submitted job.
struct Submitted {
    id: String,
    ranks: u32,
}

async fn show(fleet: &mut Fleet, args: &DemoArgs) -> Result<Summary, FleetError> {
    let ledger = fleet.dir.join("ledger.jsonl");
    let work = fleet.dir.join("checkpoints");
    crate::transport::private::make(&work).map_err(io(work.display()))?;
    let specs = specs(fleet, &ledger, &work)?;
    let mut live = Live::new(specs.len() as u64);
    let mut submitted = Vec::new();
    for (n, spec) in specs.iter().enumerate() {
        // At different peers, in turn: any will do.
        let at = n % fleet.peers.len();
        let id = fleet.submit(at, spec, &format!("demo-{}-{n}", args.seed)).await?;
        live.say(&format!("{} takes {:<14} {}", fleet.peers[at].name, spec.name, &id[..8]));
        submitted.push(Submitted { id, ranks: spec.nodes });
    }
    let jobs = watch(fleet, &mut live, &ledger, submitted.len()).await?;
    live.end();
    let expected: Vec<Expected> =
        submitted.iter().map(|s| Expected { job: s.id.clone(), ranks: s.ranks }).collect();
    Summary::new(&[ledger], &expected, &jobs, fleet.peers.len()).map_err(io("the ledger"))
}

/// Watches until all jobs have ended; kills a peer when one of its jobs is half way.
async fn watch(
    fleet: &mut Fleet,
    live: &mut Live,
    ledger: &Path,
    count: usize,
) -> Result<Vec<JobDocument>, FleetError> {
    let begun = Instant::now();
    let mut killed = None;
    loop {
        let jobs = fleet.jobs(count + 10).await?.jobs;
        let (clusters, links) = (fleet.clusters().await?.clusters, fleet.links().await?.links);
        live.draw(&clusters, &links, &jobs);
        if jobs.len() >= count && jobs.iter().all(|j| j.done) {
            return Ok(jobs);
        }
        if killed.is_none()
            && let Some(victim) = half_way(fleet, ledger)?
        {
            killed = Some(victim);
            let name = fleet.peers[victim].name.clone();
            let held: Vec<&str> = jobs
                .iter()
                .filter(|j| !j.done && j.cluster.as_ref() == Some(&name))
                .map(|j| j.name.as_str())
                .collect();
            live.say(&format!("SIGKILL to {name}, which runs {}", held.join(", ")));
            fleet.kill(victim).await?;
            if fleet.peers.len() < 3 {
                // Two members need each other to decide, and one has nobody: here the peer comes back, and
                // its jobs have gone on under their guards.
                live.say(&format!("{name} is started again and finds its jobs still running"));
                fleet.spawn(victim, None)?;
                fleet.ready(victim).await?;
            } else {
                let wait = GRACE.scale(1_020, 1_000) + Span::secs(1);
                live.say(&format!("the others wait out the grace ({wait}), then its jobs go on elsewhere from their checkpoints"));
            }
        }
        if begun.elapsed() > WITHIN {
            let open: Vec<String> = jobs
                .iter()
                .filter(|j| !j.done)
                .map(|j| format!("{} {}: {}", &j.id.to_string()[..8], j.name, j.reason))
                .collect();
            return Err(FleetError::Invalid(format!("not ended within {WITHIN:?}: {}", open.join("; "))));
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// The peer with the most jobs that have got half way, once there is one; the first only if it is alone.
fn half_way(fleet: &Fleet, path: &Path) -> Result<Option<usize>, FleetError> {
    let mut steps: BTreeMap<(String, String), u64> = BTreeMap::new();
    if !path.exists() {
        return Ok(None);
    }
    let read = ledger::read(path, |entry| {
        if let Some(entry) = entry.filter(|e| e.kind == Kind::Step) {
            *steps.entry((entry.cluster, entry.job)).or_default() += 1;
        }
    });
    read.map_err(io("the ledger"))?;
    let mut per: BTreeMap<usize, usize> = BTreeMap::new();
    for ((cluster, _), n) in steps {
        let at = fleet.peers.iter().position(|p| p.name.as_str() == cluster);
        if let Some(at) = at.filter(|at| n >= HALF_WAY && (*at > 0 || fleet.peers.len() == 1)) {
            *per.entry(at).or_default() += 1;
        }
    }
    Ok(per.into_iter().max_by_key(|(_, n)| *n).map(|(at, _)| at))
}

/// The examples once each, and the training job once more for every cluster.
fn specs(fleet: &Fleet, ledger: &Path, work: &Path) -> Result<Vec<JobSpec>, FleetError> {
    let mut specs = Vec::new();
    for (file, text) in EXAMPLES {
        let parsed = parse_spec(text.as_bytes())
            .map_err(|e| FleetError::Invalid(format!("docs/examples/{file}: {e}")))?;
        specs.push(parsed.spec);
    }
    let train = specs[0].clone();
    for peer in &fleet.peers {
        let mut spec = JobSpec { name: format!("train-{}", peer.name), ..train.clone() };
        spec.placement.policy = crate::model::spec::Policy::Spread;
        specs.push(spec);
    }
    for spec in &mut specs {
        adapt(spec, &fleet.exe, ledger, work);
    }
    Ok(specs)
}

/// Points an example at this demo's folders. A job that does not know the ledger notes its own end there
/// as its last act.
fn adapt(spec: &mut JobSpec, exe: &Path, ledger: &Path, work: &Path) {
    spec.env.insert("STARLING_BIN".into(), exe.display().to_string());
    spec.env.insert("STARLING_LEDGER".into(), ledger.display().to_string());
    let path: PathBuf = work.join(&spec.name);
    spec.checkpoint =
        spec.checkpoint.take().map(|c| CheckpointSpec { path: path.display().to_string(), ..c });
    spec.on_lost_contact.grace = Some(GRACE);
    if let Run::Script(script) = &mut spec.run
        && !script.contains("STARLING_LEDGER")
    {
        script.push_str("\nexec \"$STARLING_BIN\" work sleep --ms 1 --ledger \"$STARLING_LEDGER\"\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is printed at the end can be typed: nobody answers for the peer that was killed.
    #[test]
    fn a_killed_peer_is_not_offered_to_be_asked() {
        let (name, dir) = (PeerName::new("c2").expect("a name"), Path::new("/d/c2"));
        assert_eq!(left_running(&name, dir, true), "c2   starling --state /d/c2/state clusters");
        let killed = left_running(&name, dir, false);
        assert!(killed.contains("was killed") && !killed.contains("clusters"), "{killed}");
        assert!(killed.ends_with("starling up --config /d/c2/starling.toml --state /d/c2/state"), "{killed}");
    }
}
