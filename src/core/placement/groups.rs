//! Task groups over clusters: problem in, plan out. Pure and deterministic.
//!
//! Each group stays whole in one cluster. A `sync` job stays in one altogether. Otherwise groups are put where they fit
//! and what they send each other costs least: of every pair that is apart, the share of the link that its traffic
//! takes, and the round trip in seconds. What a link cannot carry is not forbidden, but costs a hundredfold, so that it
//! is chosen only where nothing else fits, and is said.
//!
//! Small problems are solved exactly by branch and bound; beyond, several greedy starts are improved by moving one group
//! or swapping two until neither helps. Both keep the best plan found first, so equal input gives an equal plan.

use serde::{Deserialize, Serialize};

use super::filter::{self, Does};
use super::index::Index;
use super::site::{Shape, Site};
use crate::base::{Instant, PeerName, Span};
use crate::core::books;
use crate::model::report::Liveness;
use crate::model::spec::{Communication, JobSpec};

/// Exact up to so many combinations.
pub const EXACT_MAX: u64 = 200_000;
/// Rounds of improvement per start.
const ROUNDS_MAX: usize = 64;
/// Greedy starts.
const STARTS_MAX: usize = 16;
/// What overload of a link costs beside its use.
const OVERLOAD: f64 = 100.0;

/// One link between two clusters, both directions alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bits per second that it carries.
    pub bps: f64,
    /// Round trip in seconds.
    pub rtt_s: f64,
}

/// Groups, clusters, and what they are to each other.
pub struct Problem<'a> {
    /// How many groups.
    pub groups: usize,
    /// How many clusters.
    pub sites: usize,
    /// Pairs of groups and bytes per second between them.
    pub traffic: &'a [(usize, usize, f64)],
    /// All groups stay together.
    pub together: bool,
    /// What a group costs at a cluster by itself.
    pub cost: &'a dyn Fn(usize, usize) -> f64,
    /// The link between two different clusters.
    pub link: &'a dyn Fn(usize, usize) -> Link,
    /// These groups fit into this cluster together.
    pub room: &'a dyn Fn(usize, &[usize]) -> bool,
}

/// A cluster for each group.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The cluster of each group.
    pub sites: Vec<usize>,
    /// Its cost: of the groups by themselves and of their traffic.
    pub cost: f64,
    /// No other plan costs less.
    pub exact: bool,
}

impl Problem<'_> {
    /// What traffic takes of a link, overload included.
    fn share(&self, a: usize, b: usize, rate: f64) -> f64 {
        if a == b || rate <= 0.0 {
            return 0.0;
        }
        let share = rate * 8.0 / (self.link)(a, b).bps.max(1.0);
        share + if share > 1.0 { OVERLOAD * share } else { 0.0 }
    }

    /// The same and the round trip.
    fn pair(&self, a: usize, b: usize, rate: f64) -> f64 {
        let apart = a != b && rate > 0.0;
        self.share(a, b, rate) + if apart { (self.link)(a, b).rtt_s } else { 0.0 }
    }

    /// What the traffic of a whole plan costs, the traffic between the same two clusters counted together.
    fn traffic_cost(&self, sites: &[usize]) -> f64 {
        let mut by_link: std::collections::BTreeMap<(usize, usize), f64> = std::collections::BTreeMap::new();
        for (a, b, rate) in self.traffic {
            let (x, y) = (sites[*a].min(sites[*b]), sites[*a].max(sites[*b]));
            if x != y {
                *by_link.entry((x, y)).or_default() += rate;
            }
        }
        by_link.into_iter().map(|((a, b), rate)| self.pair(a, b, rate)).sum()
    }

    fn total(&self, sites: &[usize]) -> f64 {
        let alone: f64 = sites.iter().enumerate().map(|(g, s)| (self.cost)(g, *s)).sum();
        alone + self.traffic_cost(sites)
    }

    fn fits(&self, sites: &[usize]) -> bool {
        let mut used: Vec<usize> = sites.to_vec();
        used.sort_unstable();
        used.dedup();
        used.iter().all(|s| (self.room)(*s, &on(sites, *s)))
    }

    /// The best plan found, none where the groups do not fit.
    pub fn solve(&self) -> Option<Plan> {
        if self.groups == 0 || self.sites == 0 {
            return None;
        }
        let single = self.single();
        if self.together {
            return single.map(|p| Plan { exact: true, ..p });
        }
        let combinations = (self.sites as u64).checked_pow(self.groups as u32);
        if combinations.is_some_and(|n| n <= EXACT_MAX) { self.exact(single) } else { self.search(single) }
    }

    /// All groups in one cluster.
    fn single(&self) -> Option<Plan> {
        let all: Vec<usize> = (0..self.groups).collect();
        let plans = (0..self.sites).filter(|s| (self.room)(*s, &all)).map(|s| {
            let sites = vec![s; self.groups];
            Plan { cost: self.total(&sites), sites, exact: false }
        });
        plans.min_by(|a, b| a.cost.total_cmp(&b.cost))
    }

    fn exact(&self, first: Option<Plan>) -> Option<Plan> {
        let mut best = first;
        let mut sites = Vec::with_capacity(self.groups);
        self.branch(&mut sites, 0.0, &mut best);
        best.map(|p| Plan { exact: true, ..p })
    }

    /// `alone` is what the groups so far cost by themselves. What their traffic takes of links, pair by pair, is a lower
    /// bound of what it takes together; more groups only add to it.
    fn branch(&self, sites: &mut Vec<usize>, alone: f64, best: &mut Option<Plan>) {
        let g = sites.len();
        if g == self.groups {
            let cost = alone + self.traffic_cost(sites);
            if best.as_ref().is_none_or(|b| cost < b.cost) {
                *best = Some(Plan { sites: sites.clone(), cost, exact: true });
            }
            return;
        }
        for site in 0..self.sites {
            sites.push(site);
            let cost = alone + (self.cost)(g, site);
            let placed = self.traffic.iter().filter(|(a, b, _)| *a <= g && *b <= g);
            let bound: f64 =
                cost + placed.map(|(a, b, rate)| self.share(sites[*a], sites[*b], *rate)).sum::<f64>();
            if best.as_ref().is_none_or(|b| bound < b.cost) && (self.room)(site, &on(sites, site)) {
                self.branch(sites, cost, best);
            }
            sites.pop();
        }
    }

    fn search(&self, first: Option<Plan>) -> Option<Plan> {
        let mut best = first.map(|p| self.improve(p.sites));
        // Each start puts the group with the most traffic at another cluster, the cheapest first.
        let order = self.by_traffic();
        let mut starts: Vec<usize> = (0..self.sites).collect();
        starts.sort_by(|a, b| (self.cost)(order[0], *a).total_cmp(&(self.cost)(order[0], *b)).then(a.cmp(b)));
        for start in starts.into_iter().take(STARTS_MAX) {
            let Some(plan) = self.greedy(&order, start).map(|sites| self.improve(sites)) else { continue };
            if best.as_ref().is_none_or(|b| plan.cost < b.cost) {
                best = Some(plan);
            }
        }
        best
    }

    fn by_traffic(&self) -> Vec<usize> {
        let mut sum = vec![0.0; self.groups];
        for (a, b, rate) in self.traffic {
            sum[*a] += rate;
            sum[*b] += rate;
        }
        let mut order: Vec<usize> = (0..self.groups).collect();
        order.sort_by(|a, b| sum[*b].total_cmp(&sum[*a]).then(a.cmp(b)));
        order
    }

    fn greedy(&self, order: &[usize], start: usize) -> Option<Vec<usize>> {
        let mut placed: Vec<Option<usize>> = vec![None; self.groups];
        for (i, g) in order.iter().enumerate() {
            let fits = |site: usize| {
                let mut there: Vec<usize> =
                    placed.iter().enumerate().filter(|(_, s)| **s == Some(site)).map(|(g, _)| g).collect();
                there.push(*g);
                there.sort_unstable();
                (self.room)(site, &there)
            };
            let cost = |site: usize| {
                let traffic = self.traffic.iter().filter_map(|(a, b, rate)| {
                    let other = if a == g {
                        placed[*b]
                    } else if b == g {
                        placed[*a]
                    } else {
                        None
                    };
                    other.map(|other| self.pair(site, other, *rate))
                });
                (self.cost)(*g, site) + traffic.sum::<f64>()
            };
            let sites: Vec<usize> = if i == 0 { vec![start] } else { (0..self.sites).collect() };
            let best = sites.into_iter().filter(|s| fits(*s)).min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
            placed[*g] = Some(best?);
        }
        placed.into_iter().collect()
    }

    fn improve(&self, mut sites: Vec<usize>) -> Plan {
        let mut cost = self.total(&sites);
        for _ in 0..ROUNDS_MAX {
            let mut better: Option<(f64, Vec<usize>)> = None;
            let mut offer = |trial: Vec<usize>, this: &Self| {
                let c = this.total(&trial);
                if c + 1e-12 < better.as_ref().map_or(cost, |b| b.0) && this.fits(&trial) {
                    better = Some((c, trial));
                }
            };
            for g in 0..self.groups {
                for site in (0..self.sites).filter(|s| *s != sites[g]) {
                    let mut trial = sites.clone();
                    trial[g] = site;
                    offer(trial, self);
                }
                for other in g + 1..self.groups {
                    let mut trial = sites.clone();
                    trial.swap(g, other);
                    offer(trial, self);
                }
            }
            match better {
                Some((c, trial)) => (cost, sites) = (c, trial),
                None => break,
            }
        }
        Plan { sites, cost, exact: false }
    }
}

/// The groups at one cluster.
fn on(sites: &[usize], site: usize) -> Vec<usize> {
    sites.iter().enumerate().filter(|(_, s)| **s == site).map(|(g, _)| g).collect()
}

/// A plan for a job's groups, in names and figures.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GroupPlan {
    /// Each group and its cluster; empty where the groups do not fit.
    pub groups: Vec<(String, PeerName)>,
    /// Traffic that leaves a cluster: two groups, bytes per second, the share of the link that it takes (more than 1:
    /// the link cannot carry it), the round trip.
    pub apart: Vec<(String, String, u64, f64, Span)>,
    /// No plan costs less.
    pub exact: bool,
    /// In words, where there is no plan.
    pub why_not: Option<String>,
}

impl GroupPlan {
    /// One sentence.
    pub fn summary(&self) -> String {
        if let Some(why) = &self.why_not {
            return why.clone();
        }
        let mut by_cluster: std::collections::BTreeMap<&PeerName, Vec<&str>> =
            std::collections::BTreeMap::new();
        for (group, cluster) in &self.groups {
            by_cluster.entry(cluster).or_default().push(group);
        }
        let parts: Vec<String> = by_cluster.iter().map(|(c, g)| format!("{} at {c}", g.join(", "))).collect();
        let over = self.apart.iter().filter(|a| a.3 > 1.0).count();
        let over =
            if over > 0 { format!("; {over} links cannot carry their traffic") } else { String::new() };
        format!("would put {}{over}", parts.join("; "))
    }
}

/// Puts nodes into shapes, those that need most first.
fn packs(needs: &[(&JobSpec, Vec<bool>)], groups: &[usize], shapes: &[Shape]) -> bool {
    let mut left: Vec<Shape> = Vec::new();
    for shape in shapes {
        for _ in 0..shape.count.min(4_096) {
            left.push(Shape { count: 1, ..shape.clone() });
        }
    }
    let mut order: Vec<usize> = groups.to_vec();
    order.sort_by_key(|g| std::cmp::Reverse((needs[*g].0.resources.gpus, needs[*g].0.resources.cpus)));
    for g in order {
        let (spec, does) = &needs[g];
        let need = &spec.resources;
        for _ in 0..spec.nodes {
            let good = |s: &&mut Shape| {
                let model = need.gpus == 0
                    || s.model.is_some_and(|m| does.get(usize::from(m)).copied().unwrap_or(false));
                model && s.gpus >= need.gpus && s.cpus >= need.cpus && s.memory >= need.memory
            };
            let Some(node) = left.iter_mut().filter(good).min_by_key(|s| s.gpus) else { return false };
            node.gpus -= need.gpus;
            node.cpus.0 -= need.cpus.0;
            node.memory.0 -= need.memory.0;
        }
    }
    true
}

impl Index {
    /// Where the groups of a job would go, by what the clusters have when they are empty, those with free GPUs first.
    pub fn plan_groups(&self, spec: &JobSpec) -> GroupPlan {
        self.plan_among(spec, &|_| true, false)
    }

    /// Where they may be claimed now: only at clusters that take claims as far as is known, and that `may` lets through.
    /// First by what is free; true where all of it seems to be.
    pub fn plan_groups_now(
        &self,
        spec: &JobSpec,
        may: &dyn Fn(&PeerName) -> bool,
        now: Instant,
    ) -> (GroupPlan, bool) {
        let open = |site: &Site| {
            let fresh = site.report().is_some_and(|r| {
                now.since(r.heard_at) <= filter::REPORT_AGE_MAX
                    && r.queue.as_ref().is_some_and(|queue| queue.closed.is_none())
            });
            let member = &site.member;
            fresh && !member.draining && member.liveness == Liveness::Alive && may(&member.peer)
        };
        let tight = self.plan_among(spec, &open, true);
        match tight.why_not {
            None => (tight, true),
            Some(_) => (self.plan_among(spec, &open, false), false),
        }
    }

    /// `tight`: only what is free counts as room.
    fn plan_among(&self, spec: &JobSpec, open: &dyn Fn(&Site) -> bool, tight: bool) -> GroupPlan {
        let groups = &spec.groups.list;
        let of = |g: &crate::model::spec::Group| JobSpec {
            nodes: g.nodes,
            resources: g.resources.clone(),
            groups: Default::default(),
            ..spec.clone()
        };
        let specs: Vec<JobSpec> = groups.iter().map(of).collect();
        let names = self.model_names();
        let needs: Vec<(&JobSpec, Vec<bool>)> = specs
            .iter()
            .map(|s| (s, names.iter().map(|m| books::model_does(Some(m), &s.resources)).collect()))
            .collect();
        // Clusters that could run at least one group.
        let could = |site: &Site| {
            needs.iter().any(|(s, does)| {
                let mut good = site.report().is_some_and(|r| r.capacity.is_some());
                filter::hard(s, site, &Does(does), names, &mut |_| {
                    good = false;
                    false
                });
                good
            })
        };
        let sites: Vec<&Site> = self.sites().iter().filter(|s| open(s) && could(s)).collect();
        let number = |name: &str| groups.iter().position(|g| g.name == name);
        let traffic: Vec<(usize, usize, f64)> = spec
            .groups
            .traffic
            .iter()
            .filter_map(|t| Some((number(&t.from)?, number(&t.to)?, t.rate.0 as f64)))
            .filter(|(a, b, _)| a != b && spec.communication != Communication::None)
            .collect();
        let busy = |g: usize, s: usize| {
            let (spec, does) = &needs[g];
            let free = Does(does).sum(&sites[s].gpus_free);
            let price = sites[s].report().and_then(|r| r.capacity.as_ref()).map_or(0, |c| c.price_milli);
            // Free now comes before near, near before cheap.
            let price = price as f64 / 1e3 * spec.gpus_total() as f64 * 1e-6;
            price + if free >= spec.gpus_total() { 0.0 } else { 10.0 }
        };
        let link = |a: usize, b: usize| self.link(sites[a], sites[b]);
        // Of one model's free GPUs each group may take its part, and all together no more than there are.
        let free = |s: usize, there: &[usize]| {
            let sum = |of: &[(u16, u32)]| of.iter().map(|(_, n)| u64::from(*n)).sum::<u64>();
            let each = |g: &usize| Does(&needs[*g].1).sum(&sites[s].gpus_free) >= needs[*g].0.gpus_total();
            let all: u64 = there.iter().map(|g| needs[*g].0.gpus_total()).sum();
            all <= sum(&sites[s].gpus_free).saturating_sub(sites[s].taken) && there.iter().all(each)
        };
        // The same question comes up in very many plans.
        let known = std::cell::RefCell::new(std::collections::BTreeMap::<(usize, u64), bool>::new());
        let room = |s: usize, there: &[usize]| {
            let set = there.iter().fold(0u64, |set, g| set | 1 << g);
            if let Some(fits) = known.borrow().get(&(s, set)) {
                return *fits;
            }
            let fits = (!tight || free(s, there)) && packs(&needs, there, &sites[s].shapes);
            known.borrow_mut().insert((s, set), fits);
            fits
        };
        let problem = Problem {
            groups: groups.len(),
            sites: sites.len(),
            traffic: &traffic,
            together: spec.communication == Communication::Sync,
            cost: &busy,
            link: &link,
            room: &room,
        };
        let Some(plan) = problem.solve() else {
            let one =
                if problem.together { "into one cluster, as communication: sync wants" } else { "anywhere" };
            let why = format!("the {} groups do not fit {one}", groups.len());
            return GroupPlan { why_not: Some(why), ..GroupPlan::default() };
        };
        let apart =
            traffic.iter().filter(|(a, b, _)| plan.sites[*a] != plan.sites[*b]).map(|(a, b, rate)| {
                let link = link(plan.sites[*a], plan.sites[*b]);
                let share = rate * 8.0 / link.bps.max(1.0);
                let (from, to) = (groups[*a].name.clone(), groups[*b].name.clone());
                (from, to, *rate as u64, share, super::estimate::span(link.rtt_s))
            });
        GroupPlan {
            groups: groups
                .iter()
                .zip(&plan.sites)
                .map(|(g, s)| (g.name.clone(), sites[*s].member.peer.clone()))
                .collect(),
            apart: apart.collect(),
            exact: plan.exact,
            why_not: None,
        }
    }

    /// The link between two clusters as either end measured it; an unknown one is slow and far.
    fn link(&self, a: &Site, b: &Site) -> Link {
        let seen = |x: &Site, y: &Site| {
            x.report().and_then(|r| r.links.iter().find(|l| l.to == y.member.peer).cloned())
        };
        let samples = [seen(a, b), seen(b, a)];
        let known = || samples.iter().flatten();
        let bps = known().filter_map(|l| l.bandwidth_bps).min().unwrap_or(super::estimate::BANDWIDTH_ASSUMED);
        let rtt = known().map(|l| l.rtt_us).max().unwrap_or(200_000);
        Link { bps: bps as f64, rtt_s: rtt as f64 / 1e6 }
    }
}
