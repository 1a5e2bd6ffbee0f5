//! The memory cgroup of a ghost: what the kernel has charged to it, and whether it had to kill.

use std::path::{Path, PathBuf};

use farfork_sys::proc;

/// A directory of the hierarchy that counts memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGroup {
    directory: PathBuf,
    /// Whether it is one of cgroup v2.
    is_unified: bool,
}

impl MemoryGroup {
    /// That of process `pid`, if there is one.
    pub fn of(pid: i32) -> Option<MemoryGroup> {
        let mounts = proc::text("/proc/self/mounts").ok()?;
        let groups = proc::text(format!("/proc/{pid}/cgroup")).ok()?;
        find(&mounts, &groups)
    }

    /// How often the kernel has killed a process of this group for want of memory.
    pub fn kills(&self) -> u64 {
        let file = if self.is_unified { "memory.events" } else { "memory.oom_control" };
        self.number(file, "oom_kill ").unwrap_or(0)
    }

    /// Bytes of the kernel's own memory that are charged to it.
    pub fn kernel_bytes(&self) -> Option<u64> {
        match self.is_unified {
            true => self.number("memory.stat", "kernel "),
            false => self.number("memory.kmem.usage_in_bytes", ""),
        }
    }

    /// Its limit in bytes, if it has one.
    pub fn limit_bytes(&self) -> Option<u64> {
        let file = if self.is_unified { "memory.max" } else { "memory.limit_in_bytes" };
        self.number(file, "").filter(|bytes| *bytes < UNLIMITED)
    }

    /// Bytes that are left up to its limit, if it has one.
    pub fn free_bytes(&self) -> Option<u64> {
        let file = if self.is_unified { "memory.current" } else { "memory.usage_in_bytes" };
        Some(self.limit_bytes()?.saturating_sub(self.number(file, "")?))
    }

    fn number(&self, file: &str, key: &str) -> Option<u64> {
        let text = proc::text(self.directory.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
    }
}

/// cgroup v1 has no word for it: the largest number of whole pages.
const UNLIMITED: u64 = i64::MAX as u64 / 2;

fn find(mounts: &str, groups: &str) -> Option<MemoryGroup> {
    let place = |kind: &str, controller: &str| {
        let mounted = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, at, found, options, ..] = fields[..] else { return None };
            let has = controller.is_empty() || options.split(',').any(|one| one == controller);
            (found == kind && has).then_some(at)
        })?;
        let path = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|one| one == controller).then_some(path)
        })?;
        Some(Path::new(mounted).join(path.trim_start_matches('/')))
    };
    let first = place("cgroup", "memory").map(|directory| (directory, false));
    let (directory, is_unified) =
        first.or_else(|| place("cgroup2", "").map(|directory| (directory, true)))?;
    Some(MemoryGroup { directory, is_unified })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const V1: &str = "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0";
    const V2: &str = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0";

    #[test]
    fn the_hierarchy_that_counts_memory_is_found() {
        let groups = "4:memory:/agent/farfork-x\n0::/service";
        let of = |directory: &str, is_unified| {
            Some(MemoryGroup { directory: directory.into(), is_unified })
        };
        let hybrid = format!("{V2}\n{V1}");
        assert_eq!(find(&hybrid, groups), of("/sys/fs/cgroup/memory/agent/farfork-x", false));
        assert_eq!(find(V2, groups), of("/sys/fs/cgroup/unified/service", true));
        assert_eq!(find("", groups), None);
    }

    #[test]
    fn both_kinds_tell_their_figures() {
        let directory = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(directory.path().join(file), text).unwrap();
        write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
        write("memory.kmem.usage_in_bytes", "4096\n");
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.events", "low 0\noom 9\noom_kill 2\n");
        write("memory.stat", "anon 1\nkernel_stack 5\nkernel 8192\n");
        write("memory.max", "max\n");
        let group = |is_unified| MemoryGroup { directory: directory.path().into(), is_unified };
        let figures =
            |group: MemoryGroup| (group.kills(), group.kernel_bytes(), group.limit_bytes());
        assert_eq!(figures(group(false)), (3, Some(4096), None));
        assert_eq!(figures(group(true)), (2, Some(8192), None));
        write("memory.max", "1048576\n");
        assert_eq!(group(true).limit_bytes(), Some(1 << 20));
        write("memory.current", "4096\n");
        assert_eq!(group(true).free_bytes(), Some((1 << 20) - 4096));
        assert_eq!(group(false).free_bytes(), None);
    }
}
