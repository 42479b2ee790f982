//! A network of its own for each peer of this program: namespaces joined by a bridge that lies in a namespace
//! too, so that nothing of the machine's own network is touched. Needs root.
//!
//! A cut is silent and one-way, as on a real network: the sender's entry for the other's hardware address is
//! one that nobody has. (A blackhole route would tell the sender with an error, and with the reverse
//! path filter on it would cut both ways.) This kernel has no netem, so packets are never late or doubled here:
//! that is the simulation's part.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Where `ip netns` keeps its names.
const NAMES: &str = "/run/netns";
/// Most peers of one network.
pub const HOSTS_MAX: usize = 32;
/// What was killed in a namespace must be gone within this.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// Networks that this process has made, so that each has names of its own.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// No right, no `ip`, or no such thing in this kernel.
    #[error(
        "network namespaces cannot be made here ({0}); this needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN) and iproute2"
    )]
    NotHere(String),
    /// It stands and did not do what it was told.
    #[error("the test network: {0}")]
    Failed(String),
}

/// Where one peer lives.
#[derive(Debug, Clone)]
pub struct Host {
    /// Its network namespace, as `nsenter --net=` takes it.
    pub netns: PathBuf,
    /// Its address there.
    pub address: Ipv4Addr,
}

/// The namespaces. Dropping it kills whatever still runs inside them, and deletes them.
pub struct Network {
    /// One per peer.
    pub hosts: Vec<Host>,
    prefix: String,
    cuts: BTreeSet<(usize, usize)>,
}

impl Network {
    /// Makes so many hosts, all reaching all.
    pub fn new(count: usize) -> Result<Self, NetworkError> {
        if count == 0 || count > HOSTS_MAX {
            return Err(NetworkError::Failed(format!("{count} hosts: 1 to {HOSTS_MAX} are possible")));
        }
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("starling-chaos-{}-{nth}", std::process::id());
        let hub = format!("{prefix}-hub");
        // Alone, since this is what fails where it is not allowed.
        ip(&["netns", "add", &hub], "").map_err(NetworkError::NotHere)?;
        // From here on dropping it cleans up.
        let mut network = Self { hosts: Vec::new(), prefix, cuts: BTreeSet::new() };
        let mut lines = "link add br0 type bridge\nlink set br0 up\n".to_owned();
        ip(&["-n", &hub, "-batch", "-"], &lines).map_err(NetworkError::NotHere)?;
        for i in 0..count {
            let name = network.name(i);
            ip(&["netns", "add", &name], "").map_err(NetworkError::NotHere)?;
            let netns = Path::new(NAMES).join(&name);
            network.hosts.push(Host { netns, address: address(i) });
            lines = format!(
                "link add eth0 address {} netns {name} type veth peer name p{i} netns {hub}\n",
                hardware(i)
            );
            ip(&["-batch", "-"], &lines).map_err(NetworkError::NotHere)?;
            lines = format!("link set p{i} master br0\nlink set p{i} up\n");
            ip(&["-n", &hub, "-batch", "-"], &lines).map_err(NetworkError::NotHere)?;
            lines = format!(
                "addr add {}/24 dev eth0\nlink set lo up\nlink set eth0 up\n{}",
                address(i),
                (0..count).filter(|to| *to != i).map(|to| reach(to, false)).collect::<String>()
            );
            ip(&["-n", &name, "-batch", "-"], &lines).map_err(NetworkError::NotHere)?;
        }
        Ok(network)
    }

    fn name(&self, i: usize) -> String {
        format!("{}-c{}", self.prefix, i + 1)
    }

    /// From now on exactly these directed pairs (sender, receiver) are cut.
    pub fn set_cuts(&mut self, cuts: &BTreeSet<(usize, usize)>) -> Result<(), NetworkError> {
        for from in 0..self.hosts.len() {
            let of = |set: &BTreeSet<(usize, usize)>| -> BTreeSet<usize> {
                set.iter().filter(|(f, _)| *f == from).map(|(_, to)| *to).collect()
            };
            let (old, new) = (of(&self.cuts), of(cuts));
            let lines: String =
                old.symmetric_difference(&new).map(|to| reach(*to, new.contains(to))).collect();
            if !lines.is_empty() {
                ip(&["-n", &self.name(from), "-batch", "-"], &lines).map_err(NetworkError::Failed)?;
            }
        }
        self.cuts.clone_from(cuts);
        Ok(())
    }

    /// Both directions between these and all others.
    pub fn apart(&self, side: &BTreeSet<usize>) -> BTreeSet<(usize, usize)> {
        let all = 0..self.hosts.len();
        all.clone()
            .flat_map(|a| all.clone().map(move |b| (a, b)))
            .filter(|(a, b)| side.contains(a) != side.contains(b))
            .collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let names = (0..HOSTS_MAX).map(|i| self.name(i)).chain([format!("{}-hub", self.prefix)]);
        for name in names.filter(|n| Path::new(NAMES).join(n).exists()) {
            end_all(&name);
            if let Err(why) = ip(&["netns", "del", &name], "") {
                eprintln!("starling: network namespace {name} is left behind: {why}");
            }
        }
    }
}

fn address(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, u8::try_from(i + 1).unwrap_or(u8::MAX))
}

fn hardware(i: usize) -> String {
    format!("02:00:0a:4d:00:{:02x}", i + 1)
}

/// The line that says where packets to a host go: to it, or to nobody.
fn reach(to: usize, cut: bool) -> String {
    let hardware = if cut { "02:de:ad:00:00:00".to_owned() } else { hardware(to) };
    format!("neigh replace {} lladdr {hardware} dev eth0 nud permanent\n", address(to))
}

/// Kills what runs in a namespace; only what this program started there can.
fn end_all(name: &str) {
    let begun = Instant::now();
    loop {
        let listed = Command::new("ip").args(["netns", "pids", name]).output();
        let listed = listed.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        let pids: Vec<Pid> = listed.lines().filter_map(|l| Pid::from_raw(l.trim().parse().ok()?)).collect();
        if pids.is_empty() || begun.elapsed() > GONE_WITHIN {
            return;
        }
        for pid in pids {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs `ip` with these arguments and this input; the error is in its words.
fn ip(args: &[&str], input: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("ip: {e}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(|e| format!("ip: {e}"))?;
    }
    let done = child.wait_with_output().map_err(|e| format!("ip: {e}"))?;
    if done.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&done.stderr);
    Err(format!("ip {}: {}", args.join(" "), words.trim().replace('\n', "; ")))
}
