//! Draws from distributions.

use std::f64::consts::TAU;

use crate::random::Random;

/// Rates above this are drawn as if they were normal.
const LARGE: f64 = 64.0;

/// A number with mean 0 and deviation 1, by Box and Muller.
pub fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (TAU * random.unit()).cos()
}

/// How many events there are if so many are expected: Poisson, by Knuth's method, or nearly so if many.
pub fn poisson(random: &mut Random, expected: f64) -> u64 {
    if expected > LARGE {
        return (expected + expected.sqrt() * normal(random)).round().max(0.0) as u64;
    }
    let (limit, mut product, mut count) = ((-expected).exp(), random.unit(), 0);
    while product > limit {
        product *= random.unit();
        count += 1;
    }
    count
}

/// An index of these weights, which sum up to 1.
pub fn choice(random: &mut Random, weights: &[f64]) -> usize {
    let mut left = random.unit();
    for (index, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return index;
        }
    }
    weights.len().saturating_sub(1)
}

/// A value whose logarithm is equally likely between those of two others.
pub fn log_uniform(random: &mut Random, from: f64, to: f64) -> f64 {
    from * (to / from).powf(random.unit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_variances_are_right() {
        let mut random = Random::new(5, 0);
        for expected in [0.01, 3.0, 60.0, 1000.0] {
            let all: Vec<f64> =
                (0..40_000).map(|_| poisson(&mut random, expected) as f64).collect();
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let variance =
                all.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / all.len() as f64;
            assert!(
                (mean / expected - 1.0).abs() < 0.2 / expected.sqrt().max(1.0) + 0.15,
                "{mean}"
            );
            assert!((variance / expected - 1.0).abs() < 0.2, "{expected}: {variance}");
        }
        let all: Vec<f64> = (0..40_000).map(|_| normal(&mut random)).collect();
        let (sum, squares) = all.iter().fold((0.0, 0.0), |(a, b), one| (a + one, b + one * one));
        assert!((sum / 40_000.0).abs() < 0.03 && (squares / 40_000.0 - 1.0).abs() < 0.05);
    }
}
