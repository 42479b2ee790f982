//! The binary.

use std::process::ExitCode;

use starling::backends::local::guard;
use starling::surface::cli::{self, Wiring};
use starling::surface::fleet::{demo, replay};

fn main() -> ExitCode {
    cli::main(Wiring {
        guard: guard::main,
        up: starling::app::command::main,
        demo: demo::main,
        replay: replay::main,
        chaos: |_| {
            eprintln!("starling: chaos on real peers is not there yet; the core's is:");
            eprintln!("  cargo run --release --example simulate -- seeds --count 100");
            ExitCode::from(2)
        },
    })
}
