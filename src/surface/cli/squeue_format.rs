//! `squeue -o`: Slurm's `%[[.]WIDTH]LETTER`, for what a mesh knows of a job.

use super::output::plain;
use super::slurm::{cluster, elapsed, ran, reason, word};
use crate::base::WallTime;
use crate::model::timestamp::to_rfc3339;
use crate::surface::documents::JobDocument;

/// Longest column.
const WIDTH_MAX: usize = 200;

enum Part {
    Text(String),
    Field { letter: char, heading: &'static str, width: Option<usize>, right: bool },
}

/// A format, read.
pub struct Format(Vec<Part>);

/// The letters that have a meaning here, with their headings.
const LETTERS: [(char, &str); 17] = [
    ('i', "JOBID"),
    ('A', "JOBID"),
    ('P', "PARTITION"),
    ('j', "NAME"),
    ('u', "USER"),
    ('a', "ACCOUNT"),
    ('t', "ST"),
    ('T', "STATE"),
    ('M', "TIME"),
    ('D', "NODES"),
    ('N', "NODELIST"),
    ('R', "NODELIST(REASON)"),
    ('r', "REASON"),
    ('p', "PRIORITY"),
    ('Q', "PRIORITY"),
    ('V', "SUBMIT_TIME"),
    ('S', "START_TIME"),
];

fn time(ms: Option<u64>) -> String {
    // Slurm writes no offset; these are in UTC.
    ms.map_or_else(|| "N/A".into(), |ms| to_rfc3339(WallTime(ms)).trim_end_matches('Z').to_owned())
}

fn value(job: &JobDocument, letter: char) -> String {
    let placed = !job.done && word(job).1 != "PD";
    match letter {
        'i' | 'A' => job.id.short(),
        'P' => cluster(job),
        'j' => plain(&job.name),
        'u' | 'a' => plain(&job.tenant),
        't' => word(job).1.to_owned(),
        'T' => word(job).0.to_owned(),
        'M' => elapsed(ran(job)),
        'D' => job.nodes.to_string(),
        'N' if placed => cluster(job),
        'N' => String::new(),
        'R' if placed => cluster(job),
        'R' => format!("({})", reason(job)),
        'r' => reason(job),
        'p' | 'Q' => job.priority.to_string(),
        'V' => time(Some(job.submitted_at_ms)),
        _ => time(job.attempts.last().and_then(|a| a.started_at_ms)),
    }
}

impl Format {
    /// The error names what has no meaning here.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if c != '%' || chars.next_if_eq(&'%').is_some() {
                match parts.last_mut() {
                    Some(Part::Text(text)) => text.push(c),
                    _ => parts.push(Part::Text(c.to_string())),
                }
                continue;
            }
            let right = chars.next_if_eq(&'.').is_some();
            let digits: String = std::iter::from_fn(|| chars.next_if(char::is_ascii_digit)).collect();
            let width = match digits.as_str() {
                "" => None,
                some => Some(
                    some.parse()
                        .ok()
                        .filter(|w| *w <= WIDTH_MAX)
                        .ok_or(format!("%{some}: at most {WIDTH_MAX}"))?,
                ),
            };
            let letter = chars.next().ok_or("ends with %")?;
            let Some((_, heading)) = LETTERS.iter().find(|(l, _)| *l == letter) else {
                let all: String = LETTERS.iter().map(|(l, _)| format!(" %{l}")).collect();
                return Err(format!("%{letter} has no meaning over a mesh; these have:{all}"));
            };
            parts.push(Part::Field { letter, heading, width, right });
        }
        Ok(Self(parts))
    }

    fn line(&self, of: impl Fn(char, &'static str) -> String) -> String {
        let mut line = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => line.push_str(text),
                Part::Field { letter, heading, width, right } => {
                    let text = of(*letter, heading);
                    match width {
                        None => line.push_str(&text),
                        Some(w) => {
                            let text: String = text.chars().take(*w).collect();
                            let pad = " ".repeat(w.saturating_sub(text.chars().count()));
                            line.push_str(&if *right { pad + &text } else { text + &pad });
                        }
                    }
                }
            }
        }
        line.trim_end().to_owned() + "\n"
    }

    /// The line of headings, where it is wanted, and one line per job.
    pub fn render(&self, headings: bool, jobs: &[JobDocument]) -> String {
        let first = headings.then(|| self.line(|_, heading| heading.to_owned()));
        first.into_iter().chain(jobs.iter().map(|job| self.line(|letter, _| value(job, letter)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_sides_and_what_has_no_meaning() {
        let render = |text: &str| Format::read(text).map(|f| f.render(true, &[]));
        assert_eq!(render("%.8i|%-5t").err().map(|e| e.contains("%-")), Some(true), "no letter");
        assert_eq!(render("%.8i|%5t|%T 100%%"), Ok("   JOBID|ST   |STATE 100%\n".into()));
        assert_eq!(render("%3P"), Ok("PAR\n".into()), "cut as Slurm cuts it");
        for bad in ["%Z", "%", "%.", "%999i"] {
            assert!(render(bad).is_err(), "{bad}");
        }
    }
}
