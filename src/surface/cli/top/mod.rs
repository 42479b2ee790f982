//! `starling top`: clusters, jobs and links, live, on a terminal of 80 by 24 and up, over the API alone.
//!
//! It asks again every two seconds, and sooner when the peer tells of an event. A peer that goes away is said to be
//! away, with the age of what is shown, until it answers again.

mod draw;
mod state;

use std::io::IsTerminal;
use std::time::Duration;

use axum::http::Method;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use serde_json::json;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use self::state::{Look, Screen, Seen};
use super::args::TopArgs;
use super::logs::Lines;
use super::{Asking, CommandResult, Failure, Reply};
use crate::surface::client::{Client, ClientFailure};
use crate::surface::documents::*;

/// Jobs that are asked for, the newest first.
const JOBS_MAX: usize = 500;
/// An event makes it look again, but no sooner than this after the last look.
const SOONEST: Duration = Duration::from_millis(500);
/// Between two tries for the stream of events.
const STREAM_AGAIN: Duration = Duration::from_secs(2);
/// Answers that may wait to be shown.
const ANSWERS: usize = 4;
/// Frames of `--once` are as wide as this where no terminal says otherwise.
const WIDTH: u16 = 100;
/// Rows of a frame of `--once`.
const ROWS_MAX: usize = 5_000;

/// `starling top`
pub async fn top(asking: &Asking, args: TopArgs) -> CommandResult {
    let peer: PeerDocument = asking.client.get("/v1/peer").await?;
    let first = look(&asking.client).await?;
    let mut seen = Seen::new(peer.name.to_string());
    seen.take(Ok(first), wall_now().0);
    if asking.json {
        let document = json!({
            "peer": seen.peer, "at_ms": seen.at_ms, "clusters": seen.look.clusters, "jobs": seen.look.jobs,
            "links": seen.look.links,
        });
        return Ok(Reply::new(&document, String::new()));
    }
    let mut screen = Screen::new(args.view.into());
    if args.once {
        let width = console::Term::stdout().size_checked().map_or(WIDTH, |(_, columns)| columns);
        let text = frame(&seen, &mut screen, width.clamp(60, 400)).map_err(|e| Failure::Io(e.to_string()))?;
        return Ok(Reply::new(&document_of(&seen), text));
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::usage("top needs a terminal", "give --once for one frame as text, or --json"));
    }
    live(asking, args, seen, screen).await
}

fn document_of(seen: &Seen) -> serde_json::Value {
    json!({ "peer": seen.peer, "at_ms": seen.at_ms })
}

async fn live(asking: &Asking, args: TopArgs, mut seen: Seen, mut screen: Screen) -> CommandResult {
    let every = args.every.to_std().max(SOONEST);
    let (keys, mut pressed) = mpsc::channel(64);
    // Ends with the process, which waits for nobody.
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if keys.blocking_send(event).is_err() {
                return;
            }
        }
    });
    let news = std::sync::Arc::new(Notify::new());
    let stream = tokio::spawn(listen(asking.client.clone(), news.clone()));
    let (answers, mut answered) = mpsc::channel(ANSWERS);
    let mut asked_at = Instant::now();
    let mut under_way = false;
    let mut due = asked_at + every;
    // It leaves the terminal as it was, also after a panic.
    let mut terminal = ratatui::try_init().map_err(|e| Failure::Io(e.to_string()))?;
    let mut ages = tokio::time::interval(Duration::from_secs(1));
    ages.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let ended = loop {
        if let Err(error) = terminal.draw(|frame| draw::draw(frame, &seen, &mut screen, wall_now().0)) {
            break Err(Failure::Io(error.to_string()));
        }
        tokio::select! { biased;
            event = pressed.recv() => match event {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => screen.key(&seen, key.code, key.modifiers),
                Some(_) => {}
                None => screen.done = true,
            },
            Some(answer) = answered.recv() => {
                seen.take(answer, wall_now().0);
                under_way = false;
                due = Instant::now() + every;
            }
            () = tokio::time::sleep_until(due), if !under_way => {
                under_way = true;
                asked_at = Instant::now();
                let (client, answers) = (asking.client.clone(), answers.clone());
                tokio::spawn(async move {
                    let found = look(&client).await.map_err(|e| e.to_string());
                    // Nobody waits for it when the command has ended.
                    let _ = answers.send(found).await;
                });
            }
            () = news.notified() => due = due.min(asked_at + SOONEST),
            _ = ages.tick() => {}
        }
        if screen.done {
            break Ok(());
        }
    };
    ratatui::restore();
    stream.abort();
    ended.map(|()| Reply::new(&serde_json::Value::Null, String::new()))
}

/// All three lists at once.
async fn look(client: &Client) -> Result<Look, ClientFailure> {
    let path = format!("/v1/jobs?limit={JOBS_MAX}");
    let (clusters, jobs, links) =
        tokio::join!(client.get("/v1/clusters"), client.get(&path), client.get("/v1/links"));
    Ok(Look { clusters: clusters?, jobs: jobs?, links: links? })
}

/// Says when the peer tells of an event; asks again when the stream breaks.
async fn listen(client: Client, news: std::sync::Arc<Notify>) {
    loop {
        let opened = client.open(Method::GET, "/v1/events", None, &[], Duration::from_secs(10)).await;
        if let Ok(mut answer) = opened {
            let mut lines = Lines::default();
            while let Ok(Some(chunk)) = answer.chunk().await {
                if lines.push(&chunk).iter().any(|line| line.starts_with("data:")) {
                    news.notify_one();
                }
            }
        }
        tokio::time::sleep(STREAM_AGAIN).await;
    }
}

/// One frame as text: as high as it has rows.
fn frame(seen: &Seen, screen: &mut Screen, width: u16) -> std::io::Result<String> {
    let rows = screen.table(seen, wall_now().0).rows.len().min(ROWS_MAX);
    let height = u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(draw::AROUND);
    let text = text_of(seen, screen, (width, height), wall_now().0, true)?;
    Ok(text.trim_end().to_owned() + "\n")
}

/// A frame on a terminal that is none.
fn text_of(
    seen: &Seen,
    screen: &mut Screen,
    size: (u16, u16),
    now_ms: u64,
    plain: bool,
) -> std::io::Result<String> {
    let wrong = |e: std::convert::Infallible| std::io::Error::other(e);
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).map_err(wrong)?;
    screen.plain = plain;
    terminal.draw(|frame| draw::draw(frame, seen, screen, now_ms)).map_err(wrong)?;
    let buffer = terminal.backend().buffer();
    let cell = |x, y| buffer.cell((x, y)).map_or(" ", |c| c.symbol());
    let line = |y: u16| (0..size.0).map(|x| cell(x, y)).collect::<String>().trim_end().to_owned() + "\n";
    Ok((0..size.1).map(line).collect())
}

#[cfg(test)]
mod tests;
