//! What lies in the attempts' folders: what another run of the peer needs to go on, how an attempt ended, what guards'
//! locks show; and which folders stay.

use std::fs;
use std::io::{self, Read, Seek};

use super::cancels::number_in;
use super::{Keeper, Live, Phase, gang_outcome};
use crate::backends::hold::open;
use crate::backends::local::files::{AttemptDir, Ended, Started, read_json, write_json};
use crate::backends::local::guard::{self, BY_SCHEDULER};
use crate::backends::local::{clock, parse_key_of};
use crate::backends::slurm::nodes::NodeMap;
use crate::backends::slurm::prepare::Kept;
use crate::base::text::words;
use crate::core::BackendEvent;
use crate::core::api::AttemptKey;
use crate::model::Outcome;

/// Of what a batch script wrote, so much is looked at for its last line,
const TAIL_BYTES: u64 = 16 << 10;
/// and so much of that is told.
pub(super) const LINE_BYTES: usize = 200;

impl Keeper {
    /// The folder of an attempt.
    pub fn dir(&self, key: AttemptKey) -> AttemptDir {
        AttemptDir::new(self.config.attempts().join(key.to_string()))
    }
    pub(super) fn node_dirs(&self, key: AttemptKey, parts: u32) -> Vec<AttemptDir> {
        let dir = self.dir(key);
        (0..parts).map(|n| AttemptDir::new(dir.file(&format!("node-{n}")))).collect()
    }

    pub(super) fn started_file(&self, key: AttemptKey, parts: u32) -> io::Result<Option<Started>> {
        let dirs = self.node_dirs(key, parts.min(1));
        let dir = dirs.into_iter().next().unwrap_or_else(|| self.dir(key));
        dir.started()
    }

    /// What lies beside an attempt's folder.
    pub(super) fn kept(&self, key: AttemptKey) -> Option<Kept> {
        read_json(&self.dir(key).file("slurm.json")).ok()
    }

    /// How an attempt ended. Of a gang the launcher's end is not all: its nodes' guards must have ended, too.
    pub(super) fn closed(&self, key: AttemptKey) -> io::Result<Option<Ended>> {
        let open_gang = open(&self.live).get(&key).is_some_and(|l| l.kept.parts > 0);
        if open_gang {
            return Ok(None);
        }
        let ended = self.dir(key).ended()?;
        Ok(ended.map(|ended| self.of_all(key, ended, self.kept(key).map_or(0, |kept| kept.parts))))
    }

    /// With what the guards of a gang's nodes wrote.
    pub(super) fn of_all(&self, key: AttemptKey, whole: Ended, parts: u32) -> Ended {
        let nodes: Vec<Ended> =
            self.node_dirs(key, parts).iter().filter_map(|n| n.ended().ok().flatten()).collect();
        gang_outcome(whole, &nodes)
    }

    pub(super) fn forget(&self, key: AttemptKey) {
        let dir = self.dir(key);
        match dir.ended() {
            Ok(Some(_)) if dir.forgotten().is_none() => {}
            Ok(_) => return,
            Err(error) => {
                return tracing::error!(%key, trace = self.dir(key).trace(), %error, "an attempt's end cannot be read");
            }
        }
        open(&self.live).remove(&key);
        let parts = self.kept(key).map_or(0, |kept| kept.parts);
        for node in self.node_dirs(key, parts) {
            let _ = node.forget();
        }
        for name in ["slurm.json", "question.json", "answer.json"] {
            let _ = fs::remove_file(dir.file(name));
        }
        let to_cancel = open(&self.cancels).keys();
        if !to_cancel.contains(&key) {
            let _ = fs::remove_file(dir.file("native.json"));
        }
        if let Err(error) = dir.forget() {
            return tracing::warn!(%key, trace = self.dir(key).trace(), %error, "an attempt could not be cleaned up");
        }
        let mut forgotten = open(&self.forgotten);
        forgotten.push_back(key);
        // One whose batch job is still to be cancelled stays as long, and takes no other's place.
        let over = forgotten.iter().filter(|key| !to_cancel.contains(key)).count();
        let mut over = over.saturating_sub(self.config.attempts_kept);
        forgotten.retain(|oldest| {
            if over == 0 || to_cancel.contains(oldest) {
                return true;
            }
            over -= 1;
            if let Err(error) = fs::remove_dir_all(self.dir(*oldest).path()) {
                tracing::warn!(key = %oldest, trace = self.dir(*oldest).trace(), %error, "an old attempt's folder could not be removed");
            }
            false
        });
    }

    /// Reads what an earlier run of the peer left, and says it.
    pub fn adopt(&self) -> io::Result<()> {
        let (mut running, mut over, mut forgotten) = (Vec::new(), Vec::new(), Vec::new());
        for entry in fs::read_dir(self.config.attempts())? {
            let path = entry?.path();
            let Some(key) = parse_key_of(&path) else {
                if path.extension().is_some_and(|e| e.to_string_lossy().starts_with("new-")) {
                    fs::remove_dir_all(&path)?;
                }
                continue;
            };
            let dir = AttemptDir::new(path);
            if let Some(when) = dir.forgotten() {
                if let Some(id) = number_in(&dir) {
                    self.cancel_failed(key, id);
                }
                forgotten.push((when, key));
            } else if let Some(ended) = dir.ended()? {
                let kept = self.kept(key);
                let native = number_in(&dir);
                let by_slurm = ended.outcome == Outcome::Stopped(BY_SCHEDULER.into());
                let parts = kept.as_ref().map_or(0, |kept| kept.parts);
                let may_live = self.node_dirs(key, parts).iter().any(may_run);
                match kept.filter(|_| by_slurm || may_live) {
                    // Why Slurm ended it is still to be asked; or its nodes' guards may not have ended.
                    Some(kept) => {
                        let gang = kept.parts > 0;
                        let mut live = Live::new(kept, dir.binding()?);
                        (live.phase, live.native) = (Phase::Submitted, native);
                        if gang {
                            running.push(key);
                        } else {
                            live.asking_why = Some((clock::now(), ended));
                        }
                        open(&self.live).insert(key, live);
                    }
                    None => {
                        // What was to be cancelled may not have been.
                        if let Some(id) = native {
                            self.cancel_failed(key, id);
                        }
                        over.push((key, self.of_all(key, ended, parts)));
                    }
                }
            } else {
                let kept: Kept = match read_json(&dir.file("slurm.json")) {
                    Ok(kept) => kept,
                    Err(_) if dir.never_made() => {
                        fs::remove_dir_all(dir.path())?;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let mut live = Live::new(kept, dir.binding()?);
                live.wanted = false;
                live.native = number_in(&dir);
                if dir.token_taken() {
                    live.phase = Phase::Submitted;
                    running.push(key);
                }
                open(&self.live).insert(key, live);
            }
        }
        forgotten.sort();
        *open(&self.forgotten) = forgotten.into_iter().map(|(_, key)| key).collect();
        self.out.say(BackendEvent::Adopted { running: running.clone() });
        for key in running {
            self.check(key);
        }
        for (key, ended) in over {
            self.say_ended(key, ended);
        }
        Ok(())
    }

    /// Log files of an attempt, one guard after another.
    pub fn logs(&self, key: AttemptKey) -> Option<Vec<std::path::PathBuf>> {
        let dir = self.dir(key);
        let mut found = Vec::new();
        let mut n = 0;
        loop {
            let node = AttemptDir::new(dir.file(&format!("node-{n}")));
            match guard::logs::list(&node.logs()) {
                Ok(files) => found.extend(files),
                Err(_) => break,
            }
            n += 1;
        }
        found.extend(guard::logs::list(&dir.logs()).ok()?);
        Some(found)
    }

    /// Writes the nodes down, for a start at which Slurm does not answer.
    pub fn keep_nodes(&self, map: &NodeMap) {
        let types = write_json(&self.config.types_file(), &map.types);
        if let Err(error) = types.and_then(|()| write_json(&self.config.nodes_file(), &map.groups)) {
            tracing::warn!(%error, "the nodes could not be written down");
        }
    }
}

/// Whether a guard began in a node's folder and has not said its end. One that did not never will.
pub(super) fn may_run(node: &AttemptDir) -> bool {
    match node.ended() {
        Ok(Some(_)) => false,
        Ok(None) => !node.revoke_token().unwrap_or(false) && node.token_taken(),
        Err(_) => true,
    }
}

/// Whether the guard of a folder lives, by its lock; none where that cannot be known.
pub(super) fn lives(dir: &AttemptDir) -> Option<bool> {
    if dir.file("no-lock").exists() { None } else { dir.locked().ok() }
}

/// The end of what the batch script itself wrote.
pub(super) fn last_line(dir: &AttemptDir) -> String {
    let tail = || -> io::Result<Vec<u8>> {
        let mut file = fs::File::open(dir.file("slurm.out"))?;
        let from = file.metadata()?.len().saturating_sub(TAIL_BYTES);
        file.seek(io::SeekFrom::Start(from))?;
        let mut tail = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut tail)?;
        Ok(tail)
    };
    let tail = tail().unwrap_or_default();
    let text = String::from_utf8_lossy(&tail);
    let line = text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("it wrote nothing");
    words(line, LINE_BYTES)
}
