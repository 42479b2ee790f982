//! Copies a rank's output into files of bounded size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_setfl};

/// Read at once; other streams get their turn in between.
const CHUNK: usize = 64 << 10;

/// A file that is rotated when it is full: `x`, older `x.1`, oldest `x.n`.
#[derive(Debug)]
pub struct RotatingFile {
    path: PathBuf,
    file: Option<File>,
    size: u64,
    size_max: u64,
    files: u32,
    echo: Option<Echo>,
    /// Bytes that could not be written.
    pub lost: u64,
}

/// The guard's own output, in place of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl RotatingFile {
    /// Opens or goes on with `path`: at most `files` files of `size_max` bytes.
    pub fn new(path: PathBuf, size_max: u64, files: u32) -> Self {
        Self {
            path,
            file: None,
            size: 0,
            size_max: size_max.max(1),
            files: files.max(1),
            echo: None,
            lost: 0,
        }
    }

    /// No file: the guard's own output.
    pub fn echo(to: Echo) -> Self {
        Self { echo: Some(to), ..Self::new(PathBuf::new(), 1, 1) }
    }

    /// Takes output. What the disk does not take is counted and dropped: the job must not stand still.
    pub fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.write_some(bytes) {
                Ok(n) if n > 0 => bytes = &bytes[n..],
                _ => {
                    self.lost += bytes.len() as u64;
                    return;
                }
            }
        }
    }

    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.echo {
            Some(Echo::Out) => return Ok(rustix::io::write(rustix::stdio::stdout(), bytes)?),
            Some(Echo::Err) => return Ok(rustix::io::write(rustix::stdio::stderr(), bytes)?),
            None => {}
        }
        if self.size >= self.size_max {
            self.rotate()?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
                self.size = file.metadata()?.len();
                self.file.insert(file)
            }
        };
        let room = usize::try_from(self.size_max.saturating_sub(self.size)).unwrap_or(usize::MAX).max(1);
        let n = file.write(&bytes[..bytes.len().min(room)])?;
        self.size += n as u64;
        Ok(n)
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        self.size = 0;
        if self.files == 1 {
            return fs::remove_file(&self.path);
        }
        for n in (1..self.files).rev() {
            let from = if n == 1 { self.path.clone() } else { part(&self.path, n - 1) };
            match fs::rename(from, part(&self.path, n)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}

fn part(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    name.into()
}

/// A rank's output and where it goes.
#[derive(Debug)]
pub struct Stream {
    pipe: Option<File>,
    /// Its file.
    pub file: RotatingFile,
}

impl Stream {
    /// Takes the reading end of a pipe.
    pub fn new(pipe: OwnedFd, file: RotatingFile) -> io::Result<Self> {
        fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        Ok(Self { pipe: Some(pipe.into()), file })
    }

    /// To wait on; none once it has ended.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Copies what is there, at most one chunk. True if there may be more.
    pub fn copy(&mut self) -> bool {
        let Some(pipe) = &mut self.pipe else { return false };
        let mut buffer = [0; CHUNK];
        match pipe.read(&mut buffer) {
            Ok(n) if n > 0 => {
                self.file.write(&buffer[..n]);
                true
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => false,
            _ => {
                self.pipe = None;
                false
            }
        }
    }
}

/// Log files in a folder, by rank and stream, the newest part of each last.
pub fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if let Some(order) = path.file_name().and_then(|n| n.to_str()).and_then(order) {
            found.push((order, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// (rank, stream, age falling) of `rank-3.out.1`.
fn order(name: &str) -> Option<(u32, u8, u32)> {
    let mut parts = name.strip_prefix("rank-")?.split('.');
    let rank = parts.next()?.parse().ok()?;
    let stream = match parts.next()? {
        "out" => 0,
        "err" => 1,
        _ => return None,
    };
    let age: u32 = parts.next().map_or(Some(0), |n| n.parse().ok())?;
    Some((rank, stream, u32::MAX - age))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_rotate_and_keep_the_newest() {
        let dir = tempfile::tempdir().expect("temp folder");
        let mut log = RotatingFile::new(dir.path().join("rank-0.out"), 10, 3);
        let text: Vec<u8> = (0..100_u8).map(|n| b'a' + n % 26).collect();
        for chunk in text.chunks(7) {
            log.write(chunk);
        }
        let files = list(dir.path()).expect("lists");
        assert_eq!(files.len(), 3);
        let all: Vec<u8> = files.iter().flat_map(|f| fs::read(f).expect("reads")).collect();
        assert!(text.ends_with(&all), "{}", String::from_utf8_lossy(&all));
        assert!(all.len() > 20 && log.lost == 0);
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let mut log = RotatingFile::new("/nonexistent/folder/rank-0.out".into(), 10, 3);
        log.write(b"hello");
        assert_eq!(log.lost, 5);
    }

    #[test]
    fn logs_are_listed_by_rank_stream_and_age() {
        let dir = tempfile::tempdir().expect("temp folder");
        for name in
            ["rank-10.out", "rank-2.out", "rank-2.out.1", "rank-2.err", "rank-2.out.2", "other", "rank-x.out"]
        {
            fs::write(dir.path().join(name), "").expect("writes");
        }
        let names: Vec<_> = list(dir.path())
            .expect("lists")
            .iter()
            .map(|p| p.file_name().expect("named").to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["rank-2.out.2", "rank-2.out.1", "rank-2.out", "rank-2.err", "rank-10.out"]);
    }
}
