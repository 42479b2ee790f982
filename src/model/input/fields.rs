//! Taking a tree apart field by field, noting every mistake on the way.

use std::ops::RangeInclusive;

use super::mistake::{Mistake, Mistakes, nearest, show};
use super::node::{Node, Value};

/// One key that a mapping may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// As written.
    pub name: &'static str,
    /// Its machinery is there; else it is checked and refused.
    pub ready: bool,
}

/// A value with the path it stands at.
#[derive(Debug)]
pub struct Field {
    /// `resources.gpus`, `nodes[2].name`.
    pub path: String,
    /// The value.
    pub node: Node,
}

/// The keys of one mapping that are still to be taken.
#[derive(Debug)]
pub struct Fields {
    path: String,
    line: Option<u32>,
    entries: Vec<(String, Node)>,
    taken: Vec<String>,
}

fn join(path: &str, key: &str) -> String {
    let plain = key.len() <= 64
        && !key.is_empty()
        && key.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let key = if plain { key.to_owned() } else { show(key) };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

impl Field {
    /// Notes that the value is wrong and what would be right.
    pub fn wrong(&self, m: &mut Mistakes, want: impl Into<String>) {
        let value = Some(self.shown());
        m.add(Mistake { key: self.path.clone(), line: self.node.line, value, want: want.into() });
    }

    /// The same where the value opens a door: it is not shown.
    pub fn wrong_secret(&self, m: &mut Mistakes, want: impl Into<String>) {
        m.add(Mistake { key: self.path.clone(), line: self.node.line, value: None, want: want.into() });
    }

    /// The value as a message may show it.
    pub fn shown(&self) -> String {
        match &self.node.value {
            Value::Null => "nothing".into(),
            Value::Text(text) => show(text),
            Value::List(items) => format!("a list of {}", items.len()),
            Value::Map(pairs) => format!("a mapping of {} keys", pairs.len()),
            _ => self.node.spelling.chars().take(60).collect(),
        }
    }

    /// Text that `read` takes; anything else is noted with `want`.
    pub fn read<T>(self, m: &mut Mistakes, want: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let Value::Text(text) = &self.node.value else {
            let scalar = matches!(self.node.value, Value::Bool(_) | Value::Int(_) | Value::Float(_));
            let hint = if scalar && read(&self.node.spelling).is_some() { ": put it in quotes" } else { "" };
            self.wrong(m, format!("{want}{hint}"));
            return None;
        };
        let value = read(text);
        if value.is_none() {
            self.wrong(m, want);
        }
        value
    }

    /// One of a few words.
    pub fn word<T: Copy>(self, m: &mut Mistakes, words: &[(&str, T)]) -> Option<T> {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let mut want = format!("must be one of {}", names.join(", "));
        if let Value::Text(text) = &self.node.value {
            if let Some((_, value)) = words.iter().find(|(name, _)| name == text) {
                return Some(*value);
            }
            if let Some(near) = nearest(text, names) {
                want.push_str(&format!("; did you mean {near}?"));
            }
        }
        self.wrong(m, want);
        None
    }

    /// A whole number inside a range.
    pub fn whole(self, m: &mut Mistakes, range: RangeInclusive<u64>) -> Option<u64> {
        if let Value::Int(n) = self.node.value
            && let Ok(n) = u64::try_from(n)
            && range.contains(&n)
        {
            return Some(n);
        }
        self.wrong(m, format!("must be a whole number from {} to {}", range.start(), range.end()));
        None
    }

    /// A whole number inside a range that fits 32 bits.
    pub fn whole32(self, m: &mut Mistakes, range: RangeInclusive<u32>) -> Option<u32> {
        let wide = u64::from(*range.start())..=u64::from(*range.end());
        self.whole(m, wide).and_then(|n| u32::try_from(n).ok())
    }

    /// A number inside a range, in thousandths.
    pub fn milli(self, m: &mut Mistakes, range: RangeInclusive<u64>) -> Option<u64> {
        let number = match self.node.value {
            Value::Int(n) => n as f64,
            Value::Float(x) => x,
            _ => f64::NAN,
        };
        let (low, high) = (*range.start() as f64 / 1e3, *range.end() as f64 / 1e3);
        if number >= low && number <= high {
            return Some((number * 1e3).round() as u64);
        }
        self.wrong(m, format!("must be a number from {low} to {high}"));
        None
    }

    /// True or false.
    pub fn flag(self, m: &mut Mistakes) -> Option<bool> {
        if let Value::Bool(b) = self.node.value {
            return Some(b);
        }
        self.wrong(m, "must be true or false");
        None
    }

    /// Text, or a number or boolean as it was spelled.
    pub fn spelled(self, m: &mut Mistakes, want: &str) -> Option<String> {
        match self.node.value {
            Value::Text(text) => Some(text),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => Some(self.node.spelling),
            _ => {
                self.wrong(m, want);
                None
            }
        }
    }

    /// The items of a list, or the value itself as the only one.
    pub fn one_or_many(self, m: &mut Mistakes, max: usize) -> Vec<Field> {
        if matches!(self.node.value, Value::List(_)) {
            self.items(m, max).unwrap_or_default()
        } else {
            vec![self]
        }
    }

    /// The items of a list of at most `max`.
    pub fn items(self, m: &mut Mistakes, max: usize) -> Option<Vec<Field>> {
        match self.node.value {
            Value::List(items) if items.len() <= max => {
                let path = &self.path;
                let field = |(i, node)| Field { path: format!("{path}[{i}]"), node };
                Some(items.into_iter().enumerate().map(field).collect())
            }
            _ => {
                self.wrong(m, format!("must be a list of at most {max}"));
                None
            }
        }
    }

    /// A mapping's keys, whatever they are; repeated ones are noted.
    pub fn pairs(self, m: &mut Mistakes, max: usize) -> Option<Vec<(String, Field)>> {
        if !matches!(&self.node.value, Value::Map(pairs) if pairs.len() <= max) {
            self.wrong(m, format!("must be a mapping of at most {max} keys"));
            return None;
        }
        let fields = Fields::of(self, m)?;
        let path = fields.path;
        Some(
            fields
                .entries
                .into_iter()
                .map(|(key, node)| (key.clone(), Field { path: join(&path, &key), node }))
                .collect(),
        )
    }
}

impl Fields {
    /// Opens a mapping; repeated keys are noted and the first one stays.
    pub fn of(field: Field, m: &mut Mistakes) -> Option<Fields> {
        let Value::Map(pairs) = field.node.value else {
            field.wrong(m, "must be a mapping of keys to values");
            return None;
        };
        let mut fields =
            Fields { path: field.path, line: field.node.line, entries: Vec::new(), taken: Vec::new() };
        for (key, node) in pairs {
            if let Some((_, first)) = fields.entries.iter().find(|(k, _)| *k == key) {
                let at = first.line.map_or(String::new(), |n| format!(" (first on line {n})"));
                let want = format!("written twice{at}: keep one");
                m.add(Mistake { key: join(&fields.path, &key), line: node.line, value: None, want });
            } else {
                fields.entries.push((key, node));
            }
        }
        Some(fields)
    }

    /// Takes one key out. A key with nothing behind it is noted.
    pub fn take(&mut self, key: &str, m: &mut Mistakes) -> Option<Field> {
        let at = self.entries.iter().position(|(k, _)| k == key)?;
        let (_, node) = self.entries.remove(at);
        self.taken.push(key.to_owned());
        let field = Field { path: join(&self.path, key), node };
        if matches!(field.node.value, Value::Null) {
            field.wrong(m, "has no value: give one, or remove the key");
            return None;
        }
        Some(field)
    }

    /// Is the key still there?
    pub fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(k, _)| k == key)
    }

    /// Was the key there, right or wrong, and taken?
    pub fn had(&self, key: &str) -> bool {
        self.taken.iter().any(|k| k == key)
    }

    /// Notes a mistake about the mapping as a whole.
    pub fn missing(&self, m: &mut Mistakes, key: &str, want: &str) {
        m.add(Mistake { key: join(&self.path, key), line: self.line, value: None, want: want.into() });
    }

    /// Notes every key that was not taken, with what it probably meant.
    pub fn finish(self, m: &mut Mistakes, known: &[Key], familiar: &[(&str, &str)]) {
        for (key, node) in self.entries {
            if known.iter().any(|k| k.name == key) {
                continue; // Noted where it was taken.
            }
            let plain = key.trim_start_matches('-').replace('-', "_");
            let want = if let Some((_, hint)) = familiar.iter().find(|(name, _)| *name == plain) {
                format!("not a key here: {hint}")
            } else if let Some(near) = nearest(&key, known.iter().map(|k| k.name)) {
                format!("unknown key; did you mean {near}?")
            } else {
                let names: Vec<_> = known.iter().filter(|k| k.ready).map(|k| k.name).collect();
                format!("unknown key; known are {}", names.join(", "))
            };
            m.add(Mistake { key: join(&self.path, &key), line: node.line, value: None, want });
        }
    }
}
