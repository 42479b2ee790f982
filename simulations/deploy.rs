//! What `deploy/` promises, read as its user would run it: every path that the container file copies is there and not
//! ignored, it runs as nobody in particular, and what it and the units start is a command line that the CLI takes.

use std::fs;
use std::path::Path;

use clap::Parser;
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

#[test]
fn the_container_file_copies_what_is_there_and_runs_as_nobody() {
    let all = instructions(&read("deploy/Containerfile"));
    let rules = read(".containerignore");
    let mut stages: Vec<&str> = Vec::new();
    let mut copied = Vec::new();
    for (word, rest) in &all {
        match word.as_str() {
            "FROM" => stages.push(rest.rsplit_once(" AS ").map_or(rest, |(_, name)| name)),
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
            "RUN" | "WORKDIR" | "USER" | "VOLUME" | "EXPOSE" | "ENTRYPOINT" | "CMD" => {}
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
    assert!(
        ignored(&rules, "target/debug")
            && ignored(&rules, ".git")
            && !ignored(&rules, "docs/examples/awk.yaml")
    );
    let last = |word: &str| all.iter().rev().find(|(w, _)| w == word).map(|(_, rest)| rest.as_str());
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
