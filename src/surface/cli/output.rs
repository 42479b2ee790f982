//! How things look: colours, ages, tables. Text from elsewhere is shown without control characters.

use std::io::IsTerminal;

use super::args::When;

/// Colours, on or off.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Use them.
    pub colour: bool,
}

impl Style {
    /// As `--color`, NO_COLOR and the terminal say.
    pub fn new(when: When) -> Self {
        let auto = std::io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
            && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
        Self { colour: when == When::Always || (when == When::Auto && auto) }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Weak.
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }
    /// Strong.
    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }
    /// Good, bad or in between by the word itself.
    pub fn state(self, word: &str) -> String {
        let code = match word {
            "running" | "alive" => "32",
            "succeeded" => "36",
            "failed" | "lost" | "removed" => "31",
            "pending" | "placed" | "suspect" | "draining" => "33",
            _ => "2",
        };
        self.paint(code, word)
    }
    /// Another word in the colour of one of ours.
    pub fn state_as(self, like: &str, text: &str) -> String {
        let painted = self.state(like);
        painted.replace(like, text)
    }
    /// A background from green (0) to red (1), for heat maps.
    pub fn heat(self, level: f64, text: &str) -> String {
        const STEPS: [&str; 6] = ["48;5;22", "48;5;28", "48;5;64", "48;5;100", "48;5;130", "48;5;88"];
        let step = (level.clamp(0.0, 1.0) * (STEPS.len() - 1) as f64).round() as usize;
        self.paint(STEPS[step], text)
    }
}

/// Without what could steer a terminal.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A length of time for people: `4s`, `3m`, `2h`, `5d`.
pub fn brief(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        0 => format!("{ms}ms"),
        1..120 => format!("{s}s"),
        120..7_200 => format!("{}m", s / 60),
        7_200..172_800 => format!("{}h", s / 3_600),
        _ => format!("{}d", s / 86_400),
    }
}

/// Columns, aligned by what is seen; colours do not count.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these headings, or with none.
    pub fn new(style: Style, headings: &[&str]) -> Self {
        let first = headings.iter().map(|h| style.dim(h)).collect();
        Self { rows: if headings.is_empty() { Vec::new() } else { vec![first] } }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The text, a line per row.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|r| r.get(column))
                .map(|c| console::measure_text_width(c))
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                let pad = width + 2 - console::measure_text_width(cell);
                line.extend(std::iter::repeat_n(' ', pad));
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_do_not_bend_a_table() {
        let rows = |colour| {
            let style = Style { colour };
            let mut table = Table::new(style, &["ID", "STATE", "NAME"]);
            table.row(["a".into(), style.state("running"), "x".into()]);
            table.row(["bb".into(), style.state("failed"), "y".into()]);
            console::strip_ansi_codes(&table.render()).into_owned()
        };
        assert_eq!(rows(true), rows(false));
        assert_eq!(rows(false), "ID  STATE    NAME\na   running  x\nbb  failed   y\n");
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(plain("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }

    #[test]
    fn ages_are_short() {
        for (ms, want) in
            [(5, "5ms"), (65_000, "65s"), (180_000, "3m"), (7_200_000, "2h"), (259_200_000, "3d")]
        {
            assert_eq!(brief(ms), want);
        }
    }
}
