//! The alphabets of what people name: one rule each, used by job files and configurations.

use crate::base::{Bytes, Span};

/// Bytes of a path, URI or image reference.
pub const REFERENCE_BYTES_MAX: usize = 1_024;

/// A job's or tenant's name.
pub const NAME: &str =
    "must be 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-', starting with a letter or digit";
/// A region, zone, or label value.
pub const PLACE: &str =
    "must be 1 to 63 characters of A-Z, a-z, 0-9, '.', '_' and '-', starting with a letter or digit";
/// A label's key.
pub const LABEL_KEY: &str =
    "must be 1 to 63 characters of A-Z, a-z, 0-9, '.', '_', '-' and '/', starting with a letter or digit";
/// A label's value.
pub const LABEL_VALUE: &str = "must be at most 63 characters of A-Z, a-z, 0-9, '.', '_' and '-'";
/// A peer's name.
pub const PEER: &str =
    "must be 1 to 63 characters of a-z, 0-9 and '-', starting and ending with a letter or digit";
/// A duration.
pub const DURATION: &str = "must be a duration with a unit such as 500ms, 30s, 5m, 2h or 1d";
/// A size.
pub const SIZE: &str = "must be a size with a unit such as 512MiB, 16G or 1TiB";

fn of(text: &str, max: usize, extra: &str) -> bool {
    text.len() <= max
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || extra.contains(c))
}

/// See [`NAME`].
pub fn name(text: &str) -> bool {
    of(text, crate::model::spec::limits::NAME_BYTES_MAX, "._-")
}
/// See [`PLACE`].
pub fn place(text: &str) -> bool {
    of(text, 63, "._-")
}
/// See [`LABEL_KEY`].
pub fn label_key(text: &str) -> bool {
    of(text, 63, "._-/")
}
/// See [`LABEL_VALUE`].
pub fn label_value(text: &str) -> bool {
    text.is_empty()
        || text.len() <= 63 && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}
/// No control characters, not empty, not too long.
pub fn printable(text: &str) -> bool {
    !text.is_empty() && text.len() <= REFERENCE_BYTES_MAX && !text.chars().any(char::is_control)
}
/// An absolute path.
pub fn absolute(text: &str) -> bool {
    printable(text) && text.starts_with('/')
}
/// `scheme://rest`.
pub fn uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    printable(text) && !rest.is_empty() && !text.contains(' ') && of(scheme, 16, "+.-")
}
/// A container image, `registry/path:tag` or `…@sha256:…`; never something that looks like an option.
pub fn image(text: &str) -> bool {
    of(text, 512, "._-/:@") && !text.contains("//") && !text.ends_with(['/', ':', '@'])
}
/// An environment variable's name.
pub fn env_name(text: &str) -> bool {
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A span as it reads back exactly (its `Display` rounds).
pub fn span_text(s: Span) -> String {
    const UNITS: [(u64, &str); 6] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
        (1, "us"),
    ];
    let unit = UNITS.iter().find(|(us, _)| s.0 > 0 && s.0.is_multiple_of(*us)).unwrap_or(&UNITS[3]);
    format!("{}{}", s.0 / unit.0, unit.1)
}

/// A size as it reads back exactly.
pub fn size_text(b: Bytes) -> String {
    const UNITS: [(u64, &str); 5] =
        [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")];
    let unit = UNITS.iter().find(|(n, _)| b.0.is_multiple_of(*n)).unwrap_or(&UNITS[4]);
    format!("{}{}", b.0 / unit.0, unit.1)
}
