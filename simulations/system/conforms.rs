//! Holds answers against the API's own document: what is required is there, of its type, and nothing is there that the
//! document does not know. What JSON Schema has beyond that (formats, lengths) is not looked at.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The operation that a request meets; a path is named whole before one with a variable part.
pub fn operation<'a>(document: &'a Value, method: &str, path: &str) -> Option<&'a Value> {
    let path = path.split('?').next().unwrap_or_default();
    let fits = |template: &str| {
        let (mut given, mut wanted) = (path.split('/'), template.split('/'));
        loop {
            match (given.next(), wanted.next()) {
                (None, None) => return true,
                (Some(g), Some(w)) if g == w || w.starts_with('{') => {}
                _ => return false,
            }
        }
    };
    let mut found: Vec<_> = document["paths"].as_object()?.iter().filter(|(t, _)| fits(t)).collect();
    found.sort_by_key(|(template, _)| template.matches('{').count());
    found.into_iter().find_map(|(_, methods)| methods.get(method.to_ascii_lowercase()))
}

/// What an answer should be, held against what it is.
pub fn answer(document: &Value, method: &str, path: &str, status: u16, answer: &Value) -> Result<(), String> {
    let operation =
        operation(document, method, path).ok_or_else(|| format!("{method} {path} is not in the document"))?;
    let response = &operation["responses"][status.to_string()];
    if response.is_null() {
        return Err(format!("{method} {path}: status {status} is not in the document"));
    }
    let schema = &resolved(document, response)?["content"]["application/json"]["schema"];
    value(document, schema, answer).map_err(|e| format!("{method} {path}, {status}: {e}"))
}

/// What was sent, held against what the document says is taken.
pub fn request(document: &Value, method: &str, path: &str, body: &Value) -> Result<(), String> {
    let taken = operation(document, method, path).map(|o| &o["requestBody"]["content"]["application/json"]);
    let schema = &taken.ok_or_else(|| format!("{method} {path} is not in the document"))?["schema"];
    value(document, schema, body).map_err(|e| format!("body of {method} {path}: {e}"))
}

/// A value against a schema of the document.
pub fn value(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if schema.is_null() {
        return Err("the document has no schema for it".into());
    }
    check(document, schema, value, "it", true)
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> Result<&'a Value, String> {
    match schema["$ref"].as_str() {
        None => Ok(schema),
        Some(to) => {
            let at = to.strip_prefix('#').and_then(|pointer| document.pointer(pointer));
            at.ok_or_else(|| format!("{to} leads nowhere"))
        }
    }
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

/// Every property that a schema and its parts name; whether others are let in.
fn named(document: &Value, schema: &Value, out: &mut BTreeSet<String>) -> Result<bool, String> {
    let mut open = !matches!(schema["additionalProperties"], Value::Null | Value::Bool(false))
        || schema.get("patternProperties").is_some();
    out.extend(schema["properties"].as_object().into_iter().flat_map(Map::keys).cloned());
    if schema.get("$ref").is_some() {
        open |= named(document, resolved(document, schema)?, out)?;
    }
    for part in ["allOf", "anyOf", "oneOf"].iter().filter_map(|k| schema[k].as_array()).flatten() {
        open |= named(document, part, out)?;
    }
    Ok(open)
}

/// `whole`: the schema is all that is said of this value, so what it does not name is not known.
fn check(document: &Value, schema: &Value, value: &Value, at: &str, whole: bool) -> Result<(), String> {
    if let Value::Bool(any) = schema {
        return if *any { Ok(()) } else { Err(format!("{at}: nothing may be here")) };
    }
    if schema.get("$ref").is_some() {
        check(document, resolved(document, schema)?, value, at, false)?;
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !kinds.is_empty() && !kinds.iter().any(|kind| is(kind, value)) {
        return Err(format!("{at}: {value} is not of type {}", kinds.join(" or ")));
    }
    if schema.get("const").is_some_and(|only| only != value) {
        return Err(format!("{at}: {value} is not {}", schema["const"]));
    }
    if schema["enum"].as_array().is_some_and(|list| !list.contains(value)) {
        return Err(format!("{at}: {value} is none of {}", schema["enum"]));
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        check(document, part, value, at, false)?;
    }
    for parts in ["anyOf", "oneOf"].iter().filter_map(|k| schema[k].as_array()) {
        let tried: Vec<String> =
            parts.iter().filter_map(|part| check(document, part, value, at, whole).err()).collect();
        if tried.len() == parts.len() {
            return Err(tried.join("; or "));
        }
    }
    if let Value::Array(items) = value {
        let first = schema["prefixItems"].as_array().map_or(&[][..], Vec::as_slice);
        for (n, item) in items.iter().enumerate() {
            if let Some(schema) = first.get(n).or_else(|| schema.get("items")) {
                check(document, schema, item, &format!("{at}[{n}]"), true)?;
            }
        }
    }
    if let Value::Object(map) = value {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !map.contains_key(name) {
                return Err(format!("{at}: {name} is missing"));
            }
        }
        let mut known = BTreeSet::new();
        let open = named(document, schema, &mut known)?;
        for (name, value) in map {
            let at = format!("{at}.{name}");
            match schema["properties"].get(name) {
                Some(schema) => check(document, schema, value, &at, true)?,
                None if schema["additionalProperties"].is_object() => {
                    check(document, &schema["additionalProperties"], value, &at, true)?;
                }
                None if whole && !open && !known.contains(name) => {
                    return Err(format!("{at} is not in the document"));
                }
                None => {}
            }
        }
    }
    Ok(())
}
