//! Quantities as Kubernetes writes them: `500m`, `1.5Gi`, `129e6`, `4G` (decimal here, unlike in job files).

/// The quantity in thousandths, rounded up; none where it is none, or is too large.
pub(super) fn milli(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if !unit.is_ascii() || number.len() > 30 {
        return None;
    }
    // Thousandths of one unit; the fraction is kept exactly.
    let scale: u128 = match unit {
        "" => 1_000,
        "n" | "u" => return milli_of_small(number, unit),
        "m" => 1,
        "k" => 1_000 * 1_000,
        "M" => 1_000_000 * 1_000,
        "G" => 1_000_000_000 * 1_000,
        "T" => 1_000_000_000_000 * 1_000,
        "P" => 1_000_000_000_000_000 * 1_000,
        "Ki" => 1_000 << 10,
        "Mi" => 1_000 << 20,
        "Gi" => 1_000 << 30,
        "Ti" => 1_000 << 40,
        "Pi" => 1_000 << 50,
        _ => {
            let power: u32 = unit.strip_prefix(['e', 'E'])?.trim_start_matches('+').parse().ok()?;
            10u128.checked_pow(power.checked_add(3).filter(|p| *p <= 21)?)?
        }
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() {
        return None;
    }
    let digits = |t: &str| if t.is_empty() { Some(0) } else { t.parse::<u128>().ok() };
    let of_whole = digits(whole)?.checked_mul(scale)?;
    let ten = 10u128.checked_pow(u32::try_from(part.len()).ok()?)?;
    let of_part = digits(part)?.checked_mul(scale)?.div_ceil(ten);
    u64::try_from(of_whole.checked_add(of_part)?).ok()
}

fn milli_of_small(number: &str, unit: &str) -> Option<u64> {
    let per: u64 = if unit == "n" { 1_000_000 } else { 1_000 };
    number.parse::<u64>().ok().map(|n| n.div_ceil(per))
}

/// The quantity in whole ones, rounded up.
pub(super) fn whole(text: &str) -> Option<u64> {
    // Sizes of exabytes have no thousandths that fit; nobody asks for them.
    milli(text).map(|m| m.div_ceil(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_does() {
        for (text, wanted) in [
            ("1", 1_000),
            ("500m", 500),
            ("0.1", 100),
            (".5", 500),
            ("2.", 2_000),
            ("1.5Gi", 1_610_612_736_000),
            ("128974848", 128_974_848_000),
            ("129e6", 129_000_000_000),
            ("129M", 129_000_000_000),
            ("123Mi", 128_974_848_000),
            ("1k", 1_000_000),
            ("100u", 1),
            ("0.0001", 1),
        ] {
            assert_eq!(milli(text), Some(wanted), "{text}");
        }
        for bad in
            ["", "G", "-1", "1x", "1.2.3", "1e99", "99999999999999999999999", "1e-3", "1ki", "é", ".", "1é"]
        {
            assert_eq!(milli(bad), None, "{bad}");
        }
        assert_eq!(whole("1500m"), Some(2));
    }
}
