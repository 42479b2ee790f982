//! Keys whose machinery comes later: their shape is checked, and they are refused, never ignored.

use crate::model::input::{Field, Fields, Mistakes, Value};

const NOT_YET: &str = "not supported by this peer yet: remove it";

/// What a value of such a key looks like.
#[derive(Clone, Copy)]
enum Shape {
    Map,
    Words,
    Flag,
}

const SHAPES: &[(&str, Shape, &str)] = &[
    ("reservation", Shape::Words, "must be a reservation's name"),
    ("quota", Shape::Words, "must be a quota's name"),
    ("service", Shape::Map, "must be a mapping"),
    ("stage", Shape::Flag, "must be true or false"),
];

fn has_shape(value: &Value, shape: Shape) -> bool {
    let text = |v: &Value| matches!(v, Value::Text(t) if !t.is_empty());
    match (shape, value) {
        (Shape::Map, Value::Map(_)) | (Shape::Flag, Value::Bool(_)) => true,
        (Shape::Words, Value::List(items)) => !items.is_empty() && items.iter().all(|n| text(&n.value)),
        (Shape::Words, value) => text(value),
        _ => false,
    }
}

/// Refuses one value of a key whose machinery is not there.
pub fn refuse(key: &str, field: &Field, m: &mut Mistakes) {
    match SHAPES.iter().find(|(name, ..)| *name == key) {
        Some((_, shape, want)) if !has_shape(&field.node.value, *shape) => {
            field.wrong(m, format!("{want}; and it is not supported by this peer yet"));
        }
        _ => field.wrong(m, NOT_YET),
    }
}

/// Takes every such key out of a mapping and refuses it.
pub fn refuse_all(fields: &mut Fields, keys: &[crate::model::input::Key], m: &mut Mistakes) {
    for key in keys.iter().filter(|k| !k.ready) {
        if let Some(field) = fields.take(key.name, m) {
            refuse(key.name, &field, m);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::spec_input::SECTIONS;

    #[test]
    fn every_later_key_has_a_shape() {
        for key in SECTIONS.iter().flat_map(|(_, keys)| keys.iter()).filter(|k| !k.ready) {
            assert!(SHAPES.iter().any(|(name, ..)| *name == key.name), "{}", key.name);
        }
    }
}
