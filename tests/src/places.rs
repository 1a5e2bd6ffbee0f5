//! Where the tests of one test binary keep their files.

use crate::{Outcome, Trouble};
use std::path::PathBuf;

/// The directory that has them all.
pub(crate) fn base() -> PathBuf {
    std::env::temp_dir().join(format!("farfork-tests-{}", std::process::id()))
}

/// `$FARFORK_RUN` of all that is started here.
pub fn run_directory() -> PathBuf {
    base().join("run")
}

/// A fresh working directory, which also a program that dropped its rights can enter.
pub fn work_dir(test: &str) -> Outcome<PathBuf> {
    let directory = base().join("work").join(test);
    std::fs::create_dir_all(&directory)
        .map_err(|error| Trouble::during("making a working directory", error))?;
    Ok(directory)
}

/// `target/debug` or `target/release`: the directory above the running test's own.
pub fn profile_dir() -> Outcome<PathBuf> {
    let exe = std::env::current_exe().map_err(|error| Trouble::during("own path", error))?;
    let above = exe.ancestors().nth(2);
    above.map(PathBuf::from).ok_or_else(|| Trouble::during("own path", exe.display()))
}
