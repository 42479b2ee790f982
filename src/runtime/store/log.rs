//! The write-ahead log: where a commit becomes durable, with one write and one `fdatasync`.
//!
//! Two files take turns. Each begins with a header that names the number of its first commit (`base`); then
//! frames of one commit each, `[length u32][crc u32][number u64][writes]`, numbered without a gap. The
//! checksum covers `base`, too, so that what an earlier use of the file left behind is never read as new. A
//! file is only ever overwritten when the database holds all of it.
//!
//! A file that was lost must be told from one that was never begun. So a header is on disk before the format number
//! says that there is a log, and before the full file ends with an empty commit, which says that the other one goes on;
//! and only then is anything promised that lies behind it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::StoreError;
use crate::core::{Table, Write};
use crate::transport::private;

/// A file of this size is full: the other one takes over as soon as it is free.
pub(super) const FILE_BYTES: u64 = 4 << 20;
/// Zeroes are written ahead of the frames in such pieces: then a sync has no new size to note down.
const AHEAD: u64 = 512 << 10;
const HEADER: usize = 20;
const FRAME_HEAD: usize = 16;
const MAGIC: &[u8; 8] = b"STRLLOG1";
/// No commit is larger: what the store takes into one is bounded far below.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// Name of one of the two files.
pub(super) fn path(dir: &Path, which: usize) -> PathBuf {
    dir.join(format!("store.{which}.log"))
}

/// A file that is appended to.
pub(super) struct Log {
    file: File,
    base: u64,
    at: u64,
    /// Written, with frames or zeroes, up to here.
    laid: u64,
}

fn checksum(base: u64, rest: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&base.to_be_bytes());
    sum.update(rest);
    sum.finalize()
}

impl Log {
    /// Takes a file into use: the next commit is number `base`. Its header is on disk; its name is when the folder is synced.
    pub fn begin(dir: &Path, which: usize, base: u64) -> Result<Self, StoreError> {
        let failed = |e| StoreError::io("beginning a log", &e);
        let file = private::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path(dir, which))
            .map_err(failed)?;
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&base.to_be_bytes());
        header.extend_from_slice(&checksum(0, &header).to_be_bytes());
        file.write_all_at(&header, 0).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        let laid = file.metadata().map_err(failed)?.len();
        Ok(Self { file, base, at: HEADER as u64, laid })
    }

    /// Bytes in use.
    pub fn len(&self) -> u64 {
        self.at
    }

    /// Appends one commit, a frame as `frame` made it, and syncs it.
    pub fn append(&mut self, number: u64, frame: &mut [u8]) -> Result<(), StoreError> {
        let failed = |e| StoreError::io("a commit", &e);
        seal(self.base, number, frame);
        let end = self.at + frame.len() as u64;
        if end > self.laid {
            let zeroes = vec![0; usize::try_from(AHEAD).unwrap_or_default()];
            // Where there is no room for zeroes there may still be some for the frame.
            if self.file.write_all_at(&zeroes, end).is_ok() {
                self.laid = end + AHEAD;
            }
        }
        self.file.write_all_at(frame, self.at).map_err(failed)?;
        self.file.sync_data().map_err(failed)?;
        (self.at, self.laid) = (end, self.laid.max(end));
        Ok(())
    }
}

/// Makes a file, if it is there, one that was never begun; its space is kept. All of it must be in the database.
pub(super) fn retire(dir: &Path, which: usize) -> Result<(), StoreError> {
    let failed = |e| StoreError::io("retiring a log", &e);
    match std::fs::OpenOptions::new().write(true).open(path(dir, which)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(failed(e)),
        Ok(file) => file.write_all_at(&[0; HEADER], 0).and_then(|()| file.sync_data()).map_err(failed),
    }
}

/// Begins a frame; writes are added with `add`.
pub(super) fn frame(room: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_HEAD + room);
    frame.resize(FRAME_HEAD, 0);
    frame
}

/// Adds a write: `[table u8][key length u32][key][0, or value length + 1 as u32][value]`.
pub(super) fn add(frame: &mut Vec<u8>, write: &Write) {
    let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes();
    frame.push(tag(write.table));
    frame.extend_from_slice(&length(write.key.len()));
    frame.extend_from_slice(&write.key);
    match &write.value {
        None => frame.extend_from_slice(&[0; 4]),
        Some(value) => {
            frame.extend_from_slice(&length(value.len() + 1));
            frame.extend_from_slice(value);
        }
    }
}

fn seal(base: u64, number: u64, frame: &mut [u8]) {
    let length = u32::try_from(frame.len() - FRAME_HEAD).unwrap_or(u32::MAX);
    frame[8..16].copy_from_slice(&number.to_be_bytes());
    frame[..4].copy_from_slice(&length.to_be_bytes());
    let sum = checksum(base, &frame[8..]);
    frame[4..8].copy_from_slice(&sum.to_be_bytes());
}

fn tag(table: Table) -> u8 {
    match table {
        Table::Acceptors => 0,
        Table::Attempts => 1,
        Table::Meta => 2,
        Table::Runtime => 3,
    }
}

/// What a file holds: the number of its first commit, and each commit's writes.
pub(super) struct Read {
    pub which: usize,
    pub base: u64,
    pub commits: Vec<Vec<Write>>,
}

impl Read {
    /// Number of its last commit, or of the one before its first.
    pub fn last(&self) -> u64 {
        (self.base + self.commits.len() as u64).saturating_sub(1)
    }

    /// It was full, and says that the other file goes on.
    pub fn goes_on(&self) -> bool {
        self.commits.last().is_some_and(Vec::is_empty)
    }
}

/// Reads a file to the end of its last whole commit. None where there is no file, or it was never begun. `known` is
/// the number of the last commit that the database holds.
pub(super) fn read(dir: &Path, which: usize, known: u64) -> Result<Option<Read>, StoreError> {
    let bytes = match std::fs::read(path(dir, which)) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(StoreError::io("reading a log", &e)),
    };
    let Some((header, mut rest)) = bytes.split_at_checked(HEADER) else { return Ok(None) };
    let (Some(base), Some(sum)) = (number_at(header, 8), u32_at(header, 16)) else { return Ok(None) };
    if header[..8] != *MAGIC || sum != checksum(0, &header[..16]) {
        // Commits that the database has not, behind a header that is none: a crash while it was written leaves only
        // what an earlier use of the file left, and the database holds all of that.
        return match newest_without_header(rest) {
            Some(last) if last > known => {
                Err(StoreError::Corrupt(format!("the header of store.{which}.log is damaged").into()))
            }
            _ => Ok(None),
        };
    }
    let mut commits = Vec::new();
    loop {
        let number = base + commits.len() as u64;
        match one(base, number, rest) {
            Some((frame, after)) => {
                commits.push(writes(&frame[FRAME_HEAD..]).ok_or_else(|| broken(which, number))?);
                rest = after;
            }
            None => {
                // The tail of a commit that nobody was told of. A whole commit *behind* it would mean that the disk
                // has lost one that somebody was told of.
                let behind = u32_at(rest, 0).and_then(|n| rest.get(FRAME_HEAD + n as usize..));
                if behind.is_some_and(|rest| one(base, number + 1, rest).is_some()) {
                    return Err(broken(which, number));
                }
                return Ok(Some(Read { which, base, commits }));
            }
        }
    }
}

/// The number of the last commit in bytes whose base is not known: the first frame's own number is the base.
fn newest_without_header(mut rest: &[u8]) -> Option<u64> {
    let base = number_at(rest, 8)?;
    let mut last = None;
    while let Some((_, after)) = one(base, last.map_or(base, |n: u64| n.saturating_add(1)), rest) {
        last = Some(last.map_or(base, |n| n.saturating_add(1)));
        rest = after;
    }
    last
}

fn broken(which: usize, number: u64) -> StoreError {
    StoreError::Corrupt(format!("commit {number} in store.{which}.log fails its checksum").into())
}

/// The frame of this number at the front of these bytes, and what follows it.
fn one(base: u64, number: u64, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32_at(bytes, 0)? as usize;
    if length > FRAME_BYTES_MAX || number_at(bytes, 8)? != number {
        return None;
    }
    let (frame, rest) = bytes.split_at_checked(FRAME_HEAD + length)?;
    (u32_at(frame, 4)? == checksum(base, &frame[8..])).then_some((frame, rest))
}

fn writes(mut bytes: &[u8]) -> Option<Vec<Write>> {
    let mut writes = Vec::new();
    while let Some((&table, rest)) = bytes.split_first() {
        let table = Table::ALL.into_iter().find(|t| tag(*t) == table)?;
        let (key, rest) = sized(rest, 0)?;
        let removed = u32_at(rest, 0)? == 0;
        let (value, rest) =
            if removed { (None, rest.get(4..)?) } else { sized(rest, 1).map(|(v, r)| (Some(v), r))? };
        writes.push(Write { table, key: key.to_vec(), value: value.map(<[u8]>::to_vec) });
        bytes = rest;
    }
    Some(writes)
}

fn sized(bytes: &[u8], less: u32) -> Option<(&[u8], &[u8])> {
    let length = u32_at(bytes, 0)?.checked_sub(less)? as usize;
    bytes.get(4..)?.split_at_checked(length)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn number_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
