//! Messages on their way: delay by distance, loss, repetition, reordering, cuts.

use std::collections::BTreeMap;

use starling::base::{PeerName, Rng, Span};
use starling::core::Message;
use starling::core::message::{AnswerBody, DiskWord, RegisterAnswer, RegisterBody};

use super::scenario::Bug;
use super::{Event, World};

/// Round trips between regions, in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RttMatrix {
    rtt: Vec<Vec<u64>>,
}

impl RttMatrix {
    /// Regions on a flat world of 20,000 km: light in fibre, a detour, and a floor.
    pub fn generated(rng: &mut Rng, regions: usize) -> Self {
        let places: Vec<(f64, f64)> = (0..regions).map(|_| (rng.unit(), rng.unit() * 0.5)).collect();
        let between = |a: (f64, f64), b: (f64, f64)| {
            let across = (a.0 - b.0).abs();
            let (dx, dy) = (across.min(1.0 - across), a.1 - b.1);
            let km = 20_000.0 * 2.0 * (dx * dx + dy * dy).sqrt() / 1.2;
            1_000 + (km * 10.0 * 1.4) as u64
        };
        let row = |a: &(f64, f64)| places.iter().map(|b| between(*a, *b)).collect();
        Self { rtt: places.iter().map(row).collect() }
    }

    /// Reads a table as in `cloud_rtt_matrix_*.csv`: a header of region names, then one row per region,
    /// its name first, milliseconds. An empty cell takes the value of the other direction.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().filter(|l| !l.trim().is_empty());
        let regions = lines.next().ok_or("the table is empty")?.split(',').count() - 1;
        let mut rtt: Vec<Vec<Option<u64>>> = Vec::new();
        for (n, line) in lines.enumerate() {
            let cells = line.split(',').skip(1).map(|cell| match cell.trim() {
                "" => Ok(None),
                text => text
                    .parse::<f64>()
                    .map(|ms| Some((ms * 1000.0).max(200.0) as u64))
                    .map_err(|_| format!("row {}: {text:?} is no number of milliseconds", n + 1)),
            });
            rtt.push(cells.collect::<Result<_, _>>()?);
        }
        if regions == 0 || rtt.len() != regions || rtt.iter().any(|row| row.len() != regions) {
            return Err(format!("a table of {regions} regions wants {regions} rows of as many numbers"));
        }
        let cell = |a: usize, b: usize| match (a == b, rtt[a][b].or(rtt[b][a])) {
            (true, _) => Ok(500),
            (false, Some(rtt)) => Ok(rtt),
            (false, None) => Err(format!("no round trip between regions {} and {}", a + 1, b + 1)),
        };
        let row = |a| (0..regions).map(|b| cell(a, b)).collect();
        Ok(Self { rtt: (0..regions).map(row).collect::<Result<_, _>>()? })
    }

    pub fn regions(&self) -> usize {
        self.rtt.len()
    }

    /// One way, without jitter.
    pub fn one_way(&self, a: usize, b: usize) -> Span {
        Span(self.rtt[a][b] / 2)
    }

    pub fn worst(&self) -> Span {
        Span(self.rtt.iter().flatten().copied().max().unwrap_or(0))
    }
}

/// Directions that carry nothing.
#[derive(Debug, Clone)]
pub enum Cut {
    /// From one side to the other.
    Sides { side: Vec<bool>, one_way: bool },
    /// Between two peers.
    Pair { a: usize, b: usize, one_way: bool },
    /// Peers reach only those next to them on a circle.
    Ring { reach: usize },
}

impl Cut {
    fn blocks(&self, from: usize, to: usize, n: usize) -> bool {
        match self {
            Cut::Sides { side, one_way } => side[from] != side[to] && (!one_way || side[from]),
            Cut::Pair { a, b, one_way } => (from, to) == (*a, *b) || (!one_way && (from, to) == (*b, *a)),
            Cut::Ring { reach } => {
                let apart = from.abs_diff(to);
                apart.min(n - apart) > *reach
            }
        }
    }
}

/// The network's own state.
pub struct Network {
    pub rtt: std::sync::Arc<RttMatrix>,
    pub region: Vec<usize>,
    pub cuts: BTreeMap<u64, Cut>,
    pub next_cut: u64,
    /// What cannot go straight goes through a peer that reaches both, as in production.
    pub relays: bool,
    /// All that comes to this peer takes so much longer.
    pub late: Option<(usize, Span)>,
    pub messages: u64,
    pub lost: u64,
    pub repeated: u64,
}

impl World {
    pub(super) fn cut(&self, from: usize, to: usize) -> bool {
        from != to && self.net.cuts.values().any(|c| c.blocks(from, to, self.machines.len()))
    }

    /// A peer that reaches both ends where the straight way is cut.
    pub(super) fn relay(&mut self, from: usize, to: usize) -> Option<usize> {
        let n = self.machines.len();
        let first = self.rng.below(n as u64) as usize;
        let tries = (0..n.min(8)).map(|k| (first + k) % n);
        tries
            .filter(|&k| k != from && k != to && self.runs(k))
            .find(|&k| !self.cut(from, k) && !self.cut(k, to))
    }

    fn delay(&mut self, from: usize, to: usize) -> Span {
        let way = self.net.rtt.one_way(self.net.region[from], self.net.region[to]);
        let jitter = self.rng.below(way.0 / 5 + 300);
        let late = !self.healed && self.rng.chance(self.scenario.faults.reorder);
        let late = if late { self.rng.below(3_000_000) } else { 0 };
        let queued = self.net.late.filter(|(i, _)| *i == to).map_or(0, |(_, by)| by.0);
        Span(way.0 + jitter + late + queued)
    }

    pub(super) fn post(&mut self, from: usize, to: &PeerName, message: Message) {
        let Some(&to) = self.index.get(to) else { return };
        self.net.messages += 1;
        if self.scenario.bug.is_some_and(Bug::of_a_disk)
            && let Message::Disk(word) = &message
        {
            return self.forget_mark(from, to, word);
        }
        if from == to {
            return self.at(Span(1), Event::Deliver { to, from, message: Box::new(message) });
        }
        if self.scenario.bug == Some(Bug::ForgedAccept)
            && self.rng.chance(0.3)
            && self.forge(from, to, &message)
        {
            return;
        }
        let faults = self.scenario.faults;
        let lossy = !self.healed;
        if lossy && self.rng.chance(faults.loss) {
            self.net.lost += 1;
            return;
        }
        let first = self.delay(from, to);
        let mut copies = vec![first];
        if lossy && self.rng.chance(faults.duplicate) {
            copies.push(self.delay(from, to));
        }
        if lossy && self.rng.chance(faults.late_duplicate) {
            copies.push(first + Span::secs(3) + Span(self.rng.below(40_000_000)));
        }
        self.net.repeated += copies.len() as u64 - 1;
        for delay in copies {
            self.at(delay, Event::Deliver { to, from, message: Box::new(message.clone()) });
        }
    }

    /// A message in a line, without its values.
    pub(super) fn sketch(&self, message: &Message) -> String {
        let mut text = format!("{message:?}");
        while let Some(at) = text.find("value: [") {
            let end = text[at..].find(']').map_or(text.len(), |n| at + n + 1);
            text.replace_range(at..end, "value");
        }
        text.chars().take(400).collect()
    }

    /// At its end a message is dropped where the way is cut, or takes another.
    pub(super) fn arrives(&mut self, from: usize, to: usize, message: Box<Message>) -> Option<Box<Message>> {
        if !self.cut(from, to) {
            return Some(message);
        }
        if self.net.relays && self.rng.chance(0.7) && self.relay(from, to).is_some() {
            return Some(message);
        }
        self.net.lost += 1;
        None
    }

    /// Nobody remembers: a mark is heard and forgotten, and every question about a disk is answered so.
    fn forget_mark(&mut self, from: usize, to: usize, word: &DiskWord) {
        match word {
            DiskWord::Mark { mark, .. } => self.machines[from].grown(to, *mark),
            DiskWord::Ask { life } => {
                let nothing = Message::Disk(DiskWord::Seen { nonce: life.nonce, seen: None });
                let delay = self.delay(from, to);
                self.at(delay, Event::Deliver { to: from, from: to, message: Box::new(nothing) });
            }
            DiskWord::Seen { .. } => {}
        }
    }

    /// The planted bug: the acceptor never sees the request, and its yes comes back.
    fn forge(&mut self, from: usize, to: usize, message: &Message) -> bool {
        let Message::Register(request) = message else { return false };
        let RegisterBody::Accept { ballot, .. } = &request.body else { return false };
        let answer = RegisterAnswer {
            op: request.op,
            key: request.key,
            store: request.store,
            body: AnswerBody::Accepted { ballot: ballot.clone() },
        };
        let delay = self.delay(from, to);
        self.at(delay, Event::Deliver { to: from, from: to, message: Box::new(Message::Answer(answer)) });
        true
    }
}
