//! What is remembered of a function's calls, to derive facts from.

use std::collections::VecDeque;

use hdrhistogram::Histogram;

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
#[derive(Clone, Debug)]
pub struct IdleGaps {
    old: Histogram<u32>,
    young: Histogram<u32>,
}

impl IdleGaps {
    /// Gaps per generation.
    pub const GENERATION: u64 = 512;
    /// Longer gaps count as this long, in milliseconds: four hours.
    pub const LONGEST_MS: u64 = 4 * 3600 * 1000;

    /// Adds a gap in milliseconds.
    pub fn add(&mut self, ms: u64) {
        if self.young.len() >= Self::GENERATION {
            self.old = std::mem::replace(&mut self.young, empty());
        }
        self.young.saturating_record(ms.clamp(1, Self::LONGEST_MS));
    }

    /// Their figures. The percentile is accurate to one part in ten.
    pub fn gaps(&self) -> Gaps {
        let mut all = self.young.clone();
        // Both have the same bounds.
        if all.add(&self.old).is_err() {
            all = self.young.clone();
        }
        if all.is_empty() {
            return Gaps::default();
        }
        Gaps { count: all.len(), p99_ms: all.value_at_quantile(0.99) }
    }
}

impl Default for IdleGaps {
    fn default() -> IdleGaps {
        IdleGaps { old: empty(), young: empty() }
    }
}

fn empty() -> Histogram<u32> {
    let made = Histogram::new_with_bounds(1, IdleGaps::LONGEST_MS, 1);
    made.expect("bounds and digits are in the range that the library takes")
}

#[cfg(test)]
mod tests {
    use super::*;
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
    }
}
