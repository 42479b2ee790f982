//! Runs a model to its end and says what was found.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// One run of a model.
pub struct Run {
    pub name: &'static str,
    /// Stop when this invariant is broken; else only when every state was seen.
    pub until: Option<&'static str>,
    /// One makes counts and traces the same every time; 0 is one for each core.
    pub threads: usize,
}

/// What a run showed.
#[derive(Debug)]
pub struct Report {
    pub model: &'static str,
    /// States generated, and different ones.
    pub states: usize,
    pub unique: usize,
    pub depth: usize,
    /// Every state was seen; nothing cut the run short.
    pub complete: bool,
    /// Broken invariants, by id.
    pub violated: Vec<&'static str>,
    /// Situations that must occur and did not.
    pub unreached: Vec<&'static str>,
    /// Steps to the first broken invariant.
    pub trace: Vec<String>,
    pub seconds: f64,
}

impl Report {
    /// Everything was seen, nothing is broken, and nothing that must occur is missing.
    pub fn holds(&self) -> bool {
        self.complete && self.violated.is_empty() && self.unreached.is_empty()
    }

    /// As one line of JSON; `bug` where one was put in.
    pub fn json(&self, bug: Option<&str>) -> String {
        let bug = bug.map(|b| format!("\"bug\":{b:?},")).unwrap_or_default();
        format!(
            "{{\"model\":{:?},{bug}\"states\":{},\"unique_states\":{},\"depth\":{},\"complete\":{},\"violations\":{},\"violated\":{:?},\"unreached\":{:?},\"seconds\":{:.2}}}",
            self.model,
            self.states,
            self.unique,
            self.depth,
            self.complete,
            self.violated.len(),
            self.violated,
            self.unreached,
            self.seconds,
        )
    }
}

impl Run {
    /// Breadth first, so that a trace is a shortest one.
    pub fn check<M>(self, model: M) -> Report
    where
        M: Model + Clone + Send + Sync + 'static,
        M::State: Clone + Eq + Hash + std::fmt::Debug + Send + Sync,
        M::Action: Clone + PartialEq + std::fmt::Debug + Send + Sync,
    {
        let begun = Instant::now();
        let cores = || std::thread::available_parallelism().map_or(2, |n| n.get().min(8));
        let threads = if self.threads == 0 { cores() } else { self.threads };
        let mut builder = model.clone().checker().threads(threads);
        if let Some(id) = self.until {
            builder = builder.finish_when(HasDiscoveries::AnyOf(BTreeSet::from([id])));
        }
        let checker = builder.spawn_bfs().join();
        let found = checker.discoveries();
        let (mut violated, mut unreached, mut trace) = (Vec::new(), Vec::new(), Vec::new());
        for property in model.properties() {
            match (&property.expectation, found.get(property.name)) {
                (Expectation::Sometimes, None) => unreached.push(property.name),
                (Expectation::Always, Some(path)) => {
                    violated.push(property.name);
                    if trace.is_empty() || self.until == Some(property.name) {
                        trace = path.clone().into_actions().iter().map(|a| format!("{a:?}")).collect();
                    }
                }
                _ => {}
            }
        }
        let stopped = self.until.is_some_and(|id| violated.contains(&id));
        // Without an `until` the checker ends early only when every property has its discovery.
        let all_found = model.properties().iter().all(|p| found.contains_key(p.name));
        Report {
            model: self.name,
            states: checker.state_count(),
            unique: checker.unique_state_count(),
            depth: checker.max_depth(),
            complete: checker.is_done() && !stopped && !all_found,
            violated,
            unreached,
            trace,
            seconds: begun.elapsed().as_secs_f64(),
        }
    }
}
