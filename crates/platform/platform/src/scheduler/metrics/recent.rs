//! Recent calls: their number and durations.
//!
//! Adding a call is cheap, as the records are short and bounded. Figures are computed when
//! requested.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use farfork_sys::sync::locked;
use tokio::time::Instant;

use crate::scheduler::snapshot::{Recent, Starts};

/// Calls that ended longer ago are not recent.
const WINDOW: Duration = Duration::from_secs(10);
/// Calls per kind of start that medians are computed from, of any age.
const LAST: usize = 128;
/// Warm calls of a function that first calls are compared with.
const LAST_RUNS: usize = 32;

/// Calls of the last seconds; of fewer seconds if they are more than can be remembered.
#[derive(Debug)]
pub struct Window {
    /// The oldest first.
    calls: Mutex<VecDeque<Ended>>,
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    at: Instant,
    took: Duration,
    is_good: bool,
}

impl Window {
    /// A window that remembers up to `most` calls.
    pub fn new(most: usize) -> Window {
        Window { calls: Mutex::default(), most }
    }

    fn calls(&self) -> MutexGuard<'_, VecDeque<Ended>> {
        let mut calls = locked(&self.calls);
        let now = Instant::now();
        while calls.front().is_some_and(|call| now - call.at > WINDOW) {
            calls.pop_front();
        }
        calls
    }

    /// Adds an ended call.
    pub fn add(&self, took: Duration, is_good: bool) {
        let mut calls = self.calls();
        if calls.len() == self.most {
            calls.pop_front();
        }
        calls.push_back(Ended { at: Instant::now(), took, is_good });
    }

    /// Their figures.
    pub fn look(&self) -> Recent {
        let calls = self.calls();
        let span = match calls.front() {
            // Calls before the oldest remembered one are not known.
            Some(oldest) if calls.len() == self.most => oldest.at.elapsed(),
            _ => WINDOW,
        };
        let failed = calls.iter().filter(|call| !call.is_good).count() as u64;
        let times: Vec<Duration> = calls.iter().map(|call| call.took).collect();
        drop(calls);
        let count = times.len() as u64;
        let per_s = count as f64 / span.as_secs_f64().max(0.001);
        let [p50_ms, p99_ms] = quantiles(times, [50, 99]);
        Recent { calls: count, failed, per_s, p50_ms, p99_ms }
    }
}

/// Calls that got their instance in one way.
#[derive(Debug, Default)]
pub struct StartStats {
    state: Mutex<StartHistory>,
}

#[derive(Debug, Default)]
struct StartHistory {
    calls: u64,
    /// Durations of the last ones, until the function ran and until the end.
    last: VecDeque<[Duration; 2]>,
}

impl StartStats {
    fn state(&self) -> MutexGuard<'_, StartHistory> {
        // Every step leaves the state valid.
        locked(&self.state)
    }

    /// Adds an ended call: its duration until the function ran, and in all.
    pub fn add(&self, waited: Duration, whole: Duration) {
        let mut state = self.state();
        state.calls += 1;
        if state.last.len() == LAST {
            state.last.pop_front();
        }
        state.last.push_back([waited, whole]);
    }

    /// Their figures.
    pub fn look(&self) -> Starts {
        let state = self.state();
        let (calls, last) = (state.calls, state.last.clone());
        drop(state);
        let median = |index: usize| {
            let [median] = quantiles(last.iter().map(|times| times[index]).collect(), [50]);
            median
        };
        Starts { calls, wait_ms: median(0), whole_ms: median(1) }
    }
}

/// Durations of warm calls of a version of a function.
#[derive(Debug, Default)]
pub struct WarmRuns(Mutex<VecDeque<Duration>>);

impl WarmRuns {
    /// Adds a warm call's duration. For a first call, returns how much longer it took than the
    /// median of warm calls, if there were any.
    pub fn add(&self, run: Duration, is_warm: bool) -> Option<Duration> {
        // Every step leaves the list valid.
        let mut last = locked(&self.0);
        if is_warm {
            last.truncate(LAST_RUNS - 1);
            last.push_front(run);
            return None;
        }
        let mut sorted: Vec<Duration> = last.iter().copied().collect();
        drop(last);
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map(|warm| run.saturating_sub(*warm))
    }
}

/// Percentiles by nearest rank, in milliseconds.
fn quantiles<const N: usize>(mut times: Vec<Duration>, percents: [usize; N]) -> [Option<f64>; N] {
    times.sort_unstable();
    percents.map(|percent| {
        let rank = (times.len() * percent).div_ceil(100).max(1);
        times.get(rank - 1).map(|time| time.as_secs_f64() * 1000.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn recent_calls_are_those_of_the_last_seconds() {
        let window = Window::new(1000);
        assert_eq!(window.look(), Recent::default());
        (1..=100).for_each(|ms| window.add(ms * MS, ms <= 90));
        advance(WINDOW - MS).await;
        window.add(500 * MS, true);
        let seen = Recent { calls: 101, failed: 10, per_s: 10.1, ..window.look() };
        assert_eq!(window.look(), seen);
        assert_eq!((seen.p50_ms, seen.p99_ms), (Some(51.0), Some(100.0)));
        advance(2 * MS).await;
        let only =
            Recent { calls: 1, failed: 0, per_s: 0.1, p50_ms: Some(500.0), p99_ms: Some(500.0) };
        assert_eq!(window.look(), only);
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_right_with_more_calls_than_are_remembered() {
        let window = Window::new(100);
        for _ in 0..500 {
            window.add(MS, true);
            advance(MS).await;
        }
        let Recent { calls, per_s, .. } = window.look();
        assert_eq!((calls, per_s), (100, 1000.0));
    }

    #[test]
    fn a_first_call_is_compared_with_the_last_warm_ones() {
        let runs = WarmRuns::default();
        assert_eq!(runs.add(9 * MS, false), None);
        for run in [1, 5, 2] {
            assert_eq!(runs.add(run * MS, true), None);
        }
        assert_eq!(runs.add(9 * MS, false), Some(7 * MS));
        assert_eq!(runs.add(1 * MS, false), Some(Duration::ZERO));
        for _ in 0..LAST_RUNS {
            runs.add(4 * MS, true);
        }
        assert_eq!(runs.add(9 * MS, false), Some(5 * MS));
    }

    #[test]
    fn medians_are_those_of_the_last_calls_of_their_kind() {
        let way = StartStats::default();
        assert_eq!(way.look(), Starts::default());
        way.add(900 * MS, 900 * MS);
        way.add(2 * MS, 3 * MS);
        way.add(1 * MS, 9 * MS);
        assert_eq!(way.look(), Starts { calls: 3, wait_ms: Some(2.0), whole_ms: Some(9.0) });
        (0..LAST).for_each(|_| way.add(5 * MS, 6 * MS));
        (0..LAST / 2 + 1).for_each(|_| way.add(7 * MS, 8 * MS));
        let calls = 3 + LAST as u64 + LAST as u64 / 2 + 1;
        assert_eq!(way.look(), Starts { calls, wait_ms: Some(7.0), whole_ms: Some(8.0) });
    }
}
