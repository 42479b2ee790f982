//! `GET /v1/openapi.json`, built from the table of routes.

use axum::Json;
use serde_json::{Map, Value, json};

use super::routes::{ROUTES, Route};

/// The handler.
pub async fn document() -> Json<Value> {
    Json(build())
}

/// The document.
pub fn build() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Starling",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Times are milliseconds since 1970 (`…_at_ms`). Every error is `{error: {code, message, hint, details?}}`."
        },
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Error": error_schema() },
        },
        "security": [{ "token": [] }, {}],
    })
}

fn operation(route: &Route) -> Value {
    let mut parameters: Vec<Value> = variables(route.path)
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    parameters.extend(route.query.iter().map(|(name, kind, meaning)| {
        json!({ "name": name, "in": "query", "description": meaning, "schema": { "type": kind } })
    }));
    let good =
        if matches!(route.path, "/v1/jobs" | "/v1/tokens" | "/v1/reservations") && route.method == "POST" {
            "201"
        } else {
            "200"
        };
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            good: { "description": "done", "content": { route.answers: {} } },
            "default": {
                "description": "an error",
                "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
            },
        },
    });
    if route.path == "/v1/jobs" && route.method == "POST" {
        operation["responses"]["200"] = json!({ "description": "the explanation of a dry run" });
        operation["parameters"].as_array_mut().into_iter().for_each(|list| {
            list.push(json!({ "name": "Idempotency-Key", "in": "header", "schema": { "type": "string", "maxLength": 128 } }));
        });
    }
    if route.path == "/v1/reservations" && route.method == "POST" {
        operation["parameters"].as_array_mut().into_iter().for_each(|list| {
            list.push(json!({ "name": "Idempotency-Key", "in": "header", "schema": { "type": "string", "maxLength": 128 } }));
        });
    }
    if let Some(body) = body_of(route) {
        operation["requestBody"] = body;
    }
    operation
}

fn body_of(route: &Route) -> Option<Value> {
    let text = |kind: &str| json!({ "type": kind });
    let (required, properties) = match (route.method, route.path) {
        ("POST", "/v1/jobs") => {
            let spec = json!({ "description": "a spec document (docs/reference/spec.md), or {spec, key} around one" });
            return Some(json!({ "required": true, "content": {
                "application/json": { "schema": spec }, "application/yaml": { "schema": spec } } }));
        }
        ("POST", "/v1/jobs/{id}/checkpoint") => {
            (json!(["epoch", "uri"]), json!({ "epoch": text("integer"), "uri": text("string") }))
        }
        ("POST", "/v1/silences") => {
            (json!(["what", "for"]), json!({ "what": text("string"), "for": text("string") }))
        }
        ("POST", "/v1/reservations") => {
            let names = json!({ "oneOf": [text("string"), { "type": "array", "items": text("string") }] });
            let properties = json!({
                "tenant": text("string"), "name": text("string"), "gpus": text("integer"), "gpu": names,
                "cluster": names, "clusters": text("integer"), "for": text("string"),
                "from": { "type": ["string", "integer"] }, "until": { "type": ["string", "integer"] },
            });
            (json!(["gpus"]), properties)
        }
        ("POST", "/v1/tokens") => (json!([]), json!({ "ttl": text("string") })),
        _ => return None,
    };
    let schema = json!({ "type": "object", "required": required, "properties": properties });
    Some(json!({ "content": { "application/json": { "schema": schema } } }))
}

fn variables(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn operation_id(route: &Route) -> String {
    let words =
        route.path.split('/').filter(|p| !p.is_empty() && *p != "v1").map(|p| p.trim_matches(['{', '}']));
    let path: Vec<String> = words.map(|w| w.replace('.', "_")).collect();
    format!("{}_{}", route.method.to_ascii_lowercase(), path.join("_"))
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": { "error": {
            "type": "object",
            "required": ["code", "message", "hint"],
            "properties": {
                "code": { "type": "string", "description": "stable name" },
                "message": { "type": "string", "description": "what is wrong, and whether anything changed" },
                "hint": { "type": "string", "description": "what to do" },
                "details": { "type": "array", "items": { "type": "string" } },
            },
        } },
    })
}
