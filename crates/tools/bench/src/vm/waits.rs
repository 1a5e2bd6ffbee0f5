//! How long faults wait while machines are filled with the pages that earlier ones needed.

use std::path::Path;
use std::thread;
use std::time::Instant;

use farfork_minivmm::{Backing, Monitor, PAGE_BYTES};

use super::failed;
use crate::error::BenchError;

/// Faults of one machine.
const FAULTS: u64 = 100;
/// Pages from one to the next: each is a fault of its own, and not read ahead.
const APART: u64 = 37;

/// Restores machines at once, each of which touches pages from the end of its memory on: what the replay brings last. Microseconds
/// of each touch; those of a machine that is filled already are next to nothing, and count, too.
pub fn measure(state: &Path, socket: &Path, machines: usize) -> Result<Vec<f64>, BenchError> {
    let run = || -> Result<Vec<f64>, BenchError> {
        let monitor = Monitor::restore(state, Backing::Uffd(socket)).map_err(failed)?;
        let last = monitor.bytes() / PAGE_BYTES - 1;
        let touch = |number: u64| {
            let begun = Instant::now();
            std::hint::black_box(monitor.load((last - number * APART) * PAGE_BYTES));
            begun.elapsed().as_secs_f64() * 1e6
        };
        Ok((0..FAULTS).map(touch).collect())
    };
    thread::scope(|threads| {
        let running: Vec<_> = (0..machines).map(|_| threads.spawn(run)).collect();
        let mut waits = Vec::new();
        for one in running {
            waits.extend(one.join().map_err(|_| failed("a machine panicked"))??);
        }
        Ok(waits)
    })
}
