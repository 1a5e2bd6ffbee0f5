//! On which NUMA nodes the pool's memory lies.
//!
//! A tmpfs that is mounted with a memory policy (`mpol=bind:1`: on CXL memory, a node without
//! processors) holds to it whenever memory is taken in the name of its files, and that is also when
//! the kernel makes a copy for a process that writes to a private mapping. Those copies have to be local. So
//! a part of an image has the policy only while it gets its memory.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use farfork_sys::numa::MemoryPolicy;
use farfork_sys::proc;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{major, minor};

/// Where the pool's memory is taken from.
#[derive(Debug)]
pub(crate) struct Placement {
    /// What its file system was mounted with.
    policy: Option<MemoryPolicy>,
}

impl Placement {
    /// That of the file system of `file`. A policy that is not understood stays as the kernel has it.
    pub(crate) fn of(file: &File) -> io::Result<Placement> {
        let device = file.metadata()?.dev();
        let mounts = proc::text("/proc/self/mountinfo")?;
        let policy = option(&mounts, (major(device), minor(device)));
        Ok(Placement { policy: policy.and_then(|policy| policy.parse().ok()) })
    }

    /// Has a range of a file have the policy while `reserve` gives it memory.
    pub(crate) fn during(
        &self,
        file: &File,
        range: &Range<u64>,
        reserve: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(policy) = &self.policy else { return reserve() };
        let map = alone(file, range)?;
        let apply = |policy: &MemoryPolicy| policy.apply(map.as_ptr() as u64, map.len());
        apply(policy)?;
        let reserved = reserve();
        apply(&MemoryPolicy::DEFAULT)?;
        reserved
    }
}

/// A mapping of a range alone. In a mapping of more than that, a policy that is taken back holds for
/// the whole mapping: the kernel joins its parts first.
fn alone(file: &File, range: &Range<u64>) -> io::Result<MmapRaw> {
    // Not to be written, so that it is not joined with the writer's own either.
    let bytes = (range.end - range.start) as usize;
    MmapOptions::new().offset(range.start).len(bytes).map_raw_read_only(file)
}

/// The option `mpol` of the mounted file system with this device number.
fn option(mounts: &str, device: (u32, u32)) -> Option<&str> {
    let number = format!("{}:{}", device.0, device.1);
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number))?;
    let options = line.rsplit_once(" - ")?.1.split(' ').nth(2)?;
    // The policy may have commas itself: it goes on as long as no other option begins.
    let begin = options.find("mpol=").filter(|at| *at == 0 || options[..*at].ends_with(','))?;
    let policy = &options[begin + "mpol=".len()..];
    let is_part = |part: &str| part.starts_with(|letter: char| letter.is_ascii_digit());
    let more = policy.split(',').skip(1).take_while(|part| is_part(part));
    let bytes = policy.split(',').next()?.len() + more.map(|part| part.len() + 1).sum::<usize>();
    Some(&policy[..bytes])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_that_of_the_pools_mount() {
        let mounts = "\
            22 1 254:0 / / rw - ext4 /dev/vda rw,mpol=bind:7\n\
            30 22 0:31 / /a rw,nosuid shared:5 - tmpfs none rw,size=4k,mpol=bind:0-1,3,huge=always\n\
            31 22 0:32 / /b rw - tmpfs none rw,huge=always\n\
            32 22 0:33 / /c rw - tmpfs none rw,mpol=prefer=static:1\n";
        assert_eq!(option(mounts, (0, 31)), Some("bind:0-1,3"));
        assert_eq!(option(mounts, (0, 32)), None);
        assert_eq!(option(mounts, (0, 33)), Some("prefer=static:1"));
        assert_eq!(option(mounts, (0, 99)), None);
    }
}
