//! What this machine can do: `farfork doctor`.
//!
//! Every capability is tried, in a child process or on a temporary object. Version numbers are not
//! reliable: distributions backport, containers filter system calls, and sandboxes drop capabilities. A
//! probe leaves nothing behind.

mod probe;
mod report;

pub use report::{Capability, Group, Report};

/// Tries every capability. Takes well under a second.
pub fn examine() -> Report {
    let capabilities = probe::all().map(probe::Probe::run).collect();
    Report::from_capabilities(probe::machine_name(), capabilities)
}
