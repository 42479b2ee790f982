//! The peer's disk: a crash-safe store with group commit.
//!
//! One thread owns the database. It merges every batch that waits into one transaction with one durable
//! commit, then answers them in order. What was answered survives kill -9 and power loss; a batch is never
//! half applied. After a failed commit nothing can be promised any more (the kernel may have dropped the
//! dirty pages and a second fsync would lie), so the store answers everything with an error until the peer
//! is started again.

mod error;
mod metrics;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use rustix::fs::{FlockOperation, flock};
use tokio::sync::mpsc;

pub use error::StoreError;
pub use metrics::StoreMetrics;

use crate::base::{Bytes, StoreId};
use crate::core::{DiskImage, Table, Write};

/// Format of the state folder that this binary writes, and the newest that it reads.
pub const FORMAT: u32 = 1;
/// The database's file in the state folder.
const FILE: &str = "store.redb";
/// Batches that may wait before `submit` waits.
const QUEUE_MAX: usize = 4_096;
/// Batches and bytes that one commit takes at most, so that no batch waits for ever behind a flood.
const COMMIT_BATCHES_MAX: usize = 1_024;
const COMMIT_BYTES_MAX: usize = 8 << 20;
/// Pages kept in memory; the core keeps its own copy of what it needs.
const CACHE_BYTES: usize = 16 << 20;

type Rows = TableDefinition<'static, &'static [u8], &'static [u8]>;
const HEADER: Rows = TableDefinition::new("header");

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
        dir.join(FILE).try_exists().unwrap_or(true)
    }

    /// Opens the state folder, makes it where it is not there, and reads all rows. Counts one boot, durably.
    pub fn open(dir: &Path) -> Result<(Self, DiskImage), StoreError> {
        fs::create_dir_all(dir).map_err(|e| StoreError::io("making the state folder", &e))?;
        let lock = lock(dir)?;
        check_version_file(dir)?;
        let database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create(dir.join(FILE))
            .map_err(|e| StoreError::redb("opening the database", e))?;
        let (id, boot) = count_boot(dir, &database)?;
        sync_dir(dir)?;
        let image = read_all(&database)?;
        let metrics = StoreMetrics::default();
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let counters = metrics.clone();
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || {
                Committer { database, metrics: counters, poisoned: None }.run(waiting);
                drop(lock);
            })
            .map_err(|e| StoreError::io("starting the store's thread", &e))?;
        let writer = Arc::new(Writer { thread: Some(thread) });
        Ok((Self { id, boot, dir: dir.to_owned(), metrics, queue, _writer: writer }, image))
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

    /// Commits and waits. For rare callers off the async threads.
    pub fn commit_blocking(&self, writes: Vec<Write>) -> Result<(), StoreError> {
        let (sender, answer) = std::sync::mpsc::sync_channel(1);
        let batch = Batch::new(writes, move |result| {
            // The receiver lives until it has an answer.
            let _ = sender.send(result);
        });
        self.queue.blocking_send(batch).map_err(|_| StoreError::Closed)?;
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
    database: Database,
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
            self.commit(group);
        }
    }

    #[allow(clippy::disallowed_methods, reason = "how long a commit took is a metric")]
    fn commit(&mut self, group: Vec<Batch>) {
        let started = Instant::now();
        let result = match &self.poisoned {
            Some(cause) => Err(StoreError::Poisoned(cause.clone())),
            None => self.apply(&group),
        };
        match &result {
            Ok(writes) => self.metrics.committed(group.len(), *writes, started.elapsed()),
            Err(error) => {
                self.metrics.failed.inc_by(group.len() as u64);
                if self.poisoned.is_none() {
                    tracing::error!(%error, "the store failed: this peer can promise nothing more");
                    self.poisoned = Some(error.to_string().into());
                }
            }
        }
        let answer = result.map(|_| ());
        for batch in group {
            (batch.done)(answer.clone());
        }
    }

    fn apply(&self, group: &[Batch]) -> Result<usize, StoreError> {
        let mut transaction =
            self.database.begin_write().map_err(|e| StoreError::redb("beginning a commit", e))?;
        durable(&mut transaction)?;
        let mut count = 0;
        for kind in Table::ALL {
            let of_table = || group.iter().flat_map(|b| &b.writes).filter(|w| w.table == kind);
            if of_table().next().is_none() {
                continue;
            }
            let mut rows = transaction
                .open_table(definition(kind))
                .map_err(|e| StoreError::redb("opening a table", e))?;
            for write in of_table() {
                count += 1;
                let key = write.key.as_slice();
                match &write.value {
                    Some(value) => rows.insert(key, value.as_slice()).map(drop),
                    None => rows.remove(key).map(drop),
                }
                .map_err(|e| StoreError::redb("writing a row", e))?;
            }
        }
        transaction.commit().map_err(|e| StoreError::redb("a commit", e))?;
        Ok(count)
    }
}

fn definition(table: Table) -> Rows {
    TableDefinition::new(table.name())
}

/// On disk when `commit` returns, and open again at once after a crash (no walk over all rows).
fn durable(transaction: &mut redb::WriteTransaction) -> Result<(), StoreError> {
    transaction.set_quick_repair(true);
    transaction
        .set_durability(Durability::Immediate)
        .map_err(|e| StoreError::Corrupt(format!("setting durability: {e}").into()))
}

/// Held as long as the file is open: by the store's thread.
fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join("lock");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .map_err(|e| StoreError::io("opening the lock file", &e))?;
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
fn check_version_file(dir: &Path) -> Result<(), StoreError> {
    let path = dir.join("format");
    match fs::read_to_string(&path) {
        Ok(text) => {
            let found = text.trim().parse().map_err(|_| StoreError::NotAStore(path))?;
            newer(dir, found)
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let write = || -> std::io::Result<()> {
                let tmp = dir.join("format.tmp");
                let mut file = File::create(&tmp)?;
                writeln!(file, "{FORMAT}")?;
                file.sync_all()?;
                fs::rename(&tmp, &path)
            };
            write().map_err(|e| StoreError::io("writing the format number", &e))?;
            sync_dir(dir)
        }
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => Err(StoreError::NotAStore(path)),
        Err(e) => Err(StoreError::io("reading the format number", &e)),
    }
}

fn newer(dir: &Path, found: u32) -> Result<(), StoreError> {
    if found <= FORMAT {
        return Ok(());
    }
    Err(StoreError::NewerVersion { dir: dir.to_owned(), found, known: FORMAT })
}

/// Reads the store's id (or makes it) and counts this boot, durably.
fn count_boot(dir: &Path, database: &Database) -> Result<(StoreId, u64), StoreError> {
    let mut transaction = database.begin_write().map_err(|e| StoreError::redb("counting the boot", e))?;
    durable(&mut transaction)?;
    let mut header = transaction.open_table(HEADER).map_err(|e| StoreError::redb("opening the header", e))?;
    let get = |header: &redb::Table<'_, &[u8], &[u8]>, key: &str| -> Result<Option<Vec<u8>>, StoreError> {
        let row = header.get(key.as_bytes()).map_err(|e| StoreError::redb("reading the header", e))?;
        Ok(row.map(|v| v.value().to_vec()))
    };
    let number = |bytes: Vec<u8>, what: &str| -> Result<u64, StoreError> {
        let bytes =
            bytes.try_into().map_err(|_| StoreError::Corrupt(format!("{what} is no number").into()))?;
        Ok(u64::from_be_bytes(bytes))
    };
    if let Some(found) = get(&header, "format")? {
        newer(dir, u32::try_from(number(found, "the format")?).unwrap_or(u32::MAX))?;
    }
    let id = match get(&header, "id")? {
        Some(bytes) => {
            StoreId(bytes.try_into().map_err(|_| StoreError::Corrupt("the store id is not 16 bytes".into()))?)
        }
        None => StoreId(rand::random()),
    };
    let boot = get(&header, "boot")?.map_or(Ok(0), |b| number(b, "the boot number"))? + 1;
    let rows = [
        ("format", u64::from(FORMAT).to_be_bytes().to_vec()),
        ("id", id.0.to_vec()),
        ("boot", boot.to_be_bytes().to_vec()),
    ];
    for (key, value) in rows {
        header
            .insert(key.as_bytes(), value.as_slice())
            .map_err(|e| StoreError::redb("writing the header", e))?;
    }
    drop(header);
    transaction.commit().map_err(|e| StoreError::redb("counting the boot", e))?;
    Ok((id, boot))
}

fn read_all(database: &Database) -> Result<DiskImage, StoreError> {
    let transaction = database.begin_read().map_err(|e| StoreError::redb("reading the store", e))?;
    let mut image = DiskImage::default();
    for kind in Table::ALL {
        let table = match transaction.open_table(definition(kind)) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => continue,
            Err(e) => return Err(StoreError::redb("opening a table", e)),
        };
        let mut rows = BTreeMap::new();
        for row in table.iter().map_err(|e| StoreError::redb("reading a table", e))? {
            let (key, value) = row.map_err(|e| StoreError::redb("reading a row", e))?;
            rows.insert(key.value().to_vec(), value.value().to_vec());
        }
        image.tables.insert(kind, rows);
    }
    Ok(image)
}

fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| StoreError::io("syncing the state folder", &e))
}
