//! Cgroups that limit and count the memory of clones.

use super::{Finding, Probe, setting, while_doing};
use crate::Group;
use std::fs;
use std::path::{Path, PathBuf};

pub(super) const PROBES: &[Probe] = &[Probe {
    id: "cgroup_memory",
    group: Group::Better,
    needed_for: "memory limits of containers",
    advice: "run as root; in a container, mount /sys/fs/cgroup writable",
    look: cgroup_memory,
}];

/// Where a probe creates a group, in the hierarchy with the memory controller.
#[derive(Debug, PartialEq)]
struct MemoryHierarchy {
    layout: &'static str,
    directory: PathBuf,
}

fn cgroup_memory() -> Finding {
    let mounts = setting("/proc/self/mounts").ok_or("cannot read /proc/self/mounts")?;
    let groups = setting("/proc/self/cgroup").ok_or("this kernel has no cgroups")?;
    let MemoryHierarchy { layout, directory } = find(&mounts, &groups)?;
    let above = existing(&directory);
    let trial = above.join(format!("farfork-doctor-{}", std::process::id()));
    fs::create_dir(&trial).map_err(while_doing(&format!("creating {}", trial.display())))?;
    let limit = ["memory.limit_in_bytes", "memory.max"].map(|name| trial.join(name).exists());
    fs::remove_dir(&trial).map_err(while_doing(&format!("removing {}", trial.display())))?;
    if limit.contains(&true) || can_have_limits(above) {
        Ok(format!("{layout}: created a group with a memory limit"))
    } else {
        Err(format!("{layout}: groups below {} have no memory limit", above.display()))
    }
}

/// Whether memory limits can be enabled for groups below this group of cgroup v2. Only the root may have
/// processes beside such groups.
fn can_have_limits(group: &Path) -> bool {
    let has = |file: &str| setting(group.join(file)).unwrap_or_default();
    let is_root = !group.join("cgroup.type").exists();
    has("cgroup.controllers").split_whitespace().any(|name| name == "memory")
        && (is_root || has("cgroup.procs").is_empty())
}

/// In a container the host's path does not exist. The mount point is then this process's own group.
fn existing(directory: &Path) -> &Path {
    directory.ancestors().find(|path| path.is_dir()).unwrap_or(directory)
}

fn find(mounts: &str, groups: &str) -> Result<MemoryHierarchy, String> {
    let mount = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let fields: Vec<_> = line.split(' ').collect();
            let [_, target, found, options, ..] = fields[..] else { return None };
            let fits =
                found == kind && (option.is_empty() || options.split(',').any(|o| o == option));
            fits.then(|| PathBuf::from(target))
        })
    };
    let group = |controller: &str| {
        groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|c| c == controller).then(|| path.trim_start_matches('/'))
        })
    };
    let join = |target: PathBuf, path: Option<&str>| target.join(path.unwrap_or_default());
    match (mount("cgroup", "memory"), mount("cgroup2", "")) {
        (Some(v1), v2) => Ok(MemoryHierarchy {
            layout: if v2.is_some() { "hybrid (memory on v1)" } else { "cgroup v1" },
            directory: join(v1, group("memory")),
        }),
        // Beside this process's own group: a group with processes cannot have groups with limits below it.
        (None, Some(v2)) => Ok(MemoryHierarchy {
            layout: "cgroup v2",
            directory: join(v2, group("").and_then(|path| Some(path.rsplit_once('/')?.0))),
        }),
        (None, None) => Err("no cgroup hierarchy with a memory controller is mounted".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0";
    const V2: &str = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0";

    fn place(layout: &'static str, directory: &str) -> Result<MemoryHierarchy, String> {
        Ok(MemoryHierarchy { layout, directory: directory.into() })
    }

    #[test]
    fn limits_can_be_enabled_below_groups_without_processes() {
        let directory = tempfile::tempdir().unwrap();
        let group = directory.path();
        let write = |file: &str, text: &str| fs::write(group.join(file), text).unwrap();
        assert!(!can_have_limits(group), "of version 1");
        write("cgroup.controllers", "cpu memory pids\n");
        write("cgroup.procs", "1\n");
        assert!(can_have_limits(group), "the root");
        write("cgroup.type", "domain\n");
        assert!(!can_have_limits(group), "a process is in it");
        write("cgroup.procs", "");
        assert!(can_have_limits(group));
        write("cgroup.controllers", "cpu pids\n");
        assert!(!can_have_limits(group));
    }

    #[test]
    fn the_three_layouts_are_distinguished() {
        let groups = "4:memory:/agent\n0::/service";
        let hybrid = format!("{V1}\n{V2}");
        assert_eq!(find(V1, groups), place("cgroup v1", "/sys/fs/cgroup/memory/agent"));
        assert_eq!(
            find(&hybrid, groups),
            place("hybrid (memory on v1)", "/sys/fs/cgroup/memory/agent")
        );
        assert_eq!(find(V2, "0::/a/service"), place("cgroup v2", "/sys/fs/cgroup/unified/a"));
        assert_eq!(find(V2, "0::/"), place("cgroup v2", "/sys/fs/cgroup/unified"));
        assert!(find("proc /proc proc rw 0 0", groups).unwrap_err().contains("no cgroup"));
    }
}
