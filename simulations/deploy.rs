//! What `deploy/` promises, read as its user would run it: every path that the container file copies is there and not
//! ignored, it runs as nobody in particular, and what it, the units and the Kubernetes peer start is a command line that
//! the CLI takes. The image itself is built and run where a static binary is given: `system/peer_image.rs`.

use std::fs;
use std::path::Path;

use clap::Parser;
use serde_json::Value;
use starling::model::config::Config;
use starling::surface::cli::{Cli, Command};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Instructions of a container file, with lines that go on put together.
fn instructions(text: &str) -> Vec<(String, String)> {
    let plain: Vec<&str> = text.lines().filter(|l| !l.trim_start().starts_with('#')).collect();
    let joined = plain.join("\n").replace("\\\n", " ");
    let lines = joined.lines().map(str::trim).filter(|l| !l.is_empty());
    lines
        .map(|l| {
            let (word, rest) = l.split_once(char::is_whitespace).expect("an instruction and its words");
            (word.to_owned(), rest.trim().to_owned())
        })
        .collect()
}

/// A path of the build context that the ignore file leaves out. Its rules here are folders at the root, and
/// exceptions from them.
fn ignored(rules: &str, path: &str) -> bool {
    let mut out = false;
    for rule in rules.lines().map(str::trim).filter(|r| !r.is_empty() && !r.starts_with('#')) {
        let (not, rule) = rule.strip_prefix('!').map_or((false, rule), |r| (true, r));
        let folder = rule.trim_matches('/');
        assert!(!folder.contains(['*', '?']), "{rule}: patterns are not read by this test");
        if path == folder || path.starts_with(&format!("{folder}/")) {
            out = !not;
        }
    }
    out
}

fn words(json: &str) -> Vec<String> {
    serde_json::from_str(json)
        .unwrap_or_else(|e| panic!("{json}: must be a list, so that no shell is needed: {e}"))
}

/// Files that the sources carry along, from outside their folder. Tests are not built into the image.
fn carried(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            carried(&path, found);
            continue;
        }
        if path.extension().is_none_or(|e| e != "rs") || path.to_string_lossy().contains("tests") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("UTF-8");
        let here = path.parent().expect("a folder");
        for start in ["include_str!(\"", "include_bytes!(\""] {
            for file in text.split(start).skip(1).filter_map(|rest| rest.split('"').next()) {
                let real = here.join(file).canonicalize().unwrap_or_else(|e| panic!("{file}: {e}"));
                let inside = real.strip_prefix(root()).expect("in the repository");
                found.push(inside.to_str().expect("UTF-8").to_owned());
            }
        }
    }
}

/// The last stage's own words.
fn last<'a>(all: &'a [(String, String)], word: &str) -> Option<&'a str> {
    all.iter().rev().find(|(w, _)| w == word).map(|(_, rest)| rest.as_str())
}

#[test]
fn the_container_file_copies_what_is_there_and_runs_as_nobody() {
    let all = instructions(&read("deploy/Containerfile"));
    let rules = read(".containerignore");
    let mut stages: Vec<&str> = Vec::new();
    let mut copied = Vec::new();
    // Which stage the binary comes from; unless told otherwise, from source.
    let chosen = all.iter().find_map(|(w, r)| (w == "ARG").then(|| r.strip_prefix("FROM="))?);
    assert_eq!(chosen, Some("compiled"));
    for (word, rest) in &all {
        match word.as_str() {
            "FROM" => {
                let (base, name) = rest.rsplit_once(" AS ").unwrap_or((rest, rest));
                if base == "${FROM}" {
                    assert!(["compiled", "given"].iter().all(|s| stages.contains(s)), "{stages:?}");
                }
                stages.push(name);
            }
            // The folder of a binary that is there already is somebody else's.
            "COPY" if stages.last() == Some(&"given") => assert_eq!(rest, ". /out/"),
            "COPY" => {
                let (flags, paths): (Vec<&str>, Vec<&str>) =
                    rest.split_whitespace().partition(|w| w.starts_with("--"));
                if let Some(from) = flags.iter().find_map(|f| f.strip_prefix("--from=")) {
                    assert!(stages.contains(&from), "{rest}: no stage {from}");
                    continue;
                }
                let (_, sources) = paths.split_last().expect("what and where to");
                for source in sources {
                    let path = source.trim_start_matches("./").trim_end_matches('/');
                    assert!(root().join(path).exists(), "COPY {source}: it is not there");
                    assert!(!ignored(&rules, path), "COPY {source}: .containerignore leaves it out");
                    copied.push(path.to_owned());
                }
            }
            "ARG" | "ENV" | "RUN" | "WORKDIR" | "USER" | "VOLUME" | "EXPOSE" | "ENTRYPOINT" | "CMD" => {}
            other => panic!("{other}: this test does not know what it does"),
        }
    }
    // Every file that the manifest names, and what the sources carry along.
    for line in read("Cargo.toml").lines() {
        if let Some(path) = line.strip_prefix("path = ") {
            let path = path.trim_matches('"');
            assert!(copied.iter().any(|c| path.starts_with(&format!("{c}/"))), "{path} is not copied");
        }
    }
    let mut along = Vec::new();
    carried(&root().join("src"), &mut along);
    assert!(along.iter().any(|f| f == "docs/examples/awk.yaml"), "{along:?}");
    for file in along {
        assert!(copied.iter().any(|c| file.starts_with(&format!("{c}/"))), "{file} is not copied");
    }
    assert!(
        ignored(&rules, "target/debug")
            && ignored(&rules, ".git")
            && !ignored(&rules, "docs/examples/awk.yaml")
    );
    let last = |word: &str| last(&all, word);
    let user = last("USER").expect("it says who it runs as");
    let id: u32 =
        user.split(':').next().and_then(|n| n.parse().ok()).expect("a number: the base has no names");
    assert!(id >= 1_000, "{user}");
    let at = |word: &str| all.iter().rposition(|(w, _)| w == word).expect("there");
    assert!(at("USER") > at("FROM"), "in the last stage");
    let line: Vec<String> =
        [last("ENTRYPOINT"), last("CMD")].into_iter().flat_map(|w| words(w.expect("there"))).collect();
    let cli = Cli::try_parse_from(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
    let volume = Path::new(last("VOLUME").expect("its state outlives it"));
    assert_eq!(cli.global.state.as_deref(), Some(volume));
    // Its volume is made in the image as that user's, and nothing else is: runtimes copy who owns it.
    let of_binary: Vec<&str> = all
        .iter()
        .filter(|(w, r)| w == "COPY" && r.starts_with("--from=binary"))
        .map(|(_, r)| r.as_str())
        .collect();
    let own =
        format!("--from=binary --chown={user} /out/var/ {}/", volume.parent().expect("a folder").display());
    assert_eq!(of_binary, ["--from=binary --chown=0:0 /out/root/ /", &own]);
    let made = all
        .iter()
        .find(|(w, r)| w == "RUN" && r.starts_with("mkdir"))
        .map(|(_, r)| r)
        .expect("it is laid out");
    let folder = format!("/out/var/{}", volume.file_name().and_then(|n| n.to_str()).expect("a name"));
    assert!(made.contains(&folder) && made.contains(&format!("/out/root{}", line[0])), "{made}");
    // `starling clusters` in the container asks its own peer.
    let env = last("ENV").expect("there");
    let bin = Path::new(&line[0]).parent().expect("a folder");
    assert_eq!(env, format!("PATH={} STARLING_STATE={}", bin.display(), volume.display()));
    let Command::Up(up) = cli.command else { panic!("{line:?} starts no peer") };
    let port = up.listen.expect("it listens").port();
    assert_eq!(last("EXPOSE"), Some(format!("{port}/udp").as_str()));
    // It is built with the compiler that the manifest asks for.
    let manifest = read("Cargo.toml");
    let rust =
        manifest.lines().find_map(|l| l.strip_prefix("rust-version = ")).expect("there").trim_matches('"');
    assert!(all.iter().any(|(w, r)| w == "FROM" && r.contains(&format!("rust:{rust}-"))), "Rust {rust}");
}

#[test]
fn the_units_start_what_the_binary_takes() {
    let mut units = 0;
    for entry in fs::read_dir(root().join("deploy")).expect("there") {
        let name = entry.expect("readable").file_name().into_string().expect("a plain name");
        if !name.ends_with(".service") {
            continue;
        }
        units += 1;
        let text = read(&format!("deploy/{name}"));
        let value =
            |key: &str| text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default();
        let line: Vec<&str> = value("ExecStart").split_whitespace().collect();
        let cli = Cli::try_parse_from(&line).unwrap_or_else(|e| panic!("{name}: {line:?}: {e}"));
        assert!(matches!(cli.command, Command::Up(_)), "{name}");
        let state = cli.global.state.expect("it says where its state is");
        assert_eq!(state, Path::new("/var/lib").join(value("StateDirectory")), "{name}");
        assert!(!matches!(value("User"), "" | "root"), "{name} runs as nobody in particular");
        // A peer that stops waits for shutdown.deadline, 30 s, before it is killed.
        assert!(value("TimeoutStopSec").parse::<u32>().is_ok_and(|s| s > 30), "{name}");
    }
    assert_eq!(units, 2, "one for each backend that runs on a machine");
}

/// What deploy/kubernetes/peer.yaml says of the image is what deploy/Containerfile makes.
#[test]
fn the_kubernetes_peer_is_the_image_s() {
    let all = instructions(&read("deploy/Containerfile"));
    let last = |word: &str| last(&all, word).unwrap_or_else(|| panic!("no {word}"));
    let text = read("deploy/kubernetes/peer.yaml");
    let objects: Vec<Value> =
        text.split("\n---\n").map(|one| serde_saphyr::from_str(one).expect("YAML")).collect();
    let set = objects.iter().find(|o| o["kind"] == "StatefulSet").expect("there");
    let (pod, peer) = (&set["spec"]["template"]["spec"], &set["spec"]["template"]["spec"]["containers"][0]);
    let strings = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().map(|w| w.as_str().expect("a word").to_owned()).collect()
    };
    let mounts: Vec<&str> = peer["volumeMounts"]
        .as_array()
        .expect("mounts")
        .iter()
        .map(|m| m["mountPath"].as_str().expect("a path"))
        .collect();

    // Its arguments follow the image's entry point, on its volume, with the configuration that is mounted.
    assert!(peer["command"].is_null());
    let entry = words(last("ENTRYPOINT"));
    let line: Vec<String> = entry.iter().cloned().chain(strings(&peer["args"])).collect();
    let cli = Cli::try_parse_from(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
    let volume = Path::new(last("VOLUME"));
    assert_eq!(cli.global.state.as_deref(), Some(volume));
    let Command::Up(up) = cli.command else { panic!("{line:?} starts no peer") };
    let config = up.config.expect("a configuration");
    assert_eq!(config.file_name().and_then(|n| n.to_str()), Some("starling.toml"), "as the ConfigMap has it");
    let (state, etc) =
        (volume.to_str().expect("UTF-8"), config.parent().and_then(Path::to_str).expect("a folder"));
    assert_eq!(mounts, [state, etc, "/tmp"], "nothing else of it can be written");
    let probe = strings(&peer["readinessProbe"]["exec"]["command"]);
    assert_eq!(probe[0], entry[0], "there is no shell and no PATH to ask");
    let asks = Cli::try_parse_from(&probe).unwrap_or_else(|e| panic!("{probe:?}: {e}"));
    assert_eq!(asks.global.state.as_deref(), Some(volume));
    // Killing it when it is slow would only make it slower; it ends by itself where it must.
    assert!(peer["livenessProbe"].is_null());

    // It is the image's user, who owns the volume and needs nothing more.
    let rights = &pod["securityContext"];
    for id in ["runAsUser", "runAsGroup", "fsGroup"] {
        assert!(
            last("USER").split(':').any(|u| rights[id].as_u64() == u.parse().ok()),
            "{id}: {}",
            rights[id]
        );
    }
    assert_eq!(rights["runAsNonRoot"], true);
    assert_eq!(peer["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(peer["securityContext"]["allowPrivilegeEscalation"], false);

    // What it listens on is what the Service and the pod name.
    let file = read("deploy/kubernetes/starling.toml");
    let config = Config::check(&file).unwrap_or_else(|e| panic!("{e:?}"));
    let ports = |list: &Value, key: &str| -> Vec<(u64, String)> {
        let one =
            |p: &Value| (p[key].as_u64().expect("a port"), p["protocol"].as_str().expect("which").to_owned());
        list.as_array().expect("ports").iter().map(one).collect()
    };
    let wanted = [
        (u64::from(config.listen.port()), "UDP".to_owned()),
        (u64::from(config.kubernetes.guard_listen.port()), "TCP".to_owned()),
    ];
    assert_eq!(ports(&peer["ports"], "containerPort"), wanted);
    let service = objects.iter().find(|o| o["kind"] == "Service").expect("there");
    assert_eq!(ports(&service["spec"]["ports"], "port"), wanted);
    // It gets the time that it takes to stop.
    let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("seconds");
    assert!(grace * 1_000_000 > config.shutdown.deadline.0, "{grace} s");
}

/// The replay's stage refuses a report without its times and shares, or with figures that cannot be.
#[test]
fn the_replay_stage_looks_at_times_and_shares() {
    let script = read("deploy/test");
    let function = |name: &str| {
        let begin = script.find(&format!("\n{name}() {{")).unwrap_or_else(|| panic!("no function {name}"));
        let rest = &script[begin..];
        let end = rest.find("\n}\n").map(|at| at + 3);
        let line = rest[1..].find('\n').map_or(rest.len(), |at| at + 1);
        if rest[..line].trim_end().ends_with('}') {
            rest[..line].to_owned()
        } else {
            rest[..end.expect("its end")].to_owned()
        }
    };
    let functions = ["fail", "number", "replay_times"].map(function).concat();
    let good = r#"{"submitted":60,"clusters":3,"wait_s_mean":12.5,"completion_s_mean":90.0,"utilisation":{"c1":0.25,"c2":0.0,"c3":1e-3},"rows":0}"#;
    let holds = |out: &str| {
        let text = format!("set -euo pipefail{functions}\nreplay_times \"$1\" c1 c2 c3\n");
        let done =
            std::process::Command::new("bash").args(["-c", &text, "bash", out]).output().expect("bash");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(
            done.status.success() || said.contains("wanted") || said.contains("no utilisation"),
            "{done:?}"
        );
        done.status.success()
    };
    assert!(holds(good));
    for (from, to) in [
        ("\"wait_s_mean\":12.5,", ""),
        ("\"completion_s_mean\":90.0,", ""),
        ("12.5", "-1"),
        ("90.0", "12.0"),
        ("\"c3\":1e-3", "\"c4\":1e-3"),
        ("0.25", "1.5"),
        ("\"c1\":0.25,\"c2\":0.0,\"c3\":1e-3", "\"c1\":0,\"c2\":0,\"c3\":0"),
    ] {
        assert!(good.contains(from) && !holds(&good.replace(from, to)), "{from} -> {to}");
    }
}

/// `promtool test rules` tries what is written there; this says that it is written for every rule: a case in which it
/// fires, and one in which it does not.
#[test]
fn every_alert_rule_is_tried_both_ways() {
    let rules = read("deploy/prometheus/rules.yml");
    let names: Vec<&str> = rules.lines().filter_map(|l| l.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() > 10, "{names:?}");
    let tests = read("deploy/prometheus/rules_test.yml");
    let cases: Vec<&str> = tests.split("- eval_time: ").skip(1).collect();
    for name in names {
        let of = |case: &&&str| case.lines().nth(1).is_some_and(|l| l.trim() == format!("alertname: {name}"));
        let (fires, quiet): (Vec<&&str>, Vec<&&str>) =
            cases.iter().filter(of).partition(|case| case.contains("exp_alerts:"));
        assert!(
            !fires.is_empty() && !quiet.is_empty(),
            "{name}: {} fire, {} do not",
            fires.len(),
            quiet.len()
        );
    }
}
