//! Linear regression by stochastic gradient descent on made data: each step's batch follows from its
//! number, so that a run that was moved computes what an undisturbed one would have.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use super::checkpoint::Store;
use super::{Identity, Notes, Stop, WorkError};
use crate::base::Rng;
use crate::surface::documents::boottime_now;
use crate::surface::ledger::Kind;

const WEIGHTS: usize = 8;
const BATCH: usize = 64;
const RATE: f64 = 0.05;
const NOISE: f64 = 0.05;
/// The data to judge by is no step's.
const JUDGED_BY: u64 = u64::MAX;

/// What to do.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Steps in all.
    pub steps: u64,
    /// Shortest time of one.
    pub step: Duration,
    /// Steps between checkpoints.
    pub checkpoint_every: u64,
}

/// The model.
#[derive(Debug, Clone, PartialEq)]
pub struct Model(pub [f64; WEIGHTS]);

/// The weights that are to be found.
fn truth(i: usize) -> f64 {
    (i as f64 - 3.5) / 2.0
}

fn batch(seed: u64) -> impl Iterator<Item = ([f64; WEIGHTS], f64)> {
    let mut rng = Rng::new(seed);
    (0..BATCH).map(move |_| {
        let x: [f64; WEIGHTS] = std::array::from_fn(|_| rng.unit() * 2.0 - 1.0);
        let y: f64 = x.iter().enumerate().map(|(i, x)| x * truth(i)).sum();
        (x, y + (rng.unit() - 0.5) * NOISE)
    })
}

impl Model {
    /// All zero.
    pub fn new() -> Self {
        Self([0.0; WEIGHTS])
    }

    fn error(&self, x: &[f64; WEIGHTS], y: f64) -> f64 {
        self.0.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() - y
    }

    /// One step of descent on the step's own batch.
    pub fn step(&mut self, step: u64) {
        let mut gradient = [0.0; WEIGHTS];
        for (x, y) in batch(step) {
            let error = self.error(&x, y);
            gradient.iter_mut().zip(x).for_each(|(g, x)| *g += 2.0 * error * x / BATCH as f64);
        }
        self.0.iter_mut().zip(gradient).for_each(|(w, g)| *w -= RATE * g);
    }

    /// Mean squared error on data that no step sees.
    pub fn loss(&self) -> f64 {
        batch(JUDGED_BY).map(|(x, y)| self.error(&x, y).powi(2)).sum::<f64>() / BATCH as f64
    }
}

/// Trains from the last checkpoint to the end.
pub async fn train(
    identity: &Identity,
    plan: Plan,
    ledger: Option<&Path>,
    stop: &mut Stop,
) -> Result<(), WorkError> {
    let mut notes = Notes::open(identity.clone(), ledger)?;
    let path = identity.checkpoint.as_deref();
    let store = path.map(|p| Store::new(p, &identity.job, identity.rank, identity.epoch)).transpose()?;
    let mut model = Model::new();
    let mut next = 0;
    if let Some(store) = &store {
        let saved = store.claim()?;
        next = saved.next;
        model.0.iter_mut().zip(&saved.weights).for_each(|(w, bits)| *w = f64::from_bits(*bits));
        if next > 0 {
            say(&format!("epoch {} goes on from step {next} loss {:.6}", identity.epoch, model.loss()));
        }
    }
    notes.add(Kind::Begin, Some(next), Some(plan.steps), boottime_now().0)?;
    if next >= plan.steps && notes.done_before()? {
        say("all steps were done before");
        return notes.add(Kind::Again, None, None, boottime_now().0);
    }
    while next < plan.steps {
        let from = boottime_now().0;
        let mut stepped = model.clone();
        stepped.step(next);
        // With no time per step, signals are looked at all the same.
        tokio::task::yield_now().await;
        if stop.within(plan.step).await {
            // The step that was cut short does not count: it is done again from what is kept here.
            keep(&mut notes, store.as_ref(), next, &model)?;
            notes.add(Kind::Stopped, Some(next), None, from)?;
            return Err(WorkError::Stopped(next));
        }
        model = stepped;
        notes.add(Kind::Step, Some(next), None, from)?;
        next += 1;
        if next % plan.checkpoint_every == 0 || next == plan.steps {
            say(&format!("step {next}/{} loss {:.6} at {}", plan.steps, model.loss(), identity.cluster));
            keep(&mut notes, store.as_ref(), next, &model)?;
        }
    }
    notes.add(Kind::Done, None, None, boottime_now().0)
}

/// On disk first, then noted: what the ledger calls kept is kept.
fn keep(notes: &mut Notes, store: Option<&Store>, next: u64, model: &Model) -> Result<(), WorkError> {
    let Some(store) = store else { return Ok(()) };
    let from = boottime_now().0;
    store.save(next, &model.0)?;
    notes.add(Kind::Checkpoint, Some(next), None, from)
}

/// A line of output; nobody reading it is no reason to stop training.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
