//! Media of pools.

use super::raw::{HUGE_BYTES, Mapping};
use super::{Finding, Probe, setting, while_doing};
use crate::Group;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "tmpfs_huge_pages",
        group: Group::Better,
        needed_for: "mapping a pool by entries of 2 MiB, so that clones start faster",
        advice: "run as root on a kernel with CONFIG_TRANSPARENT_HUGEPAGE; free some memory",
        look: tmpfs_huge_pages,
    },
    Probe {
        id: "hugetlbfs_pages",
        group: Group::Later,
        needed_for: "clones of processes with MAP_HUGETLB memory; pools use tmpfs",
        advice: "reserve pages with sysctl vm.nr_hugepages=N",
        look: hugetlbfs_pages,
    },
    Probe {
        id: "dax_file_system",
        group: Group::Later,
        needed_for: "a pool on persistent or CXL memory with a file system",
        advice: "ndctl create-namespace --mode fsdax, mkfs.ext4, mount -o dax=always; or keep the \
                 pool on tmpfs",
        look: dax_file_system,
    },
    Probe {
        id: "cxl_memory_node",
        group: Group::Later,
        needed_for: "a pool in CXL memory that the kernel manages",
        advice: "online the memory with daxctl reconfigure-device, or keep the pool on tmpfs",
        look: cxl_memory_node,
    },
];

const TRIAL_BYTES: usize = 2 * HUGE_BYTES;

/// Maps a file on a detached tmpfs as a clone would.
fn tmpfs_huge_pages() -> Finding {
    let tmpfs = detached_tmpfs().map_err(while_doing("creating a tmpfs with huge=always"))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = openat(&tmpfs, "trial", flags, Mode::RUSR | Mode::WUSR)
        .map_err(while_doing("creating a file on it"))?;
    fallocate(&file, FallocateFlags::empty(), 0, TRIAL_BYTES as u64)
        .map_err(while_doing("allocating 4 MiB on it"))?;
    let mapping =
        Mapping::from_file(file.as_fd(), TRIAL_BYTES).map_err(while_doing("mapping that file"))?;
    mapping.populate_read().map_err(while_doing("populating that mapping"))?;
    match huge_kib(&mapping)? {
        kib if kib * 1024 == TRIAL_BYTES => Ok(format!("mapped {kib} KiB of a file by huge pages")),
        kib => Err(format!("mapped only {kib} of {} KiB by huge pages", TRIAL_BYTES / 1024)),
    }
}

fn detached_tmpfs() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "huge", "always")?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// How many KiB of a mapping the kernel maps by entries of 2 MiB.
fn huge_kib(mapping: &Mapping) -> Result<usize, String> {
    let smaps =
        fs::read_to_string("/proc/self/smaps").map_err(while_doing("reading its mappings"))?;
    let addresses = mapping.addresses();
    let heading = format!("{:08x}-{:08x} ", addresses.start, addresses.end);
    let of_mapping = smaps.split_once(&heading).ok_or("the mapping is not in smaps")?.1;
    let fields = of_mapping.lines().skip(1).map_while(|line| line.split_once(':'));
    let huge = fields.take_while(|(name, _)| !name.contains(' ')).filter_map(|(name, value)| {
        let counts = matches!(name, "ShmemPmdMapped" | "FilePmdMapped");
        counts.then(|| value.trim().strip_suffix(" kB")?.parse::<usize>().ok())?
    });
    Ok(huge.sum())
}

fn hugetlbfs_pages() -> Finding {
    let base = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    let count = |name| setting(format!("{base}/{name}"));
    let total = count("nr_hugepages").ok_or("this kernel has no hugetlbfs with 2 MiB pages")?;
    let free = count("free_hugepages").unwrap_or_default();
    if free == "0" || free.is_empty() {
        Err(format!("none of {total} pages of 2 MiB is free"))
    } else {
        Ok(format!("{free} of {total} pages of 2 MiB are free"))
    }
}

fn dax_file_system() -> Finding {
    let mounts =
        fs::read_to_string("/proc/self/mounts").map_err(while_doing("reading the mounts"))?;
    let is_dax = |option: &str| matches!(option, "dax" | "dax=always");
    let places = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "famfs" || options.split(',').any(is_dax)).then_some(place)
    });
    match places.collect::<Vec<_>>()[..] {
        [] => Err("none is mounted with dax=always".into()),
        ref found => Ok(format!("mounted at {}", found.join(", "))),
    }
}

/// CXL memory shows up as a NUMA node that has memory but no processor.
fn cxl_memory_node() -> Finding {
    let nodes = Path::new("/sys/devices/system/node");
    let is_node =
        |name: &String| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
    let says = |name: &str, file: &str| {
        fs::read_to_string(nodes.join(name).join(file)).unwrap_or_default()
    };
    let memory_only: Vec<_> = entries(nodes)
        .into_iter()
        .filter(is_node)
        .filter(|name| says(name, "cpulist").trim().is_empty())
        .filter(|name| has_memory(&says(name, "meminfo")))
        .collect();
    if memory_only.is_empty() {
        Err("every NUMA node with memory has processors".into())
    } else {
        Ok(format!("{} has memory and no processor", memory_only.join(", ")))
    }
}

fn has_memory(meminfo: &str) -> bool {
    meminfo.lines().any(|line| line.contains("MemTotal:") && !line.contains(" 0 kB"))
}

fn entries(directory: impl AsRef<Path>) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_memory_is_not_mapped_huge() {
        let file = tempfile_in_shm();
        let mapping = Mapping::from_file(file.as_fd(), 4096).unwrap();
        mapping.populate_read().unwrap();
        assert_eq!(huge_kib(&mapping), Ok(0));
    }

    fn tempfile_in_shm() -> OwnedFd {
        let file = rustix::fs::memfd_create("trial", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        file
    }

    #[test]
    fn an_empty_node_has_no_memory() {
        assert!(has_memory("Node 1 MemTotal:       1048576 kB\nNode 1 MemFree: 0 kB"));
        assert!(!has_memory("Node 1 MemTotal:       0 kB"));
    }
}
