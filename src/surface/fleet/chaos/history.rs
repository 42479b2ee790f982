//! What callers did and were told, job by job: checked for linearizability when all is over.
//!
//! Each operation goes to any peer, while others of the same job are under way, and is noted with its interval on
//! the boot clock of this machine. One whose outcome is unknown stays open: it may happen at any later time, or
//! never. One that nobody can have heard (no connection) is left out.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::Method;
use futures::StreamExt;

use super::super::submit;
use super::load::Sent;
use crate::base::Rng;
use crate::model::JobRecord;
use crate::model::spec::JobSpec;
use crate::surface::client::{Client, ClientFailure};
use crate::surface::documents::{CancelDocument, boottime_now};
use crate::surface::linear::job::{Ask, JobHistory, Op, Told};
use crate::surface::linear::{Interval, Verdict};

/// A user's patience with one request.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// Users of one job, at most; each asks so often, at most.
const USERS_MAX: u64 = 3;
const ASKS_MAX: u64 = 5;
/// Longest pause between two requests of one user.
const PAUSE_MS_MAX: u64 = 7_000;
/// Of so many jobs one is cancelled.
const CANCELLED_OF: f64 = 7.0;
/// Last reads under way at once.
const LAST_AT_ONCE: usize = 8;

/// Operations by the job's name.
#[derive(Debug, Default)]
pub struct Histories(Mutex<BTreeMap<String, Vec<Op>>>);

/// What came of the check.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// Operations that were put in order.
    pub operations: u64,
    /// Of these: without an answer.
    pub open: u64,
    /// Histories that were too long to decide.
    pub undecided: u64,
    /// Histories that no order explains, in words.
    pub broken: Vec<String>,
}

/// An operation that begins now.
#[derive(Debug)]
pub struct Begun(u64);

impl Begun {
    /// Now.
    pub fn now() -> Self {
        Self(boottime_now().0)
    }
}

impl Histories {
    /// It was answered, now.
    pub fn told(&self, job: &str, begun: Begun, ask: Ask, told: Told) {
        let interval = Interval { call: begun.0, ret: Some(boottime_now().0) };
        self.add(job, Op { interval, ask, told: Some(told) });
    }

    /// Nobody knows what came of it. A second one of the same kind allows nothing that the first does not.
    pub fn unknown(&self, job: &str, begun: Begun, ask: Ask) {
        self.add(job, Op { interval: Interval { call: begun.0, ret: None }, ask, told: None });
    }

    fn add(&self, job: &str, op: Op) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ops = all.entry(job.to_owned()).or_default();
        let same = |o: &Op| o.told.is_none() && o.ask == op.ask && o.interval.call <= op.interval.call;
        if op.told.is_some() || !ops.iter().any(same) {
            ops.push(op);
        }
    }

    /// Is there an order of each job's operations that real time and the record's meaning allow?
    pub fn check(self) -> Checked {
        let mut checked = Checked::default();
        for (job, ops) in self.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            checked.operations += ops.len() as u64;
            checked.open += ops.iter().filter(|op| op.told.is_none()).count() as u64;
            let history = JobHistory::new(ops);
            match history.check() {
                Verdict::Linearizable { .. } => {}
                Verdict::GaveUp { .. } => checked.undecided += 1,
                Verdict::Not { placed, stuck } => checked.broken.push(format!(
                    "{job} is not linearizable after {placed} answers: {}",
                    history.describe(&stuck)
                )),
            }
        }
        checked
    }
}

/// Submits a job at a peer, under its own name as the key; its id, where it was answered.
pub async fn submitted(
    client: &Client,
    histories: &Histories,
    spec: &JobSpec,
) -> Result<String, ClientFailure> {
    let begun = Begun::now();
    let answer = submit(client, spec, &spec.name, ANSWER_WITHIN).await;
    match &answer {
        Ok(_) => histories.told(&spec.name, begun, Ask::Submit, Told::Submitted),
        Err(ClientFailure::Unreachable(..) | ClientFailure::Api(400..=499, _)) => {}
        Err(_) => histories.unknown(&spec.name, begun, Ask::Submit),
    }
    answer
}

/// Reads a job's record at a peer.
pub async fn read(client: &Client, histories: &Histories, name: &str, id: &str) {
    let begun = Begun::now();
    let path = format!("/v1/jobs/{id}/record");
    match client.json::<JobRecord>(Method::GET, &path, None, &[], ANSWER_WITHIN).await {
        Ok(record) => histories.told(name, begun, Ask::Get, Told::Record(Box::new(record))),
        Err(ClientFailure::Api(404, _)) => histories.told(name, begun, Ask::Get, Told::NoSuchJob),
        // A read that was not answered shows nothing.
        Err(_) => {}
    }
}

/// Cancels a job at a peer; false where nobody can have heard it.
pub async fn cancel(client: &Client, histories: &Histories, name: &str, id: &str) -> bool {
    let begun = Begun::now();
    let path = format!("/v1/jobs/{id}/cancel");
    match client.json::<CancelDocument>(Method::POST, &path, None, &[], ANSWER_WITHIN).await {
        Ok(answer) => histories.told(name, begun, Ask::Cancel, Told::Cancelled(answer.state)),
        Err(ClientFailure::Api(404, _)) => histories.told(name, begun, Ask::Cancel, Told::NoSuchJob),
        Err(ClientFailure::Unreachable(..)) => return false,
        Err(_) => histories.unknown(name, begun, Ask::Cancel),
    }
    true
}

/// Some users of a job that was answered, all at once; true if one asked for its end.
pub async fn use_job(
    clients: &[Client],
    histories: &Histories,
    rng: &mut Rng,
    (name, id): (&str, &str),
) -> bool {
    let ends = rng.chance(1.0 / CANCELLED_OF);
    let users = (0..1 + rng.below(USERS_MAX)).map(|user| {
        let mut rng = rng.fork();
        async move {
            let mut cancelled = false;
            for ask in 0..1 + rng.below(ASKS_MAX) {
                tokio::time::sleep(Duration::from_millis(rng.below(PAUSE_MS_MAX))).await;
                let client = &clients[rng.below(clients.len() as u64) as usize];
                // At times two users ask for its end.
                if ends && ask == 1 && user < 2 {
                    cancelled |= cancel(client, histories, name, id).await;
                } else {
                    read(client, histories, name, id).await;
                }
            }
            cancelled
        }
    });
    futures::future::join_all(users).await.contains(&true)
}

/// When all is over every answered job is read once more at two peers.
pub async fn read_all(clients: &[Client], histories: &Histories, sent: &[Sent]) {
    let answered = sent.iter().enumerate().filter_map(|(n, s)| Some((n, s, s.id.as_deref()?)));
    let reads = answered.flat_map(|(n, sent, id)| {
        [n, n + 1].map(|at| read(&clients[at % clients.len()], histories, &sent.name, id))
    });
    futures::stream::iter(reads).buffer_unordered(LAST_AT_ONCE).collect::<Vec<()>>().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::JobState;

    #[test]
    fn an_answer_that_came_too_late_to_be_true_is_found() {
        let good = Histories::default();
        good.told("j", Begun(1), Ask::Submit, Told::Submitted);
        good.unknown("j", Begun(2), Ask::Cancel);
        good.unknown("j", Begun(3), Ask::Cancel);
        good.told("j", Begun(4), Ask::Cancel, Told::Cancelled(JobState::Cancelled));
        let checked = good.check();
        assert_eq!((checked.operations, checked.open, checked.undecided), (3, 1, 0));
        assert_eq!(checked.broken, Vec::<String>::new());

        // After it was answered as held nobody may say that there is no such job.
        let bad = Histories::default();
        bad.told("j", Begun(1), Ask::Submit, Told::Submitted);
        let later = Begun(boottime_now().0 + 1);
        bad.told("j", later, Ask::Get, Told::NoSuchJob);
        assert_eq!(bad.check().broken.len(), 1);
    }
}
