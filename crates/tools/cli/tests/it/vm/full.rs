//! Imports into a pool whose file system has no room.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use super::bed::Bed;

/// A file system without room for the pool, which has more than it: for what an import stores, or for one of the files, links
/// and directories that it makes. Nothing is left, and the image that has the name stays.
#[test]
fn an_import_fails_at_any_step_and_leaves_nothing() {
    let bed = Bed::new("steps", "64M");
    let full = bed.0.join("full");
    fs::create_dir_all(&full).unwrap();
    let options = ["-t", "tmpfs", "-o", "size=24M,nr_inodes=64", "none"];
    if !Command::new("mount").args(options).arg(&full).status().unwrap().success() {
        return println!("skipped: a tmpfs cannot be mounted");
    }
    let _mounted = Mounted(&full);
    fs::create_dir(full.join("pool")).unwrap();
    bed.done(&["pool", "create", &bed.path("full/pool"), "--size", "1G"]);
    let full = Full { bed: &bed, path: &full };
    let mut ends = [0, 0];
    for links in 0..10 {
        ends[usize::from(full.import_with(u64::MAX, links))] += 1;
    }
    for mebibytes in 0..10 {
        ends[usize::from(full.import_with(mebibytes << 20, u64::MAX))] += 1;
    }
    println!("{} imports failed, {} did not", ends[0], ends[1]);
    assert!(ends[0] >= 8 && ends[1] >= 2, "{ends:?}");
}

/// Unmounts at its end.
struct Mounted<'p>(&'p Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

/// A file system with a pool, of which a test takes what is free.
struct Full<'b> {
    bed: &'b Bed,
    path: &'b Path,
}

impl Full<'_> {
    fn command(&self, words: &[&str]) -> Output {
        let mut command = self.bed.command(words);
        command.env("FARFORK_POOL", self.path.join("pool")).output().unwrap()
    }

    fn images(&self) -> usize {
        fs::read_dir(self.path.join("pool/images")).unwrap().count()
    }

    /// Imports with at most so many bytes and files left; whether that went well. Leaves the pool empty.
    fn import_with(&self, bytes: u64, files: u64) -> bool {
        let ballast = self.path.join("ballast");
        fs::create_dir(&ballast).unwrap();
        let left = rustix::fs::statvfs(self.path).unwrap();
        (files..left.f_ffree).for_each(|file| drop(File::create(ballast.join(file.to_string()))));
        let taken = (left.f_bfree * left.f_frsize).saturating_sub(bytes);
        if taken > 0 {
            let file = File::create(self.path.join("taken")).unwrap();
            let mode = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&file, mode, 0, taken).unwrap();
        }
        let made = self.command(&["vm", "import", "--name", "a/vm", "state", "memory"]);
        let is_made = made.status.success();
        assert_eq!(self.images(), usize::from(is_made), "{made:?}");
        if !is_made {
            let message = String::from_utf8_lossy(&made.stderr);
            assert!(message.contains("No space left on device"), "{message}");
        }
        fs::remove_dir_all(&ballast).unwrap();
        let _ = fs::remove_file(self.path.join("taken"));
        let check = self.command(&["pool", "check"]);
        let text = String::from_utf8_lossy(&check.stdout);
        assert!(text.contains("the pool is sound"), "{text}");
        if is_made {
            assert!(self.command(&["images", "rm", "a/vm"]).status.success());
        }
        // A process that looks at the ended one's memory holds it for a moment.
        let free = || rustix::fs::statvfs(self.path).unwrap().f_bfree;
        let is_back = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            free() == left.f_bfree
        });
        assert!(is_back, "{} of {} blocks of the file system are free", free(), left.f_bfree);
        is_made
    }
}
