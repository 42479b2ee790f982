//! Reading what people write: a tree of values with their lines, and every mistake named at once.
//!
//! Job files (YAML, JSON) and configurations (TOML) are read into one `Node` tree first, so that the
//! checks, the wording of mistakes and the "did you mean" are the same for both.

mod fields;
pub mod fill;
mod mistake;
mod node;
pub mod words;

pub use fields::{Field, Fields, Key};
pub use mistake::{MISTAKES_MAX, Mistake, Mistakes, nearest, show};
pub use node::{Node, SyntaxError, Value, from_json, from_toml, from_yaml};
