//! Files of other tools as job documents: a Kubernetes `batch/v1` Job, a SkyPilot task. What such a file says is carried
//! over, named as done in another way, or refused where leaving it out would change what is run; nothing is dropped
//! in silence. Which is which: docs/reference/bring.md.
//!
//! Pure and bounded: the readers of job files are used, and what comes out is a job that they take.

mod container;
mod kubernetes;
mod place;
mod quantity;
mod skypilot;
mod wish;

#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::Value as Json;

use super::input::{Field, Mistake, Mistakes, Node, Value, from_json, from_yaml};
use super::spec::limits::DOCUMENT_BYTES_MAX;
use super::spec_input::{SpecErrors, parse_spec};

/// Documents of one file that are looked at.
const DOCUMENTS_MAX: usize = 64;
/// Keys of one mapping.
const KEYS_MAX: usize = 1_000;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An object of Kubernetes: it has `apiVersion` and `kind`.
    Kubernetes,
    /// A SkyPilot task: it has keys that only SkyPilot knows, and none that only Starling knows.
    SkyPilot,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Kubernetes => "Kubernetes manifest",
            Kind::SkyPilot => "SkyPilot task",
        })
    }
}

/// A job document, and what is to be said about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Brought {
    /// What it was.
    pub kind: Kind,
    /// The job.
    pub document: Json,
    /// What is done in another way, or not at all, and is no harm.
    pub notes: Vec<Mistake>,
}

/// Every line that cannot be carried over and would change what is run. Nothing is to be submitted.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused {
    /// What it was.
    pub kind: Kind,
    /// One each.
    pub lines: Vec<Mistake>,
    /// As in `Brought`.
    pub notes: Vec<Mistake>,
}

/// Reads a file of another tool that is submitted from `folder` (an absolute path). None where it is none, or is not
/// well-formed: it is then read as a job file, which says what is wrong.
pub fn bring(bytes: &[u8], folder: &str) -> Option<Result<Brought, Refused>> {
    if bytes.len() > DOCUMENT_BYTES_MAX {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok().filter(|t| !t.contains('\0'))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut all = trees(text)?;
    let at = all.iter().position(|(kind, node)| *kind == Some(Kind::Kubernetes) && is_job(node));
    let at = at.or_else(|| all.iter().position(|(kind, _)| kind.is_some()))?;
    let (kind, node) = all.remove(at);
    let kind = kind?;
    let mut said = Said::default();
    for (_, other) in all {
        let what = scalar(&other, "kind").map_or_else(|| "another document".to_owned(), |k| format!("{k:?}"));
        let want = match kind {
            Kind::Kubernetes => {
                "cannot be carried over: one Job is one job; take it out, and keep what it makes at the cluster"
            }
            Kind::SkyPilot => {
                "cannot be carried over: a pipeline is one job a task; submit each alone, with after: ID"
            }
        };
        said.add(Mistake { key: String::new(), line: other.line, value: Some(what), want: want.into() });
    }
    let root = Keys::open(Field { path: String::new(), node }, &mut said);
    let document = root.map(|root| match kind {
        Kind::Kubernetes => kubernetes::job(root, &mut said),
        Kind::SkyPilot => skypilot::task(root, folder, &mut said),
    });
    let document = Json::Object(document.unwrap_or_default());
    if said.wrong.is_empty()
        && let Err(why) = parse_spec(document.to_string().as_bytes())
    {
        said.as_a_job(why);
    }
    let notes = said.notes.into_vec();
    Some(if said.wrong.is_empty() {
        Ok(Brought { kind, document, notes })
    } else {
        Err(Refused { kind, lines: said.wrong.into_vec(), notes })
    })
}

/// The documents of a file with what they are. None where one is not well-formed, or there are too many.
fn trees(text: &str) -> Option<Vec<(Option<Kind>, Node)>> {
    if text.trim_start().starts_with('{')
        && let Ok(node) = from_json(text)
    {
        return Some(vec![(kind(&node), node)]);
    }
    // `---` at the start of a line ends a document, whatever stands before it.
    let mut parts: Vec<(usize, Vec<&str>)> = vec![(0, Vec::new())];
    for (at, line) in text.lines().enumerate() {
        let marker =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        if marker {
            parts.push((at, Vec::new()));
        }
        if let Some((_, lines)) = parts.last_mut() {
            lines.push(line);
        }
    }
    let blank = |l: &&str| matches!(l.trim(), "" | "---") || l.trim_start().starts_with('#');
    parts.retain(|(_, lines)| !lines.iter().all(blank));
    if parts.len() > DOCUMENTS_MAX {
        return None;
    }
    let mut found = Vec::new();
    for (before, lines) in parts {
        // Empty lines in front keep the numbers.
        let node = from_yaml(&("\n".repeat(before) + &lines.join("\n") + "\n")).ok()?;
        found.push((kind(&node), node));
    }
    Some(found)
}

fn pairs(node: &Node) -> &[(String, Node)] {
    if let Value::Map(pairs) = &node.value { pairs } else { &[] }
}
fn child<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    pairs(node).iter().find(|(k, _)| k == key).map(|(_, n)| n)
}
fn scalar<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    match &child(node, key)?.value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}
fn is_job(node: &Node) -> bool {
    scalar(node, "kind") == Some("Job") && scalar(node, "apiVersion") == Some("batch/v1")
}

fn kind(node: &Node) -> Option<Kind> {
    let has = |key: &str| child(node, key).is_some();
    if has("apiVersion") && has("kind") {
        return Some(Kind::Kubernetes);
    }
    skypilot::is_task(node).then_some(Kind::SkyPilot)
}

/// What is said about a file.
#[derive(Default)]
struct Said {
    wrong: Mistakes,
    notes: Mistakes,
}

impl Said {
    fn add(&mut self, mistake: Mistake) {
        self.wrong.add(mistake);
    }
    /// It would change what is run.
    fn refuse(&mut self, field: &Field, why: &str) {
        field.wrong(&mut self.wrong, format!("cannot be carried over: {why}"));
    }
    /// It is no harm, and is not done, or in another way.
    fn note(&mut self, field: &Field, why: &str) {
        field.wrong(&mut self.notes, format!("is not carried over: {why}"));
    }
    /// It is done, with something to know about it.
    fn tell(&mut self, field: &Field, what: impl Into<String>) {
        field.wrong(&mut self.notes, what);
    }
    /// About something that is not there.
    fn tell_of(&mut self, key: &str, line: Option<u32>, what: impl Into<String>) {
        self.notes.add(Mistake { key: key.into(), line, value: None, want: what.into() });
    }
    /// What the readers of job files say of the result.
    fn as_a_job(&mut self, why: SpecErrors) {
        match why {
            SpecErrors::Mistakes(list) => list.into_iter().for_each(|mut mistake| {
                // It is a line of what was made, not of the file.
                mistake.line = None;
                mistake.key = format!("as a job: {}", mistake.key);
                self.wrong.add(mistake);
            }),
            other => self.wrong.add(Mistake {
                key: "as a job".into(),
                line: None,
                value: None,
                want: other.to_string(),
            }),
        }
    }
}

/// What becomes of a key that is not read.
#[derive(Clone, Copy)]
enum Left {
    /// It is no harm.
    Note,
    /// It would change what is run.
    Refuse,
}
use Left::{Note, Refuse};

type Table = [(&'static str, Left, &'static str)];

/// The keys of one mapping that are still to be taken.
struct Keys {
    path: String,
    line: Option<u32>,
    entries: Vec<(String, Field)>,
}

/// A value that says nothing.
fn empty(field: &Field) -> bool {
    match &field.node.value {
        Value::Null => true,
        Value::List(items) => items.is_empty(),
        Value::Map(pairs) => pairs.is_empty(),
        _ => false,
    }
}

impl Keys {
    /// Opens a mapping; anything else is a mistake.
    fn open(field: Field, said: &mut Said) -> Option<Self> {
        let (path, line) = (field.path.clone(), field.node.line);
        let entries = field.pairs(&mut said.wrong, KEYS_MAX)?;
        Some(Self { path, line, entries })
    }
    /// The same of one that may be missing.
    fn open_some(field: Option<Field>, said: &mut Said) -> Self {
        let none = Self { path: String::new(), line: None, entries: Vec::new() };
        field.and_then(|f| Self::open(f, said)).unwrap_or(none)
    }
    /// Takes a key out, even where it says nothing.
    fn pull(&mut self, key: &str) -> Option<Field> {
        let at = self.entries.iter().position(|(k, _)| k == key)?;
        Some(self.entries.remove(at).1)
    }
    /// Takes a key out that says something.
    fn take(&mut self, key: &str) -> Option<Field> {
        self.pull(key).filter(|f| !empty(f))
    }
    fn text(&mut self, key: &str, said: &mut Said) -> Option<String> {
        self.take(key).and_then(|f| text(f, said))
    }
    /// Says what becomes of the keys that are left. One that nobody knows is refused: it may mean anything.
    fn leave(self, said: &mut Said, table: &Table) {
        for (key, field) in self.entries.into_iter().filter(|(_, f)| !empty(f)) {
            match table.iter().find(|(name, ..)| *name == key) {
                Some((_, Note, why)) => said.note(&field, why),
                Some((_, Refuse, why)) => said.refuse(&field, why),
                None => said.refuse(&field, "no such key is known here: take it out"),
            }
        }
    }
}

/// Text, or a number or boolean as it was spelled.
fn text(field: Field, said: &mut Said) -> Option<String> {
    field.spelled(&mut said.wrong, "must be text")
}

/// The items of a list.
fn items(field: Option<Field>, said: &mut Said) -> Vec<Field> {
    field.and_then(|f| f.items(&mut said.wrong, KEYS_MAX)).unwrap_or_default()
}

/// A name in the alphabet of names.
fn name(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' })
        .take(super::spec::limits::NAME_BYTES_MAX - 1)
        .collect();
    if plain.starts_with(|c: char| c.is_ascii_alphanumeric()) { plain } else { format!("j{plain}") }
}

/// Text inside single quotes for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
