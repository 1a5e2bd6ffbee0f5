//! Sizes with units.

/// Bytes of a size such as `512M` or `4G`. A number without a unit is bytes.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        unit => return Err(format!("invalid unit '{unit}' (expected K, M, G or T, e.g. 512M)")),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("invalid size '{text}' (expected e.g. 512M)"))?;
    number
        .checked_shl(shift)
        .filter(|bytes| bytes >> shift == number)
        .ok_or_else(|| format!("invalid size '{text}' (it does not fit into 64 bits)"))
}

/// A size with its unit, e.g. `1.5 MiB`.
pub(crate) fn show(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        assert_eq!(parse("4G"), Ok(4 << 30));
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("7"), Ok(7));
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in ["", "G", "4X", "-1M", "99999999999999999999", "99999999T"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_with_their_unit() {
        assert_eq!(show(12), "12 B");
        assert_eq!(show(3 << 19), "1.5 MiB");
    }
}
