//! Random numbers from a seed: SplitMix64, as in Steele, Lea and Flood (OOPSLA '14).

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The sequence of a seed and of one place, so that places do not disturb each other.
    pub fn new(seed: u64, place: u64) -> Random {
        let mut random = Random { state: seed };
        random.state = random.next() ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        random
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut random = Random { state: 1_234_567 };
        let first = [random.next(), random.next()];
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn places_have_their_own_numbers_in_range() {
        let mean = |place| {
            let mut random = Random::new(7, place);
            let all: Vec<f64> = (0..10_000).map(|_| random.unit()).collect();
            assert!(all.iter().all(|number| (0.0..1.0).contains(number)));
            all.iter().sum::<f64>() / 10_000.0
        };
        assert!((mean(1) - 0.5).abs() < 0.02 && mean(1) != mean(2));
    }
}
