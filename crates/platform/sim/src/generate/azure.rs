//! Functions as Azure's were in 2019 (Shahrad et al., Serverless in the Wild, ATC '20).
//!
//! Published, and used here: functions per app; triggers by function; 45 % of apps are called at most once per hour
//! and 81 % at most once per minute on average; average durations are log-normal (logarithm's mean -0.38, deviation
//! 2.36, in seconds); memory of apps has a Burr distribution (c = 11.652, k = 0.221, scale 107.083 MB).
//!
//! Assumed: rates are log-uniform between these points; the highest rate is the one that gives the wanted number of
//! calls; functions of an app have equal rates; durations of one function are log-normal with deviation 0.5; calls of
//! timers have equal distances, all others are Poisson with a daily wave of a quarter around the mean.

use super::draw::{choice, log_uniform, normal};
use super::{DAY, Function, Wanted};
use crate::random::Random;
use crate::trace::SYNTHETIC;

/// Shares of apps by their number of functions: 1, 2, 3, 4 or 5, 6 to 10, more.
const SIZES: [f64; 6] = [0.54, 0.16, 0.10, 0.08, 0.07, 0.05];
const RANGES: [(u64, u64); 6] = [(1, 1), (2, 2), (3, 3), (4, 5), (6, 10), (11, 30)];
/// Shares of functions by trigger.
const TRIGGERS: [(&str, f64); 6] = [
    ("http", 0.55),
    ("timer", 0.16),
    ("queue", 0.15),
    ("orchestration", 0.07),
    ("others", 0.05),
    ("event", 0.02),
];
/// Shares of apps with at most so many calls per minute.
const RARE: f64 = 0.45;
const SELDOM: f64 = 0.81;
const PER_DAY: f64 = 1.0 / DAY as f64;
const PER_HOUR: f64 = 1.0 / 60.0;
const PER_MINUTE: f64 = 1.0;
/// The highest rate of an app, in calls per minute.
const HIGHEST: f64 = 1e6;

pub fn functions(wanted: &Wanted) -> Vec<Function> {
    let mut random = Random::new(wanted.seed, u64::MAX);
    // Apps with their place among all rates.
    let (mut apps, mut count) = (Vec::new(), 0);
    while count < wanted.functions {
        let (least, most) = RANGES[choice(&mut random, &SIZES)];
        let size = least + (random.unit() * (most - least + 1) as f64) as u64;
        let size = size.min(wanted.functions - count);
        apps.push((size, random.unit(), Random::new(wanted.seed, count)));
        count += size;
    }
    let rates = rates(&apps, wanted);
    let mut functions = Vec::new();
    for (app, ((size, _, mut random), rate)) in apps.into_iter().zip(rates).enumerate() {
        let memory_mb = burr(random.unit());
        for number in 0..size {
            let (trigger, _) = TRIGGERS[choice(&mut random, &TRIGGERS.map(|(_, share)| share))];
            functions.push(Function {
                // Three apps of each owner.
                owner: format!("{SYNTHETIC}-owner-{}", app / 3),
                app: format!("app-{app}"),
                name: format!("func-{number}"),
                trigger,
                rate: rate / size as f64,
                is_timer: trigger == "timer",
                duration: (-0.38 + 2.36 * normal(&mut random), 0.5),
                memory_mb,
            });
        }
    }
    functions
}

/// Calls per minute of each app. The highest rate is found by halving, so that their sum is the wanted one.
fn rates(apps: &[(u64, f64, Random)], wanted: &Wanted) -> Vec<f64> {
    let goal = wanted.calls as f64 / wanted.minutes.max(1) as f64;
    let all = |highest: f64| -> Vec<f64> {
        apps.iter()
            .map(|(_, place, random)| {
                let mut random = random.clone();
                match *place {
                    place if place < RARE => log_uniform(&mut random, PER_DAY, PER_HOUR),
                    place if place < SELDOM => log_uniform(&mut random, PER_HOUR, PER_MINUTE),
                    _ => log_uniform(&mut random, PER_MINUTE, highest),
                }
            })
            .collect()
    };
    let (mut low, mut high) = (PER_MINUTE, HIGHEST);
    for _ in 0..60 {
        let middle = (low * high).sqrt();
        if all(middle).iter().sum::<f64>() < goal { low = middle } else { high = middle }
    }
    let mut rates = all(low);
    // The rest, where even the bounds give too few or too many.
    let sum: f64 = rates.iter().sum();
    rates.iter_mut().for_each(|rate| *rate *= goal / sum.max(f64::MIN_POSITIVE));
    rates
}

/// The memory that this share of apps does not exceed, in MB.
fn burr(share: f64) -> f64 {
    let (c, k, scale) = (11.652, 0.221, 107.083);
    let value = scale * ((1.0 - share).powf(-1.0 / k) - 1.0).powf(1.0 / c);
    value.clamp(1.0, 4096.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Model;

    /// What is published holds for what is generated.
    #[test]
    fn statistics_are_those_that_are_published() {
        let wanted = Wanted {
            model: Model::Azure2019,
            functions: 20_000,
            minutes: DAY,
            // As many per function as in Azure's two weeks.
            calls: 240_000_000,
            seed: 1,
        };
        let functions = functions(&wanted);
        assert_eq!(functions.len(), 20_000);
        let mut apps: std::collections::BTreeMap<&str, (u64, f64)> = Default::default();
        for one in &functions {
            let app = apps.entry(&one.app).or_default();
            *app = (app.0 + 1, app.1 + one.rate);
        }
        let share = |of: &dyn Fn(&(u64, f64)) -> bool| {
            apps.values().filter(|app| of(app)).count() as f64 / apps.len() as f64
        };
        let near =
            |seen: f64, right: f64| assert!((seen - right).abs() < 0.02, "{seen}, not {right}");
        near(share(&|app| app.0 == 1), 0.54);
        near(share(&|app| app.1 <= 1.001 / 60.0), 0.45);
        near(share(&|app| app.1 <= 1.001), 0.81);
        let total: f64 = functions.iter().map(|one| one.rate).sum();
        assert!((total * DAY as f64 / 2.4e8 - 1.0).abs() < 1e-3, "{total}");
        // Apps called more than once per minute make nearly all calls: 99.6 % are published.
        let busy: f64 = apps.values().filter(|app| app.1 > 1.0).map(|app| app.1).sum();
        assert!(busy / total > 0.99, "{}", busy / total);
        let mut memory: Vec<f64> = functions.iter().map(|one| one.memory_mb).collect();
        memory.sort_by(f64::total_cmp);
        // The median of the Burr distribution is 137.7 MB.
        assert!((memory[memory.len() / 2] - 137.7).abs() < 15.0, "{}", memory[memory.len() / 2]);
        let logs = functions.iter().map(|one| one.duration.0).sum::<f64>() / 20_000.0;
        assert!((logs + 0.38).abs() < 0.1, "{logs}");
    }
}
