//! Signals that a scheduler or its users send to the guard of an attempt on one of their nodes.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::process::Signal;

/// What is caught; everything else does what it does to any process.
const CAUGHT: [Signal; 6] =
    [Signal::TERM, Signal::USR1, Signal::USR2, Signal::HUP, Signal::INT, Signal::QUIT];

/// Caught signals, each as a byte in a pipe. Programs that are started later do not inherit the catching.
#[derive(Debug)]
pub struct Signals(Vec<(Signal, UnixStream)>);

impl Signals {
    /// Begins to catch.
    pub fn new() -> std::io::Result<Self> {
        let mut caught = Vec::new();
        for signal in CAUGHT {
            let (reader, writer) = UnixStream::pair()?;
            reader.set_nonblocking(true)?;
            signal_hook::low_level::pipe::register(signal.as_raw(), writer)?;
            caught.push((signal, reader));
        }
        Ok(Self(caught))
    }

    /// To wait on.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|(_, reader)| reader.as_fd())
    }

    /// What came since the last call, each once.
    pub fn take(&mut self) -> Vec<Signal> {
        let came = |(signal, reader): &mut (Signal, UnixStream)| {
            matches!(reader.read(&mut [0; 64]), Ok(n) if n > 0).then_some(*signal)
        };
        self.0.iter_mut().filter_map(came).collect()
    }
}
