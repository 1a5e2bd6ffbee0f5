//! Huawei Public 2025: one call per row of a table of requests (`README_data_release_2025.md` of
//! `sir-lab/data-release`).
//!
//! ```text
//! requests   time_worker,time_frontend,requestID,clusterName,funcName,podID,userID,totalCost_worker,…,
//!            cpu_usage,memory_usage,requestBodySize                                     seconds, MB, bytes
//! resources  funcID,cpu_request,runtime,triggerType-invocationType
//! ```
//! A function is what the release says it is: the name, the user and the pool of its pods. A call takes
//! `totalCost_worker`. Its time is that of the log of its end: in the release's example, the frontend's time is
//! 1 ms after the worker's, and a frontend gets a call before a worker does. Where the worker's is missing, the
//! frontend's times are used. The memory of a function is the most that one of its calls has used. What it is given is the
//! last number of its pool's name, in MB (`pool22-300-128`: 300 millicores, 128 MB); the table of resources has only processors.

use super::builder::Builder;
use super::files::Source;
use super::numbers::{bytes, duration, mebibytes, micros};
use super::rows::{self, Row};
use super::sorter::Call;
use crate::error::SimError;

/// The wanted columns of the table of requests.
pub const REQUIRED: [&str; 5] = ["time_worker", "funcName", "userID", "podID", "totalCost_worker"];
/// Columns that may be missing, or empty.
pub const OPTIONAL: [&str; 4] =
    ["time_frontend", "totalCost_frontend", "memory_usage", "requestBodySize"];
/// The wanted columns of the table of resources.
pub const RESOURCES: [&str; 2] = ["funcID", "cpu_request"];
const SECOND_US: f64 = 1e6;

pub fn read(sources: &[Source], builder: &mut Builder) -> Result<(), SimError> {
    for source in sources {
        if source.has(&RESOURCES) {
            builder.notes.push(format!(
                "{}: requests of processors are not simulated; the table is not used",
                source.path.display()
            ));
            continue;
        }
        rows::read(source, &REQUIRED, &OPTIONAL, builder, |row, builder| {
            let (end, took) = times(row)?;
            let end_us = micros("the time", end, SECOND_US)?;
            let duration_us = duration(took, SECOND_US)?;
            let payload_bytes = match row.text(8) {
                "" => 0,
                text => bytes(text)?,
            };
            let memory_bytes = match row.text(7) {
                "" | "0" | "0.0" => None,
                text => Some(mebibytes(text)?),
            };
            let (owner, name) = function(row)?;
            if let (Some(used), Some(given)) = (memory_bytes, given_bytes(&name)) {
                builder.provisioned.add(used, given);
            }
            let function = builder.function(&owner, &name);
            if let Some(known) = builder.functions.get_mut(function as usize) {
                known.memory_bytes = known.memory_bytes.max(memory_bytes);
            }
            let arrival_us = end_us - i64::try_from(duration_us).unwrap_or(i64::MAX);
            let duration_us = Some(duration_us);
            builder.call(Call { arrival_us, function, duration_us, payload_bytes });
            Ok(())
        })?;
    }
    Ok(())
}

/// The user of a row's function, and its name: `funcName---poolName`.
pub fn function(row: &Row<'_>) -> Result<(String, String), String> {
    let (name, user) = (row.given(1, REQUIRED[1])?, row.given(2, REQUIRED[2])?);
    let pod = row.given(3, REQUIRED[3])?;
    // `pool22-300-128-0000618412` is a pod of `pool22-300-128`.
    let pool = pod.rsplit_once('-').map_or(pod, |(pool, _)| pool);
    Ok((user.to_owned(), format!("{name}---{pool}")))
}

/// The memory of a pod of the function's pool.
fn given_bytes(name: &str) -> Option<u64> {
    let (_, megabytes) = name.rsplit_once('-')?;
    megabytes
        .parse::<u64>()
        .ok()
        .filter(|given| (1..1 << 20).contains(given))
        .map(|given| given << 20)
}

/// The time of a call's end, and how long it took.
fn times<'a>(row: &'a Row<'_>) -> Result<(&'a str, &'a str), String> {
    match (row.text(0), row.text(4), row.text(5), row.text(6)) {
        ("", _, end, took) | (_, "", end, took) if !end.is_empty() && !took.is_empty() => {
            Ok((end, took))
        }
        _ => Ok((row.given(0, REQUIRED[0])?, row.given(4, REQUIRED[4])?)),
    }
}
