//! The autoscaler under bursts, with its own policies and with others: `farfork bench porter`.
//!
//! ```text
//!  set up   answers of a fresh process of each function ─► a platform: deploy, call until all have images
//!  rounds   for each trace, for each scenario, for each system: a platform with this initial state ─►
//!            call each function once ─► replay the trace, open-loop
//! ```
//! Systems differ only in the settings of their policies. Systems that create no images start without
//! any. The functions of one system are programs of their own, so that each instance executes an
//! interpreter in a new container. Every answer is compared with that of a fresh process. A failed call
//! counts with the longest possible latency.

mod bed;
mod client;
mod functions;
pub mod gateway;
mod goals;
mod platform;
mod processors;
mod replay;
mod rows;
mod scenarios;
mod slow_pool;
mod state;
mod systems;
mod trace;
mod waiting;

use self::bed::PorterTestbed;
use self::systems::System;
use self::trace::Trace;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::subject::needed_root;
use crate::{Options, progress};

/// Metrics that several files use.
mod metric {
    pub const P50: &str = "P50";
    pub const P99: &str = "P99";
    pub const P99_OF_FUNCTIONS: &str = "P99, geometric mean of the functions'";
    pub const PERIOD: &str = "time for each call that was answered";
}

/// Runs the benchmark, with the model of a slow pool or without.
pub fn run(options: &Options, is_slow: bool) -> Result<Report, BenchError> {
    let machine = Machine::this();
    options.check(&systems::NAMES)?;
    let root = needed_root()?;
    let files = trace::files(&root.join("bench/traces"))?;
    let known = functions::names();
    let traces =
        files.iter().map(|file| Trace::read(file, &known)).collect::<Result<Vec<_>, _>>()?;
    let systems: Vec<System> =
        systems::all().into_iter().filter(|system| options.wants(system.name)).collect();
    let bed = PorterTestbed::new(root, is_slow)?;
    bed.set_up(&systems)?;
    let (rounds, scenarios) = match options.quick {
        true => (1, &scenarios::ALL[2..]),
        false => (traces.len(), &scenarios::ALL[..]),
    };
    let (mut samples, mut notes) = (Samples::default(), notes(is_slow));
    for round in 0..rounds {
        for scenario in scenarios {
            let trace = scenario.trace(&traces, round);
            for system in systems.iter().filter(|system| scenario.is_for(system)) {
                let case = format!("{}/{}", scenario.name, system.name);
                progress(&format!("round {} of {rounds}, {case}", round + 1));
                let replayed = bed.replay(system, scenario.node_bytes, &trace)?;
                notes.extend(replayed.failures().map(|failures| format!("{case}: {failures}")));
                rows::add(&mut samples, &case, &trace, &replayed);
            }
        }
    }
    Ok(Report {
        benchmark: if is_slow { "porter-slow-pool" } else { "porter" },
        quick: options.quick,
        machine,
        version: env!("CARGO_PKG_VERSION"),
        goals: goals::judge(&samples),
        rows: samples.rows(),
        notes,
    })
}

/// The error for a panic in a task of the benchmark.
fn task_failed(doing: &str) -> BenchError {
    let reason = "a task of the benchmark panicked".to_owned();
    BenchError::Platform { doing: doing.to_owned(), reason }
}

fn notes(is_slow: bool) -> Vec<String> {
    let pool = if is_slow {
        "MODELLED: each call of a clone waits for the time that a pool of 391 ns would add. The time is \
         computed from misses counted in an emulated processor (docs/benchmarks.md, latency), with a cache \
         of 4 MiB and four overlapping misses. Everything else is measured."
    } else {
        "Pool and local memory are the same DRAM here. The figures contain neither the cost of a slower \
         pool nor what tiering saves there."
    };
    [
        pool,
        "cold-start and keep-warm are the same platform without images of functions. Their instances \
         start as clones of the runtime's base image in waiting ghosts, which is faster than a container \
         that starts an interpreter.",
        "container-cold-start starts such a container: when a call arrives, runc creates a container, and \
         in it an interpreter is executed, which loads the code. As for every program of the platform, the \
         process that executes it is a clone of the base image. Each call uses a new connection.",
        "CRIU is not measured here: it cannot restore a function into a waiting container. full-copy does \
         what a restore from files in memory does, with farfork's plan.",
    ]
    .map(str::to_owned)
    .into()
}
