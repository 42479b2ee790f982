//! Collections with a stated limit, where being full is an ordinary answer.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The collection holds as much as it may; the item was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("full: at most {0} items")]
pub struct Full(pub usize);

/// A vector of at most `N` items. Reading one with more is an error, not a truncation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoundedVec<T, const N: usize>(Vec<T>);

impl<T, const N: usize> Default for BoundedVec<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const N: usize> BoundedVec<T, N> {
    /// Adds an item, or says that there is no room.
    pub fn push(&mut self, item: T) -> Result<(), Full> {
        if self.0.len() >= N {
            return Err(Full(N));
        }
        self.0.push(item);
        Ok(())
    }
    /// Adds an item, dropping the oldest when full; returns what was dropped.
    pub fn push_rolling(&mut self, item: T) -> Option<T> {
        let dropped = (self.0.len() >= N && N > 0).then(|| self.0.remove(0));
        self.0.push(item);
        dropped
    }
    /// Keeps what the test accepts.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.0.retain(keep);
    }
    /// The items, to change in place.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T, const N: usize> std::ops::Deref for BoundedVec<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}
impl<T, const N: usize> TryFrom<Vec<T>> for BoundedVec<T, N> {
    type Error = Full;
    fn try_from(items: Vec<T>) -> Result<Self, Full> {
        if items.len() > N { Err(Full(N)) } else { Ok(Self(items)) }
    }
}
impl<T: Serialize, const N: usize> Serialize for BoundedVec<T, N> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}
impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for BoundedVec<T, N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::try_from(Vec::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}
impl<T: JsonSchema, const N: usize> JsonSchema for BoundedVec<T, N> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("UpTo{N}Of{}", T::schema_name()).into()
    }
    fn json_schema(schemas: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "array", "items": schemas.subschema_for::<T>(), "maxItems": N })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_is_an_answer() {
        let mut v = BoundedVec::<u8, 2>::default();
        assert_eq!(v.push(1), Ok(()));
        assert_eq!(v.push(2), Ok(()));
        assert_eq!(v.push(3), Err(Full(2)));
        assert_eq!(v.push_rolling(3), Some(1));
        assert_eq!(&v[..], [2, 3]);
        assert!(serde_json::from_str::<BoundedVec<u8, 2>>("[1,2,3]").is_err());
    }
}
