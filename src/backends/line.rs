//! The TCP line on which guards ask how long their attempts may live and say what became of them.
//!
//! One connection per guard, kept open: the peer can say "ask me" at any time (a stop, a new binding), and the
//! guard asks by itself a few times per grace. Whoever does not know an attempt's secret gets no answer.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, broadcast};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::local::clock;
use super::local::files::{read_json, write_json};
use super::local::guard::remote::{Answer, From, LINE_BYTES_MAX, LineFile, Question, claimed, open, seal};
use crate::core::api::AttemptKey;

/// Guards that may be connected at once; more use the files.
const CONNECTIONS_MAX: usize = 16_384;
/// Without a secret nothing is kept open for longer than a guard ever is silent.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// Who answers guards.
pub trait Hears: Send + Sync + 'static {
    /// The secret of an attempt's guards; none of one that is not known.
    fn secret(&self, key: AttemptKey) -> Option<Vec<u8>>;
    /// A guard spoke, and proved that it is one.
    fn heard(&self, question: Question) -> Answer;
}

/// Listens where the last run of the peer did, if that is free: guards know that address.
pub async fn listen(wanted: SocketAddr, file: &Path) -> io::Result<TcpListener> {
    let before: Option<LineFile> = read_json(file).ok();
    if wanted.port() == 0
        && let Some(before) = before
        && let Ok(listener) = TcpListener::bind((wanted.ip(), before.port)).await
    {
        return Ok(listener);
    }
    TcpListener::bind(wanted).await
}

/// Writes down where guards find the peer.
pub fn announce(local: SocketAddr, host: &str, file: &Path) -> io::Result<()> {
    write_json(file, &line_file(local, host)?)
}

/// Where guards find the peer.
pub fn line_file(local: SocketAddr, host: &str) -> io::Result<LineFile> {
    let own = local.ip();
    let address = if own.is_unspecified() { host.to_owned() } else { own.to_string() };
    let text = if address.contains(':') { format!("[{address}]") } else { address };
    Ok(LineFile {
        addresses: vec![format!("{text}:{}", local.port())],
        boot: clock::boot_id()?,
        port: local.port(),
    })
}

/// Serves guards until it is stopped.
pub async fn serve(
    listener: TcpListener,
    keeper: Arc<impl Hears>,
    wake: broadcast::Sender<AttemptKey>,
    stop: CancellationToken,
) {
    let (tasks, room) = (TaskTracker::new(), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    loop {
        let accepted = tokio::select! { biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let Ok(permit) = room.clone().try_acquire_owned() else { continue };
                let (keeper, wake, stop) = (keeper.clone(), wake.subscribe(), stop.clone());
                tasks.spawn(async move {
                    let _permit = permit;
                    tokio::select! { biased;
                        () = stop.cancelled() => {}
                        _ = converse(stream, keeper, wake) => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a guard could not be heard");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
    tasks.close();
    tasks.wait().await;
}

async fn converse(
    stream: TcpStream,
    keeper: Arc<impl Hears>,
    mut wake: broadcast::Receiver<AttemptKey>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut about: Option<AttemptKey> = None;
    let mut line = Vec::new();
    loop {
        tokio::select! {
            key = wake.recv() => {
                // Told too much, it asks once too often; told too little, it asks by itself.
                let all = matches!(key, Err(broadcast::error::RecvError::Lagged(_)));
                if all || key.is_ok_and(|key| about == Some(key)) {
                    writer.write_all(b"{}\n").await?;
                }
            }
            read = tokio::time::timeout(SILENCE, next(&mut reader, &mut line)) => {
                if !read.map_err(|_| io::ErrorKind::TimedOut)?? {
                    return Ok(());
                }
                let Some(question) = claimed(&line) else { return Ok(()) };
                let text = std::mem::take(&mut line);
                let keeper = keeper.clone();
                let heard = tokio::task::spawn_blocking(move || {
                    let secret = keeper.secret(question.key)?;
                    let question: Question = open(&secret, From::Guard, &text)?;
                    let key = question.key;
                    let answer = keeper.heard(question);
                    Some((key, seal(&secret, From::Peer, &answer)?))
                });
                let Some((key, answer)) = heard.await.map_err(io::Error::other)? else { return Ok(()) };
                about = Some(key);
                writer.write_all(&answer).await?;
            }
        }
    }
}

/// One line; false at the end. What was read before a wake-up stays in `line`.
async fn next(
    reader: &mut BufReader<tokio::net::tcp::OwnedReadHalf>,
    line: &mut Vec<u8>,
) -> io::Result<bool> {
    let left = LINE_BYTES_MAX.saturating_sub(line.len()) as u64;
    if left == 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let n = reader.take(left).read_until(b'\n', line).await?;
    if n == 0 {
        return Ok(false);
    }
    if line.last() == Some(&b'\n') { Ok(true) } else { Err(io::ErrorKind::InvalidData.into()) }
}
