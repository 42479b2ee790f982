//! The binary.
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    match arguments.get(1).and_then(|a| a.to_str()) {
        Some("guard") if arguments.len() == 3 => {
            starling::backends::local::guard::main(Path::new(&arguments[2]))
        }
        _ => ExitCode::from(2),
    }
}
