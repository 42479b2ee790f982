//! HTTP API, CLI, metrics: the top.

pub mod api;
pub mod cli;
pub mod client;
pub mod documents;
pub mod fleet;
pub mod incidents;
pub mod ledger;
pub mod linear;
pub mod measure;
pub mod otlp;
pub mod seams;
pub mod serve;
pub mod web;
pub mod work;

#[cfg(test)]
pub(crate) mod fake;

pub use api::{router, serve_proxy};
pub use serve::{ApiListeners, serve};
