//! The fast simulator against queues with closed forms. Each mean is that of many batches, and has to be within
//! four standard errors of theory, which have to be small. (With seeds that are fixed, a test never fails by
//! chance.)

use farfork_policy::checkpoint::AfterCalls;
use farfork_policy::keep_alive::ByPressure;
use farfork_policy::settings::{Checkpoint, KeepAlive, Share};
use farfork_policy::share::Fixed;
use farfork_sim::fast::{self, Call, FINEST_US, Function, StartKind, Watch};
use farfork_sim::profile::{BASE_US, Behaviour};
use farfork_sim::series::Totals;
use farfork_sim::shares::{Held, Measured, Shares};
use farfork_sim::{Record, Settings};
use farfork_types::LocalShare;

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
    random: Random,
    duration_us: impl FnMut(&mut Random) -> f64,
) -> Vec<Record> {
    shared_records(rate, count, servers, None, random, duration_us)
}

/// The same with calls that share so many processors of the node.
fn shared_records(
    rate: f64,
    count: usize,
    servers: u64,
    processors: Option<u32>,
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
    let settings = Settings { nodes: 1, node_bytes, policies, processors, ..settings() };
    let mut at_us = 0.0;
    let calls = (0..count).map(|request| {
        at_us += random.exponential(1e6 / rate);
        let duration_us = duration_us(&mut random) as u64;
        Call { request, arrival_us: at_us as u64, function: 0, duration_us, payload_bytes: 0 }
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

/// Calls that share one processor (M/M/1-PS): a call takes 1 / (1 - load) times as long as alone on average, however
/// long it is; so the mean is that of M/M/1.
#[test]
fn calls_that_share_a_processor_take_as_long_as_in_m_m_1_ps() {
    let (mean_us, load) = (100_000.0, 0.6);
    let rate = load / (mean_us / 1e6);
    let seen = shared_records(rate, 120_000, 500, Some(1), Random(3), |random| {
        random.exponential(mean_us)
    });
    assert!(
        seen.iter().all(|record| record.start.is_some() && record.run_us >= record.duration_us)
    );
    let runs: Vec<f64> = seen.iter().map(|record| record.run_us as f64).collect();
    assert_near("M/M/1-PS", &runs, mean_us / (1.0 - load));
    // Of a call of any length.
    for (from_us, to_us) in [(20_000.0, 40_000.0), (90_000.0, 110_000.0), (180_000.0, 250_000.0)] {
        let is_so_long = |record: &&Record| (from_us..to_us).contains(&(record.duration_us as f64));
        let slower = |record: &Record| record.run_us as f64 / record.duration_us as f64;
        let slower: Vec<f64> = seen.iter().filter(is_so_long).map(slower).collect();
        assert_near(&format!("{from_us} to {to_us} us"), &slower, 1.0 / (1.0 - load));
    }
}

/// Processor sharing does not depend on the distribution of durations (M/G/1-PS), unlike a queue.
#[test]
fn sharing_does_not_depend_on_the_distribution() {
    let distributions: [(&str, Duration); 2] = [
        ("deterministic", |_| 100_000.0),
        ("two-point", |random| if random.unit() < 0.1 { 550_000.0 } else { 50_000.0 }),
    ];
    for (name, duration) in distributions {
        let seen = shared_records(5.0, 120_000, 500, Some(1), Random(4), duration);
        let runs: Vec<f64> = seen.iter().map(|record| record.run_us as f64).collect();
        assert_near(&format!("M/G/1-PS, {name}"), &runs, 200_000.0);
    }
}

/// On several processors (M/M/c-PS) as many calls are there as in M/M/c.
#[test]
fn calls_that_share_processors_are_as_many_as_in_m_m_c() {
    let (mean_us, processors, erlangs) = (100_000.0, 4, 3.0);
    let rate = erlangs / (mean_us / 1e6);
    let seen = shared_records(rate, 120_000, 500, Some(processors), Random(5), |random| {
        random.exponential(mean_us)
    });
    let runs: Vec<f64> = seen.iter().map(|record| record.run_us as f64).collect();
    let processors = u64::from(processors);
    let wait_us = erlang_c(processors, erlangs) * mean_us / (processors as f64 - erlangs);
    assert_near("M/M/4-PS", &runs, mean_us + wait_us);
}

/// Calls that read from far memory share its bandwidth (M/D/1-PS): the reads take 1 / (1 - load) times as long as
/// alone on average, and the rest of a call as long as ever.
#[test]
fn reads_of_far_memory_share_its_bandwidth() {
    let (far_bytes, reads_us, rest_us, load) = (50_000_000, 100_000, 20_000, 0.6);
    let cell = |local_permille, near_bytes| Measured {
        payload_bytes: 0,
        local_permille,
        calls: 9,
        latency_us: reads_us + rest_us,
        held: Held { near_bytes, ..Held::default() },
    };
    let shares = Shares::new([cell(0, 0), cell(1000, far_bytes)]).unwrap();
    let behaviour =
        Behaviour { cold_us: BASE_US, limit_mb: 128, shares, ..Behaviour::typical(None) };
    let window = ByPressure { long_ms: 1 << 40, short_ms: 1 << 40, high_memory_permille: 1000 };
    let policies = farfork_policy::Settings {
        checkpoint: Checkpoint::AfterCalls(AfterCalls { calls: u64::MAX }),
        keep_alive: KeepAlive::ByPressure(window),
        share: Some(Share::Fixed(Fixed { local_permille: LocalShare::from_permille(0).unwrap() })),
        ..farfork_policy::Settings::default()
    };
    let seen = |far_bandwidth: Option<u64>, count: usize| {
        let settings =
            Settings { nodes: 1, node_bytes: 1 << 40, policies, far_bandwidth, ..settings() };
        let (mut at_us, mut random) = (0.0, Random(8));
        let calls = (0..count).map(|request| {
            at_us += random.exponential(reads_us as f64 / load);
            let duration_us = reads_us + rest_us;
            Call { request, arrival_us: at_us as u64, function: 0, duration_us, payload_bytes: 0 }
        });
        let mut records = Records::default();
        let functions = vec![Function { owner: 0, behaviour: behaviour.clone() }];
        fast::simulate(functions, calls, &settings, FINEST_US, None, &mut records).unwrap();
        assert_eq!(records.0.len(), count);
        let runs = records.0.iter().map(|record| record.run_us as f64);
        runs.collect::<Vec<f64>>()
    };
    let alone = (reads_us + rest_us) as f64;
    let runs = seen(Some(far_bytes * 1_000_000 / reads_us), 60_000);
    assert!(runs.iter().all(|run| *run >= alone));
    assert_near("M/D/1-PS", &runs, reads_us as f64 / (1.0 - load) + rest_us as f64);
    // Where reads hide behind nothing, the bandwidth alone counts: twice as long, with twice the load.
    assert!(seen(None, 100).iter().all(|run| *run == alone));
    assert!(seen(Some(far_bytes * 500_000 / reads_us), 1).iter().all(|run| *run == 200_000.0));
}

/// The time on a link counts for the time limit of a call, whether that comes during it or after it.
#[test]
fn a_call_on_a_link_ends_at_its_time_limit() {
    let limit_us = 300_000_000;
    for (link_us, duration_us) in [(400_000_000, 100_000), (100_000, limit_us + 10_000)] {
        for processors in [None, Some(1)] {
            let record = far_call(link_us, duration_us, processors);
            assert_eq!((record.start, record.run_us), (None, limit_us), "{link_us} {processors:?}");
        }
    }
    let record = far_call(100_000, limit_us - 10_000, None);
    assert_eq!((record.start, record.run_us), (Some(StartKind::Cold), limit_us - 10_000));
}

/// One call with all memory far, which takes so long to read over its link, and in all at least `duration_us`.
fn far_call(link_us: u64, duration_us: u64, processors: Option<u32>) -> Record {
    let far_bytes = 50_000_000;
    let cell = |local_permille, near_bytes| Measured {
        payload_bytes: 0,
        local_permille,
        calls: 9,
        latency_us: 1000,
        held: Held { near_bytes, ..Held::default() },
    };
    let shares = Shares::new([cell(0, 0), cell(1000, far_bytes)]).unwrap();
    let behaviour =
        Behaviour { cold_us: BASE_US, limit_mb: 128, shares, ..Behaviour::typical(None) };
    let policies = farfork_policy::Settings {
        share: Some(Share::Fixed(Fixed { local_permille: LocalShare::from_permille(0).unwrap() })),
        ..farfork_policy::Settings::default()
    };
    let far_bandwidth = Some(far_bytes * 1_000_000 / link_us);
    let settings = Settings { nodes: 1, policies, far_bandwidth, processors, ..settings() };
    let call = Call { request: 0, arrival_us: 0, function: 0, duration_us, payload_bytes: 0 };
    let mut records = Records::default();
    let functions = vec![Function { owner: 0, behaviour }];
    fast::simulate(functions, [call].into_iter(), &settings, FINEST_US, None, &mut records)
        .unwrap();
    records.0.remove(0)
}

/// Up to as many calls as processors do not notice each other.
#[test]
fn enough_processors_change_nothing() {
    let duration = |random: &mut Random| random.exponential(100_000.0);
    let with = shared_records(20.0, 5_000, 500, Some(1000), Random(6), duration);
    let without = records(20.0, 5_000, 500, Random(6), duration);
    assert_eq!(with, without);
}
