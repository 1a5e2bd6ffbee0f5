//! Why a simulation could not run.

use std::io;
use std::path::{Path, PathBuf};

use farfork_platform::store::StoreError;

use crate::malformed::Malformed;

/// A simulation that did not take place.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A file cannot be read.
    #[error("cannot read {}: {}", .path.display(), farfork_sys::words::of(.source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A sample cannot be taken.
    #[error("cannot choose {wanted} functions: the trace has {all}; give --functions 1 to {all}")]
    Sample {
        /// Functions that were asked for.
        wanted: usize,
        /// Functions of the trace.
        all: usize,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {}", .path.display(), farfork_sys::words::of(.source))]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The sorted calls cannot be kept.
    #[error(
        "cannot keep the sorted calls in a temporary file: {}; set TMPDIR to a directory on a disk with room for 56 \
         bytes per call",
        farfork_sys::words::of(.source)
    )]
    Spill {
        /// Why not.
        source: io::Error,
    },
    /// A trace cannot be used.
    #[error("cannot use trace {}: {reason}", .path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why not, and what to do.
        reason: String,
    },
    /// There is nothing to simulate.
    #[error("no row of the trace is a call: {count} rows are malformed{}", listed(.rows))]
    Empty {
        /// Number of malformed rows.
        count: u64,
        /// The first of them.
        rows: Vec<Malformed>,
    },
    /// A profile cannot be used.
    #[error("cannot use profile {}: {reason}", .path.display())]
    Profile {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A node has no room for one instance.
    #[error(
        "a node's memory of {node_bytes} bytes is below one instance: function {function} needs \
         {needed_bytes} bytes, and instances may take {permille} ‰ of a node; give --node-memory \
         {least_bytes} or more"
    )]
    Budget {
        /// The node's budget.
        node_bytes: u64,
        /// The largest function.
        function: String,
        /// What one instance of it needs.
        needed_bytes: u64,
        /// Share of a node's memory for instances, in thousandths.
        permille: u64,
        /// The smallest budget that suffices.
        least_bytes: u64,
    },
    /// A profile does not say what shares of near memory change.
    #[error("cannot simulate memory of function {function}: {reason}")]
    Shares {
        /// The function.
        function: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// A setting has no effect here.
    #[error("cannot simulate {name}: {reason}; {remedy}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Why not.
        reason: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The machine fails.
    #[error("cannot {doing}: {}", farfork_sys::words::of(.source))]
    Io {
        /// What was being done.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The platform's store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The platform refuses a function.
    #[error("the platform refuses function {function}: {reason}")]
    Function {
        /// The function.
        function: String,
        /// Why.
        reason: String,
    },
}

fn listed(rows: &[Malformed]) -> String {
    rows.iter().map(|row| format!("\n  {row}")).collect()
}

impl SimError {
    pub(crate) fn reading(path: &Path) -> impl Fn(io::Error) -> SimError {
        move |source| SimError::Read { path: path.to_owned(), source }
    }

    pub(crate) fn writing(path: &Path) -> impl Fn(io::Error) -> SimError {
        move |source| SimError::Write { path: path.to_owned(), source }
    }

    pub(crate) fn trace(path: &Path, reason: impl Into<String>) -> SimError {
        SimError::Trace { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn profile(path: &Path, reason: impl Into<String>) -> SimError {
        SimError::Profile { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn io(doing: &'static str) -> impl Fn(io::Error) -> SimError {
        move |source| SimError::Io { doing, source }
    }
}
