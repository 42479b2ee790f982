//! What placement must get right, each on a small view made by hand.

// tidy: long because each scenario is short and they share one way to make a cluster

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::base::WallTime;
use crate::base::{Bytes, MilliCpu, Rng, Span, StoreId};
use crate::core::testing::name;
use crate::model::policy::{Policies, Weights};
use crate::model::report::{
    CapacityReport, Inventory, Item, LinkSample, Liveness, MemberView, NodeCapacity, QueueReport, Report,
    Terms,
};
use crate::model::spec::{Communication, Group, Groups, Policy, Traffic};
use crate::model::spec_input::parse_spec;

const NOW: Instant = Instant(1_000_000_000);

fn node(model: &str, gpus: u32, count: u32) -> NodeCapacity {
    NodeCapacity {
        name: format!("n-{model}").to_lowercase(),
        count,
        gpu_model: Some(model.into()),
        gpus,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(512),
        declared: true,
    }
}

/// A cluster of these nodes with so many of its GPUs free.
fn cluster(peer: &str, nodes: Vec<NodeCapacity>, free: u32) -> MemberView {
    let mut total: BTreeMap<String, u32> = BTreeMap::new();
    for n in &nodes {
        *total.entry(n.gpu_model.clone().expect("a model")).or_default() += n.gpus * n.count;
    }
    let mut left = free;
    let mut gpus_free = total.clone();
    for n in gpus_free.values_mut() {
        *n = left.min(*n);
        left -= *n;
    }
    let nodes_count: u32 = nodes.iter().map(|n| n.count).sum();
    let capacity = CapacityReport {
        backend: "fake".into(),
        region: format!("r-{peer}"),
        zone: "z".into(),
        labels: BTreeMap::new(),
        price_milli: 2_000,
        pue_milli: 1_200,
        nodes,
        container_runtime: Some("podman".into()),
        terms: Terms::default(),
        nodes_out: Default::default(),
        slurm: None,
    };
    let queue = QueueReport {
        gpus_free,
        gpus_total: total,
        cpus_free: MilliCpu(64_000 * u64::from(nodes_count)),
        memory_free: Bytes::gib(512 * u64::from(nodes_count)),
        ..QueueReport::default()
    };
    let report = Report {
        peer: name(peer),
        store: StoreId([0; 16]),
        capacity: Some(capacity),
        queue: Some(queue),
        contact: None,
        health: None,
        build: None,
        links: Vec::new(),
        data: Some(Inventory::default()),
        images: Some(Inventory::default()),
        alerts: None,
        heard_at: NOW,
    };
    MemberView {
        peer: name(peer),
        store: StoreId([0; 16]),
        witness: false,
        liveness: Liveness::Alive,
        draining: false,
        report: Some(Arc::new(report)),
    }
}

fn edit(member: &mut MemberView, change: impl FnOnce(&mut Report)) {
    change(Arc::make_mut(member.report.as_mut().expect("it has reported")));
}
fn capacity(member: &mut MemberView, change: impl FnOnce(&mut CapacityReport)) {
    edit(member, |r| change(r.capacity.as_mut().expect("capacity")));
}
fn queue(member: &mut MemberView, change: impl FnOnce(&mut QueueReport)) {
    edit(member, |r| change(r.queue.as_mut().expect("queue")));
}
fn holds(member: &mut MemberView, dataset: &str, size: Bytes) {
    edit(member, |r| r.data = Some(Inventory::of([Item { name: dataset.into(), size }])));
}
fn linked(member: &mut MemberView, to: &str, bps: u64, rtt_ms: u64) {
    let link = LinkSample {
        to: name(to),
        rtt_us: rtt_ms * 1_000,
        loss_ppm: 0,
        bandwidth_bps: Some(bps),
        bandwidth_at: None,
        at: WallTime(0),
        direct: true,
    };
    edit(member, |r| r.links.push(link));
}

fn view(members: Vec<MemberView>) -> View {
    View { members: members.into_iter().map(|m| (m.peer.clone(), m)).collect(), isolated: false }
}

fn job(text: &str) -> JobSpec {
    parse_spec(format!("run: x\n{text}").as_bytes()).expect("a job").spec
}

fn rows(spec: &JobSpec, members: Vec<MemberView>) -> Vec<Candidate> {
    candidates(spec, &view(members), &BTreeMap::new(), NOW)
}
fn order(rows: &[Candidate]) -> Vec<&str> {
    rows.iter().map(|c| c.cluster.as_str()).collect()
}
fn codes(row: &Candidate) -> Vec<&str> {
    row.reasons.iter().map(Reason::code).collect()
}
fn best(spec: &JobSpec, members: Vec<MemberView>) -> Vec<Pick> {
    let mut index = Index::default();
    index.update(&Arc::new(view(members)));
    index.best(spec, &Ask { now: NOW, most: 8, salt: 0, waited: Span::ZERO, told: &[] })
}

#[test]
fn a_small_dataset_moves_and_a_large_one_waits() {
    // The data is in us-west, whose GPUs are all busy; east-china is idle. 1 Gbit/s between them.
    let mesh = |size: Bytes| {
        let mut west = cluster("us-west", vec![node("A100-80G", 8, 4)], 0);
        holds(&mut west, "s3://sets/corpus", size);
        linked(&mut west, "east-china", 1_000_000_000, 150);
        vec![west, cluster("east-china", vec![node("A100-80G", 8, 4)], 32)]
    };
    for policy in ["balanced", "data-first", "fastest"] {
        let spec = job(&format!(
            "resources: {{gpus: 8}}\ndata: s3://sets/corpus\nplacement: {{policy: {policy}}}\nmax_runtime: 2h"
        ));
        let small = best(&spec, mesh(Bytes(4_000_000_000)));
        assert_eq!(small[0].cluster.as_str(), "east-china", "{policy}: 4 GB move in half a minute");
        let large = mesh(Bytes(10_000_000_000_000));
        let rows = rows(&spec, large.clone());
        let score =
            |c: &str| rows.iter().find(|r| r.cluster.as_str() == c).and_then(|r| r.score).expect("a score");
        assert!(score("us-west") < score("east-china"), "{policy}: 10 TB take a day: {rows:#?}");
        // And where the queue is longer than the move, even 10 TB move.
        let mut jammed = large;
        queue(&mut jammed[0], |q| (q.queued, q.queued_gpus) = (1_000, 8_000));
        let scores = super::candidates(&spec, &view(jammed), &BTreeMap::new(), NOW);
        assert_eq!(scores[0].cluster.as_str(), "east-china", "{policy}: {scores:#?}");
    }
    let row = &rows(&job("resources: {gpus: 8}\ndata: s3://sets/corpus"), mesh(Bytes(4_000_000_000)))[0];
    let e = row.estimate.as_ref().expect("an estimate");
    assert_eq!((e.data, e.start, e.data_bytes), (Span::secs(32), Span::secs(32), Bytes(4_000_000_000)));
    assert_eq!(e.source.as_ref().map(PeerName::as_str), Some("us-west"));
}

#[test]
fn an_a100_of_80_gb_is_not_one_of_40() {
    let members = || {
        ["A100-40G", "A10", "A100-80G"]
            .map(|model| cluster(&format!("has-{}", model.to_lowercase()), vec![node(model, 1, 1)], 1))
            .to_vec()
    };
    let exact = rows(&job("resources: {gpus: \"A100-80G:1\"}"), members());
    assert!(exact[0].fits_now && exact[0].cluster.as_str() == "has-a100-80g", "{exact:#?}");
    assert!(exact[1..].iter().all(|r| !r.fits_ever && codes(r) == ["gpu-model"]), "{exact:#?}");
    assert_eq!(exact[1].reasons[0].to_string(), "wants A100-80G, has A10");
    let either = rows(&job("resources: {gpus: \"A100:1\"}"), members());
    assert_eq!(either.iter().filter(|r| r.fits_now).count(), 2, "a plain A100 takes either memory");
    let names = [("A800-40G", "A800-80G"), ("L4", "L40"), ("H100", "H200"), ("Ascend-910B", "Ascend-910A")];
    for (wanted, other) in names {
        let spec = job(&format!("resources: {{gpus: \"{wanted}:1\"}}"));
        let both = vec![cluster("a", vec![node(other, 8, 1)], 8), cluster("b", vec![node(wanted, 8, 1)], 8)];
        let rows = rows(&spec, both);
        assert_eq!((order(&rows), rows[1].fits_ever), (vec!["b", "a"], false), "{wanted}");
    }
    // All three kinds in one cluster: it fits there.
    let mixed = vec![cluster("m", ["A100-40G", "A10", "A100-80G"].map(|m| node(m, 1, 1)).to_vec(), 3)];
    assert!(rows(&job("resources: {gpus: \"A100-80G:1\"}"), mixed)[0].fits_now);
}

#[test]
fn every_reason_is_typed_and_in_words() {
    let base = || cluster("c", vec![node("H100", 8, 2)], 16);
    let one = |text: &str, change: &dyn Fn(&mut MemberView)| {
        let mut member = base();
        change(&mut member);
        let row = rows(&job(text), vec![member]).remove(0);
        let words = row.words();
        (codes(&row).join(" "), row.fits_ever, words)
    };
    let as_is = |_: &mut MemberView| {};
    let hard: [(&str, &str, &str); 12] = [
        ("placement: {clusters: [d]}", "not-chosen", "placement.clusters"),
        ("placement: {regions: [eu]}", "region", "\"r-c\"; wanted: eu"),
        ("placement: {zones: [y]}", "zone", "\"z\"; wanted: y"),
        ("placement: {labels: {rack: a}}", "label", "rack=a, has no such label"),
        ("placement: {compliance: [gdpr]}", "compliance", "gdpr; is in: none"),
        ("placement: {price_max: 1.5}", "price", "may pay 1.50 USD per GPU hour, costs 2.00 USD"),
        ("resources: {gpus: \"L40:1\"}", "gpu-model", "wants L40, has H100"),
        ("resources: {gpus: 9}", "gpus-per-node", "9 x GPU on one node, has 8"),
        ("resources: {gpus: 8}\nnodes: 3", "gpus-total", "wants 24 x GPU in all, has 16"),
        ("resources: {gpus: 1, cpus: 65}", "cpus", "wants 65 CPUs on one node, has 64"),
        ("resources: {gpus: 1, memory: 513GiB}", "memory", "wants 513 GiB of memory on one node"),
        ("resources: {gpus: 1, cpus: 40}\nnodes: 3", "shape", "room for 2 when empty"),
    ];
    for (text, code, words) in hard {
        let (codes, ever, said) = one(text, &as_is);
        assert!(codes == code && !ever && said.contains(words), "{text}: {codes}: {said}");
    }
    let (codes, ever, said) = one("data: corpus-v2", &as_is);
    assert!(codes == "data-absent" && !ever && said.contains("no cluster says that it holds it"), "{said}");
    let (codes, ever, _) =
        one("data: corpus-v2", &|m| edit(m, |r| r.data = Some(Inventory { items: vec![], more: 3 })));
    assert_eq!((codes.as_str(), ever), ("data-absent", true), "it may be among those not named");
    let (codes, ever, _) = one("image: a/b:1", &|m| capacity(m, |c| c.container_runtime = None));
    assert_eq!((codes.as_str(), ever), ("no-images", false));
    let (codes, ever, _) = one("", &|m| m.witness = true);
    assert!(codes.starts_with("witness") && !ever);
    type Change = &'static dyn Fn(&mut MemberView);
    let passing: [(&str, Change, &str); 9] = [
        ("lost", &|m| m.liveness = Liveness::Lost, "not heard of for long"),
        ("suspect", &|m| m.liveness = Liveness::Suspect, "not heard of lately"),
        ("drains", &|m| m.draining = true, "takes no new jobs"),
        ("closed", &|m| queue(m, |q| q.closed = Some("disk nearly full".into())), "disk nearly full"),
        ("stale", &|m| edit(m, |r| r.heard_at = NOW - Span::secs(200)), "3m 20s old"),
        ("gpus-busy", &|m| queue(m, |q| q.gpus_free = [("H100".into(), 3)].into()), "3 of 8 GPUs wanted"),
        ("cpus-busy", &|m| queue(m, |q| q.cpus_free = MilliCpu(500)), "0.5"),
        ("memory-busy", &|m| queue(m, |q| q.memory_free = Bytes(0)), "0 B of memory"),
        ("not-reported", &|m| m.report = None, "has not reported yet"),
    ];
    for (code, change, words) in passing {
        let (codes, ever, said) = one("resources: {gpus: 8, memory: 1GiB}", change);
        assert!(codes == code && ever && said.contains(words), "{code}: {codes}: {said}");
    }
}

/// Partitions and features of a batch script are held against what a Slurm says of itself, and against nothing else.
#[test]
fn a_slurm_that_lacks_a_scripts_partition_or_feature_is_none_for_it() {
    use crate::model::partitions::{NodeOf, SlurmReport};
    use crate::model::spec::Run;
    let names = |all: &str| all.split(',').map(str::to_owned).collect::<Vec<_>>();
    let script = |lines: &str| {
        let mut spec = job("resources: {gpus: 1}");
        spec.run = Run::Argv(vec!["/bin/sh".into(), "-c".into(), format!("#!/bin/sh\n{lines}\ntrue\n")]);
        spec
    };
    let slurm = |peer: &str, partitions: &str, features: &str| {
        let mut member = cluster(peer, vec![node("H100", 8, 2)], 16);
        let (partitions, features) = (names(partitions), names(features));
        let of = NodeOf { partitions: &partitions, features: &features, up: true, gpus: 8 };
        capacity(&mut member, |c| c.slurm = SlurmReport::of([of, of].into_iter()));
        member
    };
    let members = || {
        vec![
            slurm("big", "big,main", "ib,h100"),
            slurm("small", "main", "eth"),
            // It has not said, or is no Slurm.
            cluster("else", vec![node("H100", 8, 2)], 16),
        ]
    };
    for (lines, small, words) in [
        ("#SBATCH -p big", "partition", "its Slurm has no partition big; has main"),
        ("#SBATCH -C ib&h100", "feature", "no node of its Slurm has feature ib, h100; has eth"),
        ("#SBATCH -p main -C \"ib|eth\"", "", ""),
        ("#SBATCH -N 1", "", ""),
    ] {
        let spec = script(lines);
        let rows = rows(&spec, members());
        let of = |name: &str| rows.iter().find(|c| c.cluster.as_str() == name).expect("a row");
        assert_eq!(
            (codes(of("small")).join(" ").as_str(), of("small").fits_ever),
            (small, small.is_empty()),
            "{lines}"
        );
        assert!(of("small").words().contains(words), "{lines}: {}", of("small").words());
        assert!(of("big").fits_now && of("else").fits_now, "{lines}");
    }
    // One index for both: jobs that ask for other partitions are of another class.
    let mut index = Index::default();
    index.update(&Arc::new(view(members())));
    let small = name("small");
    for (lines, never) in
        [("", false), ("#SBATCH -p big", true), ("#SBATCH -p main", false), ("#SBATCH -C ib", true)]
    {
        assert_eq!(index.never(&script(lines), &small), never, "{lines}");
    }
    let ask = Ask { now: NOW, most: 6, salt: 0, waited: Span::ZERO, told: &[] };
    let picks = index.best(&script("#SBATCH -p big"), &ask);
    assert!(picks.iter().all(|p| p.cluster != small) && picks.len() == 2, "{picks:?}");
}

/// A small job fills up a node that is in use, also where another cluster has more free, so that gangs find nodes of their own.
#[test]
fn a_small_job_leaves_whole_nodes_to_those_that_need_them() {
    let left = |member: &mut MemberView, left: &[(u32, u32)]| {
        queue(member, |q| q.gpus_left = [("H100".into(), left.iter().copied().collect())].into());
    };
    let members = || {
        // One node is full and two are free.
        let idle = cluster("idle", vec![node("H100", 8, 3)], 16);
        let mut used = cluster("used", vec![node("H100", 8, 4)], 8);
        left(&mut used, &[(1, 2), (3, 2)]);
        vec![idle, used]
    };
    let first = |text: &str| best(&job(text), members())[0].cluster.to_string();
    assert_eq!(first("resources: {gpus: 1}"), "used");
    assert_eq!(first("resources: {gpus: 1}\nplacement: {policy: spread}"), "idle", "as it was asked for");
    assert_eq!(first("resources: {gpus: 3}\nnodes: 2"), "used");
    // It would have to break into a node: then rather where much is free.
    assert_eq!(first("resources: {gpus: 4}"), "idle");
    let gang = job("resources: {gpus: 4}\nnodes: 2");
    let rows = rows(&gang, members());
    assert_eq!((order(&rows), codes(&rows[1])), (vec!["idle", "used"], vec!["gpus-apart"]));
    assert!(
        rows[1].words().contains("8 GPUs are free, and not 4 together on 2 of its nodes"),
        "{}",
        rows[1].words()
    );
    assert!(rows[1].fits_ever && !rows[1].fits_now);
    let picks = best(&gang, members());
    assert_eq!(picks.iter().map(|p| p.fits_now).collect::<Vec<_>>(), [true, false]);
    // More said to be left than is free is not believed.
    let mut liar = cluster("liar", vec![node("H100", 8, 2)], 2);
    left(&mut liar, &[(u32::MAX, u32::MAX)]);
    assert!(!best(&job("resources: {gpus: 8}"), vec![liar])[0].fits_now);
}

#[test]
fn fifteen_jobs_land_ten_and_five() {
    // One peer places all of them before any report changes: what it gave out is deducted.
    let mut index = Index::default();
    let members = vec![cluster("a", vec![node("H100", 8, 2)], 10), cluster("b", vec![node("H100", 8, 2)], 5)];
    let shown = Arc::new(view(members));
    index.update(&shown);
    let spec = job("resources: {gpus: 1}");
    let mut landed: BTreeMap<String, u32> = BTreeMap::new();
    for i in 0..15u64 {
        let ask = Ask { now: NOW + Span::millis(i), most: 2, salt: i + 1, waited: Span::ZERO, told: &[] };
        let pick = index.best(&spec, &ask).remove(0);
        assert!(pick.fits_now, "{i}: {landed:?}");
        index.give(&pick.cluster, 1, ask.now);
        *landed.entry(pick.cluster.to_string()).or_default() += 1;
    }
    assert_eq!(landed, [("a".to_owned(), 10), ("b".to_owned(), 5)].into());
    let full = |index: &mut Index, now| {
        !index.best(&spec, &Ask { now, most: 1, salt: 0, waited: Span::ZERO, told: &[] })[0].fits_now
    };
    assert!(full(&mut index, NOW + Span::secs(1)), "the sixteenth waits");
    // A report that is not about the queue changes nothing; one that is says what is free now.
    let mut next = View::clone(&shown);
    edit(next.members.get_mut(&name("a")).expect("a"), |r| r.heard_at = NOW + Span::secs(2));
    index.update(&Arc::new(next.clone()));
    assert!(full(&mut index, NOW + Span::secs(3)));
    queue(next.members.get_mut(&name("a")).expect("a"), |q| q.gpus_free = [("H100".into(), 2)].into());
    index.update(&Arc::new(next));
    assert!(!full(&mut index, NOW + Span::secs(3)));
}

#[test]
fn absurd_reports_are_not_believed_and_break_nothing() {
    let mut liar = cluster("liar", vec![node("H100", 8, 1)], 8);
    queue(&mut liar, |q| {
        q.gpus_free = [("H100".into(), u32::MAX)].into();
        (q.queued, q.queued_gpus, q.running) = (u32::MAX, u64::MAX, u32::MAX);
        (q.cpus_free, q.memory_free) = (MilliCpu(u64::MAX), Bytes(u64::MAX));
    });
    let rows_of = rows(&job("resources: {gpus: 4}\nnodes: 2"), vec![liar.clone()]);
    assert!(rows_of[0].fits_now, "no more free than there is in all, and that is enough: {rows_of:#?}");
    let gang = rows(&job("resources: {gpus: 8}\nnodes: 2"), vec![liar.clone()]);
    assert_eq!(codes(&gang[0]), ["gpus-total"]);
    capacity(&mut liar, |c| {
        c.nodes = vec![NodeCapacity { count: u32::MAX, gpus: u32::MAX, ..node("H100", 1, 1) }; 3];
        (c.price_milli, c.pue_milli, c.terms.tariff_milli) = (u64::MAX, u32::MAX, u64::MAX);
    });
    holds(&mut liar, "s3://x", Bytes(u64::MAX));
    let honest = cluster("honest", vec![node("H100", 8, 1)], 8);
    for policy in ["balanced", "cheapest", "green", "fastest", "spread", "data-first"] {
        let text = format!(
            "resources: {{gpus: 8}}\ndata: s3://x\nmax_runtime: 10d\nplacement: {{policy: {policy}}}"
        );
        let rows = rows(&job(&text), vec![liar.clone(), honest.clone()]);
        assert!(rows.iter().all(|r| r.score.is_some_and(f64::is_finite)), "{policy}: {rows:#?}");
    }
}

#[test]
fn policies_choose_by_what_they_weigh() {
    let mut cheap = cluster("cheap", vec![node("H100", 8, 4)], 0);
    capacity(&mut cheap, |c| c.price_milli = 500);
    let mut near = cluster("near", vec![node("H100", 8, 4)], 8);
    holds(&mut near, "s3://big", Bytes(500_000_000_000));
    linked(&mut near, "cheap", 1_000_000_000, 50);
    linked(&mut near, "empty", 1_000_000_000, 50);
    capacity(&mut near, |c| (c.price_milli, c.pue_milli) = (4_000, 1_600));
    let mut empty = cluster("empty", vec![node("H100", 8, 4)], 32);
    capacity(&mut empty, |c| (c.price_milli, c.pue_milli) = (3_000, 1_050));
    let members = vec![cheap, near, empty];
    for (policy, wanted) in [
        ("cheapest", "cheap"),
        ("fastest", "near"),
        ("data-first", "near"),
        ("spread", "empty"),
        ("green", "empty"),
    ] {
        let text = format!(
            "resources: {{gpus: 8}}\ndata: s3://big\nmax_runtime: 10h\nplacement: {{policy: {policy}}}"
        );
        let rows = rows(&job(&text), members.clone());
        let least = rows.iter().min_by(|a, b| a.score.partial_cmp(&b.score).expect("finite")).expect("rows");
        assert_eq!(least.cluster.as_str(), wanted, "{policy}: {rows:#?}");
        let added: f64 = least.terms.values().sum();
        assert!((added - least.score.expect("a score")).abs() < 1e-9, "the terms add up: {least:#?}");
    }
}

#[test]
fn egress_is_paid_where_the_data_leaves() {
    let mut holder = cluster("holder", vec![node("H100", 8, 1)], 0);
    holds(&mut holder, "s3://set", Bytes(1_000_000_000_000));
    capacity(&mut holder, |c| {
        c.terms.egress_milli = 90;
        c.terms.egress_to_milli = [("r-peer-b".to_owned(), 20)].into();
    });
    let members = vec![
        holder,
        cluster("peer-a", vec![node("H100", 8, 1)], 8),
        cluster("peer-b", vec![node("H100", 8, 1)], 8),
    ];
    let rows = rows(&job("resources: {gpus: 1}\ndata: s3://set\nplacement: {policy: cheapest}"), members);
    let usd = |c: &str| {
        let row = rows.iter().find(|r| r.cluster.as_str() == c).expect("a row");
        row.estimate.as_ref().expect("an estimate").egress_usd.round()
    };
    assert_eq!((usd("holder"), usd("peer-a"), usd("peer-b")), (0.0, 90.0, 20.0), "{rows:#?}");
    let assumed =
        rows.iter().filter(|r| r.estimate.as_ref().is_some_and(|e| e.assumed)).map(|r| r.cluster.as_str());
    let assumed: std::collections::BTreeSet<&str> = assumed.collect();
    assert_eq!(assumed, ["peer-a", "peer-b"].into(), "no link was measured; the holder needs none");
}

#[test]
fn an_image_that_is_there_starts_sooner() {
    let mut has = cluster("z-has", vec![node("H100", 8, 1)], 8);
    edit(&mut has, |r| {
        r.images = Some(Inventory::of([Item { name: "a/b:1".into(), size: Bytes(10_000_000_000) }]))
    });
    let members = vec![has, cluster("a-not", vec![node("H100", 8, 1)], 8)];
    let rows = rows(&job("resources: {gpus: 1}\nimage: a/b:1"), members);
    let image = |i: usize| rows[i].estimate.as_ref().map(|e| (e.image, e.image_bytes));
    assert_eq!(order(&rows), ["z-has", "a-not"]);
    assert_eq!(image(0), Some((Span::ZERO, Bytes(0))));
    assert_eq!(image(1), Some((Span::secs(80), Bytes(10_000_000_000))), "10 GB over 1 Gbit/s");
}

#[test]
fn waiting_is_believed_no_longer_than_it_said() {
    // At home it would start in a quarter of an hour; moving the data takes an hour.
    let mut home = cluster("home", vec![node("H100", 8, 4)], 0);
    queue(&mut home, |q| q.queued_gpus = 0);
    holds(&mut home, "s3://set", Bytes(450_000_000_000));
    let members = vec![home, cluster("away", vec![node("H100", 8, 4)], 32)];
    let spec = job("resources: {gpus: 8}\ndata: s3://set\nplacement: {policy: fastest}");
    let mut index = Index::default();
    index.update(&Arc::new(view(members)));
    let mut score = |waited: Span| {
        let picks = index.best(&spec, &Ask { now: NOW, most: 2, salt: 0, waited, told: &[] });
        let of = |c: &str| picks.iter().find(|p| p.cluster.as_str() == c).map(|p| p.score).expect("a pick");
        of("home") < of("away")
    };
    assert!(score(Span::ZERO), "waiting is better");
    assert!(score(Span::secs(1_800)), "still, since the move takes longer than was waited");
    assert!(!score(Span::secs(4_000)), "now the move would have been done");
}

#[test]
fn what_a_cluster_says_of_its_queue_is_believed() {
    let members = |waits: u64| {
        let mut busy = cluster("busy", vec![node("H100", 8, 1)], 0);
        queue(&mut busy, |q| {
            q.waits = [("H100".to_owned(), Span::secs(waits)), (String::new(), Span::secs(9))].into()
        });
        vec![busy]
    };
    let wait = |text: &str, waits: u64| {
        let row = rows(&job(text), members(waits)).remove(0);
        row.estimate.expect("an estimate").wait.as_millis().div_ceil(1_000)
    };
    assert_eq!(wait("resources: {gpus: 1}", 60), 60);
    assert_eq!(wait("resources: {gpus: 4}", 60), 240, "four have to come free");
    assert_eq!(wait("resources: {gpus: 1}", 0), 450, "nothing said: an hour's runs over eight GPUs");
    // Of this very job: that counts before all.
    let mut index = Index::default();
    index.update(&Arc::new(view(members(60))));
    let told = [(name("busy"), Span::secs(7))];
    let row = super::explained(&mut index, &job("resources: {gpus: 4}"), NOW, &told).remove(0);
    assert_eq!(row.estimate.map(|e| e.wait.as_millis().div_ceil(1_000)), Some(7));
}

#[test]
fn a_kept_index_says_what_a_fresh_one_says() {
    let mut rng = Rng::new(7);
    let models = ["H100", "A100-80G", "A100-40G", "L4"];
    let mut members: Vec<MemberView> = (0..40)
        .map(|i| {
            let nodes = vec![node(models[i % 4], 8, 2), node(models[(i / 4) % 4], 4, 1)];
            cluster(&format!("c{i:02}"), nodes, rng.below(20) as u32)
        })
        .collect();
    let specs = [
        job("resources: {gpus: 4}"),
        job("resources: {gpus: \"A100:8\"}\nnodes: 2"),
        job("resources: {cpus: 8}"),
        job("resources: {gpus: 1}\ndata: s3://set\nplacement: {policy: cheapest}"),
        job("resources: {gpus: 2}\nimage: a/b:1\nplacement: {policy: spread}"),
    ];
    let mut kept = Index::default();
    for step in 0..400u64 {
        let i = rng.below(40) as usize;
        let roll = rng.below(100);
        let m = &mut members[i];
        match rng.below(7) {
            0 => m.liveness = [Liveness::Alive, Liveness::Suspect, Liveness::Lost][(roll % 3) as usize],
            1 => m.draining = roll > 70,
            2 => queue(m, |q| q.gpus_free.values_mut().for_each(|n| *n = (roll % 9) as u32)),
            3 => holds(m, "s3://set", Bytes(roll << 30)),
            4 => linked(m, &format!("c{:02}", roll % 40), (roll + 1) * 10_000_000, 10),
            5 => capacity(m, |c| c.price_milli = roll * 100),
            _ => capacity(m, |c| c.nodes[0].gpu_model = Some(models[(roll % 4) as usize].into())),
        }
        let shown = Arc::new(view(members.clone()));
        kept.update(&shown);
        let mut fresh = Index::default();
        fresh.update(&shown);
        for spec in &specs {
            let ask = Ask { now: NOW, most: 6, salt: step, waited: Span::ZERO, told: &[] };
            let (a, b) = (kept.best(spec, &ask), fresh.best(spec, &ask));
            assert_eq!(a, b, "step {step}");
            assert_eq!(kept.fits_somewhere(spec), fresh.fits_somewhere(spec));
            let plain = Ask { salt: 0, ..ask };
            let picks: Vec<PeerName> = kept.best(spec, &plain).into_iter().map(|p| p.cluster).collect();
            let told = kept.explain(spec, NOW, &[]).into_iter().filter(|e| e.fits_ever);
            let reached = |e: &Explained| {
                let m = &shown.members[&e.cluster];
                m.liveness != Liveness::Lost && !m.draining
            };
            let told: Vec<PeerName> = told.filter(reached).map(|e| e.cluster).take(6).collect();
            assert_eq!(picks, told, "step {step}: what is explained is what is done");
        }
    }
}

#[test]
fn other_weights_count_at_once() {
    let mut dear = cluster("dear", vec![node("H100", 8, 1)], 8);
    capacity(&mut dear, |c| c.price_milli = 9_000);
    let mut busy = cluster("cheap", vec![node("H100", 8, 1)], 4);
    capacity(&mut busy, |c| c.price_milli = 100);
    let mut index = Index::default();
    index.update(&Arc::new(view(vec![dear, busy])));
    let spec = job("resources: {gpus: 1}");
    let ask = Ask { now: NOW, most: 1, salt: 0, waited: Span::ZERO, told: &[] };
    assert_eq!(index.best(&spec, &ask)[0].cluster.as_str(), "cheap");
    let mut policies = Policies::default();
    policies.0[Policy::Balanced as usize] = Weights([0, 0, 0, 0, 0, 1_000]);
    index.set_policies(policies);
    assert_eq!(index.best(&spec, &ask)[0].cluster.as_str(), "dear", "only load counts now");
}

mod plans {
    use super::super::groups::{Link, Plan, Problem};
    use super::*;

    /// A random problem: clusters on a line, room for a few nodes each.
    fn solve(seed: u64, groups: usize, sites: usize, brute: bool) -> Option<Plan> {
        let mut rng = Rng::new(seed);
        let place: Vec<f64> = (0..sites).map(|_| rng.unit() * 100.0).collect();
        let need: Vec<u64> = (0..groups).map(|_| 1 + rng.below(3)).collect();
        let room: Vec<u64> = (0..sites).map(|_| 2 + rng.below(4)).collect();
        let mut traffic = Vec::new();
        for a in 0..groups {
            for b in a + 1..groups {
                if rng.chance(0.5) {
                    traffic.push((a, b, rng.unit() * 1e8));
                }
            }
        }
        let price: Vec<f64> = (0..sites).map(|_| rng.unit() * 0.01).collect();
        let link = |a: usize, b: usize| {
            let far = (place[a] - place[b]).abs();
            Link { bps: 1e10 / (1.0 + far), rtt_s: far / 1e3 }
        };
        let fits = |s: usize, there: &[usize]| there.iter().map(|g| need[*g]).sum::<u64>() <= room[s];
        let cost = |_: usize, s: usize| price[s];
        let problem = Problem {
            groups,
            sites,
            traffic: &traffic,
            together: false,
            cost: &cost,
            link: &link,
            room: &fits,
        };
        if !brute {
            return problem.solve();
        }
        // Every assignment, without any cleverness.
        let mut best: Option<Plan> = None;
        for code in 0..(sites as u64).pow(groups as u32) {
            let at: Vec<usize> =
                (0..groups).map(|g| (code / (sites as u64).pow(g as u32) % sites as u64) as usize).collect();
            let on = |s: usize| (0..groups).filter(|g| at[*g] == s).collect::<Vec<_>>();
            if !(0..sites).all(|s| fits(s, &on(s))) {
                continue;
            }
            let mut by_link: BTreeMap<(usize, usize), f64> = BTreeMap::new();
            for (a, b, rate) in &traffic {
                if at[*a] != at[*b] {
                    *by_link.entry((at[*a].min(at[*b]), at[*a].max(at[*b]))).or_default() += rate;
                }
            }
            let paid: f64 = by_link
                .iter()
                .map(|((a, b), rate)| {
                    let share = rate * 8.0 / link(*a, *b).bps;
                    share + link(*a, *b).rtt_s + if share > 1.0 { 100.0 * share } else { 0.0 }
                })
                .sum();
            let total = paid + at.iter().map(|s| price[*s]).sum::<f64>();
            if best.as_ref().is_none_or(|b| total < b.cost) {
                best = Some(Plan { sites: at, cost: total, exact: true });
            }
        }
        best
    }

    #[test]
    fn small_plans_are_exact() {
        for seed in 0..60 {
            let (ours, brute) = (solve(seed, 4, 5, false), solve(seed, 4, 5, true));
            let cost = |p: &Option<Plan>| p.as_ref().map(|p| (p.cost * 1e9).round());
            assert_eq!(cost(&ours), cost(&brute), "seed {seed}");
            assert!(ours.is_none_or(|p| p.exact));
        }
    }

    #[test]
    fn large_plans_are_found_fast_and_alike() {
        let found =
            (0..10).filter_map(|seed| solve(seed, 12, 20, false).map(|p| (seed, p))).collect::<Vec<_>>();
        assert!(found.len() >= 5, "{} fit", found.len());
        for (seed, plan) in found {
            assert!(!plan.exact);
            assert_eq!(Some(plan), solve(seed, 12, 20, false), "equal input, equal plan");
        }
    }

    fn group(name: &str, nodes: u32, gpus: u32) -> Group {
        Group { name: name.into(), nodes, resources: crate::model::Resources { gpus, ..job("").resources } }
    }

    #[test]
    fn groups_that_talk_much_stay_together() {
        let mut a = cluster("a", vec![node("H100", 8, 2)], 16);
        linked(&mut a, "b", 10_000_000_000, 5);
        linked(&mut a, "c", 10_000_000_000, 200);
        let mut b = cluster("b", vec![node("H100", 8, 2)], 16);
        linked(&mut b, "c", 10_000_000_000, 200);
        let c = cluster("c", vec![node("H100", 8, 4)], 32);
        let mut index = Index::default();
        index.update(&Arc::new(view(vec![a.clone(), b.clone()])));
        let rate = |from: &str, to: &str, mib: u64| Traffic {
            from: from.into(),
            to: to.into(),
            rate: Bytes::mib(mib),
        };
        let mut spec = job("communication: async");
        spec.groups = Groups {
            list: vec![group("w", 1, 8), group("x", 1, 8), group("y", 1, 8), group("z", 1, 8)],
            traffic: vec![rate("w", "y", 500), rate("x", "z", 500), rate("w", "x", 1)],
        };
        let plan = index.plan_groups(&spec);
        let at = |g: &str| plan.groups.iter().find(|(n, _)| n == g).map(|(_, c)| c.clone()).expect("placed");
        assert!(plan.exact && at("w") == at("y") && at("x") == at("z") && at("w") != at("x"), "{plan:?}");
        assert_eq!((plan.apart.len(), plan.apart[0].2), (1, 1 << 20), "only the thin traffic leaves");
        assert!(plan.summary().contains("w, y at"), "{}", plan.summary());
        // In sync it stays in one, and only c is large enough.
        spec.communication = Communication::Sync;
        assert!(index.plan_groups(&spec).why_not.is_some_and(|why| why.contains("one cluster")));
        index.update(&Arc::new(view(vec![a, b, c])));
        let plan = index.plan_groups(&spec);
        assert!(
            plan.groups.iter().all(|(_, cluster)| cluster.as_str() == "c") && plan.apart.is_empty(),
            "{plan:?}"
        );
    }
}
