//! `farfork bench`, which is a program of its own: the product does not contain the benchmarks.

use std::ffi::OsString;
use std::io::{Error, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use farfork_sys::words;

use crate::CommandResult;

const PROGRAM: &str = "farfork-bench";

/// Arguments of farfork-bench.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// The benchmark and its options. "farfork bench --help" lists them.
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Executes farfork-bench in this process.
pub(crate) fn run(args: &Args) -> CommandResult {
    let program = program();
    let error = Command::new(&program).args(&args.arguments).exec();
    Err(failure(&error).into())
}

/// The program beside this one. Without it, the mere name, which `exec` looks up in `PATH`.
fn program() -> PathBuf {
    let beside = std::env::current_exe().map(|own| own.with_file_name(PROGRAM));
    beside.ok().filter(|program| program.is_file()).unwrap_or_else(|| PROGRAM.into())
}

fn failure(error: &Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => format!(
            "cannot run a benchmark: {PROGRAM} is neither beside this program nor in PATH; build it \
             with \"cargo build --release --package farfork-bench\""
        ),
        _ => format!("cannot execute {PROGRAM}: {}", words::of(error)),
    }
}
