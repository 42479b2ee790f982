//! The Slurm backend by itself, on a real cluster: the conformance suite, gangs, and both ways to ask the peer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use starling::backends::Backend;
use starling::backends::conformance::{self, Ear, Subject, key, script, start, stop, wait_until};
use starling::backends::slurm::{SlurmBackend, SlurmConfig};
use starling::base::{PeerName, Span};
use starling::core::BackendCommand;
use starling::core::api::{AttemptKey, StopReason};
use starling::model::{JobSpec, Outcome};

use super::ground::Ground;
use super::harness::STARLING;
use super::sandbox::Restd;

/// A peer's backend on a cluster.
pub struct Desk {
    pub config: SlurmConfig,
    pub backend: Arc<SlurmBackend>,
}

impl Desk {
    pub async fn new(shared: PathBuf, conf: &Path, change: impl FnOnce(&mut SlurmConfig)) -> Self {
        let peer = PeerName::new("here").expect("a name");
        let mut config = SlurmConfig::new(shared, STARLING.into(), peer);
        config.conf = Some(conf.to_owned());
        config.interval = Span::millis(300);
        config.notice = Span::secs(1);
        config.host = Some("127.0.0.1".into());
        change(&mut config);
        let backend = Arc::new(SlurmBackend::new(config.clone()).expect("a backend"));
        backend.discover().await.expect("finds Slurm");
        Self { config, backend }
    }
    pub async fn go(&self, key: AttemptKey, spec: JobSpec) {
        self.backend.command(BackendCommand::Start(Box::new(start(key, spec)))).await;
    }
}

#[async_trait]
impl Subject for Desk {
    fn backend(&self) -> Arc<dyn Backend> {
        self.backend.clone()
    }
    async fn restart(&mut self) {
        self.backend.shutdown().await;
        self.backend = Arc::new(SlurmBackend::new(self.config.clone()).expect("a backend"));
        self.backend.discover().await.expect("finds Slurm");
    }
    fn waiting_spec(&self) -> JobSpec {
        script("while [ ! -f code ]; do sleep 0.05; done; exit $(cat code)")
    }
    async fn finish(&mut self, key: AttemptKey, code: i32) {
        let run = self.backend.attempt_dir(key).join("run");
        std::fs::write(run.join("code.tmp"), code.to_string()).expect("writes");
        std::fs::rename(run.join("code.tmp"), run.join("code")).expect("renames");
    }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

pub fn it_keeps_the_contract(ground: &mut Ground) {
    let conf = ground.a.conf();
    let folders = [ground.folder("lifecycle"), ground.folder("adoption")];
    block_on(async {
        let [one, two] = folders;
        conformance::lifecycle(&mut Desk::new(one, &conf, |_| {}).await).await;
        conformance::adoption(&mut Desk::new(two, &conf, |_| {}).await).await;
    });
}

pub fn it_runs_programs(ground: &mut Ground) {
    let (conf, folder) = (ground.a.conf(), ground.folder("programs"));
    block_on(async {
        conformance::programs(&mut Desk::new(folder, &conf, |_| {}).await).await;
    });
}

pub fn through_slurmrestd_too(ground: &mut Ground) {
    let (conf, folder) = (ground.a.conf(), ground.folder("rest"));
    let Some(restd) = Restd::start(&ground.a, folder.join("rest.sock")) else {
        ground.not_tried("slurmrestd is not installed");
        return;
    };
    let rest = restd.address();
    block_on(async {
        let change = |c: &mut SlurmConfig| {
            c.rest = Some(rest);
            // Without the commands: what is answered was answered by slurmrestd.
            c.bin = Some("/nonexistent".into());
        };
        let mut desk = Desk::new(folder.join("shared"), &conf, change).await;
        conformance::lifecycle(&mut desk).await;
    });
}

pub fn a_gang_has_its_ranks_and_its_first_failure(ground: &mut Ground) {
    let (conf, folder) = (ground.a.conf(), ground.folder("gang"));
    block_on(async {
        let desk = Desk::new(folder, &conf, |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        let mut spec = script(
            "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR gpus $CUDA_VISIBLE_DEVICES job $SLURM_JOB_ID",
        );
        spec.nodes = 2;
        spec.resources.gpus = 2;
        desk.go(key(1), spec.clone()).await;
        assert_eq!(ear.ended(key(1)).await, Outcome::Exited(0));
        let text = conformance::output(&*desk.backend, key(1));
        assert!(text.contains("rank 0 of 2 at alpha-n") && text.contains("rank 1 of 2"), "{text}");
        assert_eq!(text.matches("gpus 0,1").count(), 2, "each node's own: {text}");

        // The first that fails decides, and the others are told.
        let mut fails =
            script("trap 'exit 0' TERM; if [ $RANK = 1 ]; then exit 7; fi; while :; do sleep 0.05; done");
        fails.nodes = 2;
        desk.go(key(2), fails).await;
        assert_eq!(ear.ended(key(2)).await, Outcome::Exited(7));

        // A stop reaches every node, and nothing is left there.
        let mark = format!("{}", 3_600 + std::process::id());
        let mut long = script(&format!("echo ready; exec sleep {mark}"));
        long.nodes = 2;
        desk.go(key(3), long).await;
        ear.started(key(3)).await;
        conformance::wait_for_output(&*desk.backend, key(3), "ready\nready").await;
        desk.backend.command(stop(key(3), Span::secs(5), StopReason::Cancel)).await;
        assert_eq!(ear.ended(key(3)).await, Outcome::Cancelled);
        assert_eq!(sleepers(&mark), 0, "no process is left");
    });
}

/// Processes whose command line is `sleep MARK`.
pub fn sleepers(mark: &str) -> usize {
    let wanted = format!("sleep\0{mark}\0").into_bytes();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter(|e| std::fs::read(e.path().join("cmdline")).is_ok_and(|c| c == wanted)).count()
}

/// Nobody listens where the peer says: questions and answers go through the attempt's folder, and the deadline
/// holds there too.
pub fn a_guard_without_a_line_lives_by_the_files(ground: &mut Ground) {
    let (conf, folder) = (ground.a.conf(), ground.folder("files"));
    block_on(async {
        let desk = Desk::new(folder, &conf, |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        // An address that refuses.
        let line = serde_json::json!({ "addresses": ["127.0.0.1:1"], "boot": "another", "port": 1 });
        std::fs::write(desk.config.shared.join("line.json"), line.to_string()).expect("writes");
        let mut spec = script("echo ready; while :; do sleep 0.05; done");
        spec.on_lost_contact.grace = Some(Span::secs(6));
        desk.go(key(1), spec).await;
        let begun = std::time::Instant::now();
        // Renewed for longer than the grace: it lives by the answers in its folder.
        let renew = async {
            while begun.elapsed().as_secs() < 12 {
                desk.backend.renewed(conformance::CONTACT, 1, conformance::now()).await;
                tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            }
        };
        tokio::join!(renew, ear.started(key(1)));
        let dir = desk.backend.attempt_dir(key(1));
        assert!(!dir.join("ended").exists(), "it lived through two graces");
        assert!(dir.join("answer.json").exists(), "by the files");
        // No renewal any more: it ends within its grace.
        let silent = std::time::Instant::now();
        wait_until("the guard ends it", || dir.join("ended").exists()).await;
        assert!(silent.elapsed() < std::time::Duration::from_secs(7), "{:?}", silent.elapsed());
        assert_eq!(ear.ended(key(1)).await, Outcome::Stopped("lost contact".into()));
    });
}
