//! `farfork sim generate MODEL --out PATH`: a synthetic trace.

use std::path::PathBuf;
use std::process::ExitCode;

use farfork_sim::generate::{Model, Wanted, generate};
use farfork_sim::trace::Format;
use serde_json::json;

use super::output::during;
use crate::CommandResult;
use crate::output::print_json;

/// What to generate.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Statistics: azure2019 (Serverless in the Wild, ATC '20) or poisson (popularity by Zipf's law).
    #[arg(value_name = "MODEL")]
    model: Model,
    /// File to write; for the formats azure2019 and invitro, the directory of their tables.
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// Format: own, azure2019, azure2021, huawei2025 or invitro.
    #[arg(long, value_name = "FORMAT", default_value = "own")]
    format: Format,
    /// Number of functions.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    functions: u64,
    /// Length in minutes.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=525_600))]
    minutes: u64,
    /// Expected number of calls.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000_000))]
    calls: u64,
    /// Seed of everything random: equal seeds give equal traces.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    let Args { model, functions, minutes, calls, seed, .. } = *args;
    let wanted = Wanted { model, functions, minutes, calls, seed };
    let work = || generate(&wanted, args.format, &args.out);
    let generated = during("generating", None, work)?;
    if args.json {
        print_json(&json!({
            "model": model.name(),
            "format": args.format.name(),
            "functions": functions,
            "minutes": minutes,
            "calls": generated.calls,
            "seed": seed,
            "synthetic": true,
            "files": generated.files,
        }))?;
    } else {
        println!(
            "synthetic: {} calls of {functions} functions in {minutes} minutes",
            generated.calls
        );
        for file in &generated.files {
            println!("{}", file.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
