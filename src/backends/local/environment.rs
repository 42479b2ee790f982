//! What a job sees: its command line and its environment, one per rank. Pure, but for looking at paths.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::container::{self, ContainerRun};
use super::files::{GuardSpec, NoticeTo, RankSpec};
use super::processes::COOKIE_VARIABLE;
use super::{LocalConfig, clock};
use crate::base::{PeerName, Span};
use crate::core::api::StartCommand;
use crate::model::spec::{Run, WarnSignal};
use crate::model::staging::{Part, PartKind, Staging};
use crate::model::trace::traceparent;
use crate::model::{JobSpec, sbatch};

/// What of the peer's own environment a job may see.
const INHERITED: [&str; 7] = ["PATH", "HOME", "LANG", "USER", "TMPDIR", "TZ", "LD_LIBRARY_PATH"];

/// What runs a script.
pub const SHELL: &str = "/bin/sh";

/// What the client of a container runtime needs beside them.
const CLIENT: [&str; 4] = ["XDG_RUNTIME_DIR", "DOCKER_HOST", "CONTAINER_HOST", "DBUS_SESSION_BUS_ADDRESS"];

/// The guard's own environment. A test clock is the peer's and its guards', and not the jobs'.
pub fn guard_env() -> Env {
    inherit(Env::new(), INHERITED.iter().chain(&CLIENT).chain(&[super::clock::TEST_CLOCK]))
}

/// What this machine adds to a command.
pub struct Host<'a> {
    /// The peer's configuration.
    pub config: &'a LocalConfig,
    /// The attempt's folder.
    pub dir: &'a Path,
    /// Its container runtime.
    pub runtime: Option<&'a Path>,
    /// Physical index of each GPU that was offered; none where GPUs are declared.
    pub gpus: Option<&'a [u32]>,
}

/// What the guard is told; the error says why this cluster cannot run it.
pub fn guard_spec(command: &StartCommand, host: &Host<'_>) -> Result<GuardSpec, String> {
    let spec = &command.spec;
    let workdir = spec.workdir.as_ref().map_or_else(|| host.dir.join("run"), PathBuf::from);
    if !workdir.is_absolute() {
        return Err(format!("workdir {} is not an absolute path", workdir.display()));
    }
    if command.shares.is_empty() {
        return Err("it was given no node".into());
    }
    let warning = Warning::of(spec);
    let cookie = data_encoding::HEXLOWER.encode(&rand::random::<[u8; 16]>());
    let master_port = free_port().map_err(|e| format!("no free port for MASTER_PORT: {e}"))?;
    let master = [("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", master_port.to_string())];
    let common = common_env(command, &host.config.peer, &host.config.datasets, &cookie, &master);
    let ranks = (0..command.shares.len())
        .map(|rank| rank_spec(command, host, &common, rank, &workdir))
        .collect::<Result<Vec<_>, String>>()?;
    Ok(GuardSpec {
        key: command.key,
        containers: spec.image.as_ref().and(host.runtime).map(Path::to_owned),
        image: spec.image.clone(),
        staging: staging(command, host.config),
        ranks,
        workdir,
        grace: spec.on_lost_contact.grace,
        renewed_at: command.renewed_at,
        max_runtime: spec.max_runtime,
        notice: host.config.notice,
        log_bytes: host.config.logs.file_bytes.0,
        log_files: host.config.logs.files,
        cookie,
        boot: clock::boot_id().map_err(|e| format!("the boot id cannot be read: {e}"))?,
        contacts: host.config.contacts(),
        news: host.config.news(),
        cgroup: host.config.cgroups,
        inherit: false,
        first_rank: 0,
        notice_signal: warning.signal,
        notice_to: warning.to,
        warn_before: warning.before,
        warn_command: warning.command,
        echo: false,
        remote: None,
    })
}

/// How its programs are told to save their progress: by what the job file says, or its `#SBATCH --signal`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::backends) struct Warning {
    pub(in crate::backends) signal: Option<i32>,
    pub(in crate::backends) to: NoticeTo,
    pub(in crate::backends) before: Option<Span>,
    pub(in crate::backends) command: Option<String>,
}

impl Warning {
    pub(in crate::backends) fn of(spec: &JobSpec) -> Self {
        let said = spec.warn.clone().unwrap_or_default();
        let number = |s: WarnSignal| match s {
            WarnSignal::Term => Signal::TERM.as_raw(),
            WarnSignal::Usr1 => Signal::USR1.as_raw(),
            WarnSignal::Usr2 => Signal::USR2.as_raw(),
            WarnSignal::Hup => Signal::HUP.as_raw(),
            WarnSignal::Int => Signal::INT.as_raw(),
            WarnSignal::Quit => Signal::QUIT.as_raw(),
        };
        let own = Self {
            signal: said.signal.map(number),
            to: NoticeTo::All,
            before: said.before,
            command: said.command,
        };
        match sbatch::batch_script(&spec.run).and_then(sbatch::wanted_signal) {
            None => own,
            Some(wish) => Self {
                signal: Some(number(wish.signal)),
                to: if wish.shell { NoticeTo::First } else { NoticeTo::Others },
                before: Some(wish.before),
                ..own
            },
        }
    }
}

/// What it needs: datasets lie where they are declared, so they are there; its image is seen to by the guard.
fn staging(command: &StartCommand, config: &LocalConfig) -> Staging {
    let here = |name: &&String| config.datasets.contains_key(name.as_str());
    let data = command
        .spec
        .data
        .iter()
        .filter(here)
        .map(|name| Part::needed(PartKind::Data, name).there(config.dataset_bytes.get(name).copied()));
    let image = command.spec.image.iter().map(|image| Part::needed(PartKind::Image, image));
    Staging { parts: data.chain(image).collect(), at: clock::wall() }.bounded()
}

/// A port that was free a moment ago.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Variables in order, each once.
pub type Env = Vec<(String, String)>;

/// The user's variables, then ours, which win where they carry a promise.
pub(in crate::backends) fn common_env(
    command: &StartCommand,
    peer: &PeerName,
    datasets: &BTreeMap<String, PathBuf>,
    cookie: &str,
    first: &[(&str, String)],
) -> Env {
    let (spec, key) = (&command.spec, command.key);
    let mut env: Env = Vec::new();
    for (name, value) in first {
        set(&mut env, name, value);
    }
    for (name, value) in &spec.env {
        set(&mut env, name, value);
    }
    let checkpoint = command.checkpoint.as_ref().or(spec.checkpoint.as_ref().map(|c| &c.path));
    if let Some(path) = checkpoint {
        set(&mut env, "CHECKPOINT_PATH", path);
    }
    if let Some(every) = spec.checkpoint.as_ref().and_then(|c| c.every) {
        set(&mut env, "STARLING_CHECKPOINT_EVERY", every.0.div_ceil(1_000_000));
    }
    set(&mut env, "STARLING_JOB_ID", key.job);
    set(&mut env, "STARLING_JOB_NAME", &spec.name);
    set(&mut env, "STARLING_EPOCH", key.epoch);
    set(&mut env, "STARLING_CLUSTER", peer);
    let place = |name: &String| datasets.get(name).map_or_else(|| name.clone(), |p| p.display().to_string());
    set(&mut env, "STARLING_DATA", spec.data.iter().map(place).collect::<Vec<_>>().join("\n"));
    set(&mut env, "TRACEPARENT", traceparent(&command.trace, &key.job, key.epoch));
    set(&mut env, "STARLING_NODES", command.shares.len());
    set(&mut env, "WORLD_SIZE", command.shares.len());
    set(&mut env, "LOCAL_RANK", 0);
    set(&mut env, COOKIE_VARIABLE, cookie);
    // Scripts written for Slurm read an array's index under Slurm's names, wherever they run now.
    for (theirs, ours) in [
        ("SLURM_ARRAY_TASK_ID", "STARLING_ARRAY_INDEX"),
        ("SLURM_ARRAY_TASK_COUNT", "STARLING_ARRAY_COUNT"),
        ("SLURM_ARRAY_TASK_MIN", "STARLING_ARRAY_MIN"),
        ("SLURM_ARRAY_TASK_MAX", "STARLING_ARRAY_MAX"),
        ("SLURM_ARRAY_JOB_ID", "STARLING_ARRAY_JOB_ID"),
    ] {
        if let (Some(value), false) = (spec.env.get(ours), spec.env.contains_key(theirs)) {
            set(&mut env, theirs, value);
        }
    }
    env
}

/// Sets a variable, once.
pub(in crate::backends) fn set(env: &mut Env, name: &str, value: impl ToString) {
    env.retain(|(n, _)| n != name);
    env.push((name.to_owned(), value.to_string()));
}

fn rank_spec(
    command: &StartCommand,
    host: &Host<'_>,
    common: &Env,
    rank: usize,
    workdir: &Path,
) -> Result<RankSpec, String> {
    let spec = &command.spec;
    let share = command.shares.get(rank).ok_or("it was given too few nodes")?;
    let mut env = common.clone();
    for name in ["STARLING_RANK", "RANK", "NODE_RANK"] {
        set(&mut env, name, rank);
    }
    let gpus: Vec<u32> = match host.gpus {
        Some(real) => share
            .gpus
            .iter()
            .map(|i| real.get(*i as usize).copied().ok_or(format!("there is no GPU {i} on this machine")))
            .collect::<Result<_, _>>()?,
        None => share.gpus.clone(),
    };
    let list = gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    set(&mut env, "CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    set(&mut env, "CUDA_VISIBLE_DEVICES", list);
    if host.gpus.is_none() {
        set(&mut env, "STARLING_GPUS_VIRTUAL", 1);
    }
    let argv = match &spec.run {
        Run::Script(script) => vec![SHELL.into(), "-c".into(), script.clone()],
        Run::Argv(argv) => argv.clone(),
        Run::Image if spec.image.is_none() => return Err("it has neither a command nor an image".into()),
        Run::Image => Vec::new(),
    };
    let Some(image) = &spec.image else {
        return Ok(RankSpec { argv, env: inherit(env, &INHERITED), container: None });
    };
    let runtime = host
        .runtime
        .ok_or_else(|| format!("image {image} needs podman or docker, and this cluster has neither"))?;
    let name = format!("starling-{}-{rank}", command.key);
    let checkpoint = env.iter().find(|(n, _)| n == "CHECKPOINT_PATH").map(|(_, v)| PathBuf::from(v));
    // A folder for checkpoints is shared as it is; it must be there before the container starts.
    let checkpoint = checkpoint.filter(|p| p.is_absolute() && p.is_dir());
    let data: Vec<&Path> =
        spec.data.iter().filter_map(|name| host.config.datasets.get(name).map(PathBuf::as_path)).collect();
    let run = ContainerRun {
        name: &name,
        image,
        argv: &argv,
        env: &env,
        workdir,
        checkpoint: checkpoint.as_deref(),
        data: &data,
        gpus: if host.gpus.is_some() { &gpus } else { &[] },
    };
    Ok(RankSpec {
        argv: container::command(runtime, &run),
        env: inherit(env, INHERITED.iter().chain(&CLIENT)),
        container: Some(name),
    })
}

/// Adds what is inherited, where the job does not say otherwise.
fn inherit<'a>(mut env: Env, names: impl IntoIterator<Item = &'a &'static str>) -> Env {
    for name in names {
        if let Ok(value) = std::env::var(name)
            && !env.iter().any(|(n, _)| n == *name)
        {
            env.push(((*name).to_owned(), value));
        }
    }
    env
}
