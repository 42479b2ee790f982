//! One connection to one proven peer, and what waits to be written on it.
//!
//! Nobody waits for a slow peer: each lane has a bounded queue, and what does not fit is shed and counted.
//! A lane has a task only while it has something to write.

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, SendStream, VarInt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::codec::{self, Kind};
use super::shared::{Shared, lock};
use super::wire::{FrameError, Hello};
use crate::base::{PeerName, StoreId};

/// Why a connection was closed, as its other end reads it.
pub(super) mod close {
    /// The peer stops, or no longer needs the link.
    pub const DONE: u32 = 0;
    /// No certificate of this mesh. Never with a reason: strangers learn nothing.
    pub const STRANGER: u32 = 1;
    /// Proven, and not admitted; the reason says why.
    pub const REFUSED: u32 = 2;
    /// It sent what no peer sends.
    pub const GARBAGE: u32 = 3;
    /// Another connection of the same two peers is kept.
    pub const RETIRED: u32 = 4;
    /// Its certificate has run out.
    pub const EXPIRED: u32 = 5;
    /// It is not the peer that was called.
    pub const MISDIALLED: u32 = 6;
}

/// Core messages written as one frame, at most.
const BATCH_BYTES_MAX: usize = 256 * 1024;
/// Gossip messages that wait for one peer: older ones are worthless, and a backlog would feed itself.
const GOSSIP_WAITING_MAX: usize = 4;
/// A gossip message that is not acknowledged by then is given up.
const GOSSIP_DEADLINE: Duration = Duration::from_secs(2);

/// The lanes, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Between neighbours, in order, on the hello's stream.
    Control,
    /// Flashes.
    Flash,
    /// Core messages, encoded one by one and written in batches.
    Core,
    /// Frames for or from a third peer.
    Relay,
    /// Gossip.
    Gossip,
}

impl Lane {
    const COUNT: usize = 5;
    fn priority(self) -> i32 {
        match self {
            Self::Control => 20,
            Self::Flash => 10,
            Self::Core => 5,
            Self::Relay => 3,
            Self::Gossip => -1,
        }
    }
}

/// Bytes that wait: whole frames, or for [`Lane::Core`] encoded messages.
#[derive(Debug, Clone)]
pub(super) struct Item {
    /// What to write.
    pub bytes: Bytes,
    /// Not worth writing after this.
    pub until: Option<Instant>,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
    writing: bool,
}

/// One connection whose other end has proven its name.
#[derive(Debug)]
pub(super) struct Link {
    pub connection: Connection,
    pub peer: PeerName,
    pub store: StoreId,
    pub boot: u64,
    /// It reads words about the past of disks.
    pub knows_disks: bool,
    /// It passes a flash on to whom its origin names.
    pub passes: bool,
    /// This side called.
    pub dialled: bool,
    pub since: Instant,
    /// The other side's clock less this side's, in milliseconds.
    pub clock_ahead_ms: i64,
    /// When its certificate runs out, wall milliseconds.
    pub good_until_ms: AtomicU64,
    /// Whom the other side says that it reaches.
    pub reach: Mutex<BTreeSet<PeerName>>,
    /// What this side last told it about that.
    pub told: Mutex<Arc<BTreeSet<PeerName>>>,
    /// A probe that is under way: its number and size.
    pub probe: Mutex<Option<(u64, u64)>>,
    /// Room for frames from it that wait for the runtime.
    pub room: Arc<Semaphore>,
    pub stop: CancellationToken,
    control: tokio::sync::Mutex<SendStream>,
    lanes: [Mutex<Queue>; Lane::COUNT],
}

/// Polls once, without anybody being woken later: true when it is done. Whatever waits must be polled again.
pub(super) fn poll_now(work: Pin<&mut impl Future<Output = ()>>) -> bool {
    work.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// What a finished hello knows.
pub(super) struct Met {
    pub connection: Connection,
    pub hello: Hello,
    pub dialled: bool,
    pub good_until_ms: u64,
    pub control: SendStream,
    pub clock_ahead_ms: i64,
}

impl Link {
    pub fn new(met: Met, shared: &Shared) -> Arc<Self> {
        Arc::new(Self {
            connection: met.connection,
            knows_disks: met.hello.extra.contains_key(super::shared::EXTRA_DISK),
            passes: met.hello.extra.contains_key(super::shared::EXTRA_PASS),
            peer: met.hello.name,
            store: met.hello.store,
            boot: met.hello.boot,
            dialled: met.dialled,
            since: Instant::now(),
            clock_ahead_ms: met.clock_ahead_ms,
            good_until_ms: AtomicU64::new(met.good_until_ms),
            reach: Mutex::default(),
            told: Mutex::default(),
            probe: Mutex::default(),
            room: super::inbox::room(shared.config.inbox_bytes / 4),
            stop: shared.stop.child_token(),
            control: tokio::sync::Mutex::new(met.control),
            lanes: Default::default(),
        })
    }

    /// It still stands, as far as this side knows.
    pub fn alive(&self) -> bool {
        self.connection.close_reason().is_none() && !self.stop.is_cancelled()
    }

    /// Ends it, saying why.
    pub fn close(&self, code: u32, reason: &str) {
        let end = reason.char_indices().map(|(i, c)| i + c.len_utf8()).take_while(|end| *end <= 200).last();
        self.connection.close(VarInt::from_u32(code), &reason.as_bytes()[..end.unwrap_or(0)]);
        self.stop.cancel();
    }

    /// Nothing waits and nothing is being written.
    pub fn flushed(&self) -> bool {
        self.lanes.iter().all(|lane| {
            let queue = lock(lane);
            queue.items.is_empty() && !queue.writing
        })
    }

    /// Queues all of these or none; false when they do not fit or the link is down.
    pub fn push(self: &Arc<Self>, shared: &Arc<Shared>, lane: Lane, items: Vec<Item>) -> bool {
        let bytes: usize = items.iter().map(|item| item.bytes.len()).sum();
        if !self.alive() {
            return false;
        }
        let start = {
            let mut queue = lock(&self.lanes[lane as usize]);
            if lane == Lane::Gossip {
                while queue.items.len() >= GOSSIP_WAITING_MAX {
                    let oldest = queue.items.pop_front().map_or(0, |item| item.bytes.len());
                    queue.bytes -= oldest;
                    shared.counters.shed_gossip.add(1);
                }
            }
            if queue.bytes + bytes > shared.config.outbox_bytes {
                return false;
            }
            queue.bytes += bytes;
            queue.items.extend(items);
            !std::mem::replace(&mut queue.writing, true)
        };
        if start {
            let mut work = Box::pin(self.clone().drain(shared.clone(), lane));
            // Most of the time there is room in the connection, and a task would only be one more thing to wake.
            let at_once = lane == Lane::Core && poll_now(work.as_mut());
            if !at_once {
                shared.tracker.spawn(work);
            }
        }
        true
    }

    /// The next frame of a lane; when there is none, the lane's task is over.
    fn next_frame(&self, shared: &Shared, lane: Lane) -> Option<Bytes> {
        let mut queue = lock(&self.lanes[lane as usize]);
        let mut batch = Vec::new();
        let mut size = 0;
        while let Some(item) = queue.items.pop_front() {
            queue.bytes -= item.bytes.len();
            if item.until.is_some_and(|until| until <= Instant::now()) {
                shared.counters.shed_flash.add(1);
                continue;
            }
            if lane != Lane::Core {
                return Some(item.bytes);
            }
            size += item.bytes.len();
            batch.push(item.bytes);
            let next = queue.items.front().map_or(0, |next| next.bytes.len());
            if size + next > BATCH_BYTES_MAX {
                break;
            }
        }
        if batch.is_empty() {
            queue.writing = false;
            return None;
        }
        drop(queue);
        let list = codec::encode_list(batch.iter().map(Bytes::as_ref));
        let frame = list.and_then(|list| codec::frame(Kind::Core, &list));
        Some(frame.expect("a batch is well below a frame's limit").into())
    }

    async fn drain(self: Arc<Self>, shared: Arc<Shared>, lane: Lane) {
        while let Some(frame) = self.next_frame(&shared, lane) {
            let size = frame.len() as u64;
            let written = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                written = self.write(lane, frame) => written,
            };
            match written {
                Ok(true) => {
                    shared.counters.frames_out.add(1);
                    shared.counters.bytes_out.add(size);
                }
                Ok(false) => shared.counters.shed_gossip.add(1),
                Err(_) => break,
            }
        }
        let mut queue = lock(&self.lanes[lane as usize]);
        if !self.alive() {
            *queue = Queue::default();
        }
        queue.writing = false;
    }

    /// Writes one frame; false when it was given up.
    async fn write(&self, lane: Lane, frame: Bytes) -> Result<bool, FrameError> {
        match lane {
            Lane::Control => self.control.lock().await.write_chunk(frame).await?,
            Lane::Gossip => {
                let mut stream = self.stream(lane).await?;
                let whole = async {
                    stream.write_chunk(frame).await?;
                    stream.finish()?;
                    let _acknowledged = stream.stopped().await;
                    Ok::<(), FrameError>(())
                };
                match timeout(GOSSIP_DEADLINE, whole).await {
                    Ok(written) => written?,
                    Err(_late) => {
                        stream.reset(VarInt::from_u32(close::DONE))?;
                        return Ok(false);
                    }
                }
            }
            Lane::Flash | Lane::Core | Lane::Relay => {
                let mut stream = self.stream(lane).await?;
                stream.write_chunk(frame).await?;
                stream.finish()?;
            }
        }
        Ok(true)
    }

    async fn stream(&self, lane: Lane) -> Result<SendStream, FrameError> {
        let stream = self.connection.open_uni().await?;
        stream.set_priority(lane.priority())?;
        Ok(stream)
    }

    /// Acknowledgements that came on it so far: a flash brings at least one more.
    pub fn acks(&self) -> u64 {
        self.connection.stats().frame_rx.acks
    }

    /// What its clock shows now, as far as the hello told.
    pub fn their_clock_ms(&self, ours: u64) -> u64 {
        ours.saturating_add_signed(self.clock_ahead_ms)
    }
    /// Its certificate has run out.
    pub fn expired(&self, now_ms: u64) -> bool {
        self.good_until_ms.load(Ordering::Relaxed) < now_ms
    }
}
