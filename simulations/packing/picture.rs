//! The run as a picture: the share of the GPUs given out over the share asked for.

use std::fmt::Write as _;

use super::{Row, Way};

const W: f64 = 760.0;
const H: f64 = 420.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 360.0;
/// Only the end is worth a look: before, everything fits.
const FROM: f64 = 0.8;

fn colour(way: Way) -> &'static str {
    match way {
        Way::Starling => "#d1495b",
        Way::Central => "#222222",
        Way::Learned => "#30638e",
        Way::Fullest => "#edae49",
    }
}

/// SVG with a line for each row.
pub fn draw(rows: &[Row], gpus: u64) -> String {
    let end = rows.iter().map(|r| r.line.len()).max().unwrap_or(0).max(101) as f64 / 100.0;
    let x = |asked: f64| LEFT + (asked - FROM) / (end - FROM) * (RIGHT - LEFT);
    let y = |given: f64| BOTTOM - (given.max(FROM) - FROM) / (1.0 - FROM) * (BOTTOM - TOP);
    let mut out = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {W} {H}' font-family='sans-serif' font-size='12'>\n\
         <rect width='{W}' height='{H}' fill='white'/>\n\
         <text x='{LEFT}' y='26' font-size='15'>GPUs given out over GPUs asked for ({gpus} GPUs)</text>\n"
    );
    for percent in (80..=100).step_by(5) {
        let at = y(f64::from(percent) / 100.0);
        let _ = writeln!(
            out,
            "<line x1='{LEFT}' y1='{at:.1}' x2='{RIGHT}' y2='{at:.1}' stroke='#ddd'/>\
             <text x='{:.1}' y='{:.1}' text-anchor='end'>{percent} %</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    for percent in (80..=(end * 100.0) as u32).step_by(10) {
        let at = x(f64::from(percent) / 100.0);
        let _ = writeln!(
            out,
            "<text x='{at:.1}' y='{:.1}' text-anchor='middle'>{percent} %</text>",
            BOTTOM + 20.0
        );
    }
    for (n, row) in rows.iter().enumerate() {
        let points = row.line.iter().enumerate().skip((FROM * 100.0) as usize);
        let points: String = points.fold(String::new(), |mut text, (percent, given)| {
            let _ = write!(text, "{:.1},{:.1} ", x(percent as f64 / 100.0), y(*given));
            text
        });
        let colour = colour(row.way);
        let at = TOP + 20.0 * n as f64;
        let _ = writeln!(
            out,
            "<polyline fill='none' stroke='{colour}' stroke-width='2' points='{points}'/>\
             <text x='{:.1}' y='{at:.1}' fill='{colour}'>{}: {:.0} left</text>",
            RIGHT + 14.0,
            row.way.name(),
            row.left
        );
    }
    out.push_str("</svg>\n");
    out
}
