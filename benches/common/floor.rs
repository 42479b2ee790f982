//! The floor under a flash: the same number of plain UDP datagrams to as many plain processes, one send after the
//! other from one socket, nothing encrypted, acknowledged or looked at. What is above it is ours.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::common::boot_us;

/// How this program is told to be one of the processes.
pub const CHILD: &str = "--floor-child";
/// About a flash on the wire.
const BYTES: usize = 200;
const ROUND_MAX: Duration = Duration::from_secs(5);

/// Processes that wait for a datagram; they end with the value.
pub struct Floor {
    socket: UdpSocket,
    children: Vec<(Child, SocketAddr)>,
}

impl Drop for Floor {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One of the processes: answers each datagram with the time at which it came. Ends when its parent is gone.
pub fn child() -> anyhow::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(600)))?;
    println!("{}", socket.local_addr()?);
    let mut buffer = [0; 2_048];
    loop {
        let (_, from) = socket.recv_from(&mut buffer)?;
        let heard = boot_us();
        socket.send_to(&heard.to_be_bytes(), from)?;
    }
}

impl Floor {
    /// Starts so many.
    pub fn start(count: usize) -> anyhow::Result<Self> {
        let mut floor = Self { socket: UdpSocket::bind("127.0.0.1:0")?, children: Vec::new() };
        let me = std::env::current_exe()?;
        for _ in 0..count {
            let mut command = Command::new(&me);
            command.arg(CHILD).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = command.spawn().context("starting a process for the floor")?;
            let mut line = String::new();
            BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
            floor.children.push((child, line.trim().parse().context("no address")?));
        }
        Ok(floor)
    }

    /// Milliseconds until the last of them has its datagram; none if one was lost.
    pub fn round(&self) -> anyhow::Result<Option<f64>> {
        let begun = boot_us();
        for (_, address) in &self.children {
            self.socket.send_to(&[7; BYTES], address)?;
        }
        let (mut last, end) = (begun, Instant::now() + ROUND_MAX);
        for _ in &self.children {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(left))?;
            let mut stamp = [0; 8];
            match self.socket.recv(&mut stamp) {
                Ok(8) => last = last.max(u64::from_be_bytes(stamp)),
                Ok(_) | Err(_) => return Ok(None),
            }
        }
        Ok(Some(last.saturating_sub(begun) as f64 / 1e3))
    }
}
