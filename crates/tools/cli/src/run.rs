//! `farfork run`: a program without io_uring, which no clone can have.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use farfork_sys::{no_rings, words};

use crate::CommandResult;

/// Exit statuses as of `env` and of shells.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Without io_uring, libuv (Node.js, uvloop) and other libraries use epoll, so that the program can be
/// checkpointed. Set-user-ID programs that it executes get no further rights.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The program, and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<std::ffi::OsString>,
}

/// Runs the subcommand; returns only if the program cannot be executed.
pub(crate) fn run(args: &Args) -> CommandResult {
    no_rings::forbid().map_err(|error| -> Box<dyn Error> {
        let why = words::of(&error);
        format!("cannot switch io_uring off: {why}; a kernel with CONFIG_SECCOMP_FILTER is needed")
            .into()
    })?;
    let (program, arguments) = args.command.split_first().ok_or("no command is given")?;
    let error: io::Error = Command::new(program).args(arguments).exec();
    eprintln!("farfork: cannot execute {}: {}", program.display(), words::of(&error));
    Ok(ExitCode::from(match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    }))
}
