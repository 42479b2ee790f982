//! What a place costs, what it holds, and what the policies weigh.

use super::keys::{DATASETS, IMAGES, PLACEMENT, WEIGHTS};
use super::read::{path, set, table};
use super::{Config, DatasetConfig};
use crate::base::Bytes;
use crate::model::input::{Field, Fields, Mistakes, words};
use crate::model::policy::{POLICIES, Term, Weights};
use crate::model::report::Item;
use crate::model::spec::limits::LIST_MAX;

/// Datasets or images of one cluster.
const HELD_MAX: usize = 4_096;
/// Largest size of one.
const SIZE_MAX: Bytes = Bytes(1 << 60);
/// Most USD per kWh or GB.
const USD_MILLI_MAX: u64 = 1_000_000;

pub(super) fn read(config: &mut Config, fields: &mut Fields, m: &mut Mistakes) {
    let terms = &mut config.terms;
    set(
        &mut terms.tariff_milli,
        fields.take("tariff_per_kwh", m).and_then(|f| f.milli(m, 0..=USD_MILLI_MAX)),
    );
    set(&mut terms.egress_milli, fields.take("egress_per_gb", m).and_then(|f| f.milli(m, 0..=USD_MILLI_MAX)));
    if let Some(field) = fields.take("egress_to", m) {
        for (region, field) in field.pairs(m, 256).unwrap_or_default() {
            if !words::place(&region) {
                field.wrong(m, format!("the region {}", words::PLACE));
            } else if let Some(milli) = field.milli(m, 0..=USD_MILLI_MAX) {
                terms.egress_to_milli.insert(region, milli);
            }
        }
    }
    if let Some(field) = fields.take("compliance", m) {
        let items = field.one_or_many(m, LIST_MAX).into_iter();
        terms.compliance = items
            .filter_map(|f| f.read(m, words::PLACE, |t| words::place(t).then(|| t.to_owned())))
            .collect();
    }
    if let Some(field) = fields.take("datasets", m) {
        let items = field.items(m, HELD_MAX).unwrap_or_default();
        config.datasets = items.into_iter().filter_map(|f| dataset(f, m)).collect();
        let names = config.datasets.iter().map(|d| d.name.as_str());
        twice("datasets", names, m);
    }
    if let Some(field) = fields.take("images", m) {
        let items = field.items(m, HELD_MAX).unwrap_or_default();
        config.images = items.into_iter().filter_map(|f| image(f, m)).collect();
        twice("images", config.images.iter().map(|i| i.name.as_str()), m);
    }
    if let Some(mut table) = table(fields, "placement", m) {
        for (name, policy) in POLICIES {
            let Some(mut fields) = table.take(name, m).and_then(|f| Fields::of(f, m)) else { continue };
            let weights = &mut config.policies.0[policy as usize];
            for term in Term::ALL {
                let most = u64::from(Weights::MAX_MILLI);
                let milli = fields.take(term.as_str(), m).and_then(|f| f.milli(m, 0..=most));
                set(&mut weights.0[term as usize], milli.and_then(|n| u32::try_from(n).ok()));
            }
            fields.finish(
                m,
                WEIGHTS,
                &[("price", "write cost"), ("idle", "write load"), ("time", "write start")],
            );
        }
        table.finish(m, PLACEMENT, &[]);
    }
}

fn twice<'a>(key: &str, names: impl Iterator<Item = &'a str>, m: &mut Mistakes) {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            let (value, want) = (Some(name.to_owned()), "is there twice: keep one of them".to_owned());
            m.add(crate::model::input::Mistake { key: key.to_owned(), line: None, value, want });
        }
    }
}

fn size(field: Field, m: &mut Mistakes) -> Option<Bytes> {
    field.read(m, words::SIZE, |t| t.parse::<Bytes>().ok().filter(|b| *b <= SIZE_MAX))
}

fn named(fields: &mut Fields, m: &mut Mistakes, want: &str, good: fn(&str) -> bool) -> Option<String> {
    let name = fields.take("name", m).and_then(|f| f.read(m, want, |t| good(t).then(|| t.to_owned())));
    if name.is_none() && !fields.had("name") {
        fields.missing(m, "name", "is missing");
    }
    name
}

fn dataset(field: Field, m: &mut Mistakes) -> Option<DatasetConfig> {
    let mut fields = Fields::of(field, m)?;
    let good = |t: &str| t.len() <= 512 && (words::name(t) || words::uri(t) || words::absolute(t));
    let want =
        "must be a name such as corpus-v2, or the URI or path that jobs write, of at most 512 characters";
    let name = named(&mut fields, m, want, good);
    let size = fields.take("size", m).and_then(|f| size(f, m));
    let path = fields.take("path", m).and_then(|f| path(f, m));
    if !fields.had("size") && !fields.had("path") {
        fields.missing(m, "size", "is missing: say how large it is, or give a path to measure");
    }
    fields.finish(m, DATASETS, &[("uri", "write name"), ("bytes", "write size")]);
    Some(DatasetConfig { name: name?, size, path })
}

fn image(field: Field, m: &mut Mistakes) -> Option<Item> {
    let mut fields = Fields::of(field, m)?;
    let want = "must be a container image such as registry.example.com/team/train:1.2";
    let name = named(&mut fields, m, want, words::image);
    let size = fields.take("size", m).and_then(|f| size(f, m));
    if !fields.had("size") {
        fields.missing(m, "size", "is missing: how large it is");
    }
    fields.finish(m, IMAGES, &[("image", "write name")]);
    Some(Item { name: name?, size: size? })
}
