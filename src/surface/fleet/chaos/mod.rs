//! `starling chaos`: real peers under faults that follow from a seed, real jobs, and a judgement from what
//! the jobs themselves wrote.

mod bounds;
mod disks;
mod guards;
mod history;
mod load;
mod machines;
mod nemesis;
mod page;
mod plan;
mod summary;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub use bounds::{Bounds, Spread};
pub use disks::Disks;
pub use guards::kill_guards;
pub use history::{Checked, Histories, cancel, read, submitted};
pub use load::{Sent, Troubles, Yard};
pub use machines::{Clocks, suspend, wake};
pub use plan::{Fault, Planned, plan};
pub use summary::ChaosSummary;

use self::nemesis::Shared;
use super::network::{Host, Network};
use super::{Fleet, FleetError, Shape, block, demo, io, temporary_dir};
use crate::base::{Bytes, Span};
use crate::model::JobState;
use crate::model::config::{Config, ShutdownJobs};
use crate::surface::cli::ChaosArgs;
use crate::surface::documents::{JobDocument, JobList, boottime_now};
use crate::surface::ledger::{self, Entry, Expected, Verdict};

/// How long jobs go on without contact, and what goes with it, so that minutes suffice.
pub const GRACE: Span = Span::secs(8);
/// Between renewals of a contact.
pub const RENEW: Span = Span::secs(1);
/// Time to kill an attempt.
pub const MARGIN: Span = Span::secs(1);
/// How far the peers believe that clocks may be off, in thousandths.
pub const RHO_MILLI: u64 = 10;
/// Size of a peer's disk, and what it keeps free.
pub const DISK_MIB: u32 = 96;
const RESERVE: Bytes = Bytes::mib(8);
/// After the healing every job must end within this.
const ENDS_WITHIN: Duration = Duration::from_secs(150);
/// It cannot be done on this machine,
const EXIT_REFUSED: u8 = 5;
/// it went wrong and nothing was judged,
const EXIT_FAULT: u8 = 8;
/// or somebody stopped it.
const EXIT_INTERRUPTED: u8 = 130;

/// What is not tried, said each time.
const LEFT_OUT: [&str; 3] = [
    "late, doubled and reordered packets (no netem here)",
    "a job that writes in the moment between a machine's waking and its guard's look (only output that compares epochs is safe then)",
    "certificates under a false time of day (the clocks that are set are the peers' and guards', not the TLS library's)",
];

/// How long the others wait after the last sign of a cluster until they take its jobs.
pub const fn wait(grace: Span, margin: Span) -> Span {
    Span(grace.0 + grace.0 / 1_000 * 2 * RHO_MILLI + margin.0)
}

/// Runs the command to its end.
pub fn main(args: ChaosArgs) -> ExitCode {
    let length = Span::from(Duration::from_secs_f64(args.minutes * 60.0));
    let planned = plan(args.seed, length, args.peers as usize, wait(GRACE, MARGIN));
    let show = |to: &mut dyn FnMut(&str)| {
        to(&format!("seed {}: {} faults in {length} at {} peers", args.seed, planned.len(), args.peers));
        planned.iter().for_each(|p| to(&p.to_string()));
        LEFT_OUT.iter().for_each(|what| to(&format!("left out: {what}")));
    };
    if args.plan {
        show(&mut |line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    show(&mut |line| eprintln!("{line}"));
    match block(run(&args, &planned, length.to_std())) {
        Ok(summary) => {
            if args.json {
                println!("{}", serde_json::to_string(&summary).unwrap_or_default());
            } else {
                print!("{}", summary.text());
            }
            if summary.violations == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(error) => {
            eprintln!("starling: chaos: {error}");
            ExitCode::from(match error {
                FleetError::Network(_) | FleetError::Invalid(_) => EXIT_REFUSED,
                FleetError::Interrupted => EXIT_INTERRUPTED,
                _ => EXIT_FAULT,
            })
        }
    }
}

/// What a peer under chaos is configured with: quick renewals, and every second one moves its jobs away
/// when it is told to end, while the others leave them to their guards.
pub fn adapt(i: u32, config: &mut Config) {
    config.timing.renew_every = RENEW;
    config.timing.margin = MARGIN;
    config.timing.rho_milli = RHO_MILLI;
    config.timing.probe_every = None;
    config.limits.disk_reserve = RESERVE;
    config.limits.log_bytes = Bytes(64 << 10);
    config.limits.log_files = 2;
    config.limits.attempts_kept = 200;
    config.shutdown.jobs = if i.is_multiple_of(2) { ShutdownJobs::Move } else { ShutdownJobs::Leave };
    config.shutdown.notice = Span::secs(2);
    config.shutdown.deadline = Span::secs(10);
}

/// A mesh in namespaces, each peer with a disk of its own. Its parts end in this order.
struct Stage {
    fleet: Fleet,
    clocks: Clocks,
    network: Network,
    disks: Disks,
}

impl Stage {
    async fn set(network: Network, dir: &Path, seed: u64) -> Result<Self, FleetError> {
        let peers = u32::try_from(network.hosts.len()).unwrap_or(u32::MAX);
        let disks = Disks::new((1..=peers).map(|i| dir.join(format!("c{i}/state"))), DISK_MIB)?;
        let files = (1..=peers).map(|i| dir.join(format!("c{i}/clock"))).collect();
        let rates = plan::rates(seed, network.hosts.len());
        let clocks = Clocks::new(files, &rates).map_err(io("the clocks"))?;
        let fleet = start(peers, &network.hosts, dir, None).await?;
        Ok(Self { fleet, clocks, network, disks })
    }
}

/// Starts a mesh of peers at these hosts, configured for chaos.
pub async fn start(
    peers: u32,
    hosts: &[Host],
    dir: &Path,
    exe: Option<PathBuf>,
) -> Result<Fleet, FleetError> {
    let shape =
        Shape { clusters: peers, nodes: demo::nodes(), exe, hosts, adapt: Some(&adapt), ..Shape::default() };
    Fleet::start(&shape, Some(dir), |_| {}).await
}

/// Where everything lies. Dropping it removes it, unless it was given or is to be kept.
struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    fn new(given: Option<&Path>) -> Result<Self, FleetError> {
        let path = match given {
            Some(dir) => {
                crate::transport::private::make(dir).map_err(io(dir.display()))?;
                // Jobs run in folders of their own.
                dir.canonicalize().map_err(io(dir.display()))?
            }
            None => temporary_dir()?,
        };
        Ok(Self { path, keep: given.is_some() })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("logs, ledger and states are in {}", self.path.display());
        } else {
            // What cannot be removed is only litter.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

async fn run(args: &ChaosArgs, planned: &[Planned], length: Duration) -> Result<ChaosSummary, FleetError> {
    // First, since this is what fails where chaos cannot be.
    let network = Network::new(args.peers as usize)?;
    let mut folder = Folder::new(args.dir.as_deref())?;
    let path = folder.path.clone();
    let outcome = perform(args, planned, length, &path, network).await;
    folder.keep |= !outcome.as_ref().is_ok_and(|s| s.violations == 0);
    outcome
}

async fn perform(
    args: &ChaosArgs,
    planned: &[Planned],
    length: Duration,
    dir: &Path,
    network: Network,
) -> Result<ChaosSummary, FleetError> {
    let mut stage = Stage::set(network, dir, args.seed).await?;
    eprintln!("{} peers agree, each in its own network namespace; it begins", stage.fleet.peers.len());
    let (begun, begun_us) = (Instant::now(), boottime_now().0);
    let diary = Shared::default();
    let yard = Yard {
        exe: stage.fleet.exe.clone(),
        ledger: dir.join("ledger.jsonl"),
        checkpoints: dir.join("checkpoints"),
        grace: GRACE,
    };
    crate::transport::private::make(&yard.checkpoints).map_err(io(yard.checkpoints.display()))?;
    let clients: Vec<_> = stage.fleet.peers.iter().map(|p| p.client.clone()).collect();
    let troubles = Arc::new(Troubles::default());
    let say = |text: &str| eprintln!("{:>6.1} s  {text}", begun.elapsed().as_secs_f64());
    let Stage { fleet, clocks, network, disks } = &mut stage;
    let faults = async {
        tokio::try_join!(
            nemesis::cut(network, planned, begun, &diary, &say),
            nemesis::strike(fleet, (disks, clocks), planned, begun, &diary, &say),
        )?;
        tokio::time::sleep(length.saturating_sub(begun.elapsed())).await;
        say("all is healed; the rest of the jobs");
        nemesis::mend(fleet, &diary).await
    };
    let submits =
        load::submit_all(&clients, &yard, args.seed, args.jobs_per_minute, length, ENDS_WITHIN, &troubles);
    let ((), sent) = tokio::try_join!(faults, submits)?;
    let jobs = settle(&mut stage.fleet, &sent, &diary).await?;

    history::read_all(&clients, &troubles.histories, &sent).await;

    let (entries, malformed) = read_all(&yard.ledger)?;
    let verdict = judged(&entries, malformed, &sent, &jobs);
    let diary = diary.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut summary = ChaosSummary::new(args, &verdict, &sent, &jobs, &diary);
    (summary.unknown, summary.refused) =
        (troubles.unknown.load(Ordering::Relaxed), troubles.refused.load(Ordering::Relaxed));
    // Nobody asks any more.
    let histories = Arc::into_inner(troubles).map(|t| t.histories.check()).unwrap_or_default();
    summary.histories(&histories);
    let by_id: BTreeMap<String, &JobDocument> = jobs.iter().map(|job| (job.id.to_string(), job)).collect();
    let held = |job: &str, epoch: u64| by_id.get(job).map_or(Span::ZERO, |job| held_after(job, epoch));
    summary.bounds = bounds::measure(&entries, &diary, &held);
    summary.measure(&entries);
    summary.seconds = begun.elapsed().as_secs_f64();
    if let Some(file) = &args.report {
        let text = page::page(&page::Story {
            begun_us,
            summary: &summary,
            diary: &diary,
            sent: &sent,
            entries: &entries,
        });
        std::fs::write(file, text).map_err(io(file.display()))?;
        eprintln!("the report is {}", file.display());
    }
    if summary.violations > 0 || args.dir.is_some() {
        for (i, peer) in stage.fleet.peers.iter().enumerate() {
            stage.disks.keep(i, &peer.dir.join("state-kept")).map_err(io("keeping a state folder"))?;
        }
    }
    let Stage { fleet, network, disks, .. } = stage;
    fleet.stop(true).await;
    drop((network, disks));
    Ok(summary)
}

/// Waits until every answered job has ended by its record, or the time is up; the records then.
async fn settle(fleet: &mut Fleet, sent: &[Sent], diary: &Shared) -> Result<Vec<JobDocument>, FleetError> {
    let begun = Instant::now();
    let wanted = sent.iter().filter(|s| s.id.is_some()).count();
    let mut jobs = Vec::new();
    let mut asked = 0;
    while begun.elapsed() < ENDS_WITHIN {
        // In turn, since each should know all.
        let peer = &fleet.peers[asked % fleet.peers.len()];
        asked += 1;
        if let Ok(list) = peer.client.get::<JobList>("/v1/jobs?limit=10000").await {
            jobs = list.jobs;
            if jobs.len() >= wanted && jobs.iter().all(|j| j.done) {
                break;
            }
        }
        nemesis::look_after(fleet, diary)?;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(jobs)
}

/// The ledger's verdict: every job that was not ended on somebody's word was done once; none of the others ran twice,
/// either.
/// For how long a job was held back after the loss of this epoch: not after one, longer with each further one in a row.
fn held_after(job: &JobDocument, epoch: u64) -> Span {
    let until = job.attempts.iter().filter(|a| a.epoch <= epoch).rev();
    let losses = until.take_while(|a| a.outcome == Some(crate::model::Outcome::Lost)).count();
    crate::model::record::hold_after(u32::try_from(losses).unwrap_or(u32::MAX))
}

fn judged(entries: &[Entry], malformed: u64, sent: &[Sent], jobs: &[JobDocument]) -> Verdict {
    let ended: BTreeSet<String> =
        jobs.iter().filter(|j| j.state == JobState::Cancelled).map(|j| j.id.to_string()).collect();
    let cancelled = |job: &String| ended.contains(job);
    let expected = sent.iter().filter(|s| !(s.cancelled && s.id.as_ref().is_some_and(cancelled)));
    let expected: Vec<Expected> =
        expected.filter_map(|s| s.id.clone()).map(|job| Expected { job, ranks: 1 }).collect();
    let (others, main): (Vec<Entry>, Vec<Entry>) = entries
        .iter()
        .cloned()
        .partition(|e| ended.contains(&e.job) && expected.iter().all(|x| x.job != e.job));
    let mut verdict = ledger::judge_entries(&main, &expected);
    let short = ledger::judge_entries(&others, &[]);
    verdict.run_twice += short.run_twice;
    verdict.overlaps += short.overlaps;
    verdict.stale_writes += short.stale_writes;
    verdict.gaps += short.gaps;
    verdict.repeats += short.repeats;
    verdict.moved += short.moved;
    verdict.again += short.again;
    verdict.notes.extend(short.notes);
    verdict.malformed = malformed;
    verdict
}

/// All entries, and how many lines are none.
fn read_all(path: &Path) -> Result<(Vec<Entry>, u64), FleetError> {
    let (mut entries, mut malformed) = (Vec::new(), 0);
    let read = ledger::read(path, |entry| match entry {
        Some(entry) => entries.push(entry),
        None => malformed += 1,
    });
    match read {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io("the ledger")(e)),
        _ => Ok((entries, malformed)),
    }
}
