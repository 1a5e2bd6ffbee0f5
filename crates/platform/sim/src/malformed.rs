//! Rows of traces that hold no call.

use std::fmt;
use std::path::PathBuf;

/// A row that holds no call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The file.
    pub path: PathBuf,
    /// Its line, from 1.
    pub line: u64,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} line {}: {}", self.path.display(), self.line, self.reason)
    }
}
