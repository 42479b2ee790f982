//! One facet of a report as it travels: signed by its origin, small, and sane.
//!
//! chitchat lets any node write any node's keys, and keeps the write with the higher version. So a
//! value carries its origin's signature over *everything* that decides where it lands: mesh, name,
//! generation, key, version and text. A forger can then neither change a value nor burn versions.
// tidy: long because every figure that comes from another peer is checked in this one place

use data_encoding::BASE64_NOPAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::base::{MeshId, PeerName, WallTime};
use crate::model::alert::AlertsReport;
use crate::model::report::{
    BuildReport, CapacityReport, ContactReport, HealthReport, Inventory, KeepReport, LinkSample, QueueReport,
    ReservedReport,
};
use crate::transport::PublicKey;
use crate::transport::keys::SIGNATURE_BYTES;

/// Longest text of one key. chitchat blocks a node for ever on a value over 65,503 bytes.
pub const VALUE_BYTES_MAX: usize = 16_384;
/// Longest key.
pub const KEY_BYTES_MAX: usize = 64;
/// Keys that one node may have.
pub const KEYS_MAX: usize = 32;
/// Links are split into at most this many keys.
pub const LINK_PAGES_MAX: usize = 8;
/// Bytes of JSON per page of links; a thousand links fit into eight.
const LINK_PAGE_BYTES: usize = 12_000;
/// Up to so many links are one page.
const LINKS_OF_ONE_PAGE: usize = 16;
const COUNT_MAX: u64 = CapacityReport::COUNT_MAX;

/// Why a facet was not published, or not believed. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FacetError {
    /// Larger than a value may be.
    #[error("facet {0} has {1} bytes of at most {VALUE_BYTES_MAX}: shorten it")]
    TooLarge(String, usize),
    /// Not `[a-z][a-z0-9._-]*` of at most 64 bytes.
    #[error("{0:?} is not a facet key")]
    Key(String),
    /// Not what this key holds.
    #[error("facet {0} does not parse: {1}")]
    Malformed(String, String),
    /// A figure that cannot be true.
    #[error("facet {0} is absurd: {1}")]
    Absurd(String, String),
    /// Not signed by the peer it speaks for.
    #[error("facet {0} is not signed by its peer")]
    Forged(String),
}

/// One part of what a peer says of itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Facet {
    /// What is there and what it costs.
    Capacity(CapacityReport),
    /// What is free and what waits.
    Queue(QueueReport),
    /// The contact for new attempts.
    Contact(ContactReport),
    /// Health.
    Health(HealthReport),
    /// Build.
    Build(BuildReport),
    /// Links to others.
    Links(Vec<LinkSample>),
    /// One page of links, as received.
    LinksPage(usize, Vec<LinkSample>),
    /// Hash of the peer's member list.
    Members(String),
    /// The datasets that it holds.
    Data(Inventory),
    /// The images that it holds.
    Images(Inventory),
    /// What it finds wrong, and what was said about it.
    Alerts(AlertsReport),
    /// A key of a newer version: passed on, not understood.
    Unknown,
}

/// A link in short form; names of fields would be most of the bytes.
type LinkTuple = (PeerName, u64, u32, Option<u64>, Option<WallTime>, WallTime, bool);

impl Facet {
    /// The facet's key and text, several for links. Refuses what others would refuse.
    pub fn write(&self) -> Result<Vec<(String, String)>, FacetError> {
        let one = match self {
            Self::Capacity(v) => ("capacity", capacity(v)),
            Self::Queue(v) => ("queue", json(v)),
            Self::Contact(v) => ("contact", json(v)),
            Self::Health(v) => ("health", json(v)),
            Self::Build(v) => ("build", json(v)),
            Self::Members(v) => ("members", json(v)),
            Self::Data(v) => ("data", json(v)),
            Self::Images(v) => ("images", json(v)),
            Self::Alerts(v) => ("alerts", json(v)),
            Self::Links(links) => return link_pages(links),
            Self::LinksPage(..) | Self::Unknown => return Ok(Vec::new()),
        };
        let (key, text) = (one.0.to_owned(), one.1);
        Self::read(&key, &text)?;
        Ok(vec![(key, text)])
    }

    /// Reads and checks the text of a key.
    pub fn read(key: &str, text: &str) -> Result<Self, FacetError> {
        if !key_is_sane(key) {
            return Err(FacetError::Key(key.chars().take(KEY_BYTES_MAX).collect()));
        }
        if text.len() > VALUE_BYTES_MAX {
            return Err(FacetError::TooLarge(key.into(), text.len()));
        }
        let facet = match key {
            "capacity" => Self::Capacity(parse(key, text)?),
            "queue" => Self::Queue(parse(key, text)?),
            "contact" => Self::Contact(parse(key, text)?),
            "health" => Self::Health(parse(key, text)?),
            "build" => Self::Build(parse(key, text)?),
            "members" => Self::Members(parse(key, text)?),
            "data" => Self::Data(parse(key, text)?),
            "images" => Self::Images(parse(key, text)?),
            "alerts" => Self::Alerts(parse(key, text)?),
            _ => match key.strip_prefix("links.").and_then(|n| n.parse::<usize>().ok()) {
                Some(page) if page < LINK_PAGES_MAX => {
                    let tuples: Vec<LinkTuple> = parse(key, text)?;
                    let sample = |(to, rtt_us, loss_ppm, bandwidth_bps, bandwidth_at, at, direct)| {
                        LinkSample { to, rtt_us, loss_ppm, bandwidth_bps, bandwidth_at, at, direct }
                    };
                    Self::LinksPage(page, tuples.into_iter().map(sample).collect())
                }
                _ => Self::Unknown,
            },
        };
        facet.check().map_err(|what| FacetError::Absurd(key.into(), what))?;
        Ok(facet)
    }

    /// A change of it is worth gossiping faster for a while. A contact is not: its nonce changes with every
    /// renewal, so that a mesh of a few dozen peers would never be quiet; grants carry it where it matters.
    pub fn urgent(key: &str) -> bool {
        matches!(key, "capacity" | "queue" | "members" | "build")
    }

    /// The same for a facet that was read.
    pub fn is_urgent(&self) -> bool {
        matches!(self, Self::Capacity(_) | Self::Queue(_) | Self::Members(_) | Self::Build(_))
    }

    /// For counters.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Capacity(_) => "gossip_heard_capacity",
            Self::Queue(_) => "gossip_heard_queue",
            Self::Contact(_) => "gossip_heard_contact",
            Self::Health(_) => "gossip_heard_health",
            Self::Build(_) => "gossip_heard_build",
            Self::Links(_) | Self::LinksPage(..) => "gossip_heard_links",
            Self::Members(_) => "gossip_heard_members",
            Self::Data(_) | Self::Images(_) | Self::Alerts(_) | Self::Unknown => "gossip_heard_other",
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Capacity(c) => check_capacity(c),
            Self::Queue(q) => check_queue(q),
            Self::Contact(c) => at_most("homes", c.homes.len() as u64, 9),
            Self::Health(h) => {
                plain("disk_note", h.disk_note.as_deref().unwrap_or(""))?;
                at_most("cpu_milli", h.cpu_milli.into(), 1_100)?;
                at_most("gpu_milli", h.gpu_milli.unwrap_or(0).into(), 1_100)?;
                at_most("disk_free", h.disk_free.0, 1 << 60)
            }
            Self::Build(b) => plain("version", &b.version),
            Self::Links(links) | Self::LinksPage(_, links) => links.iter().try_for_each(|l| {
                at_most("rtt_us", l.rtt_us, 3_600_000_000)?;
                at_most("loss_ppm", l.loss_ppm.into(), 1_000_000)?;
                at_most("bandwidth_bps", l.bandwidth_bps.unwrap_or(0), 1_000_000_000_000_000)
            }),
            Self::Members(hash) => plain("hash", hash),
            Self::Data(held) | Self::Images(held) => check_inventory(held),
            Self::Alerts(report) => report.check(),
            Self::Unknown => Ok(()),
        }
    }
}

/// Where all together is too large, what only explains gives way to what can be placed on.
fn capacity(all: &CapacityReport) -> String {
    let mut text = json(all);
    if text.len() > VALUE_BYTES_MAX {
        tracing::warn!(
            bytes = text.len(),
            "the report of the nodes is too large: without partitions and features"
        );
        let mut less = CapacityReport { slurm: None, ..all.clone() };
        text = json(&less);
        if text.len() > VALUE_BYTES_MAX {
            less.nodes_out = all.nodes_out.counted();
            text = json(&less);
        }
    }
    text
}

fn check_capacity(c: &CapacityReport) -> Result<(), String> {
    for (what, text) in [("backend", &c.backend), ("region", &c.region), ("zone", &c.zone)] {
        plain(what, text)?;
    }
    c.labels.iter().try_for_each(|(k, v)| plain("label", k).and_then(|()| plain("label", v)))?;
    at_most("price_milli", c.price_milli, 1_000_000_000)?;
    at_most("nodes out", c.nodes_out.nodes.len() as u64, 64)?;
    c.nodes_out.nodes.iter().try_for_each(|n| plain("node", &n.name).and_then(|()| plain("why", &n.why)))?;
    for set in c.slurm.iter().flat_map(|s| s.partitions.iter().chain(&s.features)) {
        plain("partition or feature", &set.name)?;
    }
    at_most("partitions", c.slurm.as_ref().map_or(0, |s| s.partitions.len()) as u64, 256)?;
    at_most("features", c.slurm.as_ref().map_or(0, |s| s.features.len()) as u64, 256)?;
    let terms = &c.terms;
    at_most("compliance domains", terms.compliance.len() as u64, 64)?;
    terms.compliance.iter().try_for_each(|domain| plain("compliance", domain))?;
    at_most("tariff_milli", terms.tariff_milli, 1_000_000_000)?;
    at_most("egress_milli", terms.egress_milli, 1_000_000_000)?;
    for (region, milli) in &terms.egress_to_milli {
        plain("egress region", region)?;
        at_most("egress_to_milli", *milli, 1_000_000_000)?;
    }
    at_most("pue_milli", c.pue_milli.into(), 100_000)?;
    let mut gpus: u64 = 0;
    for n in &c.nodes {
        plain("node name", &n.name)?;
        plain("gpu_model", n.gpu_model.as_deref().unwrap_or(""))?;
        at_most("node count", n.count.into(), COUNT_MAX)?;
        at_most("gpus per node", n.gpus.into(), 10_000)?;
        at_most("cpus per node", n.cpus.0, 1_000 * COUNT_MAX)?;
        at_most("memory per node", n.memory.0, CapacityReport::MEMORY_MAX.0)?;
        at_most("gpu memory", n.gpu_memory.0, 1 << 50)?;
        gpus += u64::from(n.count) * u64::from(n.gpus);
    }
    at_most("gpus", gpus, COUNT_MAX)
}

fn check_inventory(held: &Inventory) -> Result<(), String> {
    at_most("items", held.items.len() as u64, 1_024)?;
    held.items.iter().try_for_each(|item| {
        plain("name", &item.name)?;
        at_most("size", item.size.0, 1 << 60)
    })
}

fn check_queue(q: &QueueReport) -> Result<(), String> {
    for (what, by_model) in [("gpus_free", &q.gpus_free), ("gpus_reserved", &q.gpus_reserved)] {
        for (model, &n) in by_model {
            let total = q.gpus_total.get(model).copied().unwrap_or(0);
            if n > total {
                return Err(format!("{what} of {model:?} is {n} of {total}"));
            }
        }
    }
    for (model, &n) in &q.gpus_total {
        plain("gpu model", model)?;
        at_most("gpus_total", n.into(), COUNT_MAX)?;
    }
    at_most("waits", q.waits.len() as u64, 300)?;
    q.waits.keys().try_for_each(|model| plain("gpu model", model))?;
    for (model, left) in &q.gpus_left {
        let gpus = |(free, nodes): (&u32, &u32)| u64::from(*free).saturating_mul((*nodes).into());
        let sum = left.iter().map(gpus).fold(0, u64::saturating_add);
        at_most("gpus_left", sum, q.gpus_total.get(model).copied().unwrap_or(0).into())?;
    }
    let reclaimable = q.gpus_reclaimable.values().fold(0, |sum, n| sum + u64::from(*n));
    at_most("gpus_reclaimable", reclaimable, q.gpus_total.values().map(|n| u64::from(*n)).sum())?;
    at_most("gpus_buffer", q.gpus_buffer.into(), q.gpus_total.values().map(|n| u64::from(*n)).sum())?;
    at_most("reserved", q.reserved.len() as u64, 64)?;
    q.reserved.iter().try_for_each(check_reserved)?;
    at_most("keeps", q.keeps.len() as u64, 16)?;
    q.keeps.iter().try_for_each(check_keep)?;
    at_most("cpus_free", q.cpus_free.0, QueueReport::CPUS_FREE_MAX.0)?;
    at_most("memory_free", q.memory_free.0, CapacityReport::MEMORY_MAX.0)?;
    at_most("running", q.running.into(), COUNT_MAX)?;
    at_most("queued", q.queued.into(), COUNT_MAX)?;
    at_most("queued_gpus", q.queued_gpus, 1_000 * COUNT_MAX)?;
    plain("closed", q.closed.as_deref().unwrap_or(""))
}

fn check_keep(k: &KeepReport) -> Result<(), String> {
    at_most("priority", k.priority.into(), 100)?;
    at_most("GPUs kept", k.gpus, COUNT_MAX)?;
    at_most("GPU models", k.models.len() as u64, 64)?;
    k.models.iter().try_for_each(|model| plain("gpu model", model))
}

fn check_reserved(r: &ReservedReport) -> Result<(), String> {
    plain("tenant", &r.tenant)?;
    at_most("GPUs reserved", r.gpus.into(), COUNT_MAX)?;
    at_most("GPUs reserved and used", r.used.into(), COUNT_MAX)?;
    at_most("GPU models", r.idle.len() as u64, 64)?;
    r.idle.keys().try_for_each(|model| plain("gpu model", model))?;
    let idle = r.idle.values().fold(0, |sum, n| sum + u64::from(*n));
    at_most("GPUs reserved and idle", idle, r.gpus.into())
}

fn at_most(what: &str, value: u64, max: u64) -> Result<(), String> {
    if value > max { Err(format!("{what} is {value}, at most {max} can be")) } else { Ok(()) }
}

fn plain(what: &str, text: &str) -> Result<(), String> {
    let bad = text.len() > 512 || text.chars().any(char::is_control);
    if bad { Err(format!("{what} is too long or has control characters")) } else { Ok(()) }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn parse<T: DeserializeOwned>(key: &str, text: &str) -> Result<T, FacetError> {
    serde_json::from_str(text).map_err(|e| FacetError::Malformed(key.into(), e.to_string()))
}

/// Links in pages, so that what travels is the page in which a link has changed: the name at its other end says in
/// which one it is, whoever else comes or goes. A few links are one page.
fn link_pages(links: &[LinkSample]) -> Result<Vec<(String, String)>, FacetError> {
    Facet::Links(links.to_vec()).check().map_err(|what| FacetError::Absurd("links".into(), what))?;
    let items: Vec<String> = links
        .iter()
        .map(|l| json(&(&l.to, l.rtt_us, l.loss_ppm, l.bandwidth_bps, l.bandwidth_at, l.at, l.direct)))
        .collect();
    let add = |page: &mut String, item: &str| {
        page.push_str(if page.is_empty() { "[" } else { "," });
        page.push_str(item);
    };
    let by_name = if links.len() > LINKS_OF_ONE_PAGE { LINK_PAGES_MAX } else { 1 };
    let mut pages = vec![String::new(); by_name];
    for (link, item) in links.iter().zip(&items) {
        let hash = link.to.as_str().bytes().fold(0_u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        add(&mut pages[hash as usize % by_name], item);
    }
    if pages.iter().any(|page| page.len() > LINK_PAGE_BYTES) {
        // So many that they must be packed: then one after the other.
        pages = vec![String::new()];
        for item in &items {
            if pages.last().is_some_and(|page| page.len() + item.len() > LINK_PAGE_BYTES) {
                pages.push(String::new());
            }
            add(pages.last_mut().expect("it starts with one page"), item);
        }
    }
    for page in pages.iter_mut().filter(|page| page.is_empty()) {
        page.push('[');
    }
    if pages.len() > LINK_PAGES_MAX {
        return Err(FacetError::TooLarge("links".into(), pages.iter().map(String::len).sum()));
    }
    Ok(pages.into_iter().enumerate().map(|(i, page)| (format!("links.{i}"), page + "]")).collect())
}

/// chitchat slices the first byte off a key: one whose first character has more bytes makes it panic.
pub fn key_is_sane(key: &str) -> bool {
    key.len() <= KEY_BYTES_MAX
        && key.starts_with(|c: char| c.is_ascii_lowercase())
        && key
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'))
}

/// Where a value lands; all of it is signed.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The mesh.
    pub mesh: MeshId,
    /// Whose key.
    pub name: &'a str,
    /// In which incarnation.
    pub generation: u64,
    /// The key.
    pub key: &'a str,
    /// chitchat's version of the write.
    pub version: u64,
}

const CONTEXT: &str = "gossip facet 1";
/// Characters of a signature in base64 without padding.
const SIGNATURE_CHARS: usize = (SIGNATURE_BYTES * 8).div_ceil(6);

impl Place<'_> {
    fn signed_bytes(&self, text: &str) -> Vec<u8> {
        let mut out = self.mesh.0.to_vec();
        for number in [self.generation, self.version, self.name.len() as u64, self.key.len() as u64] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        for part in [self.name, self.key, text] {
            out.extend_from_slice(part.as_bytes());
        }
        out
    }

    /// The value to gossip: signature, then text.
    pub fn seal(&self, text: &str, sign: &dyn FacetSigner) -> String {
        BASE64_NOPAD.encode(&sign.sign_facet(CONTEXT, &self.signed_bytes(text))) + text
    }

    /// The text of a value, if the holder of the key put it just here.
    pub fn open<'v>(&self, value: &'v str, key: &PublicKey) -> Result<&'v str, FacetError> {
        let forged = || FacetError::Forged(self.key.into());
        let (signature, text) = value.split_at_checked(SIGNATURE_CHARS).ok_or_else(forged)?;
        let signature = BASE64_NOPAD.decode(signature.as_bytes()).map_err(|_| forged())?;
        if key.verify_bytes(CONTEXT, &self.signed_bytes(text), &signature) { Ok(text) } else { Err(forged()) }
    }
}

/// Signs with this peer's own key.
pub trait FacetSigner: Send + Sync + 'static {
    /// The signature of these bytes in this context.
    fn sign_facet(&self, context: &str, bytes: &[u8]) -> Vec<u8>;
}
impl FacetSigner for crate::transport::Identity {
    fn sign_facet(&self, context: &str, bytes: &[u8]) -> Vec<u8> {
        self.sign_bytes(context, bytes)
    }
}
impl FacetSigner for crate::transport::keys::SecretKey {
    fn sign_facet(&self, context: &str, bytes: &[u8]) -> Vec<u8> {
        self.sign_bytes(context, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Bytes;
    use crate::model::report::Item;
    use crate::transport::keys::SecretKey;

    fn queue(free: u32, total: u32) -> QueueReport {
        QueueReport {
            gpus_free: [("H100-80G".to_owned(), free)].into(),
            gpus_total: [("H100-80G".to_owned(), total)].into(),
            ..QueueReport::default()
        }
    }

    #[test]
    fn sane_facets_come_back_and_absurd_ones_do_not() {
        let good = Facet::Queue(queue(3, 8));
        let (key, text) = good.write().expect("sane").remove(0);
        assert_eq!(Facet::read(&key, &text), Ok(good));
        assert!(matches!(Facet::Queue(queue(9, 8)).write(), Err(FacetError::Absurd(..))));
        let mut many = queue(0, 8);
        many.running = 1_000_001;
        assert!(matches!(Facet::Queue(many).write(), Err(FacetError::Absurd(..))));
        assert!(matches!(Facet::read("queue", &text.replace(":3", ":-3")), Err(FacetError::Malformed(..))));
        assert!(matches!(Facet::read("queue", "[[[["), Err(FacetError::Malformed(..))));
        let mut left = queue(3, 8);
        left.gpus_left = [("H100-80G".to_owned(), [(u32::MAX, u32::MAX), (2, u32::MAX)].into())].into();
        assert!(
            matches!(Facet::Queue(left).write(), Err(FacetError::Absurd(..))),
            "and its sum overflows nothing"
        );
        let mut rude = queue(0, 8);
        rude.closed = Some("\u{1b}[2J".into());
        assert!(matches!(Facet::Queue(rude).write(), Err(FacetError::Absurd(..))));
        assert_eq!(Facet::read("power.v2", "{}"), Ok(Facet::Unknown));
    }

    #[test]
    fn oversize_and_foreign_keys_are_typed_errors() {
        let item = Item { name: "x".repeat(VALUE_BYTES_MAX), size: Bytes(1) };
        let big = Facet::Data(Inventory { items: vec![item], more: 0 });
        assert!(matches!(big.write(), Err(FacetError::TooLarge(..))));
        for bad in ["", "é", "Queue", "queue x", &"k".repeat(65), "1a"] {
            assert!(matches!(Facet::read(bad, "{}"), Err(FacetError::Key(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_full_inventory_fits_its_facet_and_an_absurd_one_is_refused() {
        let item =
            |i: u64| Item { name: format!("team/corpus-with-a-long-name-{i:04}"), size: Bytes(i << 30) };
        let full = Facet::Data(Inventory::of((0..5_000).map(item)));
        let (key, text) = full.write().expect("bounded by its maker").remove(0);
        assert_eq!((key.as_str(), Facet::read("data", &text)), ("data", Ok(full)));
        let wrong = Inventory { items: vec![Item { name: "a".into(), size: Bytes(u64::MAX) }], more: 0 };
        assert!(matches!(Facet::Images(wrong).write(), Err(FacetError::Absurd(..))));
        assert!(matches!(
            Facet::read("data", r#"{"items":[{"name":"a","size":-1}]}"#),
            Err(FacetError::Malformed(..))
        ));
        assert_eq!(Facet::read("data", r#"{"later":1}"#), Ok(Facet::Data(Inventory::default())));
    }

    #[test]
    fn all_that_a_large_slurm_says_of_its_nodes_fits_its_facet() {
        use crate::model::partitions::{NodeOf, NodeSet, SlurmReport};
        use crate::model::report::{NodeCapacity, NodesOut};
        let names: Vec<String> = (0..500).map(|n| format!("feature-of-a-rack-{n:04}")).collect();
        let of = NodeOf { partitions: &names, features: &names, up: true, gpus: 8 };
        let why = "x".repeat(500);
        let nodes = (0..20).map(|n| NodeCapacity {
            name: format!("a-node-with-a-long-name-{n:04}"),
            count: 512,
            gpu_model: Some("H100-80G".into()),
            gpus: 8,
            gpu_memory: Bytes::gib(80),
            cpus: crate::base::MilliCpu(192_000),
            memory: Bytes::gib(2_048),
            declared: false,
        });
        let mut capacity = CapacityReport {
            backend: "slurm".into(),
            region: "eu-central".into(),
            zone: "a".into(),
            labels: [("scheduler".to_owned(), "slurm".to_owned())].into(),
            price_milli: 2_000,
            pue_milli: 1_200,
            nodes: nodes.collect(),
            container_runtime: None,
            terms: Default::default(),
            nodes_out: NodesOut::of(names.iter().map(|n| (n.as_str(), why.as_str()))),
            slurm: SlurmReport::of([of].into_iter()),
        };
        let full = Facet::Capacity(capacity.clone());
        let (key, text) = full.write().expect("bounded by its maker").remove(0);
        assert_eq!(Facet::read(&key, &text), Ok(full));
        let rude = NodeSet { name: "\u{1b}[2J".into(), ..NodeSet::default() };
        capacity.slurm = Some(SlurmReport { features: vec![rude], ..SlurmReport::default() });
        assert!(matches!(Facet::Capacity(capacity.clone()).write(), Err(FacetError::Absurd(..))));
        (capacity.nodes, capacity.nodes_out) = (Vec::new(), NodesOut::default());
        capacity.slurm =
            Some(SlurmReport { partitions: vec![NodeSet::default(); 257], ..SlurmReport::default() });
        assert!(matches!(Facet::Capacity(capacity).write(), Err(FacetError::Absurd(..))));
    }

    /// Groups that differ in little may fill a value nearly alone.
    #[test]
    fn what_explains_gives_way_where_a_capacity_is_too_large() {
        use crate::model::partitions::{NodeOf, SlurmReport};
        use crate::model::report::{NodeCapacity, NodesOut};
        let names: Vec<String> = (0..500).map(|n| format!("feature-of-a-rack-{n:04}")).collect();
        let of = NodeOf { partitions: &names, features: &names, up: true, gpus: 8 };
        let why = "x".repeat(500);
        let group = |n: u32| NodeCapacity {
            name: format!("a-node-with-a-long-name-{n:04}"),
            count: 1,
            gpu_model: Some("H100-80G".into()),
            gpus: 8,
            gpu_memory: Bytes::gib(80),
            cpus: crate::base::MilliCpu(192_000),
            memory: Bytes(1 << 40 | u64::from(n)),
            declared: false,
        };
        let all = |groups| CapacityReport {
            backend: "slurm".into(),
            region: "r".into(),
            zone: String::new(),
            labels: Default::default(),
            price_milli: 0,
            pue_milli: 1_000,
            nodes: (0..groups).map(group).collect(),
            container_runtime: None,
            terms: Default::default(),
            nodes_out: NodesOut::of(names.iter().map(|n| (n.as_str(), why.as_str()))),
            slurm: SlurmReport::of([of].into_iter()),
        };
        let told = |groups| {
            let (key, text) = Facet::Capacity(all(groups)).write()?.remove(0);
            Facet::read(&key, &text)
        };
        for groups in [20, 60, 85] {
            let Ok(Facet::Capacity(c)) = told(groups) else { panic!("{groups}: {:?}", told(groups)) };
            let whole = all(groups);
            assert_eq!(c.nodes, whole.nodes);
            assert_eq!(c.slurm.is_some(), groups < 60, "{groups}");
            assert_eq!(c.nodes_out.nodes.len(), if groups < 85 { 24 } else { 0 }, "{groups}");
            assert_eq!(c.nodes_out.more, if groups < 85 { 476 } else { 500 }, "all are counted");
        }
        assert!(matches!(told(1_000), Err(FacetError::TooLarge(..))));
    }

    #[test]
    fn a_thousand_links_travel_in_pages() {
        let link = |i| LinkSample {
            to: PeerName::new(&format!("peer-{i}")).expect("a label"),
            rtt_us: 12_345,
            loss_ppm: 10,
            bandwidth_bps: Some(9_000_000_000),
            bandwidth_at: Some(WallTime(1_790_000_000_000)),
            at: WallTime(1_790_000_000_000),
            direct: true,
        };
        let links: Vec<_> = (0..1000).map(link).collect();
        let mut back = Vec::new();
        for (i, (key, text)) in Facet::Links(links.clone()).write().expect("it fits").into_iter().enumerate()
        {
            match Facet::read(&key, &text).expect("readable") {
                Facet::LinksPage(page, samples) if page == i => back.extend(samples),
                other => panic!("{other:?}"),
            }
        }
        back.sort_by_key(|l: &LinkSample| links.iter().position(|o| o.to == l.to));
        assert_eq!(back, links);
        // A link that changes, and one that comes, are one page each of eight.
        let before = Facet::Links(links[..100].to_vec()).write().expect("it fits");
        let mut more = links[..101].to_vec();
        more[3].rtt_us = 7;
        let after = Facet::Links(more).write().expect("it fits");
        assert_eq!((before.len(), after.len()), (8, 8));
        assert!(before.iter().zip(&after).filter(|(a, b)| a != b).count() <= 2);
        assert_eq!(Facet::Links(vec![]).write(), Ok(vec![("links.0".into(), "[]".into())]));
    }

    #[test]
    fn a_value_is_good_only_where_its_origin_put_it() {
        let (key, other) = (SecretKey::generate().expect("random"), SecretKey::generate().expect("random"));
        let place = Place { mesh: MeshId([1; 16]), name: "a", generation: 7, key: "queue", version: 3 };
        let value = place.seal("{}", &key);
        assert_eq!(place.open(&value, &key.public()), Ok("{}"));
        assert!(place.open(&value, &other.public()).is_err());
        assert!(Place { version: 4, ..place }.open(&value, &key.public()).is_err());
        assert!(Place { generation: 8, ..place }.open(&value, &key.public()).is_err());
        assert!(Place { key: "health", ..place }.open(&value, &key.public()).is_err());
        assert!(Place { name: "b", ..place }.open(&value, &key.public()).is_err());
        assert!(Place { mesh: MeshId([2; 16]), ..place }.open(&value, &key.public()).is_err());
        assert!(place.open("short", &key.public()).is_err());
        assert!(place.open(&"é".repeat(60), &key.public()).is_err(), "no panic inside a character");
    }
}
