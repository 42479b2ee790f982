//! What no compiler checks: imports go one way, files say what they are and stay small, bincode stays in
//! the codec, and nothing outside the tests unwraps.

#[path = "deploy.rs"]
mod deploy;

use std::fs;
use std::path::{Path, PathBuf};

/// Lowest first: a file imports only its own or lower layers. `app` wires them; only main.rs knows it.
const LAYERS: [&str; 9] =
    ["base", "model", "core", "transport", "runtime", "backends", "data", "surface", "app"];
const LINES_MAX: usize = 500;
/// The words of a file that is longer, in front of its reason.
const EXCUSE: &str = "// tidy: long because ";

struct Source {
    /// Relative to src, with slashes.
    path: String,
    text: String,
    /// Without comments, texts and what is compiled for tests only; line by line as in the file.
    code: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut files: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("reads src") {
            let path = entry.expect("reads src").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    assert!(files.len() > 50, "found only {} files", files.len());
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("reads a source file");
        let path = path.strip_prefix(&root).expect("under src").to_str().expect("UTF-8").replace('\\', "/");
        Source { code: without_tests(&without_comments(&text)), path, text }
    };
    files.into_iter().map(read).collect()
}

/// Blanks comments, texts and character literals, and keeps the lines.
fn without_comments(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let begin = i;
        let word_before = i > 0 && (at(i - 1).is_alphanumeric() || at(i - 1) == '_');
        if at(i) == '/' && at(i + 1) == '/' {
            while i < chars.len() && at(i) != '\n' {
                i += 1;
            }
        } else if at(i) == '/' && at(i + 1) == '*' {
            i += 2;
            while i < chars.len() && !(at(i) == '*' && at(i + 1) == '/') {
                i += 1;
            }
            i = (i + 2).min(chars.len());
        } else if at(i) == 'r' && !word_before && (at(i + 1) == '"' || (at(i + 1) == '#' && at(i + 2) != '_'))
        {
            let hashes = (i + 1..).take_while(|&j| at(j) == '#').count();
            if at(i + 1 + hashes) == '"' {
                i += hashes + 2;
                while i < chars.len() && !(at(i) == '"' && (1..=hashes).all(|h| at(i + h) == '#')) {
                    i += 1;
                }
                i = (i + 1 + hashes).min(chars.len());
            } else {
                i += 1;
                out.push('r');
                continue;
            }
        } else if at(i) == '"' {
            i += 1;
            while i < chars.len() && at(i) != '"' {
                i += if at(i) == '\\' { 2 } else { 1 };
            }
            i = (i + 1).min(chars.len());
        } else if at(i) == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            // A character, not a lifetime.
            i += if at(i + 1) == '\\' { 3 } else { 2 };
            while i < chars.len() && at(i) != '\'' {
                i += 1;
            }
            i = (i + 1).min(chars.len());
        } else {
            out.push(at(i));
            i += 1;
            continue;
        }
        out.extend(chars[begin..i].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
    }
    out
}

/// Blanks each item under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(found) = rest.find("#[cfg(test)]") {
        out.push_str(&rest[..found]);
        let item = &rest[found..];
        let mut depth = 0usize;
        let mut end = item.len();
        for (i, c) in item.char_indices().skip("#[cfg(test)]".len()) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ';' if depth == 0 => {}
                _ => continue,
            }
            if depth == 0 {
                end = i + 1;
                break;
            }
        }
        out.extend(item[..end].chars().filter(|c| *c == '\n'));
        rest = &item[end..];
    }
    out + rest
}

/// A file of tests: named so, or in a folder named so; or the suite that backends are held to.
fn is_test(path: &str) -> bool {
    let stem = |part: &str| part.trim_end_matches(".rs").to_owned();
    path.split('/').map(stem).any(|p| {
        matches!(p.as_str(), "tests" | "conformance") || p.ends_with("_tests") || p.starts_with("tests_")
    })
}

fn layer(path: &str) -> Option<usize> {
    let first = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    LAYERS.iter().position(|l| *l == first)
}

/// The layers that code names as `crate::layer`, with their lines; also those in `use crate::{…}`.
fn imports(code: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for root in ["crate::", "starling::"] {
        for (at, _) in code.match_indices(root) {
            let line = code[..at].lines().count().max(1);
            let after = &code[at + root.len()..];
            let names: Vec<&str> = match after.strip_prefix('{') {
                None => vec![after],
                Some(list) => {
                    let mut depth = 0;
                    let split = |c: char| {
                        match c {
                            '{' => depth += 1,
                            '}' => depth -= 1,
                            _ => {}
                        }
                        c == ',' && depth == 0 || depth < 0
                    };
                    let group = &list[..list.find(';').unwrap_or(list.len())];
                    group.split(split).map(str::trim).collect()
                }
            };
            for name in names {
                let word: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if let Some(layer) = LAYERS.iter().position(|l| *l == word) {
                    found.push((line, layer));
                }
            }
        }
    }
    found
}

fn lines_with<'a>(code: &'a str, words: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.lines().enumerate().filter(move |(_, l)| l.contains(words)).map(|(i, _)| i + 1)
}

fn report(what: &str, wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

#[test]
fn imports_go_one_way() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for source in sources().iter().filter(|s| !is_test(&s.path)) {
        // main.rs and lib.rs belong to no layer: the one starts the program, the other names the layers.
        let Some(own) = layer(&source.path) else { continue };
        for (line, theirs) in imports(&source.code) {
            seen += 1;
            if theirs > own {
                let (path, own, theirs) = (&source.path, LAYERS[own], LAYERS[theirs]);
                wrong.push(format!("src/{path}:{line}: {own} imports {theirs}"));
            }
        }
    }
    assert!(seen > 200, "saw only {seen} imports");
    report("a file imports only its own or lower layers", wrong);
}

/// The core and what it stands on do no I/O, wait for nothing and read no clock.
#[test]
fn the_core_is_a_function() {
    let banned =
        ["tokio", "std::fs", "std::net::Tcp", "std::net::Udp", "std::thread", "std::process", "std::env"];
    let clocks = ["std::time::Instant", "SystemTime", ".await", "async "];
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|s| layer(&s.path).is_some_and(|l| l <= 2) && !is_test(&s.path)) {
        for word in banned.iter().chain(&clocks) {
            wrong.extend(lines_with(&source.code, word).map(|l| format!("src/{}:{l}: {word}", source.path)));
        }
    }
    report("base, model and core take time, randomness and messages from their caller", wrong);
}

#[test]
fn every_file_says_what_it_is() {
    let silent = |s: &&Source| !s.text.starts_with("//! ");
    let wrong = sources().iter().filter(silent).map(|s| format!("src/{}", s.path)).collect();
    report("a file opens with //! and one sentence", wrong);
}

#[test]
fn long_files_say_why() {
    let mut wrong = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        let excused = source.text.lines().any(|l| l.strip_prefix(EXCUSE).is_some_and(|why| why.len() > 20));
        match (lines > LINES_MAX, excused) {
            (true, false) => wrong.push(format!("src/{}: {lines} lines, and no reason", source.path)),
            (false, true) => wrong.push(format!("src/{}: {lines} lines need no reason", source.path)),
            _ => {}
        }
    }
    report(&format!("a file over {LINES_MAX} lines has a line `{EXCUSE}…`"), wrong);
}

#[test]
fn bincode_stays_in_the_codec() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|s| s.path != "transport/codec.rs") {
        wrong.extend(lines_with(&source.code, "bincode").map(|l| format!("src/{}:{l}", source.path)));
    }
    report("only transport/codec.rs knows bincode", wrong);
}

#[test]
fn nothing_unwraps() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|s| !is_test(&s.path)) {
        wrong.extend(lines_with(&source.code, ".unwrap()").map(|l| format!("src/{}:{l}", source.path)));
    }
    report("return the error, or `expect` with the proof that there is none", wrong);
}

#[test]
fn the_walk_sees_what_it_should() {
    let code = without_tests(&without_comments(
        "use crate::{base::Ids, model::{A, B}}; // crate::app\nlet t = \"crate::surface\"; let r = r#\"\"\" crate::app\"#;\n\
         fn f<'a>(x: &'a str) { g('\"', '\\'', '\\u{41}'); crate::core::h() }\n\
         #[cfg(test)]\nmod tests { use crate::surface; fn t() { x.unwrap(); } }\n/* crate::data */ crate::runtime::x()",
    ));
    let seen: Vec<(usize, &str)> = imports(&code).into_iter().map(|(l, i)| (l, LAYERS[i])).collect();
    assert_eq!(seen, [(1, "base"), (1, "model"), (3, "core"), (6, "runtime")]);
    assert_eq!(lines_with(&code, ".unwrap()").count(), 0);
    assert_eq!(lines_with("a\nb.unwrap()", ".unwrap()").collect::<Vec<_>>(), [2]);
    assert!(is_test("surface/api/tests_mesh.rs") && is_test("core/tests/x.rs") && !is_test("core/peer.rs"));
}
