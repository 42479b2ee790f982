//! `top` on a screen of any size.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState};

use super::super::output::{brief, plain};
use super::state::{Cell, Screen, Seen, Shown, Tone, VIEWS, Wide};

/// Lines around the rows of a table: two above, its heading, two below.
pub const AROUND: u16 = 5;
/// A figure older than this is said to be.
const LATE_MS: u64 = 10_000;

const HELP: &[(&str, &str)] = &[
    ("1 2 3, tab", "clusters, jobs, links"),
    ("j k, arrows", "down, up; page keys, g and G for the ends"),
    ("s, r", "sort by the next column; the other way round"),
    ("/", "show only rows with this text; esc shows all"),
    ("q, esc", "leave"),
    ("", ""),
    ("bar", "# used  + held by grants  . free  x not reached"),
    ("use", "of the GPUs as measured; - where it cannot be"),
    ("news", "how long ago the cluster was heard"),
];

fn weak() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}
fn strong() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}
fn late() -> Style {
    Style::new().fg(Color::Red)
}

fn colour(word: &str) -> Style {
    Style::new().fg(match word {
        "alive" | "running" => Color::Green,
        "suspect" | "pending" | "placed" | "draining" => Color::Yellow,
        "lost" | "failed" => Color::Red,
        "succeeded" => Color::Cyan,
        _ => Color::Reset,
    })
}

/// One frame.
pub fn draw(frame: &mut Frame<'_>, seen: &Seen, screen: &mut Screen, now_ms: u64) {
    let shown = screen.table(seen, now_ms);
    let [head, body, detail, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(2),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(vec![summary(seen), tabs(seen, screen, &shown, now_ms)]), head);
    let at = screen.at(&shown.rows);
    let says = shown.rows.get(at).map(|r| r.detail.clone()).unwrap_or_default();
    rows(frame, body, screen, &shown, at);
    if !screen.plain {
        frame.render_widget(Paragraph::new(Line::styled(says, weak())), detail);
        frame.render_widget(Paragraph::new(footer(screen)), foot);
    }
    if screen.help {
        help(frame);
    }
}

fn summary(seen: &Seen) -> Line<'static> {
    let list = &seen.look.clusters.clusters;
    let alive: Vec<_> = list.iter().filter(|c| c.liveness == "alive").collect();
    let gpus = || alive.iter().flat_map(|c| c.gpus.values());
    let (total, free) = (gpus().map(|g| g.total).sum::<u64>(), gpus().map(|g| g.free).sum::<u64>());
    let running: u64 = alive.iter().map(|c| u64::from(c.running)).sum();
    let waiting = seen.look.jobs.jobs.iter().filter(|j| j.state.as_str() == "pending").count();
    let more = if seen.look.jobs.truncated { "+" } else { "" };
    Line::from(vec![
        Span::styled(format!("starling top at {}  ", plain(&seen.peer)), strong()),
        Span::raw(format!(
            "{} of {} peers alive  {free} of {total} GPUs free  {running} run  {waiting}{more} wait",
            alive.len(),
            list.len()
        )),
    ])
}

fn tabs(seen: &Seen, screen: &Screen, shown: &Shown, now_ms: u64) -> Line<'static> {
    let mut out: Vec<Span<'static>> = Vec::new();
    for (view, name) in VIEWS {
        let here = view == screen.view;
        let style = if here { Style::new().add_modifier(Modifier::REVERSED) } else { weak() };
        if !screen.plain {
            out.push(Span::styled(format!(" {name} "), style));
        } else if here {
            out.push(Span::raw(name.split_at(2).1));
        }
        out.push(Span::raw(if screen.plain { "" } else { " " }));
    }
    let turned = if screen.backwards { ", reversed" } else { "" };
    let count = shown.rows.len();
    let of = if count == shown.all { count.to_string() } else { format!("{count} of {}", shown.all) };
    out.push(Span::styled(format!(" {of} by {}{turned}  ", shown.by), weak()));
    out.push(warning(seen, now_ms).map_or_else(|| Span::raw(""), |text| Span::styled(text, late())));
    Line::from(out)
}

/// What the reader must know before the figures.
fn warning(seen: &Seen, now_ms: u64) -> Option<String> {
    let age = now_ms.saturating_sub(seen.at_ms);
    if let Some(trouble) = &seen.trouble {
        return Some(format!("figures of {} ago, trying again: {}", brief(age), plain(trouble)));
    }
    if age > LATE_MS {
        return Some(format!("figures of {} ago", brief(age)));
    }
    if seen.look.clusters.isolated {
        return Some("this peer reaches no other: all else is old".into());
    }
    let list = &seen.look.clusters.clusters;
    let dark: Vec<String> = list
        .iter()
        .filter(|c| c.liveness != "alive")
        .map(|c| format!("{} {}", plain(c.name.as_str()), c.liveness))
        .collect();
    let mute = &seen.look.jobs.unanswered;
    match (dark.is_empty(), mute.is_empty()) {
        (false, _) => Some(format!("not seen: {}", dark.join(", "))),
        (true, false) => {
            let names: Vec<&str> = mute.iter().map(|n| n.as_str()).collect();
            Some(format!("jobs are without those of {}", names.join(", ")))
        }
        (true, true) => None,
    }
}

fn rows(frame: &mut Frame<'_>, area: Rect, screen: &mut Screen, shown: &Shown, at: usize) {
    screen.room = usize::from(area.height.saturating_sub(1)).max(1);
    // The chosen row stays in sight; the rest scrolls no more than it must.
    screen.top = screen.top.min(at).max((at + 1).saturating_sub(screen.room));
    screen.top = screen.top.min(shown.rows.len().saturating_sub(screen.room));
    let widths: Vec<Constraint> = shown
        .heads
        .iter()
        .map(|(_, wide)| match wide {
            Wide::Cells(n) => Constraint::Length(*n),
            Wide::Share(n) => Constraint::Fill(*n),
        })
        .collect();
    let fixed: u16 = shown.heads.iter().map(|(_, w)| if let Wide::Cells(n) = w { *n } else { 0 }).sum();
    let shares: u16 = shown.heads.iter().map(|(_, w)| if let Wide::Share(n) = w { *n } else { 0 }).sum();
    let gaps = u16::try_from(shown.heads.len()).unwrap_or(0);
    let share = area.width.saturating_sub(fixed + gaps) / shares.max(1);
    // Only what is in sight is made.
    let visible = shown.rows.iter().skip(screen.top).take(screen.room);
    let lines = visible.map(|row| {
        let cells = row.cells.iter().zip(&shown.heads);
        Row::new(cells.map(|(cell, (_, wide))| match wide {
            Wide::Cells(n) => line(cell, *n),
            Wide::Share(n) => line(cell, share * n),
        }))
    });
    let heads = shown.heads.iter().enumerate().map(|(n, (name, _))| {
        let right = shown.rows.first().and_then(|r| r.cells.get(n)).is_some_and(|c| c.right);
        Line::raw(*name).alignment(if right { Alignment::Right } else { Alignment::Left })
    });
    let mut table = Table::new(lines, widths)
        .header(Row::new(heads).style(weak().add_modifier(Modifier::BOLD)))
        .column_spacing(1);
    if !screen.plain {
        table = table.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    }
    let chosen = (!shown.rows.is_empty()).then(|| at - screen.top);
    frame.render_stateful_widget(table, area, &mut TableState::default().with_selected(chosen));
    if shown.rows.is_empty() && area.height > 1 {
        let text = if shown.all == 0 { "nothing here" } else { "no row has that text (esc shows all)" };
        let below = Rect { y: area.y + 1, height: 1, ..area };
        frame.render_widget(Paragraph::new(Line::styled(text, weak())), below);
    }
}

fn line(cell: &Cell, width: u16) -> Line<'static> {
    let style = match cell.tone {
        Tone::Plain => Style::new(),
        Tone::Weak => weak(),
        Tone::Late => late(),
        Tone::Word => colour(&cell.text),
        Tone::Bar(parts) => return bar(parts, width),
    };
    let align = if cell.right { Alignment::Right } else { Alignment::Left };
    Line::styled(cell.text.clone(), style).alignment(align)
}

/// What is used, held, free and not reached, in so many cells. Whatever there is has one at least.
fn bar(parts: [u64; 4], width: u16) -> Line<'static> {
    let total: u64 = parts.iter().sum();
    if total == 0 {
        return Line::styled("none", weak());
    }
    let looks = [("#", Color::Blue), ("+", Color::Yellow), (".", Color::Reset), ("x", Color::Red)];
    let (mut out, mut sum, mut drawn) = (Vec::new(), 0, 0);
    for (n, (mark, colour)) in parts.iter().zip(looks) {
        sum += n;
        let to = usize::try_from(sum.saturating_mul(u64::from(width)) / total).unwrap_or(0);
        let cells = to.saturating_sub(drawn).max(usize::from(*n > 0));
        out.push(Span::styled(mark.repeat(cells), Style::new().fg(colour)));
        drawn += cells;
    }
    Line::from(out)
}

fn footer(screen: &Screen) -> Line<'static> {
    if screen.typing {
        return Line::from(format!("/{}_   enter keeps it, esc shows all", plain(&screen.filter)));
    }
    let mut text = "q quit  tab 1 2 3 view  j k move  s sort  / find  ? help".to_owned();
    if !screen.filter.is_empty() {
        text = format!("rows with {:?}, esc shows all   {text}", screen.filter);
    }
    Line::styled(text, weak())
}

fn help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (area.width.min(68), area.height.min(u16::try_from(HELP.len()).unwrap_or(8) + 2));
    let middle =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let lines: Vec<Line<'_>> = HELP
        .iter()
        .map(|(key, what)| Line::from(vec![Span::styled(format!("{key:<13}"), strong()), Span::raw(*what)]))
        .collect();
    frame.render_widget(Clear, middle);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title("any key goes back")), middle);
}
