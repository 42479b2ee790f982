//! The binary.

use std::process::ExitCode;

use starling::surface::cli;

fn main() -> ExitCode {
    // SEAM(app): `app` gives the real wiring.
    cli::main(cli::Wiring::default())
}
