//! Slurm's JSON, 22.05 to 25.x, read leniently: what is needed is looked for in every shape that it has had, and
//! the rest is passed over.
//!
//! Numbers are plain, text, or `{"set": true, "infinite": false, "number": N}`; states are a word or a list of
//! words; an exit code is a raw wait status or an object.

use std::collections::HashMap;

use serde_json::Value;

use super::driver::{NativeJob, NativeNode, NativeState, Part};
use crate::base::Bytes;
use crate::base::text::{self, WORDS_MAX};

/// Nodes of one list that are expanded.
const HOSTS_MAX: usize = 100_000;
/// Digits of a number in a host's name.
const DIGITS_MAX: usize = 20;
/// Brackets of one item of a list,
const BRACKETS_MAX: usize = 16;
/// and bytes of it outside of them.
const HOST_BYTES_MAX: usize = 255;

/// What no node has more of: a report with more is none, and the books would fill the memory.
const CPUS_MAX: u32 = 1_000_000;
const MEMORY_MAX: Bytes = Bytes(1 << 60);
const GPUS_MAX: u32 = 10_000;

/// A list under a key. None where the document is not whole or says that it failed.
pub fn list<'a>(document: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    if let Some(errors) = document.get("errors").and_then(Value::as_array).filter(|e| !e.is_empty()) {
        return Err(error_texts(errors));
    }
    document.get(key).and_then(Value::as_array).ok_or_else(|| format!("the answer has no {key}"))
}

/// What the first entries of `errors` say, shortened.
pub fn error_texts(errors: &[Value]) -> String {
    text::words(&errors.iter().take(4).map(error_text).collect::<Vec<_>>().join("; "), WORDS_MAX)
}

/// What an entry of `errors` says.
pub fn error_text(error: &Value) -> String {
    let part = |key: &str| error.get(key).and_then(Value::as_str).filter(|t| !t.is_empty());
    let words: Vec<&str> = ["error", "description", "source"].into_iter().filter_map(part).collect();
    if words.is_empty() { error.to_string() } else { words.join(": ") }
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A number in any of its shapes.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(n) => n.as_u64().or_else(|| n.as_f64().filter(|f| *f >= 0.0).map(|f| f as u64)),
        Value::String(t) => t.trim().parse().ok(),
        Value::Object(o) => {
            let set = o.get("set").and_then(Value::as_bool).unwrap_or(true);
            let infinite = o.get("infinite").and_then(Value::as_bool).unwrap_or(false);
            o.get("number").filter(|_| set && !infinite).and_then(number)
        }
        _ => None,
    }
}

fn count(value: &Value, key: &str) -> Option<u32> {
    value.get(key).and_then(number).and_then(|n| u32::try_from(n).ok())
}

/// Words of a state, upper case: text with `+` between flags, or a list.
fn words(value: Option<&Value>) -> Vec<String> {
    let split = |t: &str| {
        t.split(['+', ',', ' ']).filter(|w| !w.is_empty()).map(str::to_ascii_uppercase).collect::<Vec<_>>()
    };
    match value {
        Some(Value::String(t)) => split(t),
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).flat_map(split).collect(),
        _ => Vec::new(),
    }
}

/// A list that is one text with commas or an array.
fn texts(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(t)) => t.split(',').filter(|w| !w.is_empty()).map(str::to_owned).collect(),
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// One job; none where it has no number.
pub fn job(value: &Value) -> Option<NativeJob> {
    let states = words(value.get("job_state"));
    // A running job that is being requeued shows both words; what comes next decides.
    let read: Vec<NativeState> = states.iter().map(|w| NativeState::read(w)).collect();
    let state = if states.iter().any(|w| w == "COMPLETING") {
        NativeState::Active
    } else if read.contains(&NativeState::Pending) {
        NativeState::Pending
    } else {
        read.first().copied().unwrap_or(NativeState::Other)
    };
    Some(NativeJob {
        id: value.get("job_id").and_then(number)?,
        name: text(value, "name"),
        comment: comment(value),
        state,
        word: states.join("+"),
        reason: text(value, "state_reason"),
        status: status(value.get("exit_code")),
        restarts: count(value, "restart_cnt").unwrap_or(0),
        user: text(value, "user_name"),
        parts: if state == NativeState::Active { parts(value) } else { Vec::new() },
        partition: text(value, "partition"),
        gpus_wanted: gpus_wanted(value),
    })
}

/// GPUs that a job asks for: in the sum of its TRES where the site counts GPUs there, else as it asked.
fn gpus_wanted(value: &Value) -> u32 {
    let asked = |key: &str| gpus_of(&text(value, key)).map(|(_, n)| n);
    let times = |n: u32, of: &str| n.saturating_mul(count(value, of).unwrap_or(1).max(1));
    tres(&text(value, "tres_req_str"))
        .gpus
        .or_else(|| asked("tres_per_job"))
        .or_else(|| asked("tres_per_node").map(|n| times(n, "node_count")))
        .or_else(|| asked("tres_per_task").map(|n| times(n, "tasks")))
        .unwrap_or(0)
}

/// Text, or an object of several since slurmdbd keeps them.
fn comment(value: &Value) -> String {
    match value.get("comment") {
        Some(Value::String(t)) => t.clone(),
        Some(Value::Object(o)) => o.get("job").and_then(Value::as_str).unwrap_or_default().to_owned(),
        _ => String::new(),
    }
}

fn status(value: Option<&Value>) -> i32 {
    let small = |v: u64| i32::try_from(v).unwrap_or(0);
    match value {
        Some(Value::Object(o)) if o.contains_key("return_code") => {
            let code = o.get("return_code").and_then(number).map_or(0, small);
            let signal = o.get("signal").and_then(|s| s.get("id").or_else(|| s.get("signal_id")));
            (code << 8) | signal.and_then(number).map_or(0, small)
        }
        Some(other) => number(other).map_or(0, small),
        None => 0,
    }
}

/// What a job has, node by node.
fn parts(value: &Value) -> Vec<Part> {
    let resources = value.get("job_resources");
    let listed = resources
        .and_then(|r| r.get("nodes"))
        .and_then(|n| n.as_str().or_else(|| n.get("list").and_then(Value::as_str)).map(str::to_owned));
    let nodes = hosts(&listed.unwrap_or_else(|| text(value, "nodes")));
    if nodes.is_empty() {
        return Vec::new();
    }
    let n = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let cpus = count(value, "cpus").unwrap_or(n);
    let tres = tres(&text(value, "tres_alloc_str"));
    let gres = texts_whole(value.get("gres_detail"));
    let each =
        items(resources.and_then(|r| {
            r.get("allocated_nodes").or_else(|| r.get("nodes").and_then(|n| n.get("allocation")))
        }));
    let cores_in_all: u64 = each.iter().copied().map(cores).sum();
    let mut by_name: HashMap<&str, &Value> = HashMap::new();
    for &node in &each {
        for name in ["nodename", "name"].into_iter().filter_map(|key| node.get(key)?.as_str()) {
            by_name.entry(name).or_insert(node);
        }
    }
    let part = |(i, name): (usize, &String)| {
        let here = by_name.get(name.as_str()).copied();
        let memory = here
            .and_then(|h| {
                h.get("memory_allocated")
                    .and_then(number)
                    .or_else(|| h.get("memory").and_then(|m| m.get("allocated")).and_then(number))
            })
            .or_else(|| tres.memory_mb.map(|mb| mb / u64::from(n)));
        let cpus_here = here
            .and_then(|h| h.get("cpus").and_then(|c| c.get("count")).and_then(number))
            .and_then(|c| u32::try_from(c).ok())
            .or_else(|| here.and_then(|h| share(cpus, cores(h), cores_in_all)));
        let gpus = if gres.len() == nodes.len() {
            gres.get(i).map(|g| gpus_of(g).map_or(0, |(_, n)| n)).unwrap_or(0)
        } else {
            tres.gpus.map_or(0, |g| g.div_ceil(n))
        };
        Part {
            node: name.clone(),
            cpus: cpus_here.unwrap_or_else(|| cpus.div_ceil(n)),
            memory: Bytes(memory.unwrap_or(0).saturating_mul(1 << 20)),
            gpus,
        }
    };
    nodes.iter().enumerate().map(part).collect()
}

/// What is in an array, or in an object whose keys are numbers.
fn items(value: Option<&Value>) -> Vec<&Value> {
    match value {
        Some(Value::Array(all)) => all.iter().collect(),
        Some(Value::Object(all)) => all.values().collect(),
        _ => Vec::new(),
    }
}

/// Cores that a job has of a node, where they are named one by one: by socket, then by core.
fn cores(node: &Value) -> u64 {
    let sockets = node.get("sockets").and_then(Value::as_object);
    let cores = sockets.into_iter().flat_map(|s| s.values()).filter_map(|s| s.get("cores")?.as_object());
    let has = |c: &&Value| c.as_str().is_some_and(|word| word.to_ascii_lowercase().starts_with("alloc"));
    cores.flat_map(|c| c.values()).filter(has).count() as u64
}

/// Of so many CPUs as many as belong to these cores of all.
fn share(cpus: u32, cores: u64, in_all: u64) -> Option<u32> {
    let here = u64::from(cpus).checked_mul(cores)?.checked_div(in_all)?;
    u32::try_from(here).ok()
}

/// An array of texts, not taken apart.
fn texts_whole(value: Option<&Value>) -> Vec<String> {
    let all = value.and_then(Value::as_array);
    all.map(|a| a.iter().filter_map(Value::as_str).map(str::to_owned).collect()).unwrap_or_default()
}

#[derive(Default)]
struct Tres {
    memory_mb: Option<u64>,
    gpus: Option<u32>,
}

/// `cpu=2,mem=200M,node=2,billing=2,gres/gpu=4`; some sites count GPUs by type alone, `gres/gpu:h100=4`.
fn tres(text: &str) -> Tres {
    let mut found = Tres::default();
    let mut typed: Option<u32> = None;
    for (key, value) in text.split(',').filter_map(|p| p.split_once('=')) {
        match key {
            "mem" => found.memory_mb = megabytes(value),
            "gres/gpu" => found.gpus = value.parse().ok(),
            _ if key.starts_with("gres/gpu:") => {
                let n: u32 = value.parse().unwrap_or(0);
                typed = Some(typed.unwrap_or(0).saturating_add(n));
            }
            _ => {}
        }
    }
    found.gpus = found.gpus.or(typed);
    found
}

/// Slurm's sizes in megabytes: `200M`, `1.5G`, `1T`, plain megabytes.
pub fn megabytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().ok().filter(|n: &f64| *n >= 0.0)?;
    let factor = match unit.to_ascii_uppercase().trim_end_matches(['B', 'N', 'C']) {
        "K" => 1.0 / 1024.0,
        "" | "M" => 1.0,
        "G" => 1024.0,
        "T" => 1024.0 * 1024.0,
        "P" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    Some((number * factor).ceil() as u64)
}

/// GPU type and count of a GRES text: `gpu:h100:4(S:0-1)`, `gpu:2(IDX:0-1)`, `gpu:a:2,gpu:b:1` (the sum, first type).
pub fn gpus_of(text: &str) -> Option<(String, u32)> {
    let mut kind: Option<String> = None;
    let mut sum: u32 = 0;
    let mut depth = 0;
    // Commas inside parentheses separate indices.
    let plain: String = text
        .chars()
        .filter(|c| {
            match c {
                '(' => depth += 1,
                ')' => {
                    depth -= 1;
                    return false;
                }
                _ => {}
            }
            depth == 0
        })
        .collect();
    for item in plain.split(',') {
        let item = item.trim().trim_start_matches("gres/").trim_start_matches("gres:");
        // 24.11 also writes the count behind an equals sign.
        let mut fields = item.split([':', '=']);
        if fields.next() != Some("gpu") {
            continue;
        }
        let rest: Vec<&str> = fields.collect();
        let (name, n) = match rest.as_slice() {
            [] => ("", 1),
            [one] => one.parse().map_or((*one, 1), |n: u32| ("", n)),
            [name, n, ..] => (*name, n.parse().unwrap_or(0)),
        };
        sum = sum.saturating_add(n);
        if kind.is_none() {
            kind = Some(name.to_owned());
        }
    }
    kind.map(|kind| (kind, sum))
}

/// One node; none where it has no name.
pub fn node(value: &Value) -> Option<NativeNode> {
    let named = |n: &String| !n.is_empty() && n.len() <= HOST_BYTES_MAX && !n.contains(char::is_control);
    let name = Some(text(value, "name")).filter(named)?;
    let mut states = words(value.get("state"));
    states.extend(words(value.get("state_flags")));
    let bad = [
        "DOWN",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "FAIL",
        "FAILING",
        "ERROR",
        "UNKNOWN",
        "MAINT",
        "MAINTENANCE",
        "NO_RESPOND",
        "NOT_RESPONDING",
        "POWERING_DOWN",
        "POWERED_DOWN",
        "POWER_DOWN",
        "FUTURE",
        "RESERVED",
        "PERFCTRS",
        "BLOCKED",
        "REBOOT_ISSUED",
        "REBOOT",
        "INVALID",
        "INVALID_REG",
    ];
    let good = ["IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "CLOUD"];
    let cpus = count(value, "cpus").unwrap_or(0);
    let memory = Bytes(value.get("real_memory").and_then(number).unwrap_or(0).saturating_mul(1 << 20));
    let gpus = gpus_of(&text(value, "gres")).filter(|(_, n)| *n > 0);
    let sane = cpus <= CPUS_MAX && memory <= MEMORY_MAX && gpus.as_ref().is_none_or(|(_, n)| *n <= GPUS_MAX);
    let usable = sane
        && !states.is_empty()
        && states.iter().any(|w| good.contains(&w.as_str()))
        && !states.iter().any(|w| bad.contains(&w.trim_end_matches('*')));
    let reason = if sane { text(value, "reason") } else { "no node has that much".into() };
    let state = states.join("+") + &if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    Some(NativeNode {
        usable,
        state,
        cpus,
        memory,
        gpus,
        partitions: texts(value.get("partitions")),
        features: features(value),
        name,
    })
}

/// Partitions that are not hidden; `None` where the flags of none are told, or the name of one that is not.
pub fn shown(document: &Value) -> Option<Vec<String>> {
    let all = items(document.get("partitions"));
    if !all.iter().any(|p| p.get("flags").is_some()) {
        return None;
    }
    let hidden = |p: &&Value| words(p.get("flags")).iter().any(|word| word == "HIDDEN");
    let names: Vec<String> = all.into_iter().filter(|p| !hidden(p)).map(|p| text(p, "name")).collect();
    names.iter().all(|name| !name.is_empty()).then_some(names)
}

/// What it has, and what it can be given; either may be missing or empty.
fn features(value: &Value) -> Vec<String> {
    let mut all = texts(value.get("active_features"));
    for more in texts(value.get("features")) {
        if !all.contains(&more) {
            all.push(more);
        }
    }
    all
}

/// Expands `a[1-3,07-09]-x,b`, one or more brackets. What cannot be read is no host.
pub fn hosts(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    for (at, c) in text.char_indices().chain([(text.len(), ',')]) {
        match c {
            '[' => depth = depth.saturating_add(1),
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                found.extend(expand(text.get(start..at).unwrap_or_default(), HOSTS_MAX - found.len()));
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The first hosts of one item of a list, at most so many.
fn expand(item: &str, most: usize) -> Vec<String> {
    if matches!(item, "" | "(null)" | "None" | "N/A") || most == 0 {
        return Vec::new();
    }
    let (before, mut rest) = item.split_at(item.find('[').unwrap_or(item.len()));
    let mut names = vec![before.to_owned()];
    let (mut brackets, mut plain) = (0, before.len());
    while let Some(inner) = rest.strip_prefix('[') {
        let Some((ranges, after)) = inner.split_once(']') else { return Vec::new() };
        let (literal, next) = after.split_at(after.find('[').unwrap_or(after.len()));
        (brackets, plain, rest) = (brackets + 1, plain + literal.len(), next);
        if brackets > BRACKETS_MAX || plain > HOST_BYTES_MAX {
            return Vec::new();
        }
        let numbers: Vec<String> = ranges.split(',').filter_map(range).flatten().take(most).collect();
        let more =
            |name: &String| numbers.iter().map(move |n| format!("{name}{n}{literal}")).collect::<Vec<_>>();
        names = names.iter().flat_map(more).take(most).collect();
    }
    if plain > HOST_BYTES_MAX { Vec::new() } else { names }
}

/// The numbers of `07-09`, as wide as the first.
fn range(text: &str) -> Option<impl Iterator<Item = String> + use<>> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let width = low.len();
    let (from, to) = (low.parse::<u64>().ok()?, high.parse::<u64>().ok()?);
    (width <= DIGITS_MAX).then(|| (from..=to).map(move |n| format!("{n:0width$}")))
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "versions_tests.rs"]
mod versions_tests;
