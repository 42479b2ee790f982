//! The report: one page without a script, faults and attempts on one time line.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::load::Sent;
use super::nemesis::{Act, Diary};
use super::summary::ChaosSummary;
use crate::surface::ledger::{Entry, Kind};

/// Jobs drawn; what moved comes first.
const JOBS_MAX: usize = 400;
const WIDTH: f64 = 1_180.0;
const LEFT: f64 = 84.0;
const LANE: f64 = 26.0;
const ROW: f64 = 13.0;
/// Colours of clusters, each for light and for dark, told apart by people who see red and green alike.
const CLUSTERS: [(&str, &str); 8] = [
    ("#2f6fb7", "#6aa5e8"),
    ("#c2620e", "#f0a35c"),
    ("#3b8132", "#83c77b"),
    ("#8a4fa3", "#c592dc"),
    ("#a4792a", "#dcb765"),
    ("#20808d", "#63c3cf"),
    ("#b0416a", "#e88bab"),
    ("#5c6670", "#a5b0ba"),
];

/// All that the page tells.
pub struct Story<'a> {
    /// When it began, boot-time microseconds.
    pub begun_us: u64,
    /// The result.
    pub summary: &'a ChaosSummary,
    /// What was done to whom.
    pub diary: &'a Diary,
    /// The jobs.
    pub sent: &'a [Sent],
    /// The ledger.
    pub entries: &'a [Entry],
}

/// An attempt, from its lines.
struct Bar<'a> {
    epoch: u64,
    cluster: &'a str,
    from: u64,
    to: u64,
    end: Kind,
    steps: u64,
}

/// The page.
pub fn page(story: &Story<'_>) -> String {
    let s = story.summary;
    let verdict = if s.violations == 0 { "holds" } else { "does not hold" };
    let mut out = String::with_capacity(64 << 10);
    let title = format!("Starling chaos, seed {}", s.seed);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{}</style></head><body><main>\n<h1>{title}</h1>\n\
         <p>{} peers, {} minutes of faults, {:.0} s in all. The promise <b class=\"{}\">{verdict}</b>: each answered job once, \
         no two attempts at a time, no older epoch after a newer one.</p>\n",
        css(),
        s.peers,
        s.minutes,
        s.seconds,
        if s.violations == 0 { "good" } else { "bad" },
    );
    figures(&mut out, s);
    timeline(&mut out, story);
    lists(&mut out, story);
    out.push_str("</main></body></html>\n");
    out
}

fn css() -> String {
    let mut css = String::from(
        ":root{color-scheme:light dark;--ink:light-dark(#1b1f24,#e4e8ec);--dim:light-dark(#5b6570,#98a2ac);\
         --line:light-dark(#dfe3e8,#2d343b);--paper:light-dark(#ffffff,#14181c);--net:light-dark(#7d8894,#8b97a3);\
         --proc:light-dark(#b3261e,#ff8a80);--good:light-dark(#2e7030,#7fcf82);--bad:light-dark(#b3261e,#ff8a80)}\
         body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}\
         main{max-width:1220px;margin:0 auto;padding:24px 20px 60px}h1{font-size:24px;margin:0 0 4px}\
         h2{font-size:17px;margin:28px 0 6px}p{margin:0 0 14px;max-width:75ch}.good{color:var(--good)}.bad{color:var(--bad)}\
         dl{display:flex;flex-wrap:wrap;gap:6px 28px;margin:0 0 18px}dl div{min-width:74px}dt{color:var(--dim);font-size:12px}\
         dd{margin:0;font-size:19px;font-variant-numeric:tabular-nums}.wide{overflow-x:auto}\
         svg{display:block;min-width:900px;width:100%;height:auto;font:10px system-ui,sans-serif}\
         text{fill:var(--ink)}text.dim{fill:var(--dim)}text.in{fill:var(--paper);font-size:9px;font-weight:600}\
         line{stroke:var(--line)}rect.net{fill:var(--net)}rect.proc{fill:var(--proc)}rect.heal{fill:var(--line);opacity:.45}\
         .key{display:flex;flex-wrap:wrap;gap:4px 18px;color:var(--dim);font-size:13px;margin:0 0 8px}\
         .key i{display:inline-block;width:11px;height:11px;margin-right:5px;border-radius:2px}\
         ol,ul{margin:0;padding-left:22px;font-size:13px}li{font-variant-numeric:tabular-nums}",
    );
    for (i, (light, dark)) in CLUSTERS.iter().enumerate() {
        let _ = write!(css, ".k{i}{{fill:light-dark({light},{dark});background:light-dark({light},{dark})}}");
    }
    css
}

fn figures(out: &mut String, s: &ChaosSummary) {
    let longest = |s: &super::bounds::Spread| format!("{:.1} s of {:.1} s", s.most_s, s.bound_s);
    let rows: [(&str, String); 18] = [
        ("faults", s.faults.to_string()),
        ("submitted", s.submitted.to_string()),
        ("succeeded", s.succeeded.to_string()),
        ("moved", s.moved.to_string()),
        ("attempts", s.attempts.to_string()),
        ("lost", s.lost.to_string()),
        ("run twice", s.run_twice.to_string()),
        ("overlaps", s.overlaps.to_string()),
        ("stale writes", s.stale_writes.to_string()),
        ("not final", s.not_final.to_string()),
        ("crashes", s.crashes.to_string()),
        ("unknown answers", s.unknown.to_string()),
        ("cancelled", s.cancelled.to_string()),
        ("operations in order", s.operations.to_string()),
        ("histories broken", s.not_linearizable.to_string()),
        ("loss to next step, alone", longest(&s.bounds.lost)),
        ("clean stop to next step", longest(&s.bounds.stopped)),
        ("longest pause", format!("{:.1} s", s.longest_pause_s)),
    ];
    out.push_str("<dl>");
    for (name, value) in rows {
        let _ = write!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    out.push_str("</dl>\n");
}

/// A cluster's place, from its name `c3`.
fn place(cluster: &str) -> usize {
    cluster.strip_prefix('c').and_then(|n| n.parse::<usize>().ok()).unwrap_or(1).saturating_sub(1)
}

fn bars<'a>(entries: &'a [Entry]) -> BTreeMap<&'a str, Vec<Bar<'a>>> {
    let mut jobs: BTreeMap<&str, BTreeMap<(u64, u32), Bar<'_>>> = BTreeMap::new();
    for e in entries {
        let fresh = || Bar {
            epoch: e.epoch,
            cluster: &e.cluster,
            from: e.from_us,
            to: e.to_us,
            end: e.kind,
            steps: 0,
        };
        let bar = jobs.entry(&e.job).or_default().entry((e.epoch, e.pid)).or_insert_with(fresh);
        bar.from = bar.from.min(e.from_us);
        bar.to = bar.to.max(e.to_us);
        bar.end = e.kind;
        bar.steps += u64::from(e.kind == Kind::Step);
    }
    jobs.into_iter().map(|(job, bars)| (job, bars.into_values().collect())).collect()
}

fn timeline(out: &mut String, story: &Story<'_>) {
    let jobs = bars(story.entries);
    let mut rows: Vec<(&Sent, &[Bar<'_>])> = Vec::new();
    for sent in story.sent {
        let bars = sent.id.as_deref().and_then(|id| jobs.get(id)).map_or(&[][..], Vec::as_slice);
        rows.push((sent, bars));
    }
    let all = rows.len();
    if all > JOBS_MAX {
        rows.sort_by_key(|(sent, bars)| (std::cmp::Reverse(bars.len()), sent.at_us));
        rows.truncate(JOBS_MAX);
        rows.sort_by_key(|(sent, _)| sent.at_us);
    }
    let last = story.entries.iter().map(|e| e.to_us).chain(story.diary.acts.iter().map(|a| a.to_us)).max();
    let length = last.unwrap_or(story.begun_us).saturating_sub(story.begun_us).max(1_000_000);
    let scale = (WIDTH - LEFT - 8.0) / length as f64;
    let x = |us: u64| LEFT + us.saturating_sub(story.begun_us) as f64 * scale;
    let peers = story.summary.peers as usize;
    let jobs_top = 24.0 + peers as f64 * LANE + 18.0;
    let height = jobs_top + rows.len() as f64 * ROW + 10.0;

    out.push_str("<h2>Faults by peer, attempts by job</h2>\n<div class=\"key\"><span><i style=\"background:var(--net)\"></i>network</span>");
    out.push_str("<span><i style=\"background:var(--proc)\"></i>process or disk</span>");
    for i in 0..peers {
        let _ = write!(out, "<span><i class=\"k{}\"></i>attempt at c{}</span>", i % CLUSTERS.len(), i + 1);
    }
    out.push_str("<span>a number in a bar is its epoch</span></div>\n<div class=\"wide\">");
    let _ = write!(out, "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"time line\">");
    // Round steps, about twelve of them.
    let seconds = length as f64 / 1e6;
    let steps = [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0];
    let step = steps.iter().find(|s| seconds / **s <= 14.0).copied().unwrap_or(7_200.0);
    let mut at = 0.0;
    while at <= seconds {
        let px = LEFT + at * 1e6 * scale;
        let _ = write!(
            out,
            "<line x1=\"{px:.1}\" x2=\"{px:.1}\" y1=\"16\" y2=\"{height:.0}\"/><text class=\"dim\" x=\"{px:.1}\" y=\"11\" text-anchor=\"middle\">{at:.0} s</text>"
        );
        at += step;
    }
    for peer in 0..peers {
        let y = 24.0 + peer as f64 * LANE;
        let _ = write!(out, "<text x=\"4\" y=\"{:.1}\">c{}</text>", y + 13.0, peer + 1);
        for act in story.diary.acts.iter().filter(|a| a.peers.contains(&peer)) {
            fault(out, act, &x, y);
        }
    }
    for (i, (sent, bars)) in rows.iter().enumerate() {
        let y = jobs_top + i as f64 * ROW;
        let text_at = y + ROW - 3.5;
        let _ = write!(out, "<text class=\"dim\" x=\"4\" y=\"{text_at:.1}\">{}</text>", plain(&sent.name));
        let waits = bars.iter().map(|b| b.from).min().unwrap_or(sent.at_us);
        let end = bars.iter().map(|b| b.to).max().unwrap_or(sent.at_us).max(waits);
        let _ = write!(
            out,
            "<rect class=\"heal\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"1.5\"/>",
            x(sent.at_us),
            y + ROW / 2.0,
            (x(end) - x(sent.at_us)).max(1.0)
        );
        bars.iter().for_each(|bar| attempt(out, bar, &x, y));
    }
    out.push_str("</svg></div>\n");
    if all > rows.len() {
        let _ = writeln!(out, "<p>{} of {all} jobs are drawn, those with the most attempts.</p>", rows.len());
    }
}

fn fault(out: &mut String, act: &Act, x: &impl Fn(u64) -> f64, y: f64) {
    let (class, dy) = if act.network { ("net", 2.0) } else { ("proc", 12.0) };
    let width = (x(act.to_us) - x(act.from_us)).max(2.0);
    let _ = write!(
        out,
        "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"8\" rx=\"1.5\"><title>{}</title></rect>",
        x(act.from_us),
        y + dy,
        plain(&act.text)
    );
}

fn attempt(out: &mut String, bar: &Bar<'_>, x: &impl Fn(u64) -> f64, y: f64) {
    let width = (x(bar.to) - x(bar.from)).max(1.5);
    let how = match bar.end {
        Kind::Done => "done",
        Kind::Stopped => "told to stop",
        Kind::Again => "found all done",
        Kind::Begin | Kind::Step | Kind::Checkpoint => "killed",
    };
    let _ = write!(
        out,
        "<rect class=\"k{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{}\" rx=\"1.5\"><title>epoch {} at {}: {} steps, {how}</title></rect>",
        place(bar.cluster) % CLUSTERS.len(),
        x(bar.from),
        y + 1.5,
        ROW - 3.0,
        bar.epoch,
        plain(bar.cluster),
        bar.steps
    );
    if width > 9.0 {
        let _ = write!(
            out,
            "<text class=\"in\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x(bar.from) + 2.5,
            y + ROW - 4.0,
            bar.epoch
        );
    }
}

fn lists(out: &mut String, story: &Story<'_>) {
    if !story.summary.findings.is_empty() {
        out.push_str("<h2>Findings</h2>\n<ul>");
        for finding in &story.summary.findings {
            let _ = write!(out, "<li class=\"bad\">{}</li>", plain(finding));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<h2>What was done</h2>\n<ol>");
    let mut acts: Vec<&Act> = story.diary.acts.iter().collect();
    acts.sort_by_key(|a| a.from_us);
    for act in acts {
        let at = |us: u64| us.saturating_sub(story.begun_us) as f64 / 1e6;
        let (from, to) = (at(act.from_us), at(act.to_us));
        let _ = write!(out, "<li>{from:.1} s to {to:.1} s: {}</li>", plain(&act.text));
    }
    out.push_str("</ol>\n<h2>What was not tried</h2>\n<ul>");
    for what in &story.summary.left_out {
        let _ = write!(out, "<li>{}</li>", plain(what));
    }
    out.push_str("</ul>\n");
}

/// Text for a page, whatever it holds.
fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(job: &str, kind: Kind, epoch: u64, cluster: &str, from_us: u64, to_us: u64) -> Entry {
        let (job, cluster) = (job.to_owned(), cluster.to_owned());
        Entry { kind, job, rank: 0, epoch, pid: 7, cluster, step: None, steps: None, from_us, to_us }
    }

    #[test]
    fn a_page_shows_faults_attempts_and_findings_and_trusts_no_text() {
        let summary = ChaosSummary {
            seed: 9,
            peers: 3,
            violations: 1,
            findings: vec!["<script>".into()],
            ..ChaosSummary::default()
        };
        let act = Act {
            from_us: 10,
            to_us: 2_000_000,
            peers: vec![1],
            network: true,
            text: "cut & run".into(),
            loses: None,
        };
        let diary = Diary { acts: vec![act], ..Diary::default() };
        let sent =
            [Sent { name: "j-1".into(), id: Some("id".into()), at_us: 5, given_up: None, cancelled: false }];
        let entries = [
            entry("id", Kind::Begin, 1, "c2", 10, 10),
            entry("id", Kind::Step, 1, "c2", 10, 900_000),
            entry("id", Kind::Done, 2, "c3", 1_000_000, 3_000_000),
        ];
        let text =
            page(&Story { begun_us: 0, summary: &summary, diary: &diary, sent: &sent, entries: &entries });
        for part in [
            "does not hold",
            "&lt;script&gt;",
            "cut &amp; run",
            "epoch 1 at c2: 1 steps, killed",
            "epoch 2 at c3: 0 steps, done",
            "color-scheme:light dark",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("<script"), "no text of a job becomes markup");
        assert_eq!(text.matches("<rect class=\"net\"").count(), 1, "at the one peer that it hit");
    }

    #[test]
    fn many_jobs_are_cut_down_to_those_that_moved() {
        let summary = ChaosSummary { peers: 3, ..ChaosSummary::default() };
        let sent: Vec<Sent> = (0..JOBS_MAX + 5)
            .map(|n| Sent {
                name: format!("j-{n}"),
                id: Some(format!("id-{n}")),
                at_us: n as u64,
                given_up: None,
                cancelled: false,
            })
            .collect();
        let last = format!("id-{}", JOBS_MAX + 4);
        let entries =
            [entry(&last, Kind::Begin, 1, "c1", 10, 20), entry(&last, Kind::Begin, 2, "c2", 30, 40)];
        let diary = Diary::default();
        let text =
            page(&Story { begun_us: 0, summary: &summary, diary: &diary, sent: &sent, entries: &entries });
        assert!(
            text.contains(&format!(">j-{}<", JOBS_MAX + 4))
                && !text.contains(&format!(">j-{}<", JOBS_MAX + 1))
        );
        assert!(text.contains(&format!("{JOBS_MAX} of {} jobs", JOBS_MAX + 5)));
    }
}
