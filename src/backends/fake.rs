//! A backend that runs nothing: attempts start at once and end when they are told to. For other parts' tests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::{Backend, Discovery};
use crate::base::{ContactId, Instant, WallTime};
use crate::core::api::{AttemptKey, StartCommand, StopReason};
use crate::core::{BackendCommand, BackendEvent};
use crate::model::{NodeCapacity, Outcome};

#[derive(Debug, Clone)]
struct Attempt {
    binding: Option<(ContactId, u64)>,
    ended: Option<Outcome>,
    forgotten: bool,
}

#[derive(Default)]
struct State {
    attempts: BTreeMap<AttemptKey, Attempt>,
    starts: Vec<StartCommand>,
    events: Option<mpsc::Sender<BackendEvent>>,
    renewals: BTreeMap<(ContactId, u64), Instant>,
    logs: BTreeMap<AttemptKey, Vec<PathBuf>>,
}

/// See the module. Its memory is its disk: `adopt` again plays a restart of the peer.
#[derive(Default)]
pub struct FakeBackend {
    nodes: Vec<NodeCapacity>,
    state: Mutex<State>,
}

impl FakeBackend {
    /// Offers these nodes.
    pub fn new(nodes: Vec<NodeCapacity>) -> Self {
        Self { nodes, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a running attempt. False if it does not run.
    pub async fn finish(&self, key: AttemptKey, outcome: Outcome) -> bool {
        let event = {
            let mut state = self.state();
            match state.attempts.get_mut(&key) {
                Some(attempt) if attempt.ended.is_none() => attempt.ended = Some(outcome.clone()),
                _ => return false,
            }
            ended(key, outcome)
        };
        self.say(event).await;
        true
    }

    /// Attempts that run.
    pub fn running(&self) -> Vec<AttemptKey> {
        self.state().attempts.iter().filter(|(_, a)| a.ended.is_none()).map(|(key, _)| *key).collect()
    }
    /// Every start that was really made, in order.
    pub fn starts(&self) -> Vec<StartCommand> {
        self.state().starts.clone()
    }
    /// What a running attempt follows.
    pub fn binding(&self, key: AttemptKey) -> Option<(ContactId, u64)> {
        self.state().attempts.get(&key)?.binding
    }
    /// The newest renewal that was passed on.
    pub fn renewed_at(&self, contact: ContactId, incarnation: u64) -> Option<Instant> {
        self.state().renewals.get(&(contact, incarnation)).copied()
    }
    /// Gives an attempt log files.
    pub fn set_logs(&self, key: AttemptKey, files: Vec<PathBuf>) {
        self.state().logs.insert(key, files);
    }

    async fn say(&self, event: BackendEvent) {
        let sender = self.state().events.clone();
        if let Some(sender) = sender {
            // A peer that is gone hears of it when it adopts again.
            let _ = sender.send(event).await;
        }
    }
}

fn started(key: AttemptKey) -> BackendEvent {
    BackendEvent::Started { key, at: WallTime(1) }
}
fn ended(key: AttemptKey, outcome: Outcome) -> BackendEvent {
    let ran = !matches!(outcome, Outcome::NotStarted(_));
    BackendEvent::Ended { key, outcome, started_at: ran.then_some(WallTime(1)), at: WallTime(2) }
}

#[async_trait]
impl Backend for FakeBackend {
    fn kind(&self) -> &'static str {
        "fake"
    }

    async fn discover(&self) -> anyhow::Result<Discovery> {
        Ok(Discovery { nodes: self.nodes.clone(), ..Discovery::default() })
    }

    async fn adopt(&self, events: mpsc::Sender<BackendEvent>) -> anyhow::Result<()> {
        let attempts = {
            let mut state = self.state();
            state.events = Some(events);
            state.attempts.clone()
        };
        self.say(BackendEvent::Adopted { running: self.running() }).await;
        for (key, attempt) in attempts {
            match attempt.ended {
                None => self.say(started(key)).await,
                Some(outcome) if !attempt.forgotten => self.say(ended(key, outcome)).await,
                Some(_) => {}
            }
        }
        Ok(())
    }

    async fn command(&self, command: BackendCommand) {
        let event = {
            let mut state = self.state();
            match command {
                BackendCommand::Start(start) => {
                    let key = start.key;
                    let known = state.attempts.get(&key).cloned();
                    if known.is_none() {
                        let attempt = Attempt { binding: Some(start.binding), ended: None, forgotten: false };
                        state.attempts.insert(key, attempt);
                        state.starts.push(*start);
                    }
                    Some(
                        known
                            .and_then(|a| a.ended)
                            .map_or_else(|| started(key), |outcome| ended(key, outcome)),
                    )
                }
                BackendCommand::Stop { key, reason, .. } => {
                    let outcome = match reason {
                        StopReason::Cancel => Outcome::Cancelled,
                        StopReason::Timeout => Outcome::TimedOut,
                        StopReason::Drain => Outcome::Stopped("drain".into()),
                        StopReason::Superseded => Outcome::Stopped("superseded".into()),
                    };
                    let nothing = Attempt { binding: None, ended: None, forgotten: false };
                    let attempt = state.attempts.entry(key).or_insert(nothing);
                    Some(ended(key, attempt.ended.get_or_insert(outcome).clone()))
                }
                BackendCommand::Rebind { key, to, .. } => {
                    if let Some(attempt) = state.attempts.get_mut(&key) {
                        attempt.binding = Some(to);
                    }
                    None
                }
                BackendCommand::Forget { key } => {
                    if let Some(attempt) = state.attempts.get_mut(&key).filter(|a| a.ended.is_some()) {
                        attempt.forgotten = true;
                    }
                    None
                }
            }
        };
        if let Some(event) = event {
            self.say(event).await;
        }
    }

    async fn renewed(&self, contact: ContactId, incarnation: u64, sent_at: Instant) {
        let mut state = self.state();
        let newest = state.renewals.entry((contact, incarnation)).or_default();
        *newest = (*newest).max(sent_at);
    }

    fn logs(&self, key: AttemptKey) -> Option<Vec<PathBuf>> {
        self.state().logs.get(&key).cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::conformance::{self, Subject};
    use super::*;

    struct Fake(Arc<FakeBackend>);

    #[async_trait]
    impl Subject for Fake {
        fn backend(&self) -> Arc<dyn Backend> {
            self.0.clone()
        }
        async fn restart(&mut self) {}
        async fn finish(&mut self, key: AttemptKey, code: i32) {
            assert!(self.0.finish(key, Outcome::Exited(code)).await);
        }
    }

    #[tokio::test]
    async fn it_keeps_the_contract() {
        conformance::lifecycle(&mut Fake(Arc::default())).await;
        conformance::adoption(&mut Fake(Arc::default())).await;
    }

    #[tokio::test]
    async fn it_tells_what_it_was_told() {
        let fake = FakeBackend::default();
        let contact = ContactId([1; 20]);
        fake.renewed(contact, 2, Instant(5)).await;
        fake.renewed(contact, 2, Instant(3)).await;
        assert_eq!(fake.renewed_at(contact, 2), Some(Instant(5)));
        assert_eq!(fake.renewed_at(contact, 3), None);
    }
}
