//! `logs` and `events`: what comes as a stream.

use std::io::Write;
use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use super::args::{EventsArgs, LogsArgs};
use super::output::plain;
use super::{Asking, CommandResult, Failure, Reply, exit};
use crate::surface::api::escape;
use crate::surface::client::ClientFailure;
use crate::surface::documents::{EventDocument, JobDocument};

const HEAD_WITHIN: Duration = Duration::from_secs(40);
/// Between two looks at a job that has no attempt to follow.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The rest of broken logs of a job that has ended is asked for so often.
const TRIES_AT_END: u32 = 20;
/// Bytes that `logs --json` collects.
const JSON_BYTES_MAX: usize = 32 << 20;

fn path(args: &LogsArgs, epoch: Option<u64>, follow: bool) -> String {
    let mut path = format!("/v1/jobs/{}/logs?follow={follow}", escape(&args.id));
    let numbers = [("rank", args.rank.map(u64::from)), ("tail", args.tail), ("epoch", epoch)];
    for (name, value) in numbers {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={value}"));
        }
    }
    if let Some(stream) = &args.stream {
        path.push_str(&format!("&stream={stream}"));
    }
    path
}

/// `starling logs ID`
pub async fn logs(asking: &Asking, mut args: LogsArgs) -> CommandResult {
    if let Some(index) = args.index.take() {
        args.id = format!("{}.{index}", args.id);
    }
    if asking.json {
        return logs_json(asking, &args).await;
    }
    if !args.follow {
        copy(asking, &path(&args, args.epoch, false), &mut 0).await?;
        return Ok(Reply::new(&Value::Null, String::new()));
    }
    let mut shown: Option<u64> = None;
    // What was printed of an epoch whose logs broke off, in bytes, and how often it was tried after the job's end.
    let mut part: Option<(u64, u64)> = None;
    let mut tries = 0;
    loop {
        let job: JobDocument = asking.client.get(&format!("/v1/jobs/{}", escape(&args.id))).await?;
        let newest = job.attempts.last().map(|a| a.epoch);
        let next = args.epoch.or(newest).filter(|epoch| shown.is_none_or(|s| *epoch > s));
        if let Some(epoch) = next {
            if shown.is_some() || part.is_some_and(|(of, _)| of != epoch) {
                let cluster = job.attempts.last().map(|a| a.cluster.to_string()).unwrap_or_default();
                eprintln!("-- goes on at {cluster}, epoch {epoch}");
            }
            let before = part.filter(|(of, _)| *of == epoch);
            let mut printed = before.map_or(0, |(_, bytes)| bytes);
            match copy(asking, &path(&args, Some(epoch), true), &mut printed).await {
                Ok(()) => (shown, part) = (Some(epoch), None),
                // An attempt may end without a line, or its cluster may be away: the rest is asked for until the job has
                // gone on elsewhere, or has ended and nobody has it.
                Err(Failure::Client(ClientFailure::Broken(..) | ClientFailure::Api(..)))
                    if !job.done || before.is_some() && tries < TRIES_AT_END =>
                {
                    if before.is_none() {
                        eprintln!("-- the logs of epoch {epoch} broke off");
                    }
                    part = Some((epoch, printed));
                    tries += u32::from(job.done);
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Err(error) => return Err(error),
            }
        } else if job.done || args.epoch.is_some() {
            return Ok(Reply::new(&Value::Null, String::new()));
        } else {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Prints an answer after its first `printed` bytes, and counts what it prints there.
async fn copy(asking: &Asking, path: &str, printed: &mut u64) -> Result<(), Failure> {
    let mut answer = asking.client.open(Method::GET, path, None, &[], HEAD_WITHIN).await?;
    let mut out = std::io::stdout();
    let mut skip = *printed;
    while let Some(chunk) = answer.chunk().await? {
        let known = usize::try_from(skip).unwrap_or(usize::MAX).min(chunk.len());
        let chunk = &chunk[known..];
        (skip, *printed) = (skip - known as u64, *printed + chunk.len() as u64);
        // A reader that went away (`| head`) ends it without a word.
        if out.write_all(chunk).and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(())
}

async fn logs_json(asking: &Asking, args: &LogsArgs) -> CommandResult {
    let mut answer =
        asking.client.open(Method::GET, &path(args, args.epoch, args.follow), None, &[], HEAD_WITHIN).await?;
    let mut bytes = Vec::new();
    let mut cut = false;
    while let Some(chunk) = answer.chunk().await? {
        if bytes.len() + chunk.len() > JSON_BYTES_MAX {
            cut = true;
            break;
        }
        bytes.extend_from_slice(&chunk);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(Reply::new(&json!({ "id": args.id, "lines": lines, "truncated": cut }), String::new()))
}

/// `starling events`. With `--json` every event is a document on a line of its own.
pub async fn events(asking: &Asking, args: EventsArgs) -> CommandResult {
    let mut path = "/v1/events".to_owned();
    let mut mark = '?';
    for (name, value) in [("job", &args.job), ("kind", &args.kind)] {
        if let Some(value) = value {
            path.push_str(&format!("{mark}{name}={}", escape(value)));
            mark = '&';
        }
    }
    let mut answer = asking.client.open(Method::GET, &path, None, &[], HEAD_WITHIN).await?;
    let mut lines = Lines::default();
    let mut seen = 0;
    while let Some(chunk) = answer.chunk().await? {
        for line in lines.push(&chunk) {
            let Some(data) = line.strip_prefix("data:") else { continue };
            let Ok(event) = serde_json::from_str::<EventDocument>(data.trim()) else { continue };
            let mut out = std::io::stdout();
            let text = if asking.json { data.trim().to_owned() } else { event_text(asking, &event) };
            seen += 1;
            if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() || args.count == Some(seen) {
                return Ok(Reply::new(&Value::Null, String::new()));
            }
        }
    }
    let end = Reply::new(&Value::Null, String::new());
    Ok(if args.count.is_some_and(|count| seen < count) { end.with_code(exit::UNREACHABLE) } else { end })
}

fn event_text(asking: &Asking, event: &EventDocument) -> String {
    let job = event.job.map_or_else(|| " ".repeat(8), |job| job.short());
    format!("{} {job} {}", asking.style.bold(&format!("{:<20}", plain(&event.kind))), plain(&event.text))
}

/// Whole lines out of pieces; a line that never ends is dropped.
#[derive(Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    const MAX: usize = 256 * 1024;

    pub fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut out = Vec::new();
        while let Some(at) = self.rest.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=at).collect();
            out.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        if self.rest.len() > Self::MAX {
            self.rest.clear();
        }
        out
    }
}
