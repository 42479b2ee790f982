//! The schedulers that Starling is held against, on the same books and with the same order of a queue: a central one
//! that knows everything at once and whose word costs no time, and others that know as much as they would.

use std::collections::{BTreeMap, BTreeSet};

use starling::base::{Instant, PeerName, Rng, Span};
use starling::core::api::NodeShare;
use starling::core::books::Books;
use starling::core::placement;
use starling::model::report::{QueueReport, View};

use super::agenda::Agenda;
use super::load::Trace;
use super::result::Times;
use super::{Net, shapes};

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// One queue over all clusters, their books at hand, no delay.
    Central,
    /// Every job stays in its own cluster.
    Isolated,
    /// Sent to any cluster that could ever run it.
    Random,
    /// Sent at its arrival to the cluster that looks best in a view up to 10 s old.
    Early,
    /// Waits at two clusters drawn by lot; the first that has room asks for it.
    Sparrow,
    /// Waits at every cluster; the first that has room asks for it (Slurm's federation).
    Siblings,
}

impl Rival {
    pub const ALL: [Rival; 6] =
        [Self::Central, Self::Isolated, Self::Random, Self::Early, Self::Sparrow, Self::Siblings];
    pub fn name(self) -> &'static str {
        match self {
            Self::Central => "central",
            Self::Isolated => "isolated",
            Self::Random => "random",
            Self::Early => "early",
            Self::Sparrow => "sparrow",
            Self::Siblings => "siblings",
        }
    }
}

/// A head that has waited this long lets nobody pass, as in production.
const STARVES_AFTER: Span = Span::secs(30);
/// Views are told this often.
pub const VIEW_EVERY: Span = Span::secs(10);

enum Event {
    Arrives(usize),
    /// A job, or a probe for it, reaches a cluster.
    Comes {
        job: usize,
        site: usize,
    },
    /// A cluster has room for a job that waits elsewhere, too: it asks the job's user's side.
    Asks {
        job: usize,
        site: usize,
    },
    /// The answer.
    Told {
        job: usize,
        site: usize,
        yes: bool,
    },
    /// It started elsewhere.
    Gone {
        job: usize,
        site: usize,
    },
    Ends {
        job: usize,
        site: usize,
    },
}

struct Place {
    books: Books,
    line: BTreeSet<(Instant, usize)>,
    arrived: BTreeMap<usize, Instant>,
    held: BTreeMap<usize, Vec<NodeShare>>,
}

struct Sim<'a> {
    trace: &'a Trace,
    net: &'a Net,
    rival: Rival,
    rng: Rng,
    now: Instant,
    agenda: Agenda<Event>,
    places: Vec<Place>,
    /// The central queue, and which cluster a job that has waited too long keeps free for itself.
    line: BTreeSet<(Instant, usize)>,
    kept: BTreeMap<usize, usize>,
    /// Jobs that somebody has been told to start.
    taken: Vec<bool>,
    /// What was told last, and what the deciders have sent since then.
    told: (u64, Vec<QueueReport>),
    sent: Vec<BTreeMap<PeerName, u64>>,
    times: Times,
}

pub fn run(trace: &Trace, net: &Net, rival: Rival, seed: u64) -> Times {
    let place = |site: &super::load::Site| Place {
        books: Books::new(&shapes::nodes(site)),
        line: BTreeSet::new(),
        arrived: BTreeMap::new(),
        held: BTreeMap::new(),
    };
    let mut sim = Sim {
        trace,
        net,
        rival,
        rng: Rng::new(seed ^ 0x7269_7661_6c00),
        now: Instant(0),
        agenda: Agenda::new(),
        places: trace.sites.iter().map(place).collect(),
        line: BTreeSet::new(),
        kept: BTreeMap::new(),
        taken: vec![false; trace.jobs.len()],
        told: (0, Vec::new()),
        sent: vec![BTreeMap::new(); trace.sites.len()],
        times: Times::new(trace.jobs.len()),
    };
    sim.tell();
    for (n, job) in trace.jobs.iter().enumerate() {
        sim.agenda.put(job.at, Event::Arrives(n));
    }
    while let Some((at, event)) = sim.agenda.next() {
        let round = at.0 / VIEW_EVERY.0;
        if rival == Rival::Early && round > sim.told.0 {
            sim.told.0 = round;
            sim.tell();
        }
        sim.now = at;
        sim.handle(event);
    }
    sim.times.events = sim.agenda.count();
    sim.times
}

impl Sim<'_> {
    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrives(job) => self.arrives(job),
            Event::Comes { job, site } => {
                if !self.taken[job] || self.places[site].arrived.contains_key(&job) {
                    let now = self.now;
                    self.places[site].line.insert((now, job));
                    self.places[site].arrived.insert(job, now);
                    self.pass(site);
                } else if !self.several() {
                    unreachable!("one place only is told of it");
                }
            }
            Event::Asks { job, site } => {
                let yes = !std::mem::replace(&mut self.taken[job], true);
                let home = self.trace.jobs[job].home;
                self.later(home, site, Event::Told { job, site, yes });
                if yes {
                    for other in (0..self.places.len()).filter(|s| *s != site) {
                        if self.places[other].arrived.contains_key(&job) {
                            self.later(home, other, Event::Gone { job, site: other });
                        }
                    }
                }
            }
            Event::Told { job, site, yes: true } => {
                if let Some(shares) = self.places[site].held.get(&job).cloned() {
                    self.starts(job, site, shares);
                }
            }
            Event::Told { job, site, yes: false } => {
                if let Some(shares) = self.places[site].held.remove(&job) {
                    let need = self.places[site].books.need(&shapes::need(&self.trace.jobs[job]));
                    self.places[site].books.give(&shares, &need);
                    self.pass(site);
                }
            }
            Event::Gone { job, site } => {
                let place = &mut self.places[site];
                if let Some(at) = place.arrived.remove(&job)
                    && place.line.remove(&(at, job))
                {
                    self.pass(site);
                }
            }
            Event::Ends { job, site } => {
                self.times.ended[job] = Some(self.now);
                if let Some(shares) = self.places[site].held.remove(&job) {
                    let need = self.places[site].books.need(&shapes::need(&self.trace.jobs[job]));
                    self.places[site].books.give(&shares, &need);
                }
                if self.rival == Rival::Central { self.pass_central() } else { self.pass(site) }
            }
        }
    }

    /// A job waits at several places at once.
    fn several(&self) -> bool {
        matches!(self.rival, Rival::Sparrow | Rival::Siblings)
    }

    fn later(&mut self, from: usize, to: usize, event: Event) {
        self.times.messages += 1;
        let at = self.now + self.net.one_way(from, to);
        self.agenda.put(at, event);
    }

    fn arrives(&mut self, job: usize) {
        let wanted = self.trace.jobs[job];
        let fitting: Vec<usize> =
            (0..self.places.len()).filter(|&i| self.trace.sites[i].fits(&wanted)).collect();
        let to = match self.rival {
            Rival::Central => {
                self.line.insert((self.now, job));
                return self.pass_central();
            }
            // What its own cluster could never run goes where it can: nobody would leave it.
            Rival::Isolated if fitting.contains(&wanted.home) => vec![wanted.home],
            Rival::Isolated | Rival::Random => self.rng.pick(&fitting).copied().into_iter().collect(),
            Rival::Early => vec![self.best(job)],
            Rival::Sparrow => {
                let mut lots = fitting;
                self.rng.shuffle(&mut lots);
                lots.truncate(2);
                lots
            }
            Rival::Siblings => fitting,
        };
        for site in to {
            self.later(wanted.home, site, Event::Comes { job, site });
        }
    }

    fn tell(&mut self) {
        let report = |place: &Place| {
            let waiting = place.line.iter().map(|(_, job)| self.trace.jobs[*job].gpus_total()).sum();
            let mut queue = QueueReport {
                queued: place.line.len() as u32,
                queued_gpus: waiting,
                ..QueueReport::default()
            };
            place.books.report(&mut queue);
            queue
        };
        self.told.1 = self.places.iter().map(report).collect();
        self.sent = vec![BTreeMap::new(); self.places.len()];
    }

    /// Production's own choice over a stale view; what this decider has sent since then is deducted.
    fn best(&mut self, job: usize) -> usize {
        let wanted = self.trace.jobs[job];
        let mut view = View::default();
        for (i, (site, queue)) in self.trace.sites.iter().zip(&self.told.1).enumerate() {
            view.members
                .insert(shapes::name(i), shapes::member(i, site, Some(queue.clone()), None, self.now));
        }
        let spec = shapes::spec(&wanted, String::new());
        let sent = &mut self.sent[wanted.home];
        let rows = placement::candidates(&spec, &view, sent, self.now);
        let best = rows.iter().find(|row| row.fits_ever).map(|row| row.cluster.clone());
        let best = best.unwrap_or_else(|| shapes::name(wanted.home));
        *sent.entry(best.clone()).or_default() += wanted.gpus_total();
        (0..self.places.len()).find(|&i| shapes::name(i) == best).unwrap_or(wanted.home)
    }

    fn starts(&mut self, job: usize, site: usize, shares: Vec<NodeShare>) {
        self.places[site].held.insert(job, shares);
        self.taken[job] = true;
        self.times.started[job] = Some(self.now);
        let ends = self.now + self.trace.jobs[job].runs;
        self.agenda.put(ends, Event::Ends { job, site });
    }

    /// One cluster's queue, in production's order: what fits starts; small jobs pass a head that does not fit, until
    /// it has waited too long.
    fn pass(&mut self, site: usize) {
        let mut failed: Vec<(u32, u32)> = Vec::new();
        let mut found = Vec::new();
        let place = &mut self.places[site];
        for (arrived, job) in &place.line {
            let wanted = &self.trace.jobs[*job];
            let shape = (wanted.nodes, wanted.gpus);
            let need = place.books.need(&shapes::need(wanted));
            let shares = if failed.contains(&shape) { None } else { place.books.fit(wanted.nodes, &need) };
            if let Some(shares) = shares {
                place.books.take(&shares, &need);
                found.push((*arrived, *job, shares));
                continue;
            }
            failed.push(shape);
            if self.now.since(*arrived) > STARVES_AFTER {
                break;
            }
        }
        let several = self.several();
        for (arrived, job, shares) in found {
            self.places[site].line.remove(&(arrived, job));
            if several {
                self.places[site].held.insert(job, shares);
                let home = self.trace.jobs[job].home;
                self.later(site, home, Event::Asks { job, site });
            } else {
                self.starts(job, site, shares);
            }
        }
    }

    fn free(&self, site: usize) -> u64 {
        let mut queue = QueueReport::default();
        self.places[site].books.report(&mut queue);
        queue.gpus_free.values().map(|n| u64::from(*n)).sum()
    }

    /// The same over all clusters: a head that has waited too long keeps one cluster for itself.
    fn pass_central(&mut self) {
        let mut free: Vec<u64> = (0..self.places.len()).map(|i| self.free(i)).collect();
        let mut failed: Vec<(u32, u32)> = Vec::new();
        let mut found = Vec::new();
        // Clusters kept by jobs further ahead.
        let mut closed = vec![false; self.places.len()];
        for (arrived, job) in &self.line {
            let wanted = &self.trace.jobs[*job];
            let shape = (wanted.nodes, wanted.gpus);
            let need = shapes::need(wanted);
            let mut open: Vec<usize> =
                (0..self.places.len()).filter(|&i| !closed[i] && self.trace.sites[i].fits(wanted)).collect();
            if !failed.contains(&shape) {
                // The least loaded first, as production's score has it.
                open.sort_by(|&a, &b| {
                    let share = |i: usize| free[i] as f64 / self.trace.sites[i].gpus_total() as f64;
                    share(b).total_cmp(&share(a)).then(a.cmp(&b))
                });
                let got = open.iter().filter(|&&i| free[i] >= wanted.gpus_total()).find_map(|&i| {
                    let need = self.places[i].books.need(&need);
                    self.places[i].books.fit(wanted.nodes, &need).map(|shares| (i, need, shares))
                });
                if let Some((i, need, shares)) = got {
                    self.places[i].books.take(&shares, &need);
                    free[i] -= wanted.gpus_total();
                    found.push((*arrived, *job, i, shares));
                    continue;
                }
                failed.push(shape);
            }
            if self.now.since(*arrived) <= STARVES_AFTER {
                continue;
            }
            let keep = self.kept.get(job).copied().filter(|i| !closed[*i]);
            match keep.or_else(|| open.iter().copied().max_by_key(|&i| (free[i], std::cmp::Reverse(i)))) {
                Some(i) => {
                    self.kept.insert(*job, i);
                    closed[i] = true;
                    // A shape that failed over fewer clusters fails still.
                    if closed.iter().all(|c| *c) {
                        break;
                    }
                }
                None => break,
            }
        }
        for (arrived, job, site, shares) in found {
            self.line.remove(&(arrived, job));
            self.kept.remove(&job);
            self.starts(job, site, shares);
        }
    }
}
