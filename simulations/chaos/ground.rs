//! A mesh of five in namespaces, and what scenarios ask of it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::http::Method;
use serde_json::Value;
use starling::base::{Instant as Boottime, PeerName, Span};
use starling::model::JobState;
use starling::model::spec::JobSpec;
use starling::surface::client::Client;
use starling::surface::documents::{ClusterList, JobDocument, boottime_now};
use starling::surface::fleet::network::Network;
use starling::surface::fleet::{Fleet, chaos};
use starling::surface::ledger::{self, Entry, Expected, Kind, Verdict};
use tempfile::TempDir;

/// Peers of a mesh.
pub const PEERS: usize = 5;
/// How long the jobs go on without contact here.
pub const GRACE: Span = Span::secs(6);
/// Failure bound of a wait; nothing takes so long unless it is broken or the machine is very busy.
const LONG: Duration = Duration::from_secs(60);

/// The mesh. Dropping it ends all of it.
pub struct Ground {
    pub fleet: Fleet,
    pub network: Network,
    pub yard: chaos::Yard,
    pub clocks: chaos::Clocks,
    pub folder: TempDir,
    named: u32,
}

/// Waits until `look` finds something, and says what was last seen where it never does.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) if begun.elapsed() > LONG => panic!("{what}: not within {LONG:?}; last seen: {seen}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// As long as the fault is to last: a scenario's own time, not a wait for something.
pub async fn lasts(time: Span) {
    tokio::time::sleep(time.to_std()).await;
}

impl Ground {
    pub async fn make() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let exe = PathBuf::from(env!("CARGO_BIN_EXE_starling"));
        let yard = chaos::Yard {
            exe: exe.clone(),
            ledger: folder.path().join("ledger.jsonl"),
            checkpoints: folder.path().join("checkpoints"),
            grace: GRACE,
        };
        std::fs::create_dir(&yard.checkpoints).expect("a folder");
        let network = Network::new(PEERS).expect("a network");
        let files = (1..=PEERS).map(|i| folder.path().join(format!("c{i}/clock"))).collect();
        let clocks = chaos::Clocks::new(files, &[0; PEERS]).expect("clocks");
        let fleet =
            chaos::start(PEERS as u32, &network.hosts, folder.path(), Some(exe)).await.expect("a mesh");
        Self { fleet, network, yard, clocks, folder, named: 0 }
    }

    /// Leaves the files where they are, for whoever looks into a failure.
    pub fn keep(self) {
        let Self { fleet, network, folder, .. } = self;
        drop((fleet, network));
        println!("--- logs and ledger are kept in {}", folder.keep().display());
    }

    pub fn name(&self, i: usize) -> PeerName {
        self.fleet.peers[i].name.clone()
    }

    pub fn client(&self, i: usize) -> Client {
        self.fleet.peers[i].client.clone()
    }

    /// Which peer has this name.
    pub fn place(&self, name: &PeerName) -> usize {
        self.fleet.peers.iter().position(|p| p.name == *name).expect("a peer")
    }

    /// A peer that runs and is none of these.
    pub fn other(&self, not: &[usize]) -> usize {
        (0..PEERS).find(|i| !not.contains(i) && self.fleet.peers[*i].is_up()).expect("another peer")
    }

    /// A training job with a name of its own.
    pub fn training(&mut self, steps: u64, clusters: &[usize]) -> JobSpec {
        self.named += 1;
        let clusters: Vec<PeerName> = clusters.iter().map(|i| self.name(*i)).collect();
        self.yard.training(&format!("scenario-{}", self.named), steps, &clusters).expect("a job")
    }

    /// The same with a grace that outlasts the start of a peer on a busy machine.
    pub fn patient(&mut self, steps: u64, clusters: &[usize]) -> JobSpec {
        let mut spec = self.training(steps, clusters);
        spec.on_lost_contact.grace = Some(Span::secs(20));
        spec
    }

    pub async fn submit(&self, at: usize, spec: &JobSpec) -> String {
        self.fleet
            .submit(at, spec, &spec.name)
            .await
            .unwrap_or_else(|e| panic!("{} is not taken: {e}", spec.name))
    }

    pub async fn job(&self, at: usize, id: &str) -> Result<JobDocument, String> {
        self.client(at).get(&format!("/v1/jobs/{id}")).await.map_err(|e| e.to_string())
    }

    /// Waits until a job has done so many steps, by the ledger; where.
    pub async fn stepped(&self, id: &str, steps: usize) -> usize {
        until(&format!("{id} has done {steps} steps"), async || {
            let all = self.lines(id);
            let done: Vec<&Entry> = all.iter().filter(|e| e.kind == Kind::Step).collect();
            match done.last() {
                Some(last) if done.len() >= steps => {
                    Ok(self.place(&PeerName::new(&last.cluster).expect("a name")))
                }
                _ => Err(format!("{} lines", all.len())),
            }
        })
        .await
    }

    /// Waits until a job is in this state, as this peer tells it.
    pub async fn in_state(&self, at: usize, id: &str, state: JobState) -> JobDocument {
        until(&format!("{id} is {}", state.as_str()), async || {
            let job = self.job(at, id).await?;
            let seen = || format!("{} ({}), {:?}", job.state.as_str(), job.reason, job.attempts);
            assert!(!job.done || job.state == state, "{id} is {}", seen());
            if job.state == state { Ok(job.clone()) } else { Err(seen()) }
        })
        .await
    }

    /// The ledger's lines of a job.
    pub fn lines(&self, id: &str) -> Vec<Entry> {
        let mut all = Vec::new();
        // Not there yet: nothing was written.
        let _ = ledger::read(&self.yard.ledger, |e| all.extend(e.filter(|e| e.job == id)));
        all
    }

    /// When a job's attempt did its first step, if it did.
    pub fn first_step(&self, id: &str, epoch: u64) -> Option<Boottime> {
        let all = self.lines(id);
        let steps = all.iter().filter(|e| e.kind == Kind::Step && e.epoch == epoch);
        steps.map(|e| Boottime(e.to_us)).min()
    }

    /// Waits for the first step of an attempt; how long after `from`.
    pub async fn first_step_after(&self, id: &str, epoch: u64, from: Boottime) -> Span {
        let at = until(&format!("{id} takes a step in epoch {epoch}"), async || {
            self.first_step(id, epoch).ok_or_else(|| format!("{:?}", self.lines(id).last()))
        })
        .await;
        at.since(from)
    }

    /// All clocks run as the machine's own again.
    pub fn true_clocks(&mut self) {
        for i in 0..PEERS {
            self.clocks.set(i, 0, 0).expect("set");
        }
    }

    /// The ledger says of these jobs: each was done once, no two attempts at once, no older epoch after a newer.
    pub fn judge(&self, ids: &[&str]) -> Verdict {
        let verdict = self.verdict(ids);
        assert!(verdict.holds(), "{verdict:#?}");
        verdict
    }

    /// What the ledger says of these jobs.
    pub fn verdict(&self, ids: &[&str]) -> Verdict {
        let expected: Vec<Expected> =
            ids.iter().map(|id| Expected { job: (*id).to_owned(), ranks: 1 }).collect();
        let mut entries = Vec::new();
        ledger::read(&self.yard.ledger, |e| {
            entries.extend(e.filter(|e| ids.contains(&e.job.as_str())));
        })
        .expect("a ledger");
        ledger::judge_entries(&entries, &expected)
    }

    /// Processes that ever began on a job.
    pub fn begins(&self, id: &str) -> usize {
        self.lines(id).iter().filter(|e| e.kind == Kind::Begin).count()
    }

    /// Cuts these off from all others, both ways.
    pub fn cut(&mut self, side: &[usize]) -> Boottime {
        let cuts = self.network.apart(&side.iter().copied().collect());
        self.network.set_cuts(&cuts).expect("a cut");
        boottime_now()
    }

    /// Heals all cuts.
    pub fn heal(&mut self) {
        self.network.set_cuts(&BTreeSet::new()).expect("healed");
    }

    /// Heals, and waits until all see all.
    pub async fn mend(&mut self) {
        self.heal();
        self.fleet.agree().await.expect("they agree again");
    }

    /// How a peer sees another one.
    pub async fn sees(&self, at: usize, other: usize) -> Result<String, String> {
        let list: ClusterList = self.client(at).get("/v1/clusters").await.map_err(|e| e.to_string())?;
        let found = list.clusters.into_iter().find(|c| c.name == self.name(other));
        Ok(found.map_or_else(|| "unknown".into(), |c| c.liveness))
    }

    /// Waits until every other running peer no longer calls this one alive; how long after `from` that was.
    pub async fn detected(&self, gone: usize, from: Boottime) -> Span {
        for at in (0..PEERS).filter(|i| *i != gone && self.fleet.peers[*i].is_up()) {
            until(&format!("{at} suspects {gone}"), async || match self.sees(at, gone).await?.as_str() {
                "alive" => Err("alive".to_owned()),
                _ => Ok(()),
            })
            .await;
        }
        boottime_now().since(from)
    }

    /// Starts a peer's process again and waits until all agree.
    pub async fn restart(&mut self, i: usize) {
        self.fleet.spawn(i, None).expect("it starts");
        self.fleet.ready(i).await.expect("it answers");
        self.fleet.agree().await.expect("they agree");
    }

    pub async fn delete(&self, at: usize, path: &str) -> Value {
        let sent = self.client(at).send(Method::DELETE, path, None).await;
        sent.unwrap_or_else(|e| panic!("DELETE {path}: {e}"))
    }

    pub async fn cancel(&self, at: usize, id: &str) -> Result<Value, String> {
        let path = format!("/v1/jobs/{id}/cancel");
        self.client(at).send(Method::POST, &path, None).await.map_err(|e| e.to_string())
    }

    /// The logs of a job's newest attempt.
    pub async fn logs(&self, at: usize, id: &str) -> Result<String, String> {
        let path = format!("/v1/jobs/{id}/logs");
        let opened = self.client(at).open(Method::GET, &path, None, &[], Duration::from_secs(20)).await;
        let mut answer = opened.map_err(|e| e.to_string())?;
        let mut text = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|e| e.to_string())? {
            text.extend_from_slice(&chunk);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    pub fn state(&self, i: usize) -> PathBuf {
        self.fleet.peers[i].state()
    }
}

/// The longest time from the loss of a cluster to the first step elsewhere.
pub fn bound(grace: Span, detection: Span) -> Span {
    grace + grace.scale(2 * chaos::RHO_MILLI, 1_000) + detection + Span::secs(5)
}
