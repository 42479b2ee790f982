//! What running a job at a cluster would take, in seconds, bytes, USD and kWh; nothing is weighed here.

use serde::{Deserialize, Serialize};

use super::reason::Reason;
use super::site::Site;
use crate::base::{Bytes, PeerName, Span};
use crate::model::gpu;
use crate::model::report::{CapacityReport, Inventory};
use crate::model::spec::JobSpec;

/// How long a job of unknown length is thought to run, for money and for queues.
pub const RUN_ASSUMED: Span = Span::secs(3_600);
/// A link that nobody has measured is thought to carry this, bits per second.
pub const BANDWIDTH_ASSUMED: u64 = 1_000_000_000;
/// An image of unknown size is thought to have this.
pub const IMAGE_ASSUMED: Bytes = Bytes(5_000_000_000);
/// Where it is not known when a cluster takes jobs again (it drains, is lost, is silent).
pub const CLOSED_ASSUMED: Span = Span::secs(3_600);
/// Holders of one dataset that are compared; the nearest of them serves.
const SOURCES_MAX: usize = 32;

/// What is expected, from here, with what is known now.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Estimate {
    /// In the queue.
    pub wait: Span,
    /// For moving data that is not there.
    pub data: Span,
    /// For pulling the image.
    pub image: Span,
    /// Until the first step: the longest of the three, since they overlap.
    pub start: Span,
    /// Data to move.
    pub data_bytes: Bytes,
    /// Image to pull.
    pub image_bytes: Bytes,
    /// Where most of the data comes from.
    pub source: Option<PeerName>,
    /// Money in all: GPU hours, egress, power.
    pub usd: f64,
    /// Of it, for data that leaves another cluster.
    pub egress_usd: f64,
    /// Energy.
    pub kwh: f64,
    /// Share of the cluster's GPUs that are taken, 0 to 1.
    pub load: f64,
    /// A link that carries the data was never measured: 1 Gbit/s is taken for it.
    pub assumed: bool,
}

/// What must be moved to one cluster before one job can start there.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Goods {
    pub data: Span,
    pub image: Span,
    pub data_bytes: Bytes,
    pub image_bytes: Bytes,
    pub source: Option<PeerName>,
    pub egress_usd: f64,
    pub assumed: bool,
    /// It cannot be brought there.
    pub absent: Option<Reason>,
}

/// One thing that a job needs and who has it.
#[derive(Debug)]
pub(super) struct Wanted {
    pub name: String,
    pub size: Option<Bytes>,
    pub image: bool,
    /// A name of the mesh: only a cluster that holds it can read it. Anything else (a URI) the job reads by itself.
    pub named: bool,
    /// Some cluster did not name all that it holds, or said nothing.
    pub cut: bool,
    /// Who holds it, with what it can send to each site, bits per second; 0 was never measured.
    pub sources: Vec<(usize, Vec<u64>)>,
}

/// A name in the mesh's own inventories, not a URI or path that a job opens by itself.
pub fn is_dataset_name(text: &str) -> bool {
    !text.contains("://") && !text.starts_with('/')
}

/// Everything a job needs that may have to be moved.
pub(super) fn wanted(
    spec: &JobSpec,
    sites: &[Site],
    place: impl Fn(&PeerName) -> Option<usize>,
) -> Vec<Wanted> {
    let of_data = spec.data.iter().map(|name| (name, false));
    let of_image = spec.image.iter().map(|name| (name, true));
    of_data.chain(of_image).map(|(name, image)| one_wanted(spec, sites, &place, name, image)).collect()
}

fn inventory(site: &Site, image: bool) -> Option<&Inventory> {
    let report = site.report()?;
    if image { report.images.as_ref() } else { report.data.as_ref() }
}

fn one_wanted(
    spec: &JobSpec,
    sites: &[Site],
    place: &impl Fn(&PeerName) -> Option<usize>,
    name: &str,
    image: bool,
) -> Wanted {
    let named = !image && is_dataset_name(name);
    let mut size = if image { None } else { spec.data_sizes.get(name).copied() };
    let (mut holders, mut cut) = (Vec::new(), false);
    for (i, site) in sites.iter().enumerate().filter(|(_, s)| !s.member.witness) {
        let held = inventory(site, image);
        cut |= held.is_none_or(|inv| inv.more > 0);
        if let Some(bytes) = held.and_then(|inv| inv.size(name)) {
            // What the holders say counts before what the job says.
            size = if holders.is_empty() { Some(bytes) } else { size.max(Some(bytes)) };
            holders.push(i);
        }
    }
    let bandwidth = |from: usize| {
        let mut to = vec![0u64; sites.len()];
        for link in sites.get(from).and_then(Site::report).into_iter().flat_map(|r| &r.links) {
            if let Some(slot) = place(&link.to).and_then(|i| to.get_mut(i)) {
                *slot = link.bandwidth_bps.unwrap_or(0);
            }
        }
        (from, to)
    };
    let sources = holders.into_iter().take(SOURCES_MAX).map(bandwidth).collect();
    Wanted { name: name.to_owned(), size, image, named, cut, sources }
}

/// USD per byte from one cluster into a region.
fn egress(capacity: Option<&CapacityReport>, region: Option<&str>) -> f64 {
    let Some(capacity) = capacity else { return 0.0 };
    let milli = region.and_then(|r| capacity.terms.egress_to_milli.get(r));
    milli.copied().unwrap_or(capacity.terms.egress_milli) as f64 / 1e12
}

/// What one site must be brought. Things from several sources come one after another: their paths may share a link.
pub(super) fn goods(wanted: &[Wanted], sites: &[Site], to: usize) -> Goods {
    let mut out = Goods::default();
    let Some(site) = sites.get(to) else { return out };
    let region = site.report().and_then(|r| r.capacity.as_ref()).map(|c| c.region.as_str());
    let (mut largest, mut data, mut image) = (0, 0.0, 0.0);
    for want in wanted {
        if want.sources.iter().any(|(from, _)| *from == to) {
            continue;
        }
        if want.image {
            let size = want.size.unwrap_or(IMAGE_ASSUMED);
            let best = want.sources.iter().filter_map(|(_, bps)| bps.get(to)).max().copied().unwrap_or(0);
            image += seconds(size, best);
            out.image_bytes = Bytes(out.image_bytes.0.saturating_add(size.0));
            continue;
        }
        if want.named {
            let holders =
                want.sources.iter().filter_map(|(i, _)| sites.get(*i)).map(|s| s.member.peer.clone());
            out.absent.get_or_insert_with(|| Reason::DataAbsent {
                name: want.name.clone(),
                size: want.size,
                held_by: holders.collect(),
                cut: want.cut && want.sources.is_empty(),
            });
        }
        // Without a holder or a size nothing is known of it: a store outside the mesh, alike for all.
        let (Some(size), false) = (want.size, want.sources.is_empty()) else { continue };
        let price = |from: usize| egress(sites.get(from).and_then(|s| s.report()?.capacity.as_ref()), region);
        // The source that is soonest, an hour being worth 2 USD, so that a dear one is no better for a moment.
        let cost = |(from, bps): &&(usize, Vec<u64>)| {
            let time = seconds(size, bps.get(to).copied().unwrap_or(0));
            time / 3_600.0 * 2.0 + price(*from) * size.0 as f64
        };
        let Some((from, bps)) = want.sources.iter().min_by(|a, b| cost(a).total_cmp(&cost(b))) else {
            continue;
        };
        let rate = bps.get(to).copied().unwrap_or(0);
        out.assumed |= rate == 0;
        data += seconds(size, rate);
        out.egress_usd += price(*from) * size.0 as f64;
        out.data_bytes = Bytes(out.data_bytes.0.saturating_add(size.0));
        if size.0 >= largest {
            largest = size.0;
            out.source = sites.get(*from).map(|s| s.member.peer.clone());
        }
    }
    (out.data, out.image) = (span(data), span(image));
    out
}

fn seconds(size: Bytes, bps: u64) -> f64 {
    size.0 as f64 * 8.0 / (if bps == 0 { BANDWIDTH_ASSUMED } else { bps }) as f64
}

/// From seconds, bounded, so that an absurd figure gives a long time and nothing else.
pub(super) fn span(seconds: f64) -> Span {
    let us = (seconds * 1e6).clamp(0.0, Span::FOREVER.0 as f64);
    if us.is_finite() { Span(us as u64) } else { Span::FOREVER }
}

/// Hours of a run: what the job says at most, or an hour.
pub(super) fn run_hours(spec: &JobSpec) -> f64 {
    spec.max_runtime.unwrap_or(RUN_ASSUMED).as_secs_f64() / 3_600.0
}

/// What a run costs at a cluster beside egress: money, and energy in kWh. `watts` is of the model it would get.
pub(super) fn run_cost(spec: &JobSpec, capacity: &CapacityReport, watts: u32) -> (f64, f64) {
    let gpu_hours = run_hours(spec) * spec.gpus_total() as f64;
    let kwh = gpu_hours * f64::from(watts) / 1e3 * f64::from(capacity.pue_milli) / 1e3;
    let usd = gpu_hours * capacity.price_milli as f64 / 1e3 + kwh * capacity.terms.tariff_milli as f64 / 1e3;
    (usd, kwh)
}

/// Power of the first model of the cluster that will do.
pub(super) fn watts(site: &Site, does: impl Fn(u16) -> bool, names: &[String]) -> u32 {
    let model = site.shapes.iter().filter_map(|s| s.model).find(|m| does(*m));
    model.and_then(|m| names.get(usize::from(m))).map_or(350, |name| gpu::watts(name))
}
