//! What an attempt waits for before its program starts: a dataset that is there and an image that is pulled, seen from
//! another peer while it lasts, in the trace afterwards, and ended by a cancel.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::harness::*;
use super::mesh::{Mesh, Plan};

const IMAGE: &str = "registry.example.com/nlp/train:7";
const MIB: u64 = 1 << 20;

/// A stand-in for podman with no image: `pull` says what docker's does, and goes on as files appear.
fn runtime(folder: &Path) -> String {
    let path = folder.join("podman");
    let script = format!(
        "#!/bin/sh\ncd {}\ncase \"$1\" in\n\
         image) [ -e have ] && echo 7340032 && exit 0; exit 1;;\n\
         pull) echo $$ > pulls; echo '4abcf2066143: Pulling fs layer'; echo 'e95bfee0e1a5: Pulling fs layer'\n\
         echo '4abcf2066143: Downloading  1.5MiB/3MiB'\n\
         while [ ! -e more ]; do sleep 0.05; done\n\
         echo '4abcf2066143: Pull complete'; echo 'e95bfee0e1a5: Downloading  1MiB/2MiB'\n\
         while [ ! -e go ]; do sleep 0.05; done\n\
         echo 'e95bfee0e1a5: Pull complete'; : > have; exit 0;;\n\
         run) [ -e have ] || exit 125; echo ran;;\nesac\nexit 0\n",
        folder.display()
    );
    fs::write(&path, script).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    path.display().to_string()
}

fn part<'a>(job: &'a Value, kind: &str) -> Option<&'a Value> {
    job["staging"]["parts"].as_array()?.iter().find(|p| p["kind"] == kind)
}

/// The job's page as a browser gets it.
fn page(state: &Path, id: &str) -> String {
    use starling::surface::client::{Client, Target};
    let client = Client::new(Target::Unix(state.join("api.sock")), None, None).expect("a client");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(client.text(&format!("/jobs/{id}"))).expect("a page")
}

#[test]
fn what_an_attempt_waits_for_is_seen_from_any_peer_and_is_in_its_trace() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    let corpus = here.join("corpus");
    fs::create_dir_all(corpus.join("part")).expect("a dataset");
    fs::write(corpus.join("a"), vec![7; 2 * MIB as usize]).expect("a dataset");
    fs::write(corpus.join("part/b"), vec![7; MIB as usize]).expect("a dataset");
    let tables = format!(
        "[local]\ncontainer_runtime = \"{}\"\n[[datasets]]\nname = \"corpus\"\npath = \"{}\"\n",
        runtime(here),
        corpus.display()
    );
    let mesh = Mesh::start([Plan { tables, ..Plan::new("alpha") }, Plan::new("beta")]);
    let beta = mesh.state("beta");
    let spec = format!(
        "name: train\nimage: {IMAGE}\ndata: [corpus]\nresources: {{gpus: 1}}\nplacement: {{clusters: [alpha]}}\nrun: [train]\n"
    );
    let id = submit(beta, &spec);
    let at = |what: &str, done: u64, total: u64| {
        until(what, || {
            let job = job(beta, &id)?;
            let image = part(&job, "image");
            match image {
                Some(i) if i["state"] == "comes" && i["done"] == done && i["total"] == total => Ok(job),
                _ => Err(job.to_string()),
            }
        })
    };
    let first = at("the first layer is on its way", MIB + MIB / 2, 3 * MIB);
    assert_eq!(first["state"], "placed", "it does not run before its image is there: {first:#}");
    let data = part(&first, "data").expect("the dataset");
    assert_eq!(
        (&data["state"], &data["done"], &data["name"]),
        (&json!("there"), &json!(3 * MIB), &json!("corpus"))
    );
    assert!(data["from"].is_null(), "nothing was moved for it: {data:#}");
    for text in [
        cli(beta, &["job", &id]).ok().out,
        cli(beta, &["watch", &id, "--timeout", "1s"]).out,
        page(beta, &id),
        page(mesh.state("alpha"), &id),
    ] {
        for wanted in ["data corpus: there already, 3 MiB", "train:7: pulling, 1.5 MiB of 3 MiB, for "] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }
    fs::write(here.join("more"), "").expect("written");
    at("the second layer is on its way", 4 * MIB, 5 * MIB);
    fs::write(here.join("go"), "").expect("written");
    let job = succeeded(beta, &id);
    assert!(job["staging"].is_null(), "{job:#}");
    assert_eq!(cli(beta, &["logs", &id]).ok().out.trim(), "ran");

    let trace = until("the cluster's spans are there", || {
        let trace = get(beta, &format!("/v1/jobs/{id}/trace"))?;
        let there = trace["spans"].as_array().is_some_and(|s| s.iter().any(|s| s["name"] == "bring"));
        if there { Ok(trace) } else { Err(trace.to_string()) }
    });
    let spans = trace["spans"].as_array().expect("spans");
    let one =
        |name: &str| spans.iter().find(|s| s["name"] == name).unwrap_or_else(|| panic!("{name}: {trace:#}"));
    let (start, bring) = (one("start"), one("bring"));
    assert_eq!((&start["bytes"], &bring["bytes"]), (&json!(5 * MIB), &json!(5 * MIB)), "{trace:#}");
    assert_eq!((&bring["parent"], &bring["cluster"]), (&start["id"], &json!("alpha")), "{trace:#}");
    assert_eq!(spans.iter().filter(|s| s["name"] == "bring").count(), 1, "the dataset was there: {trace:#}");
    let text = cli(beta, &["trace", &id]).ok().out;
    assert!(text.lines().any(|l| l.contains("bring") && l.contains("alpha")), "{text}");

    // A pull ends with its job, with all that it started.
    for file in ["have", "go", "more", "pulls"] {
        fs::remove_file(here.join(file)).expect("removed");
    }
    let id = submit(beta, &spec);
    let pulls = until("it pulls", || {
        let text = fs::read_to_string(here.join("pulls")).map_err(|e| e.to_string())?;
        text.trim().parse::<u32>().map_err(|e| e.to_string())
    });
    cli(beta, &["cancel", &id]).ok();
    let job = ended(beta, &id);
    assert_eq!(job["state"], "cancelled", "{job:#}");
    let proc = format!("/proc/{pulls}");
    until("the pull is gone", || if Path::new(&proc).exists() { Err(proc.clone()) } else { Ok(()) });
}
