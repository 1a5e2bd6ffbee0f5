//! Output for programs.

use serde::Serialize;
use std::io::{self, Write};

/// Prints the JSON document of `--json`.
pub(crate) fn print_json(document: &impl Serialize) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    serde_json::to_writer_pretty(&mut stdout, document)?;
    writeln!(stdout)
}
