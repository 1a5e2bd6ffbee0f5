//! Memory cgroups: what the kernel has charged to a group of processes, what it may take at most, and
//! whether the kernel had to kill.

use std::fs;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::proc;

/// A directory of the hierarchy that counts memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGroup {
    directory: PathBuf,
    /// Whether it is one of cgroup v2.
    is_unified: bool,
}

impl MemoryGroup {
    /// That of process `pid`, if there is one.
    pub fn of_process(pid: i32) -> Option<MemoryGroup> {
        let mounts = proc::text("/proc/self/mounts").ok()?;
        let groups = proc::text(format!("/proc/{pid}/cgroup")).ok()?;
        find(&mounts, &groups)
    }

    /// The file to which a process writes its pid to enter it.
    pub fn procs_file(&self) -> PathBuf {
        self.directory.join(self.inside()).join("cgroup.procs")
    }

    /// Where processes are in one that was made here.
    fn inside(&self) -> &'static str {
        if self.is_unified { INSIDE } else { "" }
    }

    /// Where groups are made by processes of this one: below it, or beside it in cgroup v2, where only the
    /// topmost group that there is, or is seen, is not in another.
    fn parent_of_more(&self) -> PathBuf {
        let above = self.directory.parent().filter(|above| self.is_unified && is_group(above));
        above.unwrap_or(&self.directory).to_owned()
    }

    /// Sets the limit of its processes together.
    pub fn limit(&self, bytes: u64) -> io::Result<()> {
        let file = if self.is_unified { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(self.directory.join(file), bytes.to_string())
    }

    /// Sets the limit of the buffers of its sockets, before it has any. Only cgroup v1 needs that: there they count
    /// only if they have a limit, and beside other memory. With v2, or where the kernel lacks it, nothing is done.
    pub fn limit_sockets(&self, bytes: u64) -> io::Result<()> {
        let file = self.directory.join("memory.kmem.tcp.limit_in_bytes");
        if self.is_unified || !file.exists() { Ok(()) } else { fs::write(file, bytes.to_string()) }
    }

    /// Bytes that are charged to it and that the kernel cannot just drop.
    pub fn used_bytes(&self) -> Option<u64> {
        let droppable = if self.is_unified { "inactive_file " } else { "total_inactive_file " };
        let droppable = self.number("memory.stat", droppable).unwrap_or(0);
        Some(self.number(self.current(), "")?.saturating_sub(droppable))
    }

    fn current(&self) -> &'static str {
        if self.is_unified { "memory.current" } else { "memory.usage_in_bytes" }
    }

    /// How many processes of this group were OOM-killed.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.is_unified { "memory.events" } else { "memory.oom_control" };
        self.number(file, "oom_kill ").unwrap_or(0)
    }

    /// Whether it has reached its own limit, and not only that of a group above.
    pub fn has_reached_limit(&self) -> bool {
        let (file, key) = match self.is_unified {
            true => ("memory.events", "max "),
            false => ("memory.failcnt", ""),
        };
        self.number(file, key) > Some(0)
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

    /// It, and the groups above it.
    pub fn and_above(&self) -> Vec<MemoryGroup> {
        let within = |directory: &Path| MemoryGroup { directory: directory.to_owned(), ..*self };
        self.directory.ancestors().take_while(|one| is_group(one)).map(within).collect()
    }

    /// Whether `bytes` are left below its own limit, if it has one.
    pub fn has_room(&self, bytes: u64) -> bool {
        let Some(limit) = self.limit_bytes() else { return true };
        let is_left =
            |used: Option<u64>| used.is_none_or(|used| used.saturating_add(bytes) <= limit);
        // The droppable page cache is read only if needed: it takes longer.
        is_left(self.number(self.current(), "")) || is_left(self.used_bytes())
    }

    fn number(&self, file: &str, key: &str) -> Option<u64> {
        let text = proc::text(self.directory.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
    }
}

/// A group that is removed on drop. Its processes have to be dead by then.
#[derive(Debug)]
pub struct OwnGroup(MemoryGroup);

impl OwnGroup {
    /// A group of this name, made if need be: below that of this process, or beside it in cgroup
    /// v2, where a group that has processes cannot have groups below it. An existing empty one is
    /// as good as a new one.
    pub fn make(name: &str) -> io::Result<OwnGroup> {
        let own = MemoryGroup::of_process(std::process::id() as i32).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "no memory cgroup hierarchy is mounted")
        })?;
        let parent = own.parent_of_more();
        let made = OwnGroup(MemoryGroup { directory: parent.join(name), ..own });
        fs::create_dir_all(made.directory.join(made.inside()))?;
        if made.is_unified {
            // Fails where another manager of cgroups has enabled them and kept the right to do so.
            let _ = fs::write(parent.join(DELEGATED), CONTROLLERS);
            // If that fails, the drop removes the group.
            fs::write(made.directory.join(DELEGATED), CONTROLLERS).map_err(|_| {
                let (group, name) = (parent.display(), made.directory.display());
                io::Error::other(format!(
                    "cgroup v2 gives {name} no limits, as {group} may not set any: as long as processes \
                     are in that, it has to be the root of all; move them to another group in it"
                ))
            })?;
        }
        Ok(made)
    }

    /// Where groups of this name belong that `runc` makes for a process in this one, in each hierarchy.
    pub(crate) fn places(&self, name: &str) -> io::Result<Vec<PathBuf>> {
        if self.is_unified {
            return Ok(vec![self.directory.join(name)]);
        }
        // Of the hierarchies of cgroup v1, only that of memory has a group of its own for the processes.
        let above = self.directory.parent();
        let own = own_directories()?.into_iter();
        let place = |own: PathBuf| match Some(&*own) == above {
            true => self.directory.join(name),
            false => own.join(name),
        };
        Ok(own.map(place).collect())
    }

    fn remove(&self) -> io::Result<()> {
        if self.is_unified {
            fs::remove_dir(self.directory.join(INSIDE))?;
        }
        fs::remove_dir(&self.directory)
    }
}

impl Deref for OwnGroup {
    type Target = MemoryGroup;

    fn deref(&self) -> &MemoryGroup {
        &self.0
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        let begun = Instant::now();
        // The last process in it may take a moment to leave.
        while self.remove().is_err() && begun.elapsed() < EMPTY_LIMIT {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// How long to wait for a group to be empty.
const EMPTY_LIMIT: Duration = Duration::from_secs(1);

/// Of cgroup v2: which controllers groups below have.
const DELEGATED: &str = "cgroup.subtree_control";
const CONTROLLERS: &str = "+memory +pids";

/// In cgroup v2, the group below one that was made here in which processes are.
const INSIDE: &str = "inside";

/// cgroup v1 has no word for it: the largest number of whole pages.
const UNLIMITED: u64 = i64::MAX as u64 / 2;

/// Where `runc` makes the groups of a container with this `cgroupsPath` if this process starts it, one in
/// each hierarchy: below that of this process, or beside it where cgroup v2 is alone.
///
/// # Errors
/// `/proc` cannot be read.
pub fn of_container(name: &str) -> io::Result<Vec<PathBuf>> {
    let mounts = proc::text("/proc/self/mounts")?;
    let own = own_directories()?;
    let parent = |directory: PathBuf| match directory.parent() {
        Some(above) if is_unified(&mounts) && directory != Path::new(ALL) => above.to_owned(),
        _ => directory,
    };
    Ok(own.into_iter().map(|directory| parent(directory).join(name)).collect())
}

/// The directories of this process's groups, in all hierarchies that are mounted.
pub(crate) fn own_directories() -> io::Result<Vec<PathBuf>> {
    Ok(directories(&proc::text("/proc/self/mounts")?, &proc::text("/proc/self/cgroup")?))
}

/// Where hierarchies are mounted.
const ALL: &str = "/sys/fs/cgroup";

fn is_unified(mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        fields.next() == Some(ALL) && fields.next() == Some("cgroup2")
    })
}

/// The directories of a process's groups, in all hierarchies that are mounted.
fn directories(mounts: &str, groups: &str) -> Vec<PathBuf> {
    let mounted = |controllers: &str| {
        mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, at, kind, options, ..] = fields[..] else { return None };
            let is_it = match controllers {
                "" => kind == "cgroup2",
                _ => kind == "cgroup" && controllers.split(',').all(|one| has(options, one)),
            };
            is_it.then_some(at)
        })
    };
    let directory = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        Some(Path::new(mounted(controllers)?).join(path.trim_start_matches('/')))
    };
    groups.lines().filter_map(directory).collect()
}

fn is_group(directory: &Path) -> bool {
    directory.join("cgroup.procs").exists()
}

fn has(options: &str, wanted: &str) -> bool {
    options.split(',').any(|one| one == wanted)
}

fn find(mounts: &str, groups: &str) -> Option<MemoryGroup> {
    let place = |kind: &str, controller: &str| {
        let mounted = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, at, found, options, ..] = fields[..] else { return None };
            let is_it = controller.is_empty() || has(options, controller);
            (found == kind && is_it).then_some(at)
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
    use std::process::Command;

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
    fn groups_are_found_in_every_hierarchy() {
        let mounts =
            format!("{V2}\n{V1}\ncgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0");
        let groups = "4:memory:/agent\n3:pids:/agent\n1:name=systemd:/\n0::/service";
        let all = directories(&mounts, groups);
        let expected = ["memory/agent", "systemd", "unified/service"]; // that of `pids` is not mounted
        assert_eq!(all, expected.map(|path| Path::new("/sys/fs/cgroup").join(path)));
    }

    #[test]
    fn cgroup_v2_is_alone_where_all_are_mounted() {
        let alone = "sysfs /sys sysfs rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0";
        assert!(is_unified(alone) && !is_unified(&format!("{V2}\n{V1}")));
    }

    #[test]
    fn both_versions_have_the_same_figures() {
        let directory = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(directory.path().join(file), text).unwrap();
        write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
        write("memory.kmem.usage_in_bytes", "4096\n");
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.events", "low 0\nmax 4\noom 9\noom_kill 2\n");
        write("memory.failcnt", "0\n");
        write("memory.stat", "anon 1\nkernel_stack 5\nkernel 8192\n");
        write("memory.max", "max\n");
        let group = |is_unified| MemoryGroup { directory: directory.path().into(), is_unified };
        let figures =
            |group: MemoryGroup| (group.oom_kills(), group.kernel_bytes(), group.limit_bytes());
        assert_eq!(figures(group(false)), (3, Some(4096), None));
        assert_eq!(figures(group(true)), (2, Some(8192), None));
        assert_eq!([true, false].map(|kind| group(kind).has_reached_limit()), [true, false]);
        write("memory.max", "1048576\n");
        assert_eq!(group(true).limit_bytes(), Some(1 << 20));
        write("memory.current", "4096\n");
        write("cgroup.procs", "");
        let has = |group: MemoryGroup, most| [most, most + 1].map(|bytes| group.has_room(bytes));
        assert_eq!(has(group(true), (1 << 20) - 4096), [true, false]);
        let inner = directory.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let inner = MemoryGroup { directory: inner, is_unified: true };
        write("inner/cgroup.procs", "");
        let of_both = |bytes| -> Vec<bool> {
            inner.and_above().iter().map(|group| group.has_room(bytes)).collect()
        };
        assert_eq!(of_both(1 << 40), [true, false], "the limit above counts");
        write("inner/memory.max", "16384");
        write("inner/memory.current", "8192");
        assert_eq!(of_both(8193), [false, true], "the nearer one counts");
        write("memory.usage_in_bytes", "8192\n");
        write("memory.stat", "inactive_file 1024\ntotal_inactive_file 4096\n");
        assert_eq!((group(true).used_bytes(), group(false).used_bytes()), (Some(3072), Some(4096)));
        assert!(group(false).has_room(u64::MAX), "it has no limit");
        assert_eq!(has(group(true), (1 << 20) - 3072), [true, false], "page cache can be dropped");
    }

    #[test]
    fn groups_are_made_where_the_kernel_lets_them_have_limits() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("top");
        let own = top.join("service");
        fs::create_dir_all(&own).unwrap();
        for group in [&top, &own] {
            fs::write(group.join("cgroup.procs"), "").unwrap();
        }
        let parent = |directory: &Path, is_unified| {
            MemoryGroup { directory: directory.join(""), is_unified }.parent_of_more()
        };
        assert_eq!(parent(&own, true), top, "though that has no files of memory yet");
        assert_eq!(parent(&top, true), top, "nothing above it is a group");
        assert_eq!(parent(&own, false), own);
    }

    #[test]
    fn a_new_group_holds_the_processes_that_enter_it() {
        let made = match OwnGroup::make(&format!("farfork-test-{}", std::process::id())) {
            Ok(made) => made,
            Err(error) => return println!("skipped: {}", crate::words::of(&error)),
        };
        let directory = made.directory.clone();
        made.limit(64 << 20).unwrap();
        let mut sleeper = Command::new("sh")
            .args(["-c", "echo $$ >\"$0\" && exec sleep 60"])
            .arg(made.procs_file())
            .spawn()
            .unwrap();
        while made.used_bytes().is_none_or(|bytes| bytes == 0) {
            assert_eq!(sleeper.try_wait().unwrap(), None, "it enters and sleeps");
        }
        assert_eq!(made.limit_bytes(), Some(64 << 20));
        assert!(made.remove().is_err(), "a process is in it");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        drop(made);
        assert!(!directory.exists());
    }
}
