//! The examples of other tools' files, submitted as they are: what the command says of them, and that the docs know them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::harness::*;
use super::mesh::{Mesh, Plan};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What the command must say of each file, line by line, and nothing else.
fn wanted() -> BTreeMap<&'static str, Vec<&'static str>> {
    BTreeMap::from([
        (
            "indexed-job.yaml",
            vec![
                "line 6: spec.completions: 100 completions are an array",
                "line 18: spec.template.spec.containers[0].resources.limits.nvidia.com/gpu: \"1\": no product is named",
            ],
        ),
        (
            "skypilot.yaml",
            vec!["line 8: resources.use_spot: true: it may be stopped", "line 12: setup: ", "line 14: run: "],
        ),
        (
            "train-job.yaml",
            vec![
                "line 6: metadata.labels: ",
                "line 9: spec.activeDeadlineSeconds: 86400: holds for each attempt",
                "line 10: spec.ttlSecondsAfterFinished: 3600: is not carried over",
                "line 16: spec.template.spec.tolerations: ",
                "line 22: spec.template.spec.containers[0].workingDir: ",
                "line 28: spec.template.spec.containers[0].volumeMounts[0]: ",
                "line 31: spec.template.spec.volumes[0].emptyDir: ",
            ],
        ),
        ("train.sbatch", vec!["line 5: --partition", "line 5: --output"]),
    ])
}

#[test]
fn the_examples_of_other_tools_are_taken_as_they_are() {
    let folder = root().join("docs/examples/bring");
    let listed = |path: PathBuf| path.file_name().map(|n| n.to_string_lossy().into_owned());
    let there: BTreeSet<String> =
        fs::read_dir(&folder).expect("the examples").flatten().filter_map(|e| listed(e.path())).collect();
    let wanted = wanted();
    let known: BTreeSet<String> = wanted.keys().map(|k| (*k).to_owned()).collect();
    assert_eq!(there, known, "each example is tried here");

    // Two of the three are images: a stand-in for podman makes the cluster one that could run them.
    let tools = tempfile::tempdir().expect("a folder");
    let runtime = tools.path().join("podman");
    fs::write(&runtime, "#!/bin/sh\nexit 0\n").expect("written");
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).expect("executable");
    let nodes =
        "[[nodes]]\nname = \"big\"\ncount = 2\ngpu = \"A100-80G\"\ngpus = 8\ncpus = 64\nmemory = \"1T\"\n";
    let tables = format!("{nodes}[local]\ncontainer_runtime = \"{}\"\n", runtime.display());
    let mesh = Mesh::start([Plan { tables, ..Plan::new("alpha") }]);
    let state = mesh.state("alpha");
    for (file, wanted) in wanted {
        let path = folder.join(file);
        let out = cli(state, &["--json", "submit", "--dry-run", path.to_str().expect("a path")]);
        assert_eq!(out.code, 0, "{file}: {out:?}");
        let why = out.json();
        let alpha = &why["clusters"][0];
        assert_eq!(
            (&alpha["cluster"], &alpha["fits_ever"]),
            (&"alpha".into(), &true.into()),
            "{file}: {why:#}"
        );
        let start = format!("starling: {}: ", path.display());
        let said: Vec<&str> = out.err.lines().filter_map(|l| l.strip_prefix(&start)).collect();
        let fits =
            said.len() == wanted.len() && said.iter().zip(&wanted).all(|(said, want)| said.starts_with(want));
        assert!(fits, "{file}: said {said:#?}, wanted {wanted:#?}\n{out:?}");
    }
    let none = get(state, "/v1/jobs").expect("a list");
    assert_eq!(none["jobs"], serde_json::json!([]), "nothing was submitted");

    // One that cannot be carried over says which line, on both ways out.
    let text = fs::read_to_string(folder.join("train-job.yaml")).expect("an example");
    let wrong = tools.path().join("wrong.yaml");
    fs::write(
        &wrong,
        text.replace(
            "          workingDir:",
            "          lifecycle: {}\n          zzz: 1\n          workingDir:",
        ),
    )
    .expect("written");
    let out = cli(state, &["--json", "submit", "--dry-run", wrong.to_str().expect("a path")]);
    let details = out.json()["error"]["details"].clone();
    assert_eq!(out.code, 2, "{out:?}");
    assert!(
        details.as_array().is_some_and(|d| d.len() == 1
            && d[0].as_str().is_some_and(|t| t.starts_with("line 23: ") && t.contains("zzz"))),
        "{details:#}"
    );
}

/// Targets of links, and of code that names a file of this repository.
fn named(text: &str) -> Vec<String> {
    let links = text.match_indices("](").filter_map(|(at, _)| text[at + 2..].split([')', ' ']).next());
    let links = links.filter(|l| !l.contains("://") && !l.starts_with(['#', '<']));
    links.map(|l| l.split('#').next().unwrap_or_default().to_owned()).filter(|l| !l.is_empty()).collect()
}

#[test]
fn what_the_docs_list_is_there() {
    let mut pages = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).expect("a folder").flatten().map(|e| e.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                pages.push(path);
            }
        }
    }
    let (mut seen, mut missing) = (0, Vec::new());
    for page in &pages {
        let text = fs::read_to_string(page).expect("a page");
        for link in named(&text) {
            seen += 1;
            if !page.parent().expect("a folder").join(&link).exists() {
                missing.push(format!("{}: {link}", page.display()));
            }
        }
        // Examples are named in commands, too: from the root, as a reader types them.
        for (at, _) in text.match_indices("docs/examples/") {
            let end = |c: char| !(c.is_ascii_alphanumeric() || "/._-".contains(c));
            let path = text[at..].split(end).next().unwrap_or_default().trim_end_matches('.');
            if !root().join(path).exists() {
                missing.push(format!("{}: {path}", page.display()));
            }
        }
    }
    assert!(seen > 50, "links are read: {seen}");
    assert!(missing.is_empty(), "{missing:#?}");
}
