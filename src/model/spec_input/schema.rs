//! A job file as a JSON Schema, for the API's document. What `keys` names is here, and nothing else; a test holds it to that.

use serde_json::{Map, Value, json};

use crate::model::spec::limits;

fn text(what: &str) -> Value {
    json!({ "type": "string", "description": what })
}
/// Numbers may be written with a unit.
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
        "memory": amount("memory of each node: 64G"),
    }))
}

fn data(what: &str) -> Value {
    let entry = or_text(
        "a name, URI or absolute path, or a mapping",
        json!({ "uri": text("what to read"), "size": amount("how large it is: 2T"), "stage": { "type": "boolean" } }),
    );
    json!({ "type": ["string", "array", "object"], "items": entry, "maxItems": limits::LIST_MAX, "description": what,
        "additionalProperties": false, "properties": entry["properties"] })
}

fn checkpoint(what: &str) -> Value {
    or_text(
        what,
        json!({ "path": text("where it is kept"), "every": amount("how often the job writes one") }),
    )
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
        ("max_runtime", amount("longest run of one attempt: 2h")),
        ("retries", count("how often a failed attempt is tried again", 0, limits::RETRIES_MAX)),
        ("on_lost_contact", mapping(json!({
            "grace": amount("how long it may go on without contact, or never"),
            "then": words("what follows", &["restart", "fail"]),
        }))),
        ("warn", mapping(json!({
            "signal": text("TERM, USR1, USR2, HUP, INT, QUIT"),
            "command": text("a script that is run beside it"),
            "before": amount("so long before max_runtime"),
        }))),
        ("placement", mapping(json!({
            "policy": words("what is weighed most", &["balanced", "data-first", "cheapest", "fastest", "spread", "green"]),
            "regions": list("regions that will do"),
            "clusters": list("clusters that will do"),
            "labels": texts("labels that a cluster must carry"),
            "zones": list("zones that will do"),
            "price_max": { "type": "number", "description": "USD per GPU hour" },
            "compliance": list("compliance domains"),
        }))),
        ("preemptible", json!({ "type": "boolean", "description": "may be stopped for a job of a higher priority" })),
        ("groups", entries("task groups", json!({
            "name": text("its name"), "nodes": count("nodes", 1, limits::NODES_MAX), "resources": resources(),
        }))),
        ("traffic", entries("what the groups send each other", json!({
            "from": text("one group"), "to": text("the other"), "rate": amount("bytes per second"),
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
        json!({ "job": text("the job"), "on": words("how it must end", &["ok", "fail", "any"]) }),
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
}
