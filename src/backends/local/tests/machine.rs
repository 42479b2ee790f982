//! A machine of its own for each test.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use starling::backends::Backend;
use starling::backends::conformance::{Subject, script};
use starling::backends::local::files::AttemptDir;
use starling::backends::local::{LocalBackend, LocalConfig, processes};
use starling::base::{PeerName, Span};
use starling::core::BackendCommand;
use starling::core::api::AttemptKey;
use starling::model::JobSpec;

/// The binary under test.
pub const STARLING: &str = env!("CARGO_BIN_EXE_starling");

/// A machine of its own in a temp folder.
pub struct Machine {
    pub dir: tempfile::TempDir,
    pub config: LocalConfig,
    pub backend: Arc<LocalBackend>,
}

impl Machine {
    pub fn new() -> Self {
        Self::with(|_| {})
    }
    pub fn with(change: impl FnOnce(&mut LocalConfig)) -> Self {
        let dir = tempfile::tempdir().expect("temp folder");
        let mut config = LocalConfig::new(
            dir.path().join("state"),
            STARLING.into(),
            PeerName::new("here").expect("a name"),
        );
        config.notice = Span::millis(300);
        change(&mut config);
        let backend = Arc::new(LocalBackend::new(config.clone()).expect("a backend"));
        Self { dir, config, backend }
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    pub fn attempt(&self, key: AttemptKey) -> AttemptDir {
        AttemptDir::new(self.backend.attempt_dir(key))
    }
    /// The peer goes, its guards stay.
    pub async fn stop_peer(&mut self) {
        self.backend.shutdown().await;
    }
    pub async fn start_peer(&mut self) {
        self.backend = Arc::new(LocalBackend::new(self.config.clone()).expect("a backend"));
    }
    pub async fn go(&self, command: starling::core::api::StartCommand) {
        self.backend.command(BackendCommand::Start(Box::new(command))).await;
    }
    /// A shell text that notes the boot clock in a file, for ever.
    pub fn heartbeat(&self) -> String {
        let beats = self.path("beats");
        format!("while :; do cut -d' ' -f1 /proc/uptime >> {}; sleep 0.02; done", beats.display())
    }
    pub fn last_beat(&self) -> Option<f64> {
        std::fs::read_to_string(self.path("beats")).ok()?.lines().last()?.parse().ok()
    }
}

#[async_trait]
impl Subject for Machine {
    fn backend(&self) -> Arc<dyn Backend> {
        self.backend.clone()
    }
    async fn restart(&mut self) {
        self.stop_peer().await;
        self.start_peer().await;
    }
    fn waiting_spec(&self) -> JobSpec {
        script("while [ ! -f code ]; do sleep 0.02; done; exit $(cat code)")
    }
    async fn finish(&mut self, key: AttemptKey, code: i32) {
        let run = self.attempt(key).run();
        std::fs::write(run.join("code.tmp"), code.to_string()).expect("writes");
        std::fs::rename(run.join("code.tmp"), run.join("code")).expect("renames");
    }
}

/// Processes whose command line holds this text.
pub fn with_text(text: &str) -> usize {
    processes::all()
        .iter()
        .filter(|p| !p.zombie)
        .filter(|p| std::fs::read(format!("/proc/{}/cmdline", p.id.pid)).is_ok_and(|c| contains(&c, text)))
        .count()
}
fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|w| w == text.as_bytes())
}
