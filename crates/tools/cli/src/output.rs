//! Output for programs.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};

use farfork_sys::words;
use serde::Serialize;

use crate::printable::{printable_json, printable_text};

/// Prints a line on standard output. Where nothing reads it any more, or it cannot be written, the command ends:
/// what it would go on with is of no use.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let mut stdout = io::stdout().lock();
    let text = text.to_string();
    let text = if stdout.is_terminal() { printable_text(&text) } else { text };
    match writeln!(stdout, "{text}") {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            error_line(format_args!("farfork: cannot write its output: {}", words::of(&error)));
            std::process::exit(1)
        }
    }
}

/// Prints a line on standard error, if that can be written. Names of processes and files are the words of others.
pub(crate) fn error_line(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{}", printable_text(&text.to_string()));
}

/// Prints the JSON document of `--json`.
pub(crate) fn print_json(document: &impl Serialize) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if stdout.is_terminal() {
        // Functions decide what is in the texts.
        return writeln!(stdout, "{}", printable_json(&serde_json::to_string_pretty(document)?));
    }
    serde_json::to_writer_pretty(&mut stdout, document)?;
    writeln!(stdout)
}
