//! The peer's disk: a crash-safe store with group commit.
//!
//! One thread owns it. It merges every batch that waits into one commit, appends that to a log with one sync
//! (`log.rs`), and then answers the batches in order. What was answered survives kill -9 and power loss; a batch is
//! never half applied. A second thread carries what the log holds over into a database (`database.rs`), many commits
//! at once, so that a start reads little. After a failed commit nothing can be promised any more (the kernel may have
//! dropped the dirty pages and a second fsync would lie), so the store answers everything with an error until the peer
//! is started again.

mod database;
mod error;
mod log;
mod metrics;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{Read, Seek, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use redb::Database;
use rustix::fs::{FlockOperation, flock};
use tokio::sync::mpsc;

pub use error::StoreError;
pub use metrics::StoreMetrics;

use self::database::{FILE, Pending, sync_dir};
use self::log::Log;
use crate::base::{Bytes, StoreId};
use crate::core::{DiskImage, Write};
use crate::transport::private;

/// The newest format of the state folder that this binary reads.
pub const FORMAT: u32 = 2;
/// Format of a folder whose log may hold commits that its database has not: a binary that knows no log must not read
/// it.
const FORMAT_LOG: u32 = 2;
/// Format of a folder that was closed in order: all of it is in the database.
const FORMAT_PLAIN: u32 = 1;
/// Batches that may wait before `submit` waits.
const QUEUE_MAX: usize = 4_096;
/// A thread that waits for a place among them looks again after this.
const FULL_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);
/// Batches and bytes that one commit takes at most, so that no batch waits for ever behind a flood.
const COMMIT_BATCHES_MAX: usize = 1_024;
const COMMIT_BYTES_MAX: usize = 8 << 20;

/// Writes that are applied together or not at all.
pub struct Batch {
    /// In order.
    pub writes: Vec<Write>,
    /// Called once on the store's thread, in the order of submission: it must not block.
    pub done: Box<dyn FnOnce(Result<(), StoreError>) + Send>,
}

impl Batch {
    /// A batch and what to do when it is on disk.
    pub fn new(writes: Vec<Write>, done: impl FnOnce(Result<(), StoreError>) + Send + 'static) -> Self {
        Self { writes, done: Box::new(done) }
    }

    fn bytes(&self) -> usize {
        self.writes.iter().map(|w| w.key.len() + w.value.as_ref().map_or(0, Vec::len)).sum()
    }
}

/// One peer's store. Dropping the last handle commits what waits and closes it.
#[derive(Clone)]
pub struct Store {
    id: StoreId,
    boot: u64,
    dir: PathBuf,
    metrics: StoreMetrics,
    queue: mpsc::Sender<Batch>,
    // Last, so that the queue is closed by the time the thread is waited for.
    _writer: Arc<Writer>,
}

impl Store {
    /// A store was made in this state folder; true also where that cannot be told.
    pub fn is_at(dir: &Path) -> bool {
        // An empty file is one that somebody emptied: a database has a header from its first moment on.
        let there = |path: PathBuf| match fs::metadata(path) {
            Ok(meta) => meta.len() > 0,
            Err(e) => e.kind() != std::io::ErrorKind::NotFound,
        };
        there(dir.join(FILE)) || there(dir.join(NEXT).join(FILE))
    }

    /// Opens the state folder, makes it where it is not there, and reads all rows. Counts one boot, durably.
    pub fn open(dir: &Path) -> Result<(Self, DiskImage), StoreError> {
        private::make(dir).map_err(|e| StoreError::Folder { dir: dir.into(), text: e.to_string().into() })?;
        let lock = lock(dir)?;
        close_to_others(dir)?;
        let mut format = check_version_file(dir)?;
        if finish_replacing(dir, format)?.is_some() {
            format = FORMAT_PLAIN;
        }
        let (database, found) = database::open(dir, format == FORMAT_LOG)?;
        sync_dir(dir)?;
        if format == FORMAT_LOG {
            // All of it is in the database now: as long as the log is begun anew, nobody misses it.
            write_version_file(dir, FORMAT_PLAIN)?;
        }
        let log = Log::begin(dir, 0, found.commits + 1)?;
        log::retire(dir, 1)?;
        sync_dir(dir)?;
        // Before the log holds anything that the database does not, and when it would be missed.
        write_version_file(dir, FORMAT_LOG)?;
        let metrics = StoreMetrics::default();
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let committer = Committer {
            dir: dir.to_owned(),
            database: Arc::new(database),
            log,
            which: 0,
            commits: found.commits,
            pending: Pending::new(),
            checkpoint: None,
            metrics: metrics.clone(),
            poisoned: None,
        };
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || {
                committer.run(waiting);
                drop(lock);
            })
            .map_err(|e| StoreError::io("starting the store's thread", &e))?;
        let writer = Arc::new(Writer { thread: Some(thread) });
        let store =
            Self { id: found.id, boot: found.boot, dir: dir.to_owned(), metrics, queue, _writer: writer };
        Ok((store, found.image))
    }

    /// Puts the closed store in this folder aside and begins a new one, a new disk, with some rows made from the old. The old files
    /// are kept: says where. A crash on the way leaves the one or the other.
    pub fn begin_anew(
        dir: &Path,
        rows: impl FnOnce(StoreId, &DiskImage) -> Vec<Write>,
    ) -> Result<PathBuf, StoreError> {
        let failed = |e: std::io::Error| StoreError::io("beginning a new store", &e);
        let old = {
            let _lock = lock(dir)?;
            let format = check_version_file(dir)?;
            let found = database::open(dir, format == FORMAT_LOG)?.1;
            if format == FORMAT_LOG {
                // It was not closed in order. The new one that comes in its place has no log yet.
                write_version_file(dir, FORMAT_PLAIN)?;
            }
            found
        };
        let next = dir.join(NEXT);
        if let Err(e) = fs::remove_dir_all(&next)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            return Err(failed(e));
        }
        let making = dir.join("store.making");
        if let Err(e) = fs::remove_dir_all(&making)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            return Err(failed(e));
        }
        let (store, _) = Self::open(&making)?;
        store.commit_blocking(rows(old.id, &old.image))?;
        // Closed in order: all of it is in its database.
        drop(store);
        let note = || -> std::io::Result<()> {
            let mut file =
                private::options().create(true).truncate(true).write(true).open(making.join(ASIDE))?;
            write!(file, "{}-boot-{}", old.id, old.boot)?;
            file.sync_all()
        };
        note().map_err(failed)?;
        sync_dir(&making)?;
        fs::rename(&making, &next).map_err(failed)?;
        sync_dir(dir)?;
        let _lock = lock(dir)?;
        let aside = finish_replacing(dir, FORMAT_PLAIN)?;
        aside.ok_or_else(|| StoreError::Corrupt("the new store is not where it was put".into()))
    }

    /// This disk's identity, made once.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// How often this store was opened; strictly growing.
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// Its counters.
    pub fn metrics(&self) -> &StoreMetrics {
        &self.metrics
    }

    /// Hands a batch over; waits while the queue is full. `done` is always called, with an error where the
    /// store is closed or poisoned.
    pub async fn submit(&self, batch: Batch) {
        if let Err(mpsc::error::SendError(batch)) = self.queue.send(batch).await {
            (batch.done)(Err(StoreError::Closed));
        }
    }

    /// Commits and waits, blocking the thread: for rare callers. One on an async thread is slow there, and no mistake:
    /// waiting with `blocking_send` would end the process, and only on the day when there is something to write.
    pub fn commit_blocking(&self, writes: Vec<Write>) -> Result<(), StoreError> {
        let (sender, answer) = std::sync::mpsc::sync_channel(1);
        let mut batch = Batch::new(writes, move |result| {
            // The receiver lives until it has an answer.
            let _ = sender.send(result);
        });
        loop {
            match self.queue.try_send(batch) {
                Ok(()) => break,
                Err(mpsc::error::TrySendError::Closed(_)) => return Err(StoreError::Closed),
                Err(mpsc::error::TrySendError::Full(back)) => batch = back,
            }
            std::thread::sleep(FULL_PAUSE);
        }
        answer.recv().unwrap_or(Err(StoreError::Closed))
    }

    /// Commits and waits, without blocking the thread.
    pub async fn commit(&self, writes: Vec<Write>) -> Result<(), StoreError> {
        let (sender, answer) = tokio::sync::oneshot::channel();
        let batch = Batch::new(writes, move |result| {
            // A caller that gave up wants no answer.
            let _ = sender.send(result);
        });
        self.submit(batch).await;
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Space that an unprivileged process may still use on the store's file system.
    pub fn disk_free(&self) -> Result<Bytes, StoreError> {
        let stat =
            rustix::fs::statvfs(&self.dir).map_err(|e| StoreError::io("reading free space", &e.into()))?;
        Ok(Bytes(stat.f_bavail.saturating_mul(stat.f_frsize)))
    }
}

/// Joins the thread when the last handle goes.
struct Writer {
    thread: Option<JoinHandle<()>>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take().filter(|t| t.thread().id() != std::thread::current().id()) {
            // A panic of the thread was reported by its own hook.
            let _ = thread.join();
        }
    }
}

/// The thread that writes.
struct Committer {
    dir: PathBuf,
    database: Arc<Database>,
    log: Log,
    /// Which of the two files that is.
    which: usize,
    /// Number of the last commit.
    commits: u64,
    /// What the present file holds.
    pending: Pending,
    /// The other file is being carried over.
    checkpoint: Option<JoinHandle<Result<(), StoreError>>>,
    metrics: StoreMetrics,
    poisoned: Option<Arc<str>>,
}

impl Committer {
    fn run(mut self, mut waiting: mpsc::Receiver<Batch>) {
        while let Some(first) = waiting.blocking_recv() {
            let mut bytes = first.bytes();
            let mut group = vec![first];
            while group.len() < COMMIT_BATCHES_MAX && bytes < COMMIT_BYTES_MAX {
                let Ok(next) = waiting.try_recv() else { break };
                bytes += next.bytes();
                group.push(next);
            }
            self.commit(group, bytes);
        }
        self.close();
    }

    #[allow(clippy::disallowed_methods, reason = "how long a commit took is a metric")]
    fn commit(&mut self, group: Vec<Batch>, bytes: usize) {
        let started = Instant::now();
        let result = match &self.poisoned {
            Some(cause) => Err(StoreError::Poisoned(cause.clone())),
            None => self.append(&group, bytes),
        };
        match &result {
            Ok(writes) => self.metrics.committed(group.len(), *writes, started.elapsed()),
            Err(error) => {
                self.metrics.failed.inc_by(group.len() as u64);
                self.poison(error);
            }
        }
        let answer = result.map(|_| ());
        for batch in group {
            (batch.done)(answer.clone());
            self.pending.extend(batch.writes.into_iter().map(|w| ((w.table, w.key), w.value)));
        }
        if self.poisoned.is_none()
            && let Err(error) = self.turn_over()
        {
            self.poison(&error);
        }
    }

    fn poison(&mut self, error: &StoreError) {
        if self.poisoned.is_none() {
            tracing::error!(%error, "the store failed: this peer can promise nothing more");
            self.poisoned = Some(error.to_string().into());
        }
    }

    fn append(&mut self, group: &[Batch], bytes: usize) -> Result<usize, StoreError> {
        let writes = group.iter().map(|b| b.writes.len()).sum();
        if writes > 0 {
            let mut frame = log::frame(bytes + 16 * writes);
            group.iter().flat_map(|b| &b.writes).for_each(|write| log::add(&mut frame, write));
            self.log.append(self.commits + 1, &mut frame)?;
            self.commits += 1;
        }
        Ok(writes)
    }

    /// A full file is carried over by a thread of its own, while the other one takes what comes.
    fn turn_over(&mut self) -> Result<(), StoreError> {
        if self.log.len() < log::FILE_BYTES {
            return Ok(());
        }
        let behind = self.log.len() < 8 * log::FILE_BYTES;
        if self.checkpoint.as_ref().is_some_and(|thread| behind && !thread.is_finished()) {
            return Ok(());
        }
        self.checkpointed()?;
        let next = 1 - self.which;
        // One number is for the empty commit that says that the other file goes on: who finds it there and the other
        // file not knows that commits are lost.
        let log = Log::begin(&self.dir, next, self.commits + 2)?;
        sync_dir(&self.dir)?;
        self.log.append(self.commits + 1, &mut log::frame(0))?;
        self.commits += 1;
        (self.log, self.which) = (log, next);
        let (pending, commits, database) =
            (std::mem::take(&mut self.pending), self.commits, self.database.clone());
        let thread = std::thread::Builder::new()
            .name("store checkpoint".into())
            .spawn(move || database::checkpoint(&database, &pending, commits))
            .map_err(|e| StoreError::io("starting a checkpoint", &e))?;
        self.checkpoint = Some(thread);
        Ok(())
    }

    /// Waits for a checkpoint that is under way.
    fn checkpointed(&mut self) -> Result<(), StoreError> {
        match self.checkpoint.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(done)) => done,
            Some(Err(_)) => Err(StoreError::Corrupt("a checkpoint panicked".into())),
        }
    }

    /// Puts all into the database, so that a binary that knows no log may open the folder.
    fn close(&mut self) {
        let done = match self.checkpointed() {
            Ok(()) if self.poisoned.is_none() => {
                database::checkpoint(&self.database, &self.pending, self.commits)
                    .and_then(|()| write_version_file(&self.dir, FORMAT_PLAIN))
            }
            other => other,
        };
        if let Err(error) = done {
            // All of it is in the log; the next start reads it.
            tracing::warn!(%error, "the store was not closed in order");
        }
    }
}

/// A new store that waits to take the place of the old one,
const NEXT: &str = "store.next";
/// and a note in it under which name the old one is kept.
const ASIDE: &str = "aside";

/// Where stores that were put aside are.
pub fn aside_folder(dir: &Path) -> PathBuf {
    dir.join("aside")
}

/// Carries on where a replacement was begun; says where the old store is kept, if there was one.
fn finish_replacing(dir: &Path, format: u32) -> Result<Option<PathBuf>, StoreError> {
    let next = dir.join(NEXT);
    let name = match fs::read_to_string(next.join(ASIDE)) {
        Ok(name) => name,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(StoreError::io("reading the new store's note", &e)),
    };
    let aside = aside_folder(dir).join(name.trim());
    if format == FORMAT_LOG {
        // An older version left this: the new store has no log yet.
        write_version_file(dir, FORMAT_PLAIN)?;
    }
    database::replace(dir, &next, &aside)?;
    Ok(Some(aside))
}

/// Rows hold the environments of jobs. An older version made these files as the umask said.
fn close_to_others(dir: &Path) -> Result<(), StoreError> {
    let names =
        [FILE, "store.0.log", "store.1.log", "format", "format.tmp", "lock", "aside", "incidents.json", NEXT];
    let all = [dir.to_owned()].into_iter().chain(names.map(|name| dir.join(name)));
    for path in all {
        private::tighten(&path).map_err(|e| StoreError::io("closing the state folder to others", &e))?;
    }
    Ok(())
}

/// Held as long as the file is open: by the store's thread.
fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join("lock");
    let mut file =
        private::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(|e| {
            match StoreError::io("opening the lock file", &e) {
                full @ StoreError::NoSpace { .. } => full,
                _ => StoreError::Folder { dir: dir.to_owned(), text: format!("its lock file: {e}").into() },
            }
        })?;
    if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(StoreError::io("locking the state folder", &error.into()));
        }
        let mut pid = String::new();
        let by = match file.take(20).read_to_string(&mut pid) {
            Ok(_) if pid.trim().parse::<u32>().is_ok() => format!(" (pid {})", pid.trim()),
            _ => String::new(),
        };
        return Err(StoreError::Locked { dir: dir.to_owned(), by });
    }
    // The pid is for people only: a disk that is too full for it is not refused here.
    let _ =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

/// The format number lies in a file of its own, since opening a database may already write to it.
fn check_version_file(dir: &Path) -> Result<u32, StoreError> {
    let path = dir.join("format");
    match fs::read_to_string(&path) {
        Ok(text) => {
            let found = text.trim().parse().map_err(|_| StoreError::NotAStore(path))?;
            if found <= FORMAT {
                return Ok(found);
            }
            Err(StoreError::NewerVersion { dir: dir.to_owned(), found, known: FORMAT })
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            write_version_file(dir, FORMAT_PLAIN).map(|()| FORMAT_PLAIN)
        }
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => Err(StoreError::NotAStore(path)),
        Err(e) => Err(StoreError::io("reading the format number", &e)),
    }
}

fn write_version_file(dir: &Path, format: u32) -> Result<(), StoreError> {
    let write = || -> std::io::Result<()> {
        let tmp = dir.join("format.tmp");
        let mut file = private::options().create(true).truncate(true).write(true).open(&tmp)?;
        writeln!(file, "{format}")?;
        file.sync_all()?;
        fs::rename(&tmp, dir.join("format"))
    };
    write().map_err(|e| StoreError::io("writing the format number", &e))?;
    sync_dir(dir)
}
