//! How long something took, counted without a clock of its own and in bounded space.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::Span;

/// Upper bounds of the buckets, milliseconds.
pub const BOUNDS_MS: [u64; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2_048, 8_192];

/// A histogram.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Durations {
    /// How many took at most as long as each bound.
    pub at_most: [u64; BOUNDS_MS.len()],
    /// How many there were.
    pub count: u64,
    /// All of them together.
    pub sum: Span,
}

impl Durations {
    /// One more.
    pub fn add(&mut self, took: Span) {
        for (n, bound) in self.at_most.iter_mut().zip(BOUNDS_MS) {
            *n += u64::from(took <= Span::millis(bound));
        }
        self.count += 1;
        self.sum = Span(self.sum.0.saturating_add(took.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let mut took = Durations::default();
        for ms in [1, 5, 100, 60_000] {
            took.add(Span::millis(ms));
        }
        assert_eq!(took.at_most, [1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3]);
        assert_eq!((took.count, took.sum), (4, Span::millis(60_106)));
    }
}
