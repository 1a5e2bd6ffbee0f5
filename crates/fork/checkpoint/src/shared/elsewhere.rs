//! Other processes that have a shared object: a clone's copy would be cut off from them.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use farfork_sys::proc;
use rustix::fs::SealFlags;

use super::{DELETED, FoundObject, system_v};
use crate::maps::{self, Mapping};
use crate::refuse::{Refusals, causes};
use crate::shadows;

/// Another process that has an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    pid: i32,
    /// Whether it can change the object.
    writes: bool,
}

/// Refuses objects through which one of `pids` and another process could communicate. A process
/// that may not be looked into counts as one that has none.
pub fn refuse(pids: &[i32], found: &[FoundObject], refusals: &mut Refusals) {
    if found.is_empty() {
        return;
    }
    let farfork = std::process::id() as i32;
    let others = proc::processes().filter(|other| *other != farfork && !pids.contains(other));
    // A shadow maps no shared object, and runs no code.
    let others = others.filter(|other| !shadows::is_shadow(*other));
    let holders: Vec<(usize, Holder)> = others.flat_map(|other| held_by(other, found)).collect();
    for (index, found) in found.iter().enumerate().filter(|(_, found)| !is_constant(found)) {
        let of_this = holders.iter().filter(|(held, _)| *held == index).map(|(_, holder)| holder);
        // Where no process writes, none communicates.
        let Some(holder) = of_this.clone().find(|holder| holder.writes || found.is_written) else {
            continue;
        };
        refusals.about(found.pid);
        refusals.add(
            format!("{}, also in process {}", found.words, holder.pid),
            causes::memory::CHANNEL,
        );
    }
}

fn is_constant(found: &FoundObject) -> bool {
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    found.object.seals & seals.bits() == seals.bits()
}

/// Which of `found` a process has, by index, once for each mapping and descriptor.
fn held_by(pid: i32, found: &[FoundObject]) -> Vec<(usize, Holder)> {
    // A path need not be UTF-8; those of unnamed objects do not matter beyond their end.
    let text = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n').map(String::from_utf8_lossy);
    let mut held = Vec::new();
    let mappings = lines.filter_map(|line| maps::header(&line)).filter(Mapping::is_deleted);
    // Whether others have a segment is counted by the kernel.
    for mapping in mappings.filter(|mapping| !system_v::is_segment(mapping)) {
        let index = position(found, mapping.file);
        held.extend(index.map(|index| (index, Holder { pid, writes: writes(&mapping) })));
    }
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let is_unnamed =
            |link: std::path::PathBuf| link.as_os_str().as_bytes().ends_with(DELETED.as_bytes());
        if !fs::read_link(entry.path()).is_ok_and(is_unnamed) {
            continue;
        }
        let Ok(inode) = fs::metadata(entry.path()) else { continue };
        let shown = maps::shown(inode.dev(), inode.ino());
        let index = position(found, shown);
        held.extend(index.map(|index| (index, Holder { pid, writes: true })));
    }
    held
}

fn position(found: &[FoundObject], shown: (u64, u64)) -> Option<usize> {
    found.iter().position(|found| found.shown == shown && !found.is_segment())
}

fn writes(mapping: &Mapping) -> bool {
    mapping.is_shared && mapping.prot & libc::PROT_WRITE as u32 != 0
}
