//! What was received and waits for the runtime: bounded in bytes, urgent things first.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::api::Incoming;
use super::codec::FRAME_BYTES_MAX;

/// Items that may wait on either way in; bytes are bounded apart.
const ITEMS_MAX: usize = 4_096;
/// Items already handed to the runtime's channel.
const HANDED_MAX: usize = 64;

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
    /// Room for this many bytes; the receiver gets everything in the order of its urgency.
    pub fn new(
        bytes: usize,
        tracker: &TaskTracker,
        stop: CancellationToken,
    ) -> (Self, mpsc::Receiver<Incoming>) {
        let (urgent, urgent_in) = mpsc::channel(ITEMS_MAX);
        let (rest, rest_in) = mpsc::channel(ITEMS_MAX);
        let (out, receiver) = mpsc::channel(HANDED_MAX);
        tracker.spawn(forward(urgent_in, rest_in, out, stop));
        (Self { room: room(bytes), urgent, rest }, receiver)
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

async fn forward(
    mut urgent: mpsc::Receiver<(Incoming, Room)>,
    mut rest: mpsc::Receiver<(Incoming, Room)>,
    out: mpsc::Sender<Incoming>,
    stop: CancellationToken,
) {
    loop {
        // A place first, so that what is most urgent when there is one goes through.
        let place = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            place = out.reserve() => match place { Ok(place) => place, Err(_) => return },
        };
        let (item, room) = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some(item) = urgent.recv() => item,
            Some(item) = rest.recv() => item,
            else => return,
        };
        place.send(item);
        drop(room);
    }
}
