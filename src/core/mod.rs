//! The peer as one state machine: `step(now, input) -> outputs`. No I/O, no async, no clock.
//!
//! `api` is everything that goes in and comes out; the other files are its parts. Production
//! (`runtime::driver`) and the simulator (`simulations/`) drive this very code.

pub mod acceptor;
pub mod alerts;
pub mod api;
mod arrays;
pub mod books;
pub mod client;
mod client_api;
mod contact;
mod durations;
mod executor;
mod groups;
pub mod message;
mod moving;
mod owner;
mod past;
pub mod peer;
pub mod placement;
mod propose;
mod purpose;
#[cfg(test)]
mod register_tests;
mod rehome;
pub mod reserve;
pub mod ring;
mod rows;
mod scan;
pub mod schedule;
pub mod tenants;
pub mod value;
mod watch;

pub use api::{
    BackendCommand, BackendEvent, ClientRequest, ClientResponse, CoreConfig, DiskImage, Input, Now, Output,
    Table, Write,
};
pub use message::Message;
pub use past::outlives_quarantine;
pub use peer::Peer;

#[cfg(test)]
mod homes_tests;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod testing;
