//! Medians, percentiles and confidence intervals.

/// Resamples of a bootstrap.
const RESAMPLES: usize = 4000;
/// Share of resamples, or coverage of an order statistic, outside of an interval.
const OUTSIDE: f64 = 0.05;

/// An interval that holds the true value with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// The median. For an even number of values, the mean of the middle two. NaN without values.
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// The percentile `share`: the smallest value that `share` of 100 values do not exceed. NaN without
/// values.
pub fn percentile(values: &[f64], share: usize) -> f64 {
    let sorted = sorted(values);
    let rank = (sorted.len() * share).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The 95 % interval of the median between two order statistics. It assumes nothing about the
/// distribution. Fewer than six values have none.
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    let rank = lower_rank(values.len())?;
    let sorted = sorted(values);
    Some(Interval { low: sorted[rank], high: sorted[sorted.len() - 1 - rank] })
}

/// The largest `k` for which the median lies between the `k`-th value from either end with 95 %
/// confidence: twice the chance of at most `k` heads in `n` throws stays under 5 %.
fn lower_rank(n: usize) -> Option<usize> {
    // The logarithm of the chance of exactly k heads: the chance itself underflows for many throws.
    let mut chance = n as f64 * 0.5f64.ln();
    let mut tail = 0.0;
    let mut found = None;
    for k in 0..n / 2 {
        tail += chance.exp();
        if 2.0 * tail > OUTSIDE {
            break;
        }
        found = Some(k);
        chance += ((n - k) as f64 / (k + 1) as f64).ln();
    }
    found
}

/// The median of `numerators` over the median of `denominators`, with a 95 % bootstrap interval.
/// Samples of equal number are taken as pairs of one round each and stay together.
pub fn ratio(numerators: &[f64], denominators: &[f64]) -> Option<(f64, Option<Interval>)> {
    if numerators.is_empty() || denominators.is_empty() {
        return None;
    }
    let value = quotient(median(numerators), median(denominators));
    if numerators.len().min(denominators.len()) < 6 {
        return Some((value, None));
    }
    let mut random = Random(0x5eed);
    let mut ratios: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let (a, b) = resample(numerators, denominators, &mut random);
            quotient(median(&a), median(&b))
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let out = (RESAMPLES as f64 * OUTSIDE / 2.0) as usize;
    Some((value, Some(Interval { low: ratios[out], high: ratios[RESAMPLES - 1 - out] })))
}

/// A denominator that is not above zero has no shares.
fn quotient(numerator: f64, denominator: f64) -> f64 {
    match (numerator > 0.0, denominator > 0.0) {
        (_, true) => numerator / denominator,
        (true, false) => f64::INFINITY,
        (false, false) => 1.0,
    }
}

fn resample(a: &[f64], b: &[f64], random: &mut Random) -> (Vec<f64>, Vec<f64>) {
    if a.len() == b.len() {
        return (0..a.len()).map(|_| random.below(a.len())).map(|i| (a[i], b[i])).unzip();
    }
    let mut drawn = |values: &[f64]| -> Vec<f64> {
        (0..values.len()).map(|_| values[random.below(values.len())]).collect()
    };
    (drawn(a), drawn(b))
}

/// SplitMix64: the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) % limit as u64) as usize
    }
}

/// The finalizer of SplitMix64.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize) -> Vec<f64> {
        (1..=n).rev().map(|value| value as f64).collect()
    }

    #[test]
    fn medians_of_known_samples() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 1000.0]), 3.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!((percentile(&values, 50), percentile(&values, 99)), (100.0, 198.0));
        assert_eq!((percentile(&[3.0], 50), percentile(&[3.0], 99)), (3.0, 3.0));
        assert_eq!(percentile(&[1.0, 2.0], 99), 2.0);
        assert!(percentile(&[], 99).is_nan());
    }

    /// The ranks of the sign test, as statistical tables give them (counted from one).
    #[test]
    fn intervals_use_the_ranks_of_the_tables() {
        let few = [(6, 1), (8, 1), (9, 2), (10, 2), (15, 4), (20, 6), (25, 8), (50, 18)];
        for (n, rank) in few.into_iter().chain([(1100, 518), (2000, 956)]) {
            let interval = median_interval(&numbers(n)).unwrap();
            assert_eq!(interval, Interval { low: rank as f64, high: (n + 1 - rank) as f64 }, "{n}");
        }
    }

    #[test]
    fn few_samples_have_no_interval() {
        assert!((0..6).all(|n| median_interval(&numbers(n)).is_none()));
        assert_eq!(ratio(&[1.0, 2.0, 3.0], &[4.0, 4.0, 4.0]), Some((0.5, None)));
        assert_eq!(ratio(&[], &[1.0]), None);
    }

    #[test]
    fn a_ratio_of_constants_is_certain() {
        let (value, interval) = ratio(&[2.0; 9], &[8.0; 7]).unwrap();
        assert_eq!((value, interval), (0.25, Some(Interval { low: 0.25, high: 0.25 })));
    }

    #[test]
    fn pairs_stay_together_and_runs_agree() {
        // Noise that both sides share cancels only within pairs.
        let noise = numbers(21);
        let halves: Vec<f64> = noise.iter().map(|value| value / 2.0).collect();
        let (value, interval) = ratio(&halves, &noise).unwrap();
        assert_eq!((value, interval), (0.5, Some(Interval { low: 0.5, high: 0.5 })));
        assert_eq!(ratio(&noise, &noise[1..]), ratio(&noise, &noise[1..]));
    }

    #[test]
    fn a_cost_of_zero_has_no_shares() {
        assert_eq!(ratio(&[1.0], &[0.0]), Some((f64::INFINITY, None)));
        assert_eq!(ratio(&[-1.0], &[-2.0]), Some((1.0, None)));
        assert_eq!(ratio(&[-1.0], &[2.0]), Some((-0.5, None)));
    }

    /// The interval of the median holds the true median about 95 times in 100.
    #[test]
    fn intervals_cover_what_they_claim() {
        let mut random = Random(7);
        let covered = (0..1000)
            .filter(|_| {
                let sample: Vec<f64> = (0..15).map(|_| random.below(10_001) as f64).collect();
                let interval = median_interval(&sample).unwrap();
                interval.low <= 5000.0 && 5000.0 <= interval.high
            })
            .count();
        assert!((940..=990).contains(&covered), "{covered}");
    }
}
