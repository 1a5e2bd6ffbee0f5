//! NUMA policies: from which nodes memory is taken.
#![allow(unsafe_code)] // reason: mbind has no wrapper

use std::fmt;
use std::io;
use std::str::FromStr;

/// A memory policy: a mode of `mbind`, and the nodes that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPolicy {
    mode: i32,
    /// A bit for each node, 64 in a word.
    nodes: Vec<u64>,
}

/// The text is not a policy, or not one that is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPolicyError;

impl fmt::Display for MemoryPolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no memory policy such as bind:0-3")
    }
}

impl std::error::Error for MemoryPolicyError {}

/// Of `move_pages`: pages that other processes map, too, stay (`linux/mempolicy.h`).
const MPOL_MF_MOVE: i32 = 1 << 1;
/// By the weights of `/sys/kernel/mm/mempolicy/weighted_interleave` (Linux 6.9), which hold for the whole system.
const WEIGHTED_INTERLEAVE: i32 = 6;
const STATIC: i32 = 1 << 15;
const RELATIVE: i32 = 1 << 14;

impl MemoryPolicy {
    /// That of the process that asks for memory.
    pub const DEFAULT: MemoryPolicy = MemoryPolicy { mode: libc::MPOL_DEFAULT, nodes: Vec::new() };

    /// Has memory at `address`, `bytes` of it, be taken by this policy from now on. What is there
    /// already stays where it is. In a shared mapping of a file on tmpfs it holds for that part of
    /// the file, in every process.
    ///
    /// # Errors
    /// The range is not mapped, a node does not exist, or this process may not use it.
    pub fn apply(&self, address: u64, bytes: usize) -> io::Result<()> {
        // One bit more than there are: the kernel reads one less than the count it is given.
        let bits = self.nodes.len() * 64 + usize::from(!self.nodes.is_empty());
        let nodes = if self.nodes.is_empty() { std::ptr::null() } else { self.nodes.as_ptr() };
        // SAFETY: a policy changes no byte; the kernel reads as many words as there are.
        let done =
            unsafe { libc::syscall(libc::SYS_mbind, address, bytes, self.mode, nodes, bits, 0) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Memory nodes that have no processors, such as CXL memory.
pub fn nodes_without_processors() -> Vec<i32> {
    memory_nodes(false)
}

/// Memory nodes that have processors.
pub fn nodes_with_processors() -> Vec<i32> {
    memory_nodes(true)
}

fn memory_nodes(with_processors: bool) -> Vec<i32> {
    let read = |name: &str| {
        let list = std::fs::read_to_string(format!("/sys/devices/system/node/{name}"));
        list.ok().and_then(|list| mask(list.trim())).unwrap_or_default()
    };
    let (memory, processors) = (read("has_memory"), read("has_cpu"));
    let has = |mask: &[u64], node: usize| {
        mask.get(node / 64).is_some_and(|word| word & (1 << (node % 64)) != 0)
    };
    let nodes = 0..memory.len() * 64;
    nodes
        .filter(|node| has(&memory, *node) && has(&processors, *node) == with_processors)
        .map(|node| node as i32)
        .collect()
}

/// The memory node that each page of a process is on; negative (an errno) for those that are not present.
/// `pages` are addresses.
///
/// # Errors
/// The process has ended, or this one may not look at it.
pub fn nodes_of(pid: i32, pages: &[u64]) -> io::Result<Vec<i32>> {
    let mut nodes = vec![0; pages.len()];
    // SAFETY: without a list of nodes the call moves nothing; it reads the addresses, and writes as many numbers.
    let done = unsafe {
        let (count, none) = (pages.len(), std::ptr::null::<i32>());
        libc::syscall(libc::SYS_move_pages, pid, count, pages.as_ptr(), none, nodes.as_mut_ptr(), 0)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(nodes) }
}

/// Moves pages of a process to a memory node: `pages` are addresses. Pages that other processes map, too, stay
/// where they are, and so do pages that are not present or for which the node has no room. Where a huge page is
/// mapped, all of it is moved. The bytes are the same all the time.
///
/// # Errors
/// The process has ended, this one may not do that, or the node does not exist.
pub fn move_pages(pid: i32, pages: &[u64], node: i32) -> io::Result<()> {
    let nodes = vec![node; pages.len()];
    let mut status = vec![0i32; pages.len()];
    // SAFETY: the kernel reads the addresses and nodes, and writes as many numbers; the process sees the same bytes.
    let done = unsafe {
        let (count, to) = (pages.len(), nodes.as_ptr());
        let flags = MPOL_MF_MOVE;
        let (at, status) = (pages.as_ptr(), status.as_mut_ptr());
        libc::syscall(libc::SYS_move_pages, pid, count, at, to, status, flags)
    };
    let error = io::Error::last_os_error();
    match (done, error.raw_os_error()) {
        // A positive number is that of pages that stayed. None could be moved at all: ENOENT.
        (0.., _) | (_, Some(libc::ENOENT)) => Ok(()),
        _ => Err(error),
    }
}

impl FromStr for MemoryPolicy {
    type Err = MemoryPolicyError;

    /// Reads it as the option `mpol` of a tmpfs: `MODE[=FLAG]:NODES`.
    fn from_str(text: &str) -> Result<MemoryPolicy, MemoryPolicyError> {
        let (mode, nodes) = text.split_once(':').ok_or(MemoryPolicyError)?;
        let (mode, flag) = mode.split_once('=').unwrap_or((mode, ""));
        let mode = match mode {
            "prefer" => libc::MPOL_PREFERRED,
            "bind" => libc::MPOL_BIND,
            "interleave" => libc::MPOL_INTERLEAVE,
            "weighted interleave" => WEIGHTED_INTERLEAVE,
            _ => return Err(MemoryPolicyError),
        };
        let flag = match flag {
            "" => 0,
            "static" => STATIC,
            "relative" => RELATIVE,
            _ => return Err(MemoryPolicyError),
        };
        Ok(MemoryPolicy { mode: mode | flag, nodes: mask(nodes).ok_or(MemoryPolicyError)? })
    }
}

/// More nodes no kernel has.
const MOST_NODES: usize = 1024;

/// `0-3,5` as bits.
fn mask(list: &str) -> Option<Vec<u64>> {
    let mut mask = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST_NODES {
            return None;
        }
        for node in first..=last {
            mask.resize(mask.len().max(node / 64 + 1), 0);
            mask[node / 64] |= 1 << (node % 64);
        }
    }
    Some(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_tmpfs_shows_them() {
        let read = |text: &str| text.parse::<MemoryPolicy>();
        let policy = |mode, nodes: &[u64]| Ok(MemoryPolicy { mode, nodes: nodes.to_vec() });
        assert_eq!(read("bind:1"), policy(libc::MPOL_BIND, &[2]));
        assert_eq!(read("interleave:0-2,5"), policy(libc::MPOL_INTERLEAVE, &[0b10_0111]));
        assert_eq!(read("weighted interleave:0-1"), policy(WEIGHTED_INTERLEAVE, &[3]));
        assert_eq!(read("prefer=static:64"), policy(libc::MPOL_PREFERRED | STATIC, &[0, 1]));
        for other in ["", "local", "bind", "bind:", "bind:x", "bind:3-1", "bind:5000", "best:1"] {
            assert_eq!(read(other), Err(MemoryPolicyError), "{other}");
        }
    }

    #[test]
    fn pages_are_moved_to_a_node_that_exists() {
        let block = std::hint::black_box(vec![1u8; 1 << 20]);
        let first = (block.as_ptr() as u64).next_multiple_of(4096);
        let pages: Vec<u64> = (0..16).map(|page| first + page * 4096).collect();
        let pid = std::process::id() as i32;
        let node = nodes_with_processors()[0];
        move_pages(pid, &pages, node).unwrap();
        assert!(nodes_of(pid, &pages).unwrap().iter().all(|at| *at == node));
        assert!(move_pages(pid, &pages, 900).is_err());
        assert_eq!(block[5000], 1);
    }

    #[test]
    fn the_node_that_every_machine_has_can_be_bound_to() {
        // SAFETY: a new mapping wherever there is room, gone at the end.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        for policy in ["bind:0".parse().unwrap(), MemoryPolicy::DEFAULT] {
            policy.apply(at as u64, 4096).unwrap();
        }
        assert!("bind:900".parse::<MemoryPolicy>().unwrap().apply(at as u64, 4096).is_err());
        // SAFETY: mapped above, and not used by anything else.
        unsafe { libc::munmap(at, 4096) };
    }
}
