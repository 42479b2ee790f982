//! Dates as people and traces write them, in UTC.

use time::format_description::well_known::Rfc3339;
use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time};

use crate::base::WallTime;

/// `2025-06-01T12:00:00Z`: whole seconds, UTC.
pub fn to_rfc3339(at: WallTime) -> String {
    let seconds = i64::try_from(at.0 / 1_000).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds)
        .ok()
        .and_then(|date| date.format(&Rfc3339).ok())
        .unwrap_or_else(|| "9999-12-31T23:59:59Z".into())
}

/// `2025-06-01T12:00:00Z` or `2017-10-09 07:01:55.250`, with an offset or without (UTC then), from
/// 1970 to 9999. None for anything else.
pub fn parse(text: &str) -> Option<WallTime> {
    let text = text.trim();
    if text.len() > 40 || !text.is_ascii() {
        return None;
    }
    let (date, rest) = text.split_at_checked(10)?;
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (clock, rest) = rest.split_at_checked(8)?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(i32::try_from(year).ok()?, month, u8::try_from(day).ok()?).ok()?;
    // A leap second is the second before it.
    let [hour, minute, second] =
        [hour, minute, second.min(59 + u32::from(second > 60))].map(|n| u8::try_from(n).ok());
    let clock = Time::from_hms(hour?, minute?, second?).ok()?;
    let (millis, rest) = fraction(rest)?;
    let offset = offset_seconds(rest)?;
    let seconds = PrimitiveDateTime::new(date, clock).assume_utc().unix_timestamp() - offset;
    Some(WallTime(u64::try_from(seconds).ok()? * 1_000 + millis))
}

fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn numbers<const N: usize>(text: &str, by: char, widths: [usize; N]) -> Option<[u32; N]> {
    let mut out = [0; N];
    let mut parts = text.split(by);
    for (place, width) in out.iter_mut().zip(widths) {
        *place = parts.next().filter(|p| p.len() == width).and_then(digits)?;
    }
    parts.next().is_none().then_some(out)
}

/// `.25` as milliseconds, and what follows.
fn fraction(text: &str) -> Option<(u64, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (part, rest) = rest.split_at(end);
    let milli: String = part.chars().chain("00".chars()).take(3).collect();
    (!part.is_empty()).then(|| Some((digits(&milli)?.into(), rest)))?
}

fn offset_seconds(text: &str) -> Option<i64> {
    if text.is_empty() || text == "Z" || text == "z" {
        return Some(0);
    }
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let [hours, minutes] = numbers(text.strip_prefix(['+', '-'])?, ':', [2, 2])?;
    (hours <= 23 && minutes <= 59).then(|| sign * i64::from(hours * 3_600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_read_and_print() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2025-06-01T12:00:00Z", 1_748_779_200_000),
            ("2025-06-01 12:00:00", 1_748_779_200_000),
            ("2025-06-01T14:00:00+02:00", 1_748_779_200_000),
            ("2025-06-01T12:00:00.5Z", 1_748_779_200_500),
            ("2024-02-29T00:00:00.123456Z", 1_709_164_800_123),
        ] {
            assert_eq!(parse(text), Some(WallTime(ms)), "{text}");
        }
        assert_eq!(to_rfc3339(WallTime(1_748_779_200_999)), "2025-06-01T12:00:00Z");
        assert_eq!(to_rfc3339(WallTime(u64::MAX)), "9999-12-31T23:59:59Z");
        for bad in [
            "",
            "now",
            "2025-06-01",
            "2025-13-01T00:00:00Z",
            "2025-02-29T00:00:00Z",
            "2025-06-01T24:00:00Z",
            "2025-06-01T12:61:00Z",
            "1969-12-31T23:59:59Z",
            "2025-06-01T12:00:00+99:00",
            "2025-06-01T12:00:00.Z",
            "2025-06-01T12:00:00Zx",
            "２025-06-01T12:00:00Z",
            "+025-06-01T12:00:00Z",
            "2025-06-01T12:00:00X",
            "2025-06-01T12:00:99Z",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
