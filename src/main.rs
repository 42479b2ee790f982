//! The binary.

use std::process::ExitCode;

use starling::backends::local::guard;
use starling::surface::cli::{self, Wiring};
use starling::surface::fleet::{chaos, demo, replay};

/// Many small things live for the time of one message.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::main(Wiring {
        guard: guard::main,
        up: starling::app::command::main,
        demo: demo::main,
        replay: replay::main,
        chaos: chaos::main,
    })
}
