//! Where a node keeps its socket and its pins.

use std::env;
use std::path::PathBuf;

use farfork_pool::Pool;

use crate::error::NodeError;

/// Name of the node when none is given.
pub const DEFAULT_NODE: &str = "local";

/// Most bytes of a node's name: a pool has room for so many, and so has a socket's path.
const LONGEST: usize = 40;

/// Demands that `name` can name a node, and files.
///
/// # Errors
/// [`NodeError::BadName`].
pub fn check_name(name: &str) -> Result<(), NodeError> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= LONGEST
        && name.bytes().all(is_fit);
    if is_name {
        Ok(())
    } else {
        Err(NodeError::BadName { name: name.to_owned(), longest: LONGEST })
    }
}

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

/// File whose lock tells that the agent of `node` lives; it stays when the agent has gone.
pub fn lock(node: &str) -> PathBuf {
    run_directory().join(format!("{node}.lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_by_what_no_path_leads_out_of() {
        for name in ["local", "n2", "rack-7.host_3", "0"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "n".repeat(LONGEST + 1);
        for name in ["", ".", "..", "../x", "a/b", "-n", "a b", "caf\u{e9}", "a\0", &long] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
