//! Pieces of HTML. Whatever comes from outside goes through [`esc`]; numbers and words of this program need not.

use std::fmt::Write;

use crate::model::JobState;
use crate::surface::documents::{ClusterDocument, GpuCount};

/// Text as HTML, also inside attributes; control characters are replaced.
pub fn esc(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            // These turn the direction of what follows: a name could be shown as another one.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// At most so many characters, with a mark where it was cut.
pub fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return esc(text);
    }
    let head: String = text.chars().take(most.saturating_sub(1)).collect();
    esc(&head) + "…"
}

/// A length of time for people, as the script writes it: `3 s`, `5 min`.
pub fn brief(ms: u64) -> String {
    match ms / 1_000 {
        0 => "now".into(),
        s @ 1..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min", s / 60),
        s @ 7_200..172_800 => format!("{} h", s / 3_600),
        s => format!("{} d", s / 86_400),
    }
}

/// `12 s ago`; the script lets it grow.
pub fn ago(ms: u64) -> String {
    let text = brief(ms);
    let text = if text == "now" { text } else { text + " ago" };
    format!("<span data-age=\"{ms}\">{text}</span>")
}

/// `12 s`, growing.
pub fn lasting(ms: u64) -> String {
    format!("<span data-age=\"{ms}\" data-plain>{}</span>", brief(ms))
}

/// An exact length: `1 h 02 min`, `3 min 07 s`, `4.2 s`.
pub fn exact(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{:.1} s", ms as f64 / 1e3),
        60_000..3_600_000 => format!("{} min {:02} s", ms / 60_000, ms / 1_000 % 60),
        _ => format!("{} h {:02} min", ms / 3_600_000, ms / 60_000 % 60),
    }
}

/// A time of day in UTC, with the date.
pub fn clock(at_ms: u64) -> String {
    let seconds = i64::try_from(at_ms / 1_000).unwrap_or(0);
    let format = time::macros::format_description!("[year]-[month]-[day] [hour]:[minute]:[second] UTC");
    time::OffsetDateTime::from_unix_timestamp(seconds)
        .ok()
        .and_then(|t| t.format(format).ok())
        .unwrap_or_else(|| "an unknown time".into())
}

/// A whole number with thin spaces between thousands.
pub fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(c);
    }
    out
}

/// `1 node`, `2 nodes`.
pub fn count(n: u64, what: &str) -> String {
    format!("{} {what}{}", number(n), if n == 1 { "" } else { "s" })
}

/// A number cell; zero is shown weakly.
pub fn cell(n: u64) -> String {
    if n == 0 { "<td class=\"n zero\">0</td>".into() } else { format!("<td class=n>{}</td>", number(n)) }
}

/// The same for what a cluster tells; one that has told nothing has no figures, which is not zero.
pub fn told_cell(c: &ClusterDocument, n: u64) -> String {
    if c.age_ms.is_some() { cell(n) } else { "<td class=\"n zero\">–</td>".into() }
}

/// GPUs of one cluster as a bar, with the same exception.
pub fn told_bar(c: &ClusterDocument) -> String {
    if c.age_ms.is_some() { Gpus::of(c).bar() } else { "–".into() }
}

/// Where a cluster is.
pub fn region(c: &ClusterDocument) -> &str {
    if c.region.is_empty() { "not known" } else { &c.region }
}

/// The state of a job as a coloured word with its own shape, so that colour alone says nothing.
pub fn state(state: JobState) -> String {
    word(state.as_str())
}

/// The same for any of our words.
pub fn word(word: &str) -> String {
    format!("<span class=\"state {word}\">{word}</span>")
}

/// How a cluster stands, in one word.
pub fn standing(c: &ClusterDocument) -> &str {
    if c.liveness == "alive" && c.draining { "draining" } else { &c.liveness }
}

/// GPUs of some clusters: what is used, reserved, free, and what is down with its cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gpus {
    /// Held by attempts.
    pub used: u64,
    /// Held by grants.
    pub reserved: u64,
    /// To be had.
    pub free: u64,
    /// Of clusters that are not alive.
    pub down: u64,
}

impl Gpus {
    /// Adds what one cluster says of one model.
    pub fn add(&mut self, count: &GpuCount, alive: bool) {
        if alive {
            self.free += count.free;
            self.reserved += count.reserved;
            self.used += count.total.saturating_sub(count.free + count.reserved);
        } else {
            self.down += count.total;
        }
    }

    /// Of one cluster, all models.
    pub fn of(c: &ClusterDocument) -> Self {
        let mut sum = Self::default();
        for count in c.gpus.values() {
            sum.add(count, c.liveness == "alive");
        }
        sum
    }

    /// Adds up.
    pub fn plus(&mut self, other: Self) {
        self.used += other.used;
        self.reserved += other.reserved;
        self.free += other.free;
        self.down += other.down;
    }

    /// In all.
    pub fn total(self) -> u64 {
        self.used + self.reserved + self.free + self.down
    }

    /// A bar of the four shares with an accessible name.
    pub fn bar(self) -> String {
        let total = self.total();
        if total == 0 {
            return "<span class=soft>none</span>".into();
        }
        let mut out = format!(
            "<svg class=bar viewBox=\"0 0 200 10\" preserveAspectRatio=none role=img aria-label=\"{} used, {} reserved, {} free, {} down of {total} GPUs\">",
            self.used, self.reserved, self.free, self.down
        );
        let mut x = 0.0;
        for (n, class) in
            [(self.used, "used"), (self.reserved, "reserved"), (self.free, "free"), (self.down, "down")]
        {
            let width = 200.0 * n as f64 / total as f64;
            if n > 0 {
                let _ =
                    write!(out, "<rect class=f-{class} x=\"{x:.1}\" width=\"{width:.1}\" height=\"10\"/>");
            }
            x += width;
        }
        out + "</svg>"
    }
}

/// What the colours of [`Gpus::bar`] mean.
pub fn gpu_key() -> String {
    let mut out = String::from("<p class=key>");
    for what in ["used", "reserved", "free", "down"] {
        let _ = write!(
            out,
            "<span><svg viewBox=\"0 0 10 10\" aria-hidden=true><rect class=f-{what} width=\"10\" height=\"10\" rx=\"2\"/></svg>{what}</span>"
        );
    }
    out + "</p>"
}

/// A panel with a heading; `note` is HTML.
pub fn panel(heading: &str, note: &str, body: &str) -> String {
    let note = if note.is_empty() { String::new() } else { format!(" <span class=note>{note}</span>") };
    format!("<section class=panel><h2>{}{note}</h2>{body}</section>", esc(heading))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_becomes_markup() {
        assert_eq!(esc("<a href='x'>&\"\u{1b}[31m"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\u{fffd}[31m");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("<<<<<", 3), "&lt;&lt;…");
        assert_eq!(esc("a\u{202e}b"), "a\u{fffd}b");
    }

    #[test]
    fn numbers_are_for_people() {
        assert_eq!(number(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(number(999), "999");
        assert_eq!(exact(3_720_000), "1 h 02 min");
        assert_eq!(exact(187_000), "3 min 07 s");
        assert_eq!(clock(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(brief(119_999), "119 s");
    }

    #[test]
    fn a_bar_says_what_it_shows() {
        let mut gpus = Gpus::default();
        gpus.add(&GpuCount { total: 8, free: 3, reserved: 1 }, true);
        gpus.add(&GpuCount { total: 8, free: 8, reserved: 0 }, false);
        assert_eq!(gpus, Gpus { used: 4, reserved: 1, free: 3, down: 8 });
        assert!(gpus.bar().contains("4 used, 1 reserved, 3 free, 8 down of 16 GPUs"));
        assert!(Gpus::default().bar().contains("none"));
    }
}
