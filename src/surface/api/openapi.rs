//! `GET /v1/openapi.json`, built from the table of routes and what each takes and gives.

use std::sync::LazyLock;

use axum::Json;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::routes::{ROUTES, Route};
use super::shapes::{ERRORS, SHAPES, Shape};
use crate::surface::documents::ErrorDocument;

/// It never changes while the peer runs.
static DOCUMENT: LazyLock<Value> = LazyLock::new(build);

/// The handler.
pub async fn document() -> Json<&'static Value> {
    let document: &'static Value = &DOCUMENT;
    Json(document)
}

/// Schemas of what is read and of what is written: a field that may be left out there may have to be here.
struct Schemas {
    read: SchemaGenerator,
    written: SchemaGenerator,
}

impl Default for Schemas {
    fn default() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|s| {
                s.meta_schema = None;
                s.definitions_path = "/components/schemas".into();
            })
        };
        Self { read: settings().into_generator(), written: settings().for_serialize().into_generator() }
    }
}

/// The document.
pub fn build() -> Value {
    let mut schemas = Schemas::default();
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let shape = SHAPES.iter().find(|s| (s.method, s.path) == (route.method, route.path));
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = operation(route, shape, &mut schemas);
    }
    let error = schemas.written.subschema_for::<ErrorDocument>();
    let Schemas { mut read, mut written } = schemas;
    let mut named = read.take_definitions(true);
    // Identifiers and the like are the same in both; a name that is not would hide one of two types.
    for (name, schema) in written.take_definitions(true) {
        let read = named.insert(name.clone(), schema.clone());
        debug_assert!(read.is_none_or(|read| read == schema), "two types have the name {name}");
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
            "schemas": named,
            "responses": error_responses(&error),
        },
        "security": [{ "token": [] }, {}],
    })
}

fn error_responses(error: &Schema) -> Map<String, Value> {
    let one =
        |what: String| json!({ "description": what, "content": { "application/json": { "schema": error } } });
    let of = |(_, name, codes): &(u16, &str, &[&str])| {
        ((*name).to_owned(), one(format!("code {}", codes.join(", "))))
    };
    let mut out: Map<String, Value> = ERRORS.iter().map(of).collect();
    out.insert("Error".into(), one("any other error".into()));
    out
}

fn operation(route: &Route, shape: Option<&Shape>, schemas: &mut Schemas) -> Value {
    let mut parameters: Vec<Value> = variables(route.path)
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    parameters.extend(route.query.iter().map(|(name, kind, meaning)| {
        json!({ "name": name, "in": "query", "description": meaning, "schema": { "type": kind } })
    }));
    if matches!(route.path, "/v1/jobs" | "/v1/reservations") && route.method == "POST" {
        parameters.push(
            json!({ "name": "Idempotency-Key", "in": "header", "schema": { "type": "string", "maxLength": 128 } }),
        );
    }
    let mut responses = Map::new();
    for (status, make) in shape.iter().flat_map(|s| s.gives) {
        let schema = make(&mut schemas.written);
        let content = json!({ route.answers: { "schema": schema } });
        responses
            .insert(status.to_string(), json!({ "description": described(*status), "content": content }));
    }
    for status in shape.map(Shape::errors).unwrap_or_default() {
        let name = ERRORS.iter().find(|(s, ..)| *s == status).map_or("Error", |(_, name, _)| name);
        let reference = json!({ "$ref": format!("#/components/responses/{name}") });
        responses.entry(status.to_string()).or_insert(reference);
    }
    responses.insert("default".into(), json!({ "$ref": "#/components/responses/Error" }));
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "parameters": parameters,
        "responses": responses,
    });
    if let Some(make) = shape.and_then(|s| s.body) {
        let schema = make(&mut schemas.read);
        let mut content = json!({ "application/json": { "schema": schema } });
        if route.path == "/v1/jobs" {
            content["application/yaml"] = json!({ "schema": schema });
        }
        // A token may be asked for with nothing said.
        operation["requestBody"] = json!({ "required": route.path != "/v1/tokens", "content": content });
    }
    operation
}

fn described(status: u16) -> &'static str {
    match status {
        200 => "done",
        201 => "made",
        _ => "not now",
    }
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
