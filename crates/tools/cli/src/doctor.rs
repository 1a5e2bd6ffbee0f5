//! `farfork doctor`.

use farfork_sys::words;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// How to print the report.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand. Fails if checkpoint and restore lack a capability.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let report = farfork_doctor::examine();
    let written = if args.json {
        crate::output::print_json(&report)
    } else {
        report.render(&mut io::stdout().lock())
    };
    written.map_err(|error| format!("cannot write the report to stdout: {}", words::of(&error)))?;
    Ok(if report.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
