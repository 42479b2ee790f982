//! A real control plane, of the binaries that KUBEBUILDER_ASSETS names: etcd and kube-apiserver, and where they are
//! there kube-controller-manager and kube-scheduler.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Token of the tests, and of the peer.
const TOKENS: &str = "admin,admin,admin,system:masters\npeer,peer,peer,system:masters\n";

/// The folder of the binaries.
pub fn binaries() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("KUBEBUILDER_ASSETS")?);
    ["etcd", "kube-apiserver"].iter().all(|b| folder.join(b).is_file()).then_some(folder)
}

/// Ends with it.
pub struct Plane {
    children: Vec<Child>,
    pub url: String,
    pub has_jobs: bool,
    pub has_scheduler: bool,
}

fn port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).expect("a port").port()
}

impl Plane {
    /// Starts it; ready is for the caller to wait for.
    pub fn start(binaries: &Path, folder: &Path) -> Self {
        let (client, peers, secure) = (port(), port(), port());
        let spawn = |name: &str, args: &[String]| {
            let log = fs::File::create(folder.join(format!("{name}.log"))).expect("a log");
            let mut command = Command::new(binaries.join(name));
            command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            command.spawn().unwrap_or_else(|e| panic!("{name}: {e}"))
        };
        let etcd_url = format!("http://127.0.0.1:{client}");
        let etcd = spawn(
            "etcd",
            &[
                format!("--data-dir={}", folder.join("etcd").display()),
                format!("--listen-client-urls={etcd_url}"),
                format!("--advertise-client-urls={etcd_url}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peers}"),
                "--unsafe-no-fsync".into(),
            ],
        );
        let key = rcgen::KeyPair::generate().expect("a key");
        let (key_file, tokens) = (folder.join("sa.key"), folder.join("tokens.csv"));
        fs::write(&key_file, key.serialize_pem()).expect("a key");
        fs::write(&tokens, TOKENS).expect("tokens");
        let certs = folder.join("certs");
        let api = spawn(
            "kube-apiserver",
            &[
                format!("--etcd-servers={etcd_url}"),
                "--bind-address=127.0.0.1".into(),
                "--advertise-address=127.0.0.1".into(),
                format!("--secure-port={secure}"),
                format!("--cert-dir={}", certs.display()),
                "--service-account-issuer=https://localhost".into(),
                format!("--service-account-key-file={}", key_file.display()),
                format!("--service-account-signing-key-file={}", key_file.display()),
                format!("--token-auth-file={}", tokens.display()),
                "--authorization-mode=RBAC".into(),
                "--service-cluster-ip-range=10.96.0.0/24".into(),
                "--endpoint-reconciler-type=none".into(),
                "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition".into(),
            ],
        );
        let url = format!("https://127.0.0.1:{secure}");
        let kubeconfig = folder.join("admin.yaml");
        fs::write(&kubeconfig, super::ground::kubeconfig(&url, "admin")).expect("a kubeconfig");
        let mut children = vec![api, etcd];
        let own = format!("--kubeconfig={}", kubeconfig.display());
        let mut more = |name: &str, args: &[String]| {
            let there = binaries.join(name).is_file();
            if there {
                children.insert(0, spawn(name, args));
            }
            there
        };
        let secure = |n: u16| format!("--secure-port={n}");
        let controllers = "--controllers=job,garbage-collector-controller,namespace-controller";
        let has_jobs = more("kube-controller-manager", &[own.clone(), controllers.into(), secure(port())]);
        let has_scheduler = more("kube-scheduler", &[own, secure(port())]);
        Self { children, url, has_jobs, has_scheduler }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
