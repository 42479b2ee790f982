//! One hop through a peer that reaches both: frames, and requests with their streams.
//!
//! The relay's own link proves the relay; for the peer behind it the relay vouches, and `via` says so.
//! What was passed on once is never passed on again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{RecvStream, SendStream, VarInt};
use tokio::time::timeout;
use tracing::debug;

use super::api::{HEAD_BYTES_MAX, Incoming, NetError};
use super::codec::{self, Kind};
use super::inbox::Room;
use super::link::{Item, Lane, Link, close};
use super::receive;
use super::shared::{Shared, lock};
use super::wire::{self, FrameError, RelayHead};
use crate::base::PeerName;

/// Relays tried for one request.
const RELAYS_TRIED_MAX: usize = 3;
/// The relay's word that the far side has the request.
const ACCEPTED: u8 = b'+';
/// Bytes of a stream that are passed on at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// A relayed stream that moves nothing for this long is cut.
const QUIET_MAX: Duration = Duration::from_secs(600);

/// Peers that say that they reach this one, in random order, so that a bad one does not stay chosen.
fn relays(shared: &Shared, to: &PeerName) -> Vec<Arc<Link>> {
    let mut links = shared.pool.relays_to(to);
    lock(&shared.rng).shuffle(&mut links);
    links
}

/// Queues a frame for a peer that is not linked; false when nobody reaches it.
pub(super) fn send(shared: &Arc<Shared>, to: &PeerName, kind: Kind, payload: &[u8]) -> bool {
    let Some(relay) = relays(shared, to).into_iter().next() else { return false };
    push(shared, &relay, &RelayHead::To(to.clone(), kind as u8), payload)
}

fn push(shared: &Arc<Shared>, link: &Arc<Link>, head: &RelayHead, payload: &[u8]) -> bool {
    let frame = wire::relay_payload(head, payload).and_then(|bytes| codec::frame(Kind::Relay, &bytes));
    match frame {
        Ok(frame) => link.push(shared, Lane::Relay, vec![Item { bytes: frame.into(), until: None }]),
        Err(_) => false,
    }
}

/// A relayed frame came in: for this peer, or to be passed on.
pub(super) async fn receive(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    payload: Bytes,
    room: Room,
) -> Result<(), FrameError> {
    match wire::split_relay(payload)? {
        (RelayHead::From(origin, kind), inner) => {
            let kind = Kind::try_from(kind)?;
            if origin == *shared.me() || !shared.pool.members().contains(&origin) {
                return Ok(());
            }
            receive::deliver(shared, kind, inner, room, origin, Some(link.peer.clone())).await
        }
        (RelayHead::To(to, kind), inner) => {
            let head = RelayHead::From(link.peer.clone(), Kind::try_from(kind)? as u8);
            let far = shared.pool.link(&to).filter(|_| !shared.pool.blocked(&to));
            if far.is_some_and(|far| push(shared, &far, &head, &inner)) {
                shared.counters.relayed_frames.add(1);
            } else {
                shared.counters.shed_relay.add(1);
            }
            Ok(())
        }
    }
}

/// Opens a request straight.
pub(super) async fn open_direct(link: &Link, head: &[u8]) -> Result<(SendStream, RecvStream), FrameError> {
    let (mut send, recv) = link.connection.open_bi().await?;
    send.write_chunk(codec::frame(Kind::Request, head)?.into()).await?;
    Ok((send, recv))
}

/// Opens a request through one of the peers that reach the other one.
pub(super) async fn open(
    shared: &Shared,
    to: &PeerName,
    head: &[u8],
) -> Result<(SendStream, RecvStream), NetError> {
    for relay in relays(shared, to).into_iter().take(RELAYS_TRIED_MAX) {
        let attempt = async {
            let hop = RelayHead::To(to.clone(), Kind::Request as u8);
            let (send, mut recv) = open_with(&relay, &hop, head).await?;
            let mut word = [0];
            recv.read_exact(&mut word).await?;
            Ok::<_, FrameError>((send, recv, word[0]))
        };
        match timeout(shared.config.hello_timeout.to_std(), attempt).await {
            Ok(Ok((send, recv, ACCEPTED))) => return Ok((send, recv)),
            other => debug!(peer = %to, relay = %relay.peer, ?other, "a relay did not get through"),
        }
    }
    Err(NetError::Unreachable(to.clone()))
}

async fn open_with(
    link: &Link,
    relay: &RelayHead,
    head: &[u8],
) -> Result<(SendStream, RecvStream), FrameError> {
    let (mut send, recv) = link.connection.open_bi().await?;
    let frame = codec::frame(Kind::RelayRequest, &wire::relay_payload(relay, head)?)?;
    send.write_chunk(frame.into()).await?;
    Ok((send, recv))
}

/// A relayed request came in: for this peer, or to be passed on.
pub(super) async fn receive_request(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    head: Bytes,
    room: Room,
    mut send: SendStream,
    recv: RecvStream,
) -> Result<(), FrameError> {
    let (relay, head) = wire::split_relay(head)?;
    if head.len() > HEAD_BYTES_MAX {
        return Err(codec::CodecError::TooLarge { got: head.len(), max: HEAD_BYTES_MAX }.into());
    }
    match relay {
        RelayHead::From(origin, _) => {
            if origin == *shared.me() || !shared.pool.members().contains(&origin) {
                return Ok(());
            }
            let via = Some(link.peer.clone());
            let item = Incoming::Request { from: origin, via, head: head.to_vec(), send, recv };
            shared.inbox.put(item, room).await;
            Ok(())
        }
        RelayHead::To(to, kind) => {
            drop(room);
            let far = shared.pool.link(&to).filter(|_| !shared.pool.blocked(&to));
            let (Some(far), Ok(_slot)) = (far, shared.relays.try_acquire()) else { return Ok(()) };
            // A far side that breaks is not the caller's fault: its stream just ends.
            let onward = RelayHead::From(link.peer.clone(), kind);
            let Ok((far_send, far_recv)) = open_with(&far, &onward, &head).await else { return Ok(()) };
            send.write_all(&[ACCEPTED]).await?;
            shared.counters.relayed_requests.add(1);
            tokio::select! {
                biased;
                () = far.stop.cancelled() => {}
                _both = async { tokio::join!(pump(recv, far_send), pump(far_recv, send)) } => {}
            }
            Ok(())
        }
    }
}

/// Moves bytes one way until either end is done; a cut on one side is a cut on the other.
async fn pump(mut from: RecvStream, mut to: SendStream) {
    loop {
        let chunk = tokio::select! {
            biased;
            _gone = to.stopped() => {
                let _closed = from.stop(VarInt::from_u32(close::DONE));
                return;
            }
            chunk = timeout(QUIET_MAX, from.read_chunk(CHUNK_BYTES, true)) => chunk,
        };
        match chunk {
            Ok(Ok(Some(chunk))) => {
                if to.write_chunk(chunk.bytes).await.is_err() {
                    let _closed = from.stop(VarInt::from_u32(close::DONE));
                    return;
                }
            }
            Ok(Ok(None)) => {
                let _closed = to.finish();
                return;
            }
            Ok(Err(_)) | Err(_) => {
                let _closed = to.reset(VarInt::from_u32(close::DONE));
                return;
            }
        }
    }
}
