//! A run over time, in so many intervals of equal width, whatever its length.
//!
//! Intervals are a millisecond at first. When there would be too many, pairs of neighbours become one.

use farfork_platform::api::StartKind;

/// Intervals of one run.
pub const MOST: usize = 1024;
/// Intervals of one of many runs, which are kept together.
pub const FEW: usize = 128;
const FIRST_WIDTH_US: u64 = 1000;

/// What is held at one moment: instances, and bytes of near memory, of the pool and of far memory.
pub type Levels = [u64; 4];
/// The places of [`Levels`].
pub const INSTANCES: usize = 0;
/// See [`INSTANCES`].
pub const NEAR: usize = 1;
/// See [`INSTANCES`].
pub const POOL: usize = 2;
/// See [`INSTANCES`].
pub const FAR: usize = 3;

/// An interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Calls that arrived.
    pub arrivals: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Of these, those that took too long.
    pub violations: u64,
    /// Of these, by start: cold, clone, ghost, warm.
    pub starts: [u64; 4],
    /// Sums of levels, each times the microseconds for which it was held.
    pub areas: [u128; 4],
    /// The highest levels.
    pub peaks: Levels,
}

impl Interval {
    fn with(self, other: &Interval) -> Interval {
        let sums = |a: [u64; 4], b: [u64; 4]| std::array::from_fn(|one| a[one] + b[one]);
        Interval {
            arrivals: self.arrivals + other.arrivals,
            failed: self.failed + other.failed,
            violations: self.violations + other.violations,
            starts: sums(self.starts, other.starts),
            areas: std::array::from_fn(|one| self.areas[one] + other.areas[one]),
            peaks: std::array::from_fn(|one| self.peaks[one].max(other.peaks[one])),
        }
    }
}

/// The place of a start among [`Interval::starts`].
pub fn place(start: StartKind) -> usize {
    match start {
        StartKind::Cold => 0,
        StartKind::Clone => 1,
        StartKind::Ghost => 2,
        StartKind::Warm => 3,
    }
}

/// A run over time.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Width of an interval in microseconds.
    pub width_us: u64,
    /// From the first arrival on.
    pub intervals: Vec<Interval>,
    most: usize,
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline::new(MOST)
    }
}

impl Timeline {
    /// With at most so many intervals.
    pub fn new(most: usize) -> Timeline {
        Timeline { width_us: FIRST_WIDTH_US, intervals: Vec::new(), most: most.max(1) }
    }

    /// The interval of a moment.
    pub fn at(&mut self, us: u64) -> &mut Interval {
        let index = self.index(us);
        &mut self.intervals[index]
    }

    fn index(&mut self, us: u64) -> usize {
        while us / self.width_us >= self.most as u64 {
            self.widen();
        }
        let index = (us / self.width_us) as usize;
        if index >= self.intervals.len() {
            self.intervals.resize(index + 1, Interval::default());
        }
        index
    }

    fn widen(&mut self) {
        self.width_us *= 2;
        let pair = |pair: &[Interval]| match pair {
            [one, other] => one.with(other),
            _ => pair[0],
        };
        self.intervals = self.intervals.chunks(2).map(pair).collect();
    }

    /// Levels were held from one moment to another.
    pub fn held(&mut self, from_us: u64, to_us: u64, levels: &Levels) {
        let Some(last_us) = to_us.checked_sub(1).filter(|last_us| *last_us >= from_us) else {
            return;
        };
        let last = self.index(last_us);
        let first = self.index(from_us);
        let width = self.width_us;
        for (index, interval) in self.intervals[first..=last].iter_mut().enumerate() {
            let begin = (first + index) as u64 * width;
            let us = to_us.min(begin + width) - from_us.max(begin);
            for (level, (area, peak)) in
                levels.iter().zip(interval.areas.iter_mut().zip(&mut interval.peaks))
            {
                *area += u128::from(us) * u128::from(*level);
                *peak = (*peak).max(*level);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_widen_and_lose_nothing() {
        let mut time = Timeline::default();
        time.at(0).arrivals += 1;
        time.held(500, 2_500, &[2, 10, 0, 0]);
        assert_eq!(time.intervals.len(), 3);
        let areas: Vec<u128> = time.intervals.iter().map(|one| one.areas[0]).collect();
        assert_eq!(areas, [1000, 2000, 1000]);
        // 10 hours need intervals of 65.536 s.
        time.at(36_000_000_000).arrivals += 1;
        time.held(2_500, 36_000_000_001, &[1, 4, 0, 0]);
        assert_eq!(time.width_us, 65_536_000);
        assert!(time.intervals.len() <= MOST);
        let mut few = Timeline::new(4);
        for us in [0, 3_999, 4_000] {
            few.at(us).arrivals += 1;
        }
        assert_eq!(few.intervals.iter().map(|one| one.arrivals).collect::<Vec<_>>(), [1, 1, 1]);
        let sum = |of: fn(&Interval) -> u128| time.intervals.iter().map(of).sum::<u128>();
        assert_eq!(sum(|one| u128::from(one.arrivals)), 2);
        assert_eq!(sum(|one| one.areas[1]), 20_000 + 4 * (36_000_000_001 - 2_500));
        assert_eq!((time.intervals[0].peaks[0], time.intervals[1].peaks[0]), (2, 1));
    }
}
