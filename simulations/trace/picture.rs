//! The run as a picture: how many of the jobs had waited longer than that, one line per scheduler. Both axes are
//! logarithmic: the few that wait for days are what schedulers differ in.

use std::fmt::Write as _;

use super::result::Row;

const W: f64 = 860.0;
const H: f64 = 470.0;
/// Edges of the drawing itself.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 640.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 410.0;
/// Seconds at the left and right edge, and shares at the bottom and the top.
const SECONDS: (f64, f64) = (1.0, 2_000_000.0);
const SHARES: (f64, f64) = (0.001, 1.0);

const TICKS: [(f64, &str); 7] = [
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3_600.0, "1 h"),
    (86_400.0, "1 d"),
    (864_000.0, "10 d"),
];

fn colour(scheduler: &str) -> &'static str {
    match scheduler {
        "starling" => "#d1495b",
        "central" => "#222222",
        "siblings" => "#30638e",
        "early" => "#edae49",
        "sparrow" => "#00798c",
        "random" => "#8d96a3",
        _ => "#b8a1c9",
    }
}

fn x(seconds: f64) -> f64 {
    let (low, high) = (SECONDS.0.ln(), SECONDS.1.ln());
    LEFT + (seconds.clamp(SECONDS.0, SECONDS.1).ln() - low) / (high - low) * (RIGHT - LEFT)
}

fn y(share: f64) -> f64 {
    let (low, high) = (SHARES.0.ln(), SHARES.1.ln());
    BOTTOM - (share.clamp(SHARES.0, SHARES.1).ln() - low) / (high - low) * (BOTTOM - TOP)
}

/// Text that stands in XML.
fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The share of jobs that waited longer, at up to 200 places.
fn line(waits: &[f64]) -> String {
    let n = waits.len().max(1);
    let mut points = String::new();
    for k in 0..=200u32 {
        let seconds = SECONDS.0 * (SECONDS.1 / SECONDS.0).powf(f64::from(k) / 200.0);
        let longer = n - waits.partition_point(|w| *w <= seconds);
        let _ = write!(points, "{:.1},{:.1} ", x(seconds), y(longer as f64 / n as f64));
        if longer == 0 {
            break;
        }
    }
    points
}

/// The rows of one run.
pub fn draw(rows: &[Row], about: &str) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {W} {H}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{W}\" height=\"{H}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">Share of jobs that waited longer than that</text>\n"
    );
    for (n, part) in about.split("; ").take(2).enumerate() {
        let _ = writeln!(
            out,
            "<text x=\"{LEFT}\" y=\"{}\" font-size=\"10\" fill=\"#555\">{}</text>",
            40 + n * 13,
            plain(part)
        );
    }
    for (seconds, name) in TICKS {
        let at = x(seconds);
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{BOTTOM}\" stroke=\"#e4e4e4\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
            BOTTOM + 18.0
        );
    }
    for (share, name) in [(1.0, "100 %"), (0.1, "10 %"), (0.01, "1 %"), (0.001, "0.1 %")] {
        let at = y(share);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\" stroke=\"#e4e4e4\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    let central = rows.iter().find(|r| r.scheduler == "central");
    for (n, row) in rows.iter().enumerate() {
        let (colour, at) = (colour(row.scheduler), TOP + 10.0 + 22.0 * n as f64);
        let wide = if row.scheduler == "starling" { 2.5 } else { 1.5 };
        let dashes = if row.scheduler == "central" { " stroke-dasharray=\"5 3\"" } else { "" };
        let beside = central.map_or(String::new(), |c| format!(" {:.3}", row.completion / c.completion));
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"{wide}\"{dashes} points=\"{}\"/>\n\
             <line x1=\"{}\" y1=\"{at}\" x2=\"{}\" y2=\"{at}\" stroke=\"{colour}\" stroke-width=\"{wide}\"{dashes}/>\
             <text x=\"{}\" y=\"{}\">{}{beside}</text>",
            line(&row.waits),
            RIGHT + 16.0,
            RIGHT + 44.0,
            RIGHT + 50.0,
            at + 4.0,
            row.scheduler,
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" font-size=\"10\" fill=\"#555\">Mean completion, of central's</text>\n</svg>",
        RIGHT + 16.0,
        TOP + 16.0 + 22.0 * rows.len() as f64
    );
    out
}
