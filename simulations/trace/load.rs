//! Traces: read from tables whose columns are found by name, or generated; scaled to a load; cut into more clusters.

use std::collections::BTreeMap;
use std::path::Path;

use starling::base::{Instant, Rng, Span};
use starling::model::timestamp;

/// GPUs of a node, where the table does not say.
pub const NODE_GPUS: u32 = 8;
/// The first job comes so long after the start: by then the mesh stands.
const SETTLED: Span = Span::secs(120);

/// One job: a gang of `nodes` x `gpus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    pub at: Instant,
    pub runs: Span,
    pub nodes: u32,
    pub gpus: u32,
    /// The longest run that its user stated, if any.
    pub limit: Option<Span>,
    /// The cluster that its user has.
    pub home: usize,
}

impl Job {
    pub fn gpus_total(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.gpus)
    }
    fn work(&self) -> f64 {
        self.gpus_total() as f64 * self.runs.as_secs_f64()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    pub name: String,
    pub nodes: u32,
    pub gpus: u32,
}

impl Site {
    pub fn fits(&self, job: &Job) -> bool {
        let each = self.gpus.checked_div(job.gpus).unwrap_or(u32::MAX);
        u64::from(self.nodes) * u64::from(each) >= u64::from(job.nodes)
    }
    pub fn gpus_total(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.gpus)
    }
}

/// Jobs in the order of their arrival, and where they may run.
#[derive(Debug, Clone)]
pub struct Trace {
    pub sites: Vec<Site>,
    pub jobs: Vec<Job>,
    /// Rows that were left out, by reason.
    pub left_out: BTreeMap<&'static str, usize>,
    /// Offered GPU time per GPU time there, before any scaling.
    pub load_found: f64,
}

/// Other names of a column, the first one is ours.
const COLUMNS: [&[&str]; 6] = [
    &["time", "timestamp", "submit_time", "submitted_at", "arrival", "arrival_time", "creation_time"],
    &["duration", "runtime", "run_time", "duration_s"],
    &["gpus", "num_gpus", "gpu_num", "gpu_count", "num_gpu"],
    &["cluster", "vc", "virtual_cluster", "queue"],
    &["nodes", "node num", "node_num", "num_nodes", "node_count"],
    &["gpus_per_node", "gpu_per_node"],
];

/// Which of the months (1 to 12) count; none: all of them.
pub type Months = Vec<u32>;

fn rows(path: &Path, wanted: &[usize], may: &[usize]) -> Result<Vec<Vec<String>>, String> {
    let wrong = |e: csv::Error| format!("{}: {e}", path.display());
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_path(path).map_err(wrong)?;
    let headers = reader.headers().map_err(wrong)?.clone();
    let find = |column: usize| {
        let known = COLUMNS[column];
        headers.iter().position(|h| known.contains(&h.trim().to_ascii_lowercase().as_str()))
    };
    let mut places = Vec::new();
    for &column in wanted {
        let at = find(column)
            .ok_or_else(|| format!("{}: no column named {}", path.display(), COLUMNS[column].join(" or ")))?;
        places.push(Some(at));
    }
    places.extend(may.iter().map(|&column| find(column)));
    let mut out = Vec::new();
    for row in reader.records() {
        let row = row.map_err(wrong)?;
        let cell = |at: &Option<usize>| at.and_then(|at| row.get(at)).unwrap_or("").trim().to_owned();
        out.push(places.iter().map(cell).collect());
    }
    Ok(out)
}

/// Microseconds since 1970, of a date or of a number of seconds; and the month of a date.
fn moment(text: &str) -> Option<(u64, Option<u32>)> {
    if let Some(at) = timestamp::parse(text) {
        return Some((at.0.checked_mul(1000)?, text.get(5..7)?.parse().ok()));
    }
    let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=1e11).contains(s))?;
    Some(((seconds * 1e6) as u64, None))
}

/// A number of GPUs as nodes x GPUs per node.
pub fn gang(gpus: u32) -> (u32, u32) {
    let nodes = gpus.div_ceil(NODE_GPUS).max(1);
    (nodes, gpus.div_ceil(nodes))
}

/// Reads the table of clusters and the table of jobs. A row that makes no sense is counted and left out.
pub fn read(jobs: &Path, nodes: &Path, months: &Months) -> Result<Trace, String> {
    let mut sites = Vec::new();
    for (n, row) in rows(nodes, &[3, 4], &[5])?.into_iter().enumerate() {
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| (1..=100_000).contains(n));
        let per_node = if row[2].is_empty() { Some(NODE_GPUS) } else { number(&row[2]) };
        let (Some(count), Some(gpus)) = (number(&row[1]), per_node) else {
            return Err(format!("{}: row {}: not a number of nodes", nodes.display(), n + 2));
        };
        sites.push(Site { name: row[0].clone(), nodes: count, gpus });
    }
    let home: BTreeMap<&str, usize> = sites.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
    let mut left_out: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for row in rows(jobs, &[0, 1, 2, 3], &[])? {
        let taken = (|| {
            let (at, month) = moment(&row[0]).ok_or("no time")?;
            let home = *home.get(row[3].as_str()).ok_or("a cluster without nodes")?;
            if month.is_some_and(|m| !months.is_empty() && !months.contains(&m)) {
                return Err("another month");
            }
            let runs = row[1].parse::<f64>().ok().filter(|s| *s > 0.0 && *s < 1e9).ok_or("no duration")?;
            let gpus = row[2].parse::<f64>().ok().filter(|n| *n >= 1.0 && *n <= 1e5).ok_or("no GPUs")?;
            let (nodes, gpus) = gang(gpus as u32);
            let job =
                Job { at: Instant(at), runs: Span((runs * 1e6) as u64), nodes, gpus, limit: None, home };
            if sites.iter().any(|site| site.fits(&job)) { Ok(job) } else { Err("larger than any cluster") }
        })();
        match taken {
            Ok(job) => found.push(job),
            Err(why) => *left_out.entry(why).or_default() += 1,
        }
    }
    if found.is_empty() {
        return Err(format!(
            "{}: no job is left (left out: {left_out:?}); --months all takes every month",
            jobs.display()
        ));
    }
    Ok(Trace { sites, jobs: found, left_out, load_found: 0.0 })
}

/// A trace as real ones are: most jobs want one GPU and run for minutes, some for days; users come by day and
/// in bursts; clusters are used very unevenly. `scale` is the size of the world: 1 is 20 nodes and 3,000 jobs.
pub fn generate(seed: u64, jobs: usize, nodes: &[u32]) -> Trace {
    let mut rng = Rng::new(seed ^ 0x7072_6163_6500);
    let sites: Vec<Site> = nodes
        .iter()
        .enumerate()
        .map(|(i, n)| Site { name: format!("c{i:02}"), nodes: *n, gpus: NODE_GPUS })
        .collect();
    // The share of each cluster's users in all jobs: few have most.
    let weights: Vec<f64> = sites.iter().map(|s| s.gpus_total() as f64 * (0.1 + 2.0 * rng.unit())).collect();
    let whole: f64 = weights.iter().sum();
    let normal = |rng: &mut Rng| {
        let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * rng.unit()).cos()
    };
    let mut at = 0.0;
    let mut left_in_burst = 0;
    let mut burst_home = 0;
    let mut out = Vec::new();
    while out.len() < jobs {
        let mut x = rng.unit() * whole;
        let drawn = weights.iter().position(|w| {
            x -= w;
            x < 0.0
        });
        let mut home = drawn.unwrap_or(0);
        if left_in_burst > 0 {
            left_in_burst -= 1;
            home = burst_home;
            at += -(1.0 - rng.unit()).ln() * 0.5;
        } else {
            let day = 1.0 + 0.6 * (at / 86_400.0 * std::f64::consts::TAU).sin();
            at += -(1.0 - rng.unit()).ln() * 60.0 / day;
            if rng.chance(0.02) {
                (left_in_burst, burst_home) = (5 + rng.below(60), home);
            }
        }
        let wanted = match rng.below(1000) {
            0..=880 => 1,
            881..=920 => 2,
            921..=960 => 4,
            961..=990 => 8,
            _ => 16,
        };
        let runs = (1_400.0 * (1.8 * normal(&mut rng)).exp()).clamp(1.0, 400_000.0);
        let (nodes, gpus) = gang(wanted);
        let job = Job {
            at: Instant((at * 1e6) as u64),
            runs: Span((runs * 1e6) as u64),
            nodes,
            gpus,
            limit: None,
            home,
        };
        if sites[home].fits(&job) {
            out.push(job);
        }
    }
    Trace { sites, jobs: out, left_out: BTreeMap::new(), load_found: 0.0 }
}

/// What users state as the longest run of a job, so that short ones can be let through in front of what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Limits {
    /// Nothing, as in the traces.
    #[default]
    None,
    /// The next of 1 h, 4 h, 12 h, 1 d, 3 d, 7 d, ..., as clusters have partitions.
    Classes,
}

/// How the offered load is brought to what is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// Every cluster has fewer (or more) nodes: jobs come when they came and run as long as they ran.
    #[default]
    Nodes,
    /// Jobs come closer together (or further apart).
    Arrivals,
}

const CLASSES_H: [u64; 8] = [1, 4, 12, 24, 72, 168, 720, 2_400];

impl Trace {
    pub fn state_limits(&mut self, limits: Limits) {
        for job in &mut self.jobs {
            let class = CLASSES_H.iter().map(|h| Span::secs(h * 3_600)).find(|class| *class > job.runs);
            job.limit = class.filter(|_| limits == Limits::Classes);
        }
    }

    /// Takes the first jobs only and, so that they still meet each other, as large a share of every cluster's nodes
    /// (but all that its own jobs need).
    pub fn limit(&mut self, limit: usize) {
        self.jobs.sort_by_key(|j| j.at);
        let all = self.jobs.len();
        if limit >= all {
            return;
        }
        self.jobs.truncate(limit);
        for (i, site) in self.sites.iter_mut().enumerate() {
            let share = (u64::from(site.nodes) * limit as u64).div_ceil(all as u64);
            let most = self.jobs.iter().filter(|j| j.home == i).map(|j| j.nodes).max().unwrap_or(1);
            site.nodes = u32::try_from(share).unwrap_or(u32::MAX).clamp(most.min(site.nodes), site.nodes);
        }
    }

    /// Cuts the clusters into so many, each node staying whole; a cluster's jobs go to its parts in turn.
    pub fn cut(&mut self, clusters: usize) -> Result<(), String> {
        let total: u64 = self.sites.iter().map(|s| u64::from(s.nodes)).sum();
        if clusters < self.sites.len() || clusters as u64 > total {
            return Err(format!("--clusters is {} to {total} here", self.sites.len()));
        }
        // The largest remainder: every cluster gets its share of parts, and at least one.
        let share = |s: &Site| f64::from(s.nodes) * clusters as f64 / total as f64;
        let mut parts: Vec<u32> =
            self.sites.iter().map(|s| (share(s).floor() as u32).clamp(1, s.nodes)).collect();
        while parts.iter().sum::<u32>() as usize != clusters {
            let more = (parts.iter().sum::<u32>() as usize) < clusters;
            let lack = |i: &usize| share(&self.sites[*i]) - f64::from(parts[*i]);
            let open = (0..parts.len())
                .filter(|&i| if more { parts[i] < self.sites[i].nodes } else { parts[i] > 1 });
            let next = if more {
                open.max_by(|a, b| lack(a).total_cmp(&lack(b)))
            } else {
                open.min_by(|a, b| lack(a).total_cmp(&lack(b)))
            };
            let Some(i) = next else { break };
            parts[i] = if more { parts[i] + 1 } else { parts[i] - 1 };
        }
        let mut sites = Vec::new();
        let mut first = Vec::new();
        for (site, &n) in self.sites.iter().zip(&parts) {
            first.push(sites.len());
            for part in 0..n {
                let nodes = site.nodes / n + u32::from(part < site.nodes % n);
                sites.push(Site { name: format!("{}-{part}", site.name), nodes, gpus: site.gpus });
            }
        }
        let mut turn = vec![0usize; self.sites.len()];
        let largest: Vec<Site> = sites.clone();
        let mut lost = 0;
        self.jobs.retain_mut(|job| {
            let (from, n) = (first[job.home], parts[job.home] as usize);
            turn[job.home] += 1;
            let all = (0..n).map(|k| from + (turn[job.home] + k) % n);
            // A gang goes to a part that can hold it; one that no part of its own holds, to any that can.
            let fits = |i: &usize| largest[*i].fits(job);
            match all.clone().find(fits).or_else(|| (0..largest.len()).find(fits)) {
                Some(home) => job.home = home,
                None => {
                    lost += 1;
                    return false;
                }
            }
            true
        });
        if lost > 0 {
            *self.left_out.entry("larger than any part").or_default() += lost;
        }
        self.sites = sites;
        Ok(())
    }

    /// Offered GPU time per GPU time there.
    fn load(&self) -> f64 {
        let (Some(first), Some(last)) = (self.jobs.first(), self.jobs.last()) else { return 0.0 };
        let window = last.at.since(first.at).as_secs_f64().max(1.0);
        let gpus: u64 = self.sites.iter().map(Site::gpus_total).sum();
        self.jobs.iter().map(Job::work).sum::<f64>() / (gpus as f64 * window)
    }

    /// Brings the offered load to this. What a job needs and how long it runs stay as they are.
    pub fn scale(&mut self, load: f64, by: Scale) -> Result<(), String> {
        self.jobs.sort_by_key(|j| j.at);
        self.load_found = self.load();
        if by == Scale::Nodes {
            self.fewer_nodes(self.load_found / load);
            let sites = self.sites.clone();
            let before = self.jobs.len();
            self.jobs.retain(|job| sites.iter().any(|site| site.fits(job)));
            if self.jobs.len() < before {
                *self.left_out.entry("larger than any cluster that is left").or_default() +=
                    before - self.jobs.len();
            }
        }
        let Some(first) = self.jobs.first().map(|j| j.at) else { return Err("no jobs".into()) };
        // By nodes only what whole nodes leave over; else all of it.
        let factor = self.load() / load;
        for job in &mut self.jobs {
            let after = (job.at.since(first).0 as f64 * factor) as u64;
            job.at = Instant(0) + SETTLED + Span(after);
        }
        Ok(())
    }

    /// Moves each arrival by lot, to no more than so much later: the same load, and another draw of all that small changes
    /// decide.
    pub fn jitter(&mut self, seed: u64, most: Span) {
        let mut rng = Rng::new(seed ^ 0x6a69_7474_6572);
        if most > Span::ZERO {
            self.jobs.iter_mut().for_each(|job| job.at = job.at + Span(rng.below(most.0)));
            self.jobs.sort_by_key(|j| j.at);
        }
    }

    /// So many times the nodes, each cluster its share, and at least one.
    fn fewer_nodes(&mut self, times: f64) {
        let share = |n: u32| f64::from(n) * times;
        let total: u32 = self.sites.iter().map(|s| s.nodes).sum();
        let wanted = (share(total).round() as u32).max(self.sites.len() as u32);
        let shares: Vec<f64> = self.sites.iter().map(|s| share(s.nodes)).collect();
        let mut nodes: Vec<u32> = shares.iter().map(|s| (s.floor() as u32).max(1)).collect();
        while nodes.iter().sum::<u32>() < wanted {
            let lack = |i: &usize| shares[*i] - f64::from(nodes[*i]);
            let Some(i) = (0..nodes.len()).max_by(|a, b| lack(a).total_cmp(&lack(b))) else { break };
            nodes[i] += 1;
        }
        for (site, n) in self.sites.iter_mut().zip(nodes) {
            site.nodes = n;
        }
    }
}
