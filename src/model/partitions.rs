//! What a Slurm below sorts its nodes by, partitions and features, and what a batch script asks of them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sbatch;
use super::spec::Run;

/// A partition or a feature.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeSet {
    /// Its name.
    pub name: String,
    /// Nodes that are of it,
    pub nodes: u32,
    /// of which so many may run jobs now,
    pub up: u32,
    /// with so many GPUs together.
    pub gpus: u32,
}

/// Part of a capacity report: a Slurm's partitions and its nodes' features. Bounded, the first by name, and it says how many
/// more there are, so that nobody takes "not named here" for "not there". An empty list says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SlurmReport {
    /// Partitions,
    pub partitions: Vec<NodeSet>,
    /// and how many more there are.
    pub partitions_more: u32,
    /// Features,
    pub features: Vec<NodeSet>,
    /// and how many more there are.
    pub features_more: u32,
}

/// One node, for the report.
#[derive(Debug, Clone, Copy)]
pub struct NodeOf<'a> {
    /// Its partitions.
    pub partitions: &'a [String],
    /// Its features.
    pub features: &'a [String],
    /// It may run jobs.
    pub up: bool,
    /// Its GPUs.
    pub gpus: u32,
}

impl SlurmReport {
    /// Most partitions, and most features, that are named.
    pub const NAMED_MAX: usize = 48;
    /// Bytes of a name; what has a longer one is not named.
    pub const NAME_MAX: usize = 100;
    /// Bytes of all names of partitions, and of features: a facet's value is bounded, and has more to say.
    pub const NAMES_MAX: usize = 1_000;

    /// Of these nodes. None where there is none: what is there is not known.
    pub fn of<'a>(nodes: impl Iterator<Item = NodeOf<'a>>) -> Option<Self> {
        let (mut partitions, mut features) = (BTreeMap::new(), BTreeMap::new());
        let mut any = false;
        for node in nodes {
            any = true;
            for (names, sets) in [(node.partitions, &mut partitions), (node.features, &mut features)] {
                let mut names: Vec<&String> = names.iter().collect();
                names.sort_unstable();
                names.dedup();
                for name in names {
                    let set: &mut NodeSet = sets.entry(name.clone()).or_default();
                    set.nodes = set.nodes.saturating_add(1);
                    if node.up {
                        set.up = set.up.saturating_add(1);
                        set.gpus = set.gpus.saturating_add(node.gpus);
                    }
                }
            }
        }
        let ((partitions, partitions_more), (features, features_more)) = (first(partitions), first(features));
        any.then_some(Self { partitions, partitions_more, features, features_more })
    }
}

fn first(sets: BTreeMap<String, NodeSet>) -> (Vec<NodeSet>, u32) {
    let plain = |name: &str| name.len() <= SlurmReport::NAME_MAX && !name.chars().any(char::is_control);
    let all = sets.len();
    let mut bytes = 0;
    let fits = |(name, _): &(String, NodeSet)| {
        bytes += name.len();
        bytes <= SlurmReport::NAMES_MAX
    };
    let named =
        sets.into_iter().filter(|(name, _)| plain(name)).take(SlurmReport::NAMED_MAX).take_while(fits);
    let named: Vec<NodeSet> = named.map(|(name, set)| NodeSet { name, ..set }).collect();
    let more = u32::try_from(all - named.len()).unwrap_or(u32::MAX);
    (named, more)
}

/// What the `#SBATCH` lines of a script ask of partitions and features.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs {
    /// Partitions, each of which must be there.
    pub partitions: Vec<String>,
    /// `--constraint` as it is written.
    pub constraint: Option<String>,
}

impl Needs {
    /// Of a job. None where it asks for none.
    pub fn of(run: &Run) -> Option<Self> {
        let directives = sbatch::directives(sbatch::batch_script(run)?).0;
        let last = |name: &str| {
            let value = directives.iter().rev().find(|d| d.name == name).map(|d| d.value.trim());
            value.filter(|v| !v.is_empty())
        };
        let partitions = last("partition").into_iter().flat_map(|p| p.split(','));
        let needs = Self {
            partitions: partitions.filter(|p| !p.is_empty()).map(str::to_owned).collect(),
            constraint: last("constraint").map(str::to_owned),
        };
        (needs != Self::default()).then_some(needs)
    }

    /// A script that asks for the same and does nothing: jobs with equal ones are alike as far as their place goes.
    pub fn script(&self) -> String {
        let mut text = String::new();
        if !self.partitions.is_empty() {
            text.push_str(&format!("#SBATCH --partition='{}'\n", self.partitions.join(",")));
        }
        if let Some(constraint) = &self.constraint {
            text.push_str(&format!("#SBATCH --constraint='{constraint}'\n"));
        }
        text
    }

    /// Partitions that are asked for and certainly not there.
    pub fn partitions_missing(&self, at: &SlurmReport) -> Vec<String> {
        if at.partitions.is_empty() || at.partitions_more > 0 {
            return Vec::new();
        }
        let known = |name: &str| at.partitions.iter().any(|p| p.name == name);
        self.partitions.iter().filter(|p| !known(p)).cloned().collect()
    }

    /// Features without which the constraint certainly cannot hold. What needs them on one node, or so many nodes, is
    /// Slurm's to judge.
    pub fn features_missing(&self, at: &SlurmReport) -> Vec<String> {
        let all = !at.features.is_empty() && at.features_more == 0;
        let Some(text) = self.constraint.as_deref().filter(|_| all) else {
            return Vec::new();
        };
        let names: Vec<&str> = features(text).collect();
        let known = |name: &str| at.features.iter().any(|f| f.name == name);
        // Of what is joined with "or", one is enough.
        if text.contains('|') && names.iter().any(|n| known(n)) {
            return Vec::new();
        }
        names.into_iter().filter(|n| !known(n)).map(str::to_owned).collect()
    }
}

/// The names in `[(a|b)&c*2,d]`.
fn features(text: &str) -> impl Iterator<Item = &str> {
    let names = text.split(|c: char| "&|,()[]".contains(c) || c.is_whitespace());
    names.map(|n| n.split('*').next().unwrap_or_default()).filter(|n| !n.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn partitions_and_features_are_counted_and_bounded() {
        let (main, both) = (names(&["main"]), names(&["main", "low", "low"]));
        let (fast, none) = (names(&["ib", "fast"]), Vec::new());
        let node = |partitions, features, up| NodeOf { partitions, features, up, gpus: 4 };
        let nodes = [node(&main, &fast, true), node(&both, &none, true), node(&both, &fast, false)];
        let report = SlurmReport::of(nodes.into_iter()).expect("nodes");
        let set = |name: &str, nodes, up, gpus| NodeSet { name: name.into(), nodes, up, gpus };
        assert_eq!(report.partitions, [set("low", 2, 1, 4), set("main", 3, 2, 8)]);
        assert_eq!(report.features, [set("fast", 2, 1, 4), set("ib", 2, 1, 4)]);
        assert_eq!(SlurmReport::of(std::iter::empty()), None, "nothing is known");
        let many: Vec<String> = (0..100).map(|n| format!("f{n:03}")).chain(["x".repeat(101)]).collect();
        let report = SlurmReport::of([node(&none, &many, true)].into_iter()).expect("a node");
        assert_eq!((report.features.len(), report.features_more), (48, 53));
        let long: Vec<String> = (0..20).map(|n| format!("{}{n:03}", "x".repeat(97))).collect();
        let report = SlurmReport::of([node(&long, &none, true)].into_iter()).expect("a node");
        assert_eq!((report.partitions.len(), report.partitions_more), (10, 10));
        // Fields of later versions, and none at all, are read.
        let read: SlurmReport = serde_json::from_str(r#"{"later": 1}"#).expect("read");
        assert_eq!(read, SlurmReport::default());
    }

    #[test]
    fn what_lines_ask_for_is_missing_only_where_it_certainly_is() {
        let needs = |lines: &str| Needs::of(&Run::Script(format!("#!/bin/sh\n{lines}\ntrue\n")));
        assert_eq!(needs("#SBATCH -N 2"), None);
        assert_eq!(needs("# -p main"), None);
        assert_eq!(Needs::of(&Run::Image), None);
        let of = |all: &[&str]| {
            let set = |n: &&str| NodeSet { name: (*n).to_owned(), nodes: 1, up: 0, gpus: 0 };
            all.iter().map(set).collect::<Vec<_>>()
        };
        let at = SlurmReport {
            partitions: of(&["low", "main"]),
            features: of(&["ib", "a100"]),
            ..SlurmReport::default()
        };
        for (line, partitions, missing) in [
            ("-p main", "", ""),
            ("--partition=low,main", "", ""),
            ("-p main,big,huge", "big,huge", ""),
            ("-p big -p main", "", ""),
            ("-C ib", "", ""),
            ("-C ib&fast", "", "fast"),
            ("--constraint=ib,slow", "", "slow"),
            ("-C \"fast|ib\"", "", ""),
            ("-C fast|slow", "", "fast,slow"),
            ("-C [rack1*2&ib*4]", "", "rack1"),
            ("-C (h100|a100)&ib", "", ""),
            ("-p big -C h100", "big", "h100"),
        ] {
            let needs = needs(&format!("#SBATCH {line}")).expect("asks for something");
            assert_eq!(needs.partitions_missing(&at).join(","), partitions, "{line}");
            assert_eq!(needs.features_missing(&at).join(","), missing, "{line}");
            // What is kept of it says the same.
            assert_eq!(Needs::of(&Run::Script(needs.script())), Some(needs.clone()), "{line}");
            // What was cut, or not said, is not known.
            let cut = SlurmReport { partitions_more: 1, features_more: 1, ..at.clone() };
            for less in [cut, SlurmReport::default()] {
                let missing = (needs.partitions_missing(&less), needs.features_missing(&less));
                assert_eq!(missing, (Vec::new(), Vec::new()), "{line}: {less:?}");
            }
        }
    }
}
