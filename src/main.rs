//! The binary.

use std::process::ExitCode;

use starling::backends::local::guard;
use starling::surface::cli::{self, Wiring};

fn main() -> ExitCode {
    cli::main(Wiring { guard: guard::main, up: starling::app::command::main, ..Wiring::default() })
}
