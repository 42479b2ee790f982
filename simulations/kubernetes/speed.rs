//! The clock of the backends in this process and of the peers that it starts: scenarios let it run faster, or set its
//! time of day apart from the API server's.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use starling::backends::local::clock::{TEST_CLOCK, TestClock, machine};

fn file() -> PathBuf {
    PathBuf::from(std::env::var_os(TEST_CLOCK).expect("main has set it"))
}

fn change(change: impl FnOnce(TestClock) -> TestClock) {
    let text = std::fs::read_to_string(file()).unwrap_or_default();
    let clock = change(TestClock::parse(&text).unwrap_or(TestClock::TRUE));
    clock.write(&file()).expect("a clock");
}

/// A clock names its file in the environment, from the start of a process on: this program again, with one.
pub fn with_clock() -> ExitCode {
    let folder = tempfile::Builder::new().prefix("starling-clock.").tempdir().expect("a folder");
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    let ended = again.args(std::env::args().skip(1)).env(TEST_CLOCK, folder.path().join("clock")).status();
    ExitCode::from(ended.ok().and_then(|s| u8::try_from(s.code()?).ok()).unwrap_or(101))
}

/// This is that one.
pub fn has_clock() -> bool {
    std::env::var_os(TEST_CLOCK).is_some_and(|file| Path::new(&file).parent().is_some_and(Path::is_dir))
}

/// While it is there, time is another one.
pub struct Other;

impl Other {
    /// It runs so many times as fast.
    pub fn rate(times: i64) -> Self {
        change(|c| c.with_rate(machine(), (times - 1) * 1_000_000));
        Self
    }
    /// The time of day is off by so much.
    pub fn wall(ms: i64) -> Self {
        change(|c| TestClock { wall_ms: ms, ..c });
        Self
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        change(|c| TestClock { wall_ms: 0, ..c.with_rate(machine(), 0) });
    }
}
