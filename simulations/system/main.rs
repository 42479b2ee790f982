//! Real `starling` processes on loopback: what a user gets, what bad input gets, and what is left after
//! peers are killed. Folders are temporary, ports are free ones, waits are on conditions.
#![allow(clippy::disallowed_methods, reason = "measures and bounds real time, outside the product")]

mod alerts;
mod bad_input;
mod bring;
mod conforms;
mod disk;
mod documented;
mod faults;
mod groups;
mod harness;
mod honest;
mod images;
mod keys;
mod mesh;
mod one_peer;
mod peer_image;
mod podman;
mod preempt;
mod relay;
mod remote;
mod reserve;
mod scraped;
mod seeing;
mod staging;
mod strangers;
mod three_peers;
mod trace;
mod upgrade;
