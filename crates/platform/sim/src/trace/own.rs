//! The project's own format: one call per row.
//!
//! ```text
//! function,arrival_us,duration_us[,payload_bytes]
//! ```
//! Times are in microseconds, in any order. An empty duration is taken from the function's profile.

use super::builder::Builder;
use super::files::Source;
use super::numbers::{bytes, duration, micros};
use super::rows;
use super::sorter::Call;
use crate::error::SimError;

/// The columns; the last one may be missing.
pub const COLUMNS: [&str; 4] = ["function", "arrival_us", "duration_us", "payload_bytes"];

pub fn read(sources: &[Source], builder: &mut Builder) -> Result<(), SimError> {
    let (required, optional) = COLUMNS.split_at(3);
    for source in sources {
        rows::read(source, required, optional, builder, |row, builder| {
            let name = row.given(0, "the function")?;
            let arrival_us = micros("the arrival", row.given(1, "the arrival")?, 1.0)?;
            if arrival_us < 0 {
                return Err(format!("the arrival is negative: '{}'", row.text(1)));
            }
            let duration_us = match row.text(2) {
                "" => None,
                text => Some(duration(text, 1.0)?),
            };
            let payload_bytes = match row.text(3) {
                "" => 0,
                text => bytes(text)?,
            };
            let function = builder.function("", name);
            builder.call(Call { arrival_us, function, duration_us, payload_bytes });
            Ok(())
        })?;
    }
    Ok(())
}
