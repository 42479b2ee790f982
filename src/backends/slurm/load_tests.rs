//! What is asked of Slurm: no more for many jobs than for one, and ever less of one that fails.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::driver::{NativeJob, NativeNode, NativeState, Submission, SubmitError};
use super::*;
use crate::backends::conformance::{key, script, start, wait_until};
use crate::backends::hold::open;
use crate::core::api::AttemptKey;

const INTERVAL: Span = Span::millis(20);

/// Takes every job, and never starts one.
#[derive(Default)]
struct Slurm {
    away: AtomicBool,
    jobs: Mutex<BTreeMap<u64, Submission>>,
    /// When lists were asked for.
    lists: Mutex<Vec<Instant>>,
    nodes: AtomicUsize,
    others: AtomicUsize,
}

#[async_trait]
impl Driver for Slurm {
    fn describe(&self) -> String {
        "what a test says".into()
    }
    async fn jobs(&self) -> Result<Vec<NativeJob>, DriverError> {
        open(&self.lists).push(clock::now());
        if self.away.load(Ordering::SeqCst) {
            return Err(DriverError("away".into()));
        }
        let waits = |(id, made): (&u64, &Submission)| NativeJob {
            id: *id,
            name: made.name.clone(),
            comment: made.comment.clone(),
            state: NativeState::Pending,
            word: "PENDING".into(),
            reason: "Priority".into(),
            status: 0,
            restarts: 0,
            user: "u".into(),
            parts: Vec::new(),
            partition: "main".into(),
            gpus_wanted: 0,
        };
        Ok(open(&self.jobs).iter().map(waits).collect())
    }
    async fn job(&self, _: u64) -> Result<Option<NativeJob>, DriverError> {
        self.others.fetch_add(1, Ordering::SeqCst);
        Ok(None)
    }
    async fn nodes(&self) -> Result<Vec<NativeNode>, DriverError> {
        self.nodes.fetch_add(1, Ordering::SeqCst);
        Ok(Vec::new())
    }
    async fn submit(&self, job: &Submission) -> Result<u64, SubmitError> {
        let mut all = open(&self.jobs);
        let id = all.len() as u64 + 1;
        all.insert(id, job.clone());
        Ok(id)
    }
    async fn cancel(&self, _: u64, _: &str) -> Result<(), DriverError> {
        self.others.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

struct Desk {
    _folder: tempfile::TempDir,
    slurm: Arc<Slurm>,
    backend: SlurmBackend,
    _events: mpsc::Receiver<BackendEvent>,
}

impl Desk {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        std::fs::write(&program, "").expect("writes");
        let peer = PeerName::new("here").expect("a name");
        let mut config = SlurmConfig::new(folder.path().join("shared"), program, peer);
        config.interval = INTERVAL;
        config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        config.host = Some("127.0.0.1".into());
        let slurm = Arc::new(Slurm::default());
        let backend = SlurmBackend::with_driver(config, slurm.clone()).expect("a backend");
        let (to, events) = mpsc::channel(4_096);
        backend.adopt(to).await.expect("adopts");
        Self { _folder: folder, slurm, backend, _events: events }
    }
    async fn lists(&self, more: usize) {
        let from = open(&self.slurm.lists).len();
        wait_until("so many lists", || open(&self.slurm.lists).len() >= from + more).await;
    }
    async fn go(&self, key: AttemptKey) {
        self.backend.command(BackendCommand::Start(Box::new(start(key, script("true"))))).await;
    }
}

#[test]
fn pauses_grow_to_a_minute() {
    let pauses = [0, 1, 2, 3, 4, 5, 6, 1_000].map(|failures| pause(Span::secs(2), failures));
    assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60].map(Span::secs));
    assert_eq!(pause(Span::secs(90), 3), Span::secs(90), "never sooner than the operator wants");
}

#[tokio::test]
async fn many_jobs_cost_no_more_questions_than_one() {
    let desk = Desk::new().await;
    let mut looks = Vec::new();
    for jobs in [1, 60] {
        let made = open(&desk.slurm.jobs).len();
        for n in made..jobs {
            desk.go(key(u8::try_from(n).expect("few"))).await;
        }
        wait_until("all are made", || open(&desk.slurm.jobs).len() == jobs).await;
        let nodes = desk.slurm.nodes.load(Ordering::SeqCst);
        let (from, first) = (open(&desk.slurm.lists).len(), clock::now());
        desk.lists(20).await;
        let lists = open(&desk.slurm.lists).len() - from;
        // One an interval, and the one that was under way.
        let fit = clock::now().since(first).0 / INTERVAL.0 + 1;
        assert!(lists as u64 <= fit, "{lists} lists for {jobs} jobs where {fit} fit");
        looks.push((desk.slurm.nodes.load(Ordering::SeqCst) - nodes, lists));
    }
    for (nodes, lists) in looks {
        assert!(nodes <= lists / NODES_EVERY as usize + 1, "{nodes} looks at the nodes in {lists} lists");
    }
    assert_eq!(desk.slurm.others.load(Ordering::SeqCst), 0, "none was asked about by itself");
    desk.backend.shutdown().await;
}

#[tokio::test]
async fn a_slurm_that_fails_is_asked_ever_more_seldom_and_at_its_pace_again_once_it_answers() {
    let desk = Desk::new().await;
    desk.lists(2).await;
    desk.slurm.away.store(true, Ordering::SeqCst);
    let from = open(&desk.slurm.lists).len();
    desk.lists(7).await;
    let asked: Vec<Instant> = open(&desk.slurm.lists).split_off(from);
    for (n, pair) in (1..).zip(asked.windows(2)) {
        let gap = pair[1].since(pair[0]);
        let least = INTERVAL.scale(1 << n.min(5), 1);
        assert!(gap >= least, "{gap} after {n} failures, at least {least}");
    }
    let nodes = desk.slurm.nodes.load(Ordering::SeqCst);
    desk.slurm.away.store(false, Ordering::SeqCst);
    let before = open(&desk.slurm.lists).len();
    desk.lists(6).await;
    let asked: Vec<Instant> = open(&desk.slurm.lists).split_off(before);
    assert!(desk.slurm.nodes.load(Ordering::SeqCst) > nodes, "its nodes are looked at once it answers");
    let after = asked[5].since(asked[1]);
    assert!(after < INTERVAL.scale(64, 1), "{after} for four lists");
    desk.backend.shutdown().await;
}
