//! Job traces of real clusters, to be replayed: read from CSV by column names, or made up alike.

use std::io::{self, Read};

use super::input::{show, words};
use super::timestamp;
use crate::base::{Rng, Span};

/// Bytes of a trace file.
pub const BYTES_MAX: u64 = 256 << 20;
/// Jobs of a trace.
pub const JOBS_MAX: usize = 1_000_000;
/// Bad rows that are described; more are counted only.
pub const BAD_ROWS_MAX: usize = 100;
/// GPUs of one job.
pub const GPUS_MAX: u32 = 65_536;
/// Longest job: ten years.
const DURATION_SECS_MAX: f64 = 315_360_000.0;

/// Columns that are read, and the names each may have, best first.
const COLUMNS: [(&str, &[&str]); 4] = [
    (
        "timestamp",
        &["timestamp", "submit_time", "submitted_time", "submit", "arrival_time", "time", "start_time"],
    ),
    ("duration", &["duration", "duration_s", "run_time", "runtime"]),
    ("num_gpus", &["num_gpus", "gpus", "gpu_num", "num_gpu", "gpu_count"]),
    ("cluster", &["cluster", "vc", "virtual_cluster", "group", "queue"]),
];

/// One job of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceJob {
    /// When it was submitted, from the first job on.
    pub at: Span,
    /// How long it ran.
    pub duration: Span,
    /// GPUs over all nodes.
    pub gpus: u32,
    /// Who it belonged to: a virtual cluster.
    pub group: String,
}

/// A row that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRow {
    /// Its line in the file, from 1.
    pub line: u64,
    /// What is wrong.
    pub reason: String,
}

/// A trace that was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// Jobs by time.
    pub jobs: Vec<TraceJob>,
    /// The first rows that were left out.
    pub bad: Vec<BadRow>,
    /// How many were left out in all.
    pub bad_count: u64,
}

/// Why a trace cannot be used. Nothing was submitted.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A column is not there.
    #[error("the trace has no column {want} (or {others}); it has {have}: give it a header line")]
    NoColumn {
        /// The column.
        want: &'static str,
        /// Its other names.
        others: String,
        /// The header that was found.
        have: String,
    },
    /// Not one row could be used.
    #[error("the trace has no usable row; {bad} were left out{}", first.as_ref().map_or(String::new(), |r| format!(", the first on line {}: {}", r.line, r.reason)))]
    NoJobs {
        /// Rows left out.
        bad: u64,
        /// The first of them.
        first: Option<BadRow>,
    },
    /// More than is read.
    #[error("the trace has more than {JOBS_MAX} jobs or {BYTES_MAX} bytes: cut it")]
    TooLarge,
    /// The file could not be read.
    #[error("the trace cannot be read: {0}")]
    Read(#[from] io::Error),
}

/// Reads a trace: a header line, then one job a row, in any order. Bad rows are left out and named.
pub fn read_trace(input: impl Read) -> Result<Trace, TraceError> {
    read_up_to(input, BYTES_MAX)
}

fn read_up_to(input: impl Read, bytes_max: u64) -> Result<Trace, TraceError> {
    let mut limited = input.take(bytes_max.saturating_add(1));
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(&mut limited);
    let columns = columns(reader.byte_headers().map_err(read_error)?)?;
    let mut trace = Trace::default();
    let mut rows: Vec<(i64, TraceJob)> = Vec::new();
    let mut row = csv::ByteRecord::new();
    while reader.read_byte_record(&mut row).map_err(read_error)? {
        if row.len() == 1 && row[0].is_empty() {
            continue;
        }
        match job(&row, &columns) {
            Ok(job) if rows.len() < JOBS_MAX => rows.push(job),
            Ok(_) => return Err(TraceError::TooLarge),
            Err(reason) => {
                trace.bad_count += 1;
                if trace.bad.len() < BAD_ROWS_MAX {
                    let line = row.position().map_or(0, csv::Position::line);
                    trace.bad.push(BadRow { line, reason });
                }
            }
        }
    }
    drop(reader);
    if limited.limit() == 0 {
        return Err(TraceError::TooLarge);
    }
    // A stable sort: rows of one second stay in the file's order.
    rows.sort_by_key(|(at, _)| *at);
    let Some(first) = rows.first().map(|(at, _)| *at) else {
        return Err(TraceError::NoJobs { bad: trace.bad_count, first: trace.bad.into_iter().next() });
    };
    trace.jobs = rows
        .into_iter()
        .map(|(at, job)| TraceJob { at: Span::millis(u64::try_from(at - first).unwrap_or(0)), ..job })
        .collect();
    Ok(trace)
}

fn read_error(e: csv::Error) -> TraceError {
    TraceError::Read(match e.into_kind() {
        csv::ErrorKind::Io(e) => e,
        other => io::Error::other(format!("{other:?}")),
    })
}

fn columns(header: &csv::ByteRecord) -> Result<[usize; 4], TraceError> {
    let clean = |cell: &[u8]| {
        String::from_utf8_lossy(cell)
            .trim_start_matches('\u{feff}')
            .trim()
            .to_ascii_lowercase()
            .replace([' ', '-'], "_")
    };
    let names: Vec<String> = header.iter().take(256).map(clean).collect();
    let mut out = [0; 4];
    for (place, (want, aliases)) in out.iter_mut().zip(COLUMNS) {
        let found = aliases.iter().find_map(|alias| names.iter().position(|name| name == alias));
        *place = found.ok_or_else(|| TraceError::NoColumn {
            want,
            others: aliases[1..].join(", "),
            have: show(&names.join(",")),
        })?;
    }
    Ok(out)
}

/// One row: its time in milliseconds, and the job without it.
fn job(row: &csv::ByteRecord, columns: &[usize; 4]) -> Result<(i64, TraceJob), String> {
    let cell = |i: usize| {
        let bytes = row
            .get(columns[i])
            .ok_or_else(|| format!("has {} cells: {} is missing", row.len(), COLUMNS[i].0))?;
        std::str::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8 text", COLUMNS[i].0))
    };
    let wrong = |i: usize, text: &str, want: &str| format!("{} {}: {want}", COLUMNS[i].0, show(text));

    let text = cell(0)?;
    let seconds = |n: f64| (0.0..=1e11).contains(&n).then_some((n * 1e3) as i64);
    let dated = timestamp::parse(text).and_then(|at| i64::try_from(at.0).ok());
    let at = dated.or_else(|| text.parse::<f64>().ok().and_then(seconds));
    let at = at.ok_or_else(|| wrong(0, text, "must be a date such as 2017-10-09 07:01:55, or seconds"))?;

    let text = cell(1)?;
    let duration = text.parse::<f64>().ok().filter(|d| (0.0..=DURATION_SECS_MAX).contains(d));
    let duration = duration.ok_or_else(|| wrong(1, text, "must be seconds, at most ten years"))?;

    let text = cell(2)?;
    // Some exports write counts as 8.0.
    let gpus = text.strip_suffix(".0").unwrap_or(text).parse::<u32>().ok().filter(|n| *n <= GPUS_MAX);
    let gpus = gpus.ok_or_else(|| wrong(2, text, "must be a whole number from 0 to 65536"))?;

    let text = cell(3)?;
    if !words::place(text) {
        return Err(wrong(3, text, words::PLACE));
    }
    let duration = Span((duration * 1e6) as u64);
    Ok((at, TraceJob { at: Span::ZERO, duration, gpus, group: text.to_owned() }))
}

/// How often each number of GPUs is asked for in a large training cluster, in 82,247.
const GANGS: [(u32, u64); 10] = [
    (1, 76_627),
    (2, 1_818),
    (4, 1_870),
    (8, 1_643),
    (12, 7),
    (16, 199),
    (24, 7),
    (32, 67),
    (64, 6),
    (128, 3),
];
/// Shares up to which the quantiles below reach.
const SHARES: [f64; 10] = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0];
/// Quantiles of the duration in seconds, by size of the gang: 1, up to 4, up to 8, more.
const DURATIONS: [(u32, [f64; 10]); 4] = [
    (1, [1.0, 62.0, 122.0, 1_117.0, 2_716.0, 8_512.0, 19_137.0, 135_404.0, 868_927.0, 3_256_045.0]),
    (4, [2.0, 15.0, 21.0, 367.0, 45_476.0, 166_199.0, 233_725.0, 748_678.0, 2_416_865.0, 2_750_674.0]),
    (
        8,
        [
            1.0,
            216.0,
            1_871.0,
            23_683.0,
            173_288.0,
            352_409.0,
            525_631.0,
            1_066_894.0,
            2_658_784.0,
            4_628_226.0,
        ],
    ),
    (
        u32::MAX,
        [1.0, 69.0, 566.0, 21_137.0, 104_218.0, 252_560.0, 446_126.0, 1_152_387.0, 1_710_643.0, 1_710_643.0],
    ),
];
/// Quantiles of the exponential distribution with mean 1.
const GAPS: [f64; 10] = [0.0, 0.105, 0.288, 0.693, 1.386, 2.303, 2.996, 4.605, 6.908, 9.210];
/// Sizes of the groups, in 100.
const GROUPS: [(&str, u64); 8] = [
    ("vc-1", 50),
    ("vc-2", 20),
    ("vc-3", 12),
    ("vc-4", 9),
    ("vc-5", 3),
    ("vc-6", 2),
    ("vc-7", 2),
    ("vc-8", 2),
];

/// A value between the quantiles; only additions and products, so that every machine gets the same.
fn draw(rng: &mut Rng, quantiles: &[f64; 10]) -> f64 {
    let p = rng.unit();
    let i = SHARES.iter().rposition(|share| *share <= p).unwrap_or(0).min(SHARES.len() - 2);
    let part = (p - SHARES[i]) / (SHARES[i + 1] - SHARES[i]);
    quantiles[i] + part * (quantiles[i + 1] - quantiles[i])
}

fn weighted<T: Copy>(rng: &mut Rng, items: &[(T, u64)]) -> T {
    let mut rest = rng.below(items.iter().map(|(_, weight)| weight).sum());
    for (item, weight) in items {
        if rest < *weight {
            return *item;
        }
        rest -= weight;
    }
    items[0].0
}

/// Jobs like those of a large training cluster: mostly short and on one GPU, a few huge and for weeks.
/// `gap` is the mean time between two. The same seed gives the same jobs everywhere.
pub fn generate(seed: u64, count: usize, gap: Span) -> Vec<TraceJob> {
    let mut rng = Rng::new(seed);
    let mut at = Span::ZERO;
    (0..count.min(JOBS_MAX))
        .map(|i| {
            if i > 0 {
                at += Span((gap.0 as f64 * draw(&mut rng, &GAPS)) as u64);
            }
            let gpus = weighted(&mut rng, &GANGS);
            let (_, quantiles) = DURATIONS.iter().find(|(up_to, _)| gpus <= *up_to).unwrap_or(&DURATIONS[3]);
            let duration = Span::millis((draw(&mut rng, quantiles) * 1e3) as u64);
            TraceJob { at, duration, gpus, group: weighted(&mut rng, &GROUPS).to_owned() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_by_its_columns_and_sorted() {
        let csv = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 06:13:03,2951.5,8,2951.0,6214e9\n";
        let trace = read_trace(csv.as_bytes()).expect("good");
        assert_eq!(trace.bad_count, 0);
        assert_eq!(
            trace.jobs,
            [
                TraceJob {
                    at: Span::ZERO,
                    duration: Span::millis(2_951_500),
                    gpus: 8,
                    group: "6214e9".into()
                },
                TraceJob { at: Span::secs(2_932), duration: Span::secs(66), gpus: 1, group: "11cb48".into() },
            ]
        );
        let other = "\u{feff}VC, GPUs ,Submit Time,runtime\r\na,4.0,100,5\r\nb,0,90.5,1e2\r\n\r\n";
        let jobs = read_trace(other.as_bytes()).expect("good").jobs;
        assert_eq!((jobs[1].at, jobs[1].gpus, jobs[0].duration), (Span::millis(9_500), 4, Span::secs(100)));
    }

    #[test]
    fn bad_rows_are_named_and_left_out() {
        let csv = b"timestamp,duration,num_gpus,cluster\n1,2,3,a\nyesterday,2,3,a\n1,-5,3,a\n1,1e308,3,a\n1,2,99999999,a\n1,2,3,a b\n1,2\n1,2,3,\xff\n9,nan,3,a\n5,2,3,a\n";
        let trace = read_trace(&csv[..]).expect("good");
        assert_eq!((trace.jobs.len(), trace.bad_count), (2, 8));
        let lines: Vec<u64> = trace.bad.iter().map(|b| b.line).collect();
        assert_eq!(lines, [3, 4, 5, 6, 7, 8, 9, 10]);
        assert!(trace.bad[0].reason.contains("timestamp \"yesterday\""), "{:?}", trace.bad[0]);
        assert!(trace.bad[5].reason.contains("num_gpus is missing"), "{:?}", trace.bad[5]);
        let many = format!("time,duration,gpus,vc\n{}", "x,1,1,a\n".repeat(500));
        match read_trace(many.as_bytes()) {
            Err(TraceError::NoJobs { bad: 500, first: Some(row) }) => assert_eq!(row.line, 2),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_trace_is_said_to_be_none() {
        let e = read_trace(&b"a,b\n1,2\n"[..]).expect_err("no columns").to_string();
        assert!(e.contains("no column timestamp") && e.contains("submit_time"), "{e}");
        assert!(matches!(read_trace(&b""[..]), Err(TraceError::NoColumn { .. })));
        assert!(matches!(
            read_trace(&b"time,duration,gpus,vc\n"[..]),
            Err(TraceError::NoJobs { bad: 0, .. })
        ));
        assert!(read_trace(&b"\0\xff\n\"\n"[..]).is_err());
        let endless = b"time,duration,gpus,vc\n1,1,1,a\n".chain(io::repeat(b'\n'));
        assert!(matches!(read_up_to(endless, 1 << 20), Err(TraceError::TooLarge)));
    }

    #[test]
    fn made_up_jobs_look_like_real_ones() {
        let jobs = generate(7, 20_000, Span::secs(60));
        assert_eq!(jobs, generate(7, 20_000, Span::secs(60)));
        assert_ne!(jobs, generate(8, 20_000, Span::secs(60)));
        assert!(jobs.is_sorted_by_key(|j| j.at));
        let share =
            |test: &dyn Fn(&TraceJob) -> bool| jobs.iter().filter(|j| test(j)).count() as f64 / 20_000.0;
        assert!((share(&|j| j.gpus == 1) - 0.932).abs() < 0.01);
        assert!((share(&|j| j.gpus >= 8) - 0.0235).abs() < 0.005);
        assert!((share(&|j| j.duration < Span::secs(1_144)) - 0.5).abs() < 0.03);
        assert!(share(&|j| j.duration > Span::secs(254_884)) > 0.005, "a heavy tail");
        let mean = jobs[19_999].at.as_secs_f64() / 19_999.0;
        assert!((mean / 60.0 - 1.0).abs() < 0.1, "{mean}");
    }
}
