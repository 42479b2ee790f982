//! What was received and waits for the runtime: bounded in bytes, urgent things first.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::api::Incoming;
use super::codec::FRAME_BYTES_MAX;

/// Items that may wait on either way in; bytes are bounded apart.
const ITEMS_MAX: usize = 4_096;

/// Room for received bytes, given back when the runtime takes them.
pub(super) type Room = Vec<OwnedSemaphorePermit>;

/// The way in.
#[derive(Debug)]
pub(super) struct Inbox {
    room: Arc<Semaphore>,
    urgent: mpsc::Sender<(Incoming, Room)>,
    rest: mpsc::Sender<(Incoming, Room)>,
}

impl Inbox {
    /// Room for this many bytes, and its other end.
    pub fn new(bytes: usize, stop: CancellationToken) -> (Self, Arrivals) {
        let (urgent, urgent_in) = mpsc::channel(ITEMS_MAX);
        let (rest, rest_in) = mpsc::channel(ITEMS_MAX);
        (Self { room: room(bytes), urgent, rest }, Arrivals { urgent: urgent_in, rest: rest_in, stop })
    }

    /// Waits for room, first in the sender's own share, so that one flood does not take all of it.
    pub async fn room(&self, own: &Arc<Semaphore>, bytes: usize) -> Option<Room> {
        let bytes = u32::try_from(bytes.max(1)).ok()?;
        let mine = own.clone().acquire_many_owned(bytes).await.ok()?;
        Some(vec![mine, self.room.clone().acquire_many_owned(bytes).await.ok()?])
    }

    /// Hands something over; waits while the runtime is behind. Dropped when the peer stops.
    pub async fn put(&self, item: Incoming, room: Room) {
        let way = match &item {
            Incoming::Core { .. } | Incoming::Flash { .. } => &self.urgent,
            Incoming::Gossip { .. } | Incoming::Request { .. } => &self.rest,
        };
        let _stopped = way.send((item, room)).await;
    }

    /// The same without waiting; false when the way is full.
    pub fn try_put(&self, item: Incoming) -> bool {
        self.urgent.try_send((item, Vec::new())).is_ok()
    }
}

/// A semaphore of bytes with room for at least one frame.
pub(super) fn room(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(bytes.clamp(FRAME_BYTES_MAX, Semaphore::MAX_PERMITS)))
}

/// What has arrived, for the runtime. The room of an item is free once it is taken.
#[derive(Debug)]
pub struct Arrivals {
    urgent: mpsc::Receiver<(Incoming, Room)>,
    rest: mpsc::Receiver<(Incoming, Room)>,
    stop: CancellationToken,
}

impl Arrivals {
    /// The most urgent item, as soon as there is one; none when the peer stops.
    pub async fn recv(&mut self) -> Option<Incoming> {
        let (item, _room) = tokio::select! {
            biased;
            () = self.stop.cancelled() => return None,
            Some(item) = self.urgent.recv() => item,
            Some(item) = self.rest.recv() => item,
            else => return None,
        };
        Some(item)
    }

    /// The same, where something waits.
    pub fn try_recv(&mut self) -> Option<Incoming> {
        let (item, _room) = self.urgent.try_recv().or_else(|_| self.rest.try_recv()).ok()?;
        Some(item)
    }
}
