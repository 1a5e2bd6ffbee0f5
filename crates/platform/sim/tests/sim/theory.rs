//! The fast simulator against queues with closed forms. Each mean is that of many batches, and has to be within
//! four standard errors of theory, which have to be small. (With seeds that are fixed, a test never fails by
//! chance.)

use farfork_policy::checkpoint::AfterCalls;
use farfork_policy::keep_alive::ByPressure;
use farfork_policy::settings::{Checkpoint, KeepAlive};
use farfork_sim::fast::{self, Call, FINEST_US, Function, Watch};
use farfork_sim::profile::{BASE_US, Behaviour};
use farfork_sim::series::Totals;
use farfork_sim::{Record, Settings};

use crate::settings;

const BATCHES: usize = 50;

/// Draws the duration of a call, in microseconds.
type Duration = fn(&mut Random) -> f64;

/// Random numbers: SplitMix64.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.unit()).ln() * mean
    }
}

#[derive(Default)]
struct Records(Vec<Record>);

impl Watch for Records {
    fn ended(&mut self, record: Record) {
        self.0.push(record);
    }

    fn changed(&mut self, _: u64, _: Totals) {}
}

/// Simulates calls of one function that starts in no time, on one node with room for so many instances.
/// They arrive at random, `rate` per second. No image is made, and no instance ends.
fn records(
    rate: f64,
    count: usize,
    servers: u64,
    mut random: Random,
    mut duration_us: impl FnMut(&mut Random) -> f64,
) -> Vec<Record> {
    let behaviour = Behaviour { cold_us: BASE_US, limit_mb: 128, ..Behaviour::typical(None) };
    let window = ByPressure { long_ms: 1 << 40, short_ms: 1 << 40, high_memory_permille: 1000 };
    let policies = farfork_policy::Settings {
        checkpoint: Checkpoint::AfterCalls(AfterCalls { calls: u64::MAX }),
        keep_alive: KeepAlive::ByPressure(window),
        ..farfork_policy::Settings::default()
    };
    // Instances may take 950 of 1,000 parts.
    let node_bytes = (servers * (128 << 20) * 1000).div_ceil(950);
    let settings = Settings { nodes: 1, node_bytes, policies, ..settings() };
    let mut at_us = 0.0;
    let calls = (0..count).map(|request| {
        at_us += random.exponential(1e6 / rate);
        let duration_us = duration_us(&mut random) as u64;
        Call { request, arrival_us: at_us as u64, function: 0, duration_us }
    });
    let mut records = Records::default();
    let functions = vec![Function { owner: 0, behaviour }];
    fast::simulate(functions, calls, &settings, FINEST_US, None, &mut records).unwrap();
    records.0
}

/// The mean of batches and its standard error. The first tenth of them is a warm-up, and left out.
fn mean(figures: &[f64]) -> (f64, f64) {
    let batch = figures.len() / BATCHES;
    let means: Vec<f64> = figures
        .chunks_exact(batch)
        .skip(BATCHES / 10)
        .map(|batch| batch.iter().sum::<f64>() / batch.len() as f64)
        .collect();
    let count = means.len() as f64;
    let mean = means.iter().sum::<f64>() / count;
    let squares: f64 = means.iter().map(|one| (one - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0) / count).sqrt())
}

fn assert_near(what: &str, figures: &[f64], theory: f64) {
    let (mean, error) = mean(figures);
    assert!(error < 0.05 * theory, "{what}: {mean} ± {error} decides nothing");
    let far = (mean - theory).abs() / error;
    assert!(far < 4.0, "{what}: {mean} ± {error}, by theory {theory}: {far} standard errors apart");
}

/// The probability that a call waits in a queue M/M/c with so many erlangs (Erlang C).
fn erlang_c(servers: u64, erlangs: f64) -> f64 {
    // By the recursion of Erlang B.
    let blocked = (1..=servers).fold(1.0, |b, n| erlangs * b / (n as f64 + erlangs * b));
    let free = 1.0 - erlangs / servers as f64;
    blocked / (free + (1.0 - free) * blocked)
}

#[test]
fn erlang_c_is_that_of_tables() {
    // Two servers and one erlang: 1/3.
    assert!((erlang_c(2, 1.0) - 1.0 / 3.0).abs() < 1e-12);
    assert!((erlang_c(1, 0.7) - 0.7).abs() < 1e-12);
}

/// With room for c instances, calls wait as in M/M/c.
#[test]
fn waits_are_those_of_m_m_c() {
    for (servers, erlangs) in [(1, 0.6), (4, 3.0), (10, 8.0)] {
        let mean_us = 100_000.0;
        let rate = erlangs / (mean_us / 1e6);
        let seen =
            records(rate, 120_000, servers, Random(servers), |random| random.exponential(mean_us));

        assert!(seen.iter().all(|record| record.start.is_some()));
        // A start takes a moment, and is not a wait for a server.
        let waits = |record: &Record| (record.latency_us - record.duration_us) as f64;
        let waits: Vec<f64> = seen.iter().map(waits).collect();
        let waited: Vec<f64> = waits.iter().map(|us| f64::from(*us > 0.0)).collect();
        let probability = erlang_c(servers, erlangs);
        let wait_us = probability * mean_us / (servers as f64 - erlangs);
        assert_near(&format!("M/M/{servers}, wait"), &waits, wait_us);
        assert_near(&format!("M/M/{servers}, waiting"), &waited, probability);
    }
}

/// With ample memory, the number of running calls is Poisson, whatever the distribution of their durations.
#[test]
fn running_calls_are_those_of_m_g_infinity() {
    let (rate, mean_us) = (100.0, 200_000.0);
    let erlangs = rate * mean_us / 1e6;
    let distributions: [(&str, Duration); 3] = [
        ("deterministic", |_| 200_000.0),
        ("exponential", |random| random.exponential(200_000.0)),
        // One of ten is long.
        ("two-point", |random| if random.unit() < 0.1 { 1_100_000.0 } else { 100_000.0 }),
    ];
    for (name, duration) in distributions {
        let seen = records(rate, 60_000, 1000, Random(5), duration);
        // A run ends with its record; what it waited for was a start.
        let mut changes: Vec<(u64, i64)> = Vec::new();
        for record in &seen {
            let end_us = record.arrival_us + record.latency_us;
            changes.extend([(end_us - record.duration_us, 1), (end_us, -1)]);
        }
        changes.sort_unstable();
        let last_us = seen.iter().map(|record| record.arrival_us).max().unwrap();
        let (mut running, mut next, mut at_us) = (0, 0, 0);
        let mut samples = Vec::new();
        while at_us < last_us {
            while changes[next].0 <= at_us {
                running += changes[next].1;
                next += 1;
            }
            samples.push(running as f64);
            at_us += 50_000;
        }
        let squares: Vec<f64> = samples.iter().map(|n| (n - erlangs).powi(2)).collect();
        assert_near(&format!("M/G/∞, {name}, mean"), &samples, erlangs);
        assert_near(&format!("M/G/∞, {name}, variance"), &squares, erlangs);
    }
}
