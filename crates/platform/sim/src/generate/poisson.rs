//! Functions with Poisson arrivals.
//!
//! The n-th most popular function is called in proportion to 1/n (Zipf's law). Medians of durations are log-normal
//! around 100 ms (deviation of logarithms 1), durations of one function with deviation 0.3; all have 128 MB.

use super::draw::normal;
use super::{Function, Wanted};
use crate::random::Random;
use crate::trace::SYNTHETIC;

pub fn functions(wanted: &Wanted) -> Vec<Function> {
    let weights: f64 = (1..=wanted.functions).map(|place| 1.0 / place as f64).sum();
    let rate = wanted.calls as f64 / wanted.minutes.max(1) as f64 / weights;
    let function = |place: u64| {
        let mut random = Random::new(wanted.seed, place);
        Function {
            owner: format!("{SYNTHETIC}-owner-{}", place / 10),
            app: format!("app-{}", place / 3),
            name: format!("func-{place}"),
            trigger: "http",
            rate: rate / (place + 1) as f64,
            is_timer: false,
            duration: (0.1f64.ln() + normal(&mut random), 0.3),
            memory_mb: 128.0,
        }
    };
    (0..wanted.functions).map(function).collect()
}
