//! The peer as one state machine: `step(now, input) -> outputs`. No I/O, no async, no clock.
//!
//! `api` is everything that goes in and comes out; the other files are its parts. Production
//! (`runtime::driver`) and the simulator (`simulations/`) drive this very code.

pub mod api;
pub mod message;

pub use api::{
    BackendCommand, BackendEvent, ClientRequest, ClientResponse, CoreConfig, DiskImage, Input, Now, Output,
    Table, Write,
};
