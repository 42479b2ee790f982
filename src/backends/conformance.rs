//! What every backend must do, as tests that run against any of them.
//!
//! `lifecycle` and `adoption` need a backend only; `programs` needs one that runs real programs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::Backend;
use crate::base::{Bytes, ContactId, Epoch, Instant, JobId, MilliCpu, Span, TraceId};
use crate::core::api::{AttemptKey, NodeShare, StartCommand, StopReason};
use crate::core::{BackendCommand, BackendEvent};
use crate::model::spec::{Communication, OnLostContact, PlacementSpec, Run, Then};
use crate::model::{JobSpec, Outcome, Resources};

/// Longer than anything here may take; only a failure waits for it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A backend under test.
#[async_trait]
pub trait Subject: Send {
    /// It.
    fn backend(&self) -> Arc<dyn Backend>;
    /// The peer dies and another one begins on the same state; `backend` gives the new one.
    async fn restart(&mut self);
    /// Lets a running attempt, started with `waiting_spec`, end with this code.
    async fn finish(&mut self, key: AttemptKey, code: i32);
    /// What `finish` can end.
    fn waiting_spec(&self) -> JobSpec {
        spec(Run::Script("exit 0".into()))
    }
}

/// A job that runs this, one node, grace of an hour.
pub fn spec(run: Run) -> JobSpec {
    JobSpec {
        name: "conformance".into(),
        tenant: "default".into(),
        priority: 50,
        resources: Resources { gpus: 0, gpu: Vec::new(), cpus: MilliCpu(1_000), memory: Bytes(0) },
        nodes: 1,
        run,
        env: [].into(),
        workdir: None,
        image: None,
        data: Vec::new(),
        checkpoint: None,
        communication: Communication::None,
        max_runtime: None,
        retries: 0,
        on_lost_contact: OnLostContact { grace: Some(Span::secs(3_600)), then: Then::Restart },
        placement: PlacementSpec::default(),
        data_sizes: Default::default(),
        groups: Default::default(),
        array: None,
        after: vec![],
        warn: None,
        preemptible: None,
        reserve: None,
    }
}

/// A shell job.
pub fn script(text: &str) -> JobSpec {
    spec(Run::Script(text.to_owned()))
}

/// The contact that attempts here are bound to.
pub const CONTACT: ContactId = ContactId([9; 20]);

/// The first attempt of job number `n`.
pub fn key(n: u8) -> AttemptKey {
    AttemptKey { job: JobId([n; 20]), epoch: Epoch(1) }
}

/// A command to start it, renewed now.
pub fn start(key: AttemptKey, spec: JobSpec) -> StartCommand {
    let shares = (0..spec.nodes).map(|node| NodeShare { node, gpus: Vec::new() }).collect();
    let renewed_at = super::local::clock::now();
    StartCommand {
        key,
        spec,
        shares,
        binding: (CONTACT, 1),
        renewed_at,
        checkpoint: None,
        trace: TraceId([3; 16]),
    }
}

/// Hears a backend's events.
pub struct Ear {
    events: mpsc::Receiver<BackendEvent>,
    held: VecDeque<BackendEvent>,
}

impl Ear {
    /// Adopts, and takes the first event, which says what runs.
    pub async fn adopt(backend: &dyn Backend) -> (Self, Vec<AttemptKey>) {
        let (sender, events) = mpsc::channel(64);
        backend.adopt(sender).await.expect("adopts");
        let mut ear = Self { events, held: VecDeque::new() };
        loop {
            match ear.next().await {
                BackendEvent::Adopted { running } => return (ear, running),
                // What there is may be said at any time.
                BackendEvent::Cluster(_)
                | BackendEvent::Staging { .. }
                | BackendEvent::Note { .. }
                | BackendEvent::Where { .. }
                | BackendEvent::Nodes(_) => {}
                other => panic!("the first event is {other:?}, not Adopted"),
            }
        }
    }

    /// The next event.
    pub async fn next(&mut self) -> BackendEvent {
        if let Some(event) = self.held.pop_front() {
            return event;
        }
        let event = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        event.expect("an event in time").expect("the backend goes on")
    }

    /// Waits until this one started; other attempts' events are held back.
    pub async fn started(&mut self, key: AttemptKey) {
        let event = self.of(key).await;
        assert!(matches!(event, BackendEvent::Started { .. }), "{event:?}");
    }

    /// Waits until this one ended, past any number of `Started`.
    pub async fn ended(&mut self, key: AttemptKey) -> Outcome {
        loop {
            if let BackendEvent::Ended { outcome, .. } = self.of(key).await {
                return outcome;
            }
        }
    }

    /// Waits for the first event of which this says something; others are held back.
    pub async fn first<T>(&mut self, mut of: impl FnMut(&BackendEvent) -> Option<T>) -> T {
        let mut others = VecDeque::new();
        let found = loop {
            let event = self.next().await;
            if let Some(found) = of(&event) {
                break found;
            }
            others.push_back(event);
        };
        others.append(&mut self.held);
        self.held = others;
        found
    }

    async fn of(&mut self, key: AttemptKey) -> BackendEvent {
        let about = |event: &BackendEvent| match event {
            BackendEvent::Started { key, .. } | BackendEvent::Ended { key, .. } => Some(*key),
            // Told while it is brought, as often as the backend likes.
            BackendEvent::Staging { .. }
            | BackendEvent::Note { .. }
            | BackendEvent::Where { .. }
            | BackendEvent::Adopted { .. }
            | BackendEvent::Nodes(_)
            | BackendEvent::Cluster(_) => None,
        };
        if let Some(at) = self.held.iter().position(|e| about(e) == Some(key)) {
            return self.held.remove(at).expect("found there");
        }
        let mut others = std::mem::take(&mut self.held);
        loop {
            let event = self.next().await;
            if about(&event) == Some(key) {
                self.held = others;
                return event;
            }
            others.push_back(event);
        }
    }
}

/// A stop command.
pub fn stop(key: AttemptKey, notice: Span, reason: StopReason) -> BackendCommand {
    BackendCommand::Stop { key, notice, reason }
}

/// Start, start again, end, stop before start, forget.
pub async fn lifecycle(subject: &mut dyn Subject) {
    let backend = subject.backend();
    let (mut ear, running) = Ear::adopt(&*backend).await;
    assert!(running.is_empty());
    let command = start(key(1), subject.waiting_spec());
    backend.command(BackendCommand::Start(Box::new(command.clone()))).await;
    ear.started(key(1)).await;
    backend.command(BackendCommand::Start(Box::new(command.clone()))).await;
    subject.finish(key(1), 7).await;
    assert_eq!(ear.ended(key(1)).await, Outcome::Exited(7));
    // Started again, it is told as it ended, whether forgotten or not.
    backend.command(BackendCommand::Start(Box::new(command.clone()))).await;
    assert_eq!(ear.ended(key(1)).await, Outcome::Exited(7));
    backend.command(stop(key(1), Span::ZERO, StopReason::Cancel)).await;
    assert_eq!(ear.ended(key(1)).await, Outcome::Exited(7));
    for _ in 0..2 {
        backend.command(BackendCommand::Forget { key: key(1) }).await;
    }
    backend.command(BackendCommand::Start(Box::new(command))).await;
    assert_eq!(ear.ended(key(1)).await, Outcome::Exited(7));

    // Stopped before it was started: it never starts.
    backend.command(stop(key(2), Span::ZERO, StopReason::Drain)).await;
    assert_eq!(ear.ended(key(2)).await, Outcome::Stopped("drain".into()));
    backend.command(BackendCommand::Start(Box::new(start(key(2), subject.waiting_spec())))).await;
    assert_eq!(ear.ended(key(2)).await, Outcome::Stopped("drain".into()));

    // Forgetting what runs, or was never there, does nothing.
    backend.command(BackendCommand::Forget { key: key(3) }).await;
    backend.command(BackendCommand::Start(Box::new(start(key(3), subject.waiting_spec())))).await;
    ear.started(key(3)).await;
    backend.command(BackendCommand::Forget { key: key(3) }).await;
    backend.command(stop(key(3), Span::ZERO, StopReason::Cancel)).await;
    assert_eq!(ear.ended(key(3)).await, Outcome::Cancelled);
}

/// A peer that begins again finds what runs and what ended meanwhile, until it is forgotten.
pub async fn adoption(subject: &mut dyn Subject) {
    let backend = subject.backend();
    let (mut ear, _) = Ear::adopt(&*backend).await;
    for n in [1, 2] {
        backend.command(BackendCommand::Start(Box::new(start(key(n), subject.waiting_spec())))).await;
        ear.started(key(n)).await;
    }
    drop((ear, backend));
    subject.restart().await;
    let backend = subject.backend();
    let (mut ear, mut running) = Ear::adopt(&*backend).await;
    running.sort();
    assert_eq!(running, [key(1), key(2)]);
    ear.started(key(1)).await;
    subject.finish(key(1), 0).await;
    assert_eq!(ear.ended(key(1)).await, Outcome::Exited(0));
    drop((ear, backend));
    // Nobody forgot the end: it is said again.
    subject.restart().await;
    let backend = subject.backend();
    let (mut ear, running) = Ear::adopt(&*backend).await;
    assert_eq!(running, [key(2)]);
    assert_eq!(ear.ended(key(1)).await, Outcome::Exited(0));
    backend.command(BackendCommand::Forget { key: key(1) }).await;
    subject.finish(key(2), 3).await;
    assert_eq!(ear.ended(key(2)).await, Outcome::Exited(3));
    drop((ear, backend));
    subject.restart().await;
    let (mut ear, running) = Ear::adopt(&*subject.backend()).await;
    assert!(running.is_empty());
    assert_eq!(ear.ended(key(2)).await, Outcome::Exited(3));
    assert!(ear.held.iter().all(|e| !matches!(e, BackendEvent::Ended { key: k, .. } if *k == key(1))));
}

/// Runs one job to its end, alone.
pub async fn run(backend: &dyn Backend, ear: &mut Ear, key: AttemptKey, spec: JobSpec) -> Outcome {
    backend.command(BackendCommand::Start(Box::new(start(key, spec)))).await;
    ear.ended(key).await
}

/// Exit codes, signals, notice, limits: as real programs give and take them.
pub async fn programs(subject: &mut dyn Subject) {
    let backend = subject.backend();
    let (mut ear, _) = Ear::adopt(&*backend).await;
    for (n, text, expected) in [
        (10, "exit 0", Outcome::Exited(0)),
        (11, "exit 42", Outcome::Exited(42)),
        (12, "kill -9 $$", Outcome::Signaled(9)),
        (13, "kill -11 $$", Outcome::Signaled(11)),
    ] {
        assert_eq!(run(&*backend, &mut ear, key(n), script(text)).await, expected, "{text}");
    }
    let absent = spec(Run::Argv(vec!["/no/such/program".into(), "x".into()]));
    let outcome = run(&*backend, &mut ear, key(14), absent).await;
    assert!(matches!(&outcome, Outcome::NotStarted(why) if why.contains("/no/such/program")), "{outcome:?}");

    let mut limited = script("while :; do sleep 0.05; done");
    limited.max_runtime = Some(Span::millis(300));
    assert_eq!(run(&*backend, &mut ear, key(15), limited).await, Outcome::TimedOut);

    // With notice it may end in its own way, and still counts as stopped.
    let polite = script("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done");
    backend.command(BackendCommand::Start(Box::new(start(key(16), polite)))).await;
    wait_for_output(&*backend, key(16), "ready").await;
    backend.command(stop(key(16), Span::secs(60), StopReason::Cancel)).await;
    assert_eq!(ear.ended(key(16)).await, Outcome::Cancelled);
    // A shell's own word comes on standard error, which some schedulers keep with the output.
    assert_eq!(output(&*backend, key(16)).replace("Terminated\n", ""), "ready\nbye\n");

    // Without manners it is killed after the notice.
    let stubborn = script("trap '' TERM; echo ready; while :; do sleep 0.02; done");
    backend.command(BackendCommand::Start(Box::new(start(key(17), stubborn)))).await;
    wait_for_output(&*backend, key(17), "ready").await;
    backend.command(stop(key(17), Span::millis(300), StopReason::Superseded)).await;
    assert_eq!(ear.ended(key(17)).await, Outcome::Stopped("superseded".into()));
}

/// Everything that the attempt wrote to its standard outputs.
pub fn output(backend: &dyn Backend, key: AttemptKey) -> String {
    let files = backend.logs(key).unwrap_or_default();
    let read = |f: &std::path::PathBuf| std::fs::read_to_string(f).unwrap_or_default();
    files.iter().filter(|f| f.to_string_lossy().contains(".out")).map(read).collect()
}

/// Waits until the attempt has written this.
pub async fn wait_for_output(backend: &dyn Backend, key: AttemptKey, text: &str) {
    wait_until(&format!("{text:?} in the output of {key}"), || output(backend, key).contains(text)).await;
}

/// Waits for something that no event tells.
pub async fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}: not in time");
}

/// Now, on the clock that leases count on.
pub fn now() -> Instant {
    super::local::clock::now()
}
