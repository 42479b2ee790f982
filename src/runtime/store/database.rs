//! The database behind the log: what a start reads, brought up to date now and then, many commits at once.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::path::Path;

use redb::backends::FileBackend;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};

use super::{StoreError, log};
use crate::base::StoreId;
use crate::base::text::words;
use crate::core::{DiskImage, Table, Write};
use crate::transport::private;

/// The database's file in the state folder.
pub(super) const FILE: &str = "store.redb";
/// Pages kept in memory; the core keeps its own copy of what it needs.
const CACHE_BYTES: usize = 16 << 20;
/// Format of the rows.
const ROWS_FORMAT: u64 = 1;

type Rows = TableDefinition<'static, &'static [u8], &'static [u8]>;
const HEADER: Rows = TableDefinition::new("header");

/// Rows that the log holds and the database does not yet; only the newest value of each matters.
pub(super) type Pending = HashMap<(Table, Vec<u8>), Option<Vec<u8>>>;

/// What a start found.
pub(super) struct Found {
    pub id: StoreId,
    pub boot: u64,
    /// Commits so far.
    pub commits: u64,
    pub image: DiskImage,
}

fn definition(table: Table) -> Rows {
    TableDefinition::new(table.name())
}

/// A thread of this name opens a database; what panics in it is told as an error.
const OPENING: &str = "store opening";

/// Opens the database, carries into it what the log holds beyond it, and counts one boot; all durable. `logged`: the
/// folder says that there is a log.
pub(super) fn open(dir: &Path, logged: bool) -> Result<(Database, Found), StoreError> {
    // redb trusts a file that was closed in order, or whose last commit is whole, and panics on pages that were damaged since. A
    // thread of its own, so that its panics alone are kept from standard error: the error says what there is to say.
    quiet_panics();
    std::thread::scope(|scope| {
        let work = || {
            let opened = std::panic::catch_unwind(|| open_unguarded(dir, logged));
            opened.unwrap_or_else(|panic| Err(StoreError::Corrupt(words_of(&*panic).into())))
        };
        let thread = std::thread::Builder::new().name(OPENING.into()).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| StoreError::io("starting a thread", &e))?;
        thread.join().unwrap_or_else(|panic| Err(StoreError::Corrupt(words_of(&*panic).into())))
    })
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|t| (*t).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    format!("store.redb cannot be read: {}", words(&text, 200))
}

fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() != Some(OPENING) {
                before(info);
            }
        }));
    });
}

fn open_unguarded(dir: &Path, logged: bool) -> Result<(Database, Found), StoreError> {
    let held = |path: std::path::PathBuf| fs::metadata(path).is_ok_and(|m| m.len() > 0);
    if logged && !held(dir.join(FILE)) {
        return Err(StoreError::Corrupt("store.redb is missing".into()));
    }
    let file = private::options().create(true).truncate(false).read(true).write(true).open(dir.join(FILE));
    let file = file.map_err(|e| StoreError::io("opening the database", &e))?;
    let file = FileBackend::new(file).map_err(|e| StoreError::redb("opening the database", e))?;
    let database = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .create_with_backend(file)
        .map_err(|e| StoreError::redb("opening the database", e))?;
    let header = header(&database)?;
    let number = |key: &str| -> Result<u64, StoreError> {
        let Some(bytes) = header.get(key) else { return Ok(0) };
        let bytes = bytes.as_slice().try_into();
        let bytes = bytes.map_err(|_| StoreError::Corrupt(format!("{key} is no number").into()))?;
        Ok(u64::from_be_bytes(bytes))
    };
    let format = number("format")?;
    if format > ROWS_FORMAT {
        let found = u32::try_from(format).unwrap_or(u32::MAX);
        return Err(StoreError::NewerVersion { dir: dir.to_owned(), found, known: super::FORMAT });
    }
    let id = match header.get("id") {
        Some(bytes) => {
            let bytes = bytes.as_slice().try_into();
            StoreId(bytes.map_err(|_| StoreError::Corrupt("the store id is not 16 bytes".into()))?)
        }
        None => StoreId(rand::random()),
    };
    let boot = number("boot")? + 1;
    let (commits, pending) = replay(dir, number("commits")?, logged)?;
    let rows = [
        ("format", ROWS_FORMAT.to_be_bytes().to_vec()),
        ("id", id.0.to_vec()),
        ("boot", boot.to_be_bytes().to_vec()),
    ];
    write(&database, &pending, commits, &rows)?;
    let image = read_all(&database)?;
    Ok((database, Found { id, boot, commits, image }))
}

/// Brings rows in, and notes which commit was the last of them.
pub(super) fn checkpoint(database: &Database, pending: &Pending, commits: u64) -> Result<(), StoreError> {
    write(database, pending, commits, &[])
}

fn write(
    database: &Database,
    pending: &Pending,
    commits: u64,
    header_rows: &[(&str, Vec<u8>)],
) -> Result<(), StoreError> {
    let mut transaction =
        database.begin_write().map_err(|e| StoreError::redb("beginning a checkpoint", e))?;
    // On disk when it returns, and open again at once after a crash (no walk over all rows).
    transaction.set_quick_repair(true);
    transaction
        .set_durability(Durability::Immediate)
        .map_err(|e| StoreError::Corrupt(format!("setting durability: {e}").into()))?;
    for kind in Table::ALL {
        let mut of_table: Vec<_> = pending.iter().filter(|((table, _), _)| *table == kind).collect();
        if of_table.is_empty() {
            continue;
        }
        // Neighbours lie on one page.
        of_table.sort_unstable_by(|a, b| a.0.1.cmp(&b.0.1));
        let mut rows =
            transaction.open_table(definition(kind)).map_err(|e| StoreError::redb("opening a table", e))?;
        for ((_, key), value) in of_table {
            match value {
                Some(value) => rows.insert(key.as_slice(), value.as_slice()).map(drop),
                None => rows.remove(key.as_slice()).map(drop),
            }
            .map_err(|e| StoreError::redb("writing a row", e))?;
        }
    }
    let mut header = transaction.open_table(HEADER).map_err(|e| StoreError::redb("opening the header", e))?;
    let counted = [("commits", commits.to_be_bytes().to_vec())];
    for (key, value) in header_rows.iter().chain(&counted) {
        header
            .insert(key.as_bytes(), value.as_slice())
            .map_err(|e| StoreError::redb("writing the header", e))?;
    }
    drop(header);
    transaction.commit().map_err(|e| StoreError::redb("a checkpoint", e))
}

/// What both log files hold beyond commit `known`, and the number of the last commit.
fn replay(dir: &Path, known: u64, logged: bool) -> Result<(u64, Pending), StoreError> {
    let lost = |text: String| StoreError::Corrupt(text.into());
    let mut files: Vec<log::Read> = Vec::new();
    for which in 0..2 {
        files.extend(log::read(dir, which, known)?);
    }
    files.sort_by_key(|file| file.base);
    match files.last() {
        // Its header was on disk before the folder said that there is a log.
        None if logged => return Err(lost("store.0.log is missing, or its header is damaged".into())),
        Some(newest) if logged && newest.goes_on() && newest.last() >= known => {
            let other = 1 - newest.which;
            return Err(lost(format!(
                "store.{other}.log goes on after commit {}, and is missing or its header is damaged",
                newest.last()
            )));
        }
        Some(newest)
            if logged && newest.base > known + 1 && newest.commits.is_empty() && files.len() == 1 =>
        {
            return Err(lost(format!(
                "the log goes on with commit {} after {known}: some are missing",
                newest.base
            )));
        }
        _ => {}
    }
    let (mut last, mut pending) = (known, Pending::new());
    for file in files {
        for (number, writes) in (file.base..).zip(file.commits) {
            if number <= last {
                continue;
            }
            if number != last + 1 {
                let text = format!("the log goes on with commit {number} after {last}: some are missing");
                return Err(StoreError::Corrupt(text.into()));
            }
            last = number;
            pending.extend(writes.into_iter().map(|Write { table, key, value }| ((table, key), value)));
        }
    }
    Ok((last, pending))
}

fn header(database: &Database) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
    let transaction = database.begin_read().map_err(|e| StoreError::redb("reading the header", e))?;
    let table = match transaction.open_table(HEADER) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
        Err(e) => return Err(StoreError::redb("opening the header", e)),
    };
    let mut rows = BTreeMap::new();
    for row in table.iter().map_err(|e| StoreError::redb("reading the header", e))? {
        let (key, value) = row.map_err(|e| StoreError::redb("reading the header", e))?;
        rows.insert(String::from_utf8_lossy(key.value()).into_owned(), value.value().to_vec());
    }
    Ok(rows)
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

/// Makes names in the folder durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| StoreError::io("syncing the state folder", &e))
}

/// Puts the store's files aside under the id of their disk, and moves the store that was prepared in `next` to their
/// place. May be called again after a crash at any point of it.
pub(super) fn replace(dir: &Path, next: &Path, aside: &Path) -> Result<(), StoreError> {
    let failed = |e: std::io::Error| StoreError::io("putting the old store aside", &e);
    let present = |path: &Path| path.try_exists().map_err(failed);
    if present(&next.join(FILE))? {
        private::folder(aside).map_err(failed)?;
        for file in [log::path(dir, 0), log::path(dir, 1), dir.join(FILE)] {
            let Some(name) = file.file_name() else { continue };
            // What lies there already was moved before the crash; what is here now is the new store's.
            if present(&file)? && !present(&aside.join(name))? {
                fs::rename(&file, aside.join(name)).map_err(failed)?;
            }
        }
        sync_dir(aside)?;
        sync_dir(dir)?;
        fs::rename(next.join(FILE), dir.join(FILE)).map_err(failed)?;
        sync_dir(dir)?;
    }
    match fs::remove_dir_all(next) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed(e)),
        _ => Ok(()),
    }
}
