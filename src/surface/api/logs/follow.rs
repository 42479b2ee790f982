//! Reads log files that grow and rotate, line by line, every line bounded.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use serde::Deserialize;

/// Longest line passed on; the rest of a longer one is dropped, and the cut is marked.
pub const LINE_BYTES_MAX: usize = 16 * 1024;
/// Bytes read from one file at a time, and about the size of one chunk that is passed on.
const BLOCK: usize = 64 * 1024;
const CUT: &[u8] = b" [line cut]";

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Source {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Sorts files by rank and stream; parts of one stay in the order given, newest last.
pub fn sources(files: &[PathBuf]) -> BTreeMap<(u32, Source), Vec<PathBuf>> {
    let mut out: BTreeMap<_, Vec<PathBuf>> = BTreeMap::new();
    for file in files {
        out.entry(name_of(file)).or_default().push(file.clone());
    }
    out
}

/// Rank and stream in a file's name: the first number is the rank, `err` in it means standard error.
fn name_of(file: &Path) -> (u32, Source) {
    let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let digits: String =
        name.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).take(9).collect();
    let source = if name.contains("err") { Source::Stderr } else { Source::Stdout };
    (digits.parse().unwrap_or(0), source)
}

/// Reads all sources in turn.
pub struct Reader {
    tail: Option<u64>,
    open: BTreeMap<(u32, Source), Tailed>,
    ranks: bool,
}

impl Reader {
    /// With `tail`, each source starts that many lines before its end.
    pub fn new(tail: Option<u64>) -> Self {
        Self { tail, open: BTreeMap::new(), ranks: false }
    }

    /// Takes what files there are now.
    pub fn set(&mut self, listing: BTreeMap<(u32, Source), Vec<PathBuf>>) {
        self.ranks =
            listing.keys().map(|(rank, _)| rank).collect::<std::collections::BTreeSet<_>>().len() > 1;
        for (key, parts) in listing {
            let tail = self.tail;
            self.open.entry(key).or_insert_with(|| Tailed::new(tail)).parts = parts;
        }
    }

    /// Some file is known.
    pub fn any(&self) -> bool {
        !self.open.is_empty()
    }

    /// About one block of whole lines; empty when there is nothing new.
    pub fn read(&mut self) -> std::io::Result<Bytes> {
        let mut out = BytesMut::new();
        for ((rank, _), tailed) in &mut self.open {
            let prefix = if self.ranks { format!("[{rank}] ") } else { String::new() };
            tailed.read(prefix.as_bytes(), &mut out)?;
        }
        Ok(out.freeze())
    }

    /// What is left of lines that never ended.
    pub fn finish(&mut self) -> Bytes {
        let mut out = BytesMut::new();
        for ((rank, _), tailed) in &mut self.open {
            if !tailed.line.is_empty() {
                let prefix = if self.ranks { format!("[{rank}] ") } else { String::new() };
                tailed.end_line(prefix.as_bytes(), &mut out);
            }
        }
        out.freeze()
    }
}

/// One rank's stream over its parts.
struct Tailed {
    parts: Vec<PathBuf>,
    file: Option<(File, u64)>,
    tail: Option<u64>,
    line: Vec<u8>,
    cut: bool,
}

impl Tailed {
    fn new(tail: Option<u64>) -> Self {
        Self { parts: Vec::new(), file: None, tail, line: Vec::new(), cut: false }
    }

    fn read(&mut self, prefix: &[u8], out: &mut BytesMut) -> std::io::Result<()> {
        let mut block = vec![0; BLOCK];
        let mut budget = BLOCK;
        while budget > 0 {
            let Some((file, _)) = &mut self.file else {
                if !self.first()? {
                    return Ok(());
                }
                continue;
            };
            match file.read(&mut block)? {
                0 if self.advance()? => {}
                0 => return Ok(()),
                n => {
                    budget = budget.saturating_sub(n);
                    self.take(&block[..n], prefix, out);
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8], prefix: &[u8], out: &mut BytesMut) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let (text, ends) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
            self.cut |= text.len() > room;
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if ends {
                self.end_line(prefix, out);
            }
        }
    }

    fn end_line(&mut self, prefix: &[u8], out: &mut BytesMut) {
        out.extend_from_slice(prefix);
        out.extend_from_slice(&self.line);
        if self.cut {
            out.extend_from_slice(CUT);
        }
        out.extend_from_slice(b"\n");
        self.line.clear();
        self.cut = false;
    }

    /// Opens where reading starts; false while there is no file.
    fn first(&mut self) -> std::io::Result<bool> {
        let (index, offset) = match self.tail.take() {
            Some(lines) => tail_start(&self.parts, lines)?,
            None => (0, 0),
        };
        match self.parts.get(index) {
            Some(path) => self.open_at(&path.clone(), offset),
            None => Ok(false),
        }
    }

    fn open_at(&mut self, path: &Path, offset: u64) -> std::io::Result<bool> {
        match File::open(path) {
            Ok(mut file) => {
                let inode = file.metadata()?.ino();
                file.seek(SeekFrom::Start(offset))?;
                self.file = Some((file, inode));
                Ok(true)
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Goes to the part after the present one, found again by its inode since rotation renames files;
    /// a part that was removed meanwhile is followed by the oldest that is left.
    fn advance(&mut self) -> std::io::Result<bool> {
        let Some((_, inode)) = &self.file else { return Ok(false) };
        let inodes: Vec<Option<u64>> =
            self.parts.iter().map(|p| std::fs::metadata(p).ok().map(|m| m.ino())).collect();
        let next = match inodes.iter().position(|i| *i == Some(*inode)) {
            Some(at) => at + 1,
            None if inodes.iter().any(Option::is_some) => 0,
            None => return Ok(false),
        };
        match self.parts.get(next) {
            Some(path) => self.open_at(&path.clone(), 0),
            None => Ok(false),
        }
    }
}

/// Where the last `lines` lines begin: part and offset. Reads backwards in blocks.
fn tail_start(parts: &[PathBuf], lines: u64) -> std::io::Result<(usize, u64)> {
    let mut missing = lines;
    let mut newest = true;
    for (index, path) in parts.iter().enumerate().rev() {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        let mut end = file.metadata()?.len();
        let mut starts: VecDeque<u64> = VecDeque::new();
        if lines == 0 {
            return Ok((index, end));
        }
        while end > 0 {
            let begin = end.saturating_sub(BLOCK as u64);
            let mut block = vec![0; usize::try_from(end - begin).unwrap_or(BLOCK)];
            file.seek(SeekFrom::Start(begin))?;
            file.read_exact(&mut block)?;
            for at in (0..block.len()).rev().filter(|at| block[*at] == b'\n') {
                let position = begin + at as u64 + 1;
                // The newline at the very end closes the last line; it starts none.
                if std::mem::take(&mut newest) && position == file.metadata()?.len() {
                    continue;
                }
                missing -= 1;
                starts.push_front(position);
                if missing == 0 {
                    return Ok((index, position));
                }
            }
            newest = false;
            end = begin;
        }
    }
    Ok((0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(reader: &mut Reader) -> String {
        let mut out = Vec::new();
        loop {
            let bytes = reader.read().expect("read");
            if bytes.is_empty() {
                return String::from_utf8(out).expect("text");
            }
            out.extend_from_slice(&bytes);
        }
    }

    fn reader(tail: Option<u64>, parts: &[PathBuf]) -> Reader {
        let mut reader = Reader::new(tail);
        reader.set(sources(parts));
        reader
    }

    #[test]
    fn follows_over_rotation_by_renaming() {
        let dir = tempfile::tempdir().expect("dir");
        let (now, old) = (dir.path().join("0.out"), dir.path().join("0.out.1"));
        std::fs::write(&now, "a\nb").expect("write");
        let mut r = reader(None, std::slice::from_ref(&now));
        assert_eq!(text(&mut r), "a\n", "a line is passed on when it is whole");
        std::fs::rename(&now, &old).expect("rename");
        std::fs::write(&old, "a\nbb\n").expect("grow");
        std::fs::write(&now, "c\n").expect("write");
        r.set(sources(&[old, now]));
        assert_eq!(text(&mut r), "bb\nc\n");
    }

    #[test]
    fn a_removed_part_is_followed_by_the_oldest_left() {
        let dir = tempfile::tempdir().expect("dir");
        let [one, two, three] = ["0.out.2", "0.out.1", "0.out"].map(|n| dir.path().join(n));
        std::fs::write(&one, "1\n").expect("write");
        let mut r = reader(None, std::slice::from_ref(&one));
        assert_eq!(text(&mut r), "1\n");
        std::fs::write(&two, "2\n").expect("write");
        std::fs::write(&three, "3\n").expect("write");
        std::fs::remove_file(&one).expect("remove");
        r.set(sources(&[two, three]));
        assert_eq!(text(&mut r), "2\n3\n");
    }

    #[test]
    fn tail_counts_lines_over_parts() {
        let dir = tempfile::tempdir().expect("dir");
        let [old, new] = ["0.out.1", "0.out"].map(|n| dir.path().join(n));
        std::fs::write(&old, "1\n2\n3\n").expect("write");
        std::fs::write(&new, "4\n5\n").expect("write");
        let parts = [old, new];
        for (lines, want) in [(0, ""), (1, "5\n"), (2, "4\n5\n"), (3, "3\n4\n5\n"), (99, "1\n2\n3\n4\n5\n")] {
            assert_eq!(text(&mut reader(Some(lines), &parts)), want, "{lines}");
        }
    }

    #[test]
    fn lines_are_bounded_and_ranks_named() {
        let dir = tempfile::tempdir().expect("dir");
        let [zero, one] = ["0.out", "1.err"].map(|n| dir.path().join(n));
        std::fs::write(&zero, [vec![b'x'; 3 * LINE_BYTES_MAX], b"\ny\n".to_vec()].concat()).expect("write");
        std::fs::write(&one, "e\nrest").expect("write");
        let mut r = reader(None, &[zero, one]);
        let got = text(&mut r);
        let lines: Vec<&str> = got.lines().collect();
        assert!(lines.iter().all(|l| l.len() <= LINE_BYTES_MAX + 32), "cut");
        assert!(lines.iter().any(|l| l.ends_with("[line cut]")), "marked");
        assert!(lines.contains(&"[0] y") && lines.contains(&"[1] e"), "{}", lines.len());
        assert_eq!(&r.finish()[..], b"[1] rest\n");
    }
}
