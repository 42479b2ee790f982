//! The little of a store that members and tokens need, so that both can be tried in memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

/// One row to write; no value removes the key.
pub type Row = (Vec<u8>, Option<Vec<u8>>);

/// Keys and values that survive a crash. Calls may block on the disk: never make them on a task
/// that others wait for.
pub trait DurableKv: Send + Sync + 'static {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>>;
    /// Every row whose key starts with the prefix, in key order.
    fn scan(&self, prefix: &[u8]) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Writes all rows or none, and returns only when they are on disk (fsync).
    fn put_all(&self, rows: Vec<Row>) -> io::Result<()>;
    /// One row of [`DurableKv::put_all`].
    fn put(&self, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        self.put_all(vec![(key.to_vec(), value.map(<[u8]>::to_vec))])
    }
}

/// A store in memory, for tests. Keep a clone of the `Arc` to look at it after a "crash".
#[derive(Debug, Default)]
pub struct MemoryKv {
    rows: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    fail: std::sync::atomic::AtomicBool,
}

impl MemoryKv {
    /// From now on every write fails (true) or works again (false), like a full disk.
    pub fn fail_writes(&self, fail: bool) {
        self.fail.store(fail, std::sync::atomic::Ordering::SeqCst);
    }
    fn rows(&self) -> std::sync::MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl DurableKv for MemoryKv {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.rows().get(key).cloned())
    }
    fn scan(&self, prefix: &[u8]) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let rows = self.rows();
        let from = rows.range(prefix.to_vec()..).take_while(|(k, _)| k.starts_with(prefix));
        Ok(from.map(|(k, v)| (k.clone(), v.clone())).collect())
    }
    fn put_all(&self, new: Vec<Row>) -> io::Result<()> {
        if self.fail.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let mut rows = self.rows();
        for (key, value) in new {
            match value {
                Some(value) => drop(rows.insert(key, value)),
                None => drop(rows.remove(&key)),
            }
        }
        Ok(())
    }
}
