//! `starling watch`: one job, until it has ended.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::args::WatchArgs;
use super::jobs::{attempts_table, staging_lines};
use super::output::{Style, brief, plain};
use super::submit::code_of;
use super::{Asking, CommandResult, Reply, exit};
use crate::model::JobState;
use crate::model::staging::PartState;
use crate::surface::api::escape;
use crate::surface::client::ClientFailure;
use crate::surface::documents::{JobDocument, WhyDocument, wall_now};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A job that waits is asked why so often.
const WHY_EVERY: Duration = Duration::from_secs(5);
/// A peer that goes away for so many looks in a row (an upgrade, a failure) does not end the watch.
const MISSES_MAX: u32 = 120;
/// Attempts that are shown.
const ATTEMPTS: usize = 8;
/// Datasets and images that are shown.
const STAGING: usize = 6;

/// What is known of the job.
struct Seen {
    job: JobDocument,
    /// Why it waits, where its state's own sentence says less.
    why: Option<String>,
    logs: Vec<String>,
    /// Since when, and why, nothing newer is known.
    trouble: Option<(u64, String)>,
}

/// `starling watch ID`
pub async fn watch(asking: &Asking, args: WatchArgs) -> CommandResult {
    let path = format!("/v1/jobs/{}", escape(&args.id));
    let job: JobDocument = asking.client.get(&path).await?;
    let mut seen = Seen { job, why: None, logs: Vec::new(), trouble: None };
    let term = console::Term::stdout();
    let draws = std::io::stdout().is_terminal() && !asking.json;
    let deadline = args.timeout.map(|t| Instant::now() + t.to_std());
    let (mut drawn, mut said, mut misses, mut why_at) = (0, None, 0, None::<Instant>);
    loop {
        if draws || seen.job.done {
            look_at_logs(asking, &args, &mut seen).await;
        }
        let waits = seen.job.state == JobState::Pending && seen.trouble.is_none();
        if waits && why_at.is_none_or(|at| at.elapsed() >= WHY_EVERY) {
            why_at = Some(Instant::now());
            let why = asking.client.get::<WhyDocument>(&format!("{path}/why")).await;
            seen.why = why.ok().map(|w| w.summary);
        }
        if !waits {
            (seen.why, why_at) = (None, None);
        }
        let mut out = std::io::stdout();
        let written = if draws {
            let (rows, columns) = term.size();
            let text = block(asking.style, &seen, wall_now().0, (columns.into(), rows.into()));
            let cleared = term.clear_last_lines(drawn);
            drawn = text.lines().count();
            cleared.and_then(|()| out.write_all(text.as_bytes()))
        } else {
            // Another state of a part is a line of its own; more bytes of it are not.
            let parts = seen.job.staging.iter().flat_map(|s| &s.parts);
            let parts: Vec<PartState> = parts.map(|p| p.state).collect();
            let now =
                (seen.job.state, seen.job.reason.clone(), seen.job.epoch, seen.trouble.is_some(), parts);
            let changed = said.as_ref() != Some(&now);
            said = Some(now);
            if changed { writeln!(out, "{}", line(asking, &seen)) } else { Ok(()) }
        };
        // A reader that went away (`| head`) ends it without a word.
        if written.and_then(|()| out.flush()).is_err() {
            return Ok(Reply::new(&Value::Null, String::new()));
        }
        if seen.job.done {
            let last = if draws || asking.json { String::new() } else { tail(&seen) };
            return Ok(Reply::new(&Value::Null, last).with_code(code_of(seen.job.state)));
        }
        if deadline.is_some_and(|d| Instant::now() >= d) {
            return Ok(Reply::new(&Value::Null, String::new()).with_code(exit::UNKNOWN));
        }
        tokio::time::sleep(deadline.map_or(LOOK_EVERY, |d| d.duration_since(Instant::now()).min(LOOK_EVERY)))
            .await;
        match asking.client.get(&path).await {
            Ok(job) => (seen.job, seen.trouble, misses) = (job, None, 0),
            Err(
                error @ (ClientFailure::Unreachable(..)
                | ClientFailure::Broken(..)
                | ClientFailure::Api(503 | 504, _)),
            ) if misses < MISSES_MAX => {
                misses += 1;
                let since = seen.trouble.as_ref().map_or(wall_now().0, |(at, _)| *at);
                seen.trouble = Some((since, error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn look_at_logs(asking: &Asking, args: &WatchArgs, seen: &mut Seen) {
    let Some(last) = seen.job.attempts.last().filter(|a| a.started_at_ms.is_some() && args.lines > 0) else {
        return;
    };
    let path =
        format!("/v1/jobs/{}/logs?follow=false&tail={}&epoch={}", escape(&args.id), args.lines, last.epoch);
    // What was read last stays while its cluster cannot be asked.
    if let Ok(text) = asking.client.text(&path).await {
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(args.lines);
        seen.logs = lines[from..].iter().map(|l| plain(l)).collect();
    }
}

/// The state in one sentence.
fn sentence(job: &JobDocument, why: Option<&str>, now: u64) -> String {
    let since = brief(now.saturating_sub(job.submitted_at_ms));
    let running =
        job.attempts.last().and_then(|a| a.started_at_ms).filter(|_| job.state == JobState::Running);
    let age = running.map_or_else(
        || format!("submitted {since} ago"),
        |at| format!("for {}, submitted {since} ago", brief(now.saturating_sub(at))),
    );
    match job.finished_at_ms {
        Some(at) => {
            format!("{}, after {}", plain(&job.reason), brief(at.saturating_sub(job.submitted_at_ms)))
        }
        None => format!("{}, {age}", plain(why.unwrap_or(&job.reason))),
    }
}

/// What a terminal shows, never wider nor higher than it is.
fn block(style: Style, seen: &Seen, now: u64, size: (usize, usize)) -> String {
    let (job, columns) = (&seen.job, size.0.max(20));
    let cut = |text: &str| console::truncate_str(text, columns - 1, "…").into_owned();
    let state = style.state(job.state.as_str());
    let mut lines = vec![
        format!("{} {} {state}", job.id.short(), style.bold(&plain(&job.name))),
        sentence(job, seen.why.as_deref(), now),
    ];
    lines.extend(staging_lines(job.staging.as_ref(), now).take(STAGING).map(|text| format!("  {text}")));
    if let Some((since, why)) = &seen.trouble {
        let age = brief(now.saturating_sub(*since));
        lines.push(
            style
                .state_as("lost", "lost")
                .replace("lost", &format!("nothing newer for {age}: {}", plain(why))),
        );
    }
    if !job.attempts.is_empty() {
        lines.push(String::new());
        let from = job.attempts.len().saturating_sub(ATTEMPTS);
        lines.extend(attempts_table(style, &job.attempts[from..], now).lines().map(str::to_owned));
    }
    let room = size.1.max(4).saturating_sub(lines.len() + 3);
    if !seen.logs.is_empty() && room > 0 {
        lines.push(String::new());
        let from = seen.logs.len().saturating_sub(room);
        lines.extend(seen.logs[from..].iter().map(|l| style.dim(l)));
    }
    lines.truncate(size.1.max(4) - 1);
    lines.iter().map(|l| cut(l) + "\n").collect()
}

/// A line for each change, where no terminal is.
fn line(asking: &Asking, seen: &Seen) -> String {
    let job = &seen.job;
    if asking.json {
        return serde_json::to_string(job).unwrap_or_default();
    }
    let cluster = job.cluster.as_ref().map(|c| format!(" at {c}")).unwrap_or_default();
    let age = brief(wall_now().0.saturating_sub(job.submitted_at_ms));
    let word = asking.style.state(job.state.as_str());
    match &seen.trouble {
        Some((_, why)) => format!("{age:>5}  not known: {}", plain(why)),
        None => {
            let staging: String =
                staging_lines(job.staging.as_ref(), wall_now().0).map(|t| format!("; {t}")).collect();
            format!("{age:>5}  {word}{cluster}, attempt {}: {}{staging}", job.epoch, plain(&job.reason))
        }
    }
}

/// The last lines of its logs, once, at the end.
fn tail(seen: &Seen) -> String {
    seen.logs.iter().map(|l| format!("  {l}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::surface::fake::Fake;

    fn seen(close: Option<i32>) -> Seen {
        let fake = Fake::new("alpha");
        let id = fake.put(Fake::spec("name: training\nrun: [\"true\"]\n"));
        fake.place(id, "alpha");
        if let Some(code) = close {
            fake.close(id, code);
        }
        let record = fake.state.lock().expect("state").records[&id].clone();
        let logs = (0..100).map(|n| format!("step {n} {}", "x".repeat(300))).collect();
        Seen { job: JobDocument::new(&record, false), why: None, logs, trouble: None }
    }

    #[test]
    fn a_block_fits_its_terminal_and_says_it_all() {
        for size in [(80, 24), (200, 60), (20, 4), (1, 1), (40, 10)] {
            let mut seen = seen(None);
            seen.trouble = Some((61_000, "no peer answers at unix:/run/x\u{1b}[2J".into()));
            for colour in [true, false] {
                let text = block(Style { colour }, &seen, 62_100, size);
                assert!(text.lines().count() < size.1.max(5), "{size:?}:\n{text}");
                let widest = text.lines().map(console::measure_text_width).max().unwrap_or(0);
                assert!(widest < size.0.max(21), "{size:?}: {widest}\n{text}");
                assert!(!text.contains("\u{1b}[2J"));
            }
        }
        let text = block(Style { colour: false }, &seen(None), 62_100, (80, 24));
        for part in ["training running", "runs at alpha, for 60s, submitted 61s ago", "EPOCH", "step 99"] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn the_end_is_a_sentence_too() {
        let text = block(Style { colour: false }, &seen(Some(3)), 99_000, (80, 24));
        assert!(text.contains("training failed\nexited with 3 at alpha, after 1s\n"), "{text}");
    }
}
