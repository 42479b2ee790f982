//! The schedulers that Starling is held against, each with the queue, the books and the backfill of production
//! (`core::schedule`): a central one that knows everything at once and whose word costs no time, and others that know
//! as much as they would.

use std::collections::BTreeMap;

use starling::base::{Instant, PeerName, Rng, Span};
use starling::core::placement;
use starling::core::schedule::{Config, Decision, Request, Scheduler};
use starling::model::NodeCapacity;
use starling::model::report::{QueueReport, View};

use super::agenda::Agenda;
use super::firm::{Firm, ROUND_EVERY};
use super::load::Trace;
use super::result::Times;
use super::{Net, shapes};

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// One queue and one set of books over all nodes of all clusters, no delay. Its gangs may even span clusters.
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
    /// Starling's rules without its peers: siblings of which one is firm, and clusters that hold nodes for few of them. Only
    /// when named: it says what the rules are worth, and what peers lose against them.
    Rules,
}

impl Rival {
    pub const ALL: [Rival; 6] =
        [Self::Central, Self::Isolated, Self::Random, Self::Early, Self::Sparrow, Self::Siblings];
    /// A job waits at several places at once.
    fn several(self) -> bool {
        matches!(self, Self::Sparrow | Self::Siblings | Self::Rules)
    }
    pub fn name(self) -> &'static str {
        match self {
            Self::Central => "central",
            Self::Isolated => "isolated",
            Self::Random => "random",
            Self::Early => "early",
            Self::Sparrow => "sparrow",
            Self::Siblings => "siblings",
            Self::Rules => "rules",
        }
    }
}

/// Views are told this often.
pub const VIEW_EVERY: Span = Span::secs(10);

enum Event {
    Arrives(usize),
    /// Clusters tell what they hold, and users' sides look where their jobs stand.
    Round,
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

/// One run.
pub(super) struct Sim<'a> {
    pub(super) trace: &'a Trace,
    net: &'a Net,
    rival: Rival,
    rng: Rng,
    pub(super) now: Instant,
    agenda: Agenda<Event>,
    /// One per cluster; the central one's is the only one.
    pub(super) places: Vec<Scheduler<usize>>,
    /// Clusters that a job was sent to, where that is more than one.
    pub(super) stands: Vec<Vec<usize>>,
    /// Of the rules: what waits, where.
    pub(super) firm: Firm,
    /// Jobs that somebody has been told to start.
    taken: Vec<bool>,
    /// What was told last, and what the deciders have sent since then.
    told: (u64, Vec<QueueReport>),
    sent: Vec<BTreeMap<PeerName, u64>>,
    times: Times,
}

pub fn run(trace: &Trace, net: &Net, rival: Rival, seed: u64) -> Times {
    let scheduler = |nodes: Vec<NodeCapacity>| Scheduler::new(&nodes, Config::default());
    let places = match rival {
        Rival::Central => vec![scheduler(trace.sites.iter().flat_map(shapes::nodes).collect())],
        _ => trace.sites.iter().map(|site| scheduler(shapes::nodes(site))).collect(),
    };
    let mut sim = Sim {
        trace,
        net,
        rival,
        rng: Rng::new(seed ^ 0x7269_7661_6c00),
        now: Instant(0),
        agenda: Agenda::new(),
        places,
        stands: vec![Vec::new(); if rival.several() { trace.jobs.len() } else { 0 }],
        firm: Firm::default(),
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
            Event::Arrives(job) => {
                if self.rival == Rival::Rules && self.firm.waits(job) {
                    self.agenda.put(self.now, Event::Round);
                }
                self.arrives(job);
            }
            Event::Round => {
                for site in self.firm_round() {
                    self.pass(site);
                }
                if self.firm.again() {
                    self.agenda.put(self.now + ROUND_EVERY, Event::Round);
                }
            }
            Event::Comes { job, site } => self.joins(job, site),
            Event::Asks { job, site } => {
                let yes = !std::mem::replace(&mut self.taken[job], true);
                self.firm.waits_no_more(job);
                let home = self.trace.jobs[job].home;
                self.later(home, site, Event::Told { job, site, yes });
                if yes {
                    for other in std::mem::take(&mut self.stands[job]) {
                        if other != site {
                            self.later(home, other, Event::Gone { job, site: other });
                        }
                    }
                }
            }
            Event::Told { job, site, yes: true } => self.starts(job, site),
            Event::Told { job, site, yes: false } => {
                self.places[site].end(&job, self.now);
                self.pass(site);
            }
            Event::Gone { job, site } => {
                if self.places[site].leave(&job) {
                    self.pass(site);
                }
            }
            Event::Ends { job, site } => {
                self.times.ended[job] = Some(self.now);
                self.places[site].ran(self.trace.jobs[job].runs);
                self.places[site].end(&job, self.now);
                self.pass(site);
            }
        }
    }

    fn later(&mut self, from: usize, to: usize, event: Event) {
        self.times.messages += 1;
        let at = self.now + self.net.one_way(from, to);
        self.agenda.put(at, event);
    }

    fn arrives(&mut self, job: usize) {
        let wanted = self.trace.jobs[job];
        let fitting: Vec<usize> =
            (0..self.trace.sites.len()).filter(|&i| self.trace.sites[i].fits(&wanted)).collect();
        let to = match self.rival {
            Rival::Central => return self.joins(job, 0),
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
            Rival::Siblings | Rival::Rules => fitting,
        };
        if self.rival.several() {
            self.stands[job].clone_from(&to);
        }
        for site in to {
            self.later(wanted.home, site, Event::Comes { job, site });
        }
    }

    fn tell(&mut self) {
        let report = |sched: &Scheduler<usize>| {
            let waiting = sched.in_order(self.now).map(|job| self.trace.jobs[job].gpus_total()).sum();
            let mut queue = QueueReport {
                queued: sched.waiting_count() as u32,
                queued_gpus: waiting,
                running: sched.running().len() as u32,
                waits: sched.waits(self.now, 0),
                ..QueueReport::default()
            };
            sched.books().report(&mut queue);
            queue
        };
        self.told.1 = self.places.iter().map(report).collect();
        self.sent = vec![BTreeMap::new(); self.trace.sites.len()];
    }

    /// Production's own choice over a stale view; what this decider has sent since then is deducted.
    fn best(&mut self, job: usize) -> usize {
        let wanted = self.trace.jobs[job];
        let mut view = View::default();
        for (i, (site, queue)) in self.trace.sites.iter().zip(&self.told.1).enumerate() {
            view.members
                .insert(shapes::name(i), shapes::member(i, site, Some(queue.clone()), None, self.now));
        }
        let spec = shapes::spec(&wanted, "early".into());
        let sent = &mut self.sent[wanted.home];
        let rows = placement::candidates(&spec, &view, sent, self.now);
        let best = rows.iter().find(|row| row.fits_ever).map(|row| row.cluster.clone());
        let best = best.unwrap_or_else(|| shapes::name(wanted.home));
        *sent.entry(best.clone()).or_default() += wanted.gpus_total();
        (0..self.places.len()).find(|&i| shapes::name(i) == best).unwrap_or(wanted.home)
    }

    /// The program of a job that holds its share runs.
    fn starts(&mut self, job: usize, site: usize) {
        self.places[site].begins(&job, self.now);
        self.times.started[job] = Some(self.now);
        self.times.site[job] = site;
        let ends = self.now + self.trace.jobs[job].runs;
        self.agenda.put(ends, Event::Ends { job, site });
    }

    fn joins(&mut self, job: usize, site: usize) {
        if self.rival.several() && self.taken[job] {
            return;
        }
        let request = self.request(job, site);
        self.places[site].join(job, request, self.now);
        let decisions = self.places[site].decide_one(job, self.now, &|_| true);
        self.carry_out(site, decisions);
    }

    pub(super) fn request(&self, job: usize, site: usize) -> Request {
        let wanted = &self.trace.jobs[job];
        Request {
            tenant: "default".into(),
            priority: 50,
            ranks: wanted.nodes,
            need: self.places[site].need(&shapes::need(wanted)),
            max_runtime: wanted.limit,
            preemptible: false,
            token: false,
            lean: self.rival == Rival::Rules && self.firm.at(job) != Some(site),
            since: wanted.at.0 as i64,
        }
    }

    fn pass(&mut self, site: usize) {
        let decisions = self.places[site].decide(self.now, &|_| true);
        self.carry_out(site, decisions);
    }

    fn carry_out(&mut self, site: usize, decisions: Vec<Decision<usize>>) {
        for decision in decisions {
            let Decision::Grant { key: job, .. } = decision else { continue };
            if self.rival.several() {
                let home = self.trace.jobs[job].home;
                self.later(site, home, Event::Asks { job, site });
            } else {
                self.starts(job, site);
            }
        }
    }
}
