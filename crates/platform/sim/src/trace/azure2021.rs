//! Azure Functions 2021: one call per row, with the time of its *end*.
//!
//! ```text
//! app,func,end_timestamp,duration      in seconds
//! ```

use super::builder::Builder;
use super::files::Source;
use super::numbers::{duration, micros};
use super::rows;
use super::sorter::Call;
use crate::error::SimError;

/// The columns.
pub const COLUMNS: [&str; 4] = ["app", "func", "end_timestamp", "duration"];
const SECOND_US: f64 = 1e6;

pub fn read(sources: &[Source], builder: &mut Builder) -> Result<(), SimError> {
    for source in sources {
        rows::read(source, &COLUMNS, &[], builder, |row, builder| {
            let (app, name) = (row.given(0, "the app")?, row.given(1, "the function")?);
            let end_us = micros("the end", row.given(2, "the end")?, SECOND_US)?;
            let duration_us = duration(row.given(3, "the duration")?, SECOND_US)?;
            let arrival_us = end_us - i64::try_from(duration_us).unwrap_or(i64::MAX);
            let function = builder.function(app, name);
            let duration_us = Some(duration_us);
            builder.call(Call { arrival_us, function, duration_us, payload_bytes: 0 });
            Ok(())
        })?;
    }
    Ok(())
}
