//! What a run comes to: times of all jobs, and how they stand beside the central scheduler's.

use serde_json::{Value, json};
use starling::base::{Instant, Span};

use super::load::Trace;

/// When each job started and ended.
#[derive(Debug, Clone)]
pub struct Times {
    pub started: Vec<Option<Instant>>,
    pub ended: Vec<Option<Instant>>,
    /// Which cluster, where there is more than one.
    pub site: Vec<usize>,
    pub events: u64,
    pub messages: u64,
    /// Seconds of real time.
    pub wall: f64,
}

impl Times {
    pub fn new(jobs: usize) -> Self {
        Self {
            started: vec![None; jobs],
            ended: vec![None; jobs],
            site: vec![0; jobs],
            events: 0,
            messages: 0,
            wall: 0.0,
        }
    }
}

impl Times {
    /// One line per job: for a look at who waits, and where.
    pub fn lines(
        &self,
        scheduler: &str,
        trace: &Trace,
        out: &mut impl std::io::Write,
    ) -> std::io::Result<()> {
        for (n, job) in trace.jobs.iter().enumerate() {
            let (Some(started), Some(_)) = (self.started[n], self.ended[n]) else { continue };
            let (at, wait) = (job.at.since(Instant(0)).as_secs_f64(), started.since(job.at).as_secs_f64());
            let (gpus, runs) = (job.gpus_total(), job.runs.as_secs_f64());
            writeln!(
                out,
                "{scheduler},{n},{gpus},{at:.3},{runs:.3},{wait:.3},{},{}",
                job.home, self.site[n]
            )?;
        }
        Ok(())
    }
}

/// Sums of one scheduler over one or more seeds.
#[derive(Debug, Clone)]
pub struct Row {
    pub scheduler: &'static str,
    pub seeds: u64,
    pub jobs: usize,
    pub completion: f64,
    pub wait: f64,
    pub wait_p50: f64,
    pub wait_p99: f64,
    pub wait_max: f64,
    pub makespan: f64,
    pub events: u64,
    pub messages: u64,
    pub wall: f64,
    /// Waits of the first seed, in seconds, sorted: for the picture.
    pub waits: Vec<f64>,
    /// Of each seed: completion and p99 wait as a share of the central scheduler's.
    pub draws: Vec<(f64, f64)>,
}

fn at(sorted: &[f64], q: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get(((sorted.len() as f64 * q) as usize).min(last)).copied().unwrap_or(0.0)
}

impl Row {
    /// Fails where a job did not end: a mean over the others would flatter.
    pub fn new(scheduler: &'static str, trace: &Trace, times: &Times) -> Result<Self, String> {
        let mut waits = Vec::with_capacity(trace.jobs.len());
        let (mut completion, mut makespan) = (0.0, 0.0f64);
        for (n, job) in trace.jobs.iter().enumerate() {
            let (Some(started), Some(ended)) = (times.started[n], times.ended[n]) else {
                return Err(format!("{scheduler}: job {n} ({job:?}) did not end"));
            };
            if ended.since(started) < job.runs || started < job.at {
                return Err(format!("{scheduler}: job {n} ran from {started:?} to {ended:?}, wants {job:?}"));
            }
            waits.push(started.since(job.at).as_secs_f64());
            completion += ended.since(job.at).as_secs_f64();
            makespan = makespan.max(ended.since(Instant(0)).as_secs_f64());
        }
        waits.sort_by(f64::total_cmp);
        let n = waits.len().max(1) as f64;
        Ok(Row {
            scheduler,
            seeds: 1,
            jobs: waits.len(),
            completion: completion / n,
            wait: waits.iter().sum::<f64>() / n,
            wait_p50: at(&waits, 0.5),
            wait_p99: at(&waits, 0.99),
            wait_max: waits.last().copied().unwrap_or(0.0),
            makespan,
            events: times.events,
            messages: times.messages,
            wall: times.wall,
            waits,
            draws: Vec::new(),
        })
    }

    /// The mean over seeds.
    pub fn mean(rows: &[Row]) -> Option<Row> {
        let mut out = rows.first()?.clone();
        let n = rows.len() as f64;
        let mean = |of: fn(&Row) -> f64| rows.iter().map(of).sum::<f64>() / n;
        out.seeds = rows.len() as u64;
        out.completion = mean(|r| r.completion);
        out.wait = mean(|r| r.wait);
        out.wait_p50 = mean(|r| r.wait_p50);
        out.wait_p99 = mean(|r| r.wait_p99);
        out.wait_max = mean(|r| r.wait_max);
        out.makespan = mean(|r| r.makespan);
        out.wall = mean(|r| r.wall);
        Some(out)
    }

    /// Notes how it stood beside the central scheduler with each seed.
    pub fn beside(&mut self, own: &[Row], central: &[Row]) {
        let ratios = |(r, c): (&Row, &Row)| (r.completion / c.completion, r.wait_p99 / c.wait_p99);
        self.draws = own.iter().zip(central).map(ratios).collect();
    }

    /// The least and the largest share of the central scheduler's completion, where there is more than one seed.
    pub fn range(&self) -> Option<(f64, f64)> {
        let all = self.draws.iter().map(|d| d.0);
        let ends = all.fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
        (self.draws.len() > 1).then_some(ends)
    }

    pub fn json(&self, central: Option<&Row>, isolated: Option<&Row>, of: &Trace, load: f64) -> Value {
        let ratio = |a: f64, b: f64| if b > 0.0 { json!(a / b) } else { Value::Null };
        json!({
            "scheduler": self.scheduler,
            "completion_vs_central": central.map(|c| ratio(self.completion, c.completion)),
            "wait_p99_vs_central": central.map(|c| ratio(self.wait_p99, c.wait_p99)),
            "completion_vs_central_by_seed": self.draws.iter().map(|d| d.0).collect::<Vec<_>>(),
            "wait_p99_vs_central_by_seed": self.draws.iter().map(|d| d.1).collect::<Vec<_>>(),
            "isolated_completion_vs_this": isolated.map(|i| ratio(i.completion, self.completion)),
            "mean_completion_s": self.completion,
            "mean_wait_s": self.wait,
            "wait_p50_s": self.wait_p50,
            "wait_p99_s": self.wait_p99,
            "wait_max_s": self.wait_max,
            "makespan_s": self.makespan,
            "load": load,
            "load_of_the_trace": of.load_found,
            "clusters": of.sites.len(),
            "gpus": of.sites.iter().map(super::load::Site::gpus_total).sum::<u64>(),
            "jobs": self.jobs,
            "seeds": self.seeds,
            "events": self.events,
            "messages": self.messages,
            "events_per_s": if self.wall > 0.0 { (self.events as f64 / self.wall).round() } else { 0.0 },
            "wall_s": self.wall,
        })
    }
}

/// Words for a time in seconds.
pub fn words(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { Span((seconds * 1e6) as u64).to_string() }
}
