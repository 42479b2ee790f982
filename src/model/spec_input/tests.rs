//! What a job file may say, and what is said about a wrong one.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::base::{Bytes, MilliCpu, PeerName, Span};
use crate::model::spec::{
    CheckpointSpec, Communication, Groups, OnLostContact, PlacementSpec, Policy, Resources, Run, Then,
    WarnSignal, WarnSpec,
};

fn good(text: &str) -> JobSpec {
    match parse_spec(text.as_bytes()) {
        Ok(parsed) => parsed.spec,
        Err(e) => panic!("{text}\n{e}"),
    }
}

fn mistakes(text: &str) -> Vec<String> {
    match parse_spec(text.as_bytes()) {
        Err(SpecErrors::Mistakes(list)) => list.iter().map(ToString::to_string).collect(),
        other => panic!("{text}\nexpected mistakes, got {other:?}"),
    }
}

/// The document has exactly this one mistake, and its text holds every part.
fn wrong(text: &str, parts: &[&str]) {
    let found = mistakes(text);
    assert_eq!(found.len(), 1, "{text}\n{found:?}");
    for part in parts {
        assert!(found[0].contains(part), "{text}\nno {part:?} in {:?}", found[0]);
    }
}

#[test]
fn the_smallest_job_has_every_default() {
    let spec = good("run: echo hello");
    assert_eq!(
        (spec.name.as_str(), spec.tenant.as_str(), spec.priority, spec.nodes),
        ("job", "default", 50, 1)
    );
    assert_eq!(spec.run, Run::Script("echo hello".into()));
    assert_eq!(spec.resources, Resources { cpus: MilliCpu(1000), ..Resources::default() });
    assert_eq!(spec.on_lost_contact, OnLostContact { grace: Some(Span::secs(120)), then: Then::Restart });
}

#[test]
fn a_peer_may_have_its_own_grace() {
    let defaults = SpecDefaults { grace: Some(Span::secs(9)) };
    let grace =
        |text: &str| parse_spec_with(text.as_bytes(), &defaults).expect("good").spec.on_lost_contact.grace;
    assert_eq!(grace("run: x"), Some(Span::secs(9)));
    assert_eq!(grace("run: x\non_lost_contact: {then: fail}"), Some(Span::secs(9)));
    assert_eq!(grace("run: x\non_lost_contact: {grace: 1m}"), Some(Span::secs(60)));
    assert_eq!(grace("run: x\non_lost_contact: {grace: never}"), None);
}

#[test]
fn a_full_job_reads() {
    let spec = good(
        r#"
name: llm-pretrain
tenant: research
priority: high
resources: {gpus: 8, gpu: [A100-80GB, "NVIDIA H100 80GB HBM3"], cpus: 0.5, memory: 64G}
nodes: 4
run: |
  echo one
  exec train
env: {LR: 1.10, DEBUG: true, EMPTY: "", STEPS: 1_000}
workdir: /srv/train
image: registry.example.com/llm/train:20250601
data: [s3://datasets/corpus-v2, /mnt/shared/set, {uri: "https://example.com/x", stage: false}]
checkpoint: {path: s3://checkpoints/a, every: 10m}
communication: none
max_runtime: 1d12h
retries: 3
on_lost_contact: {grace: never, then: fail}
placement:
  policy: data-first
  regions: eu-central
  clusters: [fra-1]
  labels: {net: ib, example.com/pool: a}
"#,
    );
    assert_eq!(spec.priority, 75);
    assert_eq!(spec.resources.gpu, ["A100-80G", "H100"]);
    assert_eq!(
        (spec.resources.gpus, spec.resources.cpus, spec.resources.memory),
        (8, MilliCpu(500), Bytes::gib(64))
    );
    assert_eq!(spec.gpus_total(), 32);
    let env: Vec<_> = spec.env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(env, [("DEBUG", "true"), ("EMPTY", ""), ("LR", "1.10"), ("STEPS", "1_000")]);
    assert_eq!(spec.data.len(), 3);
    assert_eq!(spec.checkpoint.as_ref().and_then(|c| c.every), Some(Span::secs(600)));
    assert_eq!(spec.communication, Communication::None);
    assert_eq!(spec.max_runtime, Some(Span::secs(36 * 3600)));
    assert_eq!(spec.on_lost_contact, OnLostContact { grace: None, then: Then::Fail });
    assert_eq!((spec.placement.policy, spec.placement.regions.len()), (Policy::DataFirst, 1));
    assert_eq!(good(&render_spec(&spec)), spec);
}

#[test]
fn the_plain_job_request_is_taken_as_it_stands() {
    let parsed = parse_spec(include_bytes!("../../../docs/examples/seed-request.json")).expect("good");
    let spec = parsed.spec;
    assert_eq!(parsed.key.as_deref(), Some("job-001"));
    assert_eq!(spec.name, "job-001");
    assert_eq!(spec.run, Run::Image);
    assert_eq!(spec.image.as_deref(), Some("registry.example.com/llm/train:20250601"));
    assert_eq!((spec.resources.gpus, spec.resources.gpu.as_slice()), (8, ["A100-80G".to_owned()].as_slice()));
    assert_eq!(spec.data, ["s3://datasets/corpus-v2"]);
    assert_eq!(
        spec.checkpoint,
        Some(CheckpointSpec { path: "s3://checkpoints/job-001".into(), every: None })
    );
    assert_eq!(spec.communication, Communication::Async);
    assert_eq!((spec.priority, spec.max_runtime), (75, Some(Span::secs(86_400))));
    assert_eq!(spec.env.get("TASK_TYPE").map(String::as_str), Some("training"));
    assert_eq!(good(&render_spec(&spec)), spec);
    let no_key = parse_spec(b"name: a\nrun: b").expect("good");
    assert_eq!(no_key.key, None);
}

#[test]
fn every_mistake_is_named_at_once() {
    let found = mistakes(
        "nmae: x\npriority: 101\nresources:\n  gpus: -1\n  memroy: 1G\nnodes: 0\nretries: 1e308\nmax_runtime: 60\nrun: ''\nplacement: {policy: fast}\n",
    );
    let text = found.join("\n");
    for part in [
        "line 1: nmae: unknown key; did you mean name?",
        "line 2: priority: 101: must be a whole number from 0 to 100, or low, normal or high",
        "line 4: resources.gpus: -1: must be a whole number from 0 to 1024",
        "line 5: resources.memroy: unknown key; did you mean memory?",
        "line 6: nodes: 0: must be a whole number from 1 to 4096",
        "line 7: retries: 1e308: must be a whole number from 0 to 1000",
        "line 8: max_runtime: 60: must be a duration with a unit",
        "line 9: run: \"\": must be a shell script",
        "did you mean fastest?",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert_eq!(found.len(), 9, "{text}");
}

#[test]
fn absurd_values_are_refused_by_name() {
    wrong("name: \"a\\x07b\"\nrun: x", &["name", "\"a\\u{7}b\"", "must be 1 to 128"]);
    wrong(&format!("name: {}\nrun: x", "n".repeat(129)), &["name", "must be 1 to 128"]);
    wrong("name: 123\nrun: x", &["put it in quotes"]);
    wrong("name: -rf\nrun: x", &["starting with a letter or digit"]);
    for n in [
        "-1",
        "18446744073709551615",
        "340282366920938463463374607431768211456",
        "1e308",
        "4.5",
        "[1]",
        "0x10000",
    ] {
        wrong(&format!("nodes: {n}\nrun: x"), &["nodes", "from 1 to 4096"]);
        wrong(&format!("resources: {{gpus: {n}}}\nrun: x"), &["resources.gpus", "from 0 to 1024"]);
    }
    wrong("nodes: .inf\nrun: x", &["nodes"]);
    for cpus in ["0", "-1", "1e9", ".nan", "99999999999999999999m", "many"] {
        wrong(&format!("resources: {{cpus: {cpus}}}\nrun: x"), &["resources.cpus", "number of cores"]);
    }
    for memory in ["16", "\"16\"", "-1G", "2PiB", "99999999999999999999G", "1.5G", "8192TiB"] {
        wrong(&format!("resources: {{memory: {memory}}}\nrun: x"), &["resources.memory", "size with a unit"]);
    }
    for gpus in ["A100:0", "A100:x", "A100:-1", "':8'", "'8'", "A100:99999999999"] {
        wrong(&format!("resources: {{gpus: {gpus}}}\nrun: x"), &["resources.gpus", "MODEL:COUNT"]);
    }
    for span in ["0s", "-1s", "99999999d", "24:00:00", "1y"] {
        wrong(&format!("max_runtime: {span}\nrun: x"), &["max_runtime", "duration"]);
    }
    wrong("on_lost_contact: {grace: 0s}\nrun: x", &["on_lost_contact.grace", "or never"]);
    wrong("image: --privileged\nrun: x", &["image"]);
    wrong("image: docker:ubuntu\nrun: x", &["leave out docker:"]);
    wrong("workdir: .\nrun: x", &["absolute path"]);
    wrong("data: [a b]\nrun: x", &["data[0]", "URI"]);
    wrong("data: [{uri: a, size: 5}]\nrun: x", &["data[0].size", "unit"]);
    wrong("data: ['s3://a\nb']\nrun: x", &["data[0]"]);
    wrong("env: {1A: x}\nrun: x", &["env.1A", "the name must be"]);
    wrong("env: {STARLING_EPOCH: 9}\nrun: x", &["set by the peer"]);
    wrong("env: {CHECKPOINT_PATH: /x}\nrun: x", &["write checkpoint"]);
    wrong("env: {A: [1]}\nrun: x", &["env.A", "a list of 1"]);
    wrong("run: []", &["run"]);
    wrong("run: ['', a]", &["must name a program first"]);
    wrong("run: {a: b}", &["a mapping of 1 keys"]);
    wrong("name: x", &["run", "is missing"]);
    wrong("run:", &["run", "has no value"]);
    wrong("placement: {clusters: [Big_One]}\nrun: x", &["placement.clusters[0]"]);
    wrong("placement: {labels: {a: 'b c'}}\nrun: x", &["placement.labels.a"]);
    wrong("communication: allreduce\nrun: x", &["one of sync, async, none"]);
    wrong(
        &format!("env: {{{}}}\nrun: x", (0..300).map(|i| format!("A{i}: b")).collect::<Vec<_>>().join(", ")),
        &["at most 256"],
    );
    wrong(&format!("env: {{A: {}}}\nrun: x", "y".repeat(33_000)), &["at most 32768 bytes"]);
}

#[test]
fn contradictions_are_refused() {
    wrong("name: a\njob_id: b\nrun: x", &["job_id", "keep one"]);
    wrong("resources: {gpus: 'A100:8', gpu: H100}\nrun: x", &["keep one"]);
    wrong("resources: {gpus: 0, gpu: H100}\nrun: x", &["gpus is 0"]);
    wrong("resources: {gpus: 1}\ngpu: {count: 1}\nrun: x", &["keep one"]);
    wrong("max_runtime: 1h\nmax_runtime_seconds: 5\nrun: x", &["keep one"]);
    wrong("run: a\nname: x\nrun: b", &["line 3", "written twice (first on line 1)"]);
    wrong(r#"{"run":"a","run":"b"}"#, &["run", "written twice"]);
    assert_eq!(good("resources: {gpu: H100}\nrun: x").resources.gpus, 1);
    assert_eq!(good("resources: {gpus: RTX 4090:2}\nrun: x").resources.gpu, ["RTX-4090"]);
}

#[test]
fn what_comes_later_is_refused_never_ignored() {
    for (key, value, bad) in
        [("reservation", "r1", "7"), ("quota", "q1", "7"), ("service", "{port: 80}", "80")]
    {
        wrong(&format!("{key}: {value}\nrun: x"), &[key, "not supported by this peer yet: remove it"]);
        wrong(&format!("{key}: {bad}\nrun: x"), &[key, "must be", "not supported by this peer yet"]);
    }
    wrong(
        "data: [{uri: 's3://a/b', stage: true}]\nrun: x",
        &["data[0].stage", "not supported by this peer yet"],
    );
    wrong("on_lost_contact: {then: duplicate_ok}\nrun: x", &["not supported by this peer yet"]);
}

#[test]
fn groups_say_their_own_needs() {
    let text = "run: x
communication: async
groups:
  - {name: train, nodes: 4, resources: {gpus: 8, gpu: [H100]}}
  - {name: eval, nodes: 1, resources: {gpus: 1}}
traffic:
  - {from: train, to: eval, rate: 200MiB}
placement: {zones: a, compliance: [gdpr], price_max: 2.5}
data: [{uri: corpus-v2, size: 1TiB}, s3://b/c]
";
    let spec = parse_spec(text.as_bytes()).expect("good").spec;
    assert_eq!((spec.nodes, spec.resources.gpus, spec.groups.list.len()), (4, 8, 2), "the largest group");
    assert_eq!(spec.groups.traffic[0].rate, Bytes::mib(200));
    assert_eq!(spec.placement.price_max_milli, Some(2_500));
    assert_eq!((spec.placement.zones, spec.placement.compliance), (vec!["a".into()], vec!["gdpr".into()]));
    assert_eq!(spec.data_sizes, [("corpus-v2".to_owned(), Bytes(1 << 40))].into());
    wrong("traffic: []\nrun: x", &["traffic", "give groups"]);
    wrong("groups: [{name: a}, {name: a}]\nrun: x", &["groups", "two groups have one name"]);
    wrong("groups: [{name: a}]\nnodes: 2\nrun: x", &["nodes", "move it into groups"]);
    wrong(
        "groups: [{name: a}]\ntraffic: [{from: a, to: b, rate: 1G}]\nrun: x",
        &["traffic[0].to", "one of the groups"],
    );
    wrong("groups: []\nrun: x", &["groups", "at least one group"]);
    wrong("groups: [{name: a}]\narray: 5\nrun: x", &["array", "cannot be an array"]);
}

#[test]
fn spellings_of_other_tools_get_a_hint() {
    for (text, hint) in [
        ("num_nodes: 2\nrun: x", "write nodes"),
        ("cpus-per-task: 2\nrun: x", "write resources: {cpus: 4}"),
        ("resources: {accelerators: A100:8}\nrun: x", "write gpus"),
        ("setup: pip install\nrun: x", "start of run"),
        ("run: x\ncommands: [y]", "write run"),
        ("run: x\nmax_duration: 1h", "write max_runtime"),
        ("run: x\ngres: gpu:8", "A100-80G:8"),
        ("run: x\ngpu: H100", "resources"),
    ] {
        wrong(text, &[hint]);
    }
    assert!(mistakes("apiVersion: batch/v1\nkind: Job\nspec: {}").iter().any(|m| m.contains("Kubernetes")));
    let script = parse_spec(b"#!/bin/bash\n#SBATCH --gres=gpu:8\nsrun train\n");
    assert!(matches!(script, Err(SpecErrors::Foreign { .. })), "{script:?}");
}

#[test]
fn garbage_has_a_typed_answer() {
    let huge = vec![b'a'; 10 << 20];
    assert_eq!(parse_spec(&huge), Err(SpecErrors::TooLarge { bytes: 10 << 20 }));
    assert_eq!(parse_spec(b""), Err(SpecErrors::Empty));
    assert_eq!(parse_spec(b" \n\t\n"), Err(SpecErrors::Empty));
    assert_eq!(parse_spec(b"run: \xff"), Err(SpecErrors::NotText { at: 5 }));
    assert_eq!(parse_spec(b"run: a\0b"), Err(SpecErrors::NotText { at: 6 }));
    for text in [
        "run: [",
        "{",
        "run: 'x",
        "a: b: c",
        "run: x\n---\nrun: y",
        "run: *nowhere",
        "{\"run\" \"x\"}",
        "!!binary x: y",
    ] {
        let got = parse_spec(text.as_bytes());
        assert!(matches!(got, Err(SpecErrors::Syntax { .. })), "{text:?} {got:?}");
    }
    for text in ["5", "just words", "[a, b]", "\t- x", "null", "true"] {
        assert!(matches!(parse_spec(text.as_bytes()), Err(SpecErrors::Mistakes(_))), "{text:?}");
    }
    let deep = format!("env: {}1{}", "[".repeat(4_000), "]".repeat(4_000));
    assert!(parse_spec(deep.as_bytes()).is_err());
    assert!(parse_spec(format!("{{\"env\":{}", "[".repeat(20_000)).as_bytes()).is_err());
    let many = (0..3_000).map(|i| format!("k{i}: 1\n")).collect::<String>();
    assert_eq!(mistakes(&many).len(), crate::model::input::MISTAKES_MAX + 1);
    let e = parse_spec("name: \"\\x1b[31m\"\nrun: x".as_bytes()).expect_err("control characters");
    assert!(!e.to_string().contains('\u{1b}'));
}

#[test]
fn json_and_yaml_say_the_same() {
    let yaml = good("name: a\nrun: [python, train.py, --lr, 0.5, --steps, 3]\nretries: 2");
    let json = good(r#"{"name":"a","run":["python","train.py","--lr",0.5,"--steps",3],"retries":2}"#);
    assert_eq!(yaml, json);
    assert_eq!(
        yaml.run,
        Run::Argv(["python", "train.py", "--lr", "0.5", "--steps", "3"].map(String::from).to_vec())
    );
    // YAML in braces, with what JSON does not allow.
    assert_eq!(good("{run: x, name: a,}"), good("run: x\nname: a"));
    assert_eq!(good("x: &s {a: b}\nrun: x".replace("x: &s {a: b}\n", "").as_str()).name, "job");
}

#[test]
fn errors_travel_as_json() {
    let e = parse_spec(b"nodes: 0\nrun: x").expect_err("wrong");
    let back: SpecErrors = serde_json::from_str(&serde_json::to_string(&e).expect("json")).expect("back");
    assert_eq!(back, e);
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,40}",
        "\\PC{0,20}",
        Just("true".to_owned()),
        Just("1.10".to_owned()),
        Just("~".to_owned()),
        "([a-z $#:'\"-]{0,12}\n){1,4}[a-z ]{0,8}",
        proptest::collection::vec(any::<char>().prop_filter("no NUL", |c| *c != '\0'), 0..20)
            .prop_map(|c| c.into_iter().collect()),
    ]
}

fn run() -> impl Strategy<Value = Run> {
    let solid = |t: &String| !t.trim().is_empty();
    prop_oneof![
        text().prop_filter("a script", solid).prop_map(Run::Script),
        (text().prop_filter("a program", solid), proptest::collection::vec(text(), 0..5)).prop_map(
            |(program, mut args)| {
                args.insert(0, program);
                Run::Argv(args)
            }
        ),
        Just(Run::Image),
    ]
}

fn places() -> impl Strategy<Value = PlacementSpec> {
    let policies = super::parts::POLICIES.map(|(_, p)| p).to_vec();
    (
        proptest::sample::select(policies),
        proptest::collection::vec("[A-Za-z0-9][A-Za-z0-9._-]{0,10}", 0..3),
        proptest::collection::vec("[a-z0-9]{1,9}", 0..3),
        proptest::collection::btree_map("[A-Za-z0-9][A-Za-z0-9._/-]{0,9}", "[A-Za-z0-9._-]{0,9}", 0..3),
    )
        .prop_map(|(policy, regions, clusters, labels)| PlacementSpec {
            policy,
            clusters: clusters
                .iter()
                .map(|c| PeerName::new(c).expect("generated from its alphabet"))
                .collect(),
            zones: regions.clone(),
            compliance: regions.iter().take(1).cloned().collect(),
            price_max_milli: regions.first().map(|r| r.len() as u64 * 1_234),
            regions,
            labels,
        })
}

fn needs() -> impl Strategy<Value = Resources> {
    (0..=1024u32, 0..3usize, 1..=10_000_000u64, 0..=1u64 << 50).prop_map(|(gpus, models, cpus, memory)| {
        Resources {
            gpus,
            gpu: ["A100-80G", "TPU v5e", "RTX-4090"][..if gpus == 0 { 0 } else { models }]
                .iter()
                .map(|s| (*s).to_owned())
                .collect(),
            cpus: MilliCpu(cpus),
            memory: Bytes(memory),
        }
    })
}

fn lasting() -> impl Strategy<Value = (Option<Span>, Option<Span>, u32, u32, u8)> {
    (
        proptest::option::of((1_000_000..=super::job::SPAN_MAX.0).prop_map(Span)),
        proptest::option::of((1_000_000..=2_592_000_000_000u64).prop_map(Span)),
        1..=4096u32,
        0..=1000u32,
        0..=100u8,
    )
}

fn spec() -> impl Strategy<Value = JobSpec> {
    let env = proptest::collection::btree_map("[A-Za-z_][A-Za-z0-9_]{0,8}", text(), 0..4);
    let name = "[A-Za-z0-9][A-Za-z0-9._-]{0,20}";
    let data = proptest::collection::vec("(s3://[a-z0-9/.-]{1,20}|/[a-z0-9 /.#:-]{0,20})", 0..3);
    let at = proptest::option::of("/[a-z \"#:{},&*-]{0,20}");
    (name, name, needs(), run(), env, data, at, lasting(), places()).prop_map(
        |(
            name,
            tenant,
            resources,
            run,
            env,
            data,
            at,
            (limit, grace, nodes, retries, priority),
            placement,
        )| JobSpec {
            image: (run == Run::Image).then(|| "registry.example.com:5000/a/b:1".into()),
            communication: [Communication::Sync, Communication::Async, Communication::None]
                [nodes as usize % 3],
            checkpoint: at.clone().map(|path| CheckpointSpec { path, every: limit }),
            on_lost_contact: OnLostContact {
                grace,
                then: if nodes % 2 == 0 { Then::Restart } else { Then::Fail },
            },
            preemptible: [None, Some(true), Some(false)][retries as usize % 3],
            warn: limit.map(|before| WarnSpec {
                signal: (nodes % 2 == 0).then_some(WarnSignal::Usr1),
                command: (nodes % 3 == 0).then(|| "touch save\n".to_owned()),
                before: Some(before.clamp(Span::secs(1), Span::secs(86_400))),
            }),
            reserve: None,
            max_runtime: limit,
            workdir: at,
            name,
            tenant,
            priority,
            resources,
            nodes,
            run,
            env,
            data_sizes: data
                .first()
                .map(|d: &String| (d.clone(), Bytes(u64::from(nodes) << 20)))
                .into_iter()
                .collect(),
            groups: Groups::default(),
            data,
            retries,
            placement,
            array: None,
            after: Vec::new(),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_is_rendered_reads_back(spec in spec()) {
        let text = render_spec(&spec);
        match parse_spec(text.as_bytes()) {
            Ok(parsed) => prop_assert_eq!(parsed.spec, spec, "{}", text),
            Err(e) => prop_assert!(false, "{}\n{}", text, e),
        }
    }

    #[test]
    fn any_bytes_get_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse_spec(&bytes);
    }

    #[test]
    fn any_document_of_our_words_gets_an_answer(
        parts in proptest::collection::vec(proptest::sample::select(&[
            "name", "run", "resources", "gpus", "env", "data", "placement", ":", ": ", "\n", "\n  ", "- ", "[", "]", "{", "}", ",", "&a ", "*a",
            "<<", "'", "\"", "|", ">", "1e308", "-1", "~", "null", "true", "A100:8", "!!int", "\t", "?", "#", "\\u0000", "\u{202e}",
        ][..]), 0..40)
    ) {
        if let Err(e) = parse_spec(parts.concat().as_bytes()) {
            prop_assert!(e.to_string().len() < 40_000);
        }
    }
}

#[test]
fn env_maps_are_ordered() {
    let env: BTreeMap<_, _> = good("env: {B: 1, A: 2}\nrun: x").env;
    assert_eq!(env.keys().collect::<Vec<_>>(), ["A", "B"]);
}
