//! Drives the core: one task owns it, feeds it inputs, and carries its outputs out in order.
//!
//! What a step wants on disk goes to the store as one batch; what must wait for it (durable messages,
//! replies, backend commands, counted renewals) is carried out when that batch and all before it are
//! synced. The rest leaves at once. A store that fails ends the peer: its memory is ahead of its disk,
//! and nothing it would say could be relied on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::handle::CallError;
use super::store::{Batch, Store, StoreError};
use crate::base::{ContactId, Instant, PeerName, Span};
use crate::core::api::{Event, Flash};
use crate::core::{BackendCommand, ClientRequest, ClientResponse, Input, Message, Now, Output, Peer, Write};
use crate::model::report::{ContactReport, QueueReport};

/// Inputs that may wait for the core.
const INPUTS_MAX: usize = 16_384;
/// Inputs taken in one turn, so that their writes share one batch.
const TURN_MAX: usize = 256;
/// Batches handed to the store and not synced yet; beyond it the core takes no more input.
const UNSYNCED_MAX: usize = 2_048;
/// How long a caller waits for the core's answer, which has its own, shorter patience.
const CALL_PATIENCE: Span = Span::secs(15);

/// Where outputs go that are not the store's.
pub trait Outlet: Send + Sync + 'static {
    /// Messages for another peer, best effort, without waiting.
    fn send(&self, to: &PeerName, messages: Vec<Message>);
    /// An urgent hint for all, best effort, without waiting.
    fn flash(&self, flash: Flash);
    /// What this cluster says of itself.
    fn report(&self, queue: QueueReport, contact: Option<ContactReport>);
}

/// For the backend, in order.
#[derive(Debug)]
pub enum BackendWork {
    /// Carry this out.
    Command(BackendCommand),
    /// Let guards know of a renewal.
    Renewed(ContactId, u64, Instant),
}

/// Gives inputs to the core and waits for answers. Cheap to clone.
#[derive(Clone)]
pub struct CoreHandle {
    inputs: mpsc::Sender<Input>,
    waiting: Arc<DashMap<u64, oneshot::Sender<ClientResponse>>>,
    tokens: Arc<AtomicU64>,
    events: broadcast::Sender<Event>,
    journal: broadcast::Sender<Event>,
    name: PeerName,
}

impl CoreHandle {
    /// Hands an input over; waits while the core has too many. False when the peer is stopping.
    pub async fn input(&self, input: Input) -> bool {
        self.inputs.send(input).await.is_ok()
    }

    /// A user's request and its answer.
    pub async fn call(&self, request: ClientRequest) -> Result<ClientResponse, CallError> {
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting.insert(token, sender);
        let asked = self.input(Input::Client { token, request }).await;
        let response =
            if asked { tokio::time::timeout(CALL_PATIENCE.to_std(), answer).await } else { Ok(answer.await) };
        self.waiting.remove(&token);
        match response {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(_)) => Err(CallError::Stopping),
            Err(_) => Err(CallError::Timeout(self.name.clone(), CALL_PATIENCE)),
        }
    }

    /// Events from now on.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// The core's own events from now on, without the notes of parts beside it, which are made only while somebody
    /// watches: what listens for good listens here.
    pub fn journal(&self) -> broadcast::Receiver<Event> {
        self.journal.subscribe()
    }

    /// An event of a part beside the core that is worth keeping.
    pub fn note(&self, event: Event) {
        // Nobody may be subscribed.
        if self.events.receiver_count() > 0 {
            let _ = self.events.send(event.clone());
        }
        let _ = self.journal.send(event);
    }

    /// Where events are sent, for parts beside the core that have some.
    pub fn event_sender(&self) -> broadcast::Sender<Event> {
        self.events.clone()
    }

    /// The share of the core's queue of inputs that is taken.
    pub fn fill(&self) -> f64 {
        super::gossip::fill(&self.inputs)
    }

    /// Requests that wait for an answer.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// What the driver is put together from.
pub struct DriverParts {
    /// The core as its disk left it, and what it said at its recovery.
    pub core: (Peer, Vec<Output>),
    /// The peer's name.
    pub name: PeerName,
    /// The disk.
    pub store: Store,
    /// Network and gossip.
    pub outlet: Arc<dyn Outlet>,
    /// The clocks.
    pub now: Arc<dyn Fn() -> Now + Send + Sync>,
    /// For the backend.
    pub backend: mpsc::Sender<BackendWork>,
}

/// Starts the core's task. It ends on `cancel`, or by itself when the store fails: `failed` then says
/// why, and `cancel` is cancelled.
pub fn start(
    parts: DriverParts,
    tracker: &TaskTracker,
    cancel: CancellationToken,
) -> (CoreHandle, oneshot::Receiver<StoreError>) {
    let (inputs, received) = mpsc::channel(INPUTS_MAX);
    // Every batch that the store has not answered yet has a place here: a send never finds it full.
    let (synced, done) = mpsc::channel(UNSYNCED_MAX + 2);
    let (failed, failure) = oneshot::channel();
    let handle = CoreHandle {
        inputs,
        waiting: Arc::default(),
        tokens: Arc::new(AtomicU64::new(1)),
        events: broadcast::channel(1024).0,
        journal: broadcast::channel(4096).0,
        name: parts.name.clone(),
    };
    let (peer, first) = parts.core;
    let driver = Driver {
        peer,
        store: parts.store,
        outlet: parts.outlet,
        now: parts.now,
        backend: parts.backend,
        name: parts.name,
        handle: handle.clone(),
        synced,
        unsynced: VecDeque::new(),
        own: VecDeque::new(),
        rolled_back: None,
    };
    tracker.spawn(driver.run(first, received, done, failed, cancel));
    (handle, failure)
}

struct Driver {
    peer: Peer,
    store: Store,
    outlet: Arc<dyn Outlet>,
    now: Arc<dyn Fn() -> Now + Send + Sync>,
    backend: mpsc::Sender<BackendWork>,
    name: PeerName,
    handle: CoreHandle,
    synced: mpsc::Sender<Result<(), StoreError>>,
    /// What waits for each batch, oldest first.
    unsynced: VecDeque<Vec<Output>>,
    /// Messages to itself.
    own: VecDeque<Message>,
    /// The store is an older copy of itself.
    rolled_back: Option<String>,
}

impl Driver {
    async fn run(
        mut self,
        first: Vec<Output>,
        mut received: mpsc::Receiver<Input>,
        mut done: mpsc::Receiver<Result<(), StoreError>>,
        failed: oneshot::Sender<StoreError>,
        cancel: CancellationToken,
    ) {
        self.carry_out(first).await;
        let failure = loop {
            if let Some(why) = self.rolled_back.take() {
                break Some(StoreError::RolledBack(why.into()));
            }
            let mut turn = Vec::new();
            let mut synced = None;
            if self.own.is_empty() {
                let room = self.unsynced.len() < UNSYNCED_MAX;
                let sleep = self.until_deadline();
                tokio::select! { biased;
                    () = cancel.cancelled() => break None,
                    Some(result) = done.recv() => synced = Some(result),
                    Some(input) = received.recv(), if room => turn.push(input),
                    () = tokio::time::sleep(sleep.to_std()), if room => turn.push(Input::Tick),
                }
            }
            // Whoever is about to say something comes first: the more one turn takes, the fewer syncs, frames and
            // wakings there are. A peer that has nothing else to do loses a microsecond by it.
            tokio::task::yield_now().await;
            if let Err(error) = self.release_synced(synced, &mut done).await {
                break Some(error);
            }
            // All at once: one batch more at most, so that what waits for the disk stays bounded.
            let from = &self.name;
            turn.extend(self.own.drain(..).map(|message| Input::Message { from: from.clone(), message }));
            while self.unsynced.len() < UNSYNCED_MAX
                && turn.len() < TURN_MAX
                && let Ok(input) = received.try_recv()
            {
                turn.push(input);
            }
            if !turn.is_empty() {
                self.step(turn).await;
            }
        };
        received.close();
        if let Some(error) = failure {
            tracing::error!("the store failed, this peer stops: {error}");
            // Nobody may be listening any more: then it is stopping anyway.
            let _ = failed.send(error);
            cancel.cancel();
        }
        self.handle.waiting.clear();
    }

    /// Lets go of what waited for batches that are synced, together: those of one commit come in a row.
    async fn release_synced(
        &mut self,
        first: Option<Result<(), StoreError>>,
        done: &mut mpsc::Receiver<Result<(), StoreError>>,
    ) -> Result<(), StoreError> {
        let mut synced = Vec::new();
        let mut all = Ok(());
        for result in first.into_iter().chain(std::iter::from_fn(|| done.try_recv().ok())) {
            if result.is_err() {
                all = result;
                break;
            }
            synced.extend(self.unsynced.pop_front().unwrap_or_default());
        }
        self.release(synced).await;
        all
    }

    fn until_deadline(&self) -> Span {
        let now = (self.now)().mono;
        self.peer.next_deadline().map_or(Span::secs(60), |at| at.since(now))
    }

    async fn step(&mut self, inputs: Vec<Input>) {
        let mut outputs = Vec::new();
        for input in inputs {
            outputs.extend(self.peer.step((self.now)(), input));
        }
        self.carry_out(outputs).await;
    }

    async fn carry_out(&mut self, outputs: Vec<Output>) {
        let mut writes: Vec<Write> = Vec::new();
        let mut after: Vec<Output> = Vec::new();
        let mut mail: BTreeMap<PeerName, Vec<Message>> = BTreeMap::new();
        for output in outputs {
            match output {
                Output::Write(write) => writes.push(write),
                Output::Send { to, message, durable: false } if to != self.name => {
                    mail.entry(to).or_default().push(message);
                }
                Output::Flash(flash) => self.outlet.flash(flash),
                Output::Report { queue, contact } => self.outlet.report(queue, contact),
                Output::Event(event) => self.event(event),
                Output::Quarantine { why } => self.rolled_back = Some(why),
                other => after.push(other),
            }
        }
        for (to, messages) in mail {
            self.outlet.send(&to, messages);
        }
        if writes.is_empty() && self.unsynced.is_empty() {
            return self.release(after).await;
        }
        if writes.is_empty() && after.is_empty() {
            return;
        }
        self.unsynced.push_back(after);
        let synced = self.synced.clone();
        let answer = move |result| {
            // The channel has a place for every batch; it is closed only when the driver is gone.
            let _ = synced.try_send(result);
        };
        self.store.submit(Batch::new(writes, answer)).await;
    }

    /// Carries out what waited for the disk.
    async fn release(&mut self, outputs: Vec<Output>) {
        let mut mail: BTreeMap<PeerName, Vec<Message>> = BTreeMap::new();
        for output in outputs {
            match output {
                Output::Send { to, message, .. } if to == self.name => self.own.push_back(message),
                Output::Send { to, message, .. } => mail.entry(to).or_default().push(message),
                Output::Reply { token, response } => {
                    if let Some((_, caller)) = self.handle.waiting.remove(&token) {
                        // A caller that went away wants no answer.
                        let _ = caller.send(response);
                    }
                }
                Output::Backend(command) => self.to_backend(BackendWork::Command(command)).await,
                Output::Renewed { contact, incarnation, sent_at } => {
                    self.to_backend(BackendWork::Renewed(contact, incarnation, sent_at)).await;
                }
                Output::Write(_)
                | Output::Flash(_)
                | Output::Report { .. }
                | Output::Event(_)
                | Output::Quarantine { .. } => {}
            }
        }
        for (to, messages) in mail {
            self.outlet.send(&to, messages);
        }
    }

    async fn to_backend(&self, work: BackendWork) {
        if self.backend.send(work).await.is_err() {
            tracing::debug!("the backend has stopped before the core");
        }
    }

    fn event(&self, event: Event) {
        // A job's lines all carry its trace.
        match (&event.job, &event.trace) {
            (Some(job), Some(trace)) => tracing::info!(kind = %event.kind, %job, %trace, "{}", event.text),
            (job, _) => tracing::info!(kind = %event.kind, ?job, "{}", event.text),
        }
        self.handle.note(event);
    }
}
