//! When ghosts were taken, to predict how many to make.

use std::collections::VecDeque;

use farfork_policy::admission::Idle;
use tokio::time::{Duration, Instant};

/// How long bursts are remembered.
const LATE: Duration = Duration::from_secs(60);
/// The time that it takes to make a container.
const MAKING: Duration = Duration::from_millis(100);
const HOUR: Duration = Duration::from_secs(3600);
/// Most arrivals remembered.
const MOST: usize = 1024;

/// What a waiting ghost takes and saves.
#[derive(Clone, Copy, Debug)]
pub struct Worth {
    /// Bytes that it takes.
    pub bytes: u64,
    /// Microseconds that it saves when it is used.
    pub saves_us: u64,
}

/// When starts needed a ghost of one kind, whether one waited or not.
#[derive(Clone, Debug, Default)]
pub struct ArrivalWindow {
    taken: VecDeque<Instant>,
}

impl ArrivalWindow {
    /// Adds an arrival.
    pub fn add(&mut self, now: Instant) {
        self.taken.push_back(now);
        if self.taken.len() > MOST {
            self.taken.pop_front();
        }
    }

    /// The last arrival.
    pub fn last(&self) -> Option<Instant> {
        self.taken.back().copied()
    }

    /// Arrivals in the last hour, as far as they are remembered.
    pub fn in_last_hour(&mut self, now: Instant) -> u64 {
        while self.taken.front().is_some_and(|at| now - *at > HOUR) {
            self.taken.pop_front();
        }
        self.taken.len() as u64
    }

    /// Waiting ghosts as candidates for eviction. They share the arrivals of the last hour, and
    /// each counts for one use at least if there was any.
    pub fn idle(&mut self, ids: &[String], worth: Worth, now: Instant) -> Vec<Idle> {
        let uses_per_hour = self.in_last_hour(now).div_ceil(ids.len().max(1) as u64);
        let Worth { bytes, saves_us } = worth;
        ids.iter().map(|id| Idle { id: id.clone(), bytes, saves_us, uses_per_hour }).collect()
    }

    /// The largest recent burst: arrivals within the time that making a container takes.
    pub fn burst(&self, now: Instant) -> u64 {
        let begun = self.taken.partition_point(|at| now - *at > LATE);
        let late = self.taken.iter().skip(begun);
        let within = |(first, begun): (usize, &Instant)| {
            let until = *begun + MAKING;
            late.clone().skip(first).take_while(|at| **at <= until).count()
        };
        late.clone().enumerate().map(within).max().unwrap_or(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_counted_within_the_time_to_make_a_container() {
        let mut arrivals = ArrivalWindow::default();
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        assert_eq!(arrivals.burst(begun), 0);
        for ms in [0, 50, 99, 300, 350, 380, 400, 401] {
            arrivals.add(at(ms));
        }
        assert_eq!(arrivals.burst(at(500)), 4);
        assert_eq!(arrivals.burst(at(60_351)), 3, "the others were long ago");
        assert_eq!(arrivals.burst(at(70_000)), 0);
        assert_eq!(arrivals.last(), Some(at(401)));
    }

    #[test]
    fn arrivals_are_kept_for_an_hour_and_bounded() {
        let mut arrivals = ArrivalWindow::default();
        let begun = Instant::now();
        let at = |s: u64| begun + Duration::from_secs(s);
        [0, 10, 3000].into_iter().for_each(|s| arrivals.add(at(s)));
        assert_eq!([3000, 3605, 7000].map(|s| arrivals.in_last_hour(at(s))), [3, 2, 0]);
        (0..2000).for_each(|_| arrivals.add(at(7000)));
        assert_eq!(arrivals.in_last_hour(at(7000)), 1024);
    }
}
