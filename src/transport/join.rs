//! The join channel: how a stranger with a token asks, and how it knows whom it asks.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn::{Connection, ConnectionError, Endpoint, RecvStream, VarInt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::api::{JOIN_ANSWER_BYTES_MAX, JOIN_BYTES_MAX, JoinHandler, NetError};
use super::codec::{self, Kind};
use super::link::close;
use super::shared::{Shared, lock};
use super::wire::{self, FrameError};
use super::{certs, tls};
use crate::base::Span;

/// Questions answered at once.
const AT_ONCE_MAX: usize = 8;
/// Questions that one address may ask in a burst, and after that per second.
const BURST: u32 = 8;
/// Addresses remembered.
const ADDRESSES_MAX: usize = 1_024;
/// Longest time from the handshake to the end of the answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Longest time a caller waits in all.
const CALL_DEADLINE: Span = Span::secs(20);

/// Who answers, and how many may ask.
pub(super) struct Gate {
    handler: Mutex<Option<Arc<dyn JoinHandler>>>,
    slots: Semaphore,
    buckets: Mutex<BTreeMap<IpAddr, (u32, Instant)>>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { handler: Mutex::default(), slots: Semaphore::new(AT_ONCE_MAX), buckets: Mutex::default() }
    }
}

impl Gate {
    pub fn set(&self, handler: Option<Arc<dyn JoinHandler>>) {
        *lock(&self.handler) = handler;
    }

    /// One question of this address, one a second after a burst.
    fn admits(&self, address: IpAddr) -> bool {
        let (now, mut buckets) = (Instant::now(), lock(&self.buckets));
        if buckets.len() >= ADDRESSES_MAX {
            let full = Duration::from_secs(u64::from(BURST));
            buckets.retain(|_, (_, since)| now.duration_since(*since) < full);
        }
        if buckets.len() >= ADDRESSES_MAX && !buckets.contains_key(&address) {
            return false;
        }
        let (left, since) = buckets.entry(address).or_insert((BURST, now));
        let passed = u32::try_from(now.duration_since(*since).as_secs()).unwrap_or(BURST);
        if passed > 0 {
            *left = left.saturating_add(passed).min(BURST);
            *since = now;
        }
        let admitted = *left > 0;
        *left = left.saturating_sub(1);
        admitted
    }
}

/// Answers one connection of the join channel.
pub(super) async fn serve(shared: &Arc<Shared>, connection: Connection) {
    let handler = lock(&shared.join.handler).clone();
    let slot = shared.join.slots.try_acquire();
    let (Some(handler), Ok(_slot)) = (handler, slot) else { return refuse(shared, &connection) };
    if !shared.join.admits(connection.remote_address().ip()) {
        return refuse(shared, &connection);
    }
    match timeout(DEADLINE, answer(&connection, handler.as_ref())).await {
        Ok(Ok(())) => {
            shared.counters.joins.add(1);
            // The caller closes when it has read the answer.
            let _late = timeout(Duration::from_secs(2), connection.closed()).await;
            connection.close(VarInt::from_u32(close::DONE), b"");
        }
        Ok(Err(FrameError::Garbage(_))) => {
            shared.counters.garbage.add(1);
            connection.close(VarInt::from_u32(close::GARBAGE), b"");
        }
        Ok(Err(FrameError::Broken(_))) | Err(_) => {
            shared.counters.half_open.add(1);
            connection.close(VarInt::from_u32(close::GARBAGE), b"");
        }
    }
}

fn refuse(shared: &Shared, connection: &Connection) {
    shared.counters.joins_refused.add(1);
    connection.close(VarInt::from_u32(close::REFUSED), b"");
}

async fn answer(connection: &Connection, handler: &dyn JoinHandler) -> Result<(), FrameError> {
    let (mut send, mut recv) = connection.accept_bi().await?;
    let request = read(&mut recv, JOIN_BYTES_MAX).await?;
    let answer = handler.handle(request).await;
    send.write_chunk(codec::frame(Kind::Join, &answer)?.into()).await?;
    Ok(send.finish()?)
}

async fn read(recv: &mut RecvStream, max: usize) -> Result<Vec<u8>, FrameError> {
    match wire::read_header(recv).await? {
        (Kind::Join, length) if length <= max => wire::read_last(recv, length).await,
        (Kind::Join, got) => Err(codec::CodecError::TooLarge { got, max }.into()),
        (other, _) => Err(codec::CodecError::Kind(other as u8).into()),
    }
}

/// Asks a member of a mesh that one is not in. The server must show a chain under the trust root whose
/// SHA-256 is `ca_fingerprint`; before it did, nothing is sent. Ends within 20 seconds.
pub async fn join_call(
    address: SocketAddr,
    ca_fingerprint: [u8; 32],
    request: Vec<u8>,
) -> Result<Vec<u8>, NetError> {
    if request.len() > JOIN_BYTES_MAX {
        return Err(NetError::TooLarge { what: "the join request", got: request.len(), max: JOIN_BYTES_MAX });
    }
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let from = SocketAddr::new(any, 0);
    let endpoint = Endpoint::client(from).map_err(|e| NetError::Bind(from, e))?;
    let asked = timeout(CALL_DEADLINE.to_std(), ask(&endpoint, address, ca_fingerprint, &request)).await;
    endpoint.close(VarInt::from_u32(close::DONE), b"");
    let _late = timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
    asked.unwrap_or(Err(NetError::Timeout(CALL_DEADLINE)))
}

async fn ask(
    endpoint: &Endpoint,
    address: SocketAddr,
    ca_fingerprint: [u8; 32],
    request: &[u8],
) -> Result<Vec<u8>, NetError> {
    let lost = |e: FrameError| NetError::Lost(e.to_string());
    let config = tls::join_config(ca_fingerprint)?;
    let connecting = endpoint.connect_with(config, address, certs::DNS_NAME);
    let connecting = connecting.map_err(|e| NetError::Config(e.to_string()))?;
    let connection = connecting.await.map_err(|e| match e {
        // TLS alerts are 0x100 to 0x1ff: it did not show what the token asks for, or speaks no join channel.
        ConnectionError::TransportError(e) if (0x100..0x200).contains(&u64::from(e.code)) => {
            NetError::WrongMesh(address)
        }
        other => NetError::Lost(other.to_string()),
    })?;
    let talk = async {
        let (mut send, mut recv) = connection.open_bi().await?;
        send.write_chunk(codec::frame(Kind::Join, request)?.into()).await?;
        send.finish()?;
        read(&mut recv, JOIN_ANSWER_BYTES_MAX).await
    };
    let answer: Result<Vec<u8>, FrameError> = talk.await;
    answer.map_err(|e| match connection.close_reason() {
        Some(ConnectionError::ApplicationClosed(close))
            if close.error_code == VarInt::from_u32(close::REFUSED) =>
        {
            NetError::Lost("it takes only a few joins in a short time: try again in a few seconds".into())
        }
        _ => lost(e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_asks_only_so_often() {
        let gate = Gate::default();
        let from = |n: u32| IpAddr::V4(Ipv4Addr::from(n));
        assert!((0..BURST).all(|_| gate.admits(from(1))));
        assert!(!gate.admits(from(1)));
        assert!(gate.admits(from(2)), "another one is not held up");
        for n in 0..5_000 {
            gate.admits(from(n));
        }
        assert!(lock(&gate.buckets).len() <= ADDRESSES_MAX);
    }
}
