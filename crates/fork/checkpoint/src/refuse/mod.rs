//! Refusals: what cannot be carried, why, and what to do.
//!
//! ```text
//!  causes/memory.rs, threads.rs, … ─► one catalogue ─► docs/refusals.md
//!           └─ cause + object ─► refusal
//! ```
//! Invariant: the text of every refusal is in the catalogue, so that the document is complete. What
//! differs between processes (a path, a number) is in the object.

pub(crate) mod causes;

use std::fmt;

pub use causes::{Cause, GROUPS};

use farfork_sys::status::Status;
use farfork_types::printable;

/// One thing that keeps a process from being checkpointed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Refusal {
    /// The process, as `pid (comm)`.
    pub process: String,
    /// The descriptor, mapping or attribute.
    pub object: String,
    #[serde(flatten)]
    cause: &'static Cause,
}

impl Refusal {
    /// Why it cannot be carried, and what to do.
    pub fn cause(&self) -> &'static Cause {
        self.cause
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (why, remedy) = (self.cause.why(), self.cause.remedy());
        // A process chooses its name, and those of its files.
        let (process, object) = (printable(&self.process), printable(&self.object));
        write!(f, "{process}: {object}: {why}; {remedy}")
    }
}

/// Collects refusals, for one process after the other.
#[derive(Debug, Default)]
pub struct Refusals {
    process: String,
    /// Whether all are about that process, whichever is looked at.
    is_of_one: bool,
    list: Vec<Refusal>,
}

impl Refusals {
    /// An empty list, about process `pid` at first.
    pub fn new(pid: i32) -> Refusals {
        let mut refusals = Refusals::default();
        refusals.about(pid);
        refusals
    }

    /// An empty list, all of which is about process `pid`: what is looked at is a copy of it.
    pub fn of_copy(pid: i32) -> Refusals {
        Refusals { is_of_one: true, ..Refusals::new(pid) }
    }

    /// Sets the process that refusals added from now on name.
    pub fn about(&mut self, pid: i32) {
        if self.is_of_one {
            return;
        }
        self.process = match Status::read(pid, pid) {
            Ok(status) => format!("process {pid} ({})", status.name),
            Err(_) => format!("process {pid}"),
        };
    }

    /// Adds a refusal for the current process.
    pub fn add(&mut self, object: impl Into<String>, cause: &'static Cause) {
        self.list.push(Refusal { process: self.process.clone(), object: object.into(), cause });
    }

    /// Whether it is empty so far.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of them.
    pub fn into_list(self) -> Vec<Refusal> {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_process_object_and_cause() {
        let mut refusals = Refusals { process: "process 7 (x)".into(), ..Refusals::default() };
        refusals.add("process", causes::process::TRACED);
        let refusal = &refusals.into_list()[0];
        let message = "process 7 (x): process: a debugger traces it; detach the debugger";
        assert_eq!(refusal.to_string(), message);
        let json = serde_json::to_string(refusal).expect("texts are JSON");
        let shape = r#"{"process":"process 7 (x)","object":"process","reason":"a debugger traces it","remedy":"detach the debugger"}"#;
        assert_eq!(json, shape);
    }
}
