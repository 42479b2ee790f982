//! The jobs that are submitted while things go wrong, and how a careful caller submits them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::super::{FleetError, submit};
use super::history::{self, Begun, Histories};
use crate::base::{Bytes, MilliCpu, PeerName, Rng, Span};
use crate::model::spec::{
    CheckpointSpec, JobSpec, OnLostContact, PlacementSpec, Policy, Resources, Run, Then,
};
use crate::model::spec_input::parse_spec;
use crate::surface::client::{Client, ClientFailure};
use crate::surface::documents::boottime_now;
use crate::surface::linear::job::{Ask, Told};

/// A caller's patience with one request.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// And its pause before the next.
const PAUSE: Duration = Duration::from_millis(300);
/// Failed attempts are tried again more often than a run is long.
const RETRIES: u32 = 50;
/// How long a step takes at least.
const STEP_MS: u64 = 100;

/// Where a job's files lie and how it is run.
#[derive(Debug, Clone)]
pub struct Yard {
    /// The binary whose `work` is run.
    pub exe: PathBuf,
    /// What the attempts note.
    pub ledger: PathBuf,
    /// Their checkpoints.
    pub checkpoints: PathBuf,
    /// How long they go on without contact.
    pub grace: Span,
}

impl Yard {
    /// A job of so many steps of `STEP_MS`, with a checkpoint every five; `clusters` may be empty for any.
    pub fn training(&self, name: &str, steps: u64, clusters: &[PeerName]) -> Result<JobSpec, FleetError> {
        let base = parse_spec(b"run: 'true'").map_err(|e| FleetError::Invalid(e.to_string()))?.spec;
        let text = |p: &Path| p.display().to_string();
        let argv = [
            text(&self.exe),
            "work".into(),
            "train".into(),
            "--steps".into(),
            steps.to_string(),
            "--step-ms".into(),
            STEP_MS.to_string(),
            "--checkpoint-every".into(),
            "5".into(),
            "--ledger".into(),
            text(&self.ledger),
        ];
        Ok(JobSpec {
            name: name.to_owned(),
            resources: Resources { gpus: 1, gpu: vec![], cpus: MilliCpu(500), memory: Bytes::mib(64) },
            run: Run::Argv(argv.to_vec()),
            checkpoint: Some(CheckpointSpec { path: text(&self.checkpoints.join(name)), every: None }),
            retries: RETRIES,
            on_lost_contact: OnLostContact { grace: Some(self.grace), then: Then::Restart },
            array: None,
            after: Vec::new(),
            placement: PlacementSpec {
                policy: Policy::Spread,
                clusters: clusters.to_vec(),
                ..PlacementSpec::default()
            },
            ..base
        })
    }
}

/// One job, from its submitter's side.
#[derive(Debug, Clone)]
pub struct Sent {
    /// Its name.
    pub name: String,
    /// Its id, once a peer had answered.
    pub id: Option<String>,
    /// When it was first asked for, boot-time microseconds.
    pub at_us: u64,
    /// Why it was given up, if it was.
    pub given_up: Option<String>,
    /// A user asked for its end, and a peer may have heard it.
    pub cancelled: bool,
}

/// What callers went through.
#[derive(Debug, Default)]
pub struct Troubles {
    /// Requests whose outcome was unknown, and asked again under the same key at the same peer.
    pub unknown: AtomicU64,
    /// Requests that were refused or found nobody, and taken to another peer.
    pub refused: AtomicU64,
    /// What was asked and told, job by job.
    pub histories: Histories,
}

/// Submits jobs, at random moments and peers, until `length` has passed; gives them back when each has been
/// answered or `patience` is over, too.
pub async fn submit_all(
    clients: &[Client],
    yard: &Yard,
    seed: u64,
    per_minute: f64,
    length: Duration,
    patience: Duration,
    troubles: &Arc<Troubles>,
) -> Result<Vec<Sent>, FleetError> {
    let begun = Instant::now();
    let mut rng = Rng::new(seed ^ 0x10ad);
    let mut callers = JoinSet::new();
    let mut at = Duration::ZERO;
    for n in 0.. {
        at += Duration::from_secs_f64(rng.unit() * 2.0 * 60.0 / per_minute);
        if at >= length {
            break;
        }
        // Some run longer than a grace.
        let steps = if rng.chance(0.4) { 80 + rng.below(170) } else { 10 + rng.below(60) };
        let spec = yard.training(&format!("chaos-{n}"), steps, &[])?;
        tokio::time::sleep(at.saturating_sub(begun.elapsed())).await;
        let caller = Caller {
            clients: clients.to_vec(),
            rng: rng.fork(),
            key: format!("chaos-{seed}-{n}"),
            until: begun + length + patience,
            troubles: troubles.clone(),
        };
        callers.spawn(caller.use_job(spec));
    }
    let mut all = callers.join_all().await;
    all.sort_by_key(|s| s.at_us);
    Ok(all)
}

struct Caller {
    clients: Vec<Client>,
    rng: Rng,
    key: String,
    until: Instant,
    troubles: Arc<Troubles>,
}

impl Caller {
    /// Submits a job, then reads it at any peers, and at times asks for its end.
    async fn use_job(mut self, spec: JobSpec) -> Sent {
        let mut sent = self.submit(&spec).await;
        if let Some(id) = &sent.id {
            let histories = &self.troubles.histories;
            sent.cancelled =
                history::use_job(&self.clients, histories, &mut self.rng, (&sent.name, id)).await;
        }
        sent
    }

    /// Asks until there is an answer. Where the outcome of a request is unknown, the same peer is asked again,
    /// since it is the one that keeps the key; where nothing was done, another one is.
    async fn submit(&mut self, spec: &JobSpec) -> Sent {
        let at_us = boottime_now().0;
        let mut sent = Sent { name: spec.name.clone(), id: None, at_us, given_up: None, cancelled: false };
        let mut at = self.rng.below(self.clients.len() as u64) as usize;
        let mut bound = false;
        let histories = &self.troubles.histories;
        loop {
            let begun = Begun::now();
            match submit(&self.clients[at], spec, &self.key, ANSWER_WITHIN).await {
                Ok(id) => {
                    histories.told(&sent.name, begun, Ask::Submit, Told::Submitted);
                    sent.id = Some(id);
                    return sent;
                }
                Err(ClientFailure::Api(400..=499, body)) => {
                    sent.given_up = Some(body.message);
                    return sent;
                }
                Err(ClientFailure::Unreachable(..) | ClientFailure::Api(503, _)) if !bound => {
                    self.troubles.refused.fetch_add(1, Ordering::Relaxed);
                    at = (at + 1) % self.clients.len();
                }
                Err(ClientFailure::Unreachable(..) | ClientFailure::Api(503, _)) => {}
                Err(_) => {
                    histories.unknown(&sent.name, begun, Ask::Submit);
                    self.troubles.unknown.fetch_add(1, Ordering::Relaxed);
                    bound = true;
                }
            }
            if Instant::now() >= self.until {
                sent.given_up = Some("no answer until the end".into());
                return sent;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
