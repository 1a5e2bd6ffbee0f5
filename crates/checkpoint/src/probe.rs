//! What no file of `/proc` tells and no call asks: found out by trying, without a trace.

use std::fs::File;

use farfork_sys::memory;
use farfork_types::PAGE_BYTES;

use crate::error::{CheckpointError, doing};
use crate::inject::Injector;
use crate::status::Status;

const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
const KEYS: u64 = 16;

/// Protection keys that the process has allocated, one bit each: the kernel lets a key be given
/// to memory only then. The scratch page has the default key again afterwards.
pub fn protection_keys(injector: &Injector<'_>, pid: i32) -> Result<u32, CheckpointError> {
    if !farfork_image::machine::this().cpu_flags.iter().any(|flag| flag == "ospke") {
        return Ok(0);
    }
    let leader = injector.lend(pid)?;
    let protect = |key| {
        let args = [injector.scratch(), PAGE_BYTES, READ_WRITE, key, 0, 0];
        leader.try_call(libc::SYS_pkey_mprotect, args)
    };
    let mut allocated = 0;
    for key in 1..KEYS {
        if protect(key)? == 0 {
            allocated |= 1 << key;
        }
    }
    protect(0)?;
    Ok(allocated)
}

/// Flags of the `mlockall` that is in force for future mappings, 0 for none; `locked_kb` is what
/// was locked before the scratch page was mapped.
pub fn locks_future(
    injector: &Injector<'_>,
    pid: i32,
    locked_kb: u64,
) -> Result<u32, CheckpointError> {
    if Status::read(pid, pid)?.locked_kb <= locked_kb {
        return Ok(0);
    }
    let leader = injector.lend(pid)?;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let args = [0, PAGE_BYTES, READ_WRITE, flags, u64::MAX, 0];
    let page = leader.call(libc::SYS_mmap, args)?;
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))
        .map_err(|_| CheckpointError::Proc { pid, what: "the page map" })?;
    let present = memory::pages_with_content(&pagemap, page, page + PAGE_BYTES)
        .map_err(doing(pid, "find the pages in use (PAGEMAP_SCAN, Linux 6.7)"))?;
    leader.call(libc::SYS_munmap, [page, PAGE_BYTES, 0, 0, 0, 0])?;
    let on_fault = if present.is_empty() { libc::MCL_ONFAULT } else { 0 };
    Ok((libc::MCL_FUTURE | on_fault) as u32)
}
