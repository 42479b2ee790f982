//! What can go wrong with a peer's disk.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why the store did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The state folder cannot be made, or cannot be closed to others. Nothing was touched.
    #[error("the state folder {dir} cannot be used: {text}; give another with --state, or mend it")]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// The system's words.
        text: Arc<str>,
    },
    /// Another process holds the state folder. Nothing was touched.
    #[error(
        "the state folder {dir} is in use by another peer process{by}: stop it, or give this peer another --state"
    )]
    Locked {
        /// The folder.
        dir: PathBuf,
        /// ` (pid 17)`, or empty where it is not known.
        by: String,
    },
    /// The state folder was written by a newer version. Nothing was touched.
    #[error(
        "the state folder {dir} has format {found}, this binary knows up to {known}: run a newer starling; nothing was touched"
    )]
    NewerVersion {
        /// The folder.
        dir: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format that this binary knows.
        known: u32,
    },
    /// The folder's version file is not one. Nothing was touched.
    #[error("{0} does not hold a format number: this is no state folder of starling; nothing was touched")]
    NotAStore(PathBuf),
    /// The disk, the quota or the file size limit is used up. The batch is not promised; the store takes no
    /// more writes until the peer is started again.
    #[error("no space for {op}: {text}; the batch is not promised, free space and start the peer again")]
    NoSpace {
        /// What was being done.
        op: &'static str,
        /// The system's words.
        text: Arc<str>,
    },
    /// The disk failed. Whether the batch was applied is unknown until the peer is started again; it takes no
    /// more writes until then.
    #[error("disk error in {op}: {text}; whether the batch is kept is known after the peer is started again")]
    Io {
        /// What was being done.
        op: &'static str,
        /// The system's words.
        text: Arc<str>,
    },
    /// The database or its log is damaged, or a part of it is missing. Promises may be lost with it, so no older copy may take its
    /// place, and this disk is left for good.
    #[error(
        "the store in the state folder is damaged ({0}): put no older copy in its place; remove this member at another peer (`starling member remove --force NAME`), then start with an empty state folder and --join; keep the damaged one until you know the cause (docs/operating.md, Disk)"
    )]
    Corrupt(Arc<str>),
    /// An earlier commit failed, so nothing can be promised any more. The batch was not applied.
    #[error("an earlier commit failed ({0}): the store takes nothing more until the peer is started again")]
    Poisoned(Arc<str>),
    /// The disk is an older copy of itself: another peer has seen more of it.
    #[error("{0}")]
    RolledBack(Arc<str>),
    /// The store is closed. The batch was not applied.
    #[error("the store is closed: the peer is stopping")]
    Closed,
}

impl StoreError {
    pub(super) fn io(op: &'static str, error: &io::Error) -> Self {
        let text: Arc<str> = error.to_string().into();
        let full = matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        );
        if full { Self::NoSpace { op, text } } else { Self::Io { op, text } }
    }

    /// From any of redb's errors, by way of its widest one.
    pub(super) fn redb(op: &'static str, error: impl Into<redb::Error>) -> Self {
        match error.into() {
            redb::Error::Io(e) => Self::io(op, &e),
            redb::Error::PreviousIo => Self::Poisoned("disk error".into()),
            redb::Error::DatabaseClosed => Self::Closed,
            redb::Error::Corrupted(text) => Self::Corrupt(text.into()),
            other => Self::Corrupt(format!("{op}: {other}").into()),
        }
    }
}
