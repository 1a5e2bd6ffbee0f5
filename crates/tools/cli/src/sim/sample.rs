//! `farfork sim sample`: a part of a trace, and how far it is from the whole.

use std::path::PathBuf;
use std::process::ExitCode;

use farfork_sim::sample::{Sample, names, sample};
use farfork_sim::trace::{self, Format, Stream};
use serde_json::{Value, json};

use super::output::{during, warn, write};
use crate::CommandResult;
use crate::output::print_json;

/// The trace, and how much of it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files of one trace, or a directory with them, as for farfork sim.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    trace: Vec<PathBuf>,
    /// Format of the trace. Default: what the headers say.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Number of functions to choose.
    #[arg(long, value_name = "N")]
    functions: usize,
    /// Choices to try: the one that is nearest to the whole is taken.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    trials: u64,
    /// Directory for the rows of the chosen functions, in files of the same names, and for sample.json.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Seed of the choices: equal seeds give equal samples.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand. A trace with malformed rows is a failure, though the rest of it is sampled.
pub(crate) fn run(args: &Args) -> CommandResult {
    let read = || trace::open(&args.trace, args.format, args.seed);
    let stream = during("reading the trace", None, read)?;
    warn(&stream.trace);
    let choose = || sample(&stream, args.functions, args.trials, args.seed);
    let sample = during("choosing functions", None, choose)?;
    let copy = || trace::copy(&args.trace, args.format, &names(&stream, &sample), &args.out);
    let files = during("writing the sample", None, copy)?;
    let document = document(args, &stream, &sample, &files);
    write(&args.out.join("sample.json"), &format!("{document:#}\n"))?;
    if args.json {
        print_json(&document)?;
    } else {
        print(args, &stream, &sample);
    }
    let is_whole = stream.trace.rows_malformed == 0;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn document(args: &Args, stream: &Stream, sample: &Sample, files: &[PathBuf]) -> Value {
    json!({
        "functions": sample.functions.len(),
        "functions_whole": stream.trace.functions.len(),
        "calls": sample.calls,
        "calls_whole": stream.count(),
        "rows_malformed": stream.trace.rows_malformed,
        "wasserstein": {"invocations": sample.invocations, "resources": sample.resources},
        "trials": args.trials,
        "tried": sample.tried,
        "seed": args.seed,
        "trace_sha256": stream.trace.sha256,
        "synthetic": stream.trace.is_synthetic(),
        "version": env!("CARGO_PKG_VERSION"),
        "files": files,
    })
}

fn print(args: &Args, stream: &Stream, sample: &Sample) {
    let trace = &stream.trace;
    println!("functions    {} of {}", sample.functions.len(), trace.functions.len());
    println!("calls        {} of {}", sample.calls, stream.count());
    for (name, distances) in
        [("invocations", &sample.invocations), ("resources", &sample.resources)]
    {
        println!(
            "{name:11}  Wasserstein distance per minute: mean {:.4}, largest {:.4}",
            distances.mean, distances.max
        );
    }
    let largest = sample.tried.iter().copied().fold(0.0, f64::max);
    let least = sample.tried.iter().copied().fold(f64::INFINITY, f64::min);
    println!(
        "trials       {}: mean distances from {least:.4} (taken) to {largest:.4}",
        args.trials
    );
    println!("seed         {}, trace {}", args.seed, trace.sha256);
    println!("written      {}", args.out.display());
}
