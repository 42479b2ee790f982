//! What is measured about the way to a peer: RTT and loss from the connection, bandwidth by moving bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{RecvStream, VarInt};
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::certs;
use super::codec::{self, CodecError, Kind};
use super::link::{Link, close};
use super::shared::{Shared, lock};
use super::wire::{Control, FrameError};
use crate::base::{PeerName, Span, WallTime};
use crate::model::report::LinkSample;

/// Smallest and largest probe.
const PROBE_BYTES: std::ops::RangeInclusive<u64> = 256 * 1024..=4 * 1024 * 1024;
/// A probe shorter than this is made larger the next time: it saw little but the start.
const PROBE_SHORT: Duration = Duration::from_millis(100);
/// Links that are probed in `probe_every`, at most about.
const LINKS_PROBED: u64 = 16;
/// A probe that takes longer is given up.
const PROBE_DEADLINE: Duration = Duration::from_secs(30);
/// Only transfers of at least this size say something about the link.
const TRANSFER_BYTES_MIN: u64 = 256 * 1024;
/// An estimate this old gives way to any new one.
const ESTIMATE_OLD: Span = Span::secs(600);
/// Old packets weigh this much less every second,
const FADE: f64 = 0.98;
/// but so many stay in the reckoning: a quiet link sends about one a second, and a single one that comes late would look
/// like a share of them. Before there are as many, nothing is said.
const PACKETS_MIN: f64 = 100.0;
/// A clock that jumped fades no more than this.
const FADE_SECS_MAX: f64 = 600.0;
/// What probes carry; QUIC encrypts it, so that nothing on the way can shrink it.
static FILLER: [u8; 64 * 1024] = [0; 64 * 1024];

/// Figures of one peer.
#[derive(Debug, Default)]
pub(super) struct Meter {
    rtt_us: u64,
    loss: Loss,
    /// Of which connection, and its totals when last read.
    read: (usize, u64, u64),
    /// A probe of ours runs on this connection.
    probing: Option<usize>,
    at: Option<WallTime>,
    bandwidth: Option<(u64, WallTime)>,
    probe_bytes: u64,
    probe_after: Option<Instant>,
}

impl Meter {
    /// Reads the connection's own figures.
    pub fn read(&mut self, link: &Link, now: WallTime) {
        let path = link.connection.stats().path;
        let id = link.connection.stable_id();
        let before = if self.read.0 == id { (self.read.1, self.read.2) } else { (0, 0) };
        // A probe fills the link until something on it overflows: what is lost to it says nothing of the link.
        if self.probing != Some(id) {
            let (sent, lost) =
                (path.sent_packets.saturating_sub(before.0), path.lost_packets.saturating_sub(before.1));
            let since = self.at.map_or(0, |at| now.0.saturating_sub(at.0));
            self.loss.count(sent, lost, since as f64 / 1e3);
        }
        self.read = (id, path.sent_packets, path.lost_packets);
        self.rtt_us = rtt_us(path.min_rtt, path.rtt);
        self.at = Some(now);
    }

    /// None if it was never linked.
    pub fn sample(&self, to: &PeerName, direct: bool) -> Option<LinkSample> {
        Some(LinkSample {
            to: to.clone(),
            rtt_us: self.rtt_us,
            loss_ppm: self.loss.ppm(),
            bandwidth_bps: self.bandwidth.map(|(bps, _)| bps),
            bandwidth_at: self.bandwidth.map(|(_, at)| at),
            at: self.at?,
            direct,
        })
    }

    /// A probe measured this.
    fn probed(&mut self, bps: u64, now: WallTime) {
        self.bandwidth = Some((bps, now));
    }

    /// A real transfer ran at this rate. It may have been held up by something else than the link, so it
    /// lowers an estimate only when that is old.
    pub fn transferred(&mut self, bytes: u64, took: Span, now: WallTime) {
        let Some(bps) = rate(bytes, took.0).filter(|_| bytes >= TRANSFER_BYTES_MIN) else { return };
        let keep = self
            .bandwidth
            .is_some_and(|(known, at)| known > bps && now.0.saturating_sub(at.0) < ESTIMATE_OLD.as_millis());
        if !keep {
            self.bandwidth = Some((bps, now));
        }
    }
}

/// Packets sent lately and those of them that were lost.
#[derive(Debug, Default, Clone, Copy)]
struct Loss {
    sent: f64,
    lost: f64,
}

impl Loss {
    /// So many more, of the last seconds.
    fn count(&mut self, sent: u64, lost: u64, secs: f64) {
        let fade = FADE.powf(secs.clamp(0.0, FADE_SECS_MAX));
        let keep = if self.sent > 0.0 { fade.max(PACKETS_MIN / self.sent).min(1.0) } else { 1.0 };
        self.sent = self.sent * keep + sent as f64;
        self.lost = self.lost * keep + lost as f64;
    }

    /// Parts per million; 0 where too few were sent to say.
    fn ppm(&self) -> u32 {
        if self.sent < PACKETS_MIN { 0 } else { (self.lost / self.sent * 1e6).clamp(0.0, 1e6) as u32 }
    }
}

/// The smallest round trip, as the smoothed one grows with this machine's own load. A busy machine may read the clock for what
/// comes in before it reads it for what it answers: that round trip is none, and would be the smallest for ever.
fn rtt_us(least: Duration, smoothed: Duration) -> u64 {
    let us = |d: Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
    if us(least) == 0 { us(smoothed).max(1) } else { us(least) }
}

fn rate(bytes: u64, micros: u64) -> Option<u64> {
    let bits = u128::from(bytes) * 8 * 1_000_000;
    bits.checked_div(u128::from(micros)).and_then(|bps| u64::try_from(bps).ok())
}

/// Probes one link that is due, at most one at a time.
pub(super) async fn probe_next(shared: &Arc<Shared>) {
    if shared.config.probe_every == Span::ZERO {
        return;
    }
    let now = Instant::now();
    // In a larger mesh each link is probed less often: what a peer sends for it does not grow with the mesh.
    let members = (shared.pool.members().len() as u64).max(LINKS_PROBED);
    let every = shared.config.probe_every.scale(members, LINKS_PROBED);
    let first = every.scale(members, LINKS_PROBED * 10).min(every);
    let due = shared.pool.meters(|_, meter, link| {
        // The first one a little later than the link, at its own time, so that a start is no storm.
        let wait = first.scale(lock(&shared.rng).below(1_000), 1_000).to_std();
        let at = *meter.probe_after.get_or_insert(now + wait);
        link.filter(|link| at <= now && link.alive()).cloned()
    });
    let Some(link) = due.into_iter().flatten().next() else { return };
    let size = shared.pool.meter(&link.peer, |meter| {
        meter.read(&link, WallTime(certs::now()));
        meter.probing = Some(link.connection.stable_id());
        meter.probe_after = Some(Instant::now() + every.to_std());
        meter.probe_bytes.clamp(*PROBE_BYTES.start(), *PROBE_BYTES.end())
    });
    let size = size.unwrap_or(*PROBE_BYTES.start());
    shared.counters.probes.add(1);
    shared.counters.probe_bytes.add(size);
    let began = Instant::now();
    let sent = tokio::select! {
        biased;
        () = link.stop.cancelled() => return,
        sent = timeout(PROBE_DEADLINE, send(shared, &link, size)) => sent,
    };
    let took = began.elapsed();
    debug!(peer = %link.peer, size, ?took, ok = matches!(sent, Ok(Ok(()))), "probe");
    shared.pool.meter(&link.peer, |meter| {
        // All of it is acknowledged, or given up: from here on the link is itself again.
        meter.read(&link, WallTime(certs::now()));
        meter.probing = None;
        meter.probe_after =
            Some(Instant::now() + pause(took, shared.config.probe_share_milli, every).to_std());
        meter.probe_bytes = next_size(size, took);
    });
}

/// Until the next probe of a link: its probes take not more of its time than their share of it.
fn pause(took: Duration, share_milli: u32, every: Span) -> Span {
    Span::from(took).scale(1_000, u64::from(share_milli.max(1))).max(every)
}

fn next_size(size: u64, took: Duration) -> u64 {
    let next = if took < PROBE_SHORT { size * 2 } else { size };
    next.clamp(*PROBE_BYTES.start(), *PROBE_BYTES.end())
}

async fn send(shared: &Shared, link: &Link, size: u64) -> Result<(), FrameError> {
    let token = lock(&shared.rng).u64();
    *lock(&link.probe) = Some((token, size));
    let mut stream = link.connection.open_uni().await?;
    stream.set_priority(-10)?;
    stream.write_chunk(codec::frame(Kind::Probe, &token.to_be_bytes())?.into()).await?;
    let mut left = size as usize;
    while left > 0 {
        let chunk = left.min(FILLER.len());
        stream.write_chunk(Bytes::from_static(&FILLER[..chunk])).await?;
        left -= chunk;
    }
    stream.finish()?;
    let _acknowledged = stream.stopped().await;
    Ok(())
}

/// Times a probe of the other side. The first quarter, in which the sender still finds its speed, is left out.
pub(super) async fn receive(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    recv: &mut RecvStream,
    length: usize,
) -> Result<(), FrameError> {
    if length != 8 {
        return Err(CodecError::TooLarge { got: length, max: 8 }.into());
    }
    let mut token = [0; 8];
    recv.read_exact(&mut token).await?;
    let (mut total, mut began) = (0u64, None::<(Instant, u64)>);
    let mut last = Instant::now();
    while let Some(chunk) =
        recv.read_chunk(FILLER.len(), true).await.map_err(|e| FrameError::Broken(e.to_string()))?
    {
        total += chunk.bytes.len() as u64;
        last = Instant::now();
        if began.is_none() && total >= PROBE_BYTES.start() / 4 {
            began = Some((last, total));
        }
        if total > *PROBE_BYTES.end() {
            let _closed = recv.stop(VarInt::from_u32(close::GARBAGE));
            return Err(CodecError::TooLarge { got: total as usize, max: *PROBE_BYTES.end() as usize }.into());
        }
    }
    let Some((began, before)) = began else { return Ok(()) };
    let micros = u64::try_from((last - began).as_micros()).unwrap_or(u64::MAX);
    let token = u64::from_be_bytes(token);
    shared.control(link, &Control::Probed { token, bytes: total - before, micros });
    Ok(())
}

/// The other side's word on a probe of ours. It cannot claim more than was sent.
pub(super) fn probed(shared: &Shared, link: &Link, token: u64, bytes: u64, micros: u64) {
    let Some((expected, size)) = *lock(&link.probe) else { return };
    if expected != token || bytes > size {
        return;
    }
    *lock(&link.probe) = None;
    if let Some(bps) = rate(bytes, micros) {
        shared.pool.meter(&link.peer, |meter| meter.probed(bps, WallTime(certs::now())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_of_nothing_is_none() {
        let us = Duration::from_micros;
        assert_eq!(rtt_us(us(300), us(900)), 300);
        assert_eq!(rtt_us(Duration::ZERO, us(900)), 900);
        assert_eq!(rtt_us(Duration::from_nanos(200), Duration::ZERO), 1);
    }

    #[test]
    fn a_few_packets_are_no_share_and_many_are() {
        let mut loss = Loss::default();
        // A quiet link's first minute: two of thirty that came late are not seven percent.
        for n in 0..30 {
            loss.count(1, u64::from(n % 15 == 7), 1.0);
        }
        assert_eq!(loss.ppm(), 0);
        // Quiet for an hour: what happened once is no more than that in a hundred, and is forgotten by and by.
        for _ in 0..100 {
            loss.count(1, 0, 1.0);
        }
        assert!((1..20_000).contains(&loss.ppm()), "{loss:?}");
        for _ in 0..3_600 {
            loss.count(1, 0, 1.0);
        }
        assert!(loss.ppm() < 10, "{loss:?}");
        // A link that loses a tenth says so within its next hundred packets.
        for n in 0..200 {
            loss.count(1, u64::from(n % 10 == 0), 1.0);
        }
        assert!((60_000..110_000).contains(&loss.ppm()), "{loss:?}");
        // Reading often is not forgetting faster.
        let (mut often, mut seldom) =
            (Loss { sent: 1_000.0, lost: 100.0 }, Loss { sent: 1_000.0, lost: 100.0 });
        (0..100).for_each(|_| often.count(0, 0, 0.1));
        seldom.count(0, 0, 10.0);
        assert!((often.sent - seldom.sent).abs() < 1e-6 && often.sent < 850.0, "{often:?} {seldom:?}");
        // Busy: what is old goes.
        for _ in 0..300 {
            seldom.count(1_000, 0, 1.0);
        }
        assert!(seldom.ppm() < 10, "{seldom:?}");
    }

    /// A probe takes all of a link while it runs; over any time from its begin on that stays below the share, by default
    /// 0.5 % of what the link could carry, however slow the link is and however often it is asked for.
    #[test]
    fn probes_keep_within_their_share_of_any_link() {
        let net = super::super::NetConfig::new(
            "127.0.0.1:0".parse().expect("an address"),
            crate::base::StoreId([1; 16]),
            1,
        );
        let settings = crate::model::config::Config::default().timing;
        assert_eq!((net.probe_share_milli, settings.probe_share_milli), (5, 5));
        assert_eq!(Some(net.probe_every), settings.probe_every);
        for every in [net.probe_every, Span::secs(1)] {
            // From 10 kbit/s, where a probe is given up half way, to 100 Gbit/s.
            for bps in (4..=11).map(|n| 10_f64.powi(n)) {
                let (mut secs, mut bytes, mut size, mut most) = (0.0, 0.0, *PROBE_BYTES.start(), 0.0_f64);
                for _ in 0..200 {
                    let took = Duration::from_secs_f64(size as f64 * 8.0 / bps).min(PROBE_DEADLINE);
                    bytes += took.as_secs_f64() * bps / 8.0;
                    secs += took.as_secs_f64() + pause(took, net.probe_share_milli, every).as_secs_f64();
                    size = next_size(size, took);
                    most = most.max(bytes * 8.0 / bps / secs);
                }
                assert!(most < 0.005, "{most} of {bps} bit/s, every {every}");
                assert!(bytes > 0.0);
            }
        }
    }

    #[test]
    fn a_transfer_raises_an_estimate_and_lowers_only_an_old_one() {
        let mut meter = Meter::default();
        meter.transferred(1_000, Span::secs(1), WallTime(0));
        assert_eq!(meter.bandwidth, None, "too small");
        meter.transferred(1_000_000, Span::ZERO, WallTime(0));
        assert_eq!(meter.bandwidth, None, "no time");
        meter.transferred(1_000_000, Span::secs(1), WallTime(0));
        meter.transferred(500_000, Span::secs(1), WallTime(1_000));
        assert_eq!(meter.bandwidth, Some((8_000_000, WallTime(0))));
        meter.transferred(2_000_000, Span::secs(1), WallTime(2_000));
        meter.transferred(500_000, Span::secs(1), WallTime(700_000));
        assert_eq!(meter.bandwidth, Some((4_000_000, WallTime(700_000))));
    }
}
