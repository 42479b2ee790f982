//! What a demo or replay shows while it runs: on a terminal a table that redraws, elsewhere a line now and then.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::super::cli::plain;
use super::super::documents::{ClusterDocument, JobDocument, LinkDocument};
use crate::base::PeerName;
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

    /// Draws the table and counts anew.
    pub fn draw(&mut self, clusters: &[ClusterDocument], links: &[LinkDocument], jobs: &[JobDocument]) {
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
        let rows = rows(clusters, links, jobs);
        // A line that is not needed any more goes: there are fewer jobs by and by.
        for line in self.lines.drain(rows.len().min(self.lines.len())..) {
            line.finish_and_clear();
            self.bars.remove(&line);
        }
        for (i, row) in rows.into_iter().enumerate() {
            if self.lines.len() <= i {
                // Cut at the terminal's edge.
                let style = ProgressStyle::with_template("{wide_msg}")
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

/// Jobs and links that are shown; of more it is said how many there are.
const JOBS_MAX: usize = 12;
const LINKS_MAX: usize = 12;
const LINKS_IN_A_ROW: usize = 3;

/// Clusters with what they have, the links between them, and the jobs that have not ended.
fn rows(clusters: &[ClusterDocument], links: &[LinkDocument], jobs: &[JobDocument]) -> Vec<String> {
    let mut out =
        vec![format!("{:<6} {:<13} {:<8} {:>20}  {}", "CLUSTER", "REGION", "STATE", "GPUS FREE", "RUNS")];
    for cluster in clusters {
        let (free, total) = cluster.gpus.values().fold((0, 0), |(f, t), g| (f + g.free, t + g.total));
        let gpus = format!("{free} of {total}{}", if cluster.declared { " (virtual)" } else { "" });
        let here = jobs.iter().filter(|j| !j.done && j.cluster.as_ref() == Some(&cluster.name)).count();
        let state = if cluster.draining { "draining" } else { cluster.liveness.as_str() };
        out.push(format!("{:<6}  {:<13} {state:<8} {gpus:>20}  {here}", cluster.name, cluster.region));
    }
    out.extend(link_rows(clusters, links));
    out.extend(job_rows(jobs));
    out
}

/// Each pair once, by the end that comes first; what is told of a cluster that is away is old.
fn link_rows(clusters: &[ClusterDocument], links: &[LinkDocument]) -> Vec<String> {
    let alive = |name: &PeerName| clusters.iter().any(|c| c.name == *name && c.liveness == "alive");
    let pairs: Vec<&LinkDocument> =
        links.iter().filter(|l| l.from < l.to && alive(&l.from) && alive(&l.to)).collect();
    if pairs.is_empty() {
        return Vec::new();
    }
    let cell = |l: &&LinkDocument| {
        let speed = match l.bandwidth_bps {
            Some(bps) if bps >= 1_000_000_000 => format!(", {:.1} Gbit/s", bps as f64 / 1e9),
            Some(bps) => format!(", {:.0} Mbit/s", bps as f64 / 1e6),
            None => String::new(),
        };
        let way = if l.direct { "" } else { ", relayed" };
        let loss = if l.loss >= 0.001 { format!(", {:.1} % lost", l.loss * 100.0) } else { String::new() };
        format!("{:<32}", format!("{}-{} {:.1} ms{speed}{loss}{way}", l.from, l.to, l.rtt_ms))
    };
    let shown = &pairs[..pairs.len().min(LINKS_MAX)];
    let mut out = vec!["LINKS".to_owned()];
    out.extend(
        shown
            .chunks(LINKS_IN_A_ROW)
            .map(|row| row.iter().map(cell).collect::<String>().trim_end().to_owned()),
    );
    if pairs.len() > shown.len() {
        out.push(format!("and {} more", pairs.len() - shown.len()));
    }
    out
}

/// Those that run first, then those that wait, in the order of their submission.
fn job_rows(jobs: &[JobDocument]) -> Vec<String> {
    let mut open: Vec<&JobDocument> = jobs.iter().filter(|j| !j.done).collect();
    if open.is_empty() {
        return Vec::new();
    }
    open.sort_by_key(|j| (j.state != JobState::Running, j.submitted_at_ms, j.id));
    let mut out = vec![format!(
        "{:<8}  {:<14} {:<8} {:<7} {:>7}  {}",
        "JOB", "NAME", "STATE", "AT", "ATTEMPT", "BECAUSE"
    )];
    for job in open.iter().take(JOBS_MAX) {
        let at = job.cluster.as_ref().map_or("-", |c| c.as_str());
        out.push(format!(
            "{:<8}  {:<14} {:<8} {at:<7} {:>7}  {}",
            job.id.short(),
            plain(&job.name),
            job.state.as_str(),
            job.epoch,
            plain(&job.reason)
        ));
    }
    if open.len() > JOBS_MAX {
        out.push(format!("and {} more", open.len() - JOBS_MAX));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::surface::fake::{Fake, name};

    fn clusters(states: &[(&str, &str)]) -> Vec<ClusterDocument> {
        let one = |(n, liveness): &(&str, &str)| {
            let fake = Fake::new(n);
            let view = crate::runtime::PeerHandle::view(&*fake);
            let made = ClusterDocument::new(&view.members[&name(n)], Some(1));
            ClusterDocument { liveness: (*liveness).into(), ..made }
        };
        states.iter().map(one).collect()
    }

    fn link(from: &str, to: &str, more: Value) -> LinkDocument {
        let mut link = json!({"from": from, "to": to, "rtt_ms": 0.31, "loss": 0.0, "bandwidth_bps": null,
            "bandwidth_age_ms": null, "age_ms": 1, "direct": true});
        link.as_object_mut().expect("a map").extend(more.as_object().cloned().unwrap_or_default());
        serde_json::from_value(link).expect("a link")
    }

    fn both_ways(ends: &[&str]) -> Vec<LinkDocument> {
        let pairs = ends.iter().flat_map(|a| ends.iter().map(move |b| (a, b))).filter(|(a, b)| a != b);
        pairs.map(|(a, b)| link(a, b, json!({}))).collect()
    }

    fn job(fake: &Fake, text: &str, at: Option<&str>) -> JobDocument {
        let id = fake.put(Fake::spec(text));
        if let Some(at) = at {
            fake.place(id, at);
        }
        JobDocument::new(&fake.state.lock().expect("state").records[&id], false)
    }

    #[test]
    fn clusters_links_and_jobs_are_in_the_table() {
        let fake = Fake::new("c1");
        let waits = job(&fake, "name: waits\nrun: x", None);
        let runs = job(&fake, "name: runs\nrun: x", Some("c2"));
        let ended = JobDocument { done: true, name: "ended".into(), ..runs.clone() };
        let mut links = both_ways(&["c1", "c2", "c3"]);
        links[0] =
            link("c1", "c2", json!({"bandwidth_bps": 2_500_000_000_u64, "loss": 0.02, "direct": false}));
        let table = rows(
            &clusters(&[("c1", "alive"), ("c2", "alive"), ("c3", "lost")]),
            &links,
            &[waits, runs, ended],
        );
        let line = |start: &str| {
            table.iter().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("{start}: {table:#?}"))
        };
        assert!(line("c2").contains("alive") && line("c2").contains("3 of 8 (virtual)"), "{table:#?}");
        assert!(line("c2").ends_with(" 1") && line("c1 ").ends_with(" 0"), "{table:#?}");
        assert!(line("c3").contains("lost"));
        // Of each pair once, and none with the one that is lost.
        let pairs: Vec<&String> = table.iter().filter(|l| l.contains(" ms")).collect();
        assert_eq!(pairs, ["c1-c2 0.3 ms, 2.5 Gbit/s, 2.0 % lost, relayed"]);
        let at = |text: &str| {
            table.iter().position(|l| l.contains(text)).unwrap_or_else(|| panic!("{text}: {table:#?}"))
        };
        assert!(at("JOB ") < at("runs") && at("runs") < at("waits"), "{table:#?}");
        assert!(table[at("runs")].contains("running  c2            1"), "{table:#?}");
        assert!(table[at("waits")].contains("pending  -"), "{table:#?}");
        assert!(!table.iter().any(|l| l.contains("ended")), "{table:#?}");
    }

    /// Sixteen clusters have 120 pairs, and a replay a thousand jobs: neither takes the screen.
    #[test]
    fn the_table_stays_small() {
        let names: Vec<String> = (10..26).map(|n| format!("c{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let fake = Fake::new("c10");
        let jobs: Vec<JobDocument> = (0..100).map(|_| job(&fake, "run: x", None)).collect();
        let all: Vec<(&str, &str)> = names.iter().map(|n| (*n, "alive")).collect();
        let table = rows(&clusters(&all), &both_ways(&names), &jobs);
        assert!(table.len() < 40, "{table:#?}");
        for more in ["and 108 more", "and 88 more"] {
            assert!(table.iter().any(|l| l == more), "{more}: {table:#?}");
        }
        assert_eq!(rows(&[], &[], &[]).len(), 1, "nothing is known yet");
    }
}
