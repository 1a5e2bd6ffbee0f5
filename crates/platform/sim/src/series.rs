//! What the nodes hold over time.

pub use farfork_platform::simulated::Totals;

/// Totals from one moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Microseconds since the first arrival.
    pub at_us: u64,
    /// What is held from then on.
    pub totals: Totals,
}

/// Steps in the order of time. Before the first one nothing is held.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The steps.
    pub steps: Vec<Step>,
}

/// One figure of the totals.
pub type Figure = fn(&Totals) -> u64;

impl Series {
    /// Adds a step. Only the last one of a moment counts.
    pub fn add(&mut self, at_us: u64, totals: Totals) {
        match self.steps.last_mut() {
            Some(last) if last.totals == totals => {}
            Some(last) if last.at_us == at_us => last.totals = totals,
            _ => self.steps.push(Step { at_us, totals }),
        }
    }

    /// Pieces of time up to an end, with the figure's value in each.
    fn pieces(&self, end_us: u64, figure: Figure) -> impl Iterator<Item = (u64, u64)> {
        let ends = self.steps.iter().skip(1).map(|step| step.at_us).chain([end_us]);
        let first = self.steps.first().map_or(end_us, |step| step.at_us.min(end_us));
        let pieces = self.steps.iter().zip(ends).map(move |(step, end)| {
            let (from, to) = (step.at_us.min(end_us), end.min(end_us));
            (to.saturating_sub(from), figure(&step.totals))
        });
        [(first, 0)].into_iter().chain(pieces)
    }

    /// The mean over time up to an end.
    pub fn mean(&self, end_us: u64, figure: Figure) -> f64 {
        let sum: u128 =
            self.pieces(end_us, figure).map(|(us, value)| u128::from(us) * u128::from(value)).sum();
        sum as f64 / end_us.max(1) as f64
    }

    /// The value that is not exceeded for half of the time.
    pub fn median(&self, end_us: u64, figure: Figure) -> u64 {
        let mut pieces: Vec<(u64, u64)> =
            self.pieces(end_us, figure).map(|(us, value)| (value, us)).collect();
        pieces.sort_unstable();
        let mut left = u128::from(end_us).div_ceil(2);
        for (value, us) in pieces {
            left = left.saturating_sub(u128::from(us));
            if left == 0 {
                return value;
            }
        }
        0
    }

    /// The largest value.
    pub fn max(&self, figure: Figure) -> u64 {
        self.steps.iter().map(|step| figure(&step.totals)).max().unwrap_or(0)
    }

    /// The largest value within each of so many equal parts of the time up to an end.
    pub fn peaks(&self, end_us: u64, parts: usize, figure: Figure) -> Vec<f64> {
        let mut peaks = vec![0.0; parts];
        let part = |us: u64| {
            let part = u128::from(us) * parts as u128 / u128::from(end_us.max(1));
            (part as usize).min(parts - 1)
        };
        let mut at_us = 0;
        for (us, value) in self.pieces(end_us, figure) {
            if us > 0 {
                for peak in &mut peaks[part(at_us)..=part(at_us + us - 1)] {
                    *peak = value.max(*peak as u64) as f64;
                }
            }
            at_us += us;
        }
        peaks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(steps: &[(u64, u64)]) -> Series {
        let mut series = Series::default();
        for (at_us, instances) in steps {
            series.add(*at_us, Totals { instances: *instances, ..Totals::default() });
        }
        series
    }

    #[test]
    fn figures_are_weighted_by_time() {
        let instances: Figure = |totals| totals.instances;
        let seen = series(&[(10, 1), (20, 4), (20, 3), (40, 0)]);
        // 10 of 0, 10 of 1, 20 of 3, 60 of 0.
        assert_eq!(seen.mean(100, instances), 0.7);
        assert_eq!((seen.median(100, instances), seen.median(40, instances)), (0, 1));
        assert_eq!(seen.max(instances), 3, "only the last value of a moment counts");
        assert_eq!(seen.peaks(100, 10, instances), [0., 1., 3., 3., 0., 0., 0., 0., 0., 0.]);
        assert_eq!(series(&[]).mean(0, instances), 0.0);
    }
}
