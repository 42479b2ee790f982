//! Words from outside, made fit to be kept and told.

/// Bytes of a reason: every report takes one of this length.
pub const WORDS_MAX: usize = 512;
/// Bytes of a list of nodes, wherever it is kept.
pub const NODE_LIST_MAX: usize = 300;

/// The beginning, of at most so many bytes.
fn head(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    end.and_then(|at| text.get(..at)).unwrap_or_default()
}

/// One line without control characters, of at most so many bytes; what was cut ends in "…".
pub fn words(text: &str, max: usize) -> String {
    let text = text.trim();
    let short = if text.len() > max { head(text, max.saturating_sub('…'.len_utf8())) } else { text };
    let mut plain: String = short.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if short.len() < text.len() {
        plain.push('…');
    }
    plain
}

/// A scheduler's list of nodes (`n[1-3,7]`), cut between two of them: half a number would be another node.
pub fn node_list(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control()).take(NODE_LIST_MAX + 1).collect();
    if plain.len() <= NODE_LIST_MAX {
        return plain;
    }
    let short = head(&plain, NODE_LIST_MAX - '…'.len_utf8());
    let whole = short.rfind(',').and_then(|at| short.get(..=at)).unwrap_or(short);
    format!("{whole}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_one_short_line() {
        for (text, max, wanted) in [
            ("down (fan)", 10, "down (fan)"),
            (" a\n\u{1b}[2Jb ", 10, "a  [2Jb"),
            ("down (fans)", 10, "down (f…"),
            ("üüüüüü", 8, "üü…"),
            ("abc", 2, "…"),
            ("", 10, ""),
        ] {
            assert_eq!(words(text, max), wanted, "{text:?}");
        }
        assert!(words(&"é".repeat(1_000), WORDS_MAX).len() <= WORDS_MAX);
    }

    #[test]
    fn a_list_of_nodes_is_cut_between_two_of_them() {
        assert_eq!(node_list("n[1-3,7]\u{1b}"), "n[1-3,7]");
        let many: Vec<String> = (1_000..1_200).step_by(2).map(|n| n.to_string()).collect();
        let text = format!("n[{}]", many.join(","));
        let cut = node_list(&text);
        let last = cut.strip_suffix(",…").expect("says that it was cut");
        assert!(cut.len() <= NODE_LIST_MAX && text.starts_with(&format!("{last},")), "{cut}");
        assert_eq!(node_list(&cut), cut, "once is enough");
        let (one, wide) = (node_list(&"n[1-2]".repeat(100)), node_list(&"ü".repeat(290)));
        assert_eq!((one.len(), wide.len(), wide.ends_with('…')), (300, 299, true));
    }
}
