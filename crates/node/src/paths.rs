//! Where a node keeps its socket and its pins.

use std::env;
use std::path::PathBuf;

use farfork_pool::Pool;

/// Name of the node when none is given.
pub const DEFAULT_NODE: &str = "local";

/// Directory for everything of this machine's nodes: `$FARFORK_RUN`, or a place that goes with
/// the machine's uptime.
pub fn run_directory() -> PathBuf {
    match (env::var_os("FARFORK_RUN"), env::var_os("XDG_RUNTIME_DIR")) {
        (Some(given), _) => PathBuf::from(given),
        (None, Some(user)) if !rustix::process::geteuid().is_root() => {
            PathBuf::from(user).join("farfork")
        }
        _ => PathBuf::from("/run/farfork"),
    }
}

/// Socket of the agent of `node`.
pub fn socket(node: &str) -> PathBuf {
    run_directory().join(format!("{node}.sock"))
}

/// Directory for the pins of `node`.
pub fn pins(node: &str) -> PathBuf {
    run_directory().join(format!("{node}.pins"))
}

/// Name of the file with the pins of images of `pool`.
pub fn pool_name(pool: &Pool) -> String {
    pool.uuid().iter().map(|byte| format!("{byte:02x}")).collect()
}
