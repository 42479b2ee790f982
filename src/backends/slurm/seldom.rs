//! What is asked of Slurm seldom, beside its lists, and stays as it last was where there is no answer.

use std::sync::Mutex;

use super::SlurmConfig;
use super::driver::{Driver, NativeNode};
use super::nodes::NodeMap;
use crate::backends::hold::open;
use crate::backends::local::clock;
use crate::base::{Instant, Span};

/// Between two times that the same is asked, whether it was answered or not.
const EVERY: Span = Span::secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Seldom {
    kill_wait: Mutex<Slow<Span>>,
    /// The partitions that are shown to this user; an empty list where all are hidden.
    shown: Mutex<Slow<Vec<String>>>,
}

/// When it was asked, and what was said last.
#[derive(Debug)]
struct Slow<T> {
    asked_at: Option<Instant>,
    said: Option<T>,
}

impl<T> Default for Slow<T> {
    fn default() -> Self {
        Self { asked_at: None, said: None }
    }
}

impl<T> Slow<T> {
    /// Noted before the asking: what fails, or takes its whole patience to, is not asked again at the next look.
    fn due(&mut self, now: Instant) -> bool {
        let due = self.asked_at.is_none_or(|at| now.since(at) > EVERY);
        if due {
            self.asked_at = Some(now);
        }
        due
    }
}

impl Seldom {
    /// None where Slurm has not said it yet.
    pub fn kill_wait(&self) -> Option<Span> {
        open(&self.kill_wait).said
    }

    /// Asked until Slurm has said it: guards reckon with it.
    pub async fn ask_kill_wait(&self, driver: &dyn Driver) {
        if self.kill_wait().is_none()
            && open(&self.kill_wait).due(clock::now())
            && let Some(wait) = driver.kill_wait().await
        {
            open(&self.kill_wait).said = Some(Span::secs(wait));
        }
    }

    /// What is there by these nodes.
    pub async fn map(&self, config: &SlurmConfig, driver: &dyn Driver, nodes: &[NativeNode]) -> NodeMap {
        let partitions = config.partitions();
        if partitions.is_empty() && !nodes.is_empty() && open(&self.shown).due(clock::now()) {
            match driver.shown().await {
                Ok(Some(shown)) => open(&self.shown).said = Some(shown),
                Ok(None) => {}
                Err(error) => tracing::info!(%error, "which partitions are shown to this user is unknown"),
            }
        }
        let shown = open(&self.shown).said.clone();
        NodeMap::of_shown(nodes, &partitions, &config.gpu_names, shown.as_deref())
    }

    /// It was asked long ago.
    #[cfg(test)]
    pub fn age(&self) {
        (open(&self.kill_wait).asked_at, open(&self.shown).asked_at) = (None, None);
    }
}
