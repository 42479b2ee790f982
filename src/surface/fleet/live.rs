//! What a demo or replay shows while it runs: on a terminal a table that redraws, elsewhere a line now and then.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::super::documents::{ClusterDocument, JobDocument};
use crate::model::JobState;

/// Draws to standard error, so that standard output holds the result alone.
pub struct Live {
    bars: MultiProgress,
    lines: Vec<ProgressBar>,
    total: ProgressBar,
    tty: bool,
    said: u64,
}

impl Live {
    /// For so many jobs.
    pub fn new(jobs: u64) -> Self {
        let bars = MultiProgress::new();
        let style =
            ProgressStyle::with_template("{elapsed_precise} [{bar:32}] {pos}/{len} jobs ended  {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ");
        let total = bars.add(ProgressBar::new(jobs).with_style(style));
        Self { bars, lines: Vec::new(), total, tty: console::user_attended_stderr(), said: 0 }
    }

    /// One line that stays.
    pub fn say(&self, text: &str) {
        if self.tty {
            // A terminal that went away is no reason to stop.
            let _ = self.bars.println(text);
        } else {
            eprintln!("{text}");
        }
    }

    /// Draws clusters and counts anew.
    pub fn draw(&mut self, clusters: &[ClusterDocument], jobs: &[JobDocument]) {
        let count = |state: JobState| jobs.iter().filter(|j| j.state == state).count();
        let ended = jobs.iter().filter(|j| j.done).count() as u64;
        let (running, waiting) =
            (count(JobState::Running), count(JobState::Pending) + count(JobState::Placed));
        let text = format!("{running} run, {waiting} wait");
        if !self.tty {
            if ended >= self.said + (self.total.length().unwrap_or(1) / 10).max(1) {
                self.said = ended;
                eprintln!("{ended} of {} jobs ended, {text}", self.total.length().unwrap_or(0));
            }
            return;
        }
        self.total.set_position(ended);
        self.total.set_message(text);
        for (i, row) in rows(clusters, jobs).into_iter().enumerate() {
            if self.lines.len() <= i {
                let style = ProgressStyle::with_template("{msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner());
                self.lines.push(self.bars.add(ProgressBar::new_spinner().with_style(style)));
            }
            self.lines[i].set_message(row);
        }
    }

    /// Takes the table away.
    pub fn end(self) {
        for line in self.lines {
            line.finish_and_clear();
        }
        self.total.finish_and_clear();
    }
}

/// A row per cluster: what it has and what runs there.
fn rows(clusters: &[ClusterDocument], jobs: &[JobDocument]) -> Vec<String> {
    let mut out =
        vec![format!("{:<6} {:<13} {:<8} {:>12}  {}", "CLUSTER", "REGION", "STATE", "GPUS FREE", "RUNS")];
    for cluster in clusters {
        let (free, total) = cluster.gpus.values().fold((0, 0), |(f, t), g| (f + g.free, t + g.total));
        let here = jobs.iter().filter(|j| !j.done && j.cluster.as_ref() == Some(&cluster.name));
        let names: Vec<&str> = here.map(|j| j.name.as_str()).collect();
        let shown = names.iter().take(6).copied().collect::<Vec<_>>().join(" ");
        let more = if names.len() > 6 { format!(" +{}", names.len() - 6) } else { String::new() };
        let gpus = format!("{free} of {total}{}", if cluster.declared { " (virtual)" } else { "" });
        out.push(format!(
            "{:<6} {:<13} {:<8} {gpus:>12}  {shown}{more}",
            cluster.name, cluster.region, cluster.liveness
        ));
    }
    out
}
