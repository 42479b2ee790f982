//! Follows the output of an attempt's containers into its folder.
//!
//! Kubernetes keeps standard output and errors as one stream, and so does the file. Each line comes with its time, by
//! which a broken connection goes on where it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::api::{Api, ApiError, escape};
use crate::backends::local::files::{read_json, write_json_unsynced};
use crate::backends::local::guard::logs::RotatingFile;
use crate::backends::local::{LogLimits, clock};
use crate::base::Span;

/// A quiet program is asked again after so long.
const SILENCE: Duration = Duration::from_secs(600);
/// Between two notes of how far was read.
const NOTE_EVERY: Span = Span::millis(200);
/// With nothing to note there is nothing to wake up for.
const SILENCE_NOTED: Span = Span::secs(3_600);
/// At the end of a line that was cut.
const CUT: &[u8] = b" [starling: this line was too long, and is cut here]";
/// Tries after the container has ended.
const TRIES: u32 = 5;

/// How far a container's output was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Place {
    /// The pod; another one's output begins anew.
    pod: String,
    /// Time of the last line, as the kubelet wrote it.
    at: String,
    /// Lines of this very time that were read.
    lines: u64,
    /// All of it was.
    done: bool,
}

/// One container's output.
pub struct Follower {
    /// Where to ask.
    pub api: Arc<Api>,
    /// The pod's name.
    pub pod: String,
    /// Its identity.
    pub uid: String,
    /// The attempt's folder of logs.
    pub folder: PathBuf,
    /// The job's trace, for the log.
    pub trace: String,
    /// Its rank.
    pub index: u32,
    /// How much is kept.
    pub limits: LogLimits,
}

/// Was all of this rank's output read?
pub fn is_done(folder: &Path, index: u32, uid: &str) -> bool {
    read_json::<Place>(&place_file(folder, index)).is_ok_and(|p| p.pod == uid && p.done)
}

fn place_file(folder: &Path, index: u32) -> PathBuf {
    folder.join(format!("place-{index}.json"))
}

impl Follower {
    /// Follows to the end. `over` says whether the container has ended, so that what is read then is all.
    pub async fn run(self, over: impl Fn() -> bool) {
        let mut place: Place = read_json(&place_file(&self.folder, self.index)).unwrap_or_default();
        if place.pod != self.uid {
            place = Place { pod: self.uid.clone(), ..Place::default() };
        }
        let path = self.folder.join(format!("rank-{}.out", self.index));
        let mut file = RotatingFile::new(path, self.limits.file_bytes.0, self.limits.files);
        let mut failures = 0;
        while !place.done && failures < TRIES {
            // Asked before it is read: what ended before has written all that it ever will.
            let was_over = over();
            match self.read(&mut place, &mut file, !was_over).await {
                Ok(()) if was_over => place.done = true,
                Ok(()) => failures = 0,
                // The pod is gone, and its output with it.
                Err(ApiError::Absent) | Err(ApiError::Refused(404, _)) => break,
                Err(error) => {
                    failures += u32::from(was_over);
                    tracing::info!(pod = %self.pod, trace = self.trace, %error, "the output of a pod cannot be read");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
            // A stream that ends at once must not be asked for in a tight loop.
            if !place.done {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        place.done = true;
        self.note(&place);
    }

    fn note(&self, place: &Place) {
        if let Err(error) = write_json_unsynced(&place_file(&self.folder, self.index), place) {
            tracing::info!(pod = %self.pod, trace = self.trace, %error, "how far a pod's output was read cannot be noted");
        }
    }

    async fn read(&self, place: &mut Place, file: &mut RotatingFile, follow: bool) -> Result<(), ApiError> {
        let mut query = format!("container={}&timestamps=true&follow={follow}", super::pods::MAIN);
        if !place.at.is_empty() {
            query.push_str(&format!("&sinceTime={}", escape(&place.at)));
        }
        let mut lines = self.api.output(&self.pod, &query, SILENCE).await?;
        // What came before is said again, from the second in which it was.
        let (until, seen) = (place.at.clone(), place.lines);
        let mut same = 0;
        let (mut noted, mut fresh) = (clock::now(), false);
        loop {
            // Noted also when the program falls silent: the next run of the peer goes on there.
            let pause = if fresh { NOTE_EVERY } else { SILENCE_NOTED };
            let next = match tokio::time::timeout(pause.to_std(), lines.next_cut()).await {
                Ok(next) => next?,
                Err(_) => {
                    if std::mem::take(&mut fresh) {
                        noted = clock::now();
                        self.note(place);
                    }
                    continue;
                }
            };
            let Some((line, cut)) = next else { break };
            let Some(space) = line.iter().position(|b| *b == b' ') else { continue };
            let (at, text) = line.split_at(space);
            let at = String::from_utf8_lossy(at).into_owned();
            if !until.is_empty() && before(&at, &until) {
                continue;
            }
            if at == until {
                same += 1;
                if same <= seen {
                    continue;
                }
            }
            let mut text = text.get(1..).unwrap_or_default().to_vec();
            if cut {
                text.extend_from_slice(CUT);
            }
            text.push(b'\n');
            file.write(&text);
            place.lines = if place.at == at { place.lines + 1 } else { 1 };
            place.at = at;
            // Not at each line of a chatty program: what is said twice after a crash is little.
            fresh = clock::now().since(noted) <= NOTE_EVERY;
            if !fresh {
                noted = clock::now();
                self.note(place);
            }
        }
        self.note(place);
        Ok(())
    }
}

/// Whether one RFC 3339 time of a kubelet (UTC, nanoseconds with trailing zeros left out) comes before another.
fn before(a: &str, b: &str) -> bool {
    let key = |t: &str| {
        let t = t.trim_end_matches('Z');
        let (second, part) = t.split_once('.').unwrap_or((t, ""));
        format!("{second}.{part:0<9}")
    };
    key(a) < key(b)
}

/// Removes the notes of how far was read.
pub fn forget(folder: &Path) {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in all.filter(|e| e.file_name().to_string_lossy().starts_with("place-")) {
        let _ = fs::remove_file(entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_compared_as_times() {
        assert!(before("2026-01-01T00:00:00.1Z", "2026-01-01T00:00:00.15Z"));
        assert!(before("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000001Z"));
        assert!(!before("2026-01-01T00:00:01Z", "2026-01-01T00:00:00.9Z"));
        assert!(!before("2026-01-01T00:00:00.1Z", "2026-01-01T00:00:00.100Z"));
    }
}
