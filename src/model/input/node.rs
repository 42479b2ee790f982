//! The tree that YAML, JSON and TOML are read into: values, the lines they stand on, and how numbers
//! were spelled (so that `1.10` in an environment stays `1.10`).

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Location, Spanned};
use toml::de::{DeTable, DeValue};

/// One value of a document.
#[derive(Debug, Clone)]
pub struct Node {
    /// What it is.
    pub value: Value,
    /// Its line, from 1, where it is known.
    pub line: Option<u32>,
    /// How a number or a boolean was spelled; empty for the others.
    pub spelling: String,
    /// Bytes of the source, until the spelling is taken from it.
    span: Option<(usize, usize)>,
}

/// What a value is. Keys keep their order, and repeated keys are all kept, to be named.
#[derive(Debug, Clone)]
pub enum Value {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number; beyond 127 bits it is cut to the largest.
    Int(i128),
    /// A number with a fraction or exponent.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values.
    Map(Vec<(String, Node)>),
    /// Something no field takes (a TOML date).
    Other,
}

/// The document is not well-formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    /// Line from 1, where it is known.
    pub line: Option<u32>,
    /// The parser's words, clipped and escaped.
    pub message: String,
}

impl Node {
    fn new(value: Value) -> Self {
        let spelling = match &value {
            Value::Bool(b) => b.to_string(),
            Value::Int(n) => n.to_string(),
            Value::Float(x) => x.to_string(),
            _ => String::new(),
        };
        Self { value, line: None, spelling, span: None }
    }

    /// Takes the spelling of numbers and booleans from the source they were read from.
    fn spell(&mut self, source: &str) {
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|n| n.spell(source)),
            Value::Map(pairs) => pairs.iter_mut().for_each(|(_, n)| n.spell(source)),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                let text = self.span.and_then(|(at, len)| source.get(at..at.checked_add(len)?));
                // A quoted or tagged scalar has more around it than its spelling.
                let bare = |t: &str| t.chars().all(|c| c.is_ascii_alphanumeric() || "+-._".contains(c));
                if let Some(text) = text.filter(|t| !t.is_empty() && t.len() <= 64 && bare(t)) {
                    self.spelling = text.to_owned();
                }
            }
            _ => {}
        }
    }
}

/// A node that is read through serde; YAML's carry their place.
struct Tree<const YAML: bool>(Node);

impl<'de, const YAML: bool> Deserialize<'de> for Tree<YAML> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(TreeVisitor::<YAML>).map(Tree)
    }
}

struct TreeVisitor<const YAML: bool>;

fn placed(tree: Spanned<Tree<true>>) -> Node {
    let mut node = tree.value.0;
    let line = |l: Location| u32::try_from(l.line()).ok().filter(|n| *n > 0);
    node.line = line(tree.referenced).or_else(|| line(tree.defined));
    let span = tree.defined.span();
    node.span = match (span.byte_offset(), span.byte_len()) {
        (Some(at), Some(len)) => usize::try_from(at).ok().zip(usize::try_from(len).ok()),
        _ => None,
    };
    node
}

impl<'de, const YAML: bool> Visitor<'de> for TreeVisitor<YAML> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::new(Value::Null))
    }
    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::new(Value::Null))
    }
    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Node, D::Error> {
        d.deserialize_any(self)
    }
    fn visit_bool<E>(self, b: bool) -> Result<Node, E> {
        Ok(Node::new(Value::Bool(b)))
    }
    fn visit_i64<E>(self, n: i64) -> Result<Node, E> {
        Ok(Node::new(Value::Int(n.into())))
    }
    fn visit_u64<E>(self, n: u64) -> Result<Node, E> {
        Ok(Node::new(Value::Int(n.into())))
    }
    fn visit_i128<E>(self, n: i128) -> Result<Node, E> {
        Ok(Node::new(Value::Int(n)))
    }
    fn visit_u128<E>(self, n: u128) -> Result<Node, E> {
        Ok(Node::new(Value::Int(i128::try_from(n).unwrap_or(i128::MAX))))
    }
    fn visit_f64<E>(self, x: f64) -> Result<Node, E> {
        Ok(Node::new(Value::Float(x)))
    }
    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::new(Value::Text(text.to_owned())))
    }
    fn visit_string<E>(self, text: String) -> Result<Node, E> {
        Ok(Node::new(Value::Text(text)))
    }
    fn visit_bytes<E: serde::de::Error>(self, _: &[u8]) -> Result<Node, E> {
        Err(E::custom("binary values are not taken"))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        if YAML {
            while let Some(item) = seq.next_element::<Spanned<Tree<true>>>()? {
                items.push(placed(item));
            }
        } else {
            while let Some(item) = seq.next_element::<Tree<false>>()? {
                items.push(item.0);
            }
        }
        Ok(Node::new(Value::List(items)))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key::<Tree<false>>()? {
            let key = match key.0.value {
                Value::Text(text) => text,
                Value::Bool(_) | Value::Int(_) | Value::Float(_) => key.0.spelling,
                _ => return Err(A::Error::custom("a key must be text")),
            };
            let node = if YAML { placed(map.next_value()?) } else { map.next_value::<Tree<false>>()?.0 };
            pairs.push((key, node));
        }
        Ok(Node::new(Value::Map(pairs)))
    }
}

fn clipped(message: &str) -> String {
    let one_line: String = message
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(240)
        .collect::<String>()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    one_line
}

/// Reads YAML. Depth, nodes, aliases and what they may grow to are bounded; one document only.
pub fn from_yaml(text: &str) -> Result<Node, SyntaxError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 24,
            flow_nesting_limit: 24,
            max_events: 20_000,
            max_nodes: 10_000,
            max_aliases: 64,
            max_anchors: 64,
            max_recorded_anchor_events: 10_000,
            max_recorded_anchor_bytes: 256 * 1024,
            max_documents: 1,
            max_total_scalar_bytes: 256 * 1024,
            max_inclusion_depth: 0,
            max_merge_keys: 16,
        },
        // Repeated keys are all kept, so that each can be named with its line.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 10_000,
            max_replay_stack_depth: 8,
            max_alias_expansions_per_anchor: 64,
        },
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        reject_unsupported_tags: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    };
    let tree: Spanned<Tree<true>> = serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let line = e.location().and_then(|l| u32::try_from(l.line()).ok()).filter(|n| *n > 0);
        SyntaxError { line, message: clipped(&e.to_string()) }
    })?;
    let mut node = placed(tree);
    node.spell(text);
    Ok(node)
}

/// Reads JSON.
pub fn from_json(text: &str) -> Result<Node, SyntaxError> {
    serde_json::from_str::<Tree<false>>(text).map(|tree| tree.0).map_err(|e| SyntaxError {
        line: u32::try_from(e.line()).ok().filter(|n| *n > 0),
        message: clipped(&e.to_string()),
    })
}

/// Reads TOML as far as it goes: what could be read, and every place where it is not well-formed.
pub fn from_toml(text: &str) -> (Node, Vec<SyntaxError>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let lines = Lines::of(text);
    let errors = errors
        .into_iter()
        .map(|e| SyntaxError { line: e.span().map(|s| lines.at(s.start)), message: clipped(e.message()) })
        .collect();
    let mut node = Node::new(Value::Null);
    node.line = Some(1);
    node.value = toml_table(table.get_ref(), &lines);
    (node, errors)
}

fn toml_table(table: &DeTable<'_>, lines: &Lines) -> Value {
    let mut pairs: Vec<(usize, String, Node)> = table
        .iter()
        .map(|(key, value)| {
            let at = value.span().start;
            (at, key.get_ref().to_string(), toml_node(value.get_ref(), lines.at(at), lines))
        })
        .collect();
    pairs.sort_by_key(|(at, ..)| *at);
    Value::Map(pairs.into_iter().map(|(_, key, node)| (key, node)).collect())
}

fn toml_node(value: &DeValue<'_>, line: u32, lines: &Lines) -> Node {
    let (value, spelling) = match value {
        DeValue::String(text) => (Value::Text(text.to_string()), String::new()),
        DeValue::Integer(n) => {
            let read = i128::from_str_radix(n.as_str(), n.radix());
            (Value::Int(read.unwrap_or(i128::MAX)), n.to_string())
        }
        DeValue::Float(x) => (x.as_str().parse().map_or(Value::Other, Value::Float), x.to_string()),
        DeValue::Boolean(b) => (Value::Bool(*b), b.to_string()),
        DeValue::Datetime(date) => (Value::Other, date.to_string()),
        DeValue::Array(items) => {
            let nodes =
                items.iter().map(|item| toml_node(item.get_ref(), lines.at(item.span().start), lines));
            (Value::List(nodes.collect()), String::new())
        }
        DeValue::Table(table) => (toml_table(table, lines), String::new()),
    };
    Node { value, line: Some(line), spelling, span: None }
}

/// Where lines begin.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at).collect())
    }
    fn at(&self, offset: usize) -> u32 {
        u32::try_from(self.0.partition_point(|end| *end < offset) + 1).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child<'a>(node: &'a Node, key: &str) -> &'a Node {
        let Value::Map(pairs) = &node.value else { panic!("{node:?} is no mapping") };
        &pairs.iter().find(|(k, _)| k == key).expect("the key is there").1
    }

    #[test]
    fn yaml_keeps_lines_and_spelling() {
        let node = from_yaml("a: 1.10\nb:\n  - yes\n  - 0x1F\nc: &x {d: 1e3}\ne: *x\n").expect("good");
        assert_eq!((child(&node, "a").spelling.as_str(), child(&node, "a").line), ("1.10", Some(1)));
        let Value::List(items) = &child(&node, "b").value else { panic!("a list") };
        assert!(matches!(&items[0].value, Value::Text(t) if t == "yes"), "{items:?}");
        assert!(
            matches!(items[1].value, Value::Int(31))
                && items[1].spelling == "0x1F"
                && items[1].line == Some(4)
        );
        assert_eq!(child(child(&node, "e"), "d").spelling, "1e3");
    }

    #[test]
    fn repeated_keys_are_all_kept() {
        for node in [from_yaml("a: 1\na: 2\n"), from_json(r#"{"a":1,"a":2}"#)] {
            let Ok(Node { value: Value::Map(pairs), .. }) = node else { panic!("a mapping") };
            assert_eq!(pairs.len(), 2);
        }
    }

    #[test]
    fn bombs_are_refused() {
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for i in 1..12 {
            let refs = vec![format!("*a{}", i - 1); 10].join(",");
            bomb.push_str(&format!("a{i}: &a{i} [{refs}]\n"));
        }
        assert!(from_yaml(&bomb).is_err());
        assert!(from_yaml(&"[".repeat(5_000)).is_err());
        assert!(
            from_yaml(&(0..2_000).map(|i| format!("{}a:\n", " ".repeat(i))).collect::<String>()).is_err()
        );
        assert!(from_json(&"[".repeat(5_000)).is_err());
        assert!(from_yaml("a: 1\n---\nb: 2\n").is_err(), "one document only");
    }

    #[test]
    fn toml_names_every_syntax_error_with_its_line() {
        let (node, errors) = from_toml("a = 1\nb = = 2\nc = 3\nd = \"x\n");
        assert!(errors.len() >= 2, "{errors:?}");
        assert_eq!(errors[0].line, Some(2));
        assert_eq!(child(&node, "c").line, Some(3));
    }
}
