//! The hello: how a connection becomes a link, on either side.
//!
//! TLS names the caller to the called, and nobody to the caller. Then, on the first stream: the caller says
//! what it is; the called checks that, shows its named certificate and signs the connection's channel
//! binding with it; the caller checks that and says that it is ready. Nothing else is read before.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::codec::{self, Kind};
use super::link::{Met, close};
use super::shared::{GREETINGS_MAX, Shared};
use super::wire::{FrameError, Greeting, HELLO_BYTES_MAX, Hello, read_frame, write_value};
use super::{certs, join, tls};
use crate::base::PeerName;
use crate::base::text::words;

/// So begins why a dial failed, where the other side is of this mesh and takes no link from this peer: its words follow.
pub const REFUSES: &str = "it refuses this peer: ";

/// Why a connection did not become a link.
#[derive(Debug)]
enum Failed {
    /// Not of this mesh: told nothing.
    Stranger,
    /// Of this mesh, and refused for this reason, which it is told.
    Refused(String),
    /// It answered under another name.
    Misdialled(PeerName),
    /// The other side closed, refused us, or broke.
    Broken(String),
}

impl From<FrameError> for Failed {
    fn from(e: FrameError) -> Self {
        match e {
            FrameError::Garbage(e) => Self::Broken(format!("it sent garbage: {e}")),
            FrameError::Broken(e) => Self::Broken(e),
        }
    }
}
impl From<quinn::ConnectionError> for Failed {
    fn from(e: quinn::ConnectionError) -> Self {
        Self::Broken(e.to_string())
    }
}

impl Failed {
    fn close(&self, connection: &Connection) {
        let (code, reason) = match self {
            Self::Stranger => (close::STRANGER, ""),
            Self::Refused(why) => (close::REFUSED, why.as_str()),
            Self::Misdialled(_) => (close::MISDIALLED, ""),
            Self::Broken(_) => (close::GARBAGE, ""),
        };
        let bytes = reason.as_bytes();
        connection.close(VarInt::from_u32(code), &bytes[..bytes.len().min(200)]);
    }
    fn text(self) -> String {
        match self {
            Self::Stranger => "it is not of this mesh".into(),
            Self::Refused(why) => format!("refused here: {why}"),
            Self::Misdialled(other) => format!("{other} answers there"),
            Self::Broken(why) => why,
        }
    }
}

/// Takes connections until the endpoint closes.
pub(super) async fn accept(shared: Arc<Shared>) {
    loop {
        let incoming = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            incoming = shared.endpoint.accept() => match incoming { Some(incoming) => incoming, None => return },
        };
        let Ok(permit) = shared.greetings.clone().try_acquire_owned() else {
            shared.counters.turned_away.add(1);
            incoming.refuse();
            continue;
        };
        // When it gets crowded, callers must first show that their address is their own.
        let crowded = shared.greetings.available_permits() < GREETINGS_MAX / 2;
        if crowded && !incoming.remote_address_validated() && incoming.may_retry() {
            let _gone = incoming.retry();
            continue;
        }
        let task = shared.clone();
        shared.tracker.spawn(async move {
            let _permit = permit;
            tokio::select! {
                biased;
                () = task.stop.cancelled() => {}
                () = greet(&task, incoming) => {}
            }
        });
    }
}

async fn greet(shared: &Arc<Shared>, incoming: quinn::Incoming) {
    let address = incoming.remote_address();
    let limit = shared.config.hello_timeout.to_std();
    let connection = match timeout(limit, async { incoming.accept()?.await }).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            debug!(%address, %error, "handshake failed");
            return shared.counters.strangers.add(1);
        }
        Err(_late) => return shared.counters.half_open.add(1),
    };
    if tls::alpn(&connection).is_some_and(|alpn| alpn == tls::ALPN_JOIN) {
        return join::serve(shared, connection).await;
    }
    match timeout(limit, answer(shared, &connection)).await {
        Ok(Ok((met, control))) => {
            if let Err(why) = shared.add_link(met, control) {
                warn!(%address, why, "a link was refused");
            }
        }
        Ok(Err(failed)) => {
            match &failed {
                Failed::Stranger => shared.counters.strangers.add(1),
                Failed::Refused(why) => {
                    shared.counters.refused.add(1);
                    warn!(%address, why, "a peer was refused");
                }
                Failed::Broken(_) | Failed::Misdialled(_) => shared.counters.half_open.add(1),
            }
            failed.close(&connection);
        }
        Err(_late) => {
            shared.counters.half_open.add(1);
            connection.close(VarInt::from_u32(close::GARBAGE), b"");
        }
    }
}

/// The called side.
async fn answer(shared: &Arc<Shared>, connection: &Connection) -> Result<(Met, RecvStream), Failed> {
    let certificate = tls::peer_certificate(connection).ok_or(Failed::Stranger)?;
    let proven = shared.identity.prove(&certificate).map_err(|_| Failed::Stranger)?;
    let (mut send, mut recv) = connection.accept_bi().await?;
    let Greeting::Call(hello) = read_greeting(&mut recv).await? else {
        return Err(Failed::Broken("it did not begin with a call".into()));
    };
    let clock_ahead_ms = ahead(shared, &hello);
    if hello.name != proven.name {
        return Err(Failed::Refused(format!("the certificate names {}, not {}", proven.name, hello.name)));
    }
    shared.admits(&hello).map_err(Failed::Refused)?;
    let proof = shared.proof(connection).ok_or(Failed::Stranger)?;
    write_value(&mut send, Kind::Hello, &Greeting::Welcome(shared.hello(), proof)).await?;
    let Greeting::Ready = read_greeting(&mut recv).await? else {
        return Err(Failed::Broken("it was not ready".into()));
    };
    Ok((met(connection, hello, false, &proven, send, clock_ahead_ms), recv))
}

/// The calling side.
async fn call(
    shared: &Arc<Shared>,
    connection: &Connection,
    peer: &PeerName,
) -> Result<(Met, RecvStream), Failed> {
    let (mut send, mut recv) = connection.open_bi().await?;
    write_value(&mut send, Kind::Hello, &Greeting::Call(shared.hello())).await?;
    let Greeting::Welcome(hello, proof) = read_greeting(&mut recv).await? else {
        return Err(Failed::Broken("it did not welcome".into()));
    };
    let clock_ahead_ms = ahead(shared, &hello);
    let proven = shared.check(connection, &proof).map_err(|_| Failed::Stranger)?;
    if proven.name != hello.name {
        return Err(Failed::Stranger);
    }
    if hello.name != *peer {
        return Err(Failed::Misdialled(hello.name));
    }
    shared.admits(&hello).map_err(Failed::Refused)?;
    write_value(&mut send, Kind::Hello, &Greeting::Ready).await?;
    Ok((met(connection, hello, true, &proven, send, clock_ahead_ms), recv))
}

/// Calls one address and makes a link of it.
pub(super) async fn dial(shared: &Arc<Shared>, peer: &PeerName, address: SocketAddr) -> Result<(), String> {
    let config = shared.client.load().as_ref().clone();
    let connecting =
        shared.endpoint.connect_with(config, address, certs::DNS_NAME).map_err(|e| e.to_string())?;
    let both = async {
        let connection = connecting.await.map_err(|e| e.to_string())?;
        let called = call(shared, &connection, peer).await;
        called.map_err(|failed| {
            // A reason that the other side gave says more than the broken stream that it caused.
            let theirs = connection.close_reason().map(|reason| match reason {
                quinn::ConnectionError::ApplicationClosed(closed)
                    if closed.error_code == VarInt::from_u32(close::REFUSED) =>
                {
                    format!("{REFUSES}{}", words(&String::from_utf8_lossy(&closed.reason), 200))
                }
                other => other.to_string(),
            });
            failed.close(&connection);
            theirs.unwrap_or_else(|| failed.text())
        })
    };
    let limit = shared.config.hello_timeout;
    let late = |_| format!("no hello within {limit}");
    let (met, control) = timeout(limit.to_std(), both).await.map_err(late)??;
    shared.add_link(met, control)
}

async fn read_greeting(recv: &mut RecvStream) -> Result<Greeting, FrameError> {
    let bytes = read_frame(recv, Kind::Hello, HELLO_BYTES_MAX).await?;
    Ok(codec::decode(&bytes, HELLO_BYTES_MAX)?)
}

fn ahead(shared: &Shared, hello: &Hello) -> i64 {
    let difference = i128::from(hello.clock_ms) - i128::from(shared.clock_ms());
    i64::try_from(difference).unwrap_or(0)
}

fn met(
    connection: &Connection,
    hello: Hello,
    dialled: bool,
    proven: &certs::Proven,
    control: SendStream,
    clock_ahead_ms: i64,
) -> Met {
    let connection = connection.clone();
    Met { connection, hello, dialled, good_until_ms: proven.validity.1.0, control, clock_ahead_ms }
}
