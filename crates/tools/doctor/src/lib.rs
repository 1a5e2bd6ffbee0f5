//! What this machine can do: `farfork doctor`.
//!
//! Every capability is tried out, in a child process or on a throw-away object, never read off a
//! version number: distributions backport, containers filter, and sandboxes drop capabilities.
//! Nothing a probe does outlives it.

mod probe;
mod report;

pub use report::{Capability, Group, Report};

/// Tries every capability; takes well under a second.
pub fn examine() -> Report {
    let capabilities = probe::all().map(probe::Probe::run).collect();
    Report::new(probe::machine_name(), capabilities)
}
