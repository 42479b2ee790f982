//! The reference pages and examples say what the readers take: no field is missing on either side,
//! every example is a job, and those that need only a shell do what they claim.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::config::{self, Config};
use super::input::Key;
use super::spec::{JobSpec, Run};
use super::spec_input::{self, parse_spec};

fn docs(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// `section.key` and whether it works today, of every row in a page's tables.
fn rows(page: &str) -> BTreeSet<(String, bool)> {
    let mut section = String::new();
    let mut out = BTreeSet::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title.split('`').nth(1).unwrap_or_default().to_owned();
        } else if let Some((key, rest)) = line.strip_prefix("| `").and_then(|l| l.split_once('`')) {
            assert!(
                out.insert((format!("{section}.{key}"), !rest.contains("*later*"))),
                "{key} is there twice"
            );
            assert_eq!(rest.matches('|').count(), 5, "five cells: {line}");
        }
    }
    out
}

fn keys(sections: &[(&str, &[Key])]) -> BTreeSet<(String, bool)> {
    sections
        .iter()
        .flat_map(|(s, keys)| keys.iter().map(move |k| (format!("{s}.{}", k.name), k.ready)))
        .collect()
}

#[test]
fn the_pages_name_every_field_and_no_other() {
    assert_eq!(rows(&read(&docs("reference/spec.md"))), keys(spec_input::SECTIONS));
    assert_eq!(rows(&read(&docs("reference/config.md"))), keys(config::SECTIONS));
}

#[test]
fn a_written_configuration_uses_only_keys_of_the_page() {
    let page = read(&docs("reference/config.md"));
    for line in Config::default().to_toml().lines() {
        if let Some((key, _)) = line.split_once(" = ") {
            assert!(page.contains(&format!("| `{key}` |")), "{line}");
        }
    }
}

fn example(name: &str) -> JobSpec {
    let path = docs("examples").join(name);
    parse_spec(read(&path).as_bytes()).unwrap_or_else(|e| panic!("{}: {e}", path.display())).spec
}

#[test]
fn every_example_is_a_job() {
    let mut count = 0;
    for entry in std::fs::read_dir(docs("examples")).expect("the folder is there") {
        let entry = entry.expect("readable");
        if entry.path().is_dir() {
            continue; // bring/: files of other tools, which the tests of `brought` and of the system read.
        }
        let name = entry.file_name().into_string().expect("a plain name");
        let spec = example(&name);
        assert!(name.ends_with(".json") || matches!(spec.run, Run::Script(_)), "{name}");
        count += 1;
    }
    assert!(count >= 6, "{count} examples");
    assert_eq!((example("gang.yaml").nodes, example("gang.yaml").gpus_total()), (2, 4));
    assert!(example("retry.yaml").retries > 0);
    let placed = example("placed.yaml").placement;
    assert!(!placed.regions.is_empty() && !placed.labels.is_empty());
}

/// Runs an example's script as a backend would: exit code and output.
fn attempt(spec: &JobSpec, folder: &Path, epoch: u32, env: &[(&str, &str)]) -> (Option<i32>, String) {
    let Run::Script(script) = &spec.run else { panic!("a script") };
    let out = Command::new("/bin/sh")
        .args(["-c", script])
        .envs(&spec.env)
        .env("CHECKPOINT_PATH", folder)
        .env("STARLING_JOB_ID", "a-job")
        .env("STARLING_EPOCH", epoch.to_string())
        .env("STARLING_CLUSTER", "here")
        .envs(env.iter().copied())
        .output()
        .expect("there is a shell");
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}

#[test]
fn the_awk_example_learns_and_goes_on_where_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = example("awk.yaml");
    let (code, first) = attempt(&spec, folder.path(), 1, &[("STEPS", "5"), ("PAUSE", "0")]);
    assert_eq!(code, Some(0), "{first}");
    let (code, second) = attempt(&spec, folder.path(), 2, &[("STEPS", "12"), ("PAUSE", "0")]);
    assert_eq!(code, Some(0), "{second}");
    assert!(second.contains("epoch 2 at here begins at step 5"), "{second}");
    let both = first + &second;
    let steps: Vec<(u32, f64)> = both
        .lines()
        .filter_map(|l| l.strip_prefix("step ")?.split_once(" loss "))
        .map(|(step, loss)| (step.parse().expect("a number"), loss.parse().expect("a number")))
        .collect();
    assert!(steps.iter().map(|s| s.0).eq(1..=12), "no gap and no repeat: {steps:?}");
    assert!(steps.windows(2).all(|w| w[1].1 < w[0].1), "the loss goes down: {steps:?}");
}

#[test]
fn the_retry_example_fails_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = example("retry.yaml");
    assert_eq!(attempt(&spec, folder.path(), 1, &[]).0, Some(3));
    assert_eq!(attempt(&spec, folder.path(), 2, &[]).0, Some(0));
}
