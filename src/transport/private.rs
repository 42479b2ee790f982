//! Files and folders that their owner alone may read, whatever the umask: a peer's disk holds every job's environment.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Rights of everybody but the owner.
const OTHERS: u32 = 0o077;
/// Anybody may put files there, as in `/tmp`: it is no folder of ours, though we may own it.
const STICKY: u32 = 0o1000;

/// What opens a file that is made with mode 0600 where it is not there yet.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Makes a folder, and those above it, with mode 0700. One that is there stays as it is.
pub fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Makes a folder of ours, or takes away what others may do in the one that is there.
pub fn folder(folder: &Path) -> io::Result<()> {
    make(folder)?;
    tighten(folder).map(|_| ())
}

/// Takes away what others may do with a file or folder that an older version made, or a careless copy. True if they could do
/// anything. What is not there, is a link or socket, or belongs to somebody else is left alone.
pub fn tighten(path: &Path) -> io::Result<bool> {
    let meta = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        meta => meta?,
    };
    let ours = meta.uid() == rustix::process::geteuid().as_raw()
        && (meta.is_file() || meta.is_dir() || meta.file_type().is_fifo());
    let mode = meta.permissions().mode();
    if !ours || mode & OTHERS == 0 || mode & STICKY != 0 {
        return Ok(false);
    }
    fs::set_permissions(path, Permissions::from_mode(mode & 0o7777 & !OTHERS))?;
    Ok(true)
}

/// The same with a file whose text opens a door: says it, since somebody may have read it.
pub fn tighten_secret(path: &Path) -> io::Result<()> {
    if tighten(path)? {
        tracing::warn!(
            "{}: others than its owner could read it, now they cannot: if anybody may have, replace what it opens",
            path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o7777
    }

    #[test]
    fn what_is_ours_is_closed_to_others_and_nothing_else_is() {
        let dir = tempfile::tempdir().expect("a folder");
        let deep = dir.path().join("a/b");
        folder(&deep).expect("makes");
        assert_eq!((mode(&deep), mode(&dir.path().join("a"))), (0o700, 0o700));
        let (file, link) = (deep.join("file"), deep.join("link"));
        fs::write(&file, "x").expect("writes");
        std::os::unix::fs::symlink(&file, &link).expect("links");
        for (open, closed) in [(0o644, 0o600), (0o755, 0o700), (0o640, 0o600)] {
            fs::set_permissions(&file, Permissions::from_mode(open)).expect("ours");
            assert!(!tighten(&link).expect("looks"), "a link says nothing of what it names");
            assert!(tighten(&file).expect("tightens"));
            assert_eq!(mode(&file), closed);
            assert!(!tighten(&file).expect("looks"), "once");
        }
        fs::set_permissions(&deep, Permissions::from_mode(0o1777)).expect("ours");
        folder(&deep).expect("is there");
        assert_eq!(mode(&deep), 0o1777, "a folder for everybody is not ours to close");
        assert!(!tighten(&deep.join("none")).expect("looks"));
    }
}
