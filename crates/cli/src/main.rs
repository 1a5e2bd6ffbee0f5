//! The command `farfork`: one file per subcommand.
//!
//! Exit status: 0 done, 1 the work failed, 2 the call was wrong. With `--json` stdout holds one
//! JSON document and nothing else.

mod doctor;
mod output;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Clones warm processes: checkpoint once into shared memory, start copies in under a millisecond.
#[derive(Parser)]
#[command(name = "farfork", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Tell what this machine can do: each capability yes or no, and why not.
    Doctor(doctor::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Doctor(args) => doctor::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("farfork: {error}");
        ExitCode::FAILURE
    })
}
