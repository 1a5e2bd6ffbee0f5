//! What a run has shown, in bounded memory: figures, distributions and a timeline.

use farfork_platform::simulated::Totals;

use crate::distribution::Distribution;
use crate::fast::Watch;
use crate::run::{Ended, Record};
use crate::timeline::{Levels, NEAR, Timeline, place};

/// How much longer than its run a call may take without counting as a violation, in thousandths.
pub const TOLERANCE_PERMILLE: u64 = 100;

/// Tolerances by which runs may be slower than with all memory near, in thousandths.
pub const TOLERANCES_PERMILLE: [u64; 4] = [10, 50, 100, 200];

/// What a run has shown.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Calls that ended.
    pub requests: u64,
    /// Of these, those that took longer than [`TOLERANCE_PERMILLE`] beyond their run.
    pub violations: u64,
    /// Completed calls whose run was slower than with all memory near by more than each of
    /// [`TOLERANCES_PERMILLE`], whatever they waited.
    pub slower: [u64; 4],
    /// Completed calls by start: cold, clone, ghost, warm.
    pub starts: [u64; 4],
    /// From arrival to answer of completed calls, in microseconds.
    pub latencies: Distribution,
    /// Bytes of near memory, weighted by time.
    pub near: Distribution,
    /// Everything over time.
    pub timeline: Timeline,
    /// The highest levels.
    pub peaks: Levels,
    /// Sums of levels, each times the microseconds for which it was held.
    pub areas: [u128; 4],
    /// When the last call ended.
    pub end_us: u64,
    /// Levels, and since when they are held.
    held: (u64, Levels),
}

impl Summary {
    /// With at most so many intervals of time.
    pub fn within(intervals: usize) -> Summary {
        Summary { timeline: Timeline::new(intervals), ..Summary::default() }
    }

    /// Of a run whose records were kept.
    pub fn of(ended: &Ended) -> Summary {
        let mut summary = Summary::default();
        ended.records.iter().for_each(|record| summary.ended(*record));
        ended.series.steps.iter().for_each(|step| summary.changed(step.at_us, step.totals));
        summary.finish(ended.end_us);
        summary
    }

    /// The run has ended.
    pub fn finish(&mut self, end_us: u64) {
        self.hold_until(end_us);
        let (_, levels) = self.held;
        self.raise(&levels);
        self.end_us = end_us;
        self.latencies.seal();
        self.near.seal();
    }

    fn hold_until(&mut self, at_us: u64) {
        let (since_us, levels) = self.held;
        let us = at_us.saturating_sub(since_us);
        if us > 0 {
            self.timeline.held(since_us, at_us, &levels);
            self.near.add(levels[NEAR], us);
            self.raise(&levels);
            for (area, level) in self.areas.iter_mut().zip(levels) {
                *area += u128::from(us) * u128::from(level);
            }
            self.held.0 = at_us;
        }
    }

    fn raise(&mut self, levels: &Levels) {
        self.peaks = std::array::from_fn(|one| self.peaks[one].max(levels[one]));
    }

    /// The mean of a level over time.
    pub fn mean(&self, level: usize) -> f64 {
        self.areas[level] as f64 / self.end_us.max(1) as f64
    }

    /// Completed calls.
    pub fn completed(&self) -> u64 {
        self.starts.iter().sum()
    }
}

/// Whether a time is longer than another by more than a tolerance.
fn exceeds(us: u64, base_us: u64, tolerance_permille: u64) -> bool {
    u128::from(us) * 1000 > u128::from(base_us) * u128::from(1000 + tolerance_permille)
}

impl Watch for Summary {
    fn ended(&mut self, record: Record) {
        self.requests += 1;
        let interval = self.timeline.at(record.arrival_us);
        interval.arrivals += 1;
        let Some(start) = record.start else {
            interval.failed += 1;
            return;
        };
        let is_late = exceeds(record.latency_us, record.duration_us, TOLERANCE_PERMILLE);
        interval.violations += u64::from(is_late);
        interval.starts[place(start)] += 1;
        self.violations += u64::from(is_late);
        self.starts[place(start)] += 1;
        self.latencies.add(record.latency_us, 1);
        for (slower, tolerance) in self.slower.iter_mut().zip(TOLERANCES_PERMILLE) {
            *slower += u64::from(exceeds(record.run_us, record.duration_us, tolerance));
        }
    }

    fn changed(&mut self, at_us: u64, totals: Totals) {
        // Only the last levels of a moment count: those before it are held for no time.
        self.hold_until(at_us);
        self.held = (
            at_us.max(self.held.0),
            [totals.instances, totals.near_bytes, totals.pool_bytes, totals.far_bytes],
        );
    }
}
