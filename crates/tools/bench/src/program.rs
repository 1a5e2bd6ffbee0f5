//! The program `farfork`, which benchmarks start as agent and as platform.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::{BenchError, io};

const NAME: &str = "farfork";

/// The program beside this one, or else the first in `PATH`.
pub fn farfork() -> Result<PathBuf, BenchError> {
    let own = env::current_exe().map_err(io("find", "this program"))?;
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = own.parent().map(Path::to_owned).into_iter().chain(env::split_paths(&path));
    let found = folders.map(|folder| folder.join(NAME)).find(|program| program.is_file());
    found.ok_or_else(|| BenchError::Lacking {
        doing: format!("start {NAME}"),
        reason: format!("it is neither beside {} nor in PATH", own.display()),
        remedy: "build it: cargo build --release --package farfork-cli",
    })
}
