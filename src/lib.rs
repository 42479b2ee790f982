//! Starling: a job scheduler over many GPU clusters with no hub.
//!
//! Every cluster runs one identical peer. The layers, lowest first, are `base`, `model`, `core`,
//! `transport`, `runtime`, `backends`, `data`, `surface`; a file imports only its own or lower
//! layers (`simulations/tidy.rs` enforces it) and `app` alone wires them together.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod app;
pub mod backends;
pub mod base;
pub mod core;
pub mod model;
pub mod runtime;
pub mod surface;
pub mod transport;
