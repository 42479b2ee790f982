//! What the benches share: arguments, numbers, and meshes of real processes on loopback.
#![allow(dead_code, reason = "each bench uses its part")]

pub mod fleet;

use std::future::Future;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

/// The command line: `--name value` and `--name`. Cargo's own `--bench` is passed over.
pub struct Args(Vec<String>);

impl Args {
    /// Reads it; prints `help` and ends for `--help`, complains of anything that is not in `known`.
    pub fn read(help: &str, known: &[&str]) -> Self {
        let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
        if args.iter().any(|a| a == "--help" || a == "-h") {
            println!("{help}");
            std::process::exit(0);
        }
        if let Some(wrong) = args.iter().find(|a| a.starts_with('-') && !known.contains(&a.as_str())) {
            eprintln!("unknown option {wrong}\n{help}");
            std::process::exit(2);
        }
        Self(args)
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|a| a == name)
    }

    fn text(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|a| a == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    /// A whole number, or `default`.
    pub fn number(&self, name: &str, default: u64) -> u64 {
        let Some(text) = self.text(name) else { return default };
        text.parse().unwrap_or_else(|_| {
            eprintln!("{name}: {text:?} is not a whole number");
            std::process::exit(2);
        })
    }

    /// Whole numbers with commas between, or `default`.
    pub fn numbers(&self, name: &str, default: &[usize]) -> Vec<usize> {
        let Some(text) = self.text(name) else { return default.to_vec() };
        text.split(',').map(|n| n.parse()).collect::<Result<_, _>>().unwrap_or_else(|_| {
            eprintln!("{name}: {text:?} is not a list of whole numbers");
            std::process::exit(2);
        })
    }
}

/// Resolves when somebody wants the bench to end.
async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut term) => tokio::select! { _ = term.recv() => {}, _ = tokio::signal::ctrl_c() => {} },
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

/// Runs a bench to its end, to `limit`, or to SIGTERM or Ctrl-C; what it started ends with it either way.
pub fn run(limit: Duration, bench: impl Future<Output = anyhow::Result<()>>) -> std::process::ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start threads: {error}");
            return std::process::ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(async {
        tokio::select! { biased;
            () = told_to_end() => Err(anyhow::anyhow!("stopped by a signal")),
            ended = tokio::time::timeout(limit, bench) => {
                ended.unwrap_or_else(|_| Err(anyhow::anyhow!("not done after {} s", limit.as_secs())))
            }
        }
    });
    match ended {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench failed: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// Measured values.
#[derive(Default, Clone)]
pub struct Sample(Vec<f64>);

impl Sample {
    pub fn add(&mut self, value: f64) {
        self.0.push(value);
    }
    pub fn extend(&mut self, other: &Sample) {
        self.0.extend_from_slice(&other.0);
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// The value below which this share lies; NaN of nothing.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }
    pub fn max(&self) -> f64 {
        self.quantile(1.0)
    }
}

/// Microseconds of CLOCK_BOOTTIME: the same clock in every process of this machine.
pub fn boot_us() -> u64 {
    starling::backends::local::clock::now().0
}

/// The load averages of 1, 5 and 15 minutes, as text.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Cores of this machine.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A bar on standard error, hidden where nobody looks.
pub fn bar(steps: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg:32} [{bar:30}] {pos}/{len} {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar.set_message(what.to_owned());
    bar
}

/// A table whose numbers stand under each other.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(head.to_vec());
    for row in rows {
        table.add_row(row.clone());
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Prints the result: the document with `--json`, else the text.
pub fn print(args: &Args, document: &Value, text: &str) {
    if args.has("--json") {
        println!("{document}");
    } else {
        println!("{text}");
    }
}

/// `127.0.0.1:PORT` that nobody listens on, for a program that cannot choose one itself. It lies below the range from
/// which the system takes the ports of connections, so that none of them has it before the program is there.
pub fn fixed_port() -> anyhow::Result<String> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 15_000;
    const COUNT: u16 = 15_000;
    for _ in 0..COUNT {
        // Another run on this machine begins elsewhere.
        let start = u16::try_from(std::process::id() % u32::from(COUNT))?;
        let port = FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
        let address = (Ipv4Addr::LOCALHOST, port);
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(format!("{}:{port}", Ipv4Addr::LOCALHOST));
        }
    }
    anyhow::bail!("no free port from {FIRST} on")
}
