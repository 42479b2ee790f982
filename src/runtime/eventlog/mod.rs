//! What a peer writes down for people: events, and who changed what (the audit).
//!
//! Both are lines in files that rotate, oldest away first, so that they are bounded. They are written by one thread of
//! their own behind a bounded channel: a slow disk costs lines (which is said in the log), never a commit. Events reach
//! the disk when the system writes them; audit entries are synced within a quarter of a second, together, so that they cost
//! commits nothing: a machine that loses power may lose those of that time.
#![allow(
    clippy::disallowed_methods,
    reason = "how long an entry has waited for the disk, which no decision rests on"
)]

pub mod audit;
mod lines;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use audit::{AuditEntry, AuditNote, Verdict};
pub use lines::Lines;

use crate::base::{JobId, WallTime};
use crate::core::api::Event;
use crate::model::trace::SpanNote;

/// Bytes of one file of events.
const FILE_BYTES: u64 = 1 << 20;
/// Files of events, and of audit entries.
const FILES: usize = 32;
/// Entries that may wait for the disk.
const WAITING_MAX: usize = 4_096;
/// What was written reaches its file, and audit entries the disk, so soon after the first of them, all together: each
/// sync is one more that the records' own has to wait for.
const SYNC_AFTER: Duration = Duration::from_millis(250);
/// After some entries the thread lets so much time go by, so that many commits cost one waking of it. Far more than come
/// meanwhile may wait.
const GATHER: Duration = Duration::from_millis(10);
/// Entries that one query gives at most.
pub const QUERY_MAX: usize = 10_000;
/// So far apart two neighbouring lines may be in the wrong order.
const OUT_OF_ORDER_MS: u64 = 600_000;
/// Longest text of an event that is kept, characters.
const TEXT_MAX: usize = 1_000;

/// One event, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// When this peer noted it, milliseconds since 1970.
    pub at_ms: u64,
    /// Stable name, `job.placed`.
    pub kind: String,
    /// The job, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// Its tenant, where this peer knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Its trace, where this peer knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// How long what it ends had taken, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// Spans of the job's trace that ended with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<SpanNote>,
    /// One sentence.
    pub text: String,
}

impl Entry {
    /// An event at its time.
    pub fn new(event: Event, at: WallTime) -> Self {
        Self {
            at_ms: at.0,
            kind: event.kind,
            job: event.job,
            tenant: event.tenant,
            trace: event.trace.map(|t| t.to_string()),
            took_ms: event.took.map(|t| t.as_millis()),
            spans: event.spans,
            text: event.text.chars().take(TEXT_MAX).collect(),
        }
    }
}

/// Which events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryFilter {
    /// Not before, milliseconds since 1970.
    pub since_ms: u64,
    /// Before; 0 means no end.
    pub until_ms: u64,
    /// Kinds that start so.
    pub kind: String,
    /// Of this job.
    pub job: Option<JobId>,
    /// Of this tenant.
    pub tenant: Option<String>,
    /// At most so many, the newest.
    pub limit: usize,
}

impl HistoryFilter {
    /// This one.
    pub fn wants(&self, entry: &Entry) -> bool {
        entry.at_ms >= self.since_ms
            && (self.until_ms == 0 || entry.at_ms < self.until_ms)
            && entry.kind.starts_with(&self.kind)
            && self.job.is_none_or(|job| entry.job == Some(job))
            && self.tenant.as_ref().is_none_or(|tenant| entry.tenant.as_ref() == Some(tenant))
    }
}

enum Work {
    Event(Entry),
    Audit(AuditNote),
    Flush(tokio::sync::oneshot::Sender<()>),
    Head(tokio::sync::oneshot::Sender<std::io::Result<Option<(u64, String)>>>),
}

/// Takes the word that a reader waits; it is answered when all that was noted before has been brought.
type Feeder = tokio::sync::mpsc::Sender<tokio::sync::oneshot::Sender<()>>;

/// The log of one peer. Cheap to clone; the thread ends with the last of them.
#[derive(Clone)]
pub struct EventLog {
    work: SyncSender<Work>,
    /// Who brings events, to be asked for those that he has not brought yet.
    feeder: Arc<Mutex<Option<Feeder>>>,
    dir: Arc<std::path::PathBuf>,
    dropped: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl EventLog {
    /// Opens the log below a state folder and starts its thread. A torn last line of an earlier life is cut off.
    pub fn open(state: &Path) -> std::io::Result<Self> {
        let dir = state.join("events");
        let events = Lines::open(&dir, "events", FILE_BYTES, FILES)?;
        let audit = audit::Audit::open(&dir)?;
        let (work, waiting) = sync_channel(WAITING_MAX);
        let log = Self {
            work,
            feeder: Arc::default(),
            dir: Arc::new(dir),
            dropped: Arc::default(),
            written: Arc::default(),
        };
        let (dropped, written) = (log.dropped.clone(), log.written.clone());
        std::thread::Builder::new().name("event-log".into()).spawn(move || {
            Writer { events, audit, dropped, written, told: 0, since: None, unsynced: false, refused: false }
                .run(&waiting)
        })?;
        Ok(log)
    }

    fn send(&self, work: Work) {
        if let Err(TrySendError::Full(_)) = self.work.try_send(work) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes an event; drops it where the disk is too far behind.
    pub fn event(&self, event: Event, at: WallTime) {
        self.send(Work::Event(Entry::new(event, at)));
    }

    /// Takes an audit entry.
    pub fn audit(&self, note: AuditNote) {
        self.send(Work::Audit(note));
    }

    /// Entries that the disk was too slow for, and lines written, since the start.
    pub fn counters(&self) -> (u64, u64) {
        (self.dropped.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed))
    }

    /// For whoever brings events in bunches, until this goes: each that is received is a reader who waits for them.
    pub fn feed(&self) -> tokio::sync::mpsc::Receiver<tokio::sync::oneshot::Sender<()>> {
        let (asks, asked) = tokio::sync::mpsc::channel(16);
        *self.feeder.lock().unwrap_or_else(PoisonError::into_inner) = Some(asks);
        asked
    }

    /// Resolves when everything that was noted before is in its file.
    pub async fn flushed(&self) {
        let feeder = self.feeder.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (done, wait) = tokio::sync::oneshot::channel();
        if let Some(feeder) = feeder
            && feeder.send(done).await.is_ok()
        {
            // Nobody brings any more where this is not answered.
            let _ = wait.await;
        }
        let (done, wait) = tokio::sync::oneshot::channel();
        let work = self.work.clone();
        let sent = tokio::task::spawn_blocking(move || work.send(Work::Flush(done)).is_ok()).await;
        if sent.unwrap_or(false) {
            // The thread may end before it answers: then nothing more is coming.
            let _ = wait.await;
        }
    }

    /// The newest events that the filter wants, newest first.
    pub async fn history(&self, filter: HistoryFilter) -> std::io::Result<Vec<Entry>> {
        self.flushed().await;
        let dir = self.dir.clone();
        let read = move || -> std::io::Result<Vec<Entry>> {
            let mut found = Vec::new();
            let limit = filter.limit.min(QUERY_MAX);
            // Most lines are of others: they are told by their text, before they are read.
            let job = filter.job.map(|job| job.to_string()).unwrap_or_default();
            lines::newest_first(&dir, "events", |line| {
                if !line.contains(&job) || !line.contains(&filter.kind) {
                    return true;
                }
                let Ok(entry) = serde_json::from_str::<Entry>(line) else { return true };
                // A clock that was set back may have written a little out of order.
                if entry.at_ms.saturating_add(OUT_OF_ORDER_MS) < filter.since_ms {
                    return false;
                }
                if filter.wants(&entry) {
                    found.push(entry);
                }
                found.len() < limit
            })?;
            Ok(found)
        };
        tokio::task::spawn_blocking(read).await.map_err(std::io::Error::other)?
    }

    /// The newest audit entries, newest first.
    pub async fn audit_entries(&self, limit: usize) -> std::io::Result<Vec<AuditEntry>> {
        self.flushed().await;
        let dir = self.dir.clone();
        let read = move || audit::newest(&dir, limit.min(QUERY_MAX));
        tokio::task::spawn_blocking(read).await.map_err(std::io::Error::other)?
    }

    /// Reads the whole audit and checks its chain, and that it goes to the newest entry that this peer wrote.
    pub async fn audit_verify(&self) -> std::io::Result<Verdict> {
        let (tell, told) = tokio::sync::oneshot::channel();
        let (dir, work) = (self.dir.clone(), self.work.clone());
        let sent = tokio::task::spawn_blocking(move || work.send(Work::Head(tell)).is_ok()).await;
        let newest = if sent.unwrap_or(false) { told.await.ok() } else { None };
        let newest = newest.ok_or_else(|| std::io::Error::other("the event log has stopped"))??;
        tokio::task::spawn_blocking(move || audit::verify_with(&dir, newest.as_ref()))
            .await
            .map_err(std::io::Error::other)?
    }
}

struct Writer {
    events: Lines,
    audit: audit::Audit,
    dropped: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
    told: u64,
    /// When the oldest line came that is not in its file yet.
    since: Option<Instant>,
    /// Audit entries are among them.
    unsynced: bool,
    /// The disk refused what it was last given.
    refused: bool,
}

impl Writer {
    fn run(mut self, waiting: &Receiver<Work>) {
        loop {
            let left = self.since.map_or(SYNC_AFTER, |since| SYNC_AFTER.saturating_sub(since.elapsed()));
            match waiting.recv_timeout(left) {
                Ok(work) => {
                    self.take(work);
                    waiting.try_iter().take(WAITING_MAX).for_each(|work| self.take(work));
                    std::thread::sleep(GATHER);
                    if self.since.is_some_and(|since| since.elapsed() >= SYNC_AFTER) {
                        // It says what is wrong itself.
                        let _ = self.flush();
                    }
                }
                Err(RecvTimeoutError::Timeout) => drop(self.flush()),
                Err(RecvTimeoutError::Disconnected) => return drop(self.flush()),
            }
        }
    }

    fn take(&mut self, work: Work) {
        if matches!(work, Work::Event(_) | Work::Audit(_)) {
            self.since.get_or_insert_with(Instant::now);
        }
        let done = match work {
            Work::Event(entry) => {
                self.tell_dropped(entry.at_ms);
                serde_json::to_string(&entry)
                    .map_err(std::io::Error::other)
                    .and_then(|line| self.events.append(&line))
            }
            Work::Audit(note) => {
                self.unsynced = true;
                self.audit.append(note)
            }
            Work::Head(tell) => {
                let newest = self.flush().map(|()| self.audit.head());
                // Whoever asked may have gone.
                let _ = tell.send(newest);
                return;
            }
            Work::Flush(done) => {
                // What is wrong it says itself, and whoever asked may have gone.
                let (_, _) = (self.flush(), done.send(()));
                return;
            }
        };
        match done {
            Ok(()) => drop(self.written.fetch_add(1, Ordering::Relaxed)),
            Err(error) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, "an entry of the event log was not written");
            }
        }
    }

    /// A gap is part of what happened.
    fn tell_dropped(&mut self, at_ms: u64) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > self.told {
            let text = format!("{} entries were dropped: the disk was too slow or full", dropped - self.told);
            let entry = Entry {
                at_ms,
                kind: "log.gap".into(),
                job: None,
                tenant: None,
                trace: None,
                took_ms: None,
                spans: Vec::new(),
                text,
            };
            if serde_json::to_string(&entry).is_ok_and(|line| self.events.append(&line).is_ok()) {
                self.told = dropped;
            }
        }
    }

    /// What the disk refuses is tried again after a while, and said once.
    fn flush(&mut self) -> std::io::Result<()> {
        let audit = if self.unsynced { self.audit.sync() } else { Ok(()) };
        self.unsynced &= audit.is_err();
        let done = audit.and(self.events.flush());
        self.since = done.is_err().then(Instant::now);
        match &done {
            Err(error) if !self.refused => tracing::warn!(%error, "the event log is not written: it waits"),
            Ok(()) if self.refused => tracing::info!("the event log is written again"),
            _ => {}
        }
        self.refused = done.is_err();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::TraceId;

    fn event(kind: &str, job: Option<JobId>, tenant: &str) -> Event {
        let tenant = Some(tenant.to_owned());
        Event { tenant, trace: Some(TraceId([7; 16])), ..Event::new(kind, job, "said \"so\"\n") }
    }

    #[tokio::test]
    async fn events_are_found_by_what_they_are_also_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let job = JobId([5; 20]);
        let log = EventLog::open(folder.path()).expect("opens");
        for n in 0..20 {
            log.event(event("job.placed", Some(job), "a"), WallTime(n));
            log.event(event("contact.taken", None, "b"), WallTime(n));
        }
        log.flushed().await;
        drop(log);
        let log = EventLog::open(folder.path()).expect("opens again");
        log.event(event("job.closed", Some(job), "a"), WallTime(100));
        let ask = |filter: HistoryFilter| log.history(HistoryFilter { limit: 1_000, ..filter });
        let all = ask(HistoryFilter::default()).await.expect("read");
        assert_eq!(all.len(), 41);
        assert_eq!((all[0].at_ms, all[0].kind.as_str()), (100, "job.closed"), "the newest comes first");
        let of_job = ask(HistoryFilter { job: Some(job), kind: "job.".into(), ..Default::default() })
            .await
            .expect("read");
        assert_eq!(of_job.len(), 21);
        let window =
            HistoryFilter { since_ms: 5, until_ms: 7, tenant: Some("b".into()), ..Default::default() };
        assert_eq!(ask(window).await.expect("read").iter().map(|e| e.at_ms).collect::<Vec<_>>(), [6, 5]);
        let few = log.history(HistoryFilter { limit: 3, ..Default::default() }).await.expect("read");
        assert_eq!(few.len(), 3);
    }

    #[tokio::test]
    async fn who_reads_has_also_what_was_not_brought_yet() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = EventLog::open(folder.path()).expect("opens");
        let (mut asked, brings) = (log.feed(), log.clone());
        let brought = tokio::spawn(async move {
            let reader = asked.recv().await.expect("a reader");
            brings.event(event("job.closed", None, "a"), WallTime(1));
            reader.send(()).expect("it waits");
            // One more is asked for, and never brought.
            drop(asked.recv().await);
        });
        let all = || log.history(HistoryFilter { limit: 9, ..HistoryFilter::default() });
        assert_eq!(all().await.expect("read").len(), 1);
        assert_eq!(all().await.expect("read").len(), 1, "nobody brings any more");
        brought.await.expect("ends");
        assert_eq!(all().await.expect("read").len(), 1);
    }

    #[tokio::test]
    async fn a_tail_that_was_cut_from_the_audit_of_a_running_peer_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = EventLog::open(folder.path()).expect("opens");
        for n in 0..5 {
            log.audit(AuditNote { at_ms: n, ..AuditNote::default() });
        }
        let whole = log.audit_verify().await.expect("read");
        assert_eq!((whole.entries, whole.broken), (5, None));
        let file = folder.path().join("events/audit-00000001.jsonl");
        let text = std::fs::read_to_string(&file).expect("text");
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        for kept in [4, 2, 0] {
            std::fs::write(&file, lines[..kept].concat()).expect("written");
            let cut = log.audit_verify().await.expect("read");
            let why = cut.broken.expect("the cut is found");
            assert!(why.contains("entry 5") && why.contains(&format!("is {kept}")), "{why}");
        }
        std::fs::write(&file, &text).expect("written");
        assert_eq!(log.audit_verify().await.expect("read").broken, None);
    }

    /// A few at a time, never quiet for long: they used to wait until very many had come.
    #[tokio::test]
    async fn a_steady_few_reach_their_file_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = EventLog::open(folder.path()).expect("opens");
        let file = folder.path().join("events/events-00000001.jsonl");
        let written = async {
            let mut every = tokio::time::interval(Duration::from_millis(20));
            for n in 0.. {
                every.tick().await;
                log.event(event("job.placed", None, "a"), WallTime(n));
                if std::fs::metadata(&file).is_ok_and(|m| m.len() > 0) {
                    return n;
                }
                assert!(n < 300, "a buffer would be full next");
            }
            unreachable!("it goes on until it is there")
        };
        assert!(written.await > 0);
    }

    #[tokio::test]
    async fn a_torn_line_is_cut_and_the_rest_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = EventLog::open(folder.path()).expect("opens");
        log.event(event("job.placed", None, "a"), WallTime(1));
        log.flushed().await;
        drop(log);
        let file = std::fs::read_dir(folder.path().join("events"))
            .expect("a folder")
            .flatten()
            .map(|e| e.path())
            .find(|p| p.to_string_lossy().contains("events-"))
            .expect("a file");
        let mut text = std::fs::read_to_string(&file).expect("text");
        text.push_str("{\"at_ms\":2,\"ki");
        std::fs::write(&file, text).expect("written");
        let log = EventLog::open(folder.path()).expect("opens");
        log.event(event("job.closed", None, "a"), WallTime(3));
        let all = log.history(HistoryFilter { limit: 10, ..Default::default() }).await.expect("read");
        assert_eq!(all.iter().map(|e| e.at_ms).collect::<Vec<_>>(), [3, 1]);
    }
}
