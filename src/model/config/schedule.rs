//! How a cluster orders its queue, and how the GPUs of its nodes hang together.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::keys::SCHEDULE;
use crate::base::Span;
use crate::model::input::fill::span;
use crate::model::input::words::{self, span_text};
use crate::model::input::{Fields, Mistakes};
use crate::model::topology::{GPUS_MAX, NUMA, NVLINK, PCIE};

/// Tenants that may have a weight.
pub const WEIGHTS_MAX: usize = 1_024;
/// Sets of GPUs of one kind per node.
const SETS_MAX: usize = 64;

/// Sets of GPUs of a node with the distance inside each.
pub type GpuSets = Vec<(u8, Vec<u32>)>;
/// The keys of a node group and the distance that each means.
pub(super) const LINKS: [(&str, u8); 3] = [("nvlink", NVLINK), ("pcie", PCIE), ("numa", NUMA)];

/// The cluster's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleConfig {
    /// Tenants' weights in thousandths, 0.001 to 1000; a tenant that is not named has 1.
    pub weights: BTreeMap<String, u32>,
    /// A tenant's usage counts half after this long, 1 min to 1 year. Default 1 day.
    pub half_life: Span,
    /// Urgent jobs may send preemptible ones away. Default true.
    pub preemption: bool,
    /// What an attempt that is sent away has between notice and kill, 0 s to 1 h. Default 30 s.
    pub notice: Span,
    /// The first in line has its nodes held after this long, where its start cannot be known, 0 s to 1 day. Default 30 s.
    pub starve_after: Span,
    /// Part of the mesh's GPUs that may be held at once for jobs whose start cannot be known, beside the oldest of them,
    /// thousandths, 0 to 1. Default 0.05.
    pub drain_milli: u32,
    /// Part of the GPUs that is kept free for jobs that were lost elsewhere and for urgent ones, thousandths, 0 to 0.5.
    /// Default 0.
    pub buffer_milli: u32,
    /// Jobs of at least this priority may use it. Default 75.
    pub buffer_priority: u8,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            weights: BTreeMap::new(),
            half_life: Span::secs(86_400),
            preemption: true,
            notice: Span::secs(30),
            starve_after: Span::secs(30),
            drain_milli: 50,
            buffer_milli: 0,
            buffer_priority: 75,
        }
    }
}

pub(super) fn read(config: &mut ScheduleConfig, mut t: Fields, m: &mut Mistakes) {
    let day = Span::secs(86_400);
    let mut between = |key: &str, low: Span, high: Span, place: &mut Span, m: &mut Mistakes| {
        if let Some(value) = t.take(key, m).and_then(|f| span(f, m, low, high)) {
            *place = value;
        }
    };
    between("half_life", Span::secs(60), day.scale(365, 1), &mut config.half_life, m);
    between("notice", Span::ZERO, Span::secs(3_600), &mut config.notice, m);
    between("starve_after", Span::ZERO, day, &mut config.starve_after, m);
    if let Some(on) = t.take("preemption", m).and_then(|f| f.flag(m)) {
        config.preemption = on;
    }
    if let Some(part) = t.take("drain_ratio", m).and_then(|f| f.milli(m, 0..=1_000)) {
        config.drain_milli = u32::try_from(part).unwrap_or(0);
    }
    if let Some(part) = t.take("buffer_ratio", m).and_then(|f| f.milli(m, 0..=500)) {
        config.buffer_milli = u32::try_from(part).unwrap_or(0);
    }
    if let Some(priority) = t.take("buffer_priority", m).and_then(|f| f.whole32(m, 0..=100)) {
        config.buffer_priority = u8::try_from(priority).unwrap_or(100);
    }
    for (tenant, field) in t.take("weights", m).and_then(|f| f.pairs(m, WEIGHTS_MAX)).unwrap_or_default() {
        if !words::name(&tenant) {
            field.wrong(m, format!("the tenant {}", words::NAME));
        } else if let Some(weight) = field.milli(m, 1..=1_000_000).and_then(|n| u32::try_from(n).ok()) {
            config.weights.insert(tenant, weight);
        }
    }
    t.finish(m, SCHEDULE, &[("fairshare", "write weights"), ("weight", "write weights = {tenant = 2}")]);
}

pub(super) fn write(config: &ScheduleConfig) -> Table {
    let weights = config.weights.iter();
    let weights: Table =
        weights.map(|(tenant, n)| (tenant.clone(), Value::Float(f64::from(*n) / 1e3))).collect();
    let text = |span: Span| Value::String(span_text(span));
    [
        ("half_life".to_owned(), text(config.half_life)),
        ("preemption".to_owned(), Value::Boolean(config.preemption)),
        ("notice".to_owned(), text(config.notice)),
        ("starve_after".to_owned(), text(config.starve_after)),
        ("drain_ratio".to_owned(), Value::Float(f64::from(config.drain_milli) / 1e3)),
        ("buffer_ratio".to_owned(), Value::Float(f64::from(config.buffer_milli) / 1e3)),
        ("buffer_priority".to_owned(), Value::Integer(config.buffer_priority.into())),
        ("weights".to_owned(), Value::Table(weights)),
    ]
    .into_iter()
    .collect()
}

/// Takes `nvlink`, `pcie` and `numa` out of a node group.
pub(super) fn read_sets(fields: &mut Fields, gpus: u32, m: &mut Mistakes) -> GpuSets {
    let mut sets = Vec::new();
    for (key, distance) in LINKS {
        let Some(field) = fields.take(key, m) else { continue };
        for item in field.one_or_many(m, SETS_MAX) {
            let most = gpus.min(GPUS_MAX as u32);
            let want = format!("must be GPUs of the node such as 0-3 or 0,2,4, below {most}");
            sets.extend(item.read(m, &want, |t| set_of(t, most)).map(|set| (distance, set)));
        }
    }
    sets
}

fn set_of(text: &str, below: u32) -> Option<Vec<u32>> {
    let mut set = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high): (u32, u32) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
        if low > high || high >= below {
            return None;
        }
        set.extend(low..=high);
    }
    set.sort_unstable();
    set.dedup();
    Some(set)
}

pub(super) fn write_sets(sets: &GpuSets) -> Vec<(String, Value)> {
    let of = |distance: u8| -> Vec<Value> {
        let sets = sets.iter().filter(|(d, _)| *d == distance);
        let text = |set: &Vec<u32>| set.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        sets.map(|(_, set)| Value::String(text(set))).collect()
    };
    let all = LINKS.iter().map(|(key, distance)| ((*key).to_owned(), of(*distance)));
    all.filter(|(_, sets)| !sets.is_empty()).map(|(key, sets)| (key, Value::Array(sets))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Config;

    #[test]
    fn weights_and_links_are_read_and_written_back() {
        let text = "[schedule]\nhalf_life = \"12h\"\npreemption = false\nbuffer_ratio = 0.1\nbuffer_priority = 90\n[schedule.weights]\nvision = 2.5\nnlp = 1\n\
                    [[nodes]]\nname = \"dgx\"\ngpu = \"H100\"\ngpus = 8\nnvlink = [\"0-3\", \"4-7\"]\nnuma = \"0,1,2-7\"\n";
        let c = Config::check(text).expect("good");
        assert_eq!(c.schedule.weights["vision"], 2_500);
        assert_eq!((c.schedule.half_life, c.schedule.preemption), (Span::secs(43_200), false));
        assert_eq!((c.schedule.buffer_milli, c.schedule.buffer_priority), (100, 90));
        assert_eq!(c.gpu_sets["dgx"].len(), 3);
        assert_eq!(Config::check(&c.to_toml()), Ok(c));
    }

    #[test]
    fn absurd_weights_and_links_are_named() {
        for (text, part) in [
            ("[schedule]\nhalf_life = \"1s\"", "schedule.half_life"),
            ("[schedule.weights]\nvision = 0", "schedule.weights.vision: 0"),
            ("[schedule.weights]\nvision = -1e9", "schedule.weights.vision"),
            ("[schedule.weights]\n\"a b\" = 1", "the tenant"),
            ("[schedule]\nfairshare = 1", "write weights"),
            ("[schedule]\nbuffer_ratio = 0.6", "schedule.buffer_ratio"),
            ("[schedule]\nbuffer_ratio = -0.1", "schedule.buffer_ratio"),
            ("[schedule]\nbuffer_priority = 101", "schedule.buffer_priority"),
            ("[[nodes]]\nname = \"a\"\ngpu = \"H100\"\ngpus = 8\nnvlink = \"0-8\"", "nodes[0].nvlink"),
            ("[[nodes]]\nname = \"a\"\ngpu = \"H100\"\ngpus = 8\npcie = [\"x\"]", "nodes[0].pcie[0]"),
            ("[[nodes]]\nname = \"a\"\nnuma = \"0\"", "below 0"),
        ] {
            let found: Vec<String> =
                Config::check(text).expect_err(text).iter().map(ToString::to_string).collect();
            assert!(found.iter().any(|f| f.contains(part)), "{text}\nno {part:?} in {found:?}");
        }
    }
}
