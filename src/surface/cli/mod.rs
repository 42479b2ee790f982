//! The command line. It uses the HTTP API and nothing else; what starts peers is given by `Wiring`.

mod args;
mod audit;
mod bundle;
pub mod exit;
mod incidents;
mod jobs;
mod logs;
mod mesh;
mod operator;
mod output;
mod page;
mod reserve;
mod sbatch;
mod slurm;
mod squeue_format;
mod submit;
mod tenants;
mod top;
mod trace;
mod watch;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;
use serde_json::Value;

pub use args::{
    ChaosArgs, Cli, Command, DemoArgs, DemoScenario, Global, ReplayArgs, RunArgs, UpArgs, WorkCommand,
};
pub use exit::{EXIT_CODES, Failure, UP_EXIT_CODES};
pub use output::{Style, Table, brief, plain};
pub use page::page_link;

use super::client::{Client, Target};
use crate::backends::local::guard;
use args::ConfigCommand;

/// What the commands need from `app`. Each runs to its end and says how the process ends; none has
/// an async runtime around it.
#[derive(Clone, Copy)]
pub struct Wiring {
    /// `starling up`
    pub up: fn(UpArgs) -> ExitCode,
    /// `starling demo`
    pub demo: fn(DemoArgs) -> ExitCode,
    /// `starling replay`
    pub replay: fn(ReplayArgs) -> ExitCode,
    /// `starling chaos`
    pub chaos: fn(ChaosArgs) -> ExitCode,
    /// `starling guard DIR`
    pub guard: fn(&Path, guard::Entry) -> ExitCode,
}

impl Default for Wiring {
    /// SEAM(app): every one says that it is not there; `app` gives the real ones.
    fn default() -> Self {
        fn missing() -> ExitCode {
            eprintln!("starling: this binary was built without that command");
            ExitCode::from(exit::FAULT)
        }
        Self {
            up: |_| missing(),
            demo: |_| missing(),
            replay: |_| missing(),
            chaos: |_| missing(),
            guard: |_, _| missing(),
        }
    }
}

/// What a command found: the same as a document and as text.
pub(crate) struct Reply {
    pub document: Value,
    pub text: String,
    pub code: u8,
}

impl Reply {
    /// All went well.
    pub fn new(document: &impl Serialize, text: String) -> Self {
        Self { document: serde_json::to_value(document).unwrap_or(Value::Null), text, code: exit::OK }
    }

    /// With another exit code.
    pub fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }
}

/// What commands that ask a peer have.
pub(crate) struct Asking {
    pub client: Client,
    pub style: Style,
    pub json: bool,
    /// Of the peer's token, where one is known.
    pub token: Option<String>,
    /// Any token that this machine knows: what must not get into a bundle.
    pub secret: Option<String>,
}

pub(crate) type CommandResult = Result<Reply, Failure>;

/// The binary: reads the command line, does it, and says how it went.
pub fn main(wiring: Wiring) -> ExitCode {
    run(std::env::args_os(), wiring)
}

/// The same for a given command line.
pub fn run(line: impl IntoIterator<Item = OsString>, wiring: Wiring) -> ExitCode {
    let cli = match Cli::try_parse_from(line) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { exit::OK });
        }
    };
    let Cli { global, command } = cli;
    match command {
        Command::Up(args) => (wiring.up)(UpArgs { state: global.state, ..args }),
        Command::Demo(args) => (wiring.demo)(DemoArgs { json: global.json, ..args }),
        Command::Replay(args) => (wiring.replay)(ReplayArgs { json: global.json, ..args }),
        Command::Chaos(args) => (wiring.chaos)(ChaosArgs { json: global.json, ..args }),
        Command::Guard { dir, install: true, .. } => (wiring.guard)(&dir, guard::Entry::Install),
        Command::Guard { dir, pod: Some(spec), .. } => (wiring.guard)(&dir, guard::Entry::Pod(spec)),
        Command::Guard { dir, .. } => (wiring.guard)(&dir, guard::Entry::Attempt),
        Command::Work(work) => super::work::main(work),
        Command::Audit(args) if args.files => {
            show(&global, audit::verify_files(&state_folder(global.state.as_deref())))
        }
        Command::Config(ConfigCommand::Check { file }) => show(&global, config_check(&file)),
        other => ask(&global, other),
    }
}

fn ask(global: &Global, command: Command) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return show(global, Err(Failure::Io(error.to_string()))),
    };
    let reply = runtime.block_on(async {
        let (client, token) = client(global)?;
        // Also a link opens a page on this machine alone: of a peer elsewhere its token is not known here.
        let (style, secret) = (Style::new(global.color), self::token(global));
        let asking = Asking { client, style, json: global.json, token, secret };
        perform(&asking, command).await
    });
    // What still reads standard input or resolves a name must not hold up the end.
    runtime.shutdown_background();
    show(global, reply)
}

pub(crate) async fn perform(asking: &Asking, command: Command) -> CommandResult {
    match command {
        Command::Submit(args) => submit::submit(asking, args).await,
        Command::Run(args) => submit::run(asking, args).await,
        Command::Jobs(args) => jobs::list(asking, args).await,
        Command::Job(args) => operator::job(asking, args).await,
        Command::Move(args) => operator::move_job(asking, args).await,
        Command::Logs(args) => logs::logs(asking, args).await,
        Command::Cancel(args) => jobs::cancel(asking, &args.id).await,
        Command::Wait(args) => jobs::wait(asking, args).await,
        Command::Why(args) => jobs::why(asking, &args.id).await,
        Command::Top(args) => top::top(asking, args).await,
        Command::Watch(args) => watch::watch(asking, args).await,
        Command::Trace(args) => trace::trace(asking, args).await,
        Command::Clusters(args) => mesh::clusters(asking, args).await,
        Command::Links => mesh::links(asking).await,
        Command::View(_) => mesh::view(asking).await,
        Command::Peer => mesh::peer(asking).await,
        Command::Page => page::page(asking).await,
        Command::Doctor => mesh::doctor(asking).await,
        Command::Incidents(args) => incidents::incidents(asking, args).await,
        Command::Silence(args) => incidents::silence(asking, args).await,
        Command::SupportBundle(args) => bundle::bundle(asking, args).await,
        Command::Events(args) if args.past || args.since.is_some() || args.tenant.is_some() => {
            audit::history(asking, args).await
        }
        Command::Events(args) => logs::events(asking, args).await,
        Command::Audit(args) => audit::audit(asking, args).await,
        Command::Token(args) => mesh::token(asking, args).await,
        Command::Member(args) => mesh::member(asking, args).await,
        Command::Tenant(args) => tenants::tenant(asking, args).await,
        Command::Reserve(args) => reserve::reserve(asking, args).await,
        Command::Reservations(args) => reserve::reservations(asking, args).await,
        Command::Unreserve(args) => reserve::unreserve(asking, &args.id).await,
        Command::Drain(args) => mesh::drain(asking, args.cluster, true).await,
        Command::Undrain(args) => mesh::drain(asking, args.cluster, false).await,
        Command::Slurm(command) => slurm::perform(asking, command).await,
        Command::Up(_)
        | Command::Demo(_)
        | Command::Replay(_)
        | Command::Chaos(_)
        | Command::Guard { .. }
        | Command::Work(_)
        | Command::Config(_) => Err(Failure::usage("this command asks no peer", "see `starling --help`")),
    }
}

/// The state folder: as given, else `$XDG_STATE_HOME/starling`, else `~/.local/state/starling`.
pub fn state_folder(given: Option<&Path>) -> PathBuf {
    if let Some(given) = given {
        return given.to_owned();
    }
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    base.unwrap_or_else(|| PathBuf::from("/var/lib")).join("starling")
}

/// Whom to ask, and the token that a link to its page may carry.
fn client(global: &Global) -> Result<(Client, Option<String>), Failure> {
    let state = state_folder(global.state.as_deref());
    let target = match &global.peer {
        Some(text) => {
            text.parse().map_err(|e: String| Failure::usage(e, "see `starling --help` for --peer"))?
        }
        None => Target::Unix(state.join("api.sock")),
    };
    let token = token_for(global, &target);
    // A socket asks for none.
    let sent = if matches!(target, Target::Plain(..)) { token.clone() } else { global.token.clone() };
    let identity = state.join("identity");
    let own = Some(identity.join("ca.pem")).filter(|p| p.exists());
    // The certificate of this machine's own peer is for its own mesh.
    let shown = own.as_ref().filter(|_| global.ca.is_none()).map(|_| identity.as_path());
    let ca = global.ca.clone().or(own);
    Ok((Client::with_identity(target, sent, ca.as_deref(), shown)?, token))
}

/// The token of this state's own peer is for that one: not for a peer elsewhere, nor for whoever made another socket.
fn token_for(global: &Global, target: &Target) -> Option<String> {
    let own = match target {
        Target::Tls(..) => false,
        Target::Unix(path) => *path == state_folder(global.state.as_deref()).join("api.sock"),
        Target::Plain(..) => true,
    };
    if own { token(global) } else { global.token.clone() }
}

/// The token as given, else that of this machine's own peer.
fn token(global: &Global) -> Option<String> {
    let file = state_folder(global.state.as_deref()).join("api.token");
    let own = || std::fs::read_to_string(file).ok().map(|t| t.trim().to_owned());
    global.token.clone().or_else(own)
}

fn config_check(file: &Path) -> CommandResult {
    let text = std::fs::read_to_string(file)
        .map_err(|e| Failure::usage(format!("{}: {e}", file.display()), "name a file that can be read"))?;
    match super::seams::check_config(&text) {
        Ok(()) => Ok(Reply::new(&serde_json::json!({ "ok": true, "mistakes": [] }), "ok\n".into())),
        Err(mistakes) => {
            let text: String = mistakes.0.iter().map(|m| format!("{}: {m}\n", file.display())).collect();
            Ok(Reply::new(&serde_json::json!({ "ok": false, "mistakes": mistakes.0 }), text)
                .with_code(exit::USAGE))
        }
    }
}

fn show(global: &Global, reply: CommandResult) -> ExitCode {
    let mut out = std::io::stdout().lock();
    let code = match reply {
        Ok(reply) => {
            let _ = if global.json && !reply.document.is_null() {
                writeln!(out, "{:#}", reply.document)
            } else {
                write!(out, "{}", reply.text)
            };
            reply.code
        }
        Err(failure) => {
            let document = failure.document();
            if global.json {
                let _ = writeln!(out, "{:#}", serde_json::to_value(&document).unwrap_or(Value::Null));
            } else {
                eprint!("{}", error_text(&document.error));
            }
            failure.code()
        }
    };
    let _ = out.flush();
    ExitCode::from(code)
}

fn error_text(error: &super::documents::ErrorBody) -> String {
    let mut text = format!("starling: {}\n", plain(&error.message));
    for detail in &error.details {
        text.push_str(&format!("  {}\n", plain(detail)));
    }
    if !error.hint.is_empty() {
        text.push_str(&format!("hint: {}\n", plain(&error.hint)));
    }
    text
}
