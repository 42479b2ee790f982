//! Marks and silences over a restart: one small file in the state folder, replaced as a whole.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::model::alert::{Mark, Silence};

/// Larger is not ours.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// What was said.
    pub marks: Vec<Mark>,
    /// What shall not be said.
    pub silences: Vec<Silence>,
}

fn file(folder: &Path) -> PathBuf {
    folder.join("incidents.json")
}

/// Reads it; nothing where there is none. One that cannot be read is an error: the peer goes on without it.
pub fn load(folder: &Path) -> io::Result<Kept> {
    let path = file(folder);
    match std::fs::metadata(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Kept::default()),
        Err(e) => return Err(e),
        Ok(meta) if meta.len() > FILE_BYTES_MAX => return Err(io::Error::other("it is too large")),
        Ok(_) => {}
    }
    serde_json::from_slice(&std::fs::read(&path)?).map_err(io::Error::other)
}

/// Puts it in the place of the old one: after a crash there is the one or the other.
pub fn save(folder: &Path, kept: &Kept) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let (path, next) = (file(folder), folder.join("incidents.json.new"));
    let mut out =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    out.write_all(&serde_json::to_vec(kept).map_err(io::Error::other)?)?;
    out.sync_all()?;
    std::fs::rename(&next, &path)?;
    std::fs::File::open(folder)?.sync_all()
}
