//! What `top` has seen, what it shows of it, and what keys do.

use ratatui::crossterm::event::{KeyCode, KeyModifiers};

use super::super::args::TopView;
use super::super::output::{brief, plain};
use crate::surface::documents::*;

/// One look at the mesh.
#[derive(Debug, Clone, Default)]
pub struct Look {
    pub clusters: ClusterList,
    pub jobs: JobList,
    pub links: LinkList,
}

/// What was seen last.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Who answers.
    pub peer: String,
    pub look: Look,
    /// When it was seen.
    pub at_ms: u64,
    /// Why it is not newer, if the last try failed.
    pub trouble: Option<String>,
}

impl Seen {
    pub fn new(peer: String) -> Self {
        Self { peer, ..Self::default() }
    }

    /// An answer, or why there is none: then what was seen stays.
    pub fn take(&mut self, answer: Result<Look, String>, now_ms: u64) {
        match answer {
            Ok(look) => (self.look, self.at_ms, self.trouble) = (look, now_ms, None),
            Err(why) => self.trouble = Some(why),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Clusters,
    Jobs,
    Links,
}

pub const VIEWS: [(View, &str); 3] =
    [(View::Clusters, "1 clusters"), (View::Jobs, "2 jobs"), (View::Links, "3 links")];

impl From<TopView> for View {
    fn from(view: TopView) -> Self {
        match view {
            TopView::Clusters => View::Clusters,
            TopView::Jobs => View::Jobs,
            TopView::Links => View::Links,
        }
    }
}

/// How a cell is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Weak,
    /// One of our words, coloured by what it means.
    Word,
    Late,
    /// GPUs: used, reserved, free, down, of all.
    Bar([u64; 4]),
}

#[derive(Debug, Clone)]
pub struct Cell {
    pub text: String,
    pub tone: Tone,
    pub right: bool,
}

fn cell(text: impl Into<String>) -> Cell {
    Cell { text: text.into(), tone: Tone::Plain, right: false }
}
fn number(text: impl ToString) -> Cell {
    Cell { text: text.to_string(), tone: Tone::Plain, right: true }
}
impl Cell {
    fn tone(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }
}

/// A row, what names it over two looks, what it is found by, and its place by the column that sorts.
#[derive(Debug, Clone)]
pub struct Row {
    pub key: String,
    pub cells: Vec<Cell>,
    /// The whole story, for the line below the table.
    pub detail: String,
}

/// How wide a column is: so many cells, or a share of what is left.
#[derive(Debug, Clone, Copy)]
pub enum Wide {
    Cells(u16),
    Share(u16),
}

/// What a view shows.
pub struct Shown {
    pub heads: Vec<(&'static str, Wide)>,
    pub rows: Vec<Row>,
    /// By what they are sorted.
    pub by: &'static str,
    /// How many there are without the filter.
    pub all: usize,
}

/// What the user sees and does.
pub struct Screen {
    pub view: View,
    /// The row that is chosen, by its key; none: the first.
    chosen: Option<String>,
    /// The filter, and whether it is being typed.
    pub filter: String,
    pub typing: bool,
    /// Which of the view's orders, and backwards.
    sort: usize,
    pub backwards: bool,
    pub help: bool,
    pub done: bool,
    /// Without what only makes sense on a terminal.
    pub plain: bool,
    /// Rows that the last frame had room for.
    pub room: usize,
    /// Rows scrolled away.
    pub top: usize,
}

/// Rows that a page has where nothing was drawn yet.
const PAGE: usize = 10;
const FILTER_MAX: usize = 64;

impl Screen {
    pub fn new(view: View) -> Self {
        Self {
            view,
            chosen: None,
            filter: String::new(),
            typing: false,
            sort: 0,
            backwards: false,
            help: false,
            done: false,
            plain: false,
            room: PAGE,
            top: 0,
        }
    }

    fn go(&mut self, view: View) {
        (self.view, self.chosen, self.sort, self.backwards, self.top) = (view, None, 0, false, 0);
    }

    /// A key was pressed.
    pub fn key(&mut self, seen: &Seen, code: KeyCode, modifiers: KeyModifiers) {
        if matches!(code, KeyCode::Char('c')) && modifiers.contains(KeyModifiers::CONTROL) {
            self.done = true;
            return;
        }
        if self.typing {
            match code {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(c) if self.filter.chars().count() < FILTER_MAX => self.filter.push(c),
                _ => {}
            }
            return;
        }
        if self.help {
            self.help = false;
            return;
        }
        let page = i64::try_from(self.room.max(2) - 1).unwrap_or(1);
        match code {
            KeyCode::Char('q') => self.done = true,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => self.done = true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('1') => self.go(View::Clusters),
            KeyCode::Char('2') => self.go(View::Jobs),
            KeyCode::Char('3') => self.go(View::Links),
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(VIEWS.len() - 1),
            KeyCode::Char('s') => (self.sort, self.backwards) = (self.sort + 1, false),
            KeyCode::Char('S' | 'r') => self.backwards = !self.backwards,
            KeyCode::Down | KeyCode::Char('j') => self.step(seen, 1),
            KeyCode::Up | KeyCode::Char('k') => self.step(seen, -1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.step(seen, page),
            KeyCode::PageUp => self.step(seen, -page),
            KeyCode::Home | KeyCode::Char('g') => self.step(seen, i64::MIN / 2),
            KeyCode::End | KeyCode::Char('G') => self.step(seen, i64::MAX / 2),
            _ => {}
        }
    }

    fn turn(&mut self, by: usize) {
        let at = VIEWS.iter().position(|(v, _)| *v == self.view).unwrap_or(0);
        self.go(VIEWS[(at + by) % VIEWS.len()].0);
    }

    fn step(&mut self, seen: &Seen, by: i64) {
        let rows = self.table(seen, seen.at_ms).rows;
        let Some(last) = rows.len().checked_sub(1) else { return };
        let at = i64::try_from(self.at(&rows)).unwrap_or(0).saturating_add(by);
        let at = usize::try_from(at.max(0)).unwrap_or(0).min(last);
        self.chosen = rows.get(at).map(|r| r.key.clone());
    }

    /// Where the chosen row is now; one that has gone leaves the first.
    pub fn at(&self, rows: &[Row]) -> usize {
        self.chosen.as_ref().and_then(|key| rows.iter().position(|r| r.key == *key)).unwrap_or(0)
    }

    /// The rows of the present view, filtered and in order.
    pub fn table(&self, seen: &Seen, now_ms: u64) -> Shown {
        let (heads, mut rows, orders) = match self.view {
            View::Clusters => clusters(seen),
            View::Jobs => jobs(seen, now_ms),
            View::Links => links(seen),
        };
        let all = rows.len();
        let wanted = self.filter.to_lowercase();
        // What is shown is what is searched, and the line below it.
        rows.retain(|(row, _)| {
            let text = row.cells.iter().map(|c| c.text.as_str()).chain([row.key.as_str(), &row.detail]);
            wanted.is_empty() || text.into_iter().any(|t| t.to_lowercase().contains(&wanted))
        });
        let which = self.sort % orders.len();
        rows.sort_by(|(_, a), (_, b)| a[which].total_cmp(&b[which]));
        let mut rows: Vec<Row> = rows.into_iter().map(|(row, _)| row).collect();
        if self.backwards {
            rows.reverse();
        }
        Shown { heads, rows, by: orders[which], all }
    }
}

/// Rows with their places in each order: lower is higher up.
type Rows = (Vec<(&'static str, Wide)>, Vec<(Row, Vec<f64>)>, &'static [&'static str]);

fn clusters(seen: &Seen) -> Rows {
    use Wide::{Cells, Share};
    let heads = vec![
        ("CLUSTER", Cells(14)),
        ("STATE", Cells(8)),
        ("REGION", Share(1)),
        ("GPUS", Share(2)),
        ("FREE/ALL", Cells(9)),
        ("USE", Cells(4)),
        ("RUN", Cells(4)),
        ("WAIT", Cells(4)),
        ("NEWS", Cells(5)),
    ];
    let list = seen.look.clusters.clusters.iter().enumerate();
    let rows = list.map(|(n, c)| {
        let word = if c.liveness == "alive" && c.draining { "draining" } else { &c.liveness };
        let (mut total, mut free, mut reserved) = (0, 0, 0);
        for count in c.gpus.values() {
            total += count.total;
            free += count.free;
            reserved += count.reserved;
        }
        let alive = c.liveness == "alive";
        let used = total.saturating_sub(free + reserved);
        let bar = if alive { [used, reserved, free, 0] } else { [0, 0, 0, total] };
        let models: Vec<String> =
            c.gpus.iter().map(|(m, g)| format!("{} of {} {}", g.free, g.total, plain(m))).collect();
        let mut detail = format!("{} in {}: ", c.name, plain(&c.region));
        detail += &if models.is_empty() { "no GPUs".to_owned() } else { models.join(", ") + " free" };
        if let Some(why) = &c.closed {
            detail += &format!("; takes nothing: {}", plain(why));
        }
        if c.isolated {
            detail += "; it reaches no other peer";
        }
        let age = c.age_ms.map_or_else(|| "never".into(), brief);
        // Beside GPUs stands the use of GPUs, or nothing: that of CPUs is another figure.
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        let usage = c.gpu_use.filter(|_| total > 0).map_or_else(|| "-".into(), percent);
        if let Some(cpu) = c.cpu_use {
            detail += &format!("; {} of its CPUs in use", percent(cpu));
        }
        let cells = vec![
            cell(plain(c.name.as_str())),
            cell(word).tone(Tone::Word),
            cell(plain(&c.region)),
            cell(format!("{used}u {reserved}r {free}f")).tone(Tone::Bar(bar)),
            number(format!("{free}/{total}")),
            number(usage),
            number(c.running),
            number(c.queued),
            number(age).tone(if c.age_ms.is_none_or(|a| a > 10_000) { Tone::Late } else { Tone::Weak }),
        ];
        let worst = match word {
            "lost" => 0.0,
            "suspect" => 1.0,
            "draining" => 2.0,
            _ => 3.0,
        };
        let order = vec![n as f64, worst, -(free as f64), -f64::from(c.running), -f64::from(c.queued)];
        (Row { key: c.name.to_string(), cells, detail }, order)
    });
    (heads, rows.collect(), &["name", "state", "free", "running", "waiting"])
}

fn jobs(seen: &Seen, now_ms: u64) -> Rows {
    use Wide::{Cells, Share};
    let heads = vec![
        ("ID", Cells(8)),
        ("NAME", Share(3)),
        ("TENANT", Share(1)),
        ("STATE", Cells(9)),
        ("CLUSTER", Cells(11)),
        ("GPUS", Cells(4)),
        ("TRY", Cells(3)),
        ("AGE", Cells(5)),
        ("WHY", Share(3)),
    ];
    let rows = seen.look.jobs.jobs.iter().map(|j| {
        let cluster = j.cluster.as_ref().or_else(|| j.attempts.last().map(|a| &a.cluster));
        let age = now_ms.saturating_sub(j.submitted_at_ms);
        let cells = vec![
            cell(j.id.short()),
            cell(plain(&j.name)),
            cell(plain(&j.tenant)),
            cell(j.state.as_str()).tone(Tone::Word),
            cell(cluster.map_or_else(|| "-".into(), |c| plain(c.as_str()))),
            number(j.gpus),
            number(j.epoch),
            number(brief(age)).tone(Tone::Weak),
            cell(plain(&j.reason)),
        ];
        let first = match j.state.as_str() {
            "running" => 0.0,
            "placed" => 1.0,
            "pending" => 2.0,
            "failed" => 3.0,
            _ => 4.0,
        };
        let detail = format!("{} {}: {}", j.id, j.state.as_str(), plain(&j.reason));
        let order = vec![-(j.submitted_at_ms as f64), first, -(j.gpus as f64), -(j.epoch as f64)];
        (Row { key: j.id.to_string(), cells, detail }, order)
    });
    (heads, rows.collect(), &["newest", "state", "GPUs", "tries"])
}

fn links(seen: &Seen) -> Rows {
    use Wide::{Cells, Share};
    let heads = vec![
        ("FROM", Share(1)),
        ("TO", Share(1)),
        ("RTT", Cells(10)),
        ("BANDWIDTH", Cells(11)),
        ("LOSS", Cells(8)),
        ("WAY", Cells(7)),
        ("AGE", Cells(5)),
    ];
    let rows = seen.look.links.links.iter().enumerate().map(|(n, l)| {
        let speed = l.bandwidth_bps.map_or_else(|| "-".into(), |b| format!("{:.0} Mb/s", b as f64 / 1e6));
        let cells = vec![
            cell(plain(l.from.as_str())),
            cell(plain(l.to.as_str())),
            number(format!("{:.1} ms", l.rtt_ms)),
            number(&speed),
            number(format!("{:.2} %", 100.0 * l.loss)).tone(if l.loss > 0.01 {
                Tone::Late
            } else {
                Tone::Plain
            }),
            cell(if l.direct { "direct" } else { "relayed" }),
            number(brief(l.age_ms)).tone(if l.age_ms > 60_000 { Tone::Late } else { Tone::Weak }),
        ];
        let way = if l.direct { "straight" } else { "through another peer" };
        let detail = format!(
            "{} to {}: {:.1} ms, {speed}, {way}, measured {} ago",
            plain(l.from.as_str()),
            plain(l.to.as_str()),
            l.rtt_ms,
            brief(l.age_ms)
        );
        let slow = l.bandwidth_bps.map_or(f64::MAX, |b| b as f64);
        let order = vec![n as f64, -l.rtt_ms, -l.loss, slow, -(l.age_ms as f64)];
        (Row { key: format!("{} {}", l.from, l.to), cells, detail }, order)
    });
    (heads, rows.collect(), &["name", "RTT", "loss", "slowest", "oldest"])
}
