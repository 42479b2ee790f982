//! What comes in on a link: streams are read, checked, and handed to whom they concern.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use quinn::{RecvStream, SendStream};
use tokio::time::timeout;
use tracing::info;

use super::api::{GOSSIP_BYTES_MAX, HEAD_BYTES_MAX, Incoming};
use super::codec::{self, CodecError, FRAME_BYTES_MAX, Kind};
use super::inbox::Room;
use super::link::{Link, close};
use super::shared::{Shared, lock};
use super::wire::{self, CONTROL_BYTES_MAX, Control, FrameError};
use super::{dial, flash, meter, relay};
use crate::base::PeerName;
use crate::core::message::Message;

/// A frame that takes longer than this to arrive is given up.
const STREAM_DEADLINE: Duration = Duration::from_secs(30);
/// Peers that one neighbour may say that it reaches.
const REACH_MAX: usize = 4_096;

/// Serves one link to its end.
pub(super) async fn run(shared: Arc<Shared>, link: Arc<Link>, control: RecvStream) {
    shared.tracker.spawn(guarded(
        shared.clone(),
        link.clone(),
        read_control(shared.clone(), link.clone(), control),
    ));
    loop {
        tokio::select! {
            biased;
            () = link.stop.cancelled() => break,
            stream = link.connection.accept_uni() => match stream {
                Ok(recv) => {
                    let work = on_uni(shared.clone(), link.clone(), recv);
                    let mut work = Box::pin(guarded(shared.clone(), link.clone(), work));
                    // A small frame is here as a whole when its stream is.
                    if !super::link::poll_now(work.as_mut()) {
                        shared.tracker.spawn(work);
                    }
                }
                Err(_) => break,
            },
            stream = link.connection.accept_bi() => match stream {
                Ok((send, recv)) => {
                    let work = on_bi(shared.clone(), link.clone(), send, recv);
                    shared.tracker.spawn(guarded(shared.clone(), link.clone(), work));
                }
                Err(_) => break,
            },
        }
    }
    let why = link.connection.close_reason().map(|reason| reason.to_string());
    link.close(close::DONE, "");
    info!(peer = %link.peer, why, "link down");
    let stagger = shared.config.dial_stagger.to_std();
    shared.pool.remove(&link, why, stagger, |failures| dial::pause(&shared, failures));
    shared.counters.links_down.add(1);
}

/// Ends with the link; what the other side does wrong costs it the link.
async fn guarded(shared: Arc<Shared>, link: Arc<Link>, work: impl Future<Output = Result<(), FrameError>>) {
    tokio::select! {
        biased;
        () = link.stop.cancelled() => {}
        done = work => if let Err(error) = done { shared.fault(&link, &error) },
    }
}

async fn on_uni(shared: Arc<Shared>, link: Arc<Link>, mut recv: RecvStream) -> Result<(), FrameError> {
    if shared.pool.blocked(&link.peer) {
        return Ok(());
    }
    let read = async {
        let (kind, length) = wire::read_header(&mut recv).await?;
        match kind {
            Kind::Probe => meter::receive(&shared, &link, &mut recv, length).await.map(|()| None),
            Kind::Core | Kind::Gossip | Kind::Flash | Kind::Relay => {
                let Some(room) = shared.inbox.room(&link.room, length).await else { return Ok(None) };
                let payload = wire::read_last(&mut recv, length).await?;
                Ok(Some((kind, Bytes::from(payload), room)))
            }
            Kind::Hello | Kind::Control | Kind::Request | Kind::RelayRequest | Kind::Join => {
                Err(CodecError::Kind(kind as u8).into())
            }
        }
    };
    let Ok(done) = timeout(STREAM_DEADLINE, read).await else { return Ok(()) };
    let Some((kind, payload, room)) = done? else { return Ok(()) };
    shared.counters.frames_in.add(1);
    shared.counters.bytes_in.add(payload.len() as u64);
    match kind {
        Kind::Flash => flash::receive(&shared, &link, &payload, room).await,
        Kind::Relay => relay::receive(&shared, &link, payload, room).await,
        _ => deliver(&shared, kind, payload, room, link.peer.clone(), None).await,
    }
}

/// Hands core messages or gossip to the runtime.
pub(super) async fn deliver(
    shared: &Shared,
    kind: Kind,
    payload: Bytes,
    room: Room,
    from: PeerName,
    via: Option<PeerName>,
) -> Result<(), FrameError> {
    let item = match kind {
        Kind::Core => {
            let messages: Vec<Message> = codec::decode(&payload, FRAME_BYTES_MAX)?;
            Incoming::Core { from, via, messages }
        }
        Kind::Gossip if payload.len() <= GOSSIP_BYTES_MAX => Incoming::Gossip { from, via, bytes: payload },
        Kind::Gossip => return Err(CodecError::TooLarge { got: payload.len(), max: GOSSIP_BYTES_MAX }.into()),
        _ => return Err(CodecError::Kind(kind as u8).into()),
    };
    shared.inbox.put(item, room).await;
    Ok(())
}

async fn on_bi(
    shared: Arc<Shared>,
    link: Arc<Link>,
    send: SendStream,
    mut recv: RecvStream,
) -> Result<(), FrameError> {
    if shared.pool.blocked(&link.peer) {
        return Ok(());
    }
    let read = async {
        let (kind, length) = wire::read_header(&mut recv).await?;
        let limit = HEAD_BYTES_MAX + 1_024;
        if !matches!(kind, Kind::Request | Kind::RelayRequest) {
            return Err(FrameError::Garbage(CodecError::Kind(kind as u8)));
        }
        let Some(room) = shared.inbox.room(&link.room, length.min(limit)).await else { return Ok(None) };
        let head = wire::read_payload(&mut recv, length, limit).await?;
        Ok(Some((kind, head, room)))
    };
    let Ok(done) = timeout(STREAM_DEADLINE, read).await else { return Ok(()) };
    let Some((kind, head, room)) = done? else { return Ok(()) };
    if kind == Kind::RelayRequest {
        return relay::receive_request(&shared, &link, head.into(), room, send, recv).await;
    }
    let item = Incoming::Request { from: link.peer.clone(), via: None, head, send, recv };
    shared.inbox.put(item, room).await;
    Ok(())
}

async fn read_control(shared: Arc<Shared>, link: Arc<Link>, mut recv: RecvStream) -> Result<(), FrameError> {
    loop {
        let payload = wire::read_frame(&mut recv, Kind::Control, CONTROL_BYTES_MAX).await?;
        match codec::decode(&payload, CONTROL_BYTES_MAX)? {
            Control::Reach { full, add, drop } => {
                let mut reach = lock(&link.reach);
                if full {
                    reach.clear();
                }
                reach.extend(add);
                for gone in drop {
                    reach.remove(&gone);
                }
                if reach.len() > REACH_MAX {
                    return Err(CodecError::TooLarge { got: reach.len(), max: REACH_MAX }.into());
                }
            }
            Control::Renewed(proof) => match shared.check(&link.connection, &proof) {
                Ok(proven) if proven.name == link.peer => {
                    link.good_until_ms.store(proven.validity.1.0, Ordering::Relaxed);
                }
                Ok(_) => return Err(CodecError::Malformed("a certificate of another peer".into()).into()),
                Err(why) => return Err(CodecError::Malformed(why).into()),
            },
            Control::Probed { token, bytes, micros } => meter::probed(&shared, &link, token, bytes, micros),
            Control::Pass { frame, to } => flash::pass(&shared, &link, *frame, &to)?,
        }
    }
}
