//! What a function may do, and which of the node's files it has.
//!
//! An instance is told this before it is given any code, and gives up all else by itself (it is the
//! operator's program until then): see `farfork.runtime.confinement`. What it has become is in the
//! function's image, so that a clone is confined before its first instruction.

mod calls;
mod contents;
mod folder;
mod growth;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub use contents::{Contents, PROGRAM};
pub use folder::{FolderError, Folders};

/// Users of functions are numbered from here on: no user of the system's, of a directory's or of
/// anybody's containers has such a number, and the kernel takes it for an ordinary one.
const FIRST_USER: u32 = 2_000_000_000;
/// Open files of an instance.
const MOST_FILES: u64 = 1024;
/// Processes and threads of an instance, its init and the clone's supervisor among them.
pub const MOST_PIDS: u64 = 512;
/// Directories that everybody may write to on a node: each instance has its own.
pub const SCRATCH: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run/lock"];

/// The user, and the group, that the functions of a namespace are.
pub fn user(namespace_number: u32) -> u32 {
    FIRST_USER + namespace_number
}

/// What an instance is told.
pub fn document(user: u32) -> Value {
    json!({
        "user": user,
        "group": user,
        "open_files": MOST_FILES,
        "filter": calls::filter(),
    })
}

/// The nearest of a directory and those above it that users of functions may not pass.
pub fn closed(directory: &Path) -> io::Result<Option<PathBuf>> {
    for above in directory.ancestors() {
        if above.metadata()?.mode() & 0o001 == 0 {
            return Ok(Some(above.to_owned()));
        }
    }
    Ok(None)
}
