//! A job file as a JSON Schema, for the API's document. What `keys` names is here, and nothing else; a test holds it to that.

use serde_json::{Map, Value, json};

use crate::model::policy::POLICIES;
use crate::model::spec::limits;

fn text(what: &str) -> Value {
    json!({ "type": "string", "description": what })
}
/// A number, or one with a unit; what is only read with a unit is a text.
fn amount(what: &str) -> Value {
    json!({ "type": ["string", "number"], "description": what })
}
fn count(what: &str, least: u32, most: u32) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": most, "description": what })
}
fn list(what: &str) -> Value {
    json!({ "type": ["string", "array"], "items": { "type": "string" }, "maxItems": limits::LIST_MAX, "description": what })
}
fn words(what: &str, words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words, "description": what })
}
fn texts(what: &str) -> Value {
    json!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] }, "description": what })
}
fn mapping(properties: Value) -> Value {
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}
/// A list of mappings, or of what is short for one.
fn entries(what: &str, properties: Value) -> Value {
    json!({ "type": "array", "items": mapping(properties), "description": what })
}
/// The mapping, or a text that is short for it.
fn or_text(what: &str, properties: Value) -> Value {
    json!({ "type": ["string", "object"], "additionalProperties": false, "properties": properties, "description": what })
}

fn resources() -> Value {
    mapping(json!({
        "gpus": amount("GPUs of each node, or MODEL:COUNT"),
        "gpu": list("models that will do, the best first"),
        "cpus": amount("cores of each node: 4, 0.5, 500m"),
        "memory": text("memory of each node: 64G"),
    }))
}

fn data(what: &str) -> Value {
    let entry = or_text(
        "a name, URI or absolute path, or a mapping",
        json!({ "uri": text("what to read"), "size": text("how large it is: 2T"), "stage": { "const": false } }),
    );
    json!({ "type": ["string", "array", "object"], "items": entry, "maxItems": limits::LIST_MAX, "description": what,
        "additionalProperties": false, "properties": entry["properties"] })
}

fn checkpoint(what: &str) -> Value {
    or_text(what, json!({ "path": text("where it is kept"), "every": text("how often the job writes one") }))
}

/// The schema. Keys that are refused so far are left out.
pub fn schema() -> Value {
    let modes = ["sync", "async", "none"];
    let mut properties: Map<String, Value> = [
        ("name", text("name for people")),
        ("tenant", text("who it is accounted to")),
        ("priority", json!({ "type": ["integer", "string"], "description": "0 to 100, or low, normal, high" })),
        ("resources", resources()),
        ("nodes", count("nodes (ranks)", 1, limits::NODES_MAX)),
        ("run", json!({ "type": ["string", "array"], "items": { "type": ["string", "number", "boolean"] }, "description": "a script, or a program and its arguments; needed unless image is given" })),
        ("env", texts("variables")),
        ("workdir", text("working folder at the cluster")),
        ("image", text("container image")),
        ("data", data("what it reads")),
        ("checkpoint", checkpoint("where it keeps its progress")),
        ("communication", words("how its nodes talk", &modes)),
        ("max_runtime", text("longest run of one attempt: 2h")),
        ("retries", count("how often a failed attempt is tried again", 0, limits::RETRIES_MAX)),
        ("on_lost_contact", mapping(json!({
            "grace": text("how long it may go on without contact, or never"),
            "then": words("what follows", &["restart", "fail"]),
        }))),
        ("warn", mapping(json!({
            "signal": text("TERM, USR1, USR2, HUP, INT, QUIT"),
            "command": text("a script that is run beside it"),
            "before": text("so long before max_runtime"),
        }))),
        ("placement", mapping(json!({
            "policy": words("what is weighed most", &POLICIES.map(|(name, _)| name)),
            "regions": list("regions that will do"),
            "clusters": list("clusters that will do"),
            "labels": { "type": "object", "additionalProperties": { "type": "string" }, "description": "labels that a cluster must carry" },
            "zones": list("zones that will do"),
            "price_max": { "type": "number", "description": "USD per GPU hour" },
            "compliance": list("compliance domains"),
        }))),
        ("preemptible", json!({ "type": "boolean", "description": "may be stopped for a job of a higher priority" })),
        ("groups", entries("task groups", json!({
            "name": text("its name"), "nodes": count("nodes", 1, limits::NODES_MAX), "resources": resources(),
        }))),
        ("traffic", entries("what the groups send each other", json!({
            "from": text("one group"), "to": text("the other"), "rate": text("bytes per second"),
        }))),
        ("array", json!({ "type": ["integer", "string"], "description": "many jobs from one: 100, 0-499%50" })),
        ("job_id", text("name and idempotency key")),
        ("task_type", text("given to the job as TASK_TYPE")),
        ("communication_mode", words("as communication", &modes)),
        ("gpu", mapping(json!({ "count": count("GPUs of each node", 0, limits::GPUS_PER_NODE_MAX), "model": list("models that will do") }))),
        ("dataset", data("as data")),
        ("checkpoint_path", checkpoint("as checkpoint")),
        ("max_runtime_seconds", json!({ "type": "integer", "minimum": 1, "description": "as max_runtime" })),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into_iter()
    .collect();
    let after = or_text(
        "ID, or any:ID and the like, or a mapping",
        json!({ "job": text("the job"), "on": words("how it must end", &super::array::WORDS.map(|(word, _)| word)) }),
    );
    let afters = json!({
        "type": ["string", "array", "object"], "items": after, "additionalProperties": false,
        "properties": after["properties"], "description": "starts only when these have ended so",
    });
    properties.insert("after".into(), afters);
    let mut document = mapping(properties.into());
    document["description"] = "a job file; docs/reference/spec.md says more of each key".into();
    document
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::keys::SECTIONS;
    use super::*;

    /// Every key that is read stands in it and no other, section by section.
    #[test]
    fn it_has_every_key() {
        let schema = schema();
        for (section, keys) in SECTIONS {
            let of = match *section {
                "" => &schema,
                "groups" | "traffic" => &schema["properties"][section]["items"],
                section => &schema["properties"][section],
            };
            let named: BTreeSet<&str> =
                of["properties"].as_object().expect(section).keys().map(String::as_str).collect();
            // `stage: false` is taken, so it is there.
            let read = keys.iter().filter(|k| k.ready || k.name == "stage").map(|k| k.name).collect();
            assert_eq!(named, read, "{section:?}");
        }
    }
    /// The types below a key; a constant is of its own type.
    fn types(of: &Value) -> Vec<String> {
        let name = |v: &Value| v.as_str().map(str::to_owned);
        match &of["type"] {
            Value::String(one) => vec![one.clone()],
            Value::Array(all) => all.iter().filter_map(name).collect(),
            _ => Vec::new(),
        }
    }

    /// A number or a yes is taken exactly where the schema says so.
    #[test]
    fn it_is_as_true_of_numbers_and_flags_as_the_parser() {
        let schema = schema();
        for (path, rest) in [
            (&["max_runtime"][..], json!({})),
            (&["priority"], json!({})),
            (&["retries"], json!({})),
            (&["nodes"], json!({})),
            (&["name"], json!({})),
            (&["preemptible"], json!({})),
            (&["env", "A"], json!({})),
            (&["resources", "gpus"], json!({})),
            (&["resources", "cpus"], json!({})),
            (&["resources", "memory"], json!({})),
            (&["checkpoint", "every"], json!({"checkpoint": {"path": "/tmp"}})),
            (&["on_lost_contact", "grace"], json!({})),
            (&["warn", "before"], json!({"max_runtime": "1h", "warn": {"signal": "USR1"}})),
            (&["placement", "labels", "a"], json!({})),
            (&["placement", "price_max"], json!({})),
            (&["data", "size"], json!({"data": {"uri": "s3://a/b"}})),
        ] {
            let mut of = &schema;
            for key in path {
                let named = &of["properties"][key];
                of = if named.is_null() { &of["additionalProperties"] } else { named };
            }
            let types = types(of);
            assert!(!types.is_empty(), "{path:?}");
            for (value, kinds) in [(json!(3), &["integer", "number"][..]), (json!(true), &["boolean"])] {
                let mut spec = rest.clone();
                spec["run"] = "true".into();
                let mut at = &mut spec;
                for key in path {
                    at = &mut at[key];
                }
                *at = value.clone();
                let taken = crate::model::spec_input::parse_spec(spec.to_string().as_bytes()).is_ok();
                let said = kinds.iter().any(|kind| types.iter().any(|t| t == kind));
                assert_eq!(taken, said, "{path:?}: {value}");
            }
        }
        let with =
            |stage: bool| json!({"run": "true", "data": {"uri": "s3://a/b", "stage": stage}}).to_string();
        let taken = |stage| crate::model::spec_input::parse_spec(with(stage).as_bytes()).is_ok();
        assert_eq!((taken(false), taken(true)), (true, false));
        assert_eq!(schema["properties"]["data"]["properties"]["stage"], json!({"const": false}));
    }
}
