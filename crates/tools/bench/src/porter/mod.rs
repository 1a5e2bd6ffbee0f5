//! The autoscaler under bursts, with its own policies and with others: `farfork bench porter`.
//!
//! ```text
//!  set up   ask a fresh process of each function ─► a platform: deploy, call until all have images
//!  rounds   for each trace, for each scenario, for each system: a platform with what was set up ─►
//!            call each function once ─► replay the trace, open-loop
//! ```
//! Systems differ in nothing but the settings of their policies, and those that make no images begin
//! without any; but for one whose functions are programs of their own, so that each instance executes
//! an interpreter in a container that is made for it. Every answer is held against that of a fresh
//! process; a call that fails counts as one that took as long as any may.

mod bed;
mod client;
mod functions;
pub mod gateway;
mod goals;
mod look;
mod platform;
mod processors;
mod replay;
mod rows;
mod scenarios;
mod slow_pool;
mod systems;
mod trace;

use self::bed::Bed;
use self::systems::System;
use self::trace::Trace;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::subject::needed_root;
use crate::{Options, progress};

/// Metrics that other files look for.
mod metric {
    pub const P50: &str = "P50";
    pub const P99: &str = "P99";
    pub const P99_OF_FUNCTIONS: &str = "P99, geometric mean of the functions'";
    pub const PERIOD: &str = "time for each call that was answered";
}

/// Runs the benchmark, with a pool that is modelled as slow or with this machine's own.
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
    let bed = Bed::new(root, is_slow)?;
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
                notes.extend(replayed.failures().map(|words| format!("{case}: {words}")));
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

/// A task that a benchmark has begun has ended by itself.
fn lost(doing: &str) -> BenchError {
    let reason = "a task of the benchmark has ended".to_owned();
    BenchError::Platform { doing: doing.to_owned(), reason }
}

fn notes(is_slow: bool) -> Vec<String> {
    let pool = if is_slow {
        "MODELLED: functions wait, in each call of a clone, for as long as a pool of 391 ns would add to it. \
         That comes from misses counted in an emulated processor (docs/benchmarks.md, latency), with a \
         cache of 4 MiB and four misses at a time; everything else is measured."
    } else {
        "Pool and local memory are the same DRAM here: what pages cost in a slower pool is in none of \
         these figures, and so is what tiering saves."
    };
    [
        pool,
        "cold-start and keep-warm are the same platform without images of functions: their first \
         instances are clones of the runtime's base image in ghosts that wait, which is faster than a \
         container that starts an interpreter.",
        "container-cold-start starts one: runc makes a container when the call comes, and in it an \
         interpreter is executed, which loads the code. The process that executes it is a clone of the \
         base image, as the platform begins every program so, and it is connected to anew for each call.",
        "CRIU is not measured here: it restores no function into a container that waits; full-copy \
         does what restoring from files in memory does, with farfork's plan.",
    ]
    .map(str::to_owned)
    .into()
}
