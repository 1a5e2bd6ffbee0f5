//! When ghosts were taken, to predict how many to make.

use std::collections::VecDeque;

/// How long bursts are remembered, in microseconds.
const LATE_US: u64 = 60_000_000;
/// The time that it takes to make a container.
const MAKING_US: u64 = 100_000;
const HOUR_US: u64 = 3_600_000_000;
/// Most arrivals remembered.
const MOST: usize = 1024;

/// When starts needed a ghost of one kind, whether one waited or not.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    taken_us: VecDeque<u64>,
}

impl Arrivals {
    /// Adds an arrival.
    pub fn add(&mut self, now_us: u64) {
        self.taken_us.push_back(now_us);
        let late = self.before_last_hour(now_us);
        self.taken_us.drain(..late);
        if self.taken_us.len() > MOST {
            self.taken_us.pop_front();
        }
    }

    /// The last arrival.
    pub fn last_us(&self) -> Option<u64> {
        self.taken_us.back().copied()
    }

    /// Arrivals in the last hour, as far as they are remembered.
    pub fn in_last_hour(&self, now_us: u64) -> u64 {
        (self.taken_us.len() - self.before_last_hour(now_us)) as u64
    }

    fn before_last_hour(&self, now_us: u64) -> usize {
        self.taken_us.partition_point(|at| now_us.saturating_sub(*at) > HOUR_US)
    }

    /// The largest recent burst: arrivals within the time that making a container takes.
    pub fn burst(&self, now_us: u64) -> u64 {
        let taken = &self.taken_us;
        let begun = taken.partition_point(|at| now_us.saturating_sub(*at) > LATE_US);
        let (mut first, mut largest) = (begun, 0);
        for (last, at) in taken.iter().enumerate().skip(begun) {
            while at - taken[first] > MAKING_US {
                first += 1;
            }
            largest = largest.max(last + 1 - first);
        }
        largest as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(taken_us: &[u64]) -> Arrivals {
        let mut arrivals = Arrivals::default();
        taken_us.iter().for_each(|at| arrivals.add(*at));
        arrivals
    }

    #[test]
    fn bursts_are_counted_within_the_time_to_make_a_container() {
        let us = |ms: u64| ms * 1000;
        assert_eq!(Arrivals::default().burst(0), 0);
        let arrivals = of(&[0, 50, 99, 300, 350, 380, 400, 401].map(us));
        assert_eq!(arrivals.burst(us(500)), 4);
        assert_eq!(arrivals.burst(us(60_351)), 3, "the others were long ago");
        assert_eq!(arrivals.burst(us(70_000)), 0);
        assert_eq!(arrivals.last_us(), Some(us(401)));
    }

    #[test]
    fn arrivals_are_kept_for_an_hour_and_bounded() {
        let us = |s: u64| s * 1_000_000;
        let mut arrivals = of(&[0, 10, 3000].map(us));
        assert_eq!([3000, 3605, 7000].map(|s| arrivals.in_last_hour(us(s))), [3, 2, 0]);
        (0..2000).for_each(|_| arrivals.add(us(7000)));
        assert_eq!(arrivals.in_last_hour(us(7000)), 1024);
    }

    proptest! {
        #[test]
        fn the_burst_is_the_largest_of_all(
            gaps in proptest::collection::vec(0u64..60_000, 0..80),
            later in 0u64..70_000_000,
        ) {
            let mut now = 0;
            let mut next = |gap: &u64| { now += gap; now };
            let taken: Vec<u64> = gaps.iter().map(&mut next).collect();
            let now = now + later;
            let late: Vec<u64> = taken.iter().copied().filter(|at| now - at <= LATE_US).collect();
            let from = |begun: &u64| late.iter().filter(|at| (*begun..=begun + MAKING_US).contains(at)).count();
            let largest = late.iter().map(from).max().unwrap_or(0) as u64;
            prop_assert_eq!(of(&taken).burst(now), largest);
        }
    }
}
