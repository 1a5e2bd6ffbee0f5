//! What a command prints for programs.

use serde::Serialize;
use std::io::{self, Write};

/// Prints the one JSON document that `--json` promises.
pub(crate) fn print_json(document: &impl Serialize) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    serde_json::to_writer_pretty(&mut stdout, document)?;
    writeln!(stdout)
}
