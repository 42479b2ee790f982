//! Hears of attempts that changed and passes their events on.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::keeper::Keeper;
use super::parse_key;
use crate::core::BackendEvent;

/// All attempts are looked at this often, should news be lost or a guard be killed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// More than this without an end of line is no news of ours.
const LINE_BYTES_MAX: usize = 4_096;

/// Opens the FIFO into which guards write the names of attempts that changed.
pub fn open_news(path: &Path) -> std::io::Result<pipe::Receiver> {
    // Open for writing too, so that it does not end when no guard holds it.
    pipe::OpenOptions::new().read_write(true).open_receiver(path)
}

/// Runs until it is stopped or nobody listens any more.
pub async fn watch(
    keeper: Arc<Keeper>,
    news: pipe::Receiver,
    events: mpsc::Sender<BackendEvent>,
    stop: CancellationToken,
) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lines = Vec::new();
    loop {
        while let Some(event) = keeper.next_event() {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                sent = events.send(event) => if sent.is_err() { return },
            }
        }
        let mut all = false;
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = keeper.changed.notified() => continue,
            ready = news.readable() => if ready.is_ok() { read(&news, &mut lines) },
            _ = ticks.tick() => all = true,
        }
        let named: Vec<_> = complete_lines(&mut lines).iter().filter_map(|l| parse_key(l)).collect();
        let keeper = keeper.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let keys = if all { keeper.live() } else { named };
            for key in keys {
                keeper.check(key);
            }
            keeper.reap();
        });
        if let Err(error) = looked.await {
            tracing::error!(%error, "looking at attempts failed");
        }
    }
}

fn read(news: &pipe::Receiver, lines: &mut Vec<u8>) {
    let mut buffer = [0; LINE_BYTES_MAX];
    while let Ok(n) = news.try_read(&mut buffer) {
        if n == 0 || lines.len() > 64 * LINE_BYTES_MAX {
            return;
        }
        lines.extend_from_slice(&buffer[..n]);
    }
}

/// Takes the whole lines out, each once.
fn complete_lines(bytes: &mut Vec<u8>) -> Vec<String> {
    let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
    let whole: Vec<u8> = bytes.drain(..end).collect();
    if bytes.len() > LINE_BYTES_MAX {
        bytes.clear();
    }
    let mut lines: Vec<String> =
        whole.split(|b| *b == b'\n').filter_map(|l| String::from_utf8(l.to_vec()).ok()).collect();
    lines.retain(|l| !l.is_empty());
    lines.sort();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_once() {
        let mut bytes = b"a\nb\na\nhal".to_vec();
        assert_eq!(complete_lines(&mut bytes), ["a", "b"]);
        assert_eq!(bytes, b"hal");
        bytes.extend(vec![b'x'; LINE_BYTES_MAX]);
        assert!(complete_lines(&mut bytes).is_empty());
        assert!(bytes.is_empty(), "what never ends is dropped");
    }
}
