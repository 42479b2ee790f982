//! One cluster as the scheduler keeps it: its report, and the figures of it that decisions read, made once.

use super::filter::by_model;
use crate::base::{Bytes, Instant, MilliCpu, Span, WallTime};
use crate::model::report::{MemberView, Report};

/// What was given out is deducted for no longer than this: by then the cluster has said so, or never will.
const GIVEN_FOR: Span = Span::secs(10);

/// Nodes that are alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    /// Number of the GPU model.
    pub model: Option<u16>,
    pub gpus: u32,
    pub cpus: MilliCpu,
    pub memory: Bytes,
    /// How many nodes.
    pub count: u32,
}

/// GPUs that are kept for a tenant for a time.
#[derive(Debug, Clone)]
pub(super) struct Reserved {
    pub tenant: String,
    pub gpus: u32,
    pub from: WallTime,
    pub until: WallTime,
    /// Those that nobody holds, by number of the model.
    pub idle: Vec<(u16, u32)>,
}

/// One cluster.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub member: MemberView,
    pub shapes: Vec<Shape>,
    /// Free GPUs and all GPUs by number of the model.
    pub gpus_free: Vec<(u16, u32)>,
    pub gpus_total: Vec<(u16, u32)>,
    /// Nodes in use with free GPUs: number of the model, how many are free on one, how many such nodes.
    pub gpus_left: Vec<(u16, u32, u32)>,
    /// What is reserved for whom.
    pub reserved: Vec<Reserved>,
    /// When and how many GPUs were given out here that its report does not show yet.
    given: Vec<(Instant, u64)>,
    /// Their sum.
    pub taken: u64,
    /// Changes with capacity and terms,
    pub fixed: u32,
    /// with queue, liveness and drain,
    pub fluid: u32,
    /// and with data, images and links.
    pub goods: u32,
}

impl Site {
    pub fn new(member: &MemberView, models: &mut Models) -> Self {
        let mut site = Self {
            member: member.clone(),
            shapes: Vec::new(),
            gpus_free: Vec::new(),
            gpus_total: Vec::new(),
            gpus_left: Vec::new(),
            reserved: Vec::new(),
            given: Vec::new(),
            taken: 0,
            fixed: 0,
            fluid: 0,
            goods: 0,
        };
        site.read_capacity(models);
        site.read_queue(models);
        site
    }

    pub fn report(&self) -> Option<&Report> {
        self.member.report.as_deref()
    }

    /// Takes a newer view of it, and counts what changed.
    pub fn update(&mut self, member: &MemberView, models: &mut Models) {
        let was = std::mem::replace(&mut self.member, member.clone());
        let same_report = match (&was.report, &self.member.report) {
            (Some(a), Some(b)) => std::sync::Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        let outside = (was.liveness, was.draining) != (self.member.liveness, self.member.draining);
        if same_report {
            self.fluid += u32::from(outside);
            self.fixed += u32::from(was.witness != self.member.witness);
            return;
        }
        let (old, new) = (was.report.as_deref(), self.member.report.as_deref());
        let capacity = old.and_then(|r| r.capacity.as_ref()) != new.and_then(|r| r.capacity.as_ref());
        let queue = old.and_then(|r| r.queue.as_ref()) != new.and_then(|r| r.queue.as_ref());
        let goods =
            old.map(|r| (&r.data, &r.images, &r.links)) != new.map(|r| (&r.data, &r.images, &r.links));
        if capacity || was.witness != self.member.witness {
            self.fixed += 1;
            self.read_capacity(models);
        }
        if queue {
            // What it says now includes what was given out before.
            self.given.clear();
            self.taken = 0;
            self.read_queue(models);
        }
        self.fluid += u32::from(queue || outside);
        self.goods += u32::from(goods);
    }

    fn read_capacity(&mut self, models: &mut Models) {
        let Some(capacity) = self.member.report.as_ref().and_then(|r| r.capacity.as_ref()) else {
            self.shapes.clear();
            return;
        };
        let mut shapes: Vec<Shape> = capacity
            .nodes
            .iter()
            .map(|n| Shape {
                model: n.gpu_model.as_deref().and_then(|m| models.number(m)),
                gpus: n.gpus,
                cpus: n.cpus,
                memory: n.memory,
                count: n.count,
            })
            .collect();
        shapes.sort_unstable();
        shapes.dedup_by(|b, a| {
            let alike = (a.model, a.gpus, a.cpus, a.memory) == (b.model, b.gpus, b.cpus, b.memory);
            if alike {
                a.count = a.count.saturating_add(b.count);
            }
            alike
        });
        self.shapes = shapes;
    }

    fn read_queue(&mut self, models: &mut Models) {
        let (free, total) = match self.member.report.as_ref().and_then(|r| r.queue.as_ref()) {
            Some(q) => (
                by_model(&q.gpus_free, &q.gpus_total, |m| models.number(m)),
                by_model(&q.gpus_total, &q.gpus_total, |m| models.number(m)),
            ),
            None => (Vec::new(), Vec::new()),
        };
        (self.gpus_free, self.gpus_total) = (free, total);
        self.gpus_left.clear();
        let queue = self.member.report.as_ref().and_then(|r| r.queue.as_ref());
        for (model, left) in queue.iter().flat_map(|q| &q.gpus_left) {
            let Some(number) = models.number(model) else { continue };
            self.gpus_left.extend(left.iter().map(|(free, nodes)| (number, *free, *nodes)));
        }
        self.reserved.clear();
        for r in queue.iter().flat_map(|q| q.reserved.iter().map(move |r| (*q, r))) {
            let (queue, r) = r;
            let idle = by_model(&r.idle, &queue.gpus_total, |m| models.number(m));
            let (tenant, gpus, from, until) = (r.tenant.clone(), r.gpus, r.from, r.until);
            self.reserved.push(Reserved { tenant, gpus, from, until, idle });
        }
    }

    /// GPUs were given out here just now.
    pub fn give(&mut self, gpus: u64, now: Instant) {
        self.expire(now);
        self.given.push((now, gpus));
        self.taken = self.taken.saturating_add(gpus);
    }

    /// Forgets what was given out long ago.
    pub fn expire(&mut self, now: Instant) {
        if self.given.first().is_some_and(|(at, _)| now.since(*at) > GIVEN_FOR) {
            self.given.retain(|(at, _)| now.since(*at) <= GIVEN_FOR);
            self.taken = self.given.iter().map(|(_, gpus)| gpus).sum();
        }
    }
}

/// GPU models by number, so that their names are compared once.
#[derive(Debug, Clone, Default)]
pub(super) struct Models(pub Vec<String>);

/// No mesh has more models; further ones are not scheduled by name.
const MODELS_MAX: usize = 4_096;

impl Models {
    pub fn number(&mut self, model: &str) -> Option<u16> {
        let known = self.0.iter().position(|m| m == model).or_else(|| {
            (self.0.len() < MODELS_MAX).then(|| {
                self.0.push(model.to_owned());
                self.0.len() - 1
            })
        });
        known.and_then(|n| u16::try_from(n).ok())
    }
}
