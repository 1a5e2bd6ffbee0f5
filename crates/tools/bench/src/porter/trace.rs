//! Traces of calls, in the format of the Azure Functions trace of 2021: `app, func, end_timestamp,
//! duration`, in seconds. A call arrives at its end minus its duration.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::error::BenchError;

/// Calls, in the order of their arrival.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The calls.
    pub arrivals: Vec<Arrival>,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it arrives, since the beginning of the trace.
    pub at: Duration,
    /// The function.
    pub function: String,
}

/// A line.
#[derive(Deserialize)]
struct Row {
    func: String,
    end_timestamp: f64,
    duration: f64,
}

impl Trace {
    /// Reads a file with calls of known functions.
    pub fn read(path: &Path, known: &[&str]) -> Result<Trace, BenchError> {
        let wrong = |reason: String| BenchError::Trace { path: path.to_owned(), reason };
        let mut reader = csv::Reader::from_path(path).map_err(|error| wrong(error.to_string()))?;
        let arrival = |(row, number): (Result<Row, csv::Error>, usize)| {
            let row = row.map_err(|error| wrong(error.to_string()))?;
            let at = Duration::try_from_secs_f64(row.end_timestamp - row.duration);
            let at = at.map_err(|_| wrong(format!("call {number} comes before the beginning")))?;
            if !known.contains(&row.func.as_str()) {
                return Err(wrong(format!("call {number} is of unknown function {}", row.func)));
            }
            Ok(Arrival { at, function: row.func })
        };
        let arrivals = reader.deserialize().zip(1..).map(arrival);
        let trace = Trace::sorted(arrivals.collect::<Result<Vec<Arrival>, BenchError>>()?);
        if trace.arrivals.is_empty() {
            return Err(wrong("it has no calls".to_owned()));
        }
        Ok(trace)
    }

    /// The calls of several traces that begin together.
    pub fn merged<'t>(traces: impl Iterator<Item = &'t Trace>) -> Trace {
        Trace::sorted(traces.flat_map(|trace| &trace.arrivals).cloned().collect())
    }

    fn sorted(mut arrivals: Vec<Arrival>) -> Trace {
        arrivals.sort_by_key(|arrival| arrival.at);
        Trace { arrivals }
    }

    /// The functions that are called.
    pub fn functions(&self) -> BTreeSet<&str> {
        self.arrivals.iter().map(|arrival| arrival.function.as_str()).collect()
    }

    /// From its beginning to its last call.
    pub fn span(&self) -> Duration {
        self.arrivals.last().map_or(Duration::ZERO, |last| last.at)
    }
}

/// The traces in a directory, by name.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let failed = crate::error::io("list", directory);
    let entries = directory.read_dir().and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    let paths = entries.map_err(failed)?.into_iter().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "csv")).collect();
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Trace, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Trace::read(file.path(), &["slow", "quick", "f"]).map_err(|error| error.to_string())
    }

    #[test]
    fn arrivals_are_the_starts_of_calls() {
        let trace = read(
            "app,func,end_timestamp,duration\n\
             a,slow,3.0,2.5\n\
             a,quick,1.0,0.25\n",
        )
        .unwrap();
        let arrival = |at: u64, function: &str| Arrival {
            at: Duration::from_millis(at),
            function: function.to_owned(),
        };
        assert_eq!(trace.arrivals, [arrival(500, "slow"), arrival(750, "quick")]);
        assert_eq!(trace.span(), Duration::from_millis(750));
        assert_eq!(trace.functions().into_iter().collect::<Vec<_>>(), ["quick", "slow"]);
    }

    #[test]
    fn invalid_traces_are_refused_with_a_reason() {
        for (text, words) in [
            ("", "no calls"),
            ("app,func,end_timestamp,duration\n", "no calls"),
            ("app,func,end_timestamp,duration\na,f,1.0,x\n", "float"),
            ("app,func,end_timestamp,duration\na,f,1.0\n", "fields"),
            ("app,func,end_timestamp,duration\na,f,1.0,2.0\n", "call 1 comes before"),
            ("app,func,end_timestamp,duration\na,f,NaN,2.0\n", "call 1 comes before"),
            ("app,func,end_timestamp,duration\na,g,3.0,2.0\n", "of unknown function g"),
            ("func,duration\nf,1\n", "end_timestamp"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn traces_of_the_benchmark_name_its_functions() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bench/traces");
        let files = files(&directory).unwrap();
        assert!(files.len() >= 6, "an interval needs six traces");
        for file in files {
            let trace = Trace::read(&file, &super::super::functions::names()).unwrap();
            assert!(trace.arrivals.len() > 100, "{file:?}");
        }
    }
}
