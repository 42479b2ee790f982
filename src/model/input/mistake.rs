//! One mistake in a document, and the list of all of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::secrets::scrub_addresses;

/// Mistakes that are named; more are counted only.
pub const MISTAKES_MAX: usize = 50;
/// Characters of a value that a message shows.
const SHOWN_CHARS: usize = 60;

/// One thing that is wrong in a document: where, what stands there, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mistake {
    /// Path of the key, `resources.gpus`; empty for the whole document.
    pub key: String,
    /// Line in the document, from 1, where it is known.
    pub line: Option<u32>,
    /// What was found, clipped and with control characters escaped.
    pub value: Option<String>,
    /// What would be right.
    pub want: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        if let Some(value) = &self.value {
            write!(f, "{value}: ")?;
        }
        f.write_str(&self.want)
    }
}

/// Mistakes as they are found, bounded.
#[derive(Debug, Default)]
pub struct Mistakes {
    list: Vec<Mistake>,
    more: usize,
}

impl Mistakes {
    /// Notes one; beyond the limit it is only counted.
    pub fn add(&mut self, mistake: Mistake) {
        if self.list.len() < MISTAKES_MAX { self.list.push(mistake) } else { self.more += 1 }
    }

    /// None so far.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of them in the order of their lines; the last says how many more there are.
    pub fn into_vec(mut self) -> Vec<Mistake> {
        self.list.sort_by_key(|m| m.line.unwrap_or(u32::MAX));
        if self.more > 0 {
            let want = format!("and {} more mistakes", self.more);
            self.list.push(Mistake { key: String::new(), line: None, value: None, want });
        }
        self.list
    }
}

/// Text as a message may show it: without what opens a door, quoted, control characters escaped, clipped.
pub fn show(text: &str) -> String {
    let text = scrub_addresses(text);
    let mut head = text.char_indices().skip(SHOWN_CHARS);
    match head.next() {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}… ({} bytes)", &text[..end], text.len()),
    }
}

/// The known word that `text` most likely meant, if one is near enough.
pub fn nearest<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if text.is_empty() || text.len() > 64 {
        return None;
    }
    let plain = |t: &str| t.to_ascii_lowercase().replace(['-', ' '], "_");
    let wanted = plain(text);
    known
        .into_iter()
        .map(|word| {
            let word_plain = plain(word);
            let begun = wanted.len() >= 3 && word_plain.starts_with(&wanted);
            (if begun { 1 } else { distance(&wanted, &word_plain) }, word)
        })
        .filter(|(far, word)| *far <= (word.len().max(wanted.len()) / 3).max(1) && *far < wanted.len())
        .min_by_key(|(far, _)| *far)
        .map(|(_, word)| word)
}

/// Edits (insert, delete, replace, swap of neighbours) from one text to the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + same);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let known = ["name", "nodes", "max_runtime", "resources"];
        assert_eq!(nearest("nmae", known), Some("name"));
        assert_eq!(nearest("node", known), Some("nodes"));
        assert_eq!(nearest("max-runtime", known), Some("max_runtime"));
        assert_eq!(nearest("Resorces", known), Some("resources"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("x", known), None);
        assert_eq!(nearest(&"n".repeat(10_000), known), None);
    }

    #[test]
    fn shown_text_is_harmless_and_short() {
        assert_eq!(show("a\u{1b}[31m\n\u{202e}"), r#""a\u{1b}[31m\n\u{202e}""#);
        let long = show(&"é".repeat(1_000));
        assert!(long.chars().count() < 90 && long.ends_with("(2000 bytes)"), "{long}");
    }

    #[test]
    fn mistakes_are_bounded() {
        let mut all = Mistakes::default();
        for i in 0..80u32 {
            all.add(Mistake { key: "k".into(), line: Some(80 - i), value: None, want: "w".into() });
        }
        let list = all.into_vec();
        assert_eq!(list.len(), MISTAKES_MAX + 1);
        assert!(list[0].line < list[1].line);
        assert_eq!(list[MISTAKES_MAX].to_string(), "and 30 more mistakes");
    }
}
