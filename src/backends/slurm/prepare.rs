//! From a start command to a batch job: the folders of its guards, and what sbatch is told.
//!
//! A job of one node, and a batch script of the user's own (one with `#SBATCH` lines), has one guard, the batch
//! step itself. A job of several nodes has one more on each node, started by `srun`: each holds the deadline on
//! its own machine's clock.

use std::io;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use super::SlurmConfig;
use super::driver::Submission;
use super::nodes::NodeMap;
use crate::backends::local::environment::{Warning, common_env, set};
use crate::backends::local::files::{AttemptDir, Binding, GuardSpec, RankSpec, Remote, write_json};
use crate::base::{Instant, Span};
use crate::core::api::{AttemptKey, StartCommand};
use crate::model::JobSpec;
use crate::model::sbatch::{self, Directive};
use crate::model::spec::{Run, WarnSignal};
use crate::model::staging::Staging;

/// How long a guard waits for its peer's first answer.
const FIRST_ANSWER: Span = Span::secs(60);
/// SIGCONT: says nothing to srun, whose tasks are told by their own guards.
const NO_NOTICE: i32 = 18;
/// Options that are ours, or are meant for the submission alone, and so are not passed on.
const OURS: &[&str] = &[
    "job-name",
    "comment",
    "output",
    "error",
    "input",
    "open-mode",
    "chdir",
    "requeue",
    "no-requeue",
    "array",
    "dependency",
    "begin",
    "hold",
    "wait",
    "test-only",
    "parsable",
    "quiet",
    "verbose",
    "signal",
    "export",
    "export-file",
    "get-user-env",
    "wrap",
    "clusters",
    "cluster",
    "kill-on-invalid-dep",
    "uid",
    "gid",
];

/// What is kept beside an attempt's folder, so that another run of the peer can go on with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Guards on single nodes, beside the batch step's own.
    pub parts: u32,
    /// Grace of the attempt.
    pub grace: Option<Span>,
    /// Its guards' secret.
    pub secret: String,
    /// Tells this folder's batch jobs from those of another life under the same name.
    pub mark: String,
    /// What sbatch is told.
    pub options: Vec<(String, String)>,
    /// The batch script.
    pub script: String,
}

/// The name of an attempt's batch job.
pub fn native_name(key: AttemptKey) -> String {
    format!("starling-{key}")
}

/// Its comment: the tag by which a job is ours.
pub fn tag(key: AttemptKey, mark: &str) -> String {
    format!("starling {key} {mark}")
}

/// The attempt and the mark of a comment.
pub fn read_tag(comment: &str) -> Option<(AttemptKey, &str)> {
    let (key, mark) = comment.strip_prefix("starling ")?.split_once(' ')?;
    Some((crate::backends::local::parse_key(key)?, mark))
}

impl Kept {
    /// The submission of an attempt.
    pub fn submission(&self, key: AttemptKey, dir: &Path) -> Submission {
        Submission {
            name: native_name(key),
            comment: tag(key, &self.mark),
            script: self.script.clone(),
            folder: dir.to_owned(),
            output: dir.join("slurm.out"),
            options: self.options.clone(),
        }
    }
}

/// Makes the attempt's folder. `Ok(None)`: its name was taken before. The error says why this cluster cannot run it.
pub fn prepare(
    command: &StartCommand,
    config: &SlurmConfig,
    map: &NodeMap,
    kill_wait: Span,
    dir: &AttemptDir,
) -> Result<Option<Kept>, String> {
    let spec = &command.spec;
    if spec.image.is_some() {
        return Err(
            "images are not run on Slurm clusters yet: give a command that starts the container".into()
        );
    }
    let batch = sbatch::batch_script(&spec.run);
    if batch.is_some() && spec.nodes > 1 && spec.on_lost_contact.grace.is_some() {
        return Err(format!(
            "its script starts its own steps on {} nodes, and no guard stands there: submit it with \
             on_lost_contact: {{grace: never}}, so that it is run again only on an operator's word",
            spec.nodes
        ));
    }
    let parts = if batch.is_none() && spec.nodes > 1 { spec.nodes } else { 0 };
    let secret = HEXLOWER.encode(&rand::random::<[u8; 32]>());
    let program = program(spec)?;
    let directives = batch.map(|text| sbatch::directives(text).0).unwrap_or_default();
    let binding = Binding::to(command.binding);
    let path = dir.path();
    if let Some(d) = directives.iter().rev().find(|d| d.name == "signal")
        && sbatch::signal(&d.value).is_none()
    {
        let names: Vec<&str> = WarnSignal::ALL.iter().map(|(name, _)| *name).collect();
        return Err(format!("--signal={}: give one of {}, as [B:]NAME[@SECONDS]", d.value, names.join(", ")));
    }
    let whole = Whole { command, config, secret: &secret, kill_wait };

    let argv = if parts == 0 { program.clone() } else { launcher(config, path, parts) };
    let mut first = whole.guard(argv, path, "");
    if parts > 0 {
        first.first_rank = parts;
        first.notice_signal = Some(NO_NOTICE);
        (first.warn_before, first.warn_command) = (None, None);
        first.workdir = path.join("run");
    }
    let kept = Kept {
        parts,
        grace: spec.on_lost_contact.grace,
        secret: secret.clone(),
        mark: HEXLOWER.encode(&rand::random::<[u8; 4]>()),
        options: options(spec, config, map, &directives),
        script: script(command.key, config, path),
    };
    let more = |aside: &Path| -> io::Result<()> {
        write_json(&aside.join("slurm.json"), &kept)?;
        for n in 0..parts {
            let name = format!("node-{n}");
            let mut guard = whole.guard(program.clone(), path, &name);
            guard.first_rank = n;
            if let Some(rank) = guard.ranks.first_mut() {
                for variable in ["STARLING_RANK", "RANK", "NODE_RANK"] {
                    set(&mut rank.env, variable, n);
                }
            }
            AttemptDir::new(aside.join(&name)).prepare(&guard, binding)?;
        }
        Ok(())
    };
    match dir.prepare_with(&first, binding, &more) {
        Ok(true) => Ok(Some(kept)),
        Ok(false) => Ok(None),
        Err(e) => Err(format!("its folder could not be made: {e}")),
    }
}

struct Whole<'a> {
    command: &'a StartCommand,
    config: &'a SlurmConfig,
    secret: &'a str,
    kill_wait: Span,
}

impl Whole<'_> {
    fn guard(&self, argv: Vec<String>, attempt: &Path, part: &str) -> GuardSpec {
        let (command, spec) = (self.command, &self.command.spec);
        let warning = Warning::of(spec);
        let cookie = HEXLOWER.encode(&rand::random::<[u8; 16]>());
        let mut env = common_env(command, &self.config.peer, &self.config.datasets, &cookie, &[]);
        for variable in ["STARLING_RANK", "RANK", "NODE_RANK"] {
            set(&mut env, variable, 0);
        }
        let own = if part.is_empty() { attempt.to_owned() } else { attempt.join(part) };
        GuardSpec {
            key: command.key,
            ranks: vec![RankSpec { argv, env, container: None }],
            workdir: spec.workdir.as_ref().map_or_else(|| own.join("run"), PathBuf::from),
            grace: spec.on_lost_contact.grace,
            renewed_at: Instant(0),
            max_runtime: spec.max_runtime,
            notice: self.config.notice,
            log_bytes: self.config.logs.file_bytes.0,
            log_files: self.config.logs.files,
            cookie,
            boot: String::new(),
            containers: None,
            image: None,
            staging: Staging::default(),
            contacts: self.config.shared.clone(),
            news: self.config.shared.join("news"),
            // Slurm has its own.
            cgroup: false,
            inherit: true,
            first_rank: 0,
            notice_signal: warning.signal.or(self.config.notice_signal),
            notice_to: warning.to,
            warn_before: warning.before,
            warn_command: warning.command,
            echo: false,
            remote: Some(Remote {
                part: part.to_owned(),
                secret: self.secret.to_owned(),
                line: self.config.line_file(),
                patience: FIRST_ANSWER,
                kill_wait: self.kill_wait,
                begin: false,
                last_word: None,
            }),
        }
    }
}

fn program(spec: &JobSpec) -> Result<Vec<String>, String> {
    match &spec.run {
        Run::Script(script) => Ok(vec!["/bin/sh".into(), "-c".into(), script.clone()]),
        Run::Argv(argv) if !argv.is_empty() => Ok(argv.clone()),
        Run::Argv(_) | Run::Image => Err("it has no command".into()),
    }
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

/// Runs one guard on every node. `$0` and `$1` are the guard and the attempt's folder.
fn launcher(config: &SlurmConfig, dir: &Path, parts: u32) -> Vec<String> {
    let node = "exec \"$0\" guard \"$1/node-$SLURM_PROCID\"";
    let text = format!(
        "exec srun --nodes={parts} --ntasks={parts} --ntasks-per-node=1 \
         --cpus-per-task=\"${{SLURM_CPUS_PER_TASK:-1}}\" --kill-on-bad-exit=1 --input=none \
         /bin/sh -c '{node}' {} {}",
        quoted(&config.guard_path()),
        quoted(dir)
    );
    vec!["/bin/sh".into(), "-c".into(), text]
}

fn script(key: AttemptKey, config: &SlurmConfig, dir: &Path) -> String {
    format!(
        "#!/bin/sh\n# Attempt {key} of Starling's peer {peer}. Its guard starts the job itself, and only once.\n\
         MASTER_ADDR=${{SLURMD_NODENAME:-$(hostname)}}\n\
         MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))\n\
         export MASTER_ADDR MASTER_PORT\n\
         exec {guard} guard {dir}\n",
        peer = config.peer,
        guard = quoted(&config.guard_path()),
        dir = quoted(dir)
    )
}

/// What sbatch is told: what the user's lines say as they say it; for the rest what the job file says.
fn options(
    spec: &JobSpec,
    config: &SlurmConfig,
    map: &NodeMap,
    directives: &[Directive],
) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for d in directives.iter().filter(|d| !OURS.contains(&d.name.as_str())) {
        all.retain(|(name, _)| *name != d.name);
        all.push((d.name.clone(), d.value.clone()));
    }
    let given =
        |all: &[(String, String)], names: &[&str]| all.iter().any(|(n, _)| names.contains(&n.as_str()));
    let put = |all: &mut Vec<(String, String)>, name: &str, value: String| all.push((name.into(), value));
    for (name, value) in
        [("partition", &config.partition), ("account", &config.account), ("qos", &config.qos)]
    {
        if let Some(value) = value
            && !given(&all, &[name])
        {
            put(&mut all, name, value.clone());
        }
    }
    let batch = !directives.is_empty();
    if !given(&all, &["nodes"]) {
        put(&mut all, "nodes", spec.nodes.to_string());
    }
    if !given(&all, &["ntasks", "ntasks-per-node", "ntasks-per-gpu"]) && !batch {
        put(&mut all, "ntasks", spec.nodes.to_string());
        put(&mut all, "ntasks-per-node", "1".into());
    }
    let tasks = ["cpus-per-task", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-gpu", "mincpus"];
    if !(given(&all, &["cpus-per-task", "cpus-per-gpu"]) || batch && given(&all, &tasks)) {
        put(&mut all, "cpus-per-task", spec.resources.cpus.0.div_ceil(1_000).max(1).to_string());
    }
    if spec.resources.memory.0 > 0 && !given(&all, &["mem", "mem-per-cpu", "mem-per-gpu"]) {
        put(&mut all, "mem", format!("{}M", spec.resources.memory.0.div_ceil(1 << 20)));
    }
    let gpu_options = ["gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"];
    if spec.resources.gpus > 0 && !given(&all, &gpu_options) {
        put(&mut all, "gres", gres(spec, map));
    }
    if let Some(limit) = spec.max_runtime.filter(|_| !given(&all, &["time"])) {
        // The guard holds the limit itself; Slurm's comes a little later, should the guard be gone.
        let seconds = (limit + config.notice).0.div_ceil(1_000_000).saturating_add(60);
        put(&mut all, "time", sbatch::time_text(seconds));
    }
    let wish = directives.iter().rev().find(|d| d.name == "signal").and_then(|d| sbatch::signal(&d.value));
    // Slurm knows of limits that the job does not, so it says when; who gets the signal is the guard's to see to,
    // which stands where the batch shell would. From Slurm, SIGTERM is an order to end: the guard gives that itself.
    if let Some(wish) = wish.filter(|w| w.signal != WarnSignal::Term) {
        let flags = if wish.reservation { "RB" } else { "B" };
        let seconds = wish.before.as_millis() / 1_000;
        put(&mut all, "signal", format!("{flags}:{}@{seconds}", wish.signal.word()));
    }
    for (name, value) in &config.options {
        if !given(&all, &[name]) {
            put(&mut all, name, value.clone());
        }
    }
    all
}

/// `gpu:TYPE:N` where the job names models; the first that is here.
fn gres(spec: &JobSpec, map: &NodeMap) -> String {
    let n = spec.resources.gpus;
    let here = spec.resources.gpu.iter().find_map(|wanted| {
        map.types.iter().find(|(model, _)| crate::model::gpu::matches(wanted, model)).map(|(_, kind)| kind)
    });
    match here.filter(|kind| !kind.is_empty()) {
        Some(kind) => format!("gpu:{kind}:{n}"),
        None => format!("gpu:{n}"),
    }
}

#[cfg(test)]
#[path = "prepare_tests.rs"]
mod tests;
