//! One peer and its jobs, by the commands a user types.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use super::harness::*;
use super::mesh::{Mesh, Plan};

#[test]
fn a_job_from_submit_to_its_logs() {
    let mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha");
    let file = mesh.folder.path().join("job.yaml");
    let spec = "name: hello\nresources: {gpus: 2, gpu: [A100-80G]}\nenv: {WHO: world}\ncheckpoint: {path: /tmp}\n\
                run: 'echo hello $WHO gpus=$CUDA_VISIBLE_DEVICES; env | grep -E \"^(STARLING_|CHECKPOINT_PATH|TRACEPARENT|RANK|WORLD_SIZE)\"; echo to stderr >&2'\n";
    fs::write(&file, spec).expect("written");
    let path = file.to_str().expect("a path");
    let dry = cli(state, &["--json", "submit", "--dry-run", path]).ok().json();
    assert_eq!(dry["clusters"][0]["fits_now"], true, "{dry:#}");
    let taken = cli(state, &["submit", path]).ok().out;
    for hint in ["next:", "starling logs", "starling why"] {
        assert!(taken.contains(hint), "{hint}: {taken}");
    }
    let list = cli(state, &["--json", "jobs"]).ok().json();
    let id = list["jobs"][0]["id"].as_str().expect("an id").to_owned();
    let prefix = &id[..8];
    let waited = cli(state, &["--json", "wait", prefix]).ok().json();
    assert_eq!(waited["jobs"][0]["state"], "succeeded", "{waited:#}");

    let logs = cli(state, &["logs", &id]).ok();
    for part in [
        "hello world gpus=0,1",
        &format!("STARLING_JOB_ID={id}"),
        "STARLING_EPOCH=1",
        "STARLING_CLUSTER=alpha",
        "CHECKPOINT_PATH=/tmp",
        "TRACEPARENT=00-",
        "RANK=0",
        "WORLD_SIZE=1",
    ] {
        assert!(logs.out.contains(part), "{part}: {logs:?}");
    }
    assert!((logs.out.clone() + &logs.err).contains("to stderr"), "{logs:?}");
    let only = cli(state, &["logs", "--stream", "stderr", &id]).ok();
    assert!(!only.out.contains("hello world"), "{only:?}");
    let followed = cli(state, &["logs", "-f", prefix]).ok();
    assert!(followed.out.contains("hello world"), "{followed:?}");

    let shown = cli(state, &["--json", "job", prefix]).ok().json();
    assert_eq!((&shown["id"], &shown["attempts"][0]["outcome"]), (&json!(id), &exited(0)), "{shown:#}");
    for args in [
        &["job", prefix][..],
        &["jobs"],
        &["queue"],
        &["why", prefix],
        &["clusters"],
        &["clusters", "alpha"],
        &["links"],
        &["view", "--tree"],
        &["peer"],
        &["member", "list"],
    ] {
        assert!(!cli(state, args).ok().out.is_empty(), "{args:?}");
        let with = [&["--json"], args].concat();
        cli(state, &with).ok().json();
    }
    // Reports are made a few times a second.
    until("its GPUs are free again", || {
        let clusters = cli(state, &["clusters"]).ok().out;
        if clusters.contains("4/4 A100-80G (virtual)") { Ok(()) } else { Err(clusters) }
    });
}

#[test]
fn ends_are_reported_as_they_are() {
    let mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha");
    let run = |args: &[&str]| {
        let out = cli(state, &[&["--json", "run", "--wait"], args].concat());
        (out.code, out.json()["jobs"][0].clone())
    };
    let (code, job) = run(&["--", "sh", "-c", "exit 42"]);
    assert_eq!(
        (code, &job["state"], &job["attempts"][0]["outcome"]),
        (1, &json!("failed"), &exited(42)),
        "{job:#}"
    );
    let (code, job) = run(&["--", "sh", "-c", "kill -SEGV $$"]);
    assert_eq!(
        (code, &job["attempts"][0]["outcome"]),
        (1, &json!({ "kind": "signaled", "value": 11 })),
        "{job:#}"
    );
    let (code, job) = run(&["--", "/nonexistent/program"]);
    assert_eq!((code, &job["state"]), (1, &json!("failed")), "{job:#}");
    let (code, job) = run(&["--max-runtime", "1s", "--", "sleep", "600"]);
    assert_eq!((code, &job["attempts"][0]["outcome"]), (1, &json!({ "kind": "timed_out" })), "{job:#}");
    // The second try finds what the first one left.
    let mark = mesh.folder.path().join("mark");
    let script = format!("test -e {0} && exit 0; touch {0}; exit 3", mark.display());
    let (code, job) = run(&["--retries", "2", "--gpus", "1", "--", "sh", "-c", &script]);
    assert_eq!((code, of_attempts(&job, "outcome")), (0, vec![exited(3), exited(0)]), "{job:#}");
    let (code, job) = run(&["--retries", "1", "--", "false"]);
    assert_eq!((code, of_attempts(&job, "epoch")), (1, vec![json!(1), json!(2)]), "{job:#}");
    assert_eq!(job["failures"], 2, "{job:#}");
}

#[test]
fn a_cancel_ends_a_running_and_a_waiting_job() {
    let mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha");
    let long = "name: long\nresources: {gpus: 4, gpu: [A100-80G]}\nrun: [sleep, \"600\"]\n";
    let running = submit(state, long);
    in_state(state, &running, &["running"]);
    let waiting = submit(state, long);
    // It fits nowhere now, and `why` says so.
    let why = until("why says that no GPU is free", || {
        let why = get(state, &format!("/v1/jobs/{waiting}/why"))?;
        let cluster = &why["clusters"][0];
        let told = cluster["reasons"].as_array().is_some_and(|r| !r.is_empty());
        if cluster["fits_ever"] == true && cluster["fits_now"] == false && told {
            Ok(why)
        } else {
            Err(why.to_string())
        }
    });
    assert_eq!(why["state"], "pending", "{why:#}");
    let text = cli(state, &["why", &waiting]).ok().out;
    assert!(text.contains("alpha") && text.contains("GPU"), "{text}");

    let out = cli(state, &["--json", "cancel", &waiting[..12]]).ok().json();
    assert_eq!(out["id"], json!(waiting), "{out:#}");
    let job = ended(state, &waiting);
    assert_eq!((&job["state"], of_attempts(&job, "epoch").len()), (&json!("cancelled"), 0), "{job:#}");
    cli(state, &["cancel", &running]).ok();
    let job = ended(state, &running);
    assert_eq!(
        (&job["state"], &job["attempts"][0]["outcome"]["kind"]),
        (&json!("cancelled"), &json!("cancelled")),
        "{job:#}"
    );
    // Again is no harm, and its end stays.
    cli(state, &["cancel", &running]).ok();
    assert_eq!(job["finished_at_ms"], ended(state, &running)["finished_at_ms"]);
    // The GPUs are free again.
    let out = cli(state, &["run", "--gpus", "4", "--wait", "--", "true"]);
    assert_eq!(out.code, 0, "{out:?}");
}

#[test]
fn the_two_documents_of_the_seed_articles_work() {
    // A stand-in for podman, so that an image "runs" on any machine: it says what it would have run.
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = folder.path().join("podman");
    let script = "#!/bin/sh\n# Stand-in for podman: runs no container.\ncase \"$1\" in run) echo \"stand-in for podman: $*\";; esac\nexit 0\n";
    fs::write(&runtime, script).expect("written");
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).expect("executable");
    let mut plan = Plan::new("alpha");
    plan.gpus = 8;
    plan.tables = format!("[local]\ncontainer_runtime = \"{}\"\n", runtime.display());
    let mesh = Mesh::start([plan]);
    let state = mesh.state("alpha");

    let request = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/examples/seed-request.json");
    let taken = cli(state, &["--json", "submit", request]).ok().json();
    let id = taken["id"].as_str().expect("an id");
    let job = succeeded(state, id);
    assert_eq!((&job["gpus"], &job["gpu"]), (&json!(8), &json!(["A100-80G"])), "{job:#}");
    let logs = cli(state, &["logs", id]).ok().out;
    assert!(logs.contains("registry.example.com/llm/train:20250601"), "{logs}");
    // `job_id` in it is its idempotency key.
    let again = cli(state, &["--json", "submit", request]).ok().json();
    assert_eq!((&again["id"], &again["existed"]), (&json!(id), &json!(true)), "{again:#}");

    let report = cli(state, &["clusters", "alpha", "--report"]).ok().json();
    let keys: Vec<&String> = report.as_object().expect("an object").keys().collect();
    let mut wanted = [
        "cluster_id",
        "gpu_nodes",
        "gpu_busy",
        "gpu_free",
        "gpu_models",
        "queued_jobs",
        "avg_cpu_usage",
        "avg_gpu_usage",
        "last_heartbeat",
    ];
    wanted.sort_unstable();
    assert_eq!(keys, wanted, "{report:#}");
    assert_eq!(
        (&report["cluster_id"], &report["gpu_models"]),
        (&json!("alpha"), &json!(["A100-80G"])),
        "{report:#}"
    );
}

#[test]
fn an_image_without_a_container_runtime_is_refused_in_words() {
    let mut plan = Plan::new("alpha");
    // Whatever is installed here is not found.
    plan.path = Some("/nowhere");
    let mesh = Mesh::start([plan]);
    let refused = try_submit(mesh.state("alpha"), "image: example.com/x:1\nrun: [\"true\"]\n", None)
        .expect_err("refused");
    assert_eq!((refused.0, refused.1.code.as_str()), (422, "fits_nowhere"), "{refused:?}");
    assert!(refused.1.message.contains("podman"), "{refused:?}");
}

#[test]
fn an_sbatch_array_and_what_waits_for_it_run_where_no_slurm_is() {
    let mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha");
    let folder = mesh.folder.path().display().to_string();
    let script = mesh.folder.path().join("sweep.sbatch");
    let text = format!(
        "#!/bin/sh\n#SBATCH --array=2-6:2%2 -D {folder}\n\
         echo \"$SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, $SLURM_ARRAY_TASK_MIN to $SLURM_ARRAY_TASK_MAX\" >>seen\n"
    );
    fs::write(&script, text).expect("written");
    let sbatch = |file: &Path| {
        let out = cli(state, &["slurm", "sbatch", "--parsable", &file.display().to_string()]).ok();
        out.out.trim().to_owned()
    };
    let array = sbatch(&script);
    let then = mesh.folder.path().join("then.sbatch");
    let text = format!("#!/bin/sh\n#SBATCH -D {folder} -d afterok:{array}\nsort seen >sorted\n");
    fs::write(&then, text).expect("written");
    succeeded(state, &sbatch(&then));
    let sorted = fs::read_to_string(mesh.folder.path().join("sorted")).expect("a list");
    assert_eq!(sorted, "2 of 3, 2 to 6\n4 of 3, 2 to 6\n6 of 3, 2 to 6\n");
}

/// The verbs with the options that fingers know; what cannot be done is named.
#[test]
fn slurms_verbs_take_slurms_options() {
    let mesh = Mesh::start([Plan::new("alpha")]);
    let state = mesh.state("alpha");
    let folder = mesh.folder.path();
    let slurm = |args: &[&str]| cli(state, &[&["slurm"], args].concat());
    let file = folder.join("args.sbatch");
    fs::write(&file, "#!/bin/sh\n#SBATCH -J lost\necho \"$1|$2|$#\" > seen\n").expect("written");
    let (file, chdir) = (file.display().to_string(), folder.display().to_string());
    // Options win over the script's lines; what follows the file is the script's.
    let options = ["sbatch", "-J", "won", "-o", "x.out", "-D", &chdir, "-W", &file, "--wait", "two words"];
    let taken = slurm(&options).ok();
    assert_eq!(fs::read_to_string(folder.join("seen")).expect("it ran"), "--wait|two words|2\n");
    assert!(taken.err.contains("command line: --output=x.out"), "{taken:?}");
    let wrapped = slurm(&["sbatch", "--wrap", "sleep 600", "-J", "long", "--parsable", "-t", "2:00:00"]).ok();
    let long = wrapped.out.trim().to_owned();
    let other = slurm(&["sbatch", "--parsable", "--wrap=sleep 600"]).ok().out.trim().to_owned();
    for id in [&long, &other] {
        in_state(state, id, &["running"]);
    }
    let wrong = slurm(&["sbatch", "--nodez=2", &file]);
    assert!(wrong.code == 2 && wrong.err.contains("--nodez"), "{wrong:?}");
    let wrong = slurm(&["sbatch", "--begin=now+1hour", "-D", &chdir, &file]);
    assert!(wrong.code == 2 && wrong.err.contains("command line: --begin"), "{wrong:?}");
    let wrong = slurm(&["sbatch", "--wrap", "true", &file]);
    assert!(wrong.code == 2 && wrong.err.contains("--wrap"), "{wrong:?}");

    let lines = |args: &[&str]| -> Vec<String> { slurm(args).ok().out.lines().map(str::to_owned).collect() };
    assert_eq!(lines(&["squeue", "--me", "-h", "-n", "long", "-o", "%j %u %t %P"]), ["long default R alpha"]);
    assert_eq!(lines(&["squeue", "-o", "%.6j|%T", "-n", "wrap"]), ["  NAME|STATE", "  wrap|RUNNING"]);
    assert_eq!(lines(&["squeue", "-h"]).len(), 2, "no heading, and no help");
    assert_eq!(lines(&["squeue", "-h", "-u", "nobody"]), [""; 0]);
    let wrong = slurm(&["squeue", "-o", "%Z"]);
    assert!(wrong.code == 2 && wrong.err.contains("%Z"), "{wrong:?}");
    let nodes = slurm(&["sinfo", "-N", "-l", "-h"]).ok();
    assert!(nodes.out.starts_with("alpha") && nodes.err.contains("--Node"), "{nodes:?}");

    slurm(&["scancel", "-n", "long", "-t", "PENDING"]).ok();
    slurm(&["scancel", "-u", "nobody"]).ok();
    slurm(&["scancel", "--me", "-n", "long"]).ok();
    assert_eq!(ended(state, &long)["state"], "cancelled");
    assert_eq!(job(state, &other).expect("a job")["state"], "running", "only what all of them name");
    let wrong = slurm(&["scancel"]);
    assert!(wrong.code == 2 && wrong.err.contains("<IDS>"), "{wrong:?}");
    let wrong = slurm(&["scancel", "-t", "SUSPENDED", &other]);
    assert!(wrong.code == 2 && wrong.err.contains("SUSPENDED"), "{wrong:?}");

    let account = slurm(&["sacct", "-X", "-n", "-u", "default", "-S", "now-1hour"]).ok().out;
    assert_eq!(account.lines().count(), 3, "{account}");
    let row = |name: &str| account.lines().find(|l| l.contains(name)).unwrap_or_default().to_owned();
    assert!(row("won").contains("COMPLETED") && row("won").contains("0:0"), "{account}");
    assert!(row("long").contains("CANCELLED") && row("wrap").contains("RUNNING"), "{account}");
    assert!(slurm(&["sacct", "-j", &long]).ok().out.contains("JobID"), "with headings");
    let wrong = slurm(&["sacct", "-S", "yesterday"]);
    assert!(wrong.code == 2 && wrong.err.contains("yesterday"), "{wrong:?}");

    // Bare, as the file of aliases makes them.
    let aliases = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/slurm-aliases.sh");
    let bin = Path::new(STARLING).parent().expect("a folder").display().to_string();
    let text = format!(
        "shopt -s expand_aliases\n. {aliases}\nset -e\nsqueue -h -o %j\nsinfo -h >/dev/null\nscancel {other}\n\
         sacct -n -j {other}\nsbatch --parsable --wrap true >/dev/null\n"
    );
    let mut bash = std::process::Command::new("bash");
    bash.args(["--norc", "-c", &text]).env("STARLING_STATE", state).env_remove("STARLING_PEER");
    bash.env("PATH", format!("{bin}:/usr/bin:/bin"));
    let done = bash.output().expect("bash");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && said.starts_with("wrap\n") && said.contains("wrap "), "{done:?}");
    assert_eq!(ended(state, &other)["state"], "cancelled");
}

/// A unit or a pod names whom to join at every start; by then that host may be gone.
#[test]
fn a_peer_that_has_a_mesh_does_not_look_for_the_one_it_joined_at() {
    let mut mesh = Mesh::start([Plan::new("alpha")]);
    let peer = mesh.peer_mut("alpha");
    let token = peer.token();
    let gone = format!("{}@gone.invalid:7171", token.split('@').next().expect("a token"));
    peer.kill();
    peer.spawn(Some(&gone));
    peer.wait_up();
    // One that has none yet says what it did not find.
    let new = mesh.folder.path().join("new");
    let said = cli(&new, &["up", "--listen", "127.0.0.1:0", "--join", &gone]);
    assert!(said.code == 4 && said.err.contains("gone.invalid:7171 is not found"), "{said:?}");
}
