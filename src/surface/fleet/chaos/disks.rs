//! A small disk of its own for each peer's state folder, which can be filled up and freed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::{FleetError, io};

/// The name of what fills a disk.
const BALLAST: &str = "ballast";
const CHUNK: usize = 64 << 10;

/// Memory file systems at these folders. Dropping it unmounts them.
pub struct Disks {
    folders: Vec<PathBuf>,
}

impl Disks {
    /// Mounts one of so many MiB at each folder, which it makes.
    pub fn new(folders: impl IntoIterator<Item = PathBuf>, mib: u32) -> Result<Self, FleetError> {
        let mut disks = Self { folders: Vec::new() };
        for folder in folders {
            crate::transport::private::make(&folder).map_err(io(folder.display()))?;
            let mut mount = Command::new("mount");
            mount
                .args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=0700"), "starling-chaos"])
                .arg(&folder);
            let done = mount.output().map_err(io("mount"))?;
            if !done.status.success() {
                let words = String::from_utf8_lossy(&done.stderr).trim().to_owned();
                return Err(FleetError::Invalid(format!("no disk for {}: {words}", folder.display())));
            }
            disks.folders.push(folder);
        }
        Ok(disks)
    }

    /// Writes until nothing more fits.
    pub fn fill(&self, i: usize) -> io::Result<()> {
        let Some(folder) = self.folders.get(i) else { return Ok(()) };
        let mut file = OpenOptions::new().create(true).append(true).open(folder.join(BALLAST))?;
        for chunk in [CHUNK, 4 << 10, 1] {
            while write(&mut file, chunk)? {}
        }
        Ok(())
    }

    /// Gives the space back.
    pub fn free(&self, i: usize) -> io::Result<()> {
        let Some(folder) = self.folders.get(i) else { return Ok(()) };
        match std::fs::remove_file(folder.join(BALLAST)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Copies what lies on a disk to a folder, for whoever looks into a violation.
    pub fn keep(&self, i: usize, to: &Path) -> io::Result<()> {
        let Some(folder) = self.folders.get(i) else { return Ok(()) };
        let done = Command::new("cp").arg("-a").arg(folder).arg(to).status()?;
        if done.success() { Ok(()) } else { Err(io::Error::other(format!("cp ended with {done}"))) }
    }
}

fn write(file: &mut File, bytes: usize) -> io::Result<bool> {
    match file.write(&vec![0; bytes]) {
        Ok(n) => Ok(n == bytes),
        Err(e) if e.kind() == io::ErrorKind::StorageFull => Ok(false),
        Err(e) => Err(e),
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for folder in &self.folders {
            // Lazily: a process that is about to end may still be in it.
            let done = Command::new("umount").arg("-l").arg(folder).status();
            if !done.is_ok_and(|s| s.success()) {
                eprintln!("starling: {} is left mounted", folder.display());
            }
        }
    }
}
