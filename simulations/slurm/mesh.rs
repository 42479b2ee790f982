//! A mesh of three peers: two in front of Slurm clusters, one in front of this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::backend::sleepers;
use super::ground::{Ground, NODES};
use super::harness::{cli, ended, exited, in_state, job, of_attempts, submit, succeeded, until};
use super::peers::{Peer, slurm};

/// A job document that appends to a file when it starts.
fn noted(starts: &Path, cluster: &str, more: &str, then: &str) -> String {
    format!(
        "name: noted\nplacement: {{clusters: [{cluster}]}}\non_lost_contact: {{grace: 20s}}\n{more}\
         run: |\n  echo \"$STARLING_JOB_ID $STARLING_EPOCH $STARLING_CLUSTER\" >> {}\n  {then}\n",
        starts.display()
    )
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn outcome(job: &Value) -> Value {
    of_attempts(job, "outcome").last().cloned().unwrap_or_default()
}

pub fn jobs_with_gpus_failures_and_cancels(ground: &mut Ground) {
    let folder = ground.folder("jobs");
    let (mesh, a, _) = ground.mesh();
    let loc = &mesh.loc.state;
    // Asked for at a peer whose cluster cannot run it.
    let gpus = submit(
        loc,
        "name: gpus\nresources: {gpus: 4, gpu: H100}\nrun: echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_ID\n",
    );
    let gpus_job = succeeded(loc, &gpus);
    let at = of_attempts(&gpus_job, "cluster")[0].as_str().expect("a cluster").to_owned();
    assert!(at == "alpha" || at == "beta", "{gpus_job:#}");
    let logs = cli(loc, &["logs", &gpus]).ok().out;
    assert!(logs.contains("0,1,2,3"), "bound by Slurm, heard through any peer: {logs}");

    let gang =
        submit(loc, "name: gang\nnodes: 3\nresources: {gpus: 2, gpu: H100}\nrun: echo $RANK/$WORLD_SIZE\n");
    succeeded(loc, &gang);
    let logs = cli(loc, &["logs", &gang]).ok().out;
    assert!((0..3).all(|n| logs.contains(&format!("{n}/3"))), "{logs}");

    let failed = ended(loc, &submit(loc, "name: f\nplacement: {clusters: [alpha]}\nrun: exit 42\n"));
    assert_eq!((&failed["state"], outcome(&failed)), (&"failed".into(), exited(42)), "{failed:#}");
    let killed = ended(loc, &submit(loc, "name: k\nplacement: {clusters: [beta]}\nrun: kill -9 $$\n"));
    assert_eq!(outcome(&killed)["value"], 9, "{killed:#}");
    let limited = submit(loc, "name: l\nplacement: {clusters: [alpha]}\nmax_runtime: 1s\nrun: sleep 600\n");
    assert_eq!(outcome(&ended(loc, &limited))["kind"], "timed_out");

    let mark = format!("{}", 7_200 + std::process::id());
    let starts = folder.join("starts");
    let long = submit(loc, &noted(&starts, "alpha", "", &format!("exec sleep {mark}")));
    in_state(loc, &long, &["running"]);
    until("it wrote", || if lines(&starts).len() == 1 { Ok(()) } else { Err("nothing".into()) });
    cli(&mesh.beta.state, &["cancel", &long]).ok();
    assert_eq!(ended(loc, &long)["state"], "cancelled");
    assert_eq!(sleepers(&mark), 0);
    until("Slurm has nothing of it", || a.native(&long).map_or(Ok(()), Err));
    // The look-alikes show it.
    let queue = cli(loc, &["slurm", "squeue", "-t", "all"]).ok().out;
    assert!(queue.contains("JOBID") && queue.contains("CANCELLED"), "{queue}");
    let nodes = cli(loc, &["slurm", "sinfo"]).ok().out;
    assert!(nodes.contains("alpha") && nodes.contains("beta"), "{nodes}");
}

pub fn other_peoples_jobs_and_drained_nodes_are_not_offered(ground: &mut Ground) {
    let (mesh, a, _) = ground.mesh();
    let free = |wanted: u64| {
        until(&format!("{wanted} GPUs are free at alpha, as beta sees it"), || {
            let cluster = mesh.beta.cluster("alpha")?;
            let now = &cluster["gpus"]["H100"];
            if now["free"] == wanted { Ok(()) } else { Err(cluster.to_string()) }
        });
    };
    let all = u64::from(NODES) * 4;
    free(all);
    let theirs =
        a.text("sbatch", &["--parsable", "--gres=gpu:h100:3", "-o", "/dev/null", "--wrap", "sleep 600"]);
    free(all - 3);
    // Those of theirs that wait for room are in the report; what is held is not waiting for any.
    let more = |name: &str, hold: &str| {
        let wanted =
            ["--parsable", "--gres=gpu:h100:4", "-N3", "-o", "/dev/null", name, hold, "--wrap", "sleep 600"];
        a.text("sbatch", &wanted)
    };
    let waiting = [more("-Jwaits", "--nice=0"), more("-Jheld", "--hold")];
    let queued = |wanted: u64| {
        until(&format!("{wanted} wait at alpha, as beta sees it"), || {
            let report = cli(&mesh.beta.state, &["clusters", "alpha", "--report"]).ok().json();
            if report["queued_jobs"] == wanted { Ok(()) } else { Err(report.to_string()) }
        });
    };
    queued(1);
    a.run("scancel", &[waiting[0].as_str(), waiting[1].as_str()]);
    queued(0);
    a.run("scancel", &[&theirs]);
    free(all);
    a.run("scontrol", &["update", "nodename=alpha-n3", "state=drain", "reason=fan"]);
    free(all - 4);
    a.run("scontrol", &["update", "nodename=alpha-n3", "state=resume"]);
    free(all);
}

pub fn an_sbatch_file_runs_as_it_is(ground: &mut Ground) {
    let folder = ground.folder("sbatch");
    let (mesh, a, _) = ground.mesh();
    let file = folder.join("train.sbatch");
    let text = format!(
        "#!/bin/bash\n#SBATCH --job-name=train --nodes=2 --ntasks-per-node=1\n#SBATCH --gres=gpu:h100:2\n\
         #SBATCH -t 10 --chdir={0}\n#SBATCH --output=train.out --mail-type=END\n\
         set -o pipefail\necho \"$SLURM_JOB_NUM_NODES $SLURM_JOB_PARTITION ${{BASH_VERSION:+bash}}\"\n\
         srun /bin/sh -c 'echo task $SLURM_PROCID $CUDA_VISIBLE_DEVICES'\n",
        folder.display()
    );
    fs::write(&file, text).expect("written");
    let taken = cli(&mesh.loc.state, &["submit", file.to_str().expect("a path"), "--wait"]);
    assert_eq!(taken.code, 0, "{taken:?}");
    for named in ["line 5", "--output", "grace: never"] {
        assert!(taken.err.contains(named), "{named} is named: {taken:?}");
    }
    let list = cli(&mesh.loc.state, &["jobs", "--json"]).ok().json();
    let job = &list["jobs"].as_array().expect("jobs")[0];
    assert_eq!((&job["name"], &job["nodes"], &job["gpus"]), (&"train".into(), &2.into(), &4.into()));
    let logs = cli(&mesh.loc.state, &["logs", job["id"].as_str().expect("an id")]).ok().out;
    assert!(
        logs.contains("2 main bash") && logs.contains("task 0 0,1") && logs.contains("task 1 0,1"),
        "{logs}"
    );

    // Each job of an array is a batch job of its own; what its steps read is as Slurm's own arrays have it.
    let seen = folder.join("seen");
    let text = format!(
        "#!/bin/bash\n#SBATCH --array=3,7 --chdir={} -t 10\n\
         srun /bin/sh -c 'echo $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT in $SLURM_JOB_NUM_NODES' >>{}\n",
        folder.display(),
        seen.display()
    );
    fs::write(&file, text).expect("written");
    let taken = cli(&mesh.loc.state, &["submit", file.to_str().expect("a path"), "--wait"]);
    assert_eq!(taken.code, 0, "{taken:?}");
    let mut both = lines(&seen);
    both.sort_unstable();
    assert_eq!(both, ["3 of 2 in 1", "7 of 2 in 1"]);
    // A guard's word is quicker than Slurm's own list.
    until("Slurm's queue is empty", || match a.text("squeue", &["-h"]) {
        none if none.is_empty() => Ok(()),
        list => Err(list),
    });

    // What would change its meaning is refused, line by line, and nothing is submitted.
    fs::write(&file, "#!/bin/bash\n#SBATCH --begin=now+1hour\n#SBATCH --dependency=afterok:1\ntrue\n")
        .expect("written");
    let refused = cli(&mesh.loc.state, &["submit", file.to_str().expect("a path")]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.err.contains("line 2") && refused.err.contains("line 3"), "{refused:?}");
    assert_eq!(a.text("squeue", &["-h"]), "");
}

/// A script's own partition and constraint are held against what each Slurm has, and the nodes that it ran on come back.
pub fn partitions_and_features_are_told_and_decide_where(ground: &mut Ground) {
    let (mesh, a, _) = ground.mesh();
    let loc = &mesh.loc.state;
    let named = |sets: &Value| -> Vec<(String, u64)> {
        let sets = sets.as_array().expect("a list");
        sets.iter()
            .map(|s| (s["name"].as_str().expect("a name").to_owned(), s["up"].as_u64().expect("up")))
            .collect()
    };
    let all = u64::from(NODES);
    let of =
        |names: &[&str]| -> Vec<(String, u64)> { names.iter().map(|n| ((*n).to_owned(), all)).collect() };
    until("loc knows beta's partitions and features", || {
        let slurm = mesh.loc.cluster("beta")?["slurm"].clone();
        if slurm.is_null() {
            return Err("not yet".into());
        }
        let told = (named(&slurm["partitions"]), named(&slurm["features"]));
        if told == (of(&["low", "main"]), of(&["net-beta"])) { Ok(()) } else { Err(slurm.to_string()) }
    });
    let text = cli(loc, &["clusters", "alpha"]).ok().out;
    assert!(text.contains("PARTITION") && text.contains("net-alpha"), "{text}");
    // Only one of three has such nodes.
    let on = |lines: &str, nodes: u64| {
        let script = format!("#!/bin/bash\n{lines}\necho $SLURM_JOB_PARTITION $SLURM_JOB_NODELIST\n");
        serde_json::json!({
            "name": "on", "nodes": nodes, "placement": {"clusters": ["alpha", "beta"]},
            "on_lost_contact": {"grace": "never"}, "run": ["/bin/bash", "-c", script]
        })
        .to_string()
    };
    let id = submit(loc, &on("#SBATCH -p low --constraint=net-beta", 2));
    let done = succeeded(loc, &id);
    assert_eq!(of_attempts(&done, "cluster"), ["beta"], "{done:#}");
    let nodes = of_attempts(&done, "nodes")[0].as_str().expect("its nodes").to_owned();
    assert_eq!(cli(loc, &["logs", &id]).ok().out.trim(), format!("low {nodes}"));
    assert!(nodes.starts_with("beta-n["), "{nodes}");
    assert!(of_attempts(&done, "started_at_ms")[0].is_u64(), "{done:#}");
    let text = cli(loc, &["job", &id]).ok().out;
    assert!(text.contains("NODES") && text.contains(&nodes) && text.contains("STARTED"), "{text}");
    // None has this partition: it is refused with its reason, and Slurm was not asked.
    let file = mesh.loc.state.with_extension("nowhere.json");
    fs::write(&file, on("#SBATCH -p huge", 1)).expect("written");
    let refused = cli(loc, &["submit", file.to_str().expect("a path")]);
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(refused.err.contains("no partition huge; has low, main"), "{refused:?}");
    assert_eq!(a.text("squeue", &["-h"]), "");
    // A drained node is named, with its reason.
    a.run("scontrol", &["update", "nodename=alpha-n2", "state=drain", "reason=fan"]);
    until("loc knows that it takes nothing", || {
        let cluster = mesh.loc.cluster("alpha")?;
        let out = &cluster["nodes_out"]["nodes"][0];
        let told = out["name"] == "alpha-n2" && out["why"].as_str().is_some_and(|why| why.contains("fan"));
        if told && cluster["slurm"]["partitions"][0]["up"] == all - 1 {
            Ok(())
        } else {
            Err(cluster.to_string())
        }
    });
    a.run("scontrol", &["update", "nodename=alpha-n2", "state=resume"]);
    a.wait_nodes(usize::from(NODES));
}

/// A user to whom Slurm hides a partition: nodes of only that one are not offered, and are named with the reason.
pub fn nodes_of_a_hidden_partition_are_not_offered(ground: &mut Ground) {
    if std::process::Command::new("setpriv").arg("--version").output().is_err() {
        ground.not_tried("setpriv is not installed");
        return;
    }
    let folder = ground.folder("hidden");
    // root is shown everything: what is asked is asked as nobody, who has to reach Slurm's configuration.
    for path in [folder.as_path(), folder.parent().expect("the ground")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("mode");
    }
    let bin = folder.join("bin");
    fs::create_dir(&bin).expect("a folder");
    for (program, by) in [
        ("sinfo", "setpriv --reuid=65534 --regid=65534 --clear-groups "),
        ("scontrol", "setpriv --reuid=65534 --regid=65534 --clear-groups "),
        ("squeue", ""),
        ("sbatch", ""),
        ("scancel", ""),
        ("sacct", ""),
    ] {
        let file = bin.join(program);
        fs::write(&file, format!("#!/bin/sh\nexec {by}/usr/bin/{program} \"$@\"\n")).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("mode");
    }
    let b = &ground.b;
    let all = usize::from(NODES);
    let (shown, last) = (format!("beta-n[1-{}]", all - 1), format!("beta-n{all}"));
    let change = |args: &[&str]| {
        let done = b.run("scontrol", args);
        assert!(done.status.success(), "scontrol {args:?}: {done:?}");
    };
    for partition in ["PartitionName=main", "PartitionName=low"] {
        change(&["update", partition, &format!("Nodes={shown}")]);
    }
    change(&["create", "PartitionName=secret", &format!("Nodes={last}"), "Hidden=YES"]);
    let config = slurm(&b.conf(), &format!("bin = \"{}\"\n", bin.display()));
    let peer = Peer::start(&folder, "hidden", &config, None);
    until("the hidden node is left out", || {
        let cluster = peer.cluster("hidden")?;
        let out = &cluster["nodes_out"]["nodes"][0];
        let told =
            out["name"] == last.as_str() && out["why"].as_str().is_some_and(|why| why.contains("hidden"));
        let free = cluster["gpus"]["H100"]["free"] == (all as u64 - 1) * 4;
        if told && free { Ok(()) } else { Err(cluster.to_string()) }
    });
    // It is told that there is such a partition, as a script may name it.
    let partitions = peer.cluster("hidden").expect("told")["slurm"]["partitions"].to_string();
    assert!(partitions.contains("secret"), "{partitions}");
    // All are hidden: nothing is offered. Then none is.
    for partition in ["PartitionName=main", "PartitionName=low"] {
        change(&["update", partition, "Hidden=YES"]);
    }
    drop(peer);
    let peer = Peer::start(&folder, "none", &config, None);
    until("nothing is offered", || {
        let cluster = peer.cluster("none")?;
        let said = cluster.to_string();
        let none = cluster["gpus"]["H100"]["total"].as_u64().unwrap_or(0) == 0;
        if none && said.contains("hidden") { Ok(()) } else { Err(said) }
    });
    drop(peer);
    change(&["delete", "PartitionName=secret"]);
    for partition in ["PartitionName=main", "PartitionName=low"] {
        change(&["update", partition, "Nodes=ALL", "Hidden=NO"]);
    }
    ground.b.wait_nodes(all);
}

/// A document whose job is this batch script, at alpha.
fn batch(name: &str, text: &str) -> String {
    let run = ["/bin/bash", "-c", text];
    serde_json::json!({ "name": name, "placement": { "clusters": ["alpha"] }, "run": run }).to_string()
}

pub fn slurms_own_ends_are_told_apart(ground: &mut Ground) {
    let folder = ground.folder("ends");
    let (mesh, a, _) = ground.mesh();
    let loc = &mesh.loc.state;
    let wrote = |starts: &Path, n: usize| {
        until(&format!("{n} wrote"), || match lines(starts) {
            all if all.len() == n => Ok(all),
            all => Err(format!("{all:?}")),
        })
    };
    let run = |name: &str, document: Option<String>| {
        let starts = folder.join(name);
        let id = submit(loc, &document.unwrap_or_else(|| noted(&starts, "alpha", "", "exec sleep 600")));
        wrote(&starts, 1);
        let native = until("its native job", || a.native(&id).ok_or("none".to_owned()));
        (id, native, starts)
    };
    let first = |id: &str| of_attempts(&job(loc, id).expect("a job"), "outcome")[0].clone();
    let batched = |name: &str, options: &str| {
        let text = format!(
            "#!/bin/bash\n#SBATCH {options}\necho \"$STARLING_JOB_ID $STARLING_EPOCH $STARLING_CLUSTER\" >> {}\nexec sleep 600\n",
            folder.join(name).display()
        );
        Some(batch(name, &text))
    };
    // Somebody cancels it in Slurm: that is a cancel, and it is not run again.
    let (id, native, _) = run("cancelled", None);
    a.run("scancel", &[&native]);
    assert_eq!(ended(loc, &id)["state"], "cancelled");
    // Its time limit is over; an administrator has shortened it, since Slurm's least is a minute.
    let (limited, native, _) = run("limit", None);
    a.run("scontrol", &["update", &format!("jobid={native}"), "endtime=now+2"]);
    // A requeue over our "no": this attempt is over, the job runs once more, under the next epoch.
    let (id, native, starts) = run("requeued", None);
    a.run("scontrol", &["update", &format!("jobid={native}"), "requeue=1"]);
    a.run("scontrol", &["requeue", &native]);
    let begun = Instant::now();
    let all = wrote(&starts, 2);
    assert!(begun.elapsed() < Duration::from_secs(30), "told by the next list: {:?}", begun.elapsed());
    assert!(all[0].contains(" 1 ") && all[1].contains(" 2 "), "each epoch once: {all:?}");
    assert_eq!(first(&id)["value"], "requeued by Slurm");
    until("what Slurm queued again is taken back", || {
        match a.text("squeue", &["-h", "-t", "all", "-j", &native, "-o", "%T"]) {
            state if ["PENDING", "RUNNING", "COMPLETING"].contains(&state.as_str()) => Err(state),
            _ => Ok(()),
        }
    });
    assert_eq!(lines(&starts).len(), 2, "and never ran beside it");
    cli(loc, &["cancel", &id]).ok();
    ended(loc, &id);
    // Slurm looks at its limits now and then; before a node fails that the job may be on.
    let late = ended(loc, &limited);
    assert_eq!(outcome(&late)["kind"], "timed_out", "{late:#}");
    // Its node fails: the guard there is ended, and it runs again elsewhere.
    let (id, native, starts) = run("node", None);
    let node = a.text("squeue", &["-h", "-j", &native, "-o", "%N"]);
    a.run("scontrol", &["update", &format!("nodename={node}"), "state=down", "reason=fan"]);
    wrote(&starts, 2);
    assert_eq!(first(&id)["value"], "its node failed");
    a.run("scontrol", &["update", &format!("nodename={node}"), "state=resume"]);
    cli(loc, &["cancel", &id]).ok();
    ended(loc, &id);
    a.wait_nodes(usize::from(NODES));
    // It makes room for a partition of a higher tier.
    let (id, native, starts) = run("preempted", batched("preempted", "-p low"));
    let node = a.text("squeue", &["-h", "-j", &native, "-o", "%N"]);
    let wanted =
        ["--parsable", "-p", "main", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 600", "-w", &node];
    let theirs = a.text("sbatch", &wanted);
    wrote(&starts, 2);
    assert_eq!(first(&id)["value"], "preempted by Slurm");
    a.run("scancel", &[&theirs]);
    cli(loc, &["cancel", &id]).ok();
    ended(loc, &id);
}

/// `--signal` comes so long before the limit: by Slurm's word where only Slurm knows the limit, by the guard's clock
/// where the script says it; and to whom it names.
pub fn a_script_is_warned_before_its_time_limit(ground: &mut Ground) {
    let folder = ground.folder("warned");
    let (mesh, a, _) = ground.mesh();
    let loc = &mesh.loc.state;
    let (ready, saved) = (folder.join("ready"), folder.join("saved"));
    let text = format!(
        "#!/bin/bash\n#SBATCH --signal=B:USR1@30\ntrap 'echo shell >> {}; exit 0' USR1\necho ready >> {}\n\
         while :; do sleep 0.1; done\n",
        saved.display(),
        ready.display()
    );
    let slurms = submit(loc, &batch("slurms", &text));
    let step = folder.join("step");
    let text = format!(
        "#!/bin/bash\n#SBATCH -t 1 --signal=USR1@25\n\
         /bin/sh -c 'trap \"exit 7\" USR1; while :; do sleep 0.1; done'\necho $? $SECONDS >> {}\n",
        step.display()
    );
    let mut document: Value = serde_json::from_str(&batch("own", &text)).expect("a document");
    document["max_runtime"] = "60s".into();
    let own = submit(loc, &document.to_string());
    until("it is ready", || if lines(&ready).is_empty() { Err("no".into()) } else { Ok(()) });
    let native = until("its native job", || a.native(&slurms).ok_or("none".to_owned()));
    a.run("scontrol", &["update", &format!("jobid={native}"), "endtime=now+45"]);
    let begun = Instant::now();
    succeeded(loc, &slurms);
    assert!(begun.elapsed() < Duration::from_secs(45), "before the limit: {:?}", begun.elapsed());
    assert_eq!(lines(&saved), ["shell"]);
    let done = succeeded(loc, &own);
    let said = lines(&step);
    let [said] = said.as_slice() else { panic!("the shell lived: {said:?} {done:#}") };
    let (code, seconds) = said.split_once(' ').expect("two words");
    assert_eq!(code, "7", "its step heard it");
    assert!(seconds.parse::<u64>().is_ok_and(|s| s <= 40), "with 25 s left and little less: {said}");
    let started = of_attempts(&done, "started_at_ms")[0].as_u64().expect("when it started");
    let (placed, ended) = (of_attempts(&done, "placed_at_ms"), of_attempts(&done, "ended_at_ms"));
    let (placed, ended) =
        (placed[0].as_u64().expect("when placed"), ended[0].as_u64().expect("when it ended"));
    assert!(placed <= started && started + 1_000 < ended, "{placed} {started} {ended}");
}

/// When a job started comes back as its program saw it, of one node and of a gang.
pub fn when_it_started_comes_back(ground: &mut Ground) {
    let folder = ground.folder("started");
    let (mesh, ..) = ground.mesh();
    let loc = &mesh.loc.state;
    for (name, more) in [("one", ""), ("gang", "nodes: 2\n")] {
        let file = folder.join(name);
        let then = format!("date +%s%3N >> {}; sleep 2", file.display());
        let done = succeeded(loc, &submit(loc, &noted(&folder.join("starts"), "alpha", more, &then)));
        let seen: Vec<u64> = lines(&file).iter().filter_map(|l| l.parse().ok()).collect();
        let first = *seen.iter().min().expect("it wrote");
        let told = of_attempts(&done, "started_at_ms")[0].as_u64().expect("when it started");
        assert!(told.abs_diff(first) < 1_500, "{name}: {told} is told and {seen:?} seen");
        let ended = of_attempts(&done, "ended_at_ms")[0].as_u64().expect("when it ended");
        assert!(ended >= told + 1_900, "{name}: {told} {ended}");
    }
}

pub fn the_controller_is_killed_in_the_middle(ground: &mut Ground) {
    let folder = ground.folder("controller");
    let (mesh, a, _) = ground.mesh();
    let loc = mesh.loc.state.clone();
    let starts = folder.join("starts");
    let go = folder.join("go");
    let wait = format!("while [ ! -f {} ]; do sleep 0.1; done", go.display());
    let ids: Vec<String> = (0..4).map(|_| submit(&loc, &noted(&starts, "alpha", "", &wait))).collect();
    until(
        "all run",
        || if lines(&starts).len() == 4 { Ok(()) } else { Err(format!("{:?}", lines(&starts))) },
    );
    // Slurm saves its state lazily; what it had not saved is the next scenario.
    let state = a.dir.join("state/job_state");
    let now = std::time::SystemTime::now();
    // It saves after a change only: one more, should it have saved the starts already.
    let native = until("its native job", || a.native(&ids[0]).ok_or("none".to_owned()));
    a.run("scontrol", &["update", &format!("jobid={native}"), "timelimit=100"]);
    until("Slurm has saved that they run", || match fs::metadata(&state).and_then(|m| m.modified()) {
        Ok(at) if at > now => Ok(()),
        other => Err(format!("{other:?}")),
    });
    a.kill_controller();
    until("the view says why nothing is taken", || {
        let cluster = mesh.beta.cluster("alpha")?;
        match cluster["closed"].as_str() {
            Some(why) if why.contains("unknown") => Ok(()),
            _ => Err(cluster.to_string()),
        }
    });
    for id in &ids {
        assert_eq!(job(&loc, id).expect("a job")["state"], "running", "nothing is concluded");
    }
    // Two end while nobody is there to note it but their guards.
    let early = submit(&loc, "name: elsewhere\nplacement: {clusters: [beta]}\nrun: 'true'\n");
    succeeded(&loc, &early);
    a.start_controller();
    a.wait_controller();
    until("alpha takes jobs again", || {
        let cluster = mesh.beta.cluster("alpha")?;
        if cluster["closed"].is_null() { Ok(()) } else { Err(cluster.to_string()) }
    });
    fs::write(&go, "").expect("go");
    for id in &ids {
        let done = succeeded(&loc, id);
        assert_eq!(of_attempts(&done, "epoch").len(), 1, "{done:#}");
    }
    assert_eq!(lines(&starts).len(), 4, "each once: {:?}", lines(&starts));
    // A fresh one, whose batch job Slurm may have lost: it runs all the same, once.
    let last = submit(&loc, &noted(&folder.join("last"), "alpha", "", "true"));
    until("it has a batch job or ended", || {
        let now = job(&loc, &last)?;
        if now["epoch"] == 1 { Ok(()) } else { Err(now.to_string()) }
    });
    a.kill_controller();
    std::thread::sleep(Duration::from_secs(1));
    a.start_controller();
    a.wait_controller();
    succeeded(&loc, &last);
    assert_eq!(lines(&folder.join("last")).len(), 1, "{:?}", lines(&folder.join("last")));
    a.wait_nodes(usize::from(NODES));
}

pub fn the_peer_is_killed_in_the_middle(ground: &mut Ground) {
    let folder = ground.folder("peer");
    let (mesh, ..) = ground.mesh();
    let loc = mesh.loc.state.clone();
    let (starts, go) = (folder.join("starts"), folder.join("go"));
    let wait = format!("while [ ! -f {} ]; do sleep 0.1; done", go.display());
    let ids: Vec<String> = (0..3).map(|_| submit(&loc, &noted(&starts, "alpha", "", &wait))).collect();
    let gang = submit(&loc, &noted(&starts, "alpha", "nodes: 2\n", &wait));
    until(
        "all run",
        || if lines(&starts).len() == 5 { Ok(()) } else { Err(format!("{:?}", lines(&starts))) },
    );
    mesh.alpha.kill();
    std::thread::sleep(Duration::from_secs(2));
    mesh.alpha.again();
    // Adopted: they run on, under the same epoch, and what they end with counts.
    fs::write(&go, "").expect("go");
    for id in ids.iter().chain([&gang]) {
        let done = succeeded(&loc, id);
        assert_eq!(of_attempts(&done, "epoch").len(), 1, "{done:#}");
    }
    assert_eq!(lines(&starts).len(), 5, "each once: {:?}", lines(&starts));
}

/// Killed a moment after they began: Slurm has forgotten some, and takes others for never started, starts them
/// again, kills the rest as orphans. Whatever it does, no attempt runs beside another of its job.
pub fn what_a_killed_controller_forgot_never_runs_twice(ground: &mut Ground) {
    let folder = ground.folder("forgot");
    let (mesh, a, _) = ground.mesh();
    let loc = mesh.loc.state.clone();
    let go = folder.join("go");
    let jobs: Vec<_> = (0..4)
        .map(|n| {
            let beats = folder.join(format!("beats-{n}"));
            let text = format!(
                "name: forgot\nplacement: {{clusters: [alpha]}}\non_lost_contact: {{grace: 8s}}\nrun: |\n  \
                 while [ ! -f {} ]; do echo \"$STARLING_EPOCH $$ $(cut -d' ' -f1 /proc/uptime)\" >> {}; sleep 0.05; done\n",
                go.display(),
                beats.display()
            );
            (submit(&loc, &text), beats)
        })
        .collect();
    until("all run", || match jobs.iter().filter(|(_, beats)| lines(beats).is_empty()).count() {
        0 => Ok(()),
        n => Err(format!("{n} do not")),
    });
    a.kill_controller();
    std::thread::sleep(Duration::from_secs(1));
    a.start_controller();
    a.wait_controller();
    // Longer than a lease and two lists: whatever is to be run again has been.
    std::thread::sleep(Duration::from_secs(15));
    fs::write(&go, "").expect("go");
    for (id, beats) in &jobs {
        succeeded(&loc, id);
        let mut runs: Vec<(String, f64, f64)> = Vec::new();
        for line in lines(beats) {
            let (who, at) = line.rsplit_once(' ').expect("three words");
            let at: f64 = at.parse().expect("a time");
            match runs.iter_mut().find(|(known, ..)| known == who) {
                Some((_, _, last)) => *last = at,
                None => runs.push((who.to_owned(), at, at)),
            }
        }
        for pair in runs.windows(2) {
            assert!(pair[0].2 < pair[1].1, "{id}: two at once: {runs:?}");
        }
    }
    a.wait_nodes(usize::from(NODES));
}

/// The guard on the node ends the attempt within its grace, and only then does it run elsewhere.
pub fn a_peer_that_stays_away_loses_its_job_in_time(ground: &mut Ground) {
    let folder = ground.folder("away");
    let (mesh, ..) = ground.mesh();
    let loc = mesh.loc.state.clone();
    let beats = folder.join("beats");
    let text = format!(
        "name: away\nresources: {{gpus: 1, gpu: H100}}\non_lost_contact: {{grace: 8s}}\n\
         run: |\n  while :; do echo \"$STARLING_EPOCH $(cut -d' ' -f1 /proc/uptime)\" >> {}; sleep 0.05; [ $STARLING_EPOCH = 1 ] || exit 0; done\n",
        beats.display()
    );
    let id = submit(&loc, &text);
    in_state(&loc, &id, &["running"]);
    until("it beats", || if lines(&beats).is_empty() { Err("no".into()) } else { Ok(()) });
    let at =
        of_attempts(&job(&loc, &id).expect("a job"), "cluster")[0].as_str().expect("a cluster").to_owned();
    let peer = if at == "alpha" { &mut mesh.alpha } else { &mut mesh.beta };
    peer.kill();
    let killed = Instant::now();
    let done = succeeded(&loc, &id);
    let times: Vec<(u64, f64)> = lines(&beats)
        .iter()
        .filter_map(|l| l.split_once(' ').and_then(|(e, t)| Some((e.parse().ok()?, t.parse().ok()?))))
        .collect();
    let last = times.iter().filter(|(e, _)| *e == 1).map(|(_, t)| *t).fold(0.0, f64::max);
    let next = times.iter().filter(|(e, _)| *e == 2).map(|(_, t)| *t).fold(f64::MAX, f64::min);
    assert!(last < next, "the first had ended at {last} before the second began at {next}");
    assert_eq!(of_attempts(&done, "epoch").len(), 2, "{done:#}");
    assert!(killed.elapsed() < Duration::from_secs(60), "{:?}", killed.elapsed());
    let peer = if at == "alpha" { &mut mesh.alpha } else { &mut mesh.beta };
    peer.again();
}
