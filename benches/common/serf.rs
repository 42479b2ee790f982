//! Agents of Debian's `serf` on loopback, asked and watched over their RPC (MessagePack over TCP), so that
//! no process start is in the time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::common::fleet::Proc;
use crate::common::{bar, boot_us, fixed_port};

/// One agent.
pub struct Agent {
    rpc: String,
    bind: String,
    _process: Proc,
}

/// Agents that agree on their members.
pub struct Serf {
    pub agents: Vec<Agent>,
    pub version: String,
    _dir: tempfile::TempDir,
}

/// `peer` read the event `number` at `seen`.
#[derive(Debug, Clone)]
pub struct Seen {
    pub peer: usize,
    pub number: u64,
    pub seen: u64,
}

/// The version, or why there is none.
pub fn version() -> anyhow::Result<String> {
    let out = Command::new("serf")
        .arg("version")
        .output()
        .context("serf is not installed (apt-get install serf)")?;
    Ok(String::from_utf8_lossy(&out.stdout).lines().next().unwrap_or("serf").to_owned())
}

impl Serf {
    /// Starts `count` agents with serf's default settings (profile `lan`).
    pub fn start(count: usize) -> anyhow::Result<Self> {
        let version = version()?;
        let dir = crate::common::fleet::folder()?;
        let progress = bar(count as u64 * 2, &format!("starting {count} serf agents"));
        let mut agents: Vec<Agent> = Vec::new();
        for n in 0..count {
            let (bind, rpc) = (fixed_port()?, fixed_port()?);
            let mut command = Command::new("serf");
            command.arg("agent").arg(format!("-node=s{n:02}")).arg(format!("-bind={bind}"));
            command.arg(format!("-rpc-addr={rpc}")).arg("-log-level=err");
            if let Some(first) = agents.first() {
                command.arg(format!("-join={}", first.bind));
            }
            let log = dir.path().join(format!("s{n:02}.log"));
            let mut process = Proc::start(command, &log)?;
            wait_rpc(&rpc, &mut process, &log)?;
            agents.push(Agent { rpc, bind, _process: process });
            progress.inc(1);
        }
        let begun = Instant::now();
        for agent in &agents {
            while agent.members()? < count {
                if begun.elapsed() > Duration::from_secs(120) {
                    bail!("serf: {} of {count} members after 120 s", agent.members()?);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        Ok(Self { agents, version, _dir: dir })
    }
}

fn wait_rpc(rpc: &str, process: &mut Proc, log: &std::path::Path) -> anyhow::Result<()> {
    let begun = Instant::now();
    while TcpStream::connect(rpc).is_err() {
        let ended = process.ended();
        if ended || begun.elapsed() > Duration::from_secs(60) {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            let what = if ended { "has ended" } else { "does not listen after 60 s" };
            bail!("a serf agent at {rpc} {what}: {}", said.lines().last().unwrap_or("it said nothing"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

impl Agent {
    fn members(&self) -> anyhow::Result<usize> {
        let rpc = format!("-rpc-addr={}", self.rpc);
        let out = Command::new("serf").args(["members", "-status=alive", &rpc]).output()?;
        Ok(String::from_utf8_lossy(&out.stdout).lines().count())
    }

    /// A connection that is greeted.
    pub fn rpc(&self) -> anyhow::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.rpc)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut hello = head("handshake", 0);
        hello.push(0x81);
        text(&mut hello, "Version");
        hello.push(1);
        stream.write_all(&hello)?;
        answered(&mut stream)?;
        Ok(stream)
    }

    /// Reports each event named `bench` until the channel or the agent is gone.
    pub fn watch(&self, peer: usize, to: tokio::sync::mpsc::UnboundedSender<Seen>) -> anyhow::Result<()> {
        let mut stream = self.rpc()?;
        let mut ask = head("stream", 1);
        ask.push(0x81);
        text(&mut ask, "Type");
        text(&mut ask, "user:bench");
        stream.write_all(&ask)?;
        answered(&mut stream)?;
        stream.set_nonblocking(true)?;
        let mut stream = tokio::net::TcpStream::from_std(stream)?;
        tokio::spawn(async move {
            let (mut window, mut buffer) = (Vec::new(), [0_u8; 4_096]);
            loop {
                let read = tokio::io::AsyncReadExt::read(&mut stream, &mut buffer).await.unwrap_or(0);
                let seen = boot_us();
                if read == 0 {
                    return;
                }
                window.extend_from_slice(&buffer[..read]);
                while let Some(number) = take_number(&mut window) {
                    if to.send(Seen { peer, number, seen }).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(())
    }
}

/// Sends the user event `number` over a greeted connection.
pub fn send(stream: &mut TcpStream, number: u64) -> anyhow::Result<()> {
    let mut event = head("event", 2);
    event.push(0x83);
    text(&mut event, "Name");
    text(&mut event, "bench");
    text(&mut event, "Payload");
    text(&mut event, &format!("evt{number:08}."));
    text(&mut event, "Coalesce");
    event.push(0xc2);
    stream.write_all(&event)?;
    answered(stream)
}

fn head(command: &str, seq: u8) -> Vec<u8> {
    let mut out = vec![0x82];
    text(&mut out, "Command");
    text(&mut out, command);
    text(&mut out, "Seq");
    out.push(seq);
    out
}

/// A short text: at most 31 bytes.
fn text(out: &mut Vec<u8>, text: &str) {
    out.push(0xa0 | (text.len() as u8 & 0x1f));
    out.extend_from_slice(text.as_bytes());
}

/// One answer without a body: `{"Error": "", "Seq": n}`, in either order.
fn answered(stream: &mut TcpStream) -> anyhow::Result<()> {
    let mut answer = Vec::new();
    let mut byte = [0];
    let good = |a: &[u8]| a.windows(6).any(|w| w == b"Error\xa0") && a.windows(4).any(|w| w[..3] == *b"Seq");
    while !good(&answer) {
        stream.read_exact(&mut byte).context("serf's RPC did not answer as expected")?;
        answer.push(byte[0]);
        if answer.len() > 200 {
            bail!("serf's RPC refused: {}", String::from_utf8_lossy(&answer));
        }
    }
    Ok(())
}

/// The number of the first whole payload, which is taken out with all before it.
fn take_number(window: &mut Vec<u8>) -> Option<u64> {
    let at = window.windows(3).position(|w| w == b"evt")?;
    let digits = window.get(at + 3..at + 11)?;
    let number = std::str::from_utf8(digits).ok().and_then(|d| d.parse().ok());
    window.drain(..at + 11);
    number
}
