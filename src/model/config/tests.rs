//! What a configuration may say, and what is said about a wrong one.

use proptest::prelude::*;

use super::*;
use crate::base::MilliCpu;

fn mistakes(text: &str) -> Vec<String> {
    Config::check(text).expect_err(text).iter().map(ToString::to_string).collect()
}

fn wrong(text: &str, parts: &[&str]) {
    let found = mistakes(text);
    assert_eq!(found.len(), 1, "{text}\n{found:?}");
    for part in parts {
        assert!(found[0].contains(part), "{text}\nno {part:?} in {:?}", found[0]);
    }
}

#[test]
fn nothing_is_a_configuration() {
    assert_eq!(Config::check(""), Ok(Config::default()));
    assert_eq!(Config::check("# only a comment\n"), Ok(Config::default()));
    assert_eq!(Config::check(&Config::default().to_toml()), Ok(Config::default()));
}

const FULL: &str = r#"
name = "fra-1"
region = "eu-central"
zone = "a"
state = "/var/lib/starling"
listen = "[::]:7420"
advertise = ["gpu1.example.com:7420", "10.0.0.7:7420", "[2001:db8::1]:7420"]
price_per_gpu_hour = 2.5
pue = 1.2
replicas = 5
[labels]
net = "ib"
[api]
listen = "off"
unix = "/run/starling/api.sock"
[[nodes]]
name = "dgx"
count = 4
gpu = "NVIDIA A100-SXM4-80GB"
gpus = 8
cpus = 128
memory = "2TiB"
[[nodes]]
name = "old"
gpu = "A100"
gpu_memory = "40GiB"
gpus = 2
[[nodes]]
name = "cpu"
[limits]
jobs = 5
[timing]
renew_every = "500ms"
rho = 0.02
margin = "1s"
grace = "5s"
gossip_interval = "100ms"
probe_every = "never"
[shutdown]
jobs = "move"
[certificate]
lifetime = "1d"
[local]
cgroups = false
[slurm]
shared = "/home/shared/starling"
rest = "unix:/run/slurmrestd.socket"
partition = "gpu,big"
interval = "5s"
guard_listen = "0.0.0.0:7422"
notice_signal = "USR1"
[slurm.options]
nice = "10"
[slurm.gpu_names]
a100 = "A100-80G"
[kubernetes]
namespace = "jobs"
guard_image = "registry.example.com/starling:1"
pod_groups = false
pull_secrets = ["one", "two"]
tolerations = "team=ml:NoSchedule"
pull_max = "2h"
[kubernetes.node_selector]
pool = "gpu"
"#;

#[test]
fn a_full_configuration_reads_and_is_written_back() {
    let c = Config::check(FULL).expect("good");
    assert_eq!((c.price_milli, c.pue_milli, c.replicas, c.timing.rho_milli), (2_500, 1_200, 5, 20));
    assert_eq!((c.api.listen, c.timing.probe_every), (None, None));
    assert_eq!(c.timing.gossip_interval_busy, Span::millis(100), "never slower than when quiet");
    assert_eq!(c.shutdown.jobs, ShutdownJobs::Move);
    let models: Vec<_> = c.nodes.iter().map(|n| (n.gpu_model.as_deref(), n.gpus, n.gpu_memory)).collect();
    assert_eq!(
        models,
        [(Some("A100-80G"), 8, Bytes::gib(80)), (Some("A100-40G"), 2, Bytes::gib(40)), (None, 0, Bytes(0))]
    );
    assert_eq!(
        (c.nodes[0].cpus, c.nodes[0].memory, c.nodes[0].count),
        (MilliCpu(128_000), Bytes(2 << 40), 4)
    );
    assert!(c.nodes.iter().all(|n| n.declared));
    assert_eq!(Config::check(&c.to_toml()), Ok(c));
}

#[test]
fn every_mistake_is_named_at_once_with_its_line() {
    let text = "nmae = \"x\"\nreplicas = 2\npue = 0.5\n[timing]\nrenew_evry = \"5s\"\nrho = 2\n[[nodes]]\nname = \"a\"\ngpus = -1\nbogus = 1\n";
    let found = mistakes(text).join("\n");
    for part in [
        "line 1: nmae: unknown key; did you mean name?",
        "line 2: replicas: 2: must be 1, 3 or 5",
        "line 3: pue: 0.5: must be a number from 1 to 5",
        "line 5: timing.renew_evry: unknown key; did you mean renew_every?",
        "line 6: timing.rho: 2: must be a number from 0 to 0.1",
        "line 9: nodes[0].gpus: -1: must be a whole number from 0 to 1024",
        "line 10: nodes[0].bogus: unknown key",
    ] {
        assert!(found.contains(part), "no {part:?} in\n{found}");
    }
    assert_eq!(found.lines().count(), 7, "{found}");
    let syntax = mistakes("a = = 1\nname = \"x\nregion = \"y\"\n");
    assert!(syntax.len() >= 2 && syntax[0].starts_with("line 1: "), "{syntax:?}");
}

#[test]
fn wrong_values_are_refused_by_name() {
    wrong("name = \"Fra_1\"", &["name", "a-z, 0-9"]);
    wrong("name = 5", &["name", "put it in quotes"]);
    wrong("state = \"rel\"", &["absolute path"]);
    wrong("listen = \"7420\"", &["listen", "address and port"]);
    for address in ["host", "host:0", "host:99999", "ho st:1", ":5", "[::1:5", "[zz]:5", "a\\u0007:1"] {
        wrong(&format!("advertise = \"{address}\""), &["advertise", "host:port"]);
    }
    wrong("backend = \"kubernetes\"\n[[nodes]]\nname = \"a\"", &["Kubernetes says"]);
    wrong("[kubernetes]\nnamespace = \"A b\"", &["kubernetes.namespace", "a-z"]);
    wrong("[kubernetes]\ntolerations = \"a:Maybe\"", &["kubernetes.tolerations", "NoSchedule"]);
    wrong("[kubernetes]\nkueue = \"q\"", &["write queue"]);
    wrong("backend = \"slurm\"\n[[nodes]]\nname = \"a\"", &["Slurm says"]);
    wrong("[slurm]\nrest = \"tcp:1\"", &["slurm.rest", "unix:/path"]);
    wrong("[slurm]\nnotice_signal = \"KILL\"", &["notice_signal"]);
    wrong("[slurm]\ninterval = \"1ms\"", &["slurm.interval"]);
    wrong("backend = \"lokal\"", &["did you mean local?"]);
    wrong("price_per_gpu_hour = nan", &["price_per_gpu_hour", "from 0 to 1000"]);
    wrong("price_per_gpu_hour = 1e308", &["price_per_gpu_hour"]);
    wrong("witness = \"yes\"", &["true or false"]);
    wrong("join = \"x\"", &["starling up --join"]);
    wrong("name = 2020-01-01", &["name", "2020-01-01"]);
    wrong("witness = true\n[[nodes]]\nname = \"a\"", &["a witness runs nothing"]);
    wrong("[[nodes]]\nname = \"a\"\ngpu = \"A100\"\ngpus = 8", &["several memories", "A100-80G"]);
    wrong("[[nodes]]\nname = \"a\"\ngpus = 8", &["nodes[0].gpu", "is missing"]);
    wrong("[[nodes]]\nname = \"a\"\ngpu = \"L4\"", &["nodes[0].gpus", "is missing"]);
    wrong("[[nodes]]\ngpus = 0", &["nodes[0].name", "is missing"]);
    wrong("[[nodes]]\nname = \"a\"\n[[nodes]]\nname = \"a\"", &["line 3", "its own"]);
    wrong(
        "[[nodes]]\nname = \"a\"\ncount = 4000\n[[nodes]]\nname = \"b\"\ncount = 4000",
        &["8000", "at most 4096"],
    );
    wrong("nodes = 3", &["a list"]);
    wrong("[limits]\nlog_bytes = \"1B\"", &["from 64KiB"]);
    wrong("[limits]\njobs = 0", &["limits.jobs"]);
    wrong("[limits]\nretain = \"0s\"", &["limits.retain"]);
    wrong("[limits]\nretain_jobs = 0", &["limits.retain_jobs"]);
    wrong("[timing]\nrehome_after = \"0s\"", &["timing.rehome_after"]);
    wrong("[timing]\nrenew_every = \"60s\"", &["timing.grace", "183s"]);
    wrong("[timing]\ngossip_interval_busy = \"5s\"", &["to 1s"]);
    wrong("limits = 5", &["limits", "a mapping"]);
    wrong(&"#".repeat(DOCUMENT_BYTES_MAX + 1), &["at most"]);
    assert!(Config::check(&format!("a = {}", "[".repeat(100_000))).is_err());
    assert!(Config::check(&format!("a = {}1{}", "[".repeat(5_000), "]".repeat(5_000))).is_err());
    assert!(Config::check(&format!("{} = 1", vec!["a"; 20_000].join("."))).is_err());
}

proptest! {
    #[test]
    fn any_text_gets_an_answer(text in "\\PC{0,200}") {
        let _ = Config::check(&text);
    }

    #[test]
    fn any_document_of_our_words_gets_an_answer(
        parts in proptest::collection::vec(proptest::sample::select(&[
            "name", "nodes", "timing", "limits", "api", "=", " = ", "\n", "[", "]", "[[", "]]", "{", "}", "\"", "'''", "1", "1e400", ".", ",", "#",
            "inf", "0x", "2020-01-01", "true",
        ][..]), 0..40)
    ) {
        let _ = Config::check(&parts.concat());
    }
}
