//! Slurm clusters of several nodes on this machine, each with its own daemons, without systemd, under a temporary
//! folder. GPUs are device files that do nothing. Everything that is started is ended by its id.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use super::harness::until;

/// The daemons, or what is missing.
pub fn installed() -> Result<(), String> {
    let root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.starts_with(b"0\n"));
    if !root {
        return Err("not root".into());
    }
    for program in ["slurmctld", "slurmd", "munged", "sbatch", "squeue", "scontrol", "srun"] {
        let there = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"]
            .iter()
            .any(|folder| Path::new(folder).join(program).exists());
        if !there {
            return Err(format!("{program} is not installed (apt-get install slurm-wlm munge)"));
        }
    }
    Ok(())
}

fn quiet(command: &mut Command, log: &Path) -> Child {
    let log = fs::File::options().create(true).append(true).open(log).expect("a log");
    let other = log.try_clone().expect("a log");
    command.stdin(Stdio::null()).stdout(log).stderr(other).spawn().expect("a daemon starts")
}

/// Authentication for all clusters of one test.
pub struct Munge {
    folder: PathBuf,
    child: Child,
}

impl Munge {
    pub fn start(root: &Path) -> Self {
        let folder = root.join("munge");
        fs::create_dir_all(&folder).expect("a folder");
        for open in [root, folder.as_path()] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o755)).expect("rights");
        }
        let key: Vec<u8> = (0..1_024).map(|_| rand::random::<u8>()).collect();
        fs::write(folder.join("key"), key).expect("a key");
        fs::set_permissions(folder.join("key"), fs::Permissions::from_mode(0o400)).expect("rights");
        let file = |name: &str| format!("{}", folder.join(name).display());
        let mut command = Command::new("munged");
        command.arg("--foreground").arg("--force").args([
            format!("--key-file={}", file("key")),
            format!("--socket={}", file("socket")),
            format!("--pid-file={}", file("pid")),
            format!("--log-file={}", file("log")),
            format!("--seed-file={}", file("seed")),
            "--num-threads=2".into(),
        ]);
        let child = quiet(&mut command, &folder.join("out"));
        let munge = Self { folder, child };
        until("munged answers", || {
            let done = Command::new("munge").arg("-n").arg("-S").arg(munge.socket()).output();
            match done {
                Ok(o) if o.status.success() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        munge
    }
    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }
}

impl Drop for Munge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One cluster.
pub struct Cluster {
    pub name: &'static str,
    pub dir: PathBuf,
    controller: Option<Child>,
    daemons: Vec<Option<Child>>,
}

impl Cluster {
    /// Starts it and waits until its nodes are idle. `more` is appended to slurm.conf.
    pub fn start(root: &Path, munge: &Munge, name: &'static str, nodes: u16, more: &str) -> Self {
        let dir = root.join(name);
        let ports = free_ports(nodes + 1);
        write_conf(&dir, munge, name, nodes, ports, more);
        let mut cluster = Self { name, dir, controller: None, daemons: Vec::new() };
        cluster.start_controller();
        cluster.daemons = (1..=nodes).map(|n| Some(cluster.node_daemon(n))).collect();
        cluster.wait_nodes(usize::from(nodes));
        cluster
    }

    pub fn conf(&self) -> PathBuf {
        self.dir.join("slurm.conf")
    }

    pub fn start_controller(&mut self) {
        let mut command = Command::new("slurmctld");
        command.arg("-D").arg("-f").arg(self.conf());
        self.controller = Some(quiet(&mut command, &self.dir.join("log/slurmctld.out")));
    }

    /// `kill -9`.
    pub fn kill_controller(&mut self) {
        if let Some(mut child) = self.controller.take() {
            child.kill().expect("killed");
            child.wait().expect("ends");
        }
    }

    pub fn wait_controller(&self) {
        until("slurmctld answers", || {
            let done = self.run("scontrol", &["ping"]);
            let text = String::from_utf8_lossy(&done.stdout).into_owned();
            if text.contains("is UP") { Ok(()) } else { Err(text) }
        });
    }

    fn node_daemon(&self, n: u16) -> Child {
        let mut command = Command::new("slurmd");
        command.arg("-D").arg("-N").arg(format!("{}-n{n}", self.name)).arg("-f").arg(self.conf());
        quiet(&mut command, &self.dir.join(format!("log/slurmd-{n}.out")))
    }

    pub fn wait_nodes(&self, wanted: usize) {
        until(&format!("{wanted} nodes of {} are idle", self.name), || {
            let up = self
                .text("sinfo", &["--local", "-h", "-N", "-p", "main", "-t", "idle,mix,alloc", "-o", "%N"]);
            let mut names: Vec<&str> = up.lines().collect();
            names.sort_unstable();
            names.dedup();
            let log = || fs::read_to_string(self.dir.join("log/slurmctld.log")).unwrap_or_default();
            let tail = |text: String| text.lines().rev().take(5).collect::<Vec<_>>().join(" | ");
            if names.len() == wanted { Ok(()) } else { Err(format!("{up}; {}", tail(log()))) }
        });
    }

    /// One of Slurm's commands.
    pub fn run(&self, program: &str, args: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(args).env("SLURM_CONF", self.conf()).stdin(Stdio::null());
        command.output().unwrap_or_else(|e| panic!("{program}: {e}"))
    }

    /// What it prints, where it succeeds.
    pub fn text(&self, program: &str, args: &[&str]) -> String {
        let done = self.run(program, args);
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    /// Native number of an attempt's batch job that is not over.
    pub fn native(&self, job: &str) -> Option<String> {
        let all = self.text("squeue", &["-h", "-t", "all", "-o", "%i %j %T"]);
        let mut found = all.lines().filter(|l| l.contains(job)).map(|l| l.split(' ').collect::<Vec<_>>());
        found.find(|f| matches!(f.get(2), Some(&"RUNNING" | &"PENDING"))).map(|f| f[0].to_owned())
    }
}

/// That Slurm takes tokens, or what is missing.
pub fn jwt_installed() -> Result<(), String> {
    if !Path::new("/usr/sbin/slurmrestd").exists() {
        return Err("slurmrestd is not installed".into());
    }
    let plugins = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let there = plugins
        .map(|e| e.path())
        .chain(["/usr/lib".into(), "/usr/lib64".into()])
        .any(|lib| ["slurm", "slurm-wlm"].iter().any(|folder| lib.join(folder).join("auth_jwt.so").exists()));
    if there {
        Ok(())
    } else {
        Err("auth/jwt is not installed (apt-get install slurm-wlm-jwt-plugin)".into())
    }
}

/// For its owner alone, as Slurm wants a key to be.
pub fn private(file: &Path) {
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("rights");
}

/// slurmrestd of a cluster on a unix socket, or with tokens on a port.
pub struct Restd {
    pub socket: PathBuf,
    port: u16,
    /// The version of its API that this Slurm speaks.
    #[allow(dead_code, reason = "the benches ask with it")]
    pub api: &'static str,
    child: Child,
}

impl Restd {
    /// None where it is not installed.
    pub fn start(cluster: &Cluster, socket: PathBuf) -> Option<Self> {
        // One of before that was killed left it.
        let _ = fs::remove_file(&socket);
        let restd = Self::launch(cluster, "rest_auth/local", socket, 0)?;
        until("slurmrestd has its socket", || {
            if restd.socket.exists() { Ok(()) } else { Err(restd.said(cluster)) }
        });
        Some(restd)
    }

    /// On a port of loopback, for those that have a token. None where it is not installed.
    pub fn tcp(cluster: &Cluster) -> Option<Self> {
        let port = free_ports(1);
        let restd = Self::launch(cluster, "rest_auth/jwt", PathBuf::new(), port)?;
        until("slurmrestd has its port", || match TcpStream::connect(("127.0.0.1", port)) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{error}; {}", restd.said(cluster))),
        });
        Some(restd)
    }

    fn said(&self, cluster: &Cluster) -> String {
        fs::read_to_string(cluster.dir.join("log/slurmrestd.out")).unwrap_or_default()
    }

    fn launch(cluster: &Cluster, auth: &str, socket: PathBuf, port: u16) -> Option<Self> {
        if !Path::new("/usr/sbin/slurmrestd").exists() {
            return None;
        }
        let version = Command::new("slurmrestd").arg("-V").output().expect("slurmrestd");
        // Without slurmdbd its plugins must be named, and their names have changed.
        let old = String::from_utf8_lossy(&version.stdout).contains(" 22.");
        let (plugin, api) = if old { ("openapi/v0.0.38", "v0.0.38") } else { ("slurmctld", "v0.0.40") };
        let mut command = Command::new("slurmrestd");
        command.arg("-f").arg(cluster.conf()).args(["-a", auth, "-s", plugin]);
        command.arg(match port {
            0 => format!("unix:{}", socket.display()),
            port => format!("127.0.0.1:{port}"),
        });
        command.env("SLURM_CONF", cluster.conf()).env("SLURMRESTD_SECURITY", "disable_user_check");
        if port > 0 {
            command.env("SLURM_JWT", "daemon");
        }
        let log = cluster.dir.join("log/slurmrestd.out");
        Some(Self { child: quiet(&mut command, &log), socket, port, api })
    }

    /// As a peer's configuration has it.
    pub fn address(&self) -> String {
        match self.port {
            0 => format!("unix:{}", self.socket.display()),
            port => format!("http://127.0.0.1:{port}"),
        }
    }
}

impl Drop for Restd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // What runs ends first, so that nothing is left of it.
        if self.controller.is_some() {
            let _ = self.run("scancel", &["--user=root", "--full"]);
            std::thread::sleep(Duration::from_millis(500));
        }
        let all = self.daemons.iter_mut().chain([&mut self.controller]);
        for child in all.filter_map(Option::as_mut) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The first of so many ports in a row that were free a moment ago.
fn free_ports(count: u16) -> u16 {
    for _ in 0..200 {
        let first = 20_000 + rand::random::<u16>() % 20_000;
        let all: Vec<_> = (first..first + count).map(|p| TcpListener::bind(("127.0.0.1", p))).collect();
        if all.iter().all(Result::is_ok) {
            return first;
        }
    }
    panic!("no {count} free ports in a row");
}

fn write_conf(dir: &Path, munge: &Munge, name: &str, nodes: u16, port: u16, more: &str) {
    for folder in ["state", "spool", "log", "run", "dev"] {
        fs::create_dir_all(dir.join(folder)).expect("a folder");
    }
    for n in 0..4 {
        symlink("/dev/null", dir.join(format!("dev/nvidia{n}"))).expect("a device");
    }
    let d = dir.display();
    let mut conf = format!(
        "ClusterName={name}\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={port}\nSlurmUser=root\nSlurmdUser=root\n\
         AuthType=auth/munge\nAuthInfo=socket={},cred_expire=5\nCredType=cred/munge\n\
         StateSaveLocation={d}/state\nSlurmdSpoolDir={d}/spool/%n\nSlurmctldPidFile={d}/run/slurmctld.pid\n\
         SlurmdPidFile={d}/run/slurmd-%n.pid\nSlurmctldLogFile={d}/log/slurmctld.log\nSlurmdLogFile={d}/log/slurmd-%n.log\n\
         CommunicationParameters=NoCtldInAddrAny,NoInAddrAny\nSlurmdParameters=config_overrides\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\nDefMemPerCPU=100\n\
         SchedulerType=sched/backfill\nSchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0,sched_min_interval=0\n\
         PriorityType=priority/basic\nPreemptType=preempt/partition_prio\nPreemptMode=CANCEL\nJobRequeue=1\n\
         ReturnToService=2\nMinJobAge=600\nKillWait=4\nCompleteWait=0\nInactiveLimit=0\nSlurmctldTimeout=30\n\
         SlurmdTimeout=30\nOverTimeLimit=0\nGresTypes=gpu\nJobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\nTCPTimeout=3\nMessageTimeout=10\n{more}\n",
        munge.socket().display()
    );
    for n in 1..=nodes {
        fs::create_dir_all(dir.join(format!("spool/{name}-n{n}"))).expect("a folder");
        conf.push_str(&format!(
            "NodeName={name}-n{n} NodeHostname=localhost NodeAddr=127.0.0.1 Port={} CPUs=8 RealMemory=8000 \
             Gres=gpu:h100:4 Feature=net-{name} State=UNKNOWN\n",
            port + n
        ));
    }
    conf.push_str(
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10\n\
         PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1\n",
    );
    fs::write(dir.join("slurm.conf"), conf).expect("slurm.conf");
    fs::write(dir.join("gres.conf"), format!("Name=gpu Type=h100 File={d}/dev/nvidia[0-3]\n"))
        .expect("gres.conf");
    // 22.05 does not know the word; since 23.11 it will not start without it.
    let version = Command::new("slurmctld").arg("-V").output().expect("slurmctld");
    let text = String::from_utf8_lossy(&version.stdout).into_owned();
    let major =
        text.split(|c: char| !c.is_ascii_digit()).find(|w| !w.is_empty()).and_then(|w| w.parse::<u32>().ok());
    if major.is_some_and(|m| m >= 23) {
        fs::write(dir.join("cgroup.conf"), "CgroupPlugin=disabled\n").expect("cgroup.conf");
    }
}
