//! Who changed what: entries chained by their hashes, so that a changed, removed or added byte shows.
//!
//! A line is `HASH {json}`: HASH is the SHA-256 of the json's bytes, and the json names the hash of the line before
//! (`prev`) and its own number (`seq`). What a chain alone cannot show is that its newest lines are missing: a peer that runs
//! compares it with the newest that it wrote; without one, compare [`Verdict::head`] with one noted elsewhere.

use std::io;
use std::path::Path;

use ring::digest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lines::{self, Lines};

/// Bytes of one file of the audit.
const FILE_BYTES: u64 = 4 << 20;
/// Files kept; an entry has some 400 bytes, so this is more than 600,000 of them.
const FILES: usize = 64;
const PREFIX: &str = "audit";
/// What the first entry names as the one before.
const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// A change that somebody asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditNote {
    /// When it was answered, milliseconds since 1970.
    pub at_ms: u64,
    /// Who, as the listener proved it.
    pub who: String,
    /// How they came in: `unix`, `token`, `certificate`, `peer`.
    pub from: String,
    /// Which call: `POST /v1/jobs/{id}/cancel`.
    pub what: String,
    /// On what: a job, a member, a cluster.
    pub object: String,
    /// How it stood before, where that is known.
    pub before: String,
    /// How it stands after.
    pub after: String,
    /// Status of the answer.
    pub status: u16,
}

/// The same in its place in the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    /// One more with each.
    pub seq: u64,
    /// Hash of the line before.
    pub prev: String,
    /// What happened.
    #[serde(flatten)]
    pub note: AuditNote,
}

/// What a check of the chain found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// Entries that were read.
    pub entries: u64,
    /// Number of the oldest; above 1 where older ones have rotated away.
    pub first: u64,
    /// Number and hash of the newest: note them elsewhere to see later that nothing was cut off.
    pub head: Option<(u64, String)>,
    /// What is wrong, with file and line; nothing where the chain holds.
    pub broken: Option<String>,
}

fn hash(json: &str) -> String {
    data_encoding::HEXLOWER.encode(digest::digest(&digest::SHA256, json.as_bytes()).as_ref())
}

/// Writes the chain.
pub struct Audit {
    lines: Lines,
    seq: u64,
    head: String,
}

impl Audit {
    /// Goes on where the newest whole line ended.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let lines = Lines::open(dir, PREFIX, FILE_BYTES, FILES)?.synced();
        let (mut seq, mut head) = (0, NOTHING.to_owned());
        lines::newest_first(dir, PREFIX, |line| {
            if let Some((hash, entry)) = parse(line) {
                (seq, head) = (entry.seq, hash.to_owned());
            }
            // A line that does not read is not gone on from silently: the next entry's number then shows it.
            false
        })?;
        Ok(Self { lines, seq, head })
    }

    /// Adds one entry; [`Audit::sync`] waits for the disk.
    pub fn append(&mut self, note: AuditNote) -> io::Result<()> {
        let entry = AuditEntry { seq: self.seq + 1, prev: self.head.clone(), note };
        let json = serde_json::to_string(&entry).map_err(io::Error::other)?;
        let head = hash(&json);
        self.lines.append(&format!("{head} {json}"))?;
        (self.seq, self.head) = (entry.seq, head);
        Ok(())
    }
}

impl Audit {
    /// Number and hash of the newest entry, as this process wrote or found it; nothing where there is none.
    pub fn head(&self) -> Option<(u64, String)> {
        (self.seq > 0).then(|| (self.seq, self.head.clone()))
    }

    /// Hands everything to the disk and waits for it.
    pub fn sync(&mut self) -> io::Result<()> {
        self.lines.sync()
    }
}

fn parse(line: &str) -> Option<(&str, AuditEntry)> {
    let (hash, json) = line.split_once(' ')?;
    Some((hash, serde_json::from_str(json).ok()?))
}

/// The newest entries, newest first.
pub fn newest(dir: &Path, limit: usize) -> io::Result<Vec<AuditEntry>> {
    let mut found = Vec::new();
    lines::newest_first(dir, PREFIX, |line| {
        found.extend(parse(line).map(|(_, entry)| entry));
        found.len() < limit
    })?;
    Ok(found)
}

/// Reads everything, oldest first, and checks each link. The folder is `events` in a state folder.
pub fn verify(dir: &Path) -> io::Result<Verdict> {
    Ok(read_chain(dir, None)?.0)
}

/// The same where a peer runs: `newest` is what it wrote last, or more has come since.
pub fn verify_with(dir: &Path, newest: Option<&(u64, String)>) -> io::Result<Verdict> {
    let (mut verdict, found) = read_chain(dir, newest)?;
    if let Some((seq, _)) = newest.filter(|_| !found && verdict.broken.is_none()) {
        let end = verdict.head.as_ref().map_or(0, |(seq, _)| *seq);
        verdict.broken = Some(if end < *seq {
            format!("its end: this peer wrote entry {seq}, and the newest that is there is {end}")
        } else {
            format!("entry {seq}: it is not the one that this peer wrote")
        });
    }
    Ok(verdict)
}

/// Also whether this entry is there.
fn read_chain(dir: &Path, wanted: Option<&(u64, String)>) -> io::Result<(Verdict, bool)> {
    let mut verdict = Verdict::default();
    let mut found = false;
    let mut before: Option<(u64, String)> = None;
    for (_, path) in lines::files(dir, PREFIX)? {
        let bytes = std::fs::read(&path)?;
        for (at, raw) in bytes.split_inclusive(|b| *b == b'\n').enumerate() {
            let place = || format!("{}, line {}", path.display(), at + 1);
            match link(raw, before.as_ref()) {
                Ok((seq, hash)) => {
                    if verdict.entries == 0 {
                        verdict.first = seq;
                    }
                    verdict.entries += 1;
                    found |= wanted.is_some_and(|w| w.0 == seq && w.1 == hash);
                    before = Some((seq, hash));
                }
                Err(why) => {
                    verdict.broken = Some(format!("{}: {why}", place()));
                    verdict.head = before;
                    return Ok((verdict, found));
                }
            }
        }
    }
    verdict.head = before;
    Ok((verdict, found))
}

/// Checks one line against the one before it.
fn link(raw: &[u8], before: Option<&(u64, String)>) -> Result<(u64, String), String> {
    let text = std::str::from_utf8(raw).map_err(|_| "not text".to_owned())?;
    let line = text.strip_suffix('\n').ok_or("the line does not end")?;
    let (stated, json) = line.split_once(' ').ok_or("no hash")?;
    if hash(json) != stated {
        return Err("its bytes are not those that were hashed".into());
    }
    let entry: AuditEntry = serde_json::from_str(json).map_err(|e| e.to_string())?;
    match before {
        Some((seq, _)) if entry.seq != seq + 1 => {
            Err(format!("entry {} stands after entry {seq}", entry.seq))
        }
        Some((_, hash)) if entry.prev != *hash => Err("it does not follow the line before it".into()),
        None if entry.seq == 1 && entry.prev != NOTHING => Err("the first entry names one before it".into()),
        _ => Ok((entry.seq, stated.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(n: u64) -> AuditNote {
        AuditNote {
            at_ms: n,
            who: "a token holder".into(),
            what: "POST /v1/drain".into(),
            status: 200,
            ..Default::default()
        }
    }

    fn written(entries: u64) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        for half in 0..2 {
            // Opened twice: the chain goes on over a restart.
            let mut audit = Audit::open(folder.path()).expect("opens");
            for n in 0..entries / 2 {
                audit.append(note(half * 100 + n)).expect("written");
            }
            audit.sync().expect("synced");
        }
        let file = lines::files(folder.path(), PREFIX).expect("listed")[0].1.clone();
        (folder, file)
    }

    #[test]
    fn a_whole_chain_holds_over_a_restart() {
        let (folder, _) = written(10);
        let verdict = verify(folder.path()).expect("read");
        assert_eq!((verdict.entries, verdict.first, &verdict.broken), (10, 1, &None));
        assert_eq!(verdict.head.expect("a head").0, 10);
        let seqs: Vec<u64> = newest(folder.path(), 3).expect("read").iter().map(|e| e.seq).collect();
        assert_eq!(seqs, [10, 9, 8]);
    }

    /// A disk that is full for a while breaks no chain: what was taken comes later, what was not is no entry.
    #[test]
    fn a_full_disk_breaks_no_chain() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut audit = Audit::open(folder.path()).expect("opens");
        audit.append(note(0)).expect("written");
        audit.sync().expect("synced");
        let file = audit.lines.swap(std::fs::File::options().write(true).open("/dev/full").expect("full"));
        let taken = (1..100_000).take_while(|n| audit.append(note(*n)).is_ok()).count();
        assert!(taken > 1_000, "{taken}");
        assert!(audit.sync().is_err());
        audit.lines.swap(file);
        audit.append(note(1)).expect("written");
        audit.sync().expect("synced");
        let verdict = verify_with(folder.path(), audit.head().as_ref()).expect("read");
        assert_eq!((verdict.entries, &verdict.broken), (taken as u64 + 2, &None));
    }

    #[test]
    fn every_changed_byte_is_found() {
        let (folder, file) = written(4);
        let good = std::fs::read(&file).expect("bytes");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&file, &bad).expect("written");
            let verdict = verify(folder.path()).expect("read");
            assert!(verdict.broken.is_some(), "byte {at} of {}", good.len());
        }
    }

    #[test]
    fn a_line_removed_doubled_or_moved_is_found() {
        let (folder, file) = written(4);
        let text = std::fs::read_to_string(&file).expect("text");
        let l: Vec<&str> = text.split_inclusive('\n').collect();
        for bad in [vec![l[0], l[2], l[3]], vec![l[0], l[1], l[1], l[2]], vec![l[1], l[0], l[2], l[3]]] {
            std::fs::write(&file, bad.concat()).expect("written");
            assert!(verify(folder.path()).expect("read").broken.is_some());
        }
        // The newest cut off: only a head noted elsewhere shows it.
        std::fs::write(&file, l[..3].concat()).expect("written");
        let verdict = verify(folder.path()).expect("read");
        assert_eq!((verdict.broken, verdict.head.expect("a head").0), (None, 3));
    }
}
