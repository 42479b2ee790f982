//! Units that carry their meaning: a bare number is neither bytes nor cores.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// Thousandths of a CPU core; fixed point, so that all peers add alike.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct MilliCpu(pub u64);

impl Bytes {
    /// From mebibytes.
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }
    /// From gibibytes.
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let text = if unit == 0 || value.fract() < 0.05 {
            format!("{value:.0} {}", UNITS[unit])
        } else {
            format!("{value:.1} {}", UNITS[unit])
        };
        f.pad(&text)
    }
}

impl FromStr for Bytes {
    type Err = String;
    /// `512MiB`, `16G` (as in Slurm and Kubernetes: `K M G T` are binary here), `80 GB` (decimal), `1024`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{:?} is not a size such as 512MiB, 16G or 1TiB",
                text.chars().take(40).collect::<String>()
            )
        };
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let number: u64 = trimmed.get(..digits).ok_or_else(wrong)?.parse().map_err(|_| wrong())?;
        let scale: u64 = match trimmed[digits..].trim() {
            "" | "B" => 1,
            "K" | "Ki" | "KiB" => 1 << 10,
            "M" | "Mi" | "MiB" => 1 << 20,
            "G" | "Gi" | "GiB" => 1 << 30,
            "T" | "Ti" | "TiB" => 1 << 40,
            "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            _ => return Err(wrong()),
        };
        number.checked_mul(scale).map(Bytes).ok_or_else(wrong)
    }
}

impl fmt::Display for MilliCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.0.is_multiple_of(1000) {
            format!("{}", self.0 / 1000)
        } else {
            format!("{:.2}", self.0 as f64 / 1000.0)
        };
        f.pad(&text)
    }
}

impl FromStr for MilliCpu {
    type Err = String;
    /// Cores (`4`, `0.5`) or thousandths (`500m`).
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{:?} is not a CPU count such as 4, 0.5 or 500m",
                text.chars().take(40).collect::<String>()
            )
        };
        let t = text.trim();
        if let Some(milli) = t.strip_suffix('m') {
            return milli.parse().map(MilliCpu).map_err(|_| wrong());
        }
        let cores: f64 = t.parse().map_err(|_| wrong())?;
        if !(0.0..=1e6).contains(&cores) {
            return Err(wrong());
        }
        Ok(MilliCpu((cores * 1000.0).round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_cores() {
        assert_eq!("16G".parse::<Bytes>(), Ok(Bytes::gib(16)));
        assert_eq!("80 GB".parse::<Bytes>(), Ok(Bytes(80_000_000_000)));
        assert_eq!(Bytes::mib(1536).to_string(), "1.5 GiB");
        for bad in ["", "G", "-1", "1.5G", "1Q", "99999999999999999999", "18446744073709551615T"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
        assert_eq!("0.5".parse::<MilliCpu>(), Ok(MilliCpu(500)));
        assert_eq!("250m".parse::<MilliCpu>(), Ok(MilliCpu(250)));
        for bad in ["", "-1", "nan", "inf", "1e9", "m"] {
            assert!(bad.parse::<MilliCpu>().is_err(), "{bad}");
        }
    }
}
