//! The small loops between the parts of a running peer.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use futures::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::node::{PROXY_HEAD_BYTES_MAX, ProxyHead};
use crate::backends::Backend;
use crate::base::{Bytes, Instant, PeerName, Span};
use crate::core::api::{Event, Flash, NodesNews};
use crate::core::{BackendEvent, Input, Message};
use crate::model::report::{CapacityReport, ContactReport, HealthReport, Inventory, Item, QueueReport, View};
use crate::runtime::driver::{BackendWork, CoreHandle, Outlet};
use crate::runtime::eventlog::EventLog;
use crate::runtime::gossip::Facet;
use crate::runtime::handle::ProxyRequest;
use crate::runtime::mesh::Mesh;
use crate::runtime::store::Store;
use crate::surface::api::serve_proxy;
use crate::transport::{Arrivals, Incoming, Net, SendStream, codec};

/// The core's way out: the transport and gossip.
pub struct MeshOutlet {
    pub net: Net,
    pub mesh: Mesh,
    /// The contact as last published, and when.
    pub contact: Mutex<Option<(ContactReport, Instant)>>,
}

/// How often a cluster at which nothing runs says that it has renewed its contact. Its report is that old at most.
const IDLE_CONTACT_EVERY: Span = Span::secs(20);

impl MeshOutlet {
    /// A renewal changes the nonce every few seconds, and everybody checks a signature for it. It is told while
    /// something is bound to the contact; else nobody waits for it, and whoever times an old nonce hears that it
    /// is old when it reads the record.
    fn tells(&self, queue: &QueueReport, contact: &ContactReport) -> bool {
        let now = super::now().mono;
        let mut last = self.contact.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |old: &ContactReport| ContactReport { nonce: contact.nonce, ..old.clone() } == *contact;
        let idle = queue.running == 0 && queue.queued == 0;
        if idle && last.as_ref().is_some_and(|(old, at)| same(old) && now.since(*at) < IDLE_CONTACT_EVERY) {
            return false;
        }
        *last = Some((contact.clone(), now));
        true
    }
}

impl Outlet for MeshOutlet {
    fn send(&self, to: &PeerName, messages: Vec<Message>) {
        // Shed or unreachable: the core sends again.
        let _ = self.net.send_core(to, messages);
    }
    fn flash(&self, flash: Flash) {
        self.net.flash(flash);
    }
    fn report(&self, queue: QueueReport, contact: Option<ContactReport>) {
        let contact = contact.filter(|contact| self.tells(&queue, contact));
        for facet in [Some(Facet::Queue(queue)), contact.map(Facet::Contact)].into_iter().flatten() {
            if let Err(error) = self.mesh.publish(facet) {
                tracing::error!("cannot report: {error}");
            }
        }
    }
}

/// Carries out what the core wants of the backend, in order, until the core is gone.
pub async fn backend_work(backend: Arc<dyn Backend>, mut work: mpsc::Receiver<BackendWork>) {
    while let Some(work) = work.recv().await {
        match work {
            BackendWork::Command(command) => backend.command(command).await,
            BackendWork::Renewed(contact, incarnation, sent_at) => {
                backend.renewed(contact, incarnation, sent_at).await
            }
        }
    }
}

/// Brings the backend's events to the core, and its nodes, where they change, to the report.
pub struct BackendEvents {
    pub core: CoreHandle,
    pub mesh: Mesh,
    pub capacity: CapacityReport,
    /// Images that the configuration names, and all as they were reported last.
    pub images: (Vec<Item>, Inventory),
}

impl BackendEvents {
    pub async fn run(mut self, mut events: mpsc::Receiver<BackendEvent>, cancel: CancellationToken) {
        loop {
            let event = tokio::select! { biased;
                () = cancel.cancelled() => return,
                event = events.recv() => event,
            };
            let Some(event) = event else { return };
            if let BackendEvent::Nodes(news) = event {
                self.nodes(*news);
                continue;
            }
            if let BackendEvent::Cluster(state) = &event
                && !state.nodes.is_empty()
                && state.nodes != self.capacity.nodes
            {
                self.capacity.nodes.clone_from(&state.nodes);
                self.report(Facet::Capacity(self.capacity.clone()));
            }
            if !self.core.input(Input::Backend(event)).await {
                return;
            }
        }
    }

    fn nodes(&mut self, news: NodesNews) {
        if (&news.out, &news.slurm) != (&self.capacity.nodes_out, &self.capacity.slurm) {
            (self.capacity.nodes_out, self.capacity.slurm) = (news.out, news.slurm);
            self.report(Facet::Capacity(self.capacity.clone()));
        }
        let (declared, told) = &mut self.images;
        let images = Inventory::of(declared.iter().cloned().chain(news.images));
        if images != *told {
            told.clone_from(&images);
            self.report(Facet::Images(images));
        }
    }

    fn report(&self, facet: Facet) {
        if let Err(error) = self.mesh.publish(facet) {
            tracing::error!("cannot report: {error}");
        }
    }
}

/// Brings the soft view to the core as it changes.
pub async fn views(core: CoreHandle, mut view: watch::Receiver<Arc<View>>, cancel: CancellationToken) {
    loop {
        let now = view.borrow_and_update().clone();
        if !core.input(Input::View(now)).await {
            return;
        }
        tokio::select! { biased;
            () = cancel.cancelled() => return,
            changed = view.changed() => if changed.is_err() { return },
        }
    }
}

/// Writes the core's events down. A commit shall not have to wake this task: those of a moment are taken together, unless
/// somebody reads them.
pub async fn journal(core: CoreHandle, log: EventLog, cancel: CancellationToken) {
    let (mut events, mut asked) = (core.journal(), log.feed());
    let mut readers = Vec::new();
    loop {
        let mut event = None;
        if readers.is_empty() {
            tokio::select! { biased;
                () = cancel.cancelled() => {}
                Some(reader) = asked.recv() => readers.push(reader),
                next = events.recv() => event = Some(next),
            }
        }
        let at = super::now().wall;
        let gap = |n| Event::new("log.gap", None, format!("{n} events came too fast"));
        match event {
            Some(Ok(event)) => log.event(event, at),
            Some(Err(RecvError::Lagged(missed))) => log.event(gap(missed), at),
            Some(Err(RecvError::Closed)) => return,
            None => {}
        }
        loop {
            match events.try_recv() {
                Ok(event) => log.event(event, at),
                Err(TryRecvError::Lagged(missed)) => log.event(gap(missed), at),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        for reader in readers.drain(..) {
            // Who does not wait any more needs no answer.
            let _ = reader.send(());
        }
        if cancel.is_cancelled() {
            return;
        }
        tokio::select! { biased;
            () = cancel.cancelled() => {}
            Some(reader) = asked.recv() => readers.push(reader),
            () = tokio::time::sleep(GATHER) => {}
        }
    }
}

/// How long events may wait to be written down. Each waking of this task wakes the log's thread, and both take time from
/// commits where these have all cores busy.
const GATHER: std::time::Duration = std::time::Duration::from_millis(100);

/// Tells when another peer is no longer heard, or heard again, or drains: as seen from here.
pub async fn peers(core: CoreHandle, mut view: watch::Receiver<Arc<View>>, cancel: CancellationToken) {
    let mut before = view.borrow_and_update().clone();
    loop {
        tokio::select! { biased;
            () = cancel.cancelled() => return,
            changed = view.changed() => if changed.is_err() { return },
        }
        let now = view.borrow_and_update().clone();
        for (name, member) in &now.members {
            let Some(old) = before.members.get(name) else {
                core.note(Event::new("peer.joined", None, format!("{name} is a member now")));
                continue;
            };
            if old.liveness != member.liveness {
                let word = member.liveness.as_str();
                core.note(Event::new(
                    &format!("peer.{word}"),
                    None,
                    format!("{name} is {word}, seen from here"),
                ));
            }
            if old.draining != member.draining {
                let text = if member.draining { "drains" } else { "takes attempts again" };
                core.note(Event::new("peer.draining", None, format!("{name} {text}")));
            }
        }
        if now.isolated != before.isolated {
            let text =
                if now.isolated { "this peer reaches no other" } else { "this peer reaches others again" };
            core.note(Event::new("peer.isolated", None, text));
        }
        before = now;
    }
}

/// Sorts what arrives from other peers.
pub async fn incoming(
    core: CoreHandle,
    mesh: Mesh,
    router: Router,
    mut incoming: Arrivals,
    cancel: CancellationToken,
) {
    let requests = TaskTracker::new();
    loop {
        let next = tokio::select! { biased;
            () = cancel.cancelled() => break,
            next = incoming.recv() => next,
        };
        match next {
            None => break,
            // A valid certificate of somebody whom no list names yet (or any more) is not enough here.
            Some(Incoming::Core { from, .. }) if mesh.members().list().member(&from).is_none() => {
                tracing::debug!(%from, "not on the member list: messages dropped");
            }
            Some(Incoming::Core { from, messages, .. }) => {
                for message in messages {
                    core.input(Input::Message { from: from.clone(), message }).await;
                }
            }
            Some(Incoming::Gossip { from, via, bytes }) => {
                mesh.receive(from, via.as_ref(), bytes);
            }
            Some(Incoming::Flash { origin, flash, .. }) => {
                mesh.note_flash(&origin, &flash);
                core.input(Input::Flash(flash)).await;
            }
            Some(Incoming::Request { head, send, .. }) => {
                let (router, cancel) = (router.clone(), cancel.clone());
                requests.spawn(async move {
                    tokio::select! { biased;
                        () = cancel.cancelled() => {}
                        () = answer(router, head, send) => {}
                    }
                });
            }
        }
    }
    requests.close();
    requests.wait().await;
}

/// Answers one request of another peer by this peer's own router.
async fn answer(router: Router, head: Vec<u8>, mut send: SendStream) {
    let Ok(request) = codec::decode::<ProxyRequest>(&head, head.len().max(1)) else {
        return tracing::debug!("a peer's request could not be read");
    };
    let mut response = serve_proxy(router, request).await;
    let head = ProxyHead { status: response.status, content_type: response.content_type };
    let Ok(head) = codec::encode(&head) else { return };
    let length = u32::try_from(head.len()).unwrap_or(PROXY_HEAD_BYTES_MAX);
    if send.write_all(&length.to_be_bytes()).await.is_err() || send.write_all(&head).await.is_err() {
        return;
    }
    while let Some(Ok(chunk)) = response.body.next().await {
        // Whoever asked has gone away.
        if send.write_all(&chunk).await.is_err() {
            return;
        }
    }
    let _ = send.shutdown().await;
}

/// Watches disk and load.
pub struct Health {
    pub core: CoreHandle,
    pub mesh: Mesh,
    pub store: Store,
    pub backend: Arc<dyn Backend>,
    pub reserve: Bytes,
    pub disk_note: Option<String>,
}

impl Health {
    /// Looks every few seconds; tells the core at once when the disk's state changes.
    pub async fn run(self, cancel: CancellationToken) {
        let mut full = false;
        let mut busy = cpu_times();
        let mut said: Option<HealthReport> = None;
        loop {
            let free = self.store.disk_free().unwrap_or_default();
            let now_full = free < self.reserve;
            if now_full != full {
                full = now_full;
                tracing::warn!(
                    "disk {}: {free} are free",
                    if full { "nearly full, new jobs are refused" } else { "has room again" }
                );
                self.core.input(Input::DiskFull(full)).await;
            }
            let isolated = self.mesh.view().borrow().isolated;
            let times = cpu_times();
            let cpu_milli = share_milli(busy, times);
            busy = times;
            let report = HealthReport {
                isolated,
                disk_free: Bytes(free.0 >> 27 << 27),
                disk_full: full,
                cpu_milli: cpu_milli / 50 * 50,
                gpu_milli: self.backend.gpu_use_milli().await,
                boot: self.store.boot(),
                disk_note: self.disk_note.clone(),
            };
            if said.as_ref().is_none_or(|said| health_differs(said, &report)) {
                if let Err(error) = self.mesh.publish(Facet::Health(report.clone())) {
                    tracing::error!("cannot report: {error}");
                }
                said = Some(report);
            }
            tokio::select! { biased;
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(Span::secs(2).to_std()) => {}
            }
        }
    }
}

/// By more than what goes up and down all the time.
fn health_differs(a: &HealthReport, b: &HealthReport) -> bool {
    let moved = |a: u32, b: u32| a.abs_diff(b) > 200;
    (a.isolated, a.disk_full, a.boot) != (b.isolated, b.disk_full, b.boot)
        || a.disk_free.0.abs_diff(b.disk_free.0) > a.disk_free.0.max(b.disk_free.0) / 20
        || moved(a.cpu_milli, b.cpu_milli)
        || a.gpu_milli.is_some() != b.gpu_milli.is_some()
        || moved(a.gpu_milli.unwrap_or(0), b.gpu_milli.unwrap_or(0))
}

/// Busy and total ticks of all cores since boot.
fn cpu_times() -> (u64, u64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<u64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|f| f.parse().ok())
        .collect();
    let total: u64 = fields.iter().take(8).sum();
    let idle: u64 = fields.iter().skip(3).take(2).sum();
    (total.saturating_sub(idle), total)
}

fn share_milli(before: (u64, u64), after: (u64, u64)) -> u32 {
    let (busy, total) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    u32::try_from(busy * 1000 / total.max(1)).unwrap_or(1000).min(1000)
}
