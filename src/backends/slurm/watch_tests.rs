//! What the report says when Slurm's lists are empty, of a Slurm that says what it is told to say.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use super::driver::{NativeJob, NativeNode, NativeState, Part, Submission, SubmitError};
use super::*;
use crate::backends::conformance::wait_until;
use crate::backends::hold::open;
use crate::base::Bytes;

/// Answers, one after another; the last one again and again.
struct Told<T>(Mutex<VecDeque<Vec<T>>>);

impl<T: Clone> Told<T> {
    fn new(all: impl IntoIterator<Item = Vec<T>>) -> Self {
        Self(Mutex::new(all.into_iter().collect()))
    }
    fn next(&self) -> Vec<T> {
        let mut all = open(&self.0);
        if all.len() > 1 { all.pop_front() } else { all.front().cloned() }.unwrap_or_default()
    }
    fn left(&self) -> usize {
        open(&self.0).len()
    }
}

struct Slurm {
    jobs: Told<NativeJob>,
    nodes: Told<NativeNode>,
    /// Times that it was asked how long it waits before it kills; at first it does not say.
    waits: AtomicU32,
    /// Times that it was asked which partitions are shown.
    shown: AtomicU32,
    /// What it says to that.
    says_shown: Mutex<Result<Option<Vec<String>>, DriverError>>,
}

impl Slurm {
    fn new(jobs: Told<NativeJob>, nodes: Told<NativeNode>) -> Arc<Self> {
        Arc::new(Self {
            jobs,
            nodes,
            waits: AtomicU32::default(),
            shown: AtomicU32::default(),
            says_shown: Mutex::new(Ok(Some(vec!["main".into()]))),
        })
    }
}

#[async_trait]
impl Driver for Slurm {
    fn describe(&self) -> String {
        "what a test says".into()
    }
    async fn jobs(&self) -> Result<Vec<NativeJob>, DriverError> {
        Ok(self.jobs.next())
    }
    async fn job(&self, _: u64) -> Result<Option<NativeJob>, DriverError> {
        Ok(None)
    }
    async fn nodes(&self) -> Result<Vec<NativeNode>, DriverError> {
        Ok(self.nodes.next())
    }
    async fn shown(&self) -> Result<Option<Vec<String>>, DriverError> {
        self.shown.fetch_add(1, Ordering::SeqCst);
        open(&self.says_shown).clone()
    }
    async fn submit(&self, _: &Submission) -> Result<u64, SubmitError> {
        Err(SubmitError::Refused("nothing is submitted here".into()))
    }
    async fn cancel(&self, _: u64, _: &str) -> Result<(), DriverError> {
        Ok(())
    }
    async fn kill_wait(&self) -> Option<u64> {
        (self.waits.fetch_add(1, Ordering::SeqCst) > 0).then_some(7)
    }
}

fn theirs() -> NativeJob {
    NativeJob {
        id: 7,
        name: "theirs".into(),
        comment: String::new(),
        state: NativeState::Active,
        word: "RUNNING".into(),
        reason: "None".into(),
        status: 0,
        restarts: 0,
        user: "u".into(),
        parts: vec![Part { node: "n1".into(), cpus: 2, memory: Bytes::gib(1), gpus: 1 }],
        partition: "main".into(),
        gpus_wanted: 1,
    }
}

fn node() -> NativeNode {
    NativeNode {
        name: "n1".into(),
        usable: true,
        state: "IDLE".into(),
        cpus: 8,
        memory: Bytes::gib(8),
        gpus: Some(("h100".into(), 4)),
        partitions: vec!["main".into()],
        features: Vec::new(),
    }
}

struct Desk {
    folder: tempfile::TempDir,
    slurm: Arc<Slurm>,
    events: mpsc::Receiver<BackendEvent>,
    backend: SlurmBackend,
}

impl Desk {
    async fn new(jobs: Told<NativeJob>, nodes: Told<NativeNode>) -> Self {
        Self::of(Slurm::new(jobs, nodes)).await
    }
    async fn of(slurm: Arc<Slurm>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let backend = backend(folder.path(), slurm.clone());
        backend.discover().await.expect("finds it");
        let (to, events) = mpsc::channel(64);
        backend.adopt(to).await.expect("adopts");
        Self { folder, slurm, events, backend }
    }
    /// The next report.
    async fn report(&mut self) -> ClusterState {
        loop {
            let event = tokio::time::timeout(Span::secs(60).to_std(), self.events.recv()).await;
            if let BackendEvent::Cluster(state) = event.expect("in time").expect("goes on") {
                return *state;
            }
        }
    }
}

fn backend(folder: &Path, slurm: Arc<Slurm>) -> SlurmBackend {
    let program = folder.join("program");
    std::fs::write(&program, "").expect("writes");
    let peer = PeerName::new("here").expect("a name");
    let mut config = SlurmConfig::new(folder.join("shared"), program, peer);
    config.interval = Span::millis(5);
    config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    config.host = Some("127.0.0.1".into());
    SlurmBackend::with_driver(config, slurm).expect("a backend")
}

#[tokio::test]
async fn an_empty_list_of_jobs_is_believed_when_it_comes_twice() {
    let jobs = Told::new([vec![theirs()], vec![], vec![theirs()], vec![], vec![theirs()], vec![], vec![]]);
    let mut desk = Desk::new(jobs, Told::new([vec![node()]])).await;
    assert_eq!(desk.report().await.others.len(), 1);
    let then = desk.report().await;
    assert_eq!(desk.slurm.jobs.left(), 1, "not one of the single empty ones was believed");
    assert!(then.others.is_empty() && then.closed.is_none(), "{then:?}");
    desk.backend.shutdown().await;
}

#[tokio::test]
async fn an_empty_list_of_nodes_is_unknown_and_not_written_down() {
    let none = Vec::<NativeNode>::new;
    // The first answers discovery, the second is the first look.
    let nodes = Told::new([vec![node()], none(), vec![node()], none(), none()]);
    let mut desk = Desk::new(Told::new([vec![theirs()]]), nodes).await;
    let first = desk.report().await;
    assert_eq!((first.nodes.len(), first.closed), (1, None));
    let then = desk.report().await;
    assert_eq!(desk.slurm.nodes.left(), 1, "one alone changes nothing");
    assert!(then.closed.as_ref().is_some_and(|why| why.starts_with("unknown:")), "{then:?}");
    desk.backend.shutdown().await;
    // A peer that is started now takes them as they were.
    let next = backend(desk.folder.path(), Slurm::new(Told::new([vec![]]), Told::new([none()])));
    let found = next.discover().await.expect("finds what was");
    assert_eq!(found.nodes, first.nodes);
    let kind = next.keeper.map().types.get("H100").cloned();
    assert_eq!(kind.as_deref(), Some("h100"), "and asks for GPUs by their type");
}

/// Neither at every look, nor never again.
#[tokio::test]
async fn what_is_asked_seldom_is_asked_no_more_often_while_it_fails() {
    let slurm = Slurm::new(Told::new([vec![theirs()]]), Told::new(vec![vec![node()]; 6]));
    *open(&slurm.says_shown) = Err(DriverError("no answer in 30 s".into()));
    let mut desk = Desk::of(slurm).await;
    assert_eq!(desk.report().await.nodes.len(), 1, "what is not told is offered");
    wait_until("it was looked at the nodes", || desk.slurm.nodes.left() == 1).await;
    let asked = |slurm: &Slurm| (slurm.waits.load(Ordering::SeqCst), slurm.shown.load(Ordering::SeqCst));
    assert_eq!(asked(&desk.slurm), (1, 1));
    assert_eq!(desk.backend.keeper.seldom.kill_wait(), None, "it did not say");
    *open(&desk.slurm.says_shown) = Ok(Some(Vec::new()));
    desk.backend.keeper.seldom.age();
    let then = desk.report().await;
    assert!(then.nodes.is_empty() && then.closed.is_some_and(|why| why.contains("hidden")), "all are hidden");
    assert_eq!(desk.backend.keeper.seldom.kill_wait(), Some(Span::secs(7)));
    // Of what it said once, an answer that does not tell it takes nothing back.
    *open(&desk.slurm.says_shown) = Ok(None);
    desk.backend.keeper.seldom.age();
    wait_until("it is asked again", || asked(&desk.slurm).1 == 3).await;
    assert!(desk.backend.keeper.map().groups.is_empty());
    desk.backend.shutdown().await;
    assert_eq!(asked(&desk.slurm), (2, 3), "how long it waits is known then");
}

#[tokio::test]
async fn nodes_of_partitions_that_are_not_shown_are_not_offered() {
    let hidden = NativeNode { name: "n2".into(), partitions: vec!["secret".into()], ..node() };
    let mut desk = Desk::new(Told::new([vec![theirs()]]), Told::new([vec![node(), hidden]])).await;
    let first = desk.report().await;
    assert_eq!(first.nodes.iter().map(|g| (g.name.as_str(), g.count)).collect::<Vec<_>>(), [("n1", 1)]);
    let out = desk.backend.keeper.map().left_out;
    assert!(matches!(out.as_slice(), [(name, why)] if name == "n2" && why.contains("hidden")), "{out:?}");
    desk.backend.shutdown().await;
    assert_eq!(desk.slurm.shown.load(Ordering::SeqCst), 1, "and not at every look");
}
