//! `simulate contact`: what the execution lease costs a mesh in which so many jobs run, by the production core.
//!
//! Every cluster runs its share of the jobs; then nothing happens for a while but what always happens, and messages,
//! bytes (as the wire's own codec writes them) and batches of writes (a sync each, where nothing else shares it) are
//! counted: those of contact records, and all others.

#![allow(dead_code, reason = "shared by the test and the command, which read different parts of it")]

mod mesh;

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde_json::{Value, json};

pub const USAGE: &str = "simulate contact [--peers P] [--running N,N] [--rest S] [--seconds S] [--json]";

/// What a size costs, per peer and second.
#[derive(Debug, Clone, Default)]
pub struct Cost {
    pub running: usize,
    pub contact: Load,
    pub other: Load,
    /// The messages of all else, by what they are.
    pub kinds: BTreeMap<&'static str, Load>,
    /// Processor time of the core, milliseconds per second and peer.
    pub cpu_ms: f64,
}

/// Per peer and second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    pub messages: f64,
    pub bytes: f64,
    pub syncs: f64,
}

impl Load {
    fn json(&self) -> Value {
        json!({ "messages_per_s": self.messages, "bytes_per_s": self.bytes, "syncs_per_s": self.syncs })
    }
}

impl Cost {
    fn json(&self, first: &Cost) -> Value {
        json!({
            "running": self.running,
            "contact": self.contact.json(),
            "other": self.other.json(),
            "other_by_kind": self.kinds.iter().map(|(kind, load)| (*kind, load.json())).collect::<BTreeMap<_, _>>(),
            "core_cpu_ms_per_s": self.cpu_ms,
            "contact_bytes_of_first": self.contact.bytes / first.contact.bytes,
        })
    }
}

/// What one size costs, counted for so many seconds after all jobs have run for `rest` seconds. Homes look at a job ever
/// more seldom the longer nothing changes, up to every five minutes: what is not of contacts falls for that long.
pub fn cost(peers: usize, running: usize, rest: u64, seconds: u64) -> Result<Cost, String> {
    mesh::run(peers, running, rest, seconds)
}

/// `simulate contact`.
pub fn command(args: &[String]) -> Result<ExitCode, String> {
    let (mut peers, mut rest, mut seconds, mut json) = (100, 60, 120, false);
    let mut sizes = vec![1_000, 10_000, 100_000];
    let mut args = args.iter();
    let whole = |name: &str, text: &str, least: usize, most: usize| {
        let number = text.parse().ok().filter(|n| (least..=most).contains(n));
        number.ok_or(format!("{name} wants {least} to {most}, not {text:?}"))
    };
    while let Some(name) = args.next() {
        if name == "--json" {
            json = true;
            continue;
        }
        let text = args.next().ok_or(format!("{name} wants a value"))?;
        match name.as_str() {
            "--peers" => peers = whole(name, text, 3, 1_000)?,
            "--rest" => rest = whole(name, text, 1, 36_000)? as u64,
            "--seconds" => seconds = whole(name, text, 10, 3_600)? as u64,
            "--running" => {
                sizes = text.split(',').map(|t| whole(name, t, 1, 1_000_000)).collect::<Result<_, _>>()?;
            }
            other => return Err(format!("what is {other:?}?")),
        }
    }
    let mut rows: Vec<Cost> = Vec::new();
    for running in sizes {
        let row = cost(peers, running, rest, seconds)?;
        let first = rows.first().unwrap_or(&row).contact;
        rows.push(row.clone());
        if json {
            continue;
        }
        let Cost { contact, other, kinds, .. } = row;
        println!(
            "{running:>8} jobs at {peers} clusters: contact {:.2} messages, {:.0} bytes, {:.2} syncs ({:.3} of the first's bytes); \
             all else {:.2} messages, {:.0} bytes, {:.2} syncs; the core {:.2} ms; per second and peer",
            contact.messages,
            contact.bytes,
            contact.syncs,
            contact.bytes / first.bytes,
            other.messages,
            other.bytes,
            other.syncs,
            row.cpu_ms,
        );
        for (kind, load) in kinds {
            println!("{:>24} {:.2} messages, {:.0} bytes", kind, load.messages, load.bytes);
        }
    }
    if json {
        let sizes: Vec<Value> = rows.iter().map(|r| r.json(&rows[0])).collect();
        println!("{}", json!({ "peers": peers, "rest": rest, "seconds": seconds, "sizes": sizes }));
    }
    Ok(ExitCode::SUCCESS)
}
