//! The program `farfork-bench`, which `farfork bench` executes.
//!
//! Exit status: 0 done, 1 the benchmark failed, 2 the call was wrong. With `--json` stdout holds one
//! JSON document and nothing else.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use farfork_bench::{Benchmark, Options};

/// Run a benchmark, and print what it measured and which goals were met.
#[derive(Parser)]
#[command(name = "farfork-bench", bin_name = "farfork bench", version)]
struct Args {
    /// The benchmark.
    #[arg(value_enum)]
    name: Name,
    /// Run few rounds. This shows that everything works, and decides little.
    #[arg(long)]
    quick: bool,
    /// Measure only this subject (fork, tiering, latency) or system (porter). May be repeated.
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
    /// What the gateway adds to a call, and what deployed functions cost that receive no calls.
    Gateway,
    /// What a slow pool would cost: misses counted in an emulated processor, times modelled.
    Latency,
    /// Objects in shared memory against mimalloc: allocate, free, send, receive.
    Objects,
    /// Forks from a live process: prepare, resume, against checkpoints, local forks and clones from a pool.
    Seeds,
    /// Images of another node: reads, and clones with and without what is cached.
    Far,
    /// Virtual machines from snapshots: from the restore to the end of a walk through their memory.
    Vm,
    /// The simulator: time per simulated call, against SimPy and SimFaaS.
    Sim,
}

impl Name {
    fn benchmark(self) -> Benchmark {
        match self {
            Name::Fork => Benchmark::Fork,
            Name::Features => Benchmark::Features,
            Name::Tiering => Benchmark::Tiering,
            Name::Porter => Benchmark::Porter,
            Name::PorterSlowPool => Benchmark::PorterSlowPool,
            Name::Gateway => Benchmark::Gateway,
            Name::Latency => Benchmark::Latency,
            Name::Objects => Benchmark::Objects,
            Name::Seeds => Benchmark::Seeds,
            Name::Far => Benchmark::Far,
            Name::Vm => Benchmark::Vm,
            Name::Sim => Benchmark::Sim,
        }
    }
}

fn main() -> ExitCode {
    // Agents and platforms that a benchmark starts must not keep the caller's pipes open. Without the
    // call (Linux before 5.11) they do.
    let _ = farfork_sys::inherited::close_on_exec_from(3);
    run(&Args::parse()).unwrap_or_else(|error| {
        eprintln!("farfork bench: {error}");
        ExitCode::FAILURE
    })
}

/// Runs the benchmark. A goal that is missed is a result, not a failure.
fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let options = Options { quick: args.quick, only: args.only.clone() };
    let report = farfork_bench::run(args.name.benchmark(), &options)?;
    let mut stdout = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut stdout, &report)?;
        writeln!(stdout)?;
    } else {
        write!(stdout, "{}", report.text())?;
    }
    Ok(ExitCode::SUCCESS)
}
