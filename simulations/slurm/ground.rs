//! What scenarios share: two Slurm clusters, and a mesh of three peers in front of them and of this machine, made
//! when first needed.

use std::cell::RefCell;
use std::path::PathBuf;

use super::harness::until;
use super::peers::{Peer, slurm};
use super::sandbox::{Cluster, Munge};

/// Nodes of each cluster.
pub const NODES: u16 = 3;

pub struct Ground {
    // In the order in which they are to end: peers, clusters, munge, folder.
    pub mesh: Option<Mesh>,
    pub a: Cluster,
    pub b: Cluster,
    pub munge: Munge,
    folder: Option<tempfile::TempDir>,
    not_tried: RefCell<Option<String>>,
}

/// Three peers.
pub struct Mesh {
    pub alpha: Peer,
    pub beta: Peer,
    pub loc: Peer,
}

impl Ground {
    pub fn make() -> Self {
        let folder = tempfile::Builder::new().prefix("starling-slurm.").tempdir().expect("a folder");
        let munge = Munge::start(folder.path());
        let a = Cluster::start(folder.path(), &munge, "alpha", NODES, "");
        let b = Cluster::start(folder.path(), &munge, "beta", NODES, "");
        Self { mesh: None, a, b, munge, folder: Some(folder), not_tried: RefCell::default() }
    }

    /// The scenario that runs needs what is not here: it counts as ignored.
    pub fn not_tried(&self, why: &str) {
        *self.not_tried.borrow_mut() = Some(why.to_owned());
    }
    /// Why the scenario that ended was not tried, if so.
    pub fn take_not_tried(&self) -> Option<String> {
        self.not_tried.take()
    }

    /// A folder for one scenario.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.folder.as_ref().expect("not kept yet").path().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        path
    }

    /// After a failure: what was written stays for a look.
    pub fn keep(mut self) {
        self.mesh = None;
        if let Some(folder) = self.folder.take() {
            eprintln!("left for a look: {}", folder.keep().display());
        }
    }

    /// The mesh, and both clusters of it.
    pub fn mesh(&mut self) -> (&mut Mesh, &mut Cluster, &mut Cluster) {
        if self.mesh.is_none() {
            let folder = self.folder("mesh");
            let alpha = Peer::start(&folder, "alpha", &slurm(&self.a.conf(), ""), None);
            let beta = Peer::start(&folder, "beta", &slurm(&self.b.conf(), ""), Some(&alpha));
            let local =
                "[[nodes]]\nname = \"pool\"\ngpu = \"A100-80G\"\ngpus = 2\ncpus = 4\nmemory = \"8G\"\n";
            let loc = Peer::start(&folder, "loc", local, Some(&alpha));
            for peer in [&alpha, &beta, &loc] {
                until("all agree", || {
                    for name in ["alpha", "beta", "loc"] {
                        let cluster = peer.cluster(name)?;
                        let free = cluster["gpus"].as_object().is_some_and(|g| !g.is_empty());
                        if cluster["liveness"] != "alive" || !free {
                            return Err(cluster.to_string());
                        }
                    }
                    Ok(())
                });
            }
            self.mesh = Some(Mesh { alpha, beta, loc });
        }
        (self.mesh.as_mut().expect("just made"), &mut self.a, &mut self.b)
    }
}
