//! What cannot be carried, in words.

use std::fmt;

/// One thing that keeps a process from being checkpointed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Refusal {
    /// The process, as `pid (comm)`.
    pub process: String,
    /// The descriptor, mapping or attribute.
    pub object: String,
    /// Why it cannot be carried.
    pub reason: String,
    /// What the user can do about it.
    pub remedy: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}; {}", self.process, self.object, self.reason, self.remedy)
    }
}

/// Gathers refusals for one process.
#[derive(Debug, Default)]
pub struct Refusals {
    process: String,
    list: Vec<Refusal>,
}

impl Refusals {
    /// An empty list for the process described by `process`.
    pub fn of(process: String) -> Refusals {
        Refusals { process, list: Vec::new() }
    }

    /// Adds one.
    pub fn add(
        &mut self,
        object: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.list.push(Refusal {
            process: self.process.clone(),
            object: object.into(),
            reason: reason.into(),
            remedy: remedy.into(),
        });
    }

    /// All of them.
    pub fn into_list(self) -> Vec<Refusal> {
        self.list
    }
}
