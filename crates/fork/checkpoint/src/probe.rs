//! What neither `/proc` nor a system call shows: found out by trying, without side effects.

use std::fs::{self, File};

use farfork_sys::memory;
use farfork_types::PAGE_BYTES;

use crate::error::{CheckpointError, doing};
use crate::inject::Injector;
use crate::refuse::{Refusals, causes};
use farfork_sys::status::Status;

const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
const KEYS: u64 = 16;

/// Refuses a process that may look at any other, and is kept from looking at this one: the kernel
/// does not show by which rules. One that may not is not asked, since everything keeps it from
/// that.
pub fn refuse_confined(
    injector: &Injector<'_>,
    pid: i32,
    refusals: &mut Refusals,
) -> Result<(), CheckpointError> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let may_look = Status::read(pid, pid)?.capabilities[EFFECTIVE] >> CAP_SYS_PTRACE & 1 != 0;
    // In another PID namespace this process has no number that it could be asked for by.
    if !may_look || namespace("self") != namespace(&pid.to_string()) {
        return Ok(());
    }
    let this = u64::from(std::process::id());
    let args = [pid as u64, this, KCMP_VM, 0, 0, 0];
    let answer = injector.thread(pid)?.try_call(libc::SYS_kcmp, args)?;
    if [-libc::EPERM, -libc::EACCES].map(i64::from).contains(&answer) {
        refusals.add("process", causes::process::CONFINED);
    }
    Ok(())
}

const EFFECTIVE: usize = 2;
const CAP_SYS_PTRACE: u32 = 19;
const KCMP_VM: u64 = 1;

/// Protection keys that the process has allocated, one bit each: the kernel lets a key be given
/// to memory only then. The scratch page has the default key again afterwards.
pub fn protection_keys(injector: &Injector<'_>, pid: i32) -> Result<u32, CheckpointError> {
    if !farfork_image::machine::this().cpu_flags.iter().any(|flag| flag == "ospke") {
        return Ok(0);
    }
    let leader = injector.thread(pid)?;
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
    let leader = injector.thread(pid)?;
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
