//! What all benchmarks do with clones.

use farfork_node::client::{Client, StartedClone};
use nix::sys::signal::Signal;

use crate::error::BenchError;
use crate::testbed::Testbed;
use crate::usage;

/// From the call to the clone's first instruction.
pub const RESTORE: &str = "request to first instruction";

/// The agent's names of the phases before the first instruction, as metrics.
pub fn phase_metric(phase: &str) -> &'static str {
    match phase {
        "init" => "restore phase: to the init",
        "container" => "restore phase: container",
        "memory" => "restore phase: memory",
        "process" => "restore phase: process",
        "wake" => "restore phase: wake-up",
        "state" => "restore phase: state and threads",
        _ => "restore phase: leaving",
    }
}

/// Kills a clone and waits until its process has disappeared.
pub fn end(clone: StartedClone, testbed: &Testbed) -> Result<(), BenchError> {
    let pid = clone.running.pid;
    // A clone that has exited by itself is unknown to the agent by now.
    let _ = Client::connect(&testbed.node)?.kill(pid, Signal::SIGKILL as i32);
    clone.client.ended()?;
    usage::await_end(pid);
    Ok(())
}
