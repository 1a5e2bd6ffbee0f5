//! The rows of replayed traces.

use std::time::Duration;

use super::replay::{Call, Record, Replayed, STATE_INTERVAL};
use super::state::PlatformState;
use super::trace::Trace;
use super::{client, metric};
use crate::samples::Samples;
use crate::stats::percentile;

/// Kinds of starts: the platform's name, and the metric.
const STARTS: [(&str, &str); 4] = [
    ("cold", "cold starts"),
    ("clone", "clones in other ghosts"),
    ("ghost", "clones in ghosts with the image"),
    ("warm", "warm calls"),
];

/// Adds one sample of each metric for one trace.
pub fn add(samples: &mut Samples, case: &str, trace: &Trace, replayed: &Replayed) {
    latencies(samples, case, trace, &replayed.calls);
    let good = replayed.calls.iter().filter(|call| call.outcome.is_ok());
    let in_time = good.filter(|call| call.ended <= trace.span()).count();
    let period = trace.span().as_secs_f64() * 1e6 / in_time.max(1) as f64;
    samples.add(case, metric::PERIOD, "us", period);
    let share = |count: usize| 100.0 * count as f64 / replayed.calls.len().max(1) as f64;
    samples.add(case, "answered before the trace's end", "%", share(in_time));
    let failed = replayed.calls.iter().filter(|call| call.outcome.is_err()).count();
    samples.add(case, "failed", "%", share(failed));
    let records: Vec<&Record> =
        replayed.calls.iter().filter_map(|call| call.outcome.as_ref().ok()).collect();
    for (start, metric) in STARTS {
        let count = records.iter().filter(|record| record.start == start).count();
        samples.add(case, metric, "%", share(count));
    }
    samples.add(case, "processors busy", "%", replayed.load.busy);
    samples.add(case, "processors taken away", "%", replayed.load.taken_away);
    times(samples, case, &records);
    states(samples, case, &replayed.states);
}

/// Latencies of all calls, and of the calls of each function.
fn latencies(samples: &mut Samples, case: &str, trace: &Trace, calls: &[Call]) {
    let all: Vec<f64> = calls.iter().map(latency_us).collect();
    samples.add(case, metric::P50, "us", percentile(&all, 50));
    samples.add(case, metric::P99, "us", percentile(&all, 99));
    let mut logarithms = Vec::new();
    for function in trace.functions() {
        let own = calls.iter().filter(|call| call.function == function);
        let own: Vec<f64> = own.map(latency_us).collect();
        let case = format!("{case}/{function}");
        samples.add(&case, metric::P50, "us", percentile(&own, 50));
        samples.add(&case, metric::P99, "us", percentile(&own, 99));
        logarithms.push(percentile(&own, 99).ln());
    }
    samples.add(case, metric::P99_OF_FUNCTIONS, "us", mean(&logarithms).exp());
}

/// Waiting and running times of answered calls. Adds nothing without answered calls.
fn times(samples: &mut Samples, case: &str, records: &[&Record]) {
    if records.is_empty() {
        return;
    }
    let us = |of: fn(&Record) -> Duration| -> Vec<f64> {
        records.iter().map(|record| of(record).as_secs_f64() * 1e6).collect()
    };
    let (waited, ran) = (us(|record| record.waited), us(|record| record.ran));
    samples.add(case, "waited, mean", "us", mean(&waited));
    samples.add(case, "waited, P99", "us", percentile(&waited, 99));
    samples.add(case, "ran, mean", "us", mean(&ran));
}

fn states(samples: &mut Samples, case: &str, states: &[PlatformState]) {
    for (state, number) in states.iter().zip(0u32..) {
        let case = format!("{case}/after {:04.1} s", (STATE_INTERVAL * number).as_secs_f64());
        samples.add(&case, "local memory", "bytes", state.local_bytes as f64);
    }
    let all = |of: fn(&PlatformState) -> f64| -> Vec<f64> { states.iter().map(of).collect() };
    let bytes = all(|state| state.local_bytes as f64);
    samples.add(case, "local memory, mean", "bytes", mean(&bytes));
    samples.add(case, "local memory, most", "bytes", bytes.into_iter().fold(0.0, f64::max));
    samples.add(case, "memory promised, mean", "%", mean(&all(|state| state.promised)));
    samples.add(case, "calls that wait, mean", "count", mean(&all(|state| state.waiting as f64)));
    let starting = all(|state| state.starting as f64);
    samples.add(case, "instances that start, mean", "count", mean(&starting));
    let with_calls = states.iter().filter(|state| state.waiting > 0);
    let loads: Vec<f64> = with_calls.map(|state| state.load.not_idle()).collect();
    let share = 100.0 * loads.len() as f64 / states.len().max(1) as f64;
    samples.add(case, "calls wait, of the time", "%", share);
    if !loads.is_empty() {
        samples.add(case, "processors not idle while calls wait", "%", mean(&loads));
    }
}

/// The mean. Zero without values.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The latency of a call. A failed call counts with the longest possible latency.
fn latency_us(call: &Call) -> f64 {
    match call.outcome {
        Ok(_) => call.took.as_secs_f64() * 1e6,
        Err(_) => client::LONGEST.as_secs_f64() * 1e6,
    }
}

#[cfg(test)]
mod tests {
    use super::super::processors::Load;
    use super::super::trace::Arrival;
    use super::*;

    #[test]
    fn failed_calls_count_as_slow_and_not_as_throughput() {
        let arrival = |at| Arrival { at: Duration::from_secs(at), function: "f".to_owned() };
        let trace = Trace { arrivals: (0..=4).map(arrival).collect() };
        let record = |start: &str| Record { start: start.to_owned(), ..Record::default() };
        let call = |ended: u64, outcome: Result<&str, &str>| Call {
            function: "f".to_owned(),
            took: Duration::from_secs(1),
            ended: Duration::from_secs(ended),
            outcome: outcome.map(record).map_err(str::to_owned),
        };
        let calls = vec![
            call(1, Ok("warm")),
            call(2, Ok("ghost")),
            call(3, Err("no")),
            call(4, Ok("warm")),
            call(5, Ok("cold")),
        ];
        let mut samples = Samples::default();
        add(&mut samples, "s", &trace, &Replayed { calls, ..Replayed::default() });
        let one = |metric: &str| samples.values("s", metric)[0];
        assert_eq!(one(metric::P50), 1e6);
        assert_eq!(one(metric::P99), 300e6);
        assert_eq!(one(metric::PERIOD), 4e6 / 3.0, "the last came too late, one failed");
        assert_eq!((one("failed"), one("warm calls"), one("cold starts")), (20.0, 40.0, 20.0));
        assert_eq!(
            (one("clones in other ghosts"), one("clones in ghosts with the image")),
            (0.0, 20.0)
        );
        assert_eq!(samples.values("s/f", metric::P99), [300e6]);
    }

    #[test]
    fn times_are_those_of_answered_calls() {
        let trace = Trace {
            arrivals: vec![Arrival { at: Duration::from_secs(9), function: "f".to_owned() }],
        };
        let call = |outcome| Call {
            function: "f".to_owned(),
            took: Duration::from_secs(1),
            ended: Duration::from_secs(1),
            outcome,
        };
        let record = |waited, ran| {
            let [waited, ran] = [waited, ran].map(Duration::from_millis);
            Ok(Record { start: "warm".to_owned(), waited, ran })
        };
        let calls = vec![call(record(1, 20)), call(Err("no".to_owned())), call(record(3, 40))];
        let busy = |busy| Load { busy, taken_away: 10.0 };
        let state = |local_bytes, waiting, load| PlatformState {
            local_bytes,
            promised: 50.0,
            waiting,
            starting: 1,
            load,
        };
        let load = busy(70.0);
        let states = vec![state(1, 0, busy(20.0)), state(3, 4, busy(85.0))];
        let mut samples = Samples::default();
        add(&mut samples, "s", &trace, &Replayed { calls, states, load });
        let one = |metric: &str| samples.values("s", metric)[0];
        assert_eq!((one("waited, mean"), one("waited, P99"), one("ran, mean")), (2e3, 3e3, 30e3));
        assert_eq!((one("processors busy"), one("processors taken away")), (70.0, 10.0));
        assert_eq!((one("local memory, mean"), one("local memory, most")), (2.0, 3.0));
        assert_eq!(samples.values("s/after 00.5 s", "local memory"), [3.0]);
        assert_eq!((one("memory promised, mean"), one("calls that wait, mean")), (50.0, 2.0));
        assert_eq!(one("instances that start, mean"), 1.0);
        assert_eq!(one("calls wait, of the time"), 50.0);
        assert_eq!(one("processors not idle while calls wait"), 95.0);
        add(&mut samples, "none", &trace, &Replayed::default());
        assert_eq!(samples.values("none", "waited, mean"), [0.0; 0]);
        assert_eq!(samples.values("none", "processors not idle while calls wait"), [0.0; 0]);
    }
}
