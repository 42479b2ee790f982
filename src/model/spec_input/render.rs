//! A job as a YAML document that reads back to the same job.

use serde_json::{Map, Value, json};

use super::parts::POLICIES;
use crate::base::{Bytes, MilliCpu};
use crate::model::array::After;
use crate::model::input::words::{size_text, span_text};
use crate::model::spec::{Communication, Group, JobSpec, PlacementSpec, Resources, Run, Then, Traffic};

/// Writes a job as YAML. `parse_spec` of it gives the same job; defaults are left out.
pub fn render_spec(spec: &JobSpec) -> String {
    let mut out = String::new();
    for (key, value) in document(spec) {
        out.push_str(&key);
        out.push(':');
        write(&mut out, &value, 1);
    }
    out
}

fn document(spec: &JobSpec) -> Vec<(String, Value)> {
    let mut doc: Vec<(String, Value)> = vec![("name".into(), json!(spec.name))];
    let mut put = |key: &str, value: Value| doc.push((key.to_owned(), value));
    if spec.tenant != "default" {
        put("tenant", json!(spec.tenant));
    }
    if spec.priority != 50 {
        put("priority", json!(spec.priority));
    }
    if spec.groups.list.is_empty() {
        put("resources", resources(&spec.resources));
        if spec.nodes != 1 {
            put("nodes", json!(spec.nodes));
        }
    } else {
        let group =
            |g: &Group| json!({"name": g.name, "nodes": g.nodes, "resources": resources(&g.resources)});
        let traffic = |t: &Traffic| json!({"from": t.from, "to": t.to, "rate": size_text(t.rate)});
        put("groups", spec.groups.list.iter().map(group).collect());
        if !spec.groups.traffic.is_empty() {
            put("traffic", spec.groups.traffic.iter().map(traffic).collect());
        }
    }
    match &spec.run {
        Run::Script(script) => put("run", json!(script)),
        Run::Argv(args) => put("run", json!(args)),
        Run::Image => {}
    }
    if !spec.env.is_empty() {
        put("env", json!(spec.env));
    }
    for (key, text) in [("workdir", &spec.workdir), ("image", &spec.image)] {
        if let Some(text) = text {
            put(key, json!(text));
        }
    }
    if !spec.data.is_empty() {
        let entry = |uri: &String| match spec.data_sizes.get(uri) {
            Some(size) => json!({"uri": uri, "size": size_text(*size)}),
            None => json!(uri),
        };
        put("data", spec.data.iter().map(entry).collect());
    }
    if let Some(c) = &spec.checkpoint {
        put(
            "checkpoint",
            match c.every {
                Some(every) => json!({"path": c.path, "every": span_text(every)}),
                None => json!({"path": c.path}),
            },
        );
    }
    match spec.communication {
        Communication::Sync => {}
        Communication::Async => put("communication", json!("async")),
        Communication::None => put("communication", json!("none")),
    }
    if let Some(limit) = spec.max_runtime {
        put("max_runtime", json!(span_text(limit)));
    }
    if spec.retries != 0 {
        put("retries", json!(spec.retries));
    }
    let then = match spec.on_lost_contact.then {
        Then::Restart => "restart",
        Then::Fail => "fail",
    };
    let grace = spec.on_lost_contact.grace.map_or_else(|| "never".to_owned(), span_text);
    put("on_lost_contact", json!({"grace": grace, "then": then}));
    if spec.placement != PlacementSpec::default() {
        put("placement", placement(&spec.placement));
    }
    if let Some(array) = &spec.array {
        put("array", json!(array.to_string()));
    }
    if !spec.after.is_empty() {
        let one = |a: &After| json!({"job": a.birth.id().to_string(), "on": a.on.as_str()});
        put("after", Value::Array(spec.after.iter().map(one).collect()));
    }
    if let Some(may) = spec.preemptible {
        put("preemptible", json!(may));
    }
    if let Some(w) = &spec.warn {
        let mut map = Map::new();
        let signal = w.signal.map(|s| json!(s.word()));
        let parts = [
            ("signal", signal),
            ("command", w.command.as_ref().map(|c| json!(c))),
            ("before", w.before.map(|b| json!(span_text(b)))),
        ];
        map.extend(parts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        put("warn", Value::Object(map));
    }
    doc
}

fn resources(r: &Resources) -> Value {
    let mut map = Map::new();
    map.insert("gpus".into(), json!(r.gpus));
    if !r.gpu.is_empty() {
        map.insert("gpu".into(), json!(r.gpu));
    }
    map.insert("cpus".into(), cpus(r.cpus));
    if r.memory > Bytes(0) {
        map.insert("memory".into(), json!(size_text(r.memory)));
    }
    Value::Object(map)
}

fn placement(p: &PlacementSpec) -> Value {
    let mut map = Map::new();
    let policy =
        POLICIES.iter().find(|(_, policy)| *policy == p.policy).map_or("balanced", |(name, _)| *name);
    map.insert("policy".into(), json!(policy));
    if !p.regions.is_empty() {
        map.insert("regions".into(), json!(p.regions));
    }
    if !p.clusters.is_empty() {
        map.insert("clusters".into(), json!(p.clusters));
    }
    if !p.zones.is_empty() {
        map.insert("zones".into(), json!(p.zones));
    }
    if !p.compliance.is_empty() {
        map.insert("compliance".into(), json!(p.compliance));
    }
    if let Some(most) = p.price_max_milli {
        map.insert("price_max".into(), json!(most as f64 / 1e3));
    }
    if !p.labels.is_empty() {
        map.insert("labels".into(), json!(p.labels));
    }
    Value::Object(map)
}

fn cpus(c: MilliCpu) -> Value {
    if c.0.is_multiple_of(1_000) { json!(c.0 / 1_000) } else { json!(format!("{}m", c.0)) }
}

/// One value after its key: blocks for mappings and lists, block text for plain scripts, JSON strings
/// (which are YAML too) for everything else.
fn write(out: &mut String, value: &Value, depth: usize) {
    let pad = "  ".repeat(depth);
    match value {
        Value::Object(map) => {
            out.push('\n');
            for (key, value) in map {
                out.push_str(&format!("{pad}{}:", quoted(key)));
                write(out, value, depth + 1);
            }
        }
        Value::Array(items) => {
            out.push('\n');
            for item in items {
                out.push_str(&format!("{pad}- {}\n", scalar(item)));
            }
        }
        Value::String(text) if is_block(text) => {
            out.push_str(if text.ends_with('\n') { " |\n" } else { " |-\n" });
            for line in text.lines() {
                if !line.is_empty() {
                    out.push_str(&format!("{pad}{line}"));
                }
                out.push('\n');
            }
        }
        value => out.push_str(&format!(" {}\n", scalar(value))),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// Plain where no YAML reader could take it for anything but this text.
fn quoted(text: &str) -> String {
    let safe = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
            .contains(&text.to_ascii_lowercase().as_str());
    if safe {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            ' '..='~' => out.push(c),
            c if c.is_alphanumeric() => out.push(c),
            c if u32::from(c) <= 0xffff => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// Several plain lines, which a block keeps as they are.
fn is_block(text: &str) -> bool {
    text.contains('\n')
        && !text.ends_with("\n\n")
        && !text.starts_with([' ', '\n'])
        && text.chars().all(|c| c == '\n' || (' '..='~').contains(&c))
        && text.lines().all(|line| line.is_empty() || !line.trim().is_empty())
}
