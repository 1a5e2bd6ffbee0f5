//! What came of traces, as rows.

use super::replay::{Call, LOOK, Replayed};
use super::trace::Trace;
use super::{client, metric};
use crate::samples::Samples;
use crate::stats::percentile;

/// What came of one trace becomes one sample of each metric.
pub fn add(samples: &mut Samples, case: &str, trace: &Trace, replayed: &Replayed) {
    let all: Vec<f64> = replayed.calls.iter().map(latency_us).collect();
    samples.add(case, metric::P50, "us", percentile(&all, 50));
    samples.add(case, metric::P99, "us", percentile(&all, 99));
    let mut logarithms = Vec::new();
    for function in trace.functions() {
        let own = replayed.calls.iter().filter(|call| call.function == function);
        let own: Vec<f64> = own.map(latency_us).collect();
        let case = format!("{case}/{function}");
        samples.add(&case, metric::P50, "us", percentile(&own, 50));
        samples.add(&case, metric::P99, "us", percentile(&own, 99));
        logarithms.push(percentile(&own, 99).ln());
    }
    let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
    samples.add(case, metric::P99_OF_FUNCTIONS, "us", mean.exp());
    let good = replayed.calls.iter().filter(|call| call.outcome.is_ok());
    let in_time = good.filter(|call| call.ended <= trace.span()).count();
    let period = trace.span().as_secs_f64() * 1e6 / in_time.max(1) as f64;
    samples.add(case, metric::PERIOD, "us", period);
    let share = |count: usize| 100.0 * count as f64 / replayed.calls.len().max(1) as f64;
    samples.add(case, "answered before the trace's end", "%", share(in_time));
    let failed = replayed.calls.iter().filter(|call| call.outcome.is_err()).count();
    samples.add(case, "failed", "%", share(failed));
    for start in ["cold", "clone", "warm"] {
        let is_it = |call: &&Call| call.outcome.as_ref().is_ok_and(|kind| kind == start);
        let metric = match start {
            "cold" => "cold starts",
            "clone" => "clones",
            _ => "warm calls",
        };
        samples.add(case, metric, "%", share(replayed.calls.iter().filter(is_it).count()));
    }
    for (bytes, number) in replayed.local_bytes.iter().zip(0u32..) {
        let case = format!("{case}/after {:04.1} s", (LOOK * number).as_secs_f64());
        samples.add(&case, "local memory", "bytes", *bytes as f64);
    }
    let bytes = &replayed.local_bytes;
    let sum: u64 = bytes.iter().sum();
    samples.add(case, "local memory, mean", "bytes", sum as f64 / bytes.len().max(1) as f64);
    let most = bytes.iter().max().copied().unwrap_or_default();
    samples.add(case, "local memory, most", "bytes", most as f64);
}

/// One that failed took as long as any may.
fn latency_us(call: &Call) -> f64 {
    match call.outcome {
        Ok(_) => call.took.as_secs_f64() * 1e6,
        Err(_) => client::PATIENCE.as_secs_f64() * 1e6,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::trace::Arrival;
    use super::*;

    #[test]
    fn what_fails_counts_as_slow_and_not_as_throughput() {
        let arrival = |at| Arrival { at: Duration::from_secs(at), function: "f".to_owned() };
        let trace = Trace { arrivals: (0..=4).map(arrival).collect() };
        let call = |ended: u64, outcome: Result<&str, &str>| Call {
            function: "f".to_owned(),
            took: Duration::from_secs(1),
            ended: Duration::from_secs(ended),
            outcome: outcome.map(str::to_owned).map_err(str::to_owned),
        };
        let calls = vec![
            call(1, Ok("warm")),
            call(2, Ok("clone")),
            call(3, Err("no")),
            call(4, Ok("warm")),
            call(5, Ok("cold")),
        ];
        let mut samples = Samples::default();
        add(&mut samples, "s", &trace, &Replayed { calls, local_bytes: vec![1, 3] });
        let one = |metric: &str| samples.values("s", metric)[0];
        assert_eq!(one(metric::P50), 1e6);
        assert_eq!(one(metric::P99), 90e6);
        assert_eq!(one(metric::PERIOD), 4e6 / 3.0, "the last came too late, one failed");
        assert_eq!((one("failed"), one("warm calls"), one("cold starts")), (20.0, 40.0, 20.0));
        assert_eq!((one("local memory, mean"), one("local memory, most")), (2.0, 3.0));
        assert_eq!(samples.values("s/f", metric::P99), [90e6]);
        assert_eq!(samples.values("s/after 00.5 s", "local memory"), [3.0]);
    }
}
