//! The directory of a new pool. A tmpfs with huge pages is mounted on it where that hides nothing.

use std::error::Error;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use farfork_node::paths::{demand_own, directory_mode};
use farfork_pool::{maps_huge_pages, mount_tmpfs, unmount_tmpfs};
use farfork_sys::words;

/// The directory, with what was created for it.
pub(crate) struct PoolDirectory {
    directory: PathBuf,
    /// Directories that were missing, from the topmost.
    created: Vec<PathBuf>,
    is_mounted: bool,
}

impl PoolDirectory {
    /// Creates `directory`. As root, mounts a tmpfs with huge pages for `bytes` on it if it was
    /// missing, or if `mounts` is set and it is empty.
    pub(crate) fn prepare(
        directory: &Path,
        bytes: u64,
        mounts: bool,
    ) -> Result<PoolDirectory, Box<dyn Error>> {
        let mut prepared = PoolDirectory {
            directory: directory.to_owned(),
            created: Vec::new(),
            is_mounted: false,
        };
        prepared.create_and_mount(bytes, mounts).inspect_err(|_| prepared.undo())?;
        Ok(prepared)
    }

    fn create_and_mount(&mut self, bytes: u64, mounts: bool) -> Result<(), Box<dyn Error>> {
        self.create()?;
        let directory = self.directory.display();
        if maps_huge_pages(&self.directory) || !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        if self.created.is_empty() && !mounts {
            eprintln!(
                "farfork: {directory} has no huge pages, with which clones start faster; use a \
                 directory that does not exist yet, or --mount if it is empty"
            );
            return Ok(());
        }
        if let Some(obstacle) = obstacle(&self.directory) {
            return Err(format!("cannot mount a tmpfs on {directory}: {obstacle}").into());
        }
        mount_tmpfs(&self.directory, bytes)?;
        self.is_mounted = true;
        eprintln!("mounted a tmpfs with huge pages on {directory}");
        Ok(())
    }

    fn create(&mut self) -> Result<(), String> {
        let above = self.directory.ancestors().take_while(|path| !path.exists());
        let missing: Vec<PathBuf> = above.map(Path::to_owned).collect();
        for path in missing.into_iter().rev() {
            match DirBuilder::new().mode(directory_mode(&path)).create(&path) {
                Ok(()) => self.created.push(path),
                // Another process has just created it, perhaps another user's.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    demand_own(&path).map_err(|error| words::of(&error))?;
                }
                Err(error) => {
                    return Err(format!("cannot create {}: {}", path.display(), words::of(&error)));
                }
            }
        }
        Ok(())
    }

    /// Unmounts and removes what was created, after the creation of the pool has failed.
    pub(crate) fn undo(&self) {
        if self.is_mounted {
            let _ = unmount_tmpfs(&self.directory);
        }
        for path in self.created.iter().rev() {
            let _ = fs::remove_dir(path);
        }
    }
}

/// Why a mount on this directory would hide something.
fn obstacle(directory: &Path) -> Option<&'static str> {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let is_empty = fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none());
    if device(directory) != directory.parent().and_then(device) {
        Some("a file system is mounted there; use a new directory in it")
    } else if !is_empty {
        Some("it is not empty; use a directory that does not exist yet")
    } else {
        None
    }
}
