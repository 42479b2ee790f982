//! A checkpoint on disk: whole or not there, and never that of an older epoch over a newer one's.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::WorkError;

/// What is kept. Numbers are kept by their bits, so that a run that goes on is the run that stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Which job.
    pub job: String,
    /// The epoch that wrote it.
    pub epoch: u64,
    /// Steps done.
    pub next: u64,
    /// Weights, as bits.
    pub weights: Vec<u64>,
}

/// Where one rank keeps its checkpoint.
pub struct Store {
    file: PathBuf,
    job: String,
    epoch: u64,
}

impl Store {
    /// A folder (there, or written with a slash at its end) gets a file per rank; a file is rank 0's,
    /// and the other ranks' lie beside it.
    pub fn new(path: &Path, job: &str, rank: u32, epoch: u64) -> Result<Self, WorkError> {
        let folder = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let file = match (folder, rank) {
            (true, _) => path.join(format!("rank-{rank}.ckpt")),
            (false, 0) => path.to_owned(),
            (false, _) => PathBuf::from(format!("{}.rank-{rank}", path.display())),
        };
        let parent = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(|e| WorkError::Io("checkpoint folder", e))?;
        Ok(Self { file, job: job.to_owned(), epoch })
    }

    /// The last checkpoint, or an empty one, marked as this epoch's, so that an older epoch that still
    /// lives can write no more.
    pub fn claim(&self) -> Result<Saved, WorkError> {
        let _lock = self.lock()?;
        let mut saved = match self.read()? {
            Some(saved) => saved,
            None => Saved { job: self.job.clone(), epoch: self.epoch, next: 0, weights: Vec::new() },
        };
        self.check(&saved)?;
        saved.epoch = self.epoch;
        self.write(&saved)?;
        Ok(saved)
    }

    /// Keeps this, unless a newer epoch has written.
    pub fn save(&self, next: u64, weights: &[f64]) -> Result<(), WorkError> {
        let _lock = self.lock()?;
        if let Some(saved) = self.read()? {
            self.check(&saved)?;
        }
        let weights = weights.iter().map(|w| w.to_bits()).collect();
        self.write(&Saved { job: self.job.clone(), epoch: self.epoch, next, weights })
    }

    fn check(&self, saved: &Saved) -> Result<(), WorkError> {
        if saved.job != self.job {
            let text = format!("it is of job {}", saved.job);
            return Err(WorkError::Checkpoint(self.file.clone(), text));
        }
        if saved.epoch > self.epoch {
            return Err(WorkError::Fenced { ours: self.epoch, theirs: saved.epoch });
        }
        Ok(())
    }

    /// Check and write are one: an older epoch cannot slip in between.
    fn lock(&self) -> Result<File, WorkError> {
        let fault = |e: io::Error| WorkError::Io("checkpoint lock", e);
        let path = self.beside("lock");
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(fault)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).map_err(|e| fault(e.into()))?;
        Ok(file)
    }

    fn beside(&self, end: &str) -> PathBuf {
        PathBuf::from(format!("{}.{end}", self.file.display()))
    }

    fn read(&self) -> Result<Option<Saved>, WorkError> {
        match fs::read(&self.file) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|e| WorkError::Checkpoint(self.file.clone(), e.to_string())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(WorkError::Io("checkpoint", e)),
        }
    }

    fn write(&self, saved: &Saved) -> Result<(), WorkError> {
        let fault = |e: io::Error| WorkError::Io("checkpoint", e);
        let fresh = self.beside("new");
        let bytes = serde_json::to_vec(saved).map_err(|e| fault(io::Error::other(e)))?;
        let mut file = File::create(&fresh).map_err(fault)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(fault)?;
        fs::rename(&fresh, &self.file).map_err(fault)?;
        let parent = self.file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent).and_then(|folder| folder.sync_all()).map_err(fault)
    }
}
