//! `farfork bench`.

use std::process::ExitCode;

use farfork_bench::{Benchmark, Options};

use crate::CommandResult;
use crate::output::print_json;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which benchmark.
    #[arg(value_enum)]
    name: Name,
    /// Few rounds: shows that everything works, decides little.
    #[arg(long)]
    quick: bool,
    /// Measure this subject (fork, tiering, latency) or system (porter) only; more than once for more.
    #[arg(long, value_name = "SUBJECT")]
    only: Vec<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Name {
    /// Cold start, local fork and clone: latency, memory, throughput.
    Fork,
    /// What each kind of descriptor, thread and mapping costs a restore.
    Features,
    /// Tiering policies and ghosts, on the papers' functions.
    Tiering,
    /// The autoscaler under bursts of calls, with its own policies and with others.
    Porter,
    /// The same, with what a pool of 391 ns would add to calls (modelled).
    PorterSlowPool,
    /// What the gateway adds to a call, and what functions cost that nobody calls.
    Gateway,
    /// What a slow pool would cost: misses counted in an emulated processor, times modelled.
    Latency,
}

/// Runs the subcommand. A goal that is missed is a result, not a failure.
pub(crate) fn run(args: &Args) -> CommandResult {
    let benchmark = match args.name {
        Name::Fork => Benchmark::Fork,
        Name::Features => Benchmark::Features,
        Name::Tiering => Benchmark::Tiering,
        Name::Porter => Benchmark::Porter,
        Name::PorterSlowPool => Benchmark::PorterSlowPool,
        Name::Gateway => Benchmark::Gateway,
        Name::Latency => Benchmark::Latency,
    };
    let report =
        farfork_bench::run(benchmark, &Options { quick: args.quick, only: args.only.clone() })?;
    if args.json {
        print_json(&report)?;
    } else {
        print!("{}", report.text());
    }
    Ok(ExitCode::SUCCESS)
}
