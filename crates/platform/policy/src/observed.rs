//! What is remembered of a function's calls, to derive facts from.

use std::collections::VecDeque;

use crate::keep_alive::Gaps;
use crate::tiering::Latency;

/// Latencies of the last calls.
#[derive(Clone, Debug, Default)]
pub struct RecentLatency {
    calls_us: VecDeque<u64>,
}

impl RecentLatency {
    /// Calls that are remembered.
    pub const CALLS: usize = 256;

    /// Adds a latency in microseconds.
    pub fn add(&mut self, us: u64) {
        if self.calls_us.len() == Self::CALLS {
            self.calls_us.pop_front();
        }
        self.calls_us.push_back(us);
    }

    /// The figures of the remembered calls.
    pub fn latency(&self) -> Latency {
        let calls = self.calls_us.len() as u64;
        let Some(last) = self.calls_us.len().checked_sub(1) else { return Latency::default() };
        let mut sorted: Vec<u64> = self.calls_us.iter().copied().collect();
        sorted.sort_unstable();
        let sum: u128 = sorted.iter().map(|us| u128::from(*us)).sum();
        let mean_us = u64::try_from(sum / u128::from(calls)).unwrap_or(u64::MAX);
        // P99 by nearest rank.
        let rank = (sorted.len() * 99).div_ceil(100) - 1;
        Latency { calls, mean_us, p99_us: sorted[rank.min(last)] }
    }
}

/// Gaps between calls. Old gaps are forgotten: there are two generations, and the older one is
/// dropped when the younger one is full.
#[derive(Clone, Debug, Default)]
pub struct IdleGaps {
    old: Counts,
    young: Counts,
    /// Both.
    all: Counts,
    /// The class with the P99 of all, and the number of gaps in the classes before it. They move by few
    /// classes with each gap, so nothing is scanned when they are asked for.
    p99: (usize, u64),
}

impl IdleGaps {
    /// Gaps per generation.
    pub const GENERATION: u64 = 512;
    /// Longer gaps count as this long, in milliseconds: four hours.
    pub const LONGEST_MS: u64 = 4 * 3600 * 1000;

    /// Adds a gap in milliseconds.
    pub fn add(&mut self, ms: u64) {
        if self.young.total >= Self::GENERATION {
            self.old = std::mem::take(&mut self.young);
            self.all = self.old.clone();
            self.p99 = (0, 0);
        }
        let class = Counts::class(ms.clamp(1, Self::LONGEST_MS));
        self.young.add(class);
        self.all.add(class);
        self.p99.1 += u64::from(class < self.p99.0);
        self.find_p99();
    }

    /// Moves to the class of the P99.
    fn find_p99(&mut self) {
        // By nearest rank.
        let rank = (0.99 * self.all.total as f64).ceil() as u64;
        let (class, before) = &mut self.p99;
        while *before >= rank && *class > 0 {
            *class -= 1;
            *before -= self.all.of(*class);
        }
        while *before + self.all.of(*class) < rank {
            *before += self.all.of(*class);
            *class += 1;
        }
    }

    /// Their figures. The percentile is accurate to one part in ten.
    pub fn gaps(&self) -> Gaps {
        match self.all.total {
            0 => Gaps::default(),
            count => Gaps { count, p99_ms: Counts::most(self.p99.0) },
        }
    }
}

/// Numbers of gaps by their class. Classes are as wide as a sixteenth of their least gap, or one millisecond:
/// those of a histogram with one significant digit (HdrHistogram).
#[derive(Clone, Debug, Default)]
struct Counts {
    classes: Vec<u32>,
    total: u64,
}

impl Counts {
    /// Bits of a gap that its class depends on.
    const BITS: u32 = 5;

    /// The class of a gap.
    fn class(ms: u64) -> usize {
        let shift = (u64::BITS - ms.leading_zeros()).saturating_sub(Self::BITS);
        (u64::from(shift) * (1 << (Self::BITS - 1)) + (ms >> shift)) as usize
    }

    /// The longest gap of a class.
    fn most(class: usize) -> u64 {
        let half = 1usize << (Self::BITS - 1);
        let shift = (class / half).saturating_sub(1);
        let first = (class - shift * half) as u64;
        (first << shift) + ((1 << shift) - 1)
    }

    fn add(&mut self, class: usize) {
        if class >= self.classes.len() {
            self.classes.resize(class + 1, 0);
        }
        self.classes[class] += 1;
        self.total += 1;
    }

    fn of(&self, class: usize) -> u64 {
        self.classes.get(class).map_or(0, |count| u64::from(*count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;
    use proptest::prelude::*;

    #[test]
    fn latency_is_that_of_the_last_calls() {
        let mut recent = RecentLatency::default();
        assert_eq!(recent.latency(), Latency::default());
        (1..=100).for_each(|us| recent.add(us));
        assert_eq!(recent.latency(), Latency { calls: 100, mean_us: 50, p99_us: 99 });
        (0..RecentLatency::CALLS).for_each(|_| recent.add(7));
        assert_eq!(recent.latency(), Latency { calls: 256, mean_us: 7, p99_us: 7 });
    }

    #[test]
    fn old_gaps_are_forgotten() {
        let mut gaps = IdleGaps::default();
        assert_eq!(gaps.gaps(), Gaps::default());
        (0..IdleGaps::GENERATION).for_each(|_| gaps.add(1_000_000));
        assert!(gaps.gaps().p99_ms >= 900_000);
        (0..=2 * IdleGaps::GENERATION).for_each(|_| gaps.add(5));
        let Gaps { count, p99_ms } = gaps.gaps();
        assert!(p99_ms <= 6 && count >= IdleGaps::GENERATION, "{count} {p99_ms}");
    }

    proptest! {
        #[test]
        fn p99_of_gaps_is_within_its_precision(
            all in proptest::collection::vec(0u64..100_000_000, 1..400),
        ) {
            let mut gaps = IdleGaps::default();
            all.iter().for_each(|ms| gaps.add(*ms));
            let Gaps { count, p99_ms } = gaps.gaps();
            prop_assert_eq!(count, all.len() as u64);
            let mut sorted: Vec<u64> =
                all.iter().map(|ms| (*ms).clamp(1, IdleGaps::LONGEST_MS)).collect();
            sorted.sort_unstable();
            let exact = sorted[(sorted.len() * 99).div_ceil(100) - 1];
            prop_assert!(p99_ms >= exact && p99_ms <= exact + exact / 8 + 1, "{} {}", p99_ms, exact);
        }

        /// The figures are those of the histogram that they were taken from before.
        #[test]
        fn gaps_are_counted_as_in_a_histogram(
            all in proptest::collection::vec(
                prop_oneof![0u64..100, 0u64..100_000, 0u64..20_000_000],
                1..2000,
            ),
        ) {
            let empty = || Histogram::<u32>::new_with_bounds(1, IdleGaps::LONGEST_MS, 1).unwrap();
            let (mut gaps, mut old, mut young) = (IdleGaps::default(), empty(), empty());
            for ms in all {
                gaps.add(ms);
                if young.len() >= IdleGaps::GENERATION {
                    old = std::mem::replace(&mut young, empty());
                }
                young.record(ms.clamp(1, IdleGaps::LONGEST_MS)).unwrap();
                let mut both = young.clone();
                both.add(&old).unwrap();
                let expected = Gaps { count: both.len(), p99_ms: both.value_at_quantile(0.99) };
                prop_assert_eq!(gaps.gaps(), expected);
            }
        }
    }
}
