//! Distributions in bounded memory: exact for a million values, then to a thousandth.

use hdrhistogram::Histogram;

/// Values that are kept as they are.
const EXACT: usize = 1 << 20;
/// Significant digits of more values.
const DIGITS: u8 = 3;

/// The values that thousandths of the weight do not exceed, from 0 to all.
const PERMILLES: u64 = 1000;

/// Values with weights. First they are added; then the distribution is sealed, which keeps a table of 8 KB.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    /// Value and weight.
    exact: Vec<(u64, u64)>,
    /// Instead of them, once there are too many.
    rough: Option<Histogram<u64>>,
    /// Instead of both, once it is sealed: the value at each thousandth. Empty without values.
    sealed: Vec<u64>,
    weight: u128,
    sum: u128,
    max: u64,
}

impl Distribution {
    /// Adds a value. Values of no weight are left out.
    pub fn add(&mut self, value: u64, weight: u64) {
        if weight == 0 {
            return;
        }
        self.weight += u128::from(weight);
        self.sum += u128::from(value) * u128::from(weight);
        self.max = self.max.max(value);
        match &mut self.rough {
            Some(rough) => record(rough, value, weight),
            None => {
                self.exact.push((value, weight));
                if self.exact.len() >= EXACT {
                    self.roughen();
                }
            }
        }
    }

    fn roughen(&mut self) {
        // Cannot fail: the number of digits is valid.
        if let Ok(mut rough) = Histogram::new(DIGITS) {
            rough.auto(true);
            for (value, weight) in std::mem::take(&mut self.exact) {
                record(&mut rough, value, weight);
            }
            self.rough = Some(rough);
        }
    }

    /// Ends the adding. Values can be asked for from now on.
    pub fn seal(&mut self) {
        let (mut exact, rough) = (std::mem::take(&mut self.exact), self.rough.take());
        if self.weight == 0 {
            return;
        }
        if let Some(rough) = rough {
            let at = |permille| rough.value_at_quantile(permille as f64 / PERMILLES as f64);
            self.sealed = (0..=PERMILLES).map(|permille| at(permille).min(self.max)).collect();
            return;
        }
        exact.sort_unstable();
        let (mut next, mut below) = (0, 0);
        for permille in 0..=PERMILLES {
            let rank = (self.weight * u128::from(permille)).div_ceil(u128::from(PERMILLES)).max(1);
            while below < rank {
                below += u128::from(exact[next].1);
                next += 1;
            }
            self.sealed.push(exact[next - 1].0);
        }
    }

    /// The sum of all weights.
    pub fn weight(&self) -> u128 {
        self.weight
    }

    /// The weighted mean; 0 without values.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.weight.max(1) as f64
    }

    /// The largest value.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that a share of the weight does not exceed, by nearest rank; 0 without values.
    pub fn at(&self, permille: u64) -> u64 {
        self.sealed.get(permille as usize).copied().unwrap_or(0)
    }

    /// The smallest value; 0 without values.
    pub fn min(&self) -> u64 {
        self.at(0)
    }

    /// Shares of the weight that do not exceed each of these values, in thousandths.
    pub fn shares(&self, limits: &[f64]) -> Vec<f64> {
        let share = |limit: &f64| {
            let within = self.sealed.partition_point(|value| *value as f64 <= *limit);
            within.saturating_sub(1) as f64 / PERMILLES as f64
        };
        limits.iter().map(share).collect()
    }
}

fn record(rough: &mut Histogram<u64>, value: u64, weight: u64) {
    // Cannot fail: it grows as it has to.
    let _ = rough.record_n(value, weight);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl Iterator<Item = u64>) -> Distribution {
        let mut all = Distribution::default();
        values.for_each(|value| all.add(value, 1));
        all.seal();
        all
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let figures = |all: &Distribution| (all.mean(), all.at(500), all.at(990), all.max());
        assert_eq!(figures(&of((1..=200).rev())), (100.5, 100, 198, 200));
        assert_eq!(figures(&of([7].into_iter())), (7.0, 7, 7, 7));
        assert_eq!(figures(&of([].into_iter())), (0.0, 0, 0, 0));
        assert_eq!(of(1..=200).shares(&[0.0, 50.0, 99.9, 300.0]), [0.0, 0.25, 0.495, 1.0]);
    }

    #[test]
    fn weights_count() {
        let mut all = Distribution::default();
        // 60 of 0, 10 of 1, 20 of 3, 10 of 9.
        for (value, weight) in [(3, 20), (0, 60), (9, 10), (1, 10), (99, 0)] {
            all.add(value, weight);
        }
        all.seal();
        assert_eq!([all.at(500), all.at(700), all.at(701), all.at(900)], [0, 1, 3, 3]);
        assert_eq!((all.mean(), all.max(), all.min(), all.weight()), (1.6, 9, 0, 100));
    }

    #[test]
    fn more_values_are_right_to_a_thousandth() {
        let count = EXACT as u64 + 500_000;
        let all = of((1..=count).map(|value| value * 1000));
        assert_eq!(all.sealed.len(), 1001);
        for permille in [1, 10, 500, 990, 999] {
            let (seen, right) = (all.at(permille) as f64, (count * permille) as f64);
            assert!((seen / right - 1.0).abs() < 2e-3, "{permille}: {seen}, not {right}");
        }
        let share = all.shares(&[count as f64 * 250.0])[0];
        assert!((share - 0.25).abs() < 2e-3, "{share}");
        assert_eq!(all.at(1000), count * 1000);
    }
}
