//! Images that a process uses which is not its node's agent, such as a page server.
//!
//! A node's file in the pool has one writer. So such a process is a node of its own there: `server-N`, with the first
//! number that no living process of this machine has. There are as many files as such processes lived at one time.

use std::fs::{self, File};

use farfork_pool::{BorrowedImage, Host, Ownership, PinFile, Pool};
use farfork_sys::words;
use farfork_types::Cid;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::error::NodeError;
use crate::{lock, paths};

/// A borrowed image, and the proof that its process lives.
#[derive(Debug)]
pub struct ServedImage {
    image: BorrowedImage,
    _lock: File,
}

impl ServedImage {
    /// Borrows `cid`. It stays as long as this lives, or a process that was started meanwhile.
    ///
    /// # Errors
    /// [`NodeError::Pool`] if it is not in the pool; [`NodeError::Socket`] if this process may not write to the run
    /// directory.
    pub fn borrow(pool: Pool, cid: Cid) -> Result<ServedImage, NodeError> {
        let run = paths::run_directory();
        let failed =
            |source| NodeError::Socket { doing: "make a directory for", path: run.clone(), source };
        paths::make_run_directory(&run).map_err(failed)?;
        let mut number = 0;
        let (name, lock) = loop {
            let name = format!("server-{number}");
            match lock::try_take(&paths::socket(&name))? {
                Some(lock) => break (name, lock),
                None => number += 1,
            }
        };
        let directory = paths::pins(&name);
        // A directory that cannot be made shows as an error of the file in it.
        let _ = fs::create_dir_all(&directory);
        let pins = PinFile::open(&directory.join(paths::pool_name(&pool)))?;
        let image = Host::register(pool, &name, pins)?.borrow(cid)?;
        // A server goes on when its holder is killed.
        if let Some(held) = image.lock() {
            let failed = |errno: rustix::io::Errno| {
                NodeError::Agent(format!("cannot pass on a lock: {}", words::of(&errno.into())))
            };
            fcntl_setfd(held, FdFlags::empty()).map_err(failed)?;
        }
        Ok(ServedImage { image, _lock: lock })
    }

    /// The image.
    pub fn image(&self) -> &BorrowedImage {
        &self.image
    }
}
