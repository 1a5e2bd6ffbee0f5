//! Runs side by side: each is sequential, and they use the processors together.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use farfork_sys::sync::{locked, unpoisoned};

use crate::error::SimError;
use crate::profile::Profiles;
use crate::serve::{Outcome, serve_within};
use crate::settings::Settings;
use crate::timeline::{FEW, MOST};
use crate::trace::Stream;

/// Of more runs, the time is kept in fewer intervals.
const KEPT: usize = 64;

/// A run to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Its trace.
    pub stream: &'a Stream,
    /// What its functions take.
    pub profiles: &'a Profiles,
    /// What serves it.
    pub settings: Settings,
}

/// Simulates runs in so many threads. The results are in the order of the jobs, and do not depend on the number of
/// threads. `done` counts the calls that have arrived.
pub fn run_all(
    jobs: &[Job<'_>],
    threads: usize,
    done: &AtomicU64,
) -> Vec<Result<Outcome, SimError>> {
    let next = AtomicUsize::new(0);
    let intervals = if jobs.len() > KEPT { FEW } else { MOST };
    let results: Vec<Mutex<Option<Result<Outcome, SimError>>>> =
        jobs.iter().map(|_| Mutex::default()).collect();
    let work = || {
        while let Some((job, result)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(index).zip(results.get(index))
        } {
            let Job { stream, profiles, settings } = job;
            let outcome = serve_within(stream, profiles, settings, None, done, intervals);
            *locked(result) = Some(outcome);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(jobs.len()) {
            // Without more threads, this one does all.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let result = |result: Mutex<Option<_>>| unpoisoned(result.into_inner());
    results.into_iter().filter_map(result).collect()
}
