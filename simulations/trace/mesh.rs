//! Starling itself over a trace: one production core per cluster, messages that take as long as between real regions,
//! views that are renewed every 10 s. Nothing is lost and nobody crashes; the faults are the seeds' part.
//!
//! Two months are two months: what only a fault would need (renewals, sweeps, repeated claims) is set far apart, and a
//! view is built when its reader is about to act, not every 10 s of a quiet night.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use starling::base::{Instant, PeerName, Rng, Span, WallTime};
use starling::core::api::{AttemptKey, Pace};
use starling::core::{
    BackendCommand, BackendEvent, ClientRequest, ClientResponse, CoreConfig, DiskImage, Input, Message, Now,
    Output, Peer,
};
use starling::model::Outcome;
use starling::model::report::{ContactReport, QueueReport, View};

use super::agenda::Agenda;
use super::load::Trace;
use super::result::Times;
use super::rivals::VIEW_EVERY;
use super::{Net, shapes};

/// A batch of writes is on disk after this.
const SYNC: Span = Span::millis(2);
/// From the order to a running program.
const START: Span = Span::millis(10);

/// Of so many jobs it is said how many are left.
const LARGE: usize = 20_000;

/// What of production is set otherwise here.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub replicas: usize,
    pub claims: usize,
    pub seed: u64,
    pub trace: bool,
}

type Told = Arc<(QueueReport, Option<ContactReport>)>;

enum Event {
    Submit(usize),
    Deliver { to: usize, from: usize, message: Box<Message> },
    Wake(usize, u64),
    Backend(usize, Box<BackendEvent>),
    Ends(usize, AttemptKey, usize),
}

struct Node {
    core: Peer,
    told: VecDeque<(Instant, Told)>,
    /// Its view shows what was told by then, as of that count of reports.
    seen: (Instant, u64),
    wake: Option<Instant>,
    wakes: u64,
}

struct Sim<'a> {
    trace: &'a Trace,
    net: &'a Net,
    now: Instant,
    agenda: Agenda<Event>,
    nodes: Vec<Node>,
    index: BTreeMap<PeerName, usize>,
    reports: u64,
    left: usize,
    setting: Setting,
    times: Times,
    error: Option<String>,
}

/// Runs all jobs to their ends. Fails where a job was refused, or where nothing happens any more.
pub fn run(trace: &Trace, net: &Net, setting: Setting) -> Result<(Times, BTreeMap<String, u64>), String> {
    let mut rng = Rng::new(setting.seed);
    let mut sim = Sim {
        trace,
        net,
        now: Instant(1_000_000),
        agenda: Agenda::new(),
        nodes: Vec::new(),
        index: (0..trace.sites.len()).map(|i| (shapes::name(i), i)).collect(),
        reports: 0,
        left: trace.jobs.len(),
        setting,
        times: Times::new(trace.jobs.len()),
        error: None,
    };
    let mut first = Vec::new();
    for i in 0..trace.sites.len() {
        let (core, out) = sim.boot(i, rng.u64())?;
        let seen = (Instant(0), 0);
        sim.nodes.push(Node { core, told: VecDeque::new(), seen, wake: None, wakes: 0 });
        first.push(out);
    }
    for (i, out) in first.into_iter().enumerate() {
        sim.outputs(i, out);
    }
    for (n, job) in trace.jobs.iter().enumerate() {
        sim.agenda.put(job.at, Event::Submit(n));
    }
    // A job that nobody takes would wait for ever.
    let longest: Span = trace.jobs.iter().map(|j| j.runs).max().unwrap_or_default();
    let last = trace.jobs.last().map_or(Instant(0), |j| j.at);
    let never = last + longest.scale(20, 1) + Span::secs(30 * 86_400);
    while sim.left > 0 && sim.error.is_none() {
        let Some((at, event)) = sim.agenda.next() else { break };
        sim.now = at;
        sim.times.events += 1;
        if at > never {
            sim.error = Some(format!("{} jobs wait for ever", sim.left));
        }
        sim.handle(event);
    }
    if let Some(error) = sim.error {
        return Err(format!("starling: {error}"));
    }
    let mut counters: BTreeMap<String, u64> = BTreeMap::new();
    for node in &sim.nodes {
        for (name, n) in node.core.counters() {
            *counters.entry((*name).to_owned()).or_default() += n;
        }
    }
    Ok((sim.times, counters))
}

impl Sim<'_> {
    fn time(&self) -> Now {
        Now { mono: self.now, wall: WallTime(self.now.0 / 1000) }
    }

    fn boot(&self, i: usize, seed: u64) -> Result<(Peer, Vec<Output>), String> {
        let cfg = CoreConfig {
            name: shapes::name(i),
            store: shapes::store(i),
            boot: 1,
            first_boot: true,
            replicas: self.setting.replicas,
            renew_every: Span::secs(3_600),
            rho_milli: 10,
            margin: Span::secs(3),
            grant_for: Span::secs(5),
            claims_max: self.setting.claims,
            jobs_max: 1_000_000,
            rehome_after: Span::secs(86_400),
            retain: Span::secs(3_600),
            retain_jobs: 100_000,
            nodes: shapes::nodes(&self.trace.sites[i]),
            schedule: Default::default(),
            runs_images: false,
            policies: Default::default(),
            pace: Pace {
                claim_every_max: Span::secs(300),
                claim_for: Span::secs(900),
                queue_every: Span::secs(60),
                places_every: Span::secs(30),
                sweep_every: Span::secs(600),
                idle_every: Span::secs(600),
                idle_every_max: Span::secs(6 * 3_600),
            },
            seed,
        };
        Peer::recover(cfg, &DiskImage::default(), self.time()).map_err(|e| e.to_string())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Submit(n) => {
                let job = &self.trace.jobs[n];
                let spec = Box::new(shapes::spec(job, format!("j{n}")));
                self.input(
                    job.home,
                    Input::Client { token: n as u64, request: ClientRequest::Submit { spec, key: None } },
                );
            }
            Event::Deliver { to, from, message } => {
                if self.setting.trace {
                    eprintln!("{:>14.3} {from} to {to}: {}", self.now.0 as f64 / 1e6, sketch(&message));
                }
                self.input(to, Input::Message { from: shapes::name(from), message: *message });
            }
            Event::Wake(i, count) => {
                if self.nodes[i].wakes == count {
                    self.nodes[i].wake = None;
                    self.input(i, Input::Tick);
                }
            }
            Event::Backend(i, event) => self.input(i, Input::Backend(*event)),
            Event::Ends(i, key, n) => {
                self.times.ended[n] = Some(self.now);
                self.left -= 1;
                self.tell_progress();
                let started = self.times.started[n].map(|at| WallTime(at.0 / 1000));
                let (outcome, at) = (Outcome::Exited(0), WallTime(self.now.0 / 1000));
                self.input(i, Input::Backend(BackendEvent::Ended { key, outcome, started_at: started, at }));
            }
        }
    }

    fn input(&mut self, i: usize, input: Input) {
        self.look_around(i);
        let now = self.time();
        let out = self.nodes[i].core.step(now, input);
        self.outputs(i, out);
    }

    /// Gossip, told every 10 s at a moment of each peer's own, and read only when its reader acts.
    fn look_around(&mut self, i: usize) {
        let n = self.nodes.len() as u64;
        let phase = VIEW_EVERY.scale(i as u64, n).0;
        let round = (self.now.0.saturating_sub(phase)) / VIEW_EVERY.0 * VIEW_EVERY.0 + phase;
        let (at, reports) = self.nodes[i].seen;
        let fresh = Instant(round) > at;
        // Unchanged reports are told again now and then, so that they do not look old.
        if !fresh || (reports == self.reports && self.now.since(at) < Span::secs(60)) {
            return;
        }
        let round = Instant(round);
        let mut view = View::default();
        for (k, node) in self.nodes.iter().enumerate() {
            let by = if k == i { self.now } else { round - self.net.one_way(k, i) };
            let told = node.told.iter().rev().find(|(at, _)| *at <= by).map(|(_, told)| told);
            let (queue, contact) = told.map_or((None, None), |t| (Some(t.0.clone()), t.1.clone()));
            let site = &self.trace.sites[k];
            view.members.insert(shapes::name(k), shapes::member(k, site, queue, contact, round));
        }
        self.nodes[i].seen = (round, self.reports);
        let now = self.time();
        let out = self.nodes[i].core.step(now, Input::View(Arc::new(view)));
        self.outputs(i, out);
    }

    /// In order; what is durable leaves when the writes before it are on disk.
    fn outputs(&mut self, i: usize, outputs: Vec<Output>) {
        let mut wrote = Span::ZERO;
        for output in outputs {
            match output {
                Output::Write(_) => wrote = SYNC,
                Output::Send { to, message, durable } => {
                    let Some(&to) = self.index.get(&to) else { continue };
                    let way = if to == i { Span(1) } else { self.net.one_way(i, to) };
                    let at = self.now + way + if durable { wrote } else { Span::ZERO };
                    self.times.messages += u64::from(to != i);
                    self.agenda.put(at, Event::Deliver { to, from: i, message: Box::new(message) });
                }
                Output::Reply { token, response: ClientResponse::Error(error) } => {
                    self.error = Some(format!("job {token} was refused: {error}"));
                }
                Output::Backend(BackendCommand::Start(start)) => {
                    self.starts(i, start.key, &start.spec.name, wrote)
                }
                Output::Backend(BackendCommand::Stop { key, .. }) => {
                    self.error = Some(format!("{key} was stopped, though nothing fails here"));
                }
                Output::Report { queue, contact } => {
                    self.reports += 1;
                    let now = self.now;
                    let told = &mut self.nodes[i].told;
                    told.push_back((now, Arc::new((queue, contact))));
                    // What no view can show any more.
                    while told.len() > 2 && now.since(told[1].0) > VIEW_EVERY.scale(2, 1) {
                        told.pop_front();
                    }
                }
                Output::Event(event) if self.setting.trace => {
                    eprintln!("{:>14.3} {i}: {} {}", self.now.0 as f64 / 1e6, event.kind, event.text);
                }
                _ => {}
            }
        }
        let node = &mut self.nodes[i];
        let Some(deadline) = node.core.next_deadline().map(|at| at.max(self.now)) else { return };
        if node.wake.is_none_or(|old| old > deadline) {
            node.wake = Some(deadline);
            node.wakes += 1;
            self.agenda.put(deadline, Event::Wake(i, node.wakes));
        }
    }

    /// A run of minutes says how far it is.
    fn tell_progress(&self) {
        let (all, left) = (self.trace.jobs.len(), self.left);
        if all >= LARGE && left > 0 && left % (all / 10) == 0 {
            eprintln!("  starling: {left} of {all} jobs are left, after {}", self.now.since(Instant(0)));
        }
    }

    fn starts(&mut self, i: usize, key: AttemptKey, name: &str, wrote: Span) {
        let Some(n) = name.strip_prefix('j').and_then(|n| n.parse::<usize>().ok()) else { return };
        if self.times.started[n].is_some() {
            // The same order twice is one start.
            return;
        }
        let at = self.now + wrote + START;
        self.times.started[n] = Some(at);
        self.times.site[n] = i;
        let event = BackendEvent::Started { key, at: WallTime(at.0 / 1000) };
        self.agenda.put(at, Event::Backend(i, Box::new(event)));
        self.agenda.put(at + self.trace.jobs[n].runs, Event::Ends(i, key, n));
    }
}

fn sketch(message: &Message) -> String {
    let mut text = format!("{message:?}");
    while let Some(at) = text.find("value: [") {
        let end = text[at..].find(']').map_or(text.len(), |n| at + n + 1);
        text.replace_range(at..end, "value");
    }
    text.chars().take(300).collect()
}
