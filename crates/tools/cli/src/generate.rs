//! `farfork generate`, which packages use: man pages and shell completions from the command line itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_complete::Shell;
use farfork_sys::words;

use crate::{CommandResult, help};

const PROGRAM: &str = "farfork";
/// Where man pages and the completions of each shell lie below `/usr/share`.
const MAN: &str = "man/man1";
const COMPLETIONS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "bash-completion/completions", "farfork"),
    (Shell::Zsh, "zsh/vendor-completions", "_farfork"),
    (Shell::Fish, "fish/vendor_completions.d", "farfork.fish"),
];

/// Where to write.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory with the layout of /usr/share. It is created if it is missing.
    directory: PathBuf,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    write(&args.directory).map_err(|error| {
        format!("cannot write below {}: {}", args.directory.display(), words::of(&error))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn write(directory: &Path) -> io::Result<()> {
    let man = directory.join(MAN);
    fs::create_dir_all(&man)?;
    clap_mangen::generate_to(help::command(), man)?;
    for (shell, folder, name) in COMPLETIONS {
        let folder = directory.join(folder);
        fs::create_dir_all(&folder)?;
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut help::command(), PROGRAM, &mut script);
        fs::write(folder.join(name), script)?;
    }
    Ok(())
}
