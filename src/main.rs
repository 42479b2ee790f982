//! The binary.

use std::process::ExitCode;

use starling::backends::local::guard;
use starling::surface::cli::{self, Wiring};

fn main() -> ExitCode {
    // SEAM(app): `up`, `demo`, `replay` and `chaos` are given by `app`.
    cli::main(Wiring { guard: guard::main, ..Wiring::default() })
}
