//! What agents have left: pins of killed agents, and directories of containers. The next agent of the node
//! clears its pins. If none starts, a check of the pool does.

use std::fs;
use std::path::Path;

use farfork_pool::{Forgotten, PinFile, Pool};

use crate::error::NodeError;
use crate::ghosts::{self, ContainerPaths};
use crate::lock;
use crate::paths;

/// Clears the pins of nodes of this machine that have no agent, unless a clone still holds them.
/// Their names, and how many images each has let go of.
///
/// A node of another machine, or of another run directory, keeps no pin file here and is left
/// alone: whether clones of it live cannot be seen.
pub fn clear_pins(pool: &Pool) -> Result<Vec<(String, usize)>, NodeError> {
    let mut cleared = Vec::new();
    for node in pool.info()?.nodes {
        let pins = paths::pins(&node).join(paths::pool_name(pool));
        if !pins.exists() {
            continue;
        }
        // Held so that no agent starts meanwhile: its pins come before the locks that back them.
        let Ok(_lock) = lock::take(&paths::socket(&node)) else { continue };
        let pins = PinFile::open(&pins)?;
        let Some(row) = pool.row_of(&node, &pins)? else { continue };
        let count = pool.reconcile(&row, &pins)?.len();
        if count > 0 {
            cleared.push((node, count));
        }
    }
    Ok(cleared)
}

/// Drops what `pool` knows of a node that never comes back.
///
/// # Errors
/// It has no such node, or one that lives.
pub fn forget_node(pool: &Pool, name: &str) -> Result<Forgotten, NodeError> {
    let pins = paths::pins(name).join(paths::pool_name(pool));
    let pins = pins.exists().then(|| PinFile::open(&pins)).transpose()?;
    Ok(pool.forget_node(name, pins.as_ref())?)
}

/// Whether something is left of containers of a node: each has a directory until it is taken away.
pub fn has_ghosts(node: &str) -> bool {
    let found = fs::read_dir(paths::ghosts(node)).into_iter().flatten().flatten();
    found
        .map(|entry| entry.file_name())
        .any(|name| name != "runc" && name != "root" && name != "layers")
}

/// Thaws all containers of an agent that has exited, known by its socket. In cgroup v1 a frozen process does
/// not end, nor does its PID namespace.
pub fn thaw_ghosts(socket: &Path) {
    ghosts::thaw(&ContainerPaths::new(paths::ghosts_beside(socket)));
}

/// Removes the directory of a node's containers, unless one is left.
pub fn leave_ghosts(node: &str) {
    if !has_ghosts(node) {
        let _ = fs::remove_dir_all(paths::ghosts(node));
    }
}
