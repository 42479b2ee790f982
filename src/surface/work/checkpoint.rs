//! A checkpoint on disk: whole or not there, and never that of an older epoch in place of a newer one's.
//!
//! Each epoch writes a file of its own, `FILE.epoch-N`, and nothing is locked: whoever holds a lock may be on a machine that
//! sleeps, and the next epoch would wait for it. An epoch that begins says so first (`FILE.begun-N`) and reads then; one that
//! has written looks for a newer one afterwards. So what an epoch was told is kept, the next one has read; what it writes
//! later, nobody reads.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::WorkError;

/// What an epoch has kept.
const EPOCH: &str = ".epoch-";
/// That an epoch has begun.
const BEGUN: &str = ".begun-";

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
        let store = Self { file, job: job.to_owned(), epoch };
        fs::create_dir_all(store.folder()).map_err(|e| WorkError::Io("checkpoint folder", e))?;
        Ok(store)
    }

    /// The last checkpoint, or an empty one, as this epoch's own: an older epoch that still lives keeps nothing more.
    pub fn claim(&self) -> Result<Saved, WorkError> {
        let mark = self.named(BEGUN, self.epoch);
        let made = File::create(&mark).and_then(|file| file.sync_all());
        made.and_then(|()| self.sync_folder()).map_err(|e| WorkError::Io("checkpoint", e))?;
        let taken = self.take();
        if taken.is_err() && !matches!(self.read(&self.named(EPOCH, self.epoch)), Ok(Some(_))) {
            // It has not begun after all. Where this fails, too, the first error says more.
            let _ = fs::remove_file(mark);
        }
        taken
    }

    fn take(&self) -> Result<Saved, WorkError> {
        self.fenced()?;
        let mut saved = match self.newest()? {
            Some(saved) => saved,
            None => Saved { job: self.job.clone(), epoch: self.epoch, next: 0, weights: Vec::new() },
        };
        saved.epoch = self.epoch;
        self.write(&saved)?;
        for mark in [EPOCH, BEGUN] {
            for old in self.numbers(mark)?.into_iter().filter(|epoch| *epoch < self.epoch) {
                match fs::remove_file(self.named(mark, old)) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => {
                        return Err(WorkError::Io("checkpoint", e));
                    }
                    _ => {}
                }
            }
        }
        Ok(saved)
    }

    /// Keeps this, unless a newer epoch has begun.
    pub fn save(&self, next: u64, weights: &[f64]) -> Result<(), WorkError> {
        let weights = weights.iter().map(|w| w.to_bits()).collect();
        self.fenced()?;
        self.write(&Saved { job: self.job.clone(), epoch: self.epoch, next, weights })?;
        self.fenced()
    }

    fn fenced(&self) -> Result<(), WorkError> {
        match self.numbers(BEGUN)?.last() {
            Some(&theirs) if theirs > self.epoch => Err(WorkError::Fenced { ours: self.epoch, theirs }),
            _ => Ok(()),
        }
    }

    /// What the newest epoch kept.
    fn newest(&self) -> Result<Option<Saved>, WorkError> {
        for epoch in self.numbers(EPOCH)?.into_iter().rev() {
            if let Some(saved) = self.read(&self.named(EPOCH, epoch))? {
                return self.check(&saved).map(|()| Some(saved));
            }
            // It was there: a newer epoch than this one took it away.
            self.fenced()?;
        }
        // Builds before this one kept it under the name itself.
        match self.read(&self.file)? {
            Some(saved) => self.check(&saved).map(|()| Some(saved)),
            None => Ok(None),
        }
    }

    /// Epochs that have such a file, the oldest first.
    fn numbers(&self, mark: &str) -> Result<Vec<u64>, WorkError> {
        let fault = |e: io::Error| WorkError::Io("checkpoint folder", e);
        let name = self.file.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let mut epochs = Vec::new();
        for entry in fs::read_dir(self.folder()).map_err(fault)? {
            let entry = entry.map_err(fault)?.file_name();
            let number = entry.to_str().and_then(|e| e.strip_prefix(name)?.strip_prefix(mark));
            epochs.extend(number.and_then(|n| n.parse::<u64>().ok()));
        }
        epochs.sort_unstable();
        Ok(epochs)
    }

    fn check(&self, saved: &Saved) -> Result<(), WorkError> {
        if saved.job != self.job {
            let text = format!("it is of job {}", saved.job);
            return Err(WorkError::Checkpoint(self.file.clone(), text));
        }
        Ok(())
    }

    fn folder(&self) -> &Path {
        self.file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    fn named(&self, mark: &str, epoch: u64) -> PathBuf {
        PathBuf::from(format!("{}{mark}{epoch}", self.file.display()))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(self.folder())?.sync_all()
    }

    fn read(&self, file: &Path) -> Result<Option<Saved>, WorkError> {
        match fs::read(file) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|e| WorkError::Checkpoint(file.to_owned(), e.to_string())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(WorkError::Io("checkpoint", e)),
        }
    }

    fn write(&self, saved: &Saved) -> Result<(), WorkError> {
        let fault = |e: io::Error| WorkError::Io("checkpoint", e);
        let fresh = self.named(".new-", self.epoch);
        let bytes = serde_json::to_vec(saved).map_err(|e| fault(io::Error::other(e)))?;
        let mut file = File::create(&fresh).map_err(fault)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(fault)?;
        fs::rename(&fresh, self.named(EPOCH, self.epoch)).map_err(fault)?;
        self.sync_folder().map_err(fault)
    }
}
