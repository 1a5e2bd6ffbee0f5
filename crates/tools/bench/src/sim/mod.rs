//! The simulator's speed: `farfork bench sim`.
//!
//! ```text
//!  workload   sessions: one call that finds no instance, 19 that do
//!  rounds     farfork │ SimPy, the same workload │ SimFaaS, its own example ─► µs per request
//! ```
//! Invariants: all run in turn, each in one thread, and times are processor time. Every run reports how many calls were warm, which has to be
//! what the workload makes of it. SimPy and SimFaaS take part if `python3` can import them.

mod workload;

use std::process::Command;

use farfork_sim::fast::{self, FINEST_US};
use rustix::time::{ClockId, clock_gettime};

use crate::error::BenchError;
use crate::goals::Goal;
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::{Options, progress};
use workload::{Counted, Workload};

const US: &str = "µs";
const PER_REQUEST: &str = "simulation per request";
const PER_EVENT: &str = "simulation per event";
const MEMORY: &str = "most memory";
const SMALL: &str = "16 nodes, 1,000 functions";
const LARGE: &str = "1,000 nodes, 20,000 functions";
const GHOSTS: &str = "1,000 nodes, 20,000 functions, with ghosts";
const SIMPY: &str = "SimPy, 16 nodes, 1,000 functions";
const SIMFAAS: &str = "SimFaaS, its example";
/// Goals: a million requests in a second, and 100,000.
const MOST_SMALL_US: f64 = 1.0;
const MOST_LARGE_US: f64 = 10.0;

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    options.check(&[])?;
    let mut samples = Samples::default();
    let (rounds, requests) = if options.quick { (7, 400_000) } else { (21, 2_000_000) };
    let small =
        Workload { nodes: 16, functions: 1000, node_bytes: 8 << 30, requests, ghosts: false };
    let large = Workload { nodes: 1000, functions: 20_000, ..small };
    let with_ghosts = Workload { ghosts: true, ..large };
    for round in 1..=rounds {
        progress(&format!("round {round} of {rounds}"));
        simulated(&mut samples, SMALL, &small)?;
        simulated(&mut samples, LARGE, &large)?;
        simulated(&mut samples, GHOSTS, &with_ghosts)?;
        if round <= 7 {
            others(&mut samples, &small);
        }
    }
    // Last, as only the most memory of the process is known.
    for (case, times) in [("one length", 1), ("four lengths", 4)] {
        let longer = Workload { requests: small.requests * times, ..small };
        simulated(&mut Samples::default(), SMALL, &longer)?;
        samples.add(&format!("{SMALL}, {case}"), MEMORY, "MiB", most_memory_mib());
    }
    let goal = |case: &str, limit| {
        let words = format!("{case}, {PER_REQUEST}, {US}");
        Goal::median(words, limit, samples.values(case, PER_REQUEST))
    };
    let goals =
        vec![goal(SMALL, MOST_SMALL_US), goal(LARGE, MOST_LARGE_US), goal(GHOSTS, MOST_LARGE_US)];
    Ok(Report {
        benchmark: "sim",
        quick: options.quick,
        machine: Machine::this(),
        version: env!("CARGO_PKG_VERSION"),
        goals,
        rows: samples.rows(),
        notes: vec![format!(
            "95 % of the calls are warm, each session's first one starts an instance. {} requests per run of \
             farfork; SimPy and SimFaaS simulate fewer, as their time per request does not depend on their number. \
             The SimPy model has no admission, eviction, pool or policies. SimFaaS knows one function and no nodes.",
            requests
        )],
    })
}

/// Processor time of this thread in microseconds: runs are sequential, and others may use the processors, too.
fn processor_us() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

/// One run of farfork.
fn simulated(samples: &mut Samples, case: &str, workload: &Workload) -> Result<(), BenchError> {
    let settings = workload.settings();
    let mut counted = Counted::default();
    let (functions, calls) = (workload.functions(), workload.calls());
    let begun_us = processor_us();
    let finish = fast::simulate(functions, calls, &settings, FINEST_US, None, &mut counted);
    let us = processor_us() - begun_us;
    let wrong = |reason: String| BenchError::Wrong { case: case.to_owned(), reason };
    let finish = finish.map_err(|error| wrong(error.to_string()))?;
    counted.check(workload).map_err(wrong)?;
    samples.add(case, PER_REQUEST, US, us / workload.requests as f64);
    samples.add(case, PER_EVENT, US, us / finish.events as f64);
    Ok(())
}

/// One run of each other simulator.
fn others(samples: &mut Samples, workload: &Workload) {
    let simpy = workload.for_simpy(40_000);
    let simpy: Vec<&str> = simpy.iter().map(String::as_str).collect();
    for (case, program, arguments) in [
        (SIMPY, include_str!("simpy_model.py"), &*simpy),
        (SIMFAAS, include_str!("simfaas_model.py"), &["20000"]),
    ] {
        match python(program, arguments) {
            Ok(us) => samples.add(case, PER_REQUEST, US, us),
            Err(reason) => samples.note(case, PER_REQUEST, US, &reason),
        }
    }
}

/// Microseconds per request of a Python program.
fn python(program: &str, arguments: &[&str]) -> Result<f64, String> {
    let output = Command::new("python3").arg("-c").arg(program).args(arguments).output();
    let output = output.map_err(|error| format!("cannot run python3: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let figures: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match *figures {
        [requests, _, seconds] if output.status.success() && requests > 0.0 => {
            Ok(seconds * 1e6 / requests)
        }
        _ => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(format!("not measured: {}", errors.lines().last().unwrap_or("no figures")))
        }
    }
}

/// The most memory that this process has had, in MiB.
fn most_memory_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
