//! Traces of calls: files in published formats, unmodified.
//!
//! A row that does not hold a call is *malformed*: it is counted, and the first ones are kept with their
//! line and the reason.

mod azure2019;
mod azure2021;
mod own;
mod rows;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::error::SimError;
use crate::malformed::Malformed;

/// Malformed rows of which the line and the reason are kept.
pub const SHOWN: usize = 20;
/// Longer runs are malformed: a year. So sums of times stay far from their limit.
const MOST_US: f64 = 365.0 * 24.0 * 3600.0 * 1e6;

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `function,arrival_us,duration_us[,payload_bytes]`.
    Own,
    /// Azure Functions 2019: calls per minute, with tables of durations and memory.
    Azure2019,
    /// Azure Functions 2021: `app,func,end_timestamp,duration`.
    Azure2021,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 3] = [Format::Own, Format::Azure2019, Format::Azure2021];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Format::Own => "own",
            Format::Azure2019 => "azure2019",
            Format::Azure2021 => "azure2021",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        let known = Format::ALL.map(Format::name).join(", ");
        if let Some(format) = Format::ALL.into_iter().find(|format| format.name() == text) {
            return Ok(format);
        }
        match text {
            "huawei2025" | "invitro" => {
                Err(format!("format '{text}' is not supported yet (supported: {known})"))
            }
            _ => Err(format!("unknown format '{text}' (supported: {known})")),
        }
    }
}

/// A function of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name: what stands in the trace, with its owner or app before a slash.
    pub name: String,
    /// Whose it is: calls of one owner share a limit of concurrent calls.
    pub owner: String,
    /// Memory of an instance in bytes, if the trace says so.
    pub memory_bytes: Option<u64>,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// When it arrives, in microseconds since the first one.
    pub arrival_us: u64,
    /// Index of its function.
    pub function: u32,
    /// How long it runs, in microseconds; if the trace does not say so, the profile has to.
    pub duration_us: Option<u64>,
    /// Bytes of its arguments.
    pub payload_bytes: u64,
}

/// Calls, in the order of their arrival.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The functions.
    pub functions: Vec<Function>,
    /// The calls.
    pub requests: Vec<Request>,
    /// Number of malformed rows.
    pub rows_malformed: u64,
    /// The first malformed rows.
    pub malformed: Vec<Malformed>,
    /// What was assumed where the trace says nothing.
    pub notes: Vec<String>,
    /// SHA-256 of all files, one after the other, in hexadecimal.
    pub sha256: String,
}

impl Trace {
    /// The owners of the functions, in their order.
    pub(crate) fn owners(&self) -> Vec<&str> {
        let mut owners: Vec<&str> = self.functions.iter().map(|one| one.owner.as_str()).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }
}

/// A file with a trace, read.
struct Source {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// What readers fill.
#[derive(Default)]
struct Builder {
    functions: Vec<Function>,
    known: BTreeMap<(String, String), u32>,
    /// Calls with their times as in the trace, which may be negative.
    calls: Vec<Call>,
    rows_malformed: u64,
    malformed: Vec<Malformed>,
    notes: Vec<String>,
}

struct Call {
    arrival_us: i64,
    function: u32,
    duration_us: Option<u64>,
    payload_bytes: u64,
}

impl Builder {
    /// The index of a function.
    fn function(&mut self, owner: &str, name: &str) -> u32 {
        let key = (owner.to_owned(), name.to_owned());
        if let Some(index) = self.known.get(&key) {
            return *index;
        }
        let index = u32::try_from(self.functions.len()).unwrap_or(u32::MAX);
        let full = if owner.is_empty() { name.to_owned() } else { format!("{owner}/{name}") };
        let function = Function { name: full, owner: owner.to_owned(), memory_bytes: None };
        self.functions.push(function);
        self.known.insert(key, index);
        index
    }

    /// Counts a malformed row. Its line is looked up only if it is kept.
    fn malformed(&mut self, path: &Path, line: impl FnOnce() -> u64, reason: String) {
        self.rows_malformed += 1;
        if self.malformed.len() < SHOWN {
            self.malformed.push(Malformed { path: path.to_owned(), line: line(), reason });
        }
    }
}

/// Reads a trace from files of one format. Without it, the header of the first file decides. `seed` places the
/// calls of formats that only count them.
pub fn read(paths: &[PathBuf], format: Option<Format>, seed: u64) -> Result<Trace, SimError> {
    let mut sources = Vec::new();
    let mut sha = Sha256::new();
    for path in paths {
        let bytes =
            fs::read(path).map_err(|source| SimError::Read { path: path.clone(), source })?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Err(SimError::trace(path, "it is empty"));
        }
        sha.update(&bytes);
        sources.push(Source { path: path.clone(), bytes });
    }
    let format = match format {
        Some(format) => format,
        None => guess(&sources)?,
    };
    let mut builder = Builder::default();
    match format {
        Format::Own => own::read(&sources, &mut builder)?,
        Format::Azure2019 => azure2019::read(&sources, &mut builder, seed)?,
        Format::Azure2021 => azure2021::read(&sources, &mut builder)?,
    }
    let sha256 = sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    finish(builder, sha256)
}

fn guess(sources: &[Source]) -> Result<Format, SimError> {
    let Some(first) = sources.first() else { return Ok(Format::Own) };
    let header = rows::first_line(&first.bytes);
    let has = |columns: &[&str]| columns.iter().all(|column| header.iter().any(|is| is == column));
    if has(&own::COLUMNS[..2]) {
        Ok(Format::Own)
    } else if has(&azure2019::KEY) || has(&azure2019::MEMORY[..2]) {
        Ok(Format::Azure2019)
    } else if has(&azure2021::COLUMNS) {
        Ok(Format::Azure2021)
    } else {
        let known = Format::ALL.map(Format::name).join(", ");
        let reason = format!(
            "its first line is not the header of a known format (supported: {known}); it begins with '{}'",
            rows::shown(&header.join(","))
        );
        Err(SimError::trace(&first.path, reason))
    }
}

/// Sorts the calls, and counts their time from the first one.
fn finish(builder: Builder, sha256: String) -> Result<Trace, SimError> {
    let Builder { functions, calls, rows_malformed, malformed, notes, .. } = builder;
    let Some(first) = calls.iter().map(|call| call.arrival_us).min() else {
        return Err(SimError::Empty { count: rows_malformed, rows: malformed });
    };
    let request = |call: Call| Request {
        arrival_us: call.arrival_us.abs_diff(first),
        function: call.function,
        duration_us: call.duration_us,
        payload_bytes: call.payload_bytes,
    };
    let mut requests: Vec<Request> = calls.into_iter().map(request).collect();
    // Stable: equal times keep the order of the file.
    requests.sort_by_key(|request| request.arrival_us);
    Ok(Trace { functions, requests, rows_malformed, malformed, notes, sha256 })
}

/// Microseconds of a time in another unit; an error if it is out of range.
fn micros(what: &str, text: &str, unit_us: f64) -> Result<i64, String> {
    let value: f64 = text
        .trim()
        .parse()
        .map_err(|_| format!("{what} is not a number: '{}'", rows::shown(text)))?;
    let us = value * unit_us;
    // Also refuses what is not a number.
    if us.abs() <= MOST_US * 100.0 {
        Ok(us.round() as i64)
    } else {
        Err(format!("{what} is out of range: '{}'", rows::shown(text)))
    }
}

/// The same of a duration.
fn duration(text: &str, unit_us: f64) -> Result<u64, String> {
    let us = micros("the duration", text, unit_us)?;
    let us = u64::try_from(us).map_err(|_| format!("the duration is negative: '{text}'"))?;
    if us as f64 > MOST_US {
        return Err(format!("the duration is longer than a year: '{text}'"));
    }
    Ok(us)
}
