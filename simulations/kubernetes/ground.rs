//! One cluster for one scenario: an API server, what is played around it, three nodes with four GPUs each.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::cluster::{Cluster, Plays, Wishes, call};
use super::real::{self, Plane};
use super::server::Server;

pub const NODES: u32 = 3;
pub const NAMESPACE: &str = "jobs";

pub struct Ground {
    pub url: String,
    /// The recorded server; none where a real one is asked.
    pub server: Option<Arc<Server>>,
    pub admin: kube::Client,
    pub wishes: Arc<Wishes>,
    playing: CancellationToken,
    _plane: Option<Plane>,
    folder: tempfile::TempDir,
}

/// A kubeconfig for a token.
pub fn kubeconfig(url: &str, token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- {{name: c, context: {{cluster: k, user: u, namespace: {NAMESPACE}}}}}\n\
         clusters:\n- {{name: k, cluster: {{server: \"{url}\", insecure-skip-tls-verify: true}}}}\nusers:\n- {{name: u, user: {{token: {token}}}}}\n"
    )
}

pub async fn client(url: &str, token: &str) -> kube::Client {
    let read = kube::config::Kubeconfig::from_yaml(&kubeconfig(url, token)).expect("a kubeconfig");
    let config =
        kube::Config::from_custom_kubeconfig(read, &Default::default()).await.expect("a configuration");
    kube::Client::try_from(config).expect("a client")
}

impl Ground {
    pub async fn make() -> Self {
        let folder = tempfile::Builder::new().prefix("starling-kubernetes.").tempdir().expect("a folder");
        let (server, plane) = match real::binaries() {
            Some(binaries) => (None, Some(Plane::start(&binaries, folder.path()))),
            None => (Some(Server::start(folder.path().join("logs")).await), None),
        };
        let url =
            server.as_ref().map(|s| s.url()).or(plane.as_ref().map(|p| p.url.clone())).expect("one of both");
        let admin = client(&url, "admin").await;
        let plays = Plays {
            jobs: plane.as_ref().is_none_or(|p| !p.has_jobs),
            scheduler: plane.as_ref().is_none_or(|p| !p.has_scheduler),
        };
        let begun = std::time::Instant::now();
        let space = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
        while let Err(why) = call(&admin, "POST", "/api/v1/namespaces", Some(&space)).await {
            assert!(begun.elapsed() < Duration::from_secs(60), "no API server: {why}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for n in 0..NODES {
            let name = format!("n{n}");
            let labels =
                json!({ "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "kubernetes.io/hostname": name });
            let node =
                json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels } });
            call(&admin, "POST", "/api/v1/nodes", Some(&node)).await.expect("a node");
            let has = json!({ "cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "4" });
            let status = json!({ "status": { "allocatable": has, "capacity": has,
                "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }] } });
            call(&admin, "PATCH", &format!("/api/v1/nodes/{name}/status"), Some(&status))
                .await
                .expect("its status");
        }
        let cluster = Cluster::new(admin.clone(), folder.path().to_owned(), plays);
        let wishes = cluster.wishes.clone();
        let playing = cluster.play();
        Self { url, server, admin, wishes, playing, _plane: plane, folder }
    }

    /// A folder for one thing.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        path
    }

    /// A kubeconfig of the peer, for this address of the server.
    pub fn peer_config(&self, url: &str) -> PathBuf {
        let path = self.folder.path().join(format!("peer-{:08x}.yaml", rand::random::<u32>()));
        std::fs::write(&path, kubeconfig(url, "peer")).expect("a kubeconfig");
        path
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.playing.cancel();
    }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(future)
}
