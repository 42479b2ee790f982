//! What is asked of Slurm seldom, beside its lists, and stays as it last was where there is no answer.

use std::sync::Mutex;

use super::SlurmConfig;
use super::driver::{Driver, NativeNode};
use super::nodes::NodeMap;
use crate::backends::hold::open;
use crate::backends::local::clock;
use crate::base::{Instant, Span};

/// Which partitions are shown to this user is asked for so seldom.
const SHOWN_EVERY: Span = Span::secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Seldom {
    /// As Slurm said; none where it has not yet.
    kill_wait: Mutex<Option<Span>>,
    /// The partitions that are shown to this user, and when they were asked for.
    shown: Mutex<Option<(Instant, Vec<String>)>>,
}

impl Seldom {
    pub fn kill_wait(&self) -> Option<Span> {
        *open(&self.kill_wait)
    }

    /// Asked until Slurm has said it: guards reckon with it.
    pub async fn ask_kill_wait(&self, driver: &dyn Driver) {
        if self.kill_wait().is_none()
            && let Some(wait) = driver.kill_wait().await
        {
            *open(&self.kill_wait) = Some(Span::secs(wait));
        }
    }

    /// What is there by these nodes.
    pub async fn map(&self, config: &SlurmConfig, driver: &dyn Driver, nodes: &[NativeNode]) -> NodeMap {
        let partitions = config.partitions();
        let known = open(&self.shown).clone();
        let old = known.is_none_or(|(at, _)| clock::now().since(at) > SHOWN_EVERY);
        if partitions.is_empty() && old && !nodes.is_empty() {
            match driver.shown().await {
                Ok(shown) => *open(&self.shown) = Some((clock::now(), shown)),
                Err(error) => tracing::info!(%error, "which partitions are shown to this user is unknown"),
            }
        }
        let shown = open(&self.shown).clone().map(|(_, shown)| shown).unwrap_or_default();
        NodeMap::of_shown(nodes, &partitions, &config.gpu_names, &shown)
    }
}
