//! An attempt's folder: what lies where, and how it is written.
//!
//! The folder is the only thing that the peer and the guard share, so that either may die and be started
//! again: every file appears whole (written aside and renamed), and what decides (the claim of the name, the
//! taken token, the end) is on disk before anyone acts on it.
// tidy: long because what lies in the folder is one agreement of peer and guard

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, fcntl_lock, mkfifoat};
use rustix::process::{Flock, FlockOffsetType, FlockType, fcntl_getlk};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::processes::ProcessId;
use crate::base::{ContactId, Instant, Span, WallTime};
use crate::core::api::{AttemptKey, StopReason};
use crate::model::Outcome;
use crate::model::staging::Staging;

/// Larger files of ours are not ours.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Space kept for the last file, so that an attempt can be closed on a full disk.
const ENDED_BYTES: usize = 4_096;

/// What the guard is told, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardSpec {
    /// The attempt.
    pub key: AttemptKey,
    /// One program with its arguments per rank.
    pub ranks: Vec<RankSpec>,
    /// Where the programs start.
    pub workdir: PathBuf,
    /// How long the attempt may go on after the last counted renewal; none means for ever.
    pub grace: Option<Span>,
    /// The last counted renewal when the peer gave the command.
    pub renewed_at: Instant,
    /// Longest run.
    pub max_runtime: Option<Span>,
    /// Time between notice and kill where nobody says otherwise.
    pub notice: Span,
    /// Bytes of one log file before it is rotated.
    pub log_bytes: u64,
    /// Log files kept per stream.
    pub log_files: u32,
    /// In the environment of every process of the attempt, to tell them from all others.
    pub cookie: String,
    /// The boot in which `renewed_at` has a meaning.
    pub boot: String,
    /// The container runtime, where the attempt is an image.
    pub containers: Option<PathBuf>,
    /// The image that is to be there before its ranks start, where this guard pulls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What the attempt needs, as far as is known before the guard begins.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub staging: Staging,
    /// The contacts' folder.
    pub contacts: PathBuf,
    /// Where the peer listens for news.
    pub news: PathBuf,
    /// Make a cgroup for the attempt where the system allows it.
    pub cgroup: bool,
    /// Programs get the guard's own environment below theirs: where a scheduler prepared it.
    #[serde(default)]
    pub inherit: bool,
    /// The first rank's number, for the names of log files.
    #[serde(default)]
    pub first_rank: u32,
    /// The signal that gives notice; none is SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice_signal: Option<i32>,
    /// Who gets that signal.
    #[serde(default)]
    pub notice_to: NoticeTo,
    /// It comes so long before `max_runtime` is over, too, and the contact's notice is as long where the grace allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warn_before: Option<Span>,
    /// A shell script that is run beside the programs when they get that signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warn_command: Option<String>,
    /// What programs write goes to the guard's own standard outputs: where a scheduler keeps those.
    #[serde(default)]
    pub echo: bool,
    /// The peer is on another machine: how it is asked. `renewed_at` and `boot` mean nothing then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
}

/// Who of a rank's processes gets the notice's signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeTo {
    /// Its whole group.
    #[default]
    All,
    /// Its first process: the shell of a batch script.
    First,
    /// All but the first, where there are others: what the script started.
    Others,
}

fn is_empty(staging: &Staging) -> bool {
    staging.parts.is_empty()
}

/// How a guard on another machine than its peer's learns how long its attempt may live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// Which guard of the attempt this is: empty, or `node-N`.
    pub part: String,
    /// Authenticates questions and answers, hexadecimal.
    pub secret: String,
    /// A shared file that says where the peer listens.
    pub line: PathBuf,
    /// How long the first answer is waited for before the attempt is given up as not started.
    pub patience: Span,
    /// Time between the scheduler's SIGTERM and its SIGKILL.
    pub kill_wait: Span,
    /// The right to run is the peer's to give: no folder is shared with it.
    #[serde(default)]
    pub begin: bool,
    /// Where the guard's last word goes, for the scheduler to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_word: Option<PathBuf>,
}

/// One rank's program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSpec {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Name of its container, where it is one.
    pub container: Option<String>,
}

/// What the attempt follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The contact record.
    pub contact: ContactId,
    /// Its incarnation.
    pub incarnation: u64,
    /// Another one beside it: only what both have lets the attempt go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub and: Option<(ContactId, u64)>,
}

impl Binding {
    /// To one contact.
    pub fn to((contact, incarnation): (ContactId, u64)) -> Self {
        Self { contact, incarnation, and: None }
    }

    /// All that it follows, one by one.
    pub fn each(self) -> impl Iterator<Item = Binding> {
        std::iter::once(Self { and: None, ..self }).chain(self.and.map(Self::to))
    }
}

/// Who guards the attempt, written before its first program starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarded {
    /// The guard, leader of the session in which the ranks start.
    pub guard: ProcessId,
    /// The attempt's cgroup, where the system allows one.
    pub cgroup: Option<PathBuf>,
}

/// The programs run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Since when.
    pub at: WallTime,
    /// On which nodes, where the scheduler that started the guard names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
}

/// No process of the attempt is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How it ended.
    pub outcome: Outcome,
    /// Since when it ran, if it did.
    pub started_at: Option<WallTime>,
    /// When.
    pub at: WallTime,
    /// Bytes of output that did not fit on the disk.
    #[serde(default)]
    pub output_lost: u64,
}

/// The peer wants it to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Why.
    pub reason: StopReason,
    /// Time between notice and kill.
    pub notice: Span,
}

/// The folder of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptDir(PathBuf);

impl AttemptDir {
    /// A folder that is there.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
    /// Its log files.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }
    /// The folder that programs start in where the job names none.
    pub fn run(&self) -> PathBuf {
        self.0.join("run")
    }
    /// A file of it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes the folder with all that a guard needs, under its name at once or not at all. False if the name
    /// was taken before.
    pub fn prepare(&self, spec: &GuardSpec, binding: Binding) -> io::Result<bool> {
        self.prepare_with(spec, binding, &|_| Ok(()))
    }

    /// The same, with more in it: `more` gets the folder before it has its name.
    pub fn prepare_with(
        &self,
        spec: &GuardSpec,
        binding: Binding,
        more: &dyn Fn(&Path) -> io::Result<()>,
    ) -> io::Result<bool> {
        let aside = Self(self.0.with_extension(format!("new-{:08x}", rand::random::<u32>())));
        let mut private = fs::DirBuilder::new();
        private.mode(0o700);
        private.create(&aside.0)?;
        let fill = || -> io::Result<()> {
            private.create(aside.logs())?;
            private.create(aside.run())?;
            write_json(&aside.file("spec.json"), spec)?;
            write_json(&aside.file("binding"), &binding)?;
            private_file(&aside.file("ended.tmp"))?.write_all(&[b' '; ENDED_BYTES])?;
            private_file(&aside.file("lock"))?;
            private_file(&aside.file("run-token"))?;
            mkfifoat(rustix::fs::CWD, aside.file("wake"), Mode::RUSR | Mode::WUSR)?;
            more(&aside.0)?;
            sync(&aside.0)
        };
        let result = fill().and_then(|()| match fs::rename(&aside.0, &self.0) {
            Ok(()) => Ok(true),
            Err(e) if matches!(e.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => {
                Ok(false)
            }
            Err(e) => Err(e),
        });
        if !matches!(result, Ok(true)) {
            // A leftover is cleaned at the next start.
            let _ = fs::remove_dir_all(&aside.0);
            return result;
        }
        self.sync_parent()?;
        Ok(true)
    }

    /// Closes a name under which nothing ever ran.
    pub fn close_unstarted(&self, ended: &Ended) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.0)?;
        self.write_ended(ended)?;
        self.sync_parent()
    }

    fn sync_parent(&self) -> io::Result<()> {
        self.0.parent().map_or(Ok(()), sync)
    }

    /// Takes the right to run, durably. Only the first call ever, of all processes, gets it.
    pub fn take_token(&self) -> io::Result<bool> {
        self.consume("run-token.taken")
    }
    /// Takes away the right to run, if nobody has it yet.
    pub fn revoke_token(&self) -> io::Result<bool> {
        self.consume("run-token.revoked")
    }
    fn consume(&self, to: &str) -> io::Result<bool> {
        match fs::rename(self.file("run-token"), self.file(to)) {
            Ok(()) => {
                sync(&self.0)?;
                self.sync_parent()?;
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
    /// Somebody has, or had, the right to run.
    pub fn token_taken(&self) -> bool {
        self.file("run-token.taken").exists()
    }

    /// The folder is not there, or [`Self::prepare`] did not make it: nothing ever ran in it.
    pub fn never_made(&self) -> bool {
        let there = |name: &str| self.file(name).try_exists().unwrap_or(true);
        !there("spec.json") && !there("run-token.taken") && !there("guarded")
    }

    /// Held by the guard for its whole life. None if another process holds it.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let file = OpenOptions::new().read(true).write(true).open(self.file("lock"))?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
    /// A guard lives: the kernel knows, whatever became of process ids.
    pub fn locked(&self) -> io::Result<bool> {
        let file = match OpenOptions::new().read(true).write(true).open(self.file("lock")) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        let probe = Flock {
            start: 0,
            length: 0,
            pid: None,
            typ: FlockType::WriteLock,
            offset_type: FlockOffsetType::Set,
        };
        Ok(fcntl_getlk(&file, &probe)?.is_some())
    }

    /// Reads what the guard is told.
    pub fn spec(&self) -> io::Result<GuardSpec> {
        read_json(&self.file("spec.json"))
    }
    /// The job's trace, for a line of the log: what its program was told.
    pub fn trace(&self) -> String {
        let spec = self.spec().ok();
        let env = spec.iter().flat_map(|s| s.ranks.first()).flat_map(|r| &r.env);
        let parent = env.into_iter().find(|(name, _)| name == "TRACEPARENT");
        parent.and_then(|(_, value)| Some(value.split('-').nth(1)?.to_owned())).unwrap_or_default()
    }
    /// Reads what the attempt follows.
    pub fn binding(&self) -> io::Result<Binding> {
        read_json(&self.file("binding"))
    }
    /// Replaces what the attempt follows.
    pub fn rebind(&self, binding: Binding) -> io::Result<()> {
        write_json(&self.file("binding"), &binding)
    }
    /// Reads the peer's wish.
    pub fn stop(&self) -> io::Result<Option<Stop>> {
        optional(read_json(&self.file("stop")))
    }
    /// Writes the peer's wish.
    pub fn write_stop(&self, stop: Stop) -> io::Result<()> {
        write_json(&self.file("stop"), &stop)
    }
    /// Reads who guards it.
    pub fn guarded(&self) -> io::Result<Option<Guarded>> {
        optional(read_json(&self.file("guarded")))
    }
    /// Writes who guards it.
    pub fn write_guarded(&self, guarded: &Guarded) -> io::Result<()> {
        write_json(&self.file("guarded"), guarded)
    }
    /// Reads how far what it needs has come.
    pub fn staging(&self) -> io::Result<Option<Staging>> {
        optional(read_json(&self.file("staging")))
    }
    /// Writes how far what it needs has come. Only this boot's processes look at it.
    pub fn write_staging(&self, staging: &Staging) -> io::Result<()> {
        write_json_unsynced(&self.file("staging"), staging)
    }
    /// Reads since when it runs.
    pub fn started(&self) -> io::Result<Option<Started>> {
        optional(read_json(&self.file("started")))
    }
    /// Writes since when it runs.
    pub fn write_started(&self, started: &Started) -> io::Result<()> {
        write_json(&self.file("started"), started)?;
        sync(&self.0)
    }
    /// Reads how it ended.
    pub fn ended(&self) -> io::Result<Option<Ended>> {
        optional(read_json(&self.file("ended")))
    }
    /// Writes how it ended, durably, into space that was set aside when the folder was made.
    pub fn write_ended(&self, ended: &Ended) -> io::Result<()> {
        let mut text = serde_json::to_vec(ended)?;
        text.resize(text.len().max(ENDED_BYTES), b' ');
        let aside = self.file("ended.tmp");
        let mut file =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&aside)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&aside, self.file("ended"))?;
        sync(&self.0)
    }

    /// The result is kept elsewhere: only the logs, the working folder and the end stay.
    pub fn forget(&self) -> io::Result<()> {
        private_file(&self.file("forgotten"))?;
        for name in ["spec.json", "binding", "stop", "wake", "guarded", "guard.log", "staging"] {
            remove(&self.file(name))?;
        }
        // Only an empty one goes: results that the job left in it stay as long as its logs.
        let _ = fs::remove_dir(self.run());
        Ok(())
    }
    /// When the result was kept elsewhere.
    pub fn forgotten(&self) -> Option<std::time::SystemTime> {
        fs::metadata(self.file("forgotten")).and_then(|m| m.modified()).ok()
    }

    /// The guard's end of the line on which the peer says "look".
    pub fn open_wake(&self) -> io::Result<File> {
        let flags = OFlags::NONBLOCK.bits() as i32;
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(self.file("wake"))
    }
    /// Tells the guard to look. It looks by itself too, only later.
    pub fn wake(&self) {
        poke(&self.file("wake"), b"!");
    }
    /// For the guard's own words.
    pub fn guard_log(&self) -> io::Result<File> {
        OpenOptions::new().create(true).append(true).mode(0o600).open(self.file("guard.log"))
    }
}

/// Writes into a FIFO if somebody listens and there is room.
pub fn poke(fifo: &Path, bytes: &[u8]) {
    let flags = OFlags::NONBLOCK.bits() as i32;
    if let Ok(mut file) = OpenOptions::new().write(true).custom_flags(flags).open(fifo) {
        // Nobody listens, or it is full: the other side looks by itself a little later.
        let _ = file.write_all(bytes);
    }
}

/// The file that holds the last counted renewal of a binding.
pub fn lease_path(contacts: &Path, binding: Binding) -> PathBuf {
    contacts.join(format!("{}-{}.lease", binding.contact, binding.incarnation))
}

/// Writes a file whole: aside, synced, renamed.
pub fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let aside = path.with_extension("tmp");
    let mut file = private_file(&aside)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_data()?;
    fs::rename(aside, path)
}

/// The same for what need only be seen by this boot's processes.
pub fn write_json_unsynced(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let aside = path.with_extension("tmp");
    private_file(&aside)?.write_all(&serde_json::to_vec(value)?)?;
    fs::rename(aside, path)
}

/// Reads a file of ours.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let file = File::open(path)?;
    let mut text = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, FILE_BYTES_MAX), &mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// A file that is not there is none.
pub fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    optional(fs::remove_file(path)).map(|_| ())
}

pub(super) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
