//! Time as the core sees it: a monotonic instant, a span, and a wall-clock stamp for people.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Microseconds on a clock that only moves forward and counts through suspend
/// (`CLOCK_BOOTTIME` in production). Its origin means nothing outside one boot of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Instant(pub u64);

/// A length of time in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Span(pub u64);

/// Milliseconds since 1970 UTC, for people and logs; no decision depends on it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct WallTime(pub u64);

impl Instant {
    /// Time passed since `earlier`, zero if it lies ahead.
    pub fn since(self, earlier: Instant) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time.
    pub const ZERO: Span = Span(0);
    /// Longer than any job may be asked to wait (about 292 years).
    pub const FOREVER: Span = Span(i64::MAX as u64);

    /// From milliseconds.
    pub const fn millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000))
    }
    /// From seconds.
    pub const fn secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000))
    }
    /// In whole milliseconds, rounded down.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000
    }
    /// In seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
    /// `self * numerator / denominator` without overflow, saturating.
    pub fn scale(self, numerator: u64, denominator: u64) -> Self {
        let scaled = u128::from(self.0) * u128::from(numerator) / u128::from(denominator.max(1));
        Self(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
    /// For `tokio` and `std`.
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0)
    }
}

impl From<std::time::Duration> for Span {
    fn from(d: std::time::Duration) -> Self {
        Self(u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
    }
}

impl Add<Span> for Instant {
    type Output = Instant;
    fn add(self, span: Span) -> Instant {
        Instant(self.0.saturating_add(span.0))
    }
}
impl Sub<Span> for Instant {
    type Output = Instant;
    fn sub(self, span: Span) -> Instant {
        Instant(self.0.saturating_sub(span.0))
    }
}
impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}
impl AddAssign for Span {
    fn add_assign(&mut self, other: Span) {
        *self = *self + other;
    }
}
impl Sub for Span {
    type Output = Span;
    fn sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Span {
    /// Two significant parts: `850ms`, `4.2s`, `3m 20s`, `2h 5m`, `9d 4h`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0 / 1_000_000;
        let text = match self.0 {
            0..1_000 => format!("{}us", self.0),
            1_000..1_000_000 => format!("{}ms", self.0 / 1_000),
            1_000_000..60_000_000 => format!("{}.{}s", s, self.0 / 100_000 % 10),
            60_000_000..3_600_000_000 => format!("{}m {}s", s / 60, s % 60),
            3_600_000_000..86_400_000_000 => format!("{}h {}m", s / 3600, s / 60 % 60),
            _ => format!("{}d {}h", s / 86_400, s / 3600 % 24),
        };
        f.pad(&text)
    }
}
impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Span {
    type Err = String;
    /// A number and a unit, in any sum: `500ms`, `30s`, `1h30m`, `2d`; a bare number is refused.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{:?} is not a duration such as 500ms, 30s, 5m, 2h or 1d",
                text.chars().take(40).collect::<String>()
            )
        };
        let mut rest = text.trim();
        let mut total: u64 = 0;
        if rest.is_empty() || rest.len() > 40 {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
            let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
            let tail = &rest[digits..];
            let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == ' ').unwrap_or(tail.len());
            let scale: u64 = match &tail[..unit_end] {
                "us" => 1,
                "ms" => 1_000,
                "s" => 1_000_000,
                "m" | "min" => 60_000_000,
                "h" => 3_600_000_000,
                "d" => 86_400_000_000,
                _ => return Err(wrong()),
            };
            total = number.checked_mul(scale).and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
            rest = tail[unit_end..].trim_start();
        }
        Ok(Span(total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_and_print() {
        for (text, us) in [
            ("500ms", 500_000),
            ("30s", 30_000_000),
            ("1h30m", 5_400_000_000),
            ("2d", 172_800_000_000),
            ("1m 5s", 65_000_000),
        ] {
            assert_eq!(text.parse::<Span>(), Ok(Span(us)), "{text}");
        }
        for bad in
            ["", "5", "-1s", "1y", "s", "1.5s", "99999999999999999999s", "18446744073709551615d", "1s x"]
        {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
        assert_eq!(Span::secs(200).to_string(), "3m 20s");
        assert_eq!(Span::millis(4_250).to_string(), "4.2s");
        assert_eq!(Span(u64::MAX).scale(3, 2), Span(u64::MAX));
    }
}
