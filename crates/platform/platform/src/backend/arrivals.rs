//! When ghosts were taken.

use std::collections::VecDeque;

use farfork_policy::admission::Idle;
use tokio::time::{Duration, Instant};

/// For so long bursts are remembered.
const LATE: Duration = Duration::from_secs(60);
/// The time that it takes to make a container.
const MAKING: Duration = Duration::from_millis(100);
const HOUR: Duration = Duration::from_secs(3600);
/// As many are remembered at most.
const MOST: usize = 1024;

/// When ghosts of a kind were taken, or would have been had any waited.
#[derive(Clone, Debug, Default)]
pub struct ArrivalWindow {
    taken: VecDeque<Instant>,
}

impl ArrivalWindow {
    /// One is taken now.
    pub fn add(&mut self, now: Instant) {
        self.taken.push_back(now);
        if self.taken.len() > MOST {
            self.taken.pop_front();
        }
    }

    /// When the last one was.
    pub fn last(&self) -> Option<Instant> {
        self.taken.back().copied()
    }

    /// How many were in the last hour, as far as they are remembered.
    pub fn in_last_hour(&mut self, now: Instant) -> u64 {
        while self.taken.front().is_some_and(|at| now - *at > HOUR) {
            self.taken.pop_front();
        }
        self.taken.len() as u64
    }

    /// The ghosts that wait, as those see them who need room: what each takes, and what it saves when it is
    /// used. They share what was taken of them; each counts once if that was less.
    pub fn idle(
        &mut self,
        ids: &[String],
        (bytes, saves_us): (u64, u64),
        now: Instant,
    ) -> Vec<Idle> {
        let uses_per_hour = self.in_last_hour(now).div_ceil(ids.len().max(1) as u64);
        ids.iter().map(|id| Idle { id: id.clone(), bytes, saves_us, uses_per_hour }).collect()
    }

    /// Most that were taken within the time it takes to make one, of late.
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
    fn bursts_are_counted_within_the_time_that_making_takes() {
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
    fn an_hour_is_remembered_and_no_more_than_many() {
        let mut arrivals = ArrivalWindow::default();
        let begun = Instant::now();
        let at = |s: u64| begun + Duration::from_secs(s);
        [0, 10, 3000].into_iter().for_each(|s| arrivals.add(at(s)));
        assert_eq!([3000, 3605, 7000].map(|s| arrivals.in_last_hour(at(s))), [3, 2, 0]);
        (0..2000).for_each(|_| arrivals.add(at(7000)));
        assert_eq!(arrivals.in_last_hour(at(7000)), 1024);
    }
}
