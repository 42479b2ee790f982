//! Lines in files that rotate: `PREFIX-00000001.jsonl`, and so on; the oldest go first.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::transport::private;

/// Bytes gathered before they go to the file.
const BUFFER: usize = 64 * 1024;
/// Bytes that wait at most while the disk refuses them.
const WAITING_MAX: usize = 16 * BUFFER;

/// Appends lines.
pub struct Lines {
    dir: PathBuf,
    prefix: &'static str,
    file_bytes: u64,
    files: usize,
    number: u64,
    file: File,
    length: u64,
    buffer: Vec<u8>,
    /// Whoever writes them waits for the disk, too.
    synced: bool,
}

/// The files of a prefix, oldest first, with their numbers.
pub fn files(dir: &Path, prefix: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let number = name
            .strip_prefix(prefix)
            .and_then(|n| n.strip_prefix('-'))
            .and_then(|n| n.strip_suffix(".jsonl"));
        if let Some(number) = number.and_then(|n| n.parse().ok()) {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Gives the whole lines, newest first, until `take` wants no more. A file that rotates away meanwhile is left out.
pub fn newest_first(dir: &Path, prefix: &str, mut take: impl FnMut(&str) -> bool) -> io::Result<()> {
    for (_, path) in files(dir, prefix)?.into_iter().rev() {
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        // A line that does not end yet is being written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines().rev() {
            if !take(line) {
                return Ok(());
            }
        }
    }
    Ok(())
}

impl Lines {
    /// Opens the newest file, or the first. Mode 0600, the folder 0700: names of jobs are nobody else's business.
    pub fn open(dir: &Path, prefix: &'static str, file_bytes: u64, files_max: usize) -> io::Result<Self> {
        private::folder(dir)?;
        let number = files(dir, prefix)?.last().map_or(1, |(number, _)| *number);
        let (file, length) = open(dir, prefix, number)?;
        Ok(Self {
            dir: dir.into(),
            prefix,
            file_bytes,
            files: files_max.max(1),
            number,
            file,
            length,
            buffer: Vec::new(),
            synced: false,
        })
    }

    /// Lines of a file that is full are on the disk before the next one begins.
    pub fn synced(self) -> Self {
        Self { synced: true, ..self }
    }

    /// Adds one line; line breaks in it become spaces. What the disk refuses waits here, up to a limit: a line that is
    /// over it is not taken, which is an error.
    pub fn append(&mut self, line: &str) -> io::Result<()> {
        if !self.buffer.is_empty() && self.buffer.len() + line.len() >= WAITING_MAX {
            self.flush()?;
        }
        if self.length + self.buffer.len() as u64 + line.len() as u64 + 1 > self.file_bytes && self.length > 0
        {
            self.rotate()?;
        }
        self.buffer.extend(line.bytes().map(|b| if b == b'\n' { b' ' } else { b }));
        self.buffer.push(b'\n');
        if self.buffer.len() >= BUFFER {
            // It is taken all the same; the next call of `flush` says what is wrong.
            let _ = self.flush();
        }
        Ok(())
    }

    /// Hands everything to the system. After an error it is all still here.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.file.write_all(&self.buffer) {
            // A part may stand there: it is cut, or written over the next time.
            let _ = self.file.set_len(self.length);
            let _ = self.file.seek(SeekFrom::Start(self.length));
            return Err(error);
        }
        self.length += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// The same, and waits for the disk.
    pub fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        self.file.sync_data()
    }

    /// Puts another file in the place of its own, for a test.
    #[cfg(test)]
    pub fn swap(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.flush()?;
        // A later sync reaches only the next file. What comes is worth more than that this is on the disk.
        if self.synced
            && let Err(error) = self.file.sync_data()
        {
            tracing::warn!(%error, "a full file of the {} was not synced", self.prefix);
        }
        let (file, length) = open(&self.dir, self.prefix, self.number + 1)?;
        (self.file, self.length) = (file, length);
        self.number += 1;
        let all = files(&self.dir, self.prefix)?;
        let excess = all.len().saturating_sub(self.files);
        for (_, path) in all.into_iter().take(excess) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

/// Opens one file for appending and cuts off what a crash left of a last line.
fn open(dir: &Path, prefix: &str, number: u64) -> io::Result<(File, u64)> {
    let path = dir.join(format!("{prefix}-{number:08}.jsonl"));
    let mut file = private::options().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    if whole < bytes.len() {
        file.set_len(whole as u64)?;
    }
    file.seek(SeekFrom::End(0))?;
    Ok((file, whole as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_files_go_and_the_newest_lines_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut lines = Lines::open(folder.path(), "x", 1_000, 3).expect("opens");
        for n in 0..500 {
            lines.append(&format!("line {n:04} {}", "y".repeat(40))).expect("written");
            lines.flush().expect("written");
        }
        let all = files(folder.path(), "x").expect("listed");
        assert_eq!(all.len(), 3);
        let bytes: u64 = all.iter().map(|(_, p)| fs::metadata(p).expect("a file").len()).sum();
        assert!(bytes <= 3_000, "{bytes}");
        let mut seen = Vec::new();
        newest_first(folder.path(), "x", |line| {
            seen.push(line[5..9].parse::<u32>().expect("a number"));
            true
        })
        .expect("read");
        let whole: Vec<u32> = (0..500).rev().take(seen.len()).collect();
        assert_eq!(seen, whole, "in order and without a gap");
        assert!(seen.len() > 40, "{}", seen.len());
    }
    #[test]
    fn what_a_full_disk_refuses_waits_and_what_is_too_much_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut lines = Lines::open(folder.path(), "x", 100 << 20, 3).expect("opens");
        lines.append("before").expect("taken");
        lines.flush().expect("written");
        let file = lines.swap(File::options().write(true).open("/dev/full").expect("a full disk"));
        let line = "y".repeat(1_000);
        let taken = (0..10_000).take_while(|n| lines.append(&format!("{n} {line}")).is_ok()).count();
        assert!((900..1_100).contains(&taken), "{taken} lines waited");
        assert!(lines.flush().is_err());
        lines.swap(file);
        lines.append("after").expect("taken");
        lines.flush().expect("written");
        let mut seen = Vec::new();
        newest_first(folder.path(), "x", |line| {
            seen.push(line.split(' ').next().unwrap_or_default().to_owned());
            true
        })
        .expect("read");
        let mut whole: Vec<String> = (0..taken).map(|n| n.to_string()).collect();
        whole.insert(0, "before".into());
        whole.push("after".into());
        whole.reverse();
        assert_eq!(seen, whole);
    }
}
