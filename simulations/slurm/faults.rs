//! Honest absence: between the peer and Slurm's commands stands a folder of wrappers that delay, fail, cut answers
//! short or empty them. Starts are counted from what the jobs wrote.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use starling::backends::Backend;
use starling::backends::conformance::{Ear, key, script, stop};
use starling::base::Span;
use starling::core::api::StopReason;
use starling::model::Outcome;

use super::backend::{Desk, block_on};
use super::ground::Ground;
use super::harness::until;

/// Wrappers of all commands. What each does is read from a file of its name: `pass`, `fail`, `cut`, `empty`,
/// `slow SECONDS`, and for sbatch `lose`: it is made, and the answer is not heard.
pub struct Proxy {
    folder: PathBuf,
}

impl Proxy {
    pub fn new(folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).expect("a folder");
        for name in ["sbatch", "squeue", "sinfo", "scontrol", "scancel"] {
            let text = format!(
                "#!/bin/bash\nhere={}\necho {name} >> $here/calls\nmode=$(cat $here/{name}.mode 2>/dev/null)\n\
                 case $mode in\n\
                 fail) echo \"slurm_load: Unable to contact slurm controller (connect failure)\" >&2; exit 1;;\n\
                 cut) /usr/bin/{name} \"$@\" | head -c 200; exit 0;;\n\
                 empty) [ {name} = scontrol ] && {{ echo 'broken' >&2; exit 1; }}; echo '{{\"meta\":{{}},\"errors\":[],\"jobs\":[],\"nodes\":[]}}'; exit 0;;\n\
                 lose) /usr/bin/{name} \"$@\" >/dev/null; echo 'Socket timed out on send/recv operation' >&2; exit 1;;\n\
                 slow*) sleep ${{mode#slow }};;\nesac\nexec /usr/bin/{name} \"$@\"\n",
                folder.display()
            );
            let file = folder.join(name);
            fs::write(&file, text).expect("a wrapper");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("rights");
        }
        Self { folder }
    }
    pub fn path(&self) -> &Path {
        &self.folder
    }
    pub fn set(&self, names: &[&str], mode: &str) {
        for name in names {
            let aside = self.folder.join(format!("{name}.mode.tmp"));
            fs::write(&aside, mode).expect("a mode");
            fs::rename(aside, self.folder.join(format!("{name}.mode"))).expect("a mode");
        }
    }
    pub fn calls(&self, name: &str) -> usize {
        let text = fs::read_to_string(self.folder.join("calls")).unwrap_or_default();
        text.lines().filter(|l| *l == name).count()
    }
    /// Waits until a command was called so often from now on.
    pub fn wait_calls(&self, name: &str, more: usize) {
        let from = self.calls(name);
        until(&format!("{more} calls of {name}"), || {
            let now = self.calls(name) - from;
            if now >= more { Ok(()) } else { Err(now.to_string()) }
        });
    }
}

pub fn an_empty_or_broken_answer_ends_nothing(ground: &mut Ground) {
    let folder = ground.folder("absence");
    let (conf, proxy) = (ground.a.conf(), Proxy::new(folder.join("bin")));
    let starts = folder.join("starts");
    let job = script(&format!(
        "echo $STARLING_JOB_ID >> {}; while [ ! -f code ]; do sleep 0.05; done",
        starts.display()
    ));
    block_on(async {
        let change = |c: &mut starling::backends::slurm::SlurmConfig| c.bin = Some(proxy.path().to_owned());
        let desk = Desk::new(folder.join("shared"), &conf, change).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        for n in 1..=3 {
            desk.go(key(n), job.clone()).await;
        }
        for n in 1..=3 {
            ear.started(key(n)).await;
        }
        for mode in ["empty", "cut", "fail", "slow 2"] {
            proxy.set(&["squeue", "scontrol", "sinfo"], mode);
            let proxy = &proxy;
            tokio::task::block_in_place(|| proxy.wait_calls("squeue", 3));
            for n in 1..=3 {
                assert!(!desk.backend.attempt_dir(key(n)).join("ended").exists(), "{mode}: {n} was given up");
            }
        }
        proxy.set(&["squeue", "scontrol", "sinfo"], "pass");
        for n in 1..=3 {
            fs::write(desk.backend.attempt_dir(key(n)).join("run/code"), "").expect("writes");
            assert_eq!(ear.ended(key(n)).await, Outcome::Exited(0));
        }
        let lines = fs::read_to_string(&starts).expect("they ran");
        assert_eq!(lines.lines().count(), 3, "each once: {lines}");
    });
}

pub fn a_native_job_of_the_same_name_is_not_touched(ground: &mut Ground) {
    let folder = ground.folder("native");
    let name = format!("starling-{}", key(1));
    let submitted = ground.a.text(
        "sbatch",
        &[
            "--parsable",
            &format!("--job-name={name}"),
            "--comment=mine",
            "--output=/dev/null",
            "--wrap",
            "sleep 600",
        ],
    );
    let theirs = submitted.clone();
    let conf = ground.a.conf();
    block_on(async {
        let desk = Desk::new(folder, &conf, |_| {}).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        desk.go(key(1), script("while :; do sleep 0.05; done")).await;
        ear.started(key(1)).await;
        desk.backend.command(stop(key(1), Span::millis(200), StopReason::Cancel)).await;
        assert_eq!(ear.ended(key(1)).await, Outcome::Cancelled);
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    });
    let state = ground.a.text("squeue", &["-h", "-j", &theirs, "-o", "%T"]);
    assert_eq!(state, "RUNNING", "the other job of this name lives");
    ground.a.run("scancel", &[&theirs]);
}

/// sbatch makes the job and its answer is lost; then Slurm loses the job itself, before it began.
pub fn an_acknowledged_job_that_vanished_runs_once(ground: &mut Ground) {
    let folder = ground.folder("vanished");
    let (conf, proxy) = (ground.a.conf(), Proxy::new(folder.join("bin")));
    let starts = folder.join("starts");
    let job = script(&format!("echo $STARLING_JOB_ID >> {}", starts.display()));
    block_on(async {
        let change = |c: &mut starling::backends::slurm::SlurmConfig| c.bin = Some(proxy.path().to_owned());
        let desk = Desk::new(folder.join("shared"), &conf, change).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        proxy.set(&["sbatch"], "lose");
        desk.go(key(1), job.clone()).await;
        assert_eq!(ear.ended(key(1)).await, Outcome::Exited(0), "it was found by its name");
        // Not made at all, although nobody said no: it is made again once two lists lack it.
        proxy.set(&["sbatch"], "fail");
        desk.go(key(2), job.clone()).await;
        let proxy = &proxy;
        tokio::task::block_in_place(|| proxy.wait_calls("squeue", 2));
        proxy.set(&["sbatch"], "pass");
        assert_eq!(ear.ended(key(2)).await, Outcome::Exited(0));
        let lines = fs::read_to_string(&starts).expect("they ran");
        assert_eq!(lines.lines().count(), 2, "each once: {lines}");
    });
}

/// Lists and looks at nodes in so many intervals are as many for one job as for twelve.
pub fn reads_do_not_grow_with_the_number_of_jobs(ground: &mut Ground) {
    const READS: [&str; 3] = ["squeue", "scontrol", "sinfo"];
    let folder = ground.folder("reads");
    let (conf, proxy) = (ground.a.conf(), Proxy::new(folder.join("bin")));
    let job = script("while [ ! -f code ]; do sleep 0.2; done");
    block_on(async {
        let change = |c: &mut starling::backends::slurm::SlurmConfig| c.bin = Some(proxy.path().to_owned());
        let desk = Desk::new(folder.join("shared"), &conf, change).await;
        let (mut ear, _) = Ear::adopt(&*desk.backend).await;
        // In fifteen lists.
        let reads = || {
            let before = READS.map(|name| proxy.calls(name));
            let begun = std::time::Instant::now();
            tokio::task::block_in_place(|| proxy.wait_calls("squeue", 15));
            // 300 ms each, and no more of them than fit into the time.
            let fit = begun.elapsed().as_millis() / 300 + 2;
            let [lists, nodes, groups] = [0, 1, 2].map(|n| proxy.calls(READS[n]) - before[n]);
            assert!(lists as u128 <= fit, "{lists} lists in {:?}", begun.elapsed());
            (nodes, groups)
        };
        desk.go(key(1), job.clone()).await;
        ear.started(key(1)).await;
        let one = reads();
        for n in 2..=12 {
            desk.go(key(n), job.clone()).await;
        }
        for n in 2..=12 {
            ear.started(key(n)).await;
        }
        let twelve = reads();
        // A look at the nodes every fifth time: three, and one more on the edge.
        for (nodes, groups) in [one, twelve] {
            assert!(nodes <= 4 && groups <= 4, "one job: {one:?}, twelve: {twelve:?}");
        }
        for n in 1..=12 {
            fs::write(desk.backend.attempt_dir(key(n)).join("run/code"), "").expect("writes");
            assert_eq!(ear.ended(key(n)).await, Outcome::Exited(0));
        }
    });
}
