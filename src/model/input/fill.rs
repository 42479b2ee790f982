//! Readers of what job files and configurations have in common: durations, cores, sizes, labels.

use std::collections::BTreeMap;

use super::{Field, Mistakes, Value, words};
use crate::base::{Bytes, MilliCpu, Span};
use crate::model::spec::limits;

/// Most CPU of one node: 10,000 cores.
pub const CPU_MAX: MilliCpu = MilliCpu(10_000_000);
/// Most memory of one node: 1 PiB.
pub const MEMORY_MAX: Bytes = Bytes(1 << 50);
/// A duration inside a range.
pub fn span(field: Field, m: &mut Mistakes, low: Span, high: Span) -> Option<Span> {
    let want = span_want(low, high);
    field.read(m, &want, |t| t.parse::<Span>().ok().filter(|s| (low..=high).contains(s)))
}

/// What such a duration must be.
pub fn span_want(low: Span, high: Span) -> String {
    format!("{}, from {} to {}", words::DURATION, words::span_text(low), words::span_text(high))
}

/// Cores as a number, or text such as `500m`.
pub fn cpus(field: Field, m: &mut Mistakes) -> Option<MilliCpu> {
    let read = match &field.node.value {
        Value::Int(_) | Value::Float(_) => field.node.spelling.parse::<MilliCpu>().ok(),
        Value::Text(text) => text.parse().ok(),
        _ => None,
    };
    let good = read.filter(|c| (MilliCpu(1)..=CPU_MAX).contains(c));
    if good.is_none() {
        field.wrong(m, "must be a number of cores such as 4, 0.5 or 500m, at most 10000");
    }
    good
}

/// A size with a unit.
pub fn memory(field: Field, m: &mut Mistakes) -> Option<Bytes> {
    let zero = matches!(field.node.value, Value::Int(0));
    if zero {
        return Some(Bytes(0));
    }
    let want = format!("{}, at most {MEMORY_MAX}", words::SIZE);
    field.read(m, &want, |t| {
        let unit = t.trim().ends_with(|c: char| c.is_ascii_alphabetic());
        t.parse::<Bytes>().ok().filter(|b| unit && *b <= MEMORY_MAX)
    })
}

/// Labels: key and value, both of a small alphabet.
pub fn labels(field: Field, m: &mut Mistakes) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for (key, field) in field.pairs(m, limits::LIST_MAX).unwrap_or_default() {
        if !words::label_key(&key) {
            field.wrong(m, format!("the key {}", words::LABEL_KEY));
        } else if let Some(value) =
            field.read(m, words::LABEL_VALUE, |t| words::label_value(t).then(|| t.to_owned()))
        {
            out.insert(key, value);
        }
    }
    out
}
