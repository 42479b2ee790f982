//! Task groups of a job and what they send each other.

use super::keys::{GROUPS, TRAFFIC};
use super::parts;
use crate::base::Bytes;
use crate::model::Resources;
use crate::model::input::{Field, Fields, Mistakes, words};
use crate::model::spec::{Group, Groups, Traffic, limits};

/// Most bytes per second between two groups.
const RATE_MAX: Bytes = Bytes(1 << 50);

/// `groups` and `traffic`.
pub fn groups(fields: &mut Fields, m: &mut Mistakes) -> Groups {
    let mut out = Groups::default();
    let traffic = fields.take("traffic", m);
    let Some(field) = fields.take("groups", m) else {
        if let Some(field) = traffic {
            field.wrong(m, "is between groups: give groups, or remove it");
        }
        return out;
    };
    for key in ["resources", "nodes", "gpu"] {
        if let Some(field) = fields.take(key, m) {
            field.wrong(m, "is said by each group here: move it into groups");
        }
    }
    let whole = Field { path: field.path.clone(), node: field.node.clone() };
    for item in field.items(m, limits::GROUPS_MAX).unwrap_or_default() {
        out.list.extend(group(item, m));
    }
    let mut names: Vec<&str> = out.list.iter().map(|g| g.name.as_str()).collect();
    names.sort_unstable();
    if names.windows(2).any(|w| w[0] == w[1]) {
        whole.wrong(m, "two groups have one name: give each its own");
    }
    let nodes: u64 = out.list.iter().map(|g| u64::from(g.nodes)).sum();
    if out.list.is_empty() || nodes > u64::from(limits::NODES_MAX) {
        whole.wrong(
            m,
            format!("must have at least one group, and at most {} nodes in all", limits::NODES_MAX),
        );
    }
    for item in traffic.and_then(|f| f.items(m, limits::GROUPS_MAX * limits::GROUPS_MAX)).unwrap_or_default()
    {
        out.traffic.extend(one_traffic(item, &out.list, m));
    }
    out
}

fn group(item: Field, m: &mut Mistakes) -> Option<Group> {
    let mut fields = Fields::of(item, m)?;
    let name =
        fields.take("name", m).and_then(|f| f.read(m, words::NAME, |t| words::name(t).then(|| t.to_owned())));
    if name.is_none() && !fields.had("name") {
        fields.missing(m, "name", "is missing: a name for this group");
    }
    let nodes = fields.take("nodes", m).and_then(|f| f.whole32(m, 1..=limits::NODES_MAX)).unwrap_or(1);
    let resources = fields.take("resources", m).map_or_else(parts::no_resources, |f| parts::resources(f, m));
    fields.finish(m, GROUPS, &[("count", "write nodes"), ("gpus", "write resources: {gpus: 8}")]);
    Some(Group { name: name?, nodes, resources })
}

fn one_traffic(item: Field, groups: &[Group], m: &mut Mistakes) -> Option<Traffic> {
    let mut fields = Fields::of(item, m)?;
    let known = |t: &str| groups.iter().any(|g| g.name == t).then(|| t.to_owned());
    let mut end = |key: &str, m: &mut Mistakes| {
        let read =
            fields.take(key, m).and_then(|f| f.read(m, "must be the name of one of the groups", known));
        if read.is_none() && !fields.had(key) {
            fields.missing(m, key, "is missing: one of the two groups");
        }
        read
    };
    let (from, to) = (end("from", m), end("to", m));
    let rate = fields.take("rate", m).and_then(|f| {
        let want = format!("{} per second, at most {RATE_MAX}", words::SIZE);
        f.read(m, &want, |t| t.parse::<Bytes>().ok().filter(|b| *b <= RATE_MAX))
    });
    if rate.is_none() && !fields.had("rate") {
        fields.missing(m, "rate", "is missing: bytes per second, such as 200MiB");
    }
    fields.finish(m, TRAFFIC, &[("bandwidth", "write rate"), ("between", "write from and to")]);
    Some(Traffic { from: from?, to: to?, rate: rate? })
}

/// Needs and nodes of the largest group: what the cluster table of a job with groups is made for.
pub fn largest(groups: &Groups) -> Option<(Resources, u32)> {
    let size = |g: &&Group| (u64::from(g.resources.gpus) * u64::from(g.nodes), g.resources.cpus, g.nodes);
    groups.list.iter().max_by_key(size).map(|g| (g.resources.clone(), g.nodes))
}
