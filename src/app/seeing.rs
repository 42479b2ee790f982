//! What is watched, counted and written down for people. It can be ended and begun anew while the peer works: only to
//! measure what it costs.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Node, tasks};
use crate::model::config::AlertsConfig;
use crate::runtime::eventlog::EventLog;
use crate::surface::api::Watched;
use crate::surface::incidents::{self, Setup};
use crate::surface::{measure, web};

/// The tasks, and what they fill.
pub(super) struct Seeing {
    pub node: Arc<Node>,
    pub log: EventLog,
    pub watched: Watched,
    pub alerts: AlertsConfig,
    pub state: PathBuf,
    pub tracker: TaskTracker,
    /// Ends the tasks; cancelled while there are none.
    stop: CancellationToken,
}

impl Seeing {
    pub fn new(
        node: Arc<Node>,
        log: EventLog,
        (alerts, state): (AlertsConfig, PathBuf),
        tracker: TaskTracker,
    ) -> Self {
        let stop = CancellationToken::new();
        stop.cancel();
        Self { node, log, watched: Watched::default(), alerts, state, tracker, stop }
    }

    /// Begins all of it, until `peer` is cancelled or `end` is called.
    pub fn begin(&mut self, peer: &CancellationToken) {
        if !self.stop.is_cancelled() {
            return;
        }
        self.stop = peer.child_token();
        self.node.set_seen(true);
        let (node, stop, watched) = (&self.node, &self.stop, &self.watched);
        self.tracker.spawn(tasks::peers(node.core().clone(), node.mesh().view(), stop.clone()));
        self.tracker.spawn(tasks::journal(node.core().clone(), self.log.clone(), stop.clone()));
        self.tracker.spawn(web::watch(node.clone(), watched.memory.clone(), stop.clone()));
        self.tracker.spawn(measure::watch(node.clone(), watched.measures.clone(), stop.clone()));
        let setup = Setup { rules: self.alerts.clone(), folder: Some(self.state.clone()) };
        self.tracker.spawn(incidents::watch(node.clone(), watched.clone(), setup, stop.clone()));
    }

    /// Ends it.
    pub fn end(&self) {
        self.node.set_seen(false);
        self.stop.cancel();
    }
}
