//! `starling up`: settings from file and flags, then a peer until it is told to stop.

use std::net::SocketAddr;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use super::{OnShutdown, OpenError, Settings, UpError, Wish};
use crate::backends::local::clock;
use crate::base::secrets::scrub_addresses;
use crate::model::config::{Config, ShutdownJobs};
use crate::model::topology::Topology;
use crate::runtime::store::StoreError;
use crate::runtime::tokens::{JoinError, Token};
use crate::surface::cli::{UpArgs, exit, state_folder};
use crate::surface::otlp::Endpoint;
use crate::transport::{IdentityError, NetError};

/// Runs a peer until SIGTERM or SIGINT.
pub fn main(args: UpArgs) -> ExitCode {
    let settings = match settings(args) {
        Ok(settings) => settings,
        Err(why) => {
            eprint!("{why}");
            return ExitCode::from(exit::USAGE);
        }
    };
    log();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("starling: cannot start threads: {error}");
            return ExitCode::from(exit::UP_FAULT);
        }
    };
    match runtime.block_on(serve(settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("starling: {error}");
            ExitCode::from(code(&error))
        }
    }
}

fn code(error: &UpError) -> u8 {
    use StoreError as S;
    match error {
        UpError::Store(_) | UpError::Log(..) | UpError::Records(_) => exit::UP_DISK,
        UpError::Open(open) => match open {
            OpenError::Store(
                S::NoSpace { .. } | S::Io { .. } | S::Folder { .. } | S::Corrupt(_) | S::Poisoned(_),
            )
            | OpenError::Identity(IdentityError::Io(..))
            | OpenError::Rows(_) => exit::UP_DISK,
            OpenError::Join(JoinError::NotAToken) => exit::USAGE,
            OpenError::Lookup(..) => exit::UNREACHABLE,
            OpenError::Join(JoinError::Net(
                NetError::Timeout(_) | NetError::Lost(_) | NetError::Unreachable(_),
            )) => exit::UNREACHABLE,
            _ => exit::REFUSED,
        },
        UpError::Net(NetError::Bind(..)) | UpError::Api(..) => exit::REFUSED,
        _ => exit::UP_FAULT,
    }
}

async fn serve(settings: Settings) -> Result<(), UpError> {
    let fault = |e: std::io::Error| UpError::Backend("signals", e.into());
    let (mut term, mut int) =
        (signal(SignalKind::terminate()).map_err(fault)?, signal(SignalKind::interrupt()).map_err(fault)?);
    let mut hangup = signal(SignalKind::hangup()).map_err(fault)?;
    loop {
        let stop = async |core: crate::runtime::driver::CoreHandle| {
            loop {
                tokio::select! { biased;
                    _ = term.recv() => break tracing::info!("SIGTERM: stopping"),
                    _ = int.recv() => break tracing::info!("SIGINT: stopping"),
                    _ = hangup.recv() => reload(settings.config_file.as_deref(), &core).await,
                }
            }
        };
        match once(&settings, stop).await {
            Err(UpError::RolledBack(why)) => {
                eprintln!("starling: {why}; it is put aside, and this peer begins a new disk");
                super::begin_new_disk(&settings, &why).await?;
            }
            ended => return ended,
        }
    }
}

async fn once(
    settings: &Settings,
    stop: impl AsyncFnOnce(crate::runtime::driver::CoreHandle),
) -> Result<(), UpError> {
    if clock::is_test() {
        eprintln!(
            "starling: warning: {} is set: this peer goes by a clock that is made for tests; with it a job may run twice",
            clock::TEST_CLOCK
        );
    }
    let socket = settings.socket();
    let running = super::up(settings.clone()).await?;
    let about = crate::runtime::PeerHandle::about(&*running.node);
    eprintln!("starling {}: peer {} of mesh {} is up", about.version, about.name, &about.mesh[..8]);
    eprintln!("  peers    {} (QUIC)", running.quic);
    eprintln!(
        "  API      unix:{}{}",
        socket.display(),
        running.api.map(|a| format!(", {a}")).unwrap_or_default()
    );
    if let Some(address) = running.api {
        let link = crate::surface::cli::page_link(&address.to_string(), "localhost", None);
        eprintln!("  page     {link}   (`starling page` prints it with its token)");
    }
    eprintln!("  next     starling clusters   |   starling token create   |   starling submit FILE");
    let core = running.node.core().clone();
    running.run(stop(core)).await
}

/// SIGHUP: the placement weights are read again; everything else needs a restart. A file with a mistake changes nothing.
async fn reload(file: Option<&std::path::Path>, core: &crate::runtime::driver::CoreHandle) {
    let Some(file) = file else {
        return tracing::warn!("SIGHUP: there is no configuration file to read again");
    };
    let text = match tokio::fs::read_to_string(file).await {
        Ok(text) => text,
        Err(error) => return tracing::error!("SIGHUP: {}: {error}; nothing was changed", file.display()),
    };
    match Config::check(&text) {
        Ok(config) => {
            tracing::warn!("SIGHUP: placement weights are as in {} now", file.display());
            core.input(crate::core::Input::Policies(Box::new(config.policies))).await;
        }
        Err(mistakes) => {
            for mistake in mistakes {
                tracing::error!("SIGHUP: {}: {mistake}; nothing was changed", file.display());
            }
        }
    }
}

/// Log lines to standard error: `RUST_LOG` as usual, warnings by default.
fn log() {
    use std::io::IsTerminal;
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| "warn,chitchat=error".into());
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A subscriber may be set already where this is called from a test.
    let _ = subscriber.with_ansi(std::io::stderr().is_terminal()).try_init();
}

/// Flags come before the file, the file before the defaults. Without a file the peer listens on loopback
/// only, unless a flag says otherwise.
fn settings(args: UpArgs) -> Result<Settings, String> {
    let config = match &args.config {
        None => Config { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..Config::default() },
        Some(file) => {
            let text =
                std::fs::read_to_string(file).map_err(|e| format!("starling: {}: {e}\n", file.display()))?;
            Config::check(&text).map_err(|list| {
                list.iter().map(|m| format!("{}: {m}\n", file.display())).collect::<String>()
            })?
        }
    };
    let given_state = args.state.clone().or_else(|| config.state.clone());
    let mut settings = Settings::new(state_folder(given_state.as_deref()));
    take_config(&mut settings, &config, args.config.is_some());
    let trace = &config.trace;
    settings.otlp =
        Endpoint::find(trace.otlp.as_deref(), trace.ca.as_deref(), |name| std::env::var(name).ok())
            .map_err(|e| format!("starling: {}\n", scrub_addresses(&e.to_string())))?;
    settings.wish = Wish {
        name: args.name.or_else(|| config.name.clone()),
        join: args.join.as_deref().map(join).transpose()?,
    };
    // Before anything is made on disk.
    if settings.wish.join.as_ref().is_some_and(|(token, _)| Token::from_text(token).is_none()) {
        return Err(format!("starling: --join: {}\n", JoinError::NotAToken));
    }
    settings.listen = args.listen.unwrap_or(settings.listen);
    settings.api = args.api.or(args.api_tls).or(settings.api);
    if !args.advertise.is_empty() {
        settings.advertise = args.advertise;
    }
    settings.region = args.region.unwrap_or(settings.region);
    settings.zone = args.zone.unwrap_or(settings.zone);
    settings.witness |= args.witness;
    settings.backend = args.backend.unwrap_or(settings.backend);
    let kubernetes = &mut settings.kubernetes;
    kubernetes.kubeconfig = args.kubeconfig.or(kubernetes.kubeconfig.take());
    kubernetes.namespace = args.namespace.or(kubernetes.namespace.take());
    settings.config_file = args.config;
    settings.labels.extend(args.labels);
    settings.shown = config.without_secrets().to_toml();
    Ok(settings)
}

/// The queue's rules, with the distances of the GPUs of declared nodes.
fn schedule(config: &Config) -> crate::core::schedule::Config {
    let gpus = |group: &str| config.nodes.iter().find(|n| n.name == group).map_or(0, |n| n.gpus as usize);
    let topologies = config
        .gpu_sets
        .iter()
        .map(|(group, sets)| (group.clone(), Topology::of_sets(gpus(group), sets)))
        .collect();
    let s = &config.schedule;
    crate::core::schedule::Config {
        weights: s.weights.clone(),
        half_life: s.half_life,
        preemption: s.preemption,
        notice: s.notice,
        starve_after: s.starve_after,
        drain_milli: s.drain_milli,
        buffer_milli: s.buffer_milli,
        buffer_priority: s.buffer_priority,
        topologies,
        ..Default::default()
    }
}

fn take_config(settings: &mut Settings, config: &Config, from_file: bool) {
    settings.listen = config.listen;
    settings.advertise.clone_from(&config.advertise);
    settings.api = config.api.listen.filter(|_| from_file);
    settings.unix.clone_from(&config.api.unix);
    settings.region.clone_from(&config.region);
    settings.zone.clone_from(&config.zone);
    settings.labels.clone_from(&config.labels);
    (settings.price_milli, settings.pue_milli) = (config.price_milli, config.pue_milli);
    settings.nodes.clone_from(&config.nodes);
    settings.terms.clone_from(&config.terms);
    settings.datasets.clone_from(&config.datasets);
    settings.images.clone_from(&config.images);
    settings.policies.clone_from(&config.policies);
    settings.schedule = schedule(config);
    settings.alerts.clone_from(&config.alerts);
    (settings.witness, settings.replicas) = (config.witness, config.replicas);
    let limits = &config.limits;
    (settings.jobs_max, settings.claims, settings.disk_reserve) =
        (limits.jobs, limits.claims, limits.disk_reserve);
    (settings.logs.file_bytes, settings.logs.files) = (limits.log_bytes, limits.log_files);
    (settings.retain, settings.retain_jobs) = (limits.retain, limits.retain_jobs);
    settings.attempts_kept = limits.attempts_kept;
    let timing = &config.timing;
    (settings.renew_every, settings.rho_milli, settings.margin) =
        (timing.renew_every, timing.rho_milli, timing.margin);
    settings.grace = timing.grace;
    settings.grant_for = timing.grant_for;
    settings.rehome_after = timing.rehome_after;
    settings.gossip = (timing.gossip_interval_busy.to_std(), timing.gossip_interval.to_std());
    settings.probe_every = timing.probe_every.unwrap_or_default();
    settings.probe_share_milli = timing.probe_share_milli;
    settings.on_shutdown = match config.shutdown.jobs {
        ShutdownJobs::Leave => OnShutdown::Leave,
        ShutdownJobs::Move => OnShutdown::Move,
    };
    (settings.shutdown_deadline, settings.notice) = (config.shutdown.deadline, config.shutdown.notice);
    settings.certificate_lifetime = config.certificate.lifetime;
    settings.container_runtime.clone_from(&config.local.container_runtime);
    settings.cgroups = config.local.cgroups;
    settings.backend = config.backend;
    settings.slurm.clone_from(&config.slurm);
    settings.kubernetes.clone_from(&config.kubernetes);
}

/// `TOKEN@HOST:PORT`.
fn join(text: &str) -> Result<(String, String), String> {
    let wrong =
        || "starling: --join wants TOKEN@HOST:PORT, as `starling token create` printed it\n".to_owned();
    let (token, address) = text.split_once('@').ok_or_else(wrong)?;
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    if host.is_empty() || !port.parse::<u16>().is_ok_and(|p| p > 0) {
        return Err(wrong());
    }
    Ok((token.to_owned(), address.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_text_is_taken_apart() {
        for address in ["127.0.0.1:7", "[::1]:7", "a.b:7"] {
            assert_eq!(join(&format!("stl1-x@{address}")), Ok(("stl1-x".into(), address.into())));
        }
        for bad in ["", "stl1-x", "@", "stl1-x@", "stl1-x@nowhere", "stl1-x@:7", "stl1-x@127.0.0.1:99999"] {
            assert!(join(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn flags_come_before_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("starling.toml");
        std::fs::write(&file, "region = \"eu\"\nlisten = \"127.0.0.1:0\"\nwitness = true\n")
            .expect("written");
        let args = UpArgs { config: Some(file.clone()), region: Some("us".into()), ..UpArgs::default() };
        let settings = settings(args).expect("settings");
        assert_eq!((settings.region.as_str(), settings.witness), ("us", true));
        std::fs::write(&file, "regoin = \"eu\"\n").expect("written");
        let wrong =
            super::settings(UpArgs { config: Some(file), ..UpArgs::default() }).expect_err("a mistake");
        assert!(wrong.contains("regoin"), "{wrong}");
    }
}
