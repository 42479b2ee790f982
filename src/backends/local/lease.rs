//! A contact's last counted renewal, as the peer shows it to guards: in space that it has already.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::files::{private_file, read_json, remove};
use crate::base::Instant;

/// A counted renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// When it was sent.
    pub sent_at: Instant,
    /// In which boot.
    pub boot: String,
    /// Over both: a file that is written again in place might be read while it is. Versions that know no sum
    /// write a file of its own each time, and a guard of theirs reads ours without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum: Option<u32>,
}

impl Lease {
    /// Bytes of its file, always: the next renewal needs no more of the disk than this one.
    const BYTES: u64 = 256;

    /// One that was sent at this time of a boot.
    pub fn new(sent_at: Instant, boot: String) -> Self {
        let sum = Some(Self::sum_of(sent_at, &boot));
        Self { sent_at, boot, sum }
    }

    fn sum_of(sent_at: Instant, boot: &str) -> u32 {
        crc32fast::hash(format!("{} {boot}", sent_at.0).as_bytes())
    }

    /// Reads the newest one; an error where it is not whole.
    pub fn read(path: &Path) -> io::Result<Self> {
        let lease: Self = read_json(path)?;
        if lease.sum.is_some_and(|sum| sum != Self::sum_of(lease.sent_at, &lease.boot)) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a renewal fails its checksum"));
        }
        Ok(lease)
    }

    /// Shows it to guards. A spare file is written in place and takes the other's name, which becomes the spare: so a reader
    /// finds a whole one, and a full disk, which would end every healthy job here, keeps no renewal from them.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let spare = path.with_extension("tmp");
        let mut text = serde_json::to_vec(self)?;
        text.resize(text.len().max(usize::try_from(Self::BYTES).unwrap_or(0)), b' ');
        if fs::metadata(&spare).is_ok_and(|m| m.len() == Self::BYTES) {
            let mut file = OpenOptions::new().write(true).open(&spare)?;
            file.write_all(&text)?;
        } else {
            // Of another version, or half made: somebody may be reading it still, so it is not written to.
            remove(&spare)?;
            private_file(&spare)?.write_all(&text)?;
        }
        match renameat_with(CWD, &spare, CWD, path, RenameFlags::EXCHANGE) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT) => {
                fs::rename(&spare, path)?;
                // Now, while there is room. Where there is none, the next renewal says so.
                let _ = private_file(&spare).and_then(|mut file| file.write_all(&text));
                return Ok(());
            }
            // A file system that cannot exchange names.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e.into()),
        }
        fs::rename(&spare, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_take_turns_in_two_files_and_are_whole_for_every_version() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("c-1.lease");
        // What the version before wrote.
        fs::write(&path, br#"{"sent_at":7,"boot":"b"}"#).expect("writes");
        assert_eq!(Lease::read(&path).expect("reads").sent_at, Instant(7));
        let mut files = std::collections::BTreeSet::new();
        for n in 100..140 {
            Lease::new(Instant(n), "b".into()).write(&path).expect("writes");
            assert_eq!(Lease::read(&path).expect("reads").sent_at, Instant(n));
            let text: serde_json::Value = read_json(&path).expect("json");
            assert_eq!(
                (&text["sent_at"], &text["boot"]),
                (&n.into(), &"b".into()),
                "what an older guard reads"
            );
            let inode = |p: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(p).expect("there"));
            if n >= 102 {
                files.extend([inode(&path), inode(&path.with_extension("tmp"))]);
            }
        }
        assert_eq!(files.len(), 2, "no new file is made");
    }

    #[test]
    fn a_renewal_that_is_torn_is_none() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("c-1.lease");
        let text = |n| {
            Lease::new(Instant(n), "b".into()).write(&path).expect("writes");
            fs::read(&path).expect("reads")
        };
        let (old, new) = (text(1_999_999), text(2_000_000));
        for cut in 0..old.len() {
            let torn = [&new[..cut], &old[cut..]].concat();
            fs::write(&path, torn).expect("writes");
            if let Ok(lease) = Lease::read(&path) {
                assert!([1_999_999, 2_000_000].contains(&lease.sent_at.0), "cut at {cut}: {lease:?}");
            }
        }
    }
}
