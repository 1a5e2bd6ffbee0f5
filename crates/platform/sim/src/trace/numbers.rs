//! Numbers in rows of traces.

use super::rows::shown;

/// Longer runs are malformed: a year. So sums of times stay far from their limit.
const MOST_US: f64 = 365.0 * 24.0 * 3600.0 * 1e6;

/// Microseconds of a time in another unit; an error if it is out of range.
pub fn micros(what: &str, text: &str, unit_us: f64) -> Result<i64, String> {
    let us = number(what, text)? * unit_us;
    // Also refuses what is not a number.
    if us.abs() <= MOST_US * 100.0 {
        Ok(us.round() as i64)
    } else {
        Err(format!("{what} is out of range: '{}'", shown(text)))
    }
}

/// The same of a duration.
pub fn duration(text: &str, unit_us: f64) -> Result<u64, String> {
    let us = micros("the duration", text, unit_us)?;
    let us =
        u64::try_from(us).map_err(|_| format!("the duration is negative: '{}'", shown(text)))?;
    if us as f64 > MOST_US {
        return Err(format!("the duration is longer than a year: '{}'", shown(text)));
    }
    Ok(us)
}

/// Bytes of a number of MiB, which is above 0.
pub fn mebibytes(text: &str) -> Result<u64, String> {
    let mb: f64 = text.parse().map_err(|_| "the memory is not a number".to_owned())?;
    if !(mb > 0.0 && mb < 1e6) {
        return Err(format!("the memory is out of range: '{}'", shown(text)));
    }
    Ok((mb * 1_048_576.0) as u64)
}

/// A whole number of bytes, which may be written as `1018.0`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("the payload is not a number of bytes: '{}'", shown(text));
    let bytes = number("the payload", text).map_err(|_| wrong())?;
    if bytes.fract() != 0.0 || !(0.0..9e15).contains(&bytes) {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

fn number(what: &str, text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| format!("{what} is not a number: '{}'", shown(text)))
}
