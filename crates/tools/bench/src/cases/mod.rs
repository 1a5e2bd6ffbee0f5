//! The ways to come to a process that answers, each measured the same way, for all benchmarks.
//!
//! Invariants: the clock of every case starts before the request's socket is made or connected
//! to and stops when the answer is in; every answer is checked, outside the clock; between two
//! cases all processes of the first have gone, and the same pause passes.

mod calls;
pub mod clone;
pub mod cold;
pub mod criu;
mod lane;
pub mod local;
pub mod warm;

use std::time::Duration;

pub use calls::{Calls, Numbers};
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
    /// The first call: from before its socket is there until its answer is.
    pub const RESPONSE: &str = "request to response";
    /// Of a clone that waited, before what [`RESTORE`] counts: asking the agent for it.
    pub const ASKED: &str = "request to the message that wakes it";
    /// The second call of the same process.
    pub const WARM: &str = "warm call after it";
    /// Those of the same process after that, where there are any.
    pub const LATER: &str = "warm calls after that, median";
    /// The difference of the first two.
    pub const EXCESS: &str = "excess of first call";
    /// What the process has for itself.
    pub const LOCAL: &str = "local memory after one call";
    /// What it costs the kernel besides.
    pub const KERNEL: &str = "kernel memory";
    /// Up to the first answer.
    pub const FIRST_FAULTS: &str = "page faults of first call";
    /// Up to the second.
    pub const FAULTS: &str = "page faults of both calls";
}

/// What a case works with.
pub struct Bench<'a> {
    /// Where it runs.
    pub testbed: &'a Testbed,
    /// What it has measured.
    pub samples: &'a mut Samples,
}

/// Measures `rounds` times, after a round that warms files, caches and the agent, and is not
/// counted.
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

/// Lets what was before go to rest.
pub fn pause() {
    std::thread::sleep(PAUSE);
}
