//! What goes wrong, and when: a pure function of the seed.
//!
//! Two things go on at once, each by itself: cuts of the network, and faults of processes and disks. Every kind
//! comes up once before any comes up again.

use std::collections::BTreeSet;
use std::fmt;

use super::RHO_MILLI;
use crate::base::{Rng, Span};

/// One thing that goes wrong. Peers are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// These cannot reach the others, nor be reached.
    Apart(Vec<usize>),
    /// Nothing comes from the one to the other; the way back is open.
    OneWay(usize, usize),
    /// These two do not reach each other; both reach all others.
    Pair(usize, usize),
    /// Each peer alone, one after another.
    EachInTurn,
    /// Each reaches only its two neighbours.
    Ring,
    /// Cut off, healed for a moment, and cut off again at once.
    Again(usize),
    /// SIGKILL, and started again at the end.
    Kill(usize),
    /// SIGSTOP, and SIGCONT at the end.
    Pause(usize),
    /// Its state folder's disk is filled up, and freed at the end.
    DiskFull(usize),
    /// SIGKILL and start, as fast as it goes.
    Storm(usize),
    /// SIGTERM, the end, and a start: every peer, one after another.
    Rolling,
    /// SIGKILL to the guards of what runs there (or at the next peer that runs anything); the peer goes on.
    KillGuards(usize),
    /// SIGKILL to the peer and to its guards; the peer is started again at the end.
    KillBoth(usize),
    /// SIGTERM, the end, and a start at the end.
    Stop(usize),
    /// The whole machine sleeps: its peer, guards and jobs stand still while the boot clock goes on.
    Sleep(usize),
    /// The machine's clock: the time of day jumps by this, and the boot clock runs at another rate from now on.
    Clock {
        /// Whose.
        peer: usize,
        /// So many millionths faster than true time.
        rate_ppm: i64,
        /// Of the time of day, from the true one.
        wall_s: i64,
    },
}

/// Steps of the time of day: seconds, an hour, most of a day, weeks.
const WALL_STEPS_S: [i64; 4] = [2, 3_600, 72_000, 1_728_000];

/// Starts of one storm.
pub const STORM: usize = 4;
/// How long a cut that comes again is healed in between.
pub const HEALED_FOR: Span = Span::millis(700);

impl Fault {
    /// The peers that it hits.
    pub fn hits(&self, peers: usize) -> Vec<usize> {
        match self {
            Self::Apart(side) => side.clone(),
            Self::OneWay(a, b) | Self::Pair(a, b) => vec![*a, *b],
            Self::EachInTurn | Self::Ring | Self::Rolling => (0..peers).collect(),
            Self::Again(p)
            | Self::Kill(p)
            | Self::Pause(p)
            | Self::DiskFull(p)
            | Self::Storm(p)
            | Self::KillGuards(p)
            | Self::KillBoth(p)
            | Self::Stop(p)
            | Self::Sleep(p)
            | Self::Clock { peer: p, .. } => vec![*p],
        }
    }

    /// It is about the network.
    pub fn cuts(&self) -> bool {
        matches!(
            self,
            Self::Apart(_)
                | Self::OneWay(..)
                | Self::Pair(..)
                | Self::EachInTurn
                | Self::Ring
                | Self::Again(_)
        )
    }

    /// The directed pairs that a ring of partial cuts leaves out.
    pub fn ring(peers: usize) -> BTreeSet<(usize, usize)> {
        let near = |a: usize, b: usize| (a + 1) % peers == b || (b + 1) % peers == a;
        let all = (0..peers).flat_map(|a| (0..peers).map(move |b| (a, b)));
        all.filter(|(a, b)| a != b && !near(*a, *b)).collect()
    }

    /// A cluster whose attempts nobody renews meanwhile.
    pub fn loses(&self) -> Option<usize> {
        match self {
            Self::Kill(p) | Self::KillBoth(p) | Self::Pause(p) | Self::Sleep(p) => Some(*p),
            Self::Apart(side) if side.len() == 1 => side.first().copied(),
            _ => None,
        }
    }

    /// How often something is done to somebody.
    pub fn acts(&self, peers: usize) -> u64 {
        let n = match self {
            Self::EachInTurn | Self::Rolling => peers,
            Self::Again(_) => 2,
            Self::Storm(_) => STORM,
            _ => 1,
        };
        n as u64
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |p: &usize| format!("c{}", p + 1);
        match self {
            Self::Apart(side) => {
                let names: Vec<String> = side.iter().map(name).collect();
                write!(f, "cut {} off from the others", names.join(" and "))
            }
            Self::OneWay(a, b) => write!(f, "cut the way from {} to {}", name(a), name(b)),
            Self::Pair(a, b) => write!(f, "cut {} and {} from each other", name(a), name(b)),
            Self::EachInTurn => f.write_str("isolate each peer in turn"),
            Self::Ring => f.write_str("leave each peer its two neighbours only"),
            Self::Again(p) => write!(f, "cut {} off, heal, cut again at once", name(p)),
            Self::Kill(p) => write!(f, "SIGKILL to {}, then start", name(p)),
            Self::Pause(p) => write!(f, "SIGSTOP to {}, then SIGCONT", name(p)),
            Self::DiskFull(p) => write!(f, "fill the disk of {}, then free it", name(p)),
            Self::Storm(p) => write!(f, "SIGKILL and start {} {STORM} times", name(p)),
            Self::Rolling => f.write_str("restart all with SIGTERM, one by one"),
            Self::KillGuards(p) => write!(f, "SIGKILL to the guards at {}", name(p)),
            Self::KillBoth(p) => write!(f, "SIGKILL to {} and to its guards, then start", name(p)),
            Self::Stop(p) => write!(f, "SIGTERM to {}, then start", name(p)),
            Self::Sleep(p) => write!(f, "suspend the machine of {}, then wake it", name(p)),
            Self::Clock { peer, rate_ppm, wall_s } => {
                let name = name(peer);
                write!(f, "set the time of day of {name} off by {wall_s} s, its boot clock by {rate_ppm} ppm")
            }
        }
    }
}

/// When something goes wrong, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// After the begin.
    pub at: Span,
    /// Until it is undone.
    pub lasts: Span,
    /// What.
    pub fault: Fault,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.fault.to_string();
        write!(f, "{:>7.1} s  for {:>5.1} s  {text}", self.at.as_secs_f64(), self.lasts.as_secs_f64())
    }
}

/// The rates that the peers' clocks begin with, in millionths: within what they believe of one another.
pub fn rates(seed: u64, peers: usize) -> Vec<i64> {
    let mut rng = Rng::new(seed ^ 0x000c_10c4);
    (0..peers).map(|_| rate(&mut rng)).collect()
}

/// Half of the clocks are as far off as they may be.
fn rate(rng: &mut Rng) -> i64 {
    let most = (RHO_MILLI * 1_000) as i64;
    let drawn = rng.below(2 * most as u64 + 1) as i64 - most;
    if rng.chance(0.5) { most * drawn.signum() } else { drawn }
}

fn clock(rng: &mut Rng, peer: usize) -> Fault {
    let step = WALL_STEPS_S[rng.below(WALL_STEPS_S.len() as u64) as usize];
    let wall_s = if rng.chance(0.5) { step } else { -step };
    Fault::Clock { peer, rate_ppm: rate(rng), wall_s }
}

/// From one time in which a single thing goes wrong to the next, the first of them, and how long each lasts: what is
/// promised of one loss is measured there.
const ALONE_EVERY: Span = Span::secs(150);
const ALONE_FOR: Span = Span::secs(38);

/// What goes wrong alone: losses and clean ends in turn.
fn alone(rng: &mut Rng, length: Span, peers: usize, wait: Span) -> Vec<Planned> {
    let mut all = Vec::new();
    for n in 1.. {
        let at = ALONE_EVERY.scale(n, 1);
        if at + ALONE_FOR > length {
            break;
        }
        let (p, even) = (rng.below(peers as u64) as usize, 2 * rng.below(peers.div_ceil(2) as u64) as usize);
        let (fault, lasts) = match n % 4 {
            1 => (Fault::KillBoth(p), wait + Span::secs(15)),
            // Every second peer moves its jobs when it is told to end.
            2 | 0 => (Fault::Stop(even), Span::secs(10)),
            _ => (Fault::Apart(vec![p]), wait + Span::secs(15)),
        };
        all.push(Planned { at: at + Span::secs(4), lasts, fault });
    }
    all
}

/// All that goes wrong within `length` at so many peers (3 or more), in order. `wait` is how long the others wait
/// until they take a cluster's jobs: half of the faults are shorter, half longer.
pub fn plan(seed: u64, length: Span, peers: usize, wait: Span) -> Vec<Planned> {
    let mut rng = Rng::new(seed);
    let mut all = alone(&mut rng.fork(), length, peers, wait);
    // What would not be over before the next of these begins after it.
    let free = |at: Span, lasts: Span| {
        let next = Span((at.0 / ALONE_EVERY.0).max(1) * ALONE_EVERY.0);
        let hit = [next, next + ALONE_EVERY].into_iter().find(|a| at < *a + ALONE_FOR && at + lasts > *a);
        hit.filter(|a| *a + ALONE_FOR <= length).map_or(at, |a| a + ALONE_FOR)
    };
    for network in [true, false] {
        let mut rng = rng.fork();
        let mut bag = Vec::new();
        let mut at = Span::secs(2) + draw(&mut rng, Span::ZERO, Span::secs(3));
        loop {
            if bag.is_empty() {
                bag = kinds(&mut rng, peers, network);
            }
            let Some(fault) = bag.pop() else { break };
            let lasts = lasting(&mut rng, &fault, peers, wait);
            at = free(at, lasts);
            if at + lasts > length {
                break;
            }
            all.push(Planned { at, lasts, fault });
            at = at + lasts + draw(&mut rng, Span::secs(1), Span::secs(5));
        }
    }
    all.sort_by_key(|p| p.at);
    all
}

/// One of each kind, in any order.
fn kinds(rng: &mut Rng, peers: usize, network: bool) -> Vec<Fault> {
    let mut order: Vec<usize> = (0..peers).collect();
    let mut some = || {
        rng.shuffle(&mut order);
        (order[0], order[1], order.clone())
    };
    let mut bag = if network {
        let (a, b, half) = some();
        let (c, d, _) = some();
        let (alone, again, _) = some();
        let mut half = half[..peers / 2].to_vec();
        half.sort_unstable();
        vec![
            Fault::Apart(half),
            Fault::OneWay(a, b),
            Fault::Pair(c, d),
            Fault::Apart(vec![alone]),
            Fault::EachInTurn,
            Fault::Ring,
            Fault::Again(again),
        ]
    } else {
        let (a, b, rest) = some();
        let (c, d, _) = some();
        let (e, f, _) = some();
        let (g, h, _) = some();
        vec![
            Fault::Kill(a),
            Fault::Pause(b),
            Fault::DiskFull(c),
            Fault::Storm(d),
            Fault::Rolling,
            Fault::KillGuards(e),
            Fault::KillBoth(f),
            Fault::Kill(rest[2]),
            Fault::Sleep(g),
            clock(rng, h),
        ]
    };
    rng.shuffle(&mut bag);
    bag
}

fn draw(rng: &mut Rng, from: Span, to: Span) -> Span {
    // In whole tenths of a second, as they are printed.
    let tenths = |s: Span| s.as_millis() / 100;
    Span::millis((tenths(from) + rng.below(tenths(to - from) + 1)) * 100)
}

fn lasting(rng: &mut Rng, fault: &Fault, peers: usize, wait: Span) -> Span {
    let long = rng.chance(0.5);
    match fault {
        Fault::EachInTurn => draw(rng, Span::secs(2), Span::secs(5)).scale(peers as u64, 1),
        Fault::Rolling => draw(rng, Span::secs(4), Span::secs(6)).scale(peers as u64, 1),
        Fault::Storm(_) => draw(rng, Span::secs(2), Span::secs(6)),
        Fault::KillGuards(_) | Fault::Clock { .. } => Span::millis(500),
        // A paused peer is what this one is about: always for longer than a grace.
        Fault::Pause(_) => draw(rng, wait + Span::secs(1), wait + Span::secs(8)),
        _ if long => draw(rng, wait + Span::secs(2), wait + Span::secs(15)),
        _ => draw(rng, Span::secs(1), wait.scale(2, 3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Span = Span::secs(9);

    #[test]
    fn a_plan_is_its_seeds() {
        let make = |seed| plan(seed, Span::secs(600), 5, WAIT);
        assert_eq!(make(7), make(7));
        assert_ne!(make(7), make(8));
        // What is printed is the plan, and these are the words of seed 7: a change of either is seen here.
        let text: Vec<String> = make(7).iter().take(2).map(Planned::to_string).collect();
        assert_eq!(text, FIRST_OF_SEED_7);
    }
    const FIRST_OF_SEED_7: [&str; 2] = [
        "    2.7 s  for  21.0 s  restart all with SIGTERM, one by one",
        "    5.0 s  for  22.0 s  isolate each peer in turn",
    ];

    #[test]
    fn every_kind_comes_up_and_stays_within_its_time() {
        for peers in 3..=7 {
            let length = Span::secs(900);
            let all = plan(1, length, peers, WAIT);
            let kinds: BTreeSet<_> =
                all.iter().map(|p| format!("{:?}", std::mem::discriminant(&p.fault))).collect();
            assert_eq!(kinds.len(), 16, "{all:#?}");
            for p in &all {
                assert!(p.at + p.lasts <= length, "{p}");
                assert!(p.fault.hits(peers).iter().all(|i| *i < peers), "{p}");
                if let Fault::OneWay(a, b) | Fault::Pair(a, b) = p.fault {
                    assert_ne!(a, b);
                }
                if let Fault::Clock { rate_ppm, wall_s, .. } = p.fault {
                    assert!(rate_ppm.unsigned_abs() <= RHO_MILLI * 1_000 && wall_s != 0, "{p}");
                }
                if let Fault::Pause(_) = p.fault {
                    assert!(p.lasts > WAIT, "{p}");
                }
            }
            for network in [true, false] {
                let one: Vec<_> = all.iter().filter(|p| p.fault.cuts() == network).collect();
                assert!(one.windows(2).all(|w| w[0].at + w[0].lasts < w[1].at), "one after another");
            }
        }
        assert!(plan(1, Span::secs(1), 5, WAIT).is_empty());
    }

    #[test]
    fn now_and_then_one_thing_goes_wrong_alone() {
        let all = plan(3, Span::secs(1_800), 5, WAIT);
        let over = |p: &Planned| p.at + p.lasts;
        for n in 1..=11 {
            let (from, to) = (ALONE_EVERY.scale(n, 1), ALONE_EVERY.scale(n, 1) + ALONE_FOR);
            let then: Vec<&Planned> = all.iter().filter(|p| p.at < to && over(p) > from).collect();
            assert_eq!(then.len(), 1, "{then:#?}");
            assert!(
                matches!(then[0].fault, Fault::KillBoth(_) | Fault::Stop(_) | Fault::Apart(_)),
                "{then:?}"
            );
        }
    }

    #[test]
    fn a_ring_leaves_two_neighbours() {
        for peers in 3..=7 {
            let cut = Fault::ring(peers);
            for a in 0..peers {
                let reached = (0..peers).filter(|b| *b != a && !cut.contains(&(a, *b))).count();
                assert_eq!(reached, 2.min(peers - 1));
            }
            assert!(cut.iter().all(|(a, b)| cut.contains(&(*b, *a))));
        }
    }
}
