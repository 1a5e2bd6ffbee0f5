//! A memory cgroup around the agent, to see what its clones cost the kernel.

use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup of its own, or none where the machine gives none.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    is_v1: bool,
}

impl Cgroup {
    /// Makes one below the root of the hierarchy that has the memory controller.
    pub fn new(name: &str) -> Option<Cgroup> {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let is_v1 = v1.join("memory.kmem.usage_in_bytes").exists();
        let root = if is_v1 { v1 } else { Path::new("/sys/fs/cgroup") };
        let path = root.join(name);
        fs::create_dir(&path).ok()?;
        let cgroup = Cgroup { path, is_v1 };
        cgroup.kernel_bytes().map(|_| cgroup)
    }

    /// File that a process enters the cgroup by.
    pub fn entrance(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Kernel memory of all in it: page tables, mappings, tasks, sockets.
    pub fn kernel_bytes(&self) -> Option<u64> {
        if self.is_v1 {
            let text = fs::read_to_string(self.path.join("memory.kmem.usage_in_bytes")).ok()?;
            return text.trim().parse().ok();
        }
        let text = fs::read_to_string(self.path.join("memory.stat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("kernel "))?.parse().ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The last process in it may take a moment to leave.
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
