//! A disk so small that a test can fill it.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};

use rustix::mount::{MountFlags, UnmountFlags};

/// A directory on a tmpfs of its own, until this is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    pub directory: tempfile::TempDir,
}

impl SmallDisk {
    /// A disk of 16 MiB; none for a user who may not mount.
    pub fn mount() -> Option<SmallDisk> {
        let directory = tempfile::tempdir().unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        match rustix::mount::mount("none", directory.path(), "tmpfs", flags, Some(c"size=16m")) {
            Ok(()) => Some(SmallDisk { directory }),
            Err(rustix::io::Errno::PERM) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Fills it to the last page.
    pub fn fill(&self) {
        let mut filler = File::create(self.directory.path().join("filler")).unwrap();
        let error = loop {
            if let Err(error) = filler.write_all(&[1; 4096]) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }

    /// Frees what [`fill`](SmallDisk::fill) took.
    pub fn free(&self) {
        fs::remove_file(self.directory.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Files that are still open go with their descriptors.
        let _ = rustix::mount::unmount(self.directory.path(), UnmountFlags::DETACH);
    }
}
