//! `farfork doctor`.

use farfork_sys::words;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// How to tell it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Succeeds when everything that checkpoint and restore need is there.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let report = farfork_doctor::examine();
    let written = if args.json {
        crate::output::print_json(&report)
    } else {
        report.render(&mut io::stdout().lock())
    };
    written
        .map_err(|error| format!("writing the report to standard output: {}", words::of(&error)))?;
    Ok(if report.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
