//! The view as decisions read it: one row per cluster and class of identical jobs, renewed only where something
//! changed.
//!
//! A decision is one pass over small rows of numbers. What is costly is kept: which models will do and which clusters
//! could ever run such a job (per capacity), what must be moved there (per inventory and link), what is free (per queue
//! report). Explaining to people and deciding read the same rows.

// tidy: long because what is kept of a row and when it is made anew must agree

use std::collections::BTreeMap;
use std::sync::Arc;

use super::estimate::{self, CLOSED_ASSUMED, Estimate, Goods, RUN_ASSUMED, Wanted};
use super::filter::{self, Does, REPORT_AGE_MAX};
use super::reason::Reason;
use super::score;
use super::site::{Models, Site};
use crate::base::{Instant, PeerName, Span, WallTime};
use crate::core::api::Now;
use crate::core::books;
use crate::model::partitions::Needs;
use crate::model::policy::{Policies, Term, Weights};
use crate::model::report::{Liveness, View};
use crate::model::spec::{JobSpec, Policy, Run};

/// Classes of jobs that are kept; the one used longest ago goes.
const CLASSES_MAX: usize = 128;

/// What one cluster is to one class of jobs.
#[derive(Debug, Clone, Default)]
struct Row {
    /// Versions of the site that it was made from.
    fixed: u32,
    fluid: u32,
    /// It can never run it.
    never: bool,
    /// No claim reaches it, or it drains.
    shut: bool,
    /// It takes jobs, as far as it said.
    open: bool,
    heard: Instant,
    /// GPUs that will do: free, and in all.
    free: u64,
    total: u64,
    /// Of the free ones such as a node of the job can be made of: on nodes in use, and in all.
    left: u64,
    room: u64,
    /// GPUs that others wait for.
    queued: u64,
    /// Hours that a small job would wait, as the cluster says.
    told: Option<f64>,
    /// Hours until such a job would start when nothing is free but nobody asks (CPU jobs).
    idle_hours: f64,
    /// Longest of data and image, hours.
    floor: f64,
    /// Weighed terms that do not depend on the queue: data, cost, energy.
    base: f64,
    usd: f64,
    kwh: f64,
}

/// What is fast to read about a site in every decision.
#[derive(Debug, Clone, Copy, Default)]
struct Stamp {
    fixed: u32,
    fluid: u32,
    taken: u64,
}

#[derive(Debug)]
struct Class {
    /// The parts of a spec that matter here; two jobs with equal ones are of one class.
    key: JobSpec,
    used: u64,
    goods_seen: u64,
    models_seen: usize,
    weights: Weights,
    does: Vec<bool>,
    goods: Vec<Goods>,
    rows: Vec<Row>,
}

/// One cluster of the best.
#[derive(Debug, Clone, PartialEq)]
pub struct Pick {
    /// Which.
    pub cluster: PeerName,
    /// It could start it now, as far as is known.
    pub fits_now: bool,
    /// Its score as expected.
    pub score: f64,
    /// Its score if it were granted there this moment.
    pub soonest: f64,
}

/// What a decision is asked.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Now.
    pub now: Instant,
    /// How many at most.
    pub most: usize,
    /// Tells equals apart, so that not all owners choose the same.
    pub salt: u64,
    /// How long the job has waited: nobody expects less of a queue that has not moved for so long.
    pub waited: Span,
    /// When it would start, where a cluster has said so of this very job: believed before any estimate.
    pub told: &'a [(PeerName, Span)],
}

/// The figures of one cluster for one job at one moment.
struct Measure {
    fits: bool,
    wait: f64,
    load: f64,
    score: f64,
    soonest: f64,
}

/// The view, ready for decisions.
#[derive(Debug, Default)]
pub struct Index {
    policies: Policies,
    view: Option<Arc<View>>,
    sites: Vec<Site>,
    stamps: Vec<Stamp>,
    places: BTreeMap<PeerName, usize>,
    models: Models,
    /// Changes with any inventory or link.
    goods: u64,
    classes: BTreeMap<u64, Class>,
    clock: u64,
    /// The time of day, and when it was told.
    told: Now,
}

/// One cluster with everything that speaks for or against it.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// Which.
    pub cluster: PeerName,
    /// Reasons, hard ones first; empty when it fits now.
    pub reasons: Vec<Reason>,
    /// None of them is hard.
    pub fits_ever: bool,
    /// There are none.
    pub fits_now: bool,
    /// Where it could ever run: what it would take, the weighed terms, the score.
    pub figures: Option<(Estimate, [f64; 6], f64)>,
}

impl Index {
    /// With other weights than the defaults.
    pub fn new(policies: Policies) -> Self {
        Self { policies, ..Self::default() }
    }

    /// The weights in use.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// The weights for a job, by the names of their terms.
    pub fn weights_of(&self, spec: &JobSpec) -> BTreeMap<String, f64> {
        let weights = self.policies.of(spec.placement.policy);
        Term::ALL.iter().map(|t| (t.as_str().to_owned(), weights.of(*t))).collect()
    }

    /// Takes other weights: every class is weighed anew.
    pub fn set_policies(&mut self, policies: Policies) {
        self.policies = policies;
        self.classes.clear();
    }

    /// What time of day it is.
    pub fn tell_time(&mut self, now: Now) {
        self.told = now;
    }

    /// Takes a newer view. What is the same in it costs a comparison of pointers.
    pub fn update(&mut self, view: &Arc<View>) {
        if self.view.as_ref().is_some_and(|old| Arc::ptr_eq(old, view)) {
            return;
        }
        let same = self.sites.len() == view.members.len()
            && self.sites.iter().zip(view.members.keys()).all(|(site, name)| site.member.peer == *name);
        if same {
            let before: u64 = self.sites.iter().map(|s| u64::from(s.goods)).sum();
            for ((site, stamp), member) in
                self.sites.iter_mut().zip(&mut self.stamps).zip(view.members.values())
            {
                site.update(member, &mut self.models);
                *stamp = Stamp { fixed: site.fixed, fluid: site.fluid, taken: site.taken };
            }
            self.goods += self.sites.iter().map(|s| u64::from(s.goods)).sum::<u64>() - before;
        } else {
            // Who is there changed: rare, and everything is made anew.
            let given: BTreeMap<PeerName, Site> =
                self.sites.drain(..).map(|site| (site.member.peer.clone(), site)).collect();
            for (name, member) in &view.members {
                let mut site = match given.get(name) {
                    Some(old) => old.clone(),
                    None => Site::new(member, &mut self.models),
                };
                site.update(member, &mut self.models);
                self.sites.push(site);
            }
            self.places = view.members.keys().cloned().enumerate().map(|(i, name)| (name, i)).collect();
            self.stamps =
                self.sites.iter().map(|s| Stamp { fixed: s.fixed, fluid: s.fluid, taken: s.taken }).collect();
            self.goods += 1;
            self.classes.clear();
        }
        self.view = Some(view.clone());
    }

    pub(super) fn sites(&self) -> &[Site] {
        &self.sites
    }

    pub(super) fn model_names(&self) -> &[String] {
        &self.models.0
    }

    /// When each cluster was last heard.
    pub fn heard(&self) -> BTreeMap<PeerName, Instant> {
        let heard = |s: &Site| Some((s.member.peer.clone(), s.report()?.heard_at));
        self.sites.iter().filter_map(heard).collect()
    }

    /// GPUs were given out at a cluster, which its report does not show yet.
    pub fn give(&mut self, cluster: &PeerName, gpus: u64, now: Instant) {
        if let Some(&i) = self.places.get(cluster) {
            self.sites[i].give(gpus, now);
            self.stamps[i].taken = self.sites[i].taken;
        }
    }

    /// What was given out is deducted for some seconds only.
    fn expire(&mut self, now: Instant) {
        for (site, stamp) in self.sites.iter_mut().zip(&mut self.stamps).filter(|(_, s)| s.taken > 0) {
            site.expire(now);
            stamp.taken = site.taken;
        }
    }

    /// The best clusters for a job, best first; only such as could ever run it and can be asked.
    pub fn best(&mut self, spec: &JobSpec, ask: &Ask<'_>) -> Vec<Pick> {
        self.expire(ask.now);
        let id = self.class(spec);
        let Some(class) = self.classes.get_mut(&id) else { return Vec::new() };
        let wanted = spec.gpus_total();
        let waited = ask.waited.as_secs_f64() / 3_600.0;
        let told: Vec<(usize, f64)> = ask
            .told
            .iter()
            .filter_map(|(peer, span)| Some((*self.places.get(peer)?, span.as_secs_f64() / 3_600.0)))
            .collect();
        let told_of = |i: usize| told.iter().find(|(at, _)| *at == i).map(|(_, hours)| *hours);
        // (does not fit now, score, salt, place): the least scores, of equal ones those that fit now.
        let mut top: Vec<(bool, f64, u64, usize, f64)> = Vec::with_capacity(ask.most + 1);
        for (i, (row, stamp)) in class.rows.iter_mut().zip(&self.stamps).enumerate() {
            if (row.fixed, row.fluid) != (stamp.fixed, stamp.fluid) {
                *row = make_row(
                    &class.key,
                    &self.sites[i],
                    &class.does,
                    &self.models.0,
                    &class.goods[i],
                    &class.weights,
                    self.told.wall,
                );
            }
            if row.never || row.shut {
                continue;
            }
            let m = measure(row, &class.weights, wanted, stamp.taken, ask.now, waited, told_of(i));
            let entry = (!m.fits, m.score, mix(ask.salt, i as u64), i, m.soonest);
            let before = |a: &(bool, f64, u64, usize, f64)| {
                a.1 < entry.1 || a.1 == entry.1 && (a.0, a.2) <= (entry.0, entry.2)
            };
            if top.len() == ask.most && top.last().is_some_and(before) {
                continue;
            }
            let at = top.partition_point(before);
            top.insert(at, entry);
            top.truncate(ask.most);
        }
        let name = |i: usize| self.sites[i].member.peer.clone();
        top.into_iter()
            .map(|(unfit, score, _, i, soonest)| Pick { cluster: name(i), fits_now: !unfit, score, soonest })
            .collect()
    }

    /// By all that is known now this cluster can never run it.
    pub fn never(&mut self, spec: &JobSpec, cluster: &PeerName) -> bool {
        let (id, Some(&i)) = (self.class(spec), self.places.get(cluster)) else { return false };
        let Some(class) = self.classes.get_mut(&id) else { return false };
        let (row, stamp) = (&mut class.rows[i], &self.stamps[i]);
        if (row.fixed, row.fluid) != (stamp.fixed, stamp.fluid) {
            let (models, wall) = (&self.models.0, self.told.wall);
            let goods = &class.goods[i];
            *row = make_row(&class.key, &self.sites[i], &class.does, models, goods, &class.weights, wall);
        }
        row.never
    }

    /// Some cluster could ever run it, or nothing is known of any.
    pub fn fits_somewhere(&mut self, spec: &JobSpec) -> bool {
        let id = self.class(spec);
        self.sites.is_empty() || self.classes.get(&id).is_some_and(|c| c.rows.iter().any(|r| !r.never))
    }

    /// Every cluster, with all reasons and figures, best first: those that could ever run it by score, then the rest, the
    /// nearest of them first.
    /// `told`: as in [`Ask`].
    pub fn explain(&mut self, spec: &JobSpec, now: Instant, told: &[(PeerName, Span)]) -> Vec<Explained> {
        let told =
            |peer: &PeerName| told.iter().find(|(p, _)| p == peer).map(|(_, s)| s.as_secs_f64() / 3_600.0);
        self.expire(now);
        let id = self.class(spec);
        let Some(class) = self.classes.get_mut(&id) else { return Vec::new() };
        let does = Does(&class.does);
        let mut out = Vec::with_capacity(self.sites.len());
        for (i, site) in self.sites.iter().enumerate() {
            let (mut reasons, goods) = (Vec::new(), &class.goods[i]);
            filter::hard(spec, site, &does, &self.models.0, &mut |reason| {
                reasons.push(reason);
                true
            });
            reasons.extend(goods.absent.clone());
            let fits_ever = reasons.iter().all(Reason::passing);
            let wall = self.told.wall;
            let row = make_row(&class.key, site, &class.does, &self.models.0, goods, &class.weights, wall);
            let taken = self.stamps[i].taken;
            if fits_ever {
                reasons.extend(filter::passing(spec, site, &does, taken, (now, wall)));
            }
            let m =
                measure(&row, &class.weights, spec.gpus_total(), taken, now, 0.0, told(&site.member.peer));
            let figures = fits_ever.then(|| {
                let hours = |h: f64| estimate::span(h * 3_600.0);
                let e = Estimate {
                    wait: hours(m.wait),
                    data: goods.data,
                    image: goods.image,
                    start: hours(m.wait).max(goods.data).max(goods.image),
                    data_bytes: goods.data_bytes,
                    image_bytes: goods.image_bytes,
                    source: goods.source.clone(),
                    usd: row.usd,
                    egress_usd: goods.egress_usd,
                    kwh: row.kwh,
                    load: m.load,
                    assumed: goods.assumed,
                };
                let mut terms = score::terms(spec, &e);
                for (term, value) in Term::ALL.iter().zip(&mut terms) {
                    *value *= class.weights.of(*term);
                }
                (e, terms, m.score)
            });
            let fits_now = reasons.is_empty();
            out.push(Explained { cluster: site.member.peer.clone(), reasons, fits_ever, fits_now, figures });
        }
        out.sort_by(|a, b| {
            let score = |e: &Explained| e.figures.as_ref().map_or(f64::MAX, |f| f.2);
            let distance = |e: &Explained| e.reasons.iter().map(Reason::distance).sum::<u32>();
            (!a.fits_ever)
                .cmp(&!b.fits_ever)
                .then(score(a).total_cmp(&score(b)))
                .then((!a.fits_now).cmp(&!b.fits_now))
                .then(distance(a).cmp(&distance(b)))
                .then(a.cluster.cmp(&b.cluster))
        });
        out
    }

    /// The class of a job, made or renewed where it must be.
    fn class(&mut self, spec: &JobSpec) -> u64 {
        self.clock += 1;
        let id = hash(spec);
        let known = self.classes.get(&id).is_some_and(|c| alike(&c.key, spec));
        let fresh = |c: &Class, index: &Index| {
            c.models_seen == index.models.0.len()
                && (c.goods_seen == index.goods || c.key.data.is_empty() && c.key.image.is_none())
        };
        if !known || !self.classes.get(&id).is_some_and(|c| fresh(c, self)) {
            let class = self.make_class(spec);
            if self.classes.len() >= CLASSES_MAX && !known {
                let oldest = self.classes.iter().min_by_key(|(_, c)| c.used).map(|(id, _)| *id);
                oldest.and_then(|id| self.classes.remove(&id));
            }
            self.classes.insert(id, class);
        }
        if let Some(class) = self.classes.get_mut(&id) {
            class.used = self.clock;
        }
        id
    }

    fn make_class(&self, spec: &JobSpec) -> Class {
        let weights = *self.policies.of(spec.placement.policy);
        let does: Vec<bool> =
            self.models.0.iter().map(|m| books::model_does(Some(m), &spec.resources)).collect();
        let wanted: Vec<Wanted> = if spec.data.is_empty() && spec.image.is_none() {
            Vec::new()
        } else {
            estimate::wanted(spec, &self.sites, |name| self.places.get(name).copied())
        };
        let goods: Vec<Goods> =
            (0..self.sites.len()).map(|i| estimate::goods(&wanted, &self.sites, i)).collect();
        let key = key_of(spec);
        let wall = self.told.wall;
        let row = |(site, goods): (&Site, &Goods)| {
            make_row(&key, site, &does, &self.models.0, goods, &weights, wall)
        };
        let rows = self.sites.iter().zip(&goods).map(row).collect();
        let (goods_seen, models_seen) = (self.goods, self.models.0.len());
        Class { key, used: 0, goods_seen, models_seen, weights, does, goods, rows }
    }
}

fn make_row(
    spec: &JobSpec,
    site: &Site,
    does: &[bool],
    names: &[String],
    goods: &Goods,
    w: &Weights,
    wall: WallTime,
) -> Row {
    let mut row = Row { fixed: site.fixed, fluid: site.fluid, ..Row::default() };
    let models = Does(does);
    row.never = goods.absent.as_ref().is_some_and(|reason| !reason.passing());
    filter::hard(spec, site, &models, names, &mut |reason| {
        row.never |= !reason.passing();
        !row.never
    });
    // Whether it is what such a job wishes for is known by what it says of itself alone, and it grants without looking:
    // until that was heard it is not asked.
    let unheard = site.report().is_none_or(|report| report.capacity.is_none());
    let silent = unheard && filter::needs_capacity(spec);
    row.shut = site.member.draining || site.member.liveness == Liveness::Lost || silent;
    let Some(report) = site.report() else { return row };
    row.heard = report.heard_at;
    row.open = match filter::passing(spec, site, &models, 0, (report.heard_at, wall)) {
        None => true,
        // Compared anew in every decision, less what was just given out.
        Some(Reason::GpusBusy { .. } | Reason::GpusApart { .. } | Reason::Reserved { .. }) => true,
        Some(_) => false,
    } && goods.absent.is_none();
    (row.free, row.total) = (filter::free_for(spec, site, &models, wall).0, models.sum(&site.gpus_total));
    (row.left, row.room) = models.room(site, spec.resources.gpus, row.free);
    if spec.placement.policy == Policy::Spread {
        // It wants the emptiest cluster, not the best filled one.
        row.left = 0;
    }
    if let Some(queue) = &report.queue {
        row.queued = queue.queued_gpus;
        let said = queue.waits.iter().filter(|(model, _)| {
            let does = |n: usize| does.get(n).copied().unwrap_or(false);
            match spec.resources.gpus {
                0 => model.is_empty(),
                _ => names.iter().position(|name| name == *model).is_some_and(does),
            }
        });
        row.told = said.map(|(_, wait)| wait.as_secs_f64() / 3_600.0).min_by(f64::total_cmp);
        row.idle_hours =
            f64::from(queue.queued.saturating_add(1)) / f64::from(queue.running.saturating_add(1));
    }
    row.floor = goods.data.max(goods.image).as_secs_f64() / 3_600.0;
    row.usd = goods.egress_usd;
    if let Some(capacity) = &report.capacity {
        let watts = estimate::watts(site, |m| does.get(usize::from(m)).copied().unwrap_or(false), names);
        let (usd, kwh) = estimate::run_cost(spec, capacity, watts);
        (row.usd, row.kwh) = (row.usd + usd, kwh);
    }
    let e =
        Estimate { data: goods.data, image: goods.image, usd: row.usd, kwh: row.kwh, ..Estimate::default() };
    row.base = score::weigh(w, &score::terms(spec, &e));
    row
}

/// One row at one moment.
fn measure(
    row: &Row,
    w: &Weights,
    wanted: u64,
    taken: u64,
    now: Instant,
    waited: f64,
    told: Option<f64>,
) -> Measure {
    let free = row.free.saturating_sub(taken);
    let fits = row.open
        && row.room.saturating_sub(taken) >= wanted
        && now.since(row.heard) <= REPORT_AGE_MAX
        && told.is_none_or(|h| h <= 0.0);
    let wait = match told {
        _ if fits => 0.0,
        // A queue that keeps putting it off is not believed for ever either.
        Some(hours) => hours.max(waited / 4.0),
        None => wait_hours(row, wanted, free.min(row.room.saturating_sub(taken)), taken).max(waited),
    };
    // What fits beside others breaks into no node that a gang could have whole: such a cluster is as good as an idle one.
    let beside = wanted > 0 && row.left.saturating_sub(taken) >= wanted;
    let load =
        if row.total == 0 || beside { 0.0 } else { 1.0 - free.min(row.total) as f64 / row.total as f64 };
    let fixed = row.base + w.of(Term::Load) * load;
    let start = w.of(Term::Start);
    Measure {
        fits,
        wait,
        load,
        score: fixed + w.of(Term::Wait) * wait + start * wait.max(row.floor),
        soonest: fixed + start * row.floor,
    }
}

/// Hours until a job could start where it cannot now: as long as it takes until so many GPUs have come free, when
/// they come free evenly over a usual run.
fn wait_hours(row: &Row, wanted: u64, free: u64, taken: u64) -> f64 {
    let run = RUN_ASSUMED.as_secs_f64() / 3_600.0;
    if !row.open {
        return CLOSED_ASSUMED.as_secs_f64() / 3_600.0 + run;
    }
    if let Some(hours) = row.told.filter(|h| wanted == 0 && *h > 0.0) {
        return hours;
    }
    if wanted == 0 || row.total == 0 {
        return run * row.idle_hours.min(100.0);
    }
    let missing = wanted.saturating_add(row.queued).saturating_add(taken).saturating_sub(free).max(1);
    match row.told {
        // It knows its own runs: as much longer as more must come free than for a small job.
        Some(hours) if hours > 0.0 => {
            let small = row.queued.saturating_add(1).saturating_sub(row.free).max(1);
            hours * (missing as f64 / small as f64).max(1.0)
        }
        _ => run * missing as f64 / row.total as f64,
    }
}

/// The parts of a spec that decide where it may run and what that takes; the rest is as in every key.
fn key_of(spec: &JobSpec) -> JobSpec {
    JobSpec {
        name: String::new(),
        priority: 0,
        run: run_of(&spec.run),
        env: BTreeMap::new(),
        workdir: None,
        checkpoint: None,
        warn: None,
        retries: 0,
        on_lost_contact: crate::model::spec::OnLostContact::default(),
        preemptible: Some(spec.may_be_preempted()),
        ..spec.clone()
    }
}

/// What of its program decides where it may run: that it is the image's own, and what its script asks of a Slurm.
fn run_of(run: &Run) -> Run {
    match (run, Needs::of(run)) {
        (Run::Image, _) => Run::Image,
        (_, Some(needs)) => Run::Script(needs.script()),
        (_, None) => Run::Argv(Vec::new()),
    }
}

fn alike(key: &JobSpec, spec: &JobSpec) -> bool {
    key.resources == spec.resources
        && key.nodes == spec.nodes
        && key.tenant == spec.tenant
        && key.run == run_of(&spec.run)
        && key.image == spec.image
        && key.data == spec.data
        && key.data_sizes == spec.data_sizes
        && key.communication == spec.communication
        && key.max_runtime == spec.max_runtime
        && key.preemptible == Some(spec.may_be_preempted())
        && key.placement == spec.placement
        && key.groups == spec.groups
}

/// FNV-1a over the parts that differ most between jobs; equality is checked beside it.
fn hash(spec: &JobSpec) -> u64 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    let mut eat = |bytes: &[u8]| {
        for b in bytes {
            h = (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        h = (h ^ 0xff).wrapping_mul(0x0000_0100_0000_01b3);
    };
    let r = &spec.resources;
    for n in [u64::from(r.gpus), r.cpus.0, r.memory.0, u64::from(spec.nodes)] {
        eat(&n.to_le_bytes());
    }
    eat(&[spec.placement.policy as u8, u8::from(spec.may_be_preempted())]);
    for text in
        r.gpu.iter().chain(&spec.data).chain(&spec.image).chain([&spec.tenant]).chain(&spec.placement.regions)
    {
        eat(text.as_bytes());
    }
    for name in &spec.placement.clusters {
        eat(name.as_str().as_bytes());
    }
    eat(&spec.max_runtime.map_or(0, |s| s.0).to_le_bytes());
    if let Run::Script(lines) = run_of(&spec.run) {
        eat(lines.as_bytes());
    }
    h
}

/// A different order of equals for each salt; 0 keeps the order of names.
fn mix(salt: u64, i: u64) -> u64 {
    if salt == 0 {
        return i;
    }
    let mut x = salt ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 29)
}
