//! `starling work`: real, small jobs for demo, replay and tests, which note in a ledger what they did.

mod checkpoint;
mod train;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::cli::WorkCommand;
use super::documents::boottime_now;
use super::ledger::{Entry, Kind, Ledger, is_done};

/// Told to stop, as a shell counts SIGTERM.
const EXIT_STOPPED: u8 = 143;
/// A newer epoch owns the checkpoint: this one must not go on.
const EXIT_FENCED: u8 = 75;
/// Longest `sleep`.
const SLEEP_MS_MAX: u64 = 30 * 24 * 3_600_000;

/// Why work ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkError {
    /// SIGTERM or SIGINT. The checkpoint was written.
    #[error("told to stop after step {0}")]
    Stopped(u64),
    /// A newer epoch wrote the checkpoint; it was left alone.
    #[error("epoch {theirs} owns the checkpoint and this is epoch {ours}: it was not touched")]
    Fenced { ours: u64, theirs: u64 },
    /// The checkpoint is not one of this work.
    #[error("the checkpoint at {0} cannot be used: {1}")]
    Checkpoint(PathBuf, String),
    /// Disk or system.
    #[error("{0}: {1}")]
    Io(&'static str, std::io::Error),
}

impl WorkError {
    fn code(&self) -> u8 {
        match self {
            Self::Stopped(_) => EXIT_STOPPED,
            Self::Fenced { .. } => EXIT_FENCED,
            Self::Checkpoint(..) | Self::Io(..) => 1,
        }
    }
}

/// Who this process is, as Starling told it.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub job: String,
    pub rank: u32,
    pub epoch: u64,
    pub cluster: String,
    pub checkpoint: Option<PathBuf>,
}

impl Identity {
    fn from_env() -> Self {
        let text = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let number = |name: &str| text(name).and_then(|v| v.parse::<u64>().ok());
        let path = text("CHECKPOINT_PATH").map(|p| p.strip_prefix("file://").map(str::to_owned).unwrap_or(p));
        Self {
            job: text("STARLING_JOB_ID").unwrap_or_else(|| "local".into()),
            rank: number("STARLING_RANK").and_then(|r| u32::try_from(r).ok()).unwrap_or(0),
            epoch: number("STARLING_EPOCH").unwrap_or(0),
            cluster: text("STARLING_CLUSTER").unwrap_or_else(|| "here".into()),
            checkpoint: path.map(PathBuf::from),
        }
    }
}

/// Notes what happens, if there is a ledger.
pub(crate) struct Notes {
    identity: Identity,
    ledger: Option<(Ledger, PathBuf)>,
}

impl Notes {
    pub fn open(identity: Identity, path: Option<&Path>) -> Result<Self, WorkError> {
        let open = |p: &Path| Ledger::open(p).map(|ledger| (ledger, p.to_owned()));
        let ledger = path.map(open).transpose().map_err(|e| WorkError::Io("ledger", e))?;
        Ok(Self { identity, ledger })
    }

    pub fn add(
        &mut self,
        kind: Kind,
        step: Option<u64>,
        steps: Option<u64>,
        from_us: u64,
    ) -> Result<(), WorkError> {
        let Some((ledger, _)) = &mut self.ledger else { return Ok(()) };
        let entry = Entry {
            kind,
            job: self.identity.job.clone(),
            rank: self.identity.rank,
            epoch: self.identity.epoch,
            pid: std::process::id(),
            cluster: self.identity.cluster.clone(),
            step,
            steps,
            from_us,
            to_us: boottime_now().0,
        };
        ledger.add(&entry).map_err(|e| WorkError::Io("ledger", e))
    }

    /// This job and rank was noted as done before.
    pub fn done_before(&self) -> Result<bool, WorkError> {
        let Some((_, path)) = &self.ledger else { return Ok(false) };
        is_done(path, &self.identity.job, self.identity.rank).map_err(|e| WorkError::Io("ledger", e))
    }
}

/// SIGTERM and SIGINT.
pub(crate) struct Stop {
    term: Signal,
    int: Signal,
}

impl Stop {
    fn listen() -> Result<Self, WorkError> {
        let listen = |kind| signal(kind).map_err(|e| WorkError::Io("signals", e));
        Ok(Self { term: listen(SignalKind::terminate())?, int: listen(SignalKind::interrupt())? })
    }

    /// True when told to stop before `time` has passed.
    pub async fn within(&mut self, time: Duration) -> bool {
        tokio::select! { biased;
            _ = self.term.recv() => true,
            _ = self.int.recv() => true,
            () = tokio::time::sleep(time) => false,
        }
    }
}

/// The command.
pub fn main(command: WorkCommand) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("work: {error}");
            return ExitCode::FAILURE;
        }
    };
    let identity = Identity::from_env();
    let result = runtime.block_on(async {
        let mut stop = Stop::listen()?;
        match command {
            WorkCommand::Train { steps, step_ms, checkpoint_every, ledger } => {
                let plan = train::Plan { steps, step: Duration::from_millis(step_ms), checkpoint_every };
                train::train(&identity, plan, ledger.as_deref(), &mut stop).await
            }
            WorkCommand::Sleep { ms, ledger } => sleep(&identity, ms, ledger.as_deref(), &mut stop).await,
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("work: {error}");
            ExitCode::from(error.code())
        }
    }
}

async fn sleep(
    identity: &Identity,
    ms: u64,
    ledger: Option<&Path>,
    stop: &mut Stop,
) -> Result<(), WorkError> {
    let mut notes = Notes::open(identity.clone(), ledger)?;
    let from = boottime_now().0;
    notes.add(Kind::Begin, None, None, from)?;
    // The result of an earlier attempt may have been lost with its cluster; the work itself was done.
    if notes.done_before()? {
        return notes.add(Kind::Again, None, None, from);
    }
    if stop.within(Duration::from_millis(ms.min(SLEEP_MS_MAX))).await {
        notes.add(Kind::Stopped, None, None, from)?;
        return Err(WorkError::Stopped(0));
    }
    notes.add(Kind::Done, None, None, from)
}

#[cfg(test)]
mod tests;
