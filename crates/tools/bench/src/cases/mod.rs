//! All ways to start a process, each measured alike, for all benchmarks.
//!
//! Invariants: the clock of every case starts before the request's socket is created or connected to,
//! and stops when the answer has arrived. Every answer is checked, outside of the clock. Before a case
//! starts, all processes of the previous case have disappeared, and the same pause has passed.

mod calls;
pub mod clone;
pub mod cold;
pub mod criu;
mod lane;
pub mod local;
pub mod warm;

use std::time::Duration;

pub use calls::{Calls, RequestNumbers, Started};
pub use lane::{Lane, fitting};

use crate::error::BenchError;
use crate::progress;
use crate::samples::Samples;
use crate::testbed::Testbed;

/// Between two cases.
const PAUSE: Duration = Duration::from_millis(5);

/// Metrics that more than one file names.
pub mod metric {
    pub use crate::clones::RESTORE;
    /// The first call, from before the creation of its socket until its answer has arrived.
    pub const RESPONSE: &str = "request to response";
    /// The request to the agent for a clone in an attached ghost. [`RESTORE`] follows it.
    pub const ASKED: &str = "request to the message that wakes it";
    /// The second call of the same process.
    pub const WARM: &str = "warm call after it";
    /// Further calls of the same process.
    pub const LATER: &str = "warm calls after that, median";
    /// [`RESPONSE`] minus [`WARM`].
    pub const EXCESS: &str = "excess of first call";
    /// Memory that the process does not share.
    pub const LOCAL: &str = "local memory after one call";
    /// Memory of the kernel for it.
    pub const KERNEL: &str = "kernel memory";
    /// Page faults until the first answer.
    pub const FIRST_FAULTS: &str = "page faults of first call";
    /// Page faults until the second answer.
    pub const FAULTS: &str = "page faults of both calls";
}

/// What a case needs.
pub struct Bench<'a> {
    /// Where it runs.
    pub testbed: &'a Testbed,
    /// Where its values go.
    pub samples: &'a mut Samples,
}

/// Measures `rounds` times, after an uncounted round that warms files, caches and the agent.
pub fn rounds(
    rounds: usize,
    bench: &mut Bench<'_>,
    mut one: impl FnMut(&mut Bench<'_>) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let mut uncounted = Samples::default();
    for round in 0..=rounds {
        progress(&format!("round {round} of {rounds}"));
        let samples = if round == 0 { &mut uncounted } else { &mut *bench.samples };
        one(&mut Bench { testbed: bench.testbed, samples })?;
    }
    Ok(())
}

/// Waits until the machine is idle again after the previous case.
pub fn pause() {
    std::thread::sleep(PAUSE);
}
