//! Confinement of functions, and their files.
//!
//! An instance confines itself before it receives any code; until then it is the operator's program
//! (`farfork.runtime.confinement`). The confinement is a part of the function's image, so a clone
//! is confined from its first instruction on.

mod calls;
mod contents;
mod folder;
mod room;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farfork_sys::process_group;
use serde_json::{Value, json};

pub use contents::{Contents, PROGRAM};
pub use folder::Folders;
pub use room::FolderError;

/// First user id of functions. Neither systems, directories nor containers use ids this large, and
/// for the kernel it is an ordinary one.
const FIRST_USER: u32 = 2_000_000_000;
/// Open files of an instance.
const MOST_FILES: u64 = 1024;
/// Processes and threads of an instance, its init and the clone's supervisor among them.
pub const MOST_PIDS: u64 = 512;
/// Smallest default of `pid_max`.
const LEAST_MACHINE_PIDS: u64 = 32_768;
/// World-writable directories of a node: each instance has its own.
pub const SCRATCH: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run/lock"];

/// Directories of a node with sockets and named pipes of its services, and with files of its users: functions
/// see them empty. A mount that is read-only does not keep a process from sockets and pipes.
pub const HIDDEN: [&str; 8] =
    ["/run", "/var/lib", "/var/spool", "/home", "/root", "/srv", "/mnt", "/media"];

/// The user id and group id of a namespace's functions.
pub fn user(namespace_number: u32) -> u32 {
    FIRST_USER + namespace_number
}

/// The document that shows an instance how to confine itself. One with a region of `region_bytes` makes no file
/// larger than that: it may write to the file of the region, which must not take more of the pool.
pub fn document(user: u32, region_bytes: Option<u64>) -> Value {
    json!({
        "file_bytes": region_bytes,
        "user": user,
        "group": user,
        "open_files": MOST_FILES,
        "processes": processes_of_user(),
        "filter": calls::filter(),
    })
}

/// Processes and threads of a namespace's functions together: a quarter of what the machine has, so that one
/// namespace does not take them all.
fn processes_of_user() -> u64 {
    machine_processes() / 4
}

/// Processes and threads that there can be here: on the machine, and in the platform's cgroup.
pub fn machine_processes() -> u64 {
    let limit = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().parse().unwrap_or(LEAST_MACHINE_PIDS)
    };
    let machine = limit("pid_max").min(limit("threads-max"));
    process_group::limit_above().map_or(machine, |group| group.min(machine))
}

/// The first of a directory and its ancestors that users of functions may not traverse.
pub fn not_traversable(directory: &Path) -> io::Result<Option<PathBuf>> {
    for above in directory.ancestors() {
        if above.metadata()?.mode() & 0o001 == 0 {
            return Ok(Some(above.to_owned()));
        }
    }
    Ok(None)
}
