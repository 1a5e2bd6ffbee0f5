//! Output for programs.

use serde::Serialize;
use std::io::{self, IsTerminal, Write};

use crate::printable::printable_json;

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
