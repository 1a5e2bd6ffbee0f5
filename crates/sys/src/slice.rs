//! The scheduler's time slice of the calling thread.
#![allow(unsafe_code)] // reason: sched_setattr has no wrapper

use std::io;

/// `struct sched_attr` as of Linux 4.20 (the first 48 bytes).
#[derive(Default)]
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const _: () = assert!(size_of::<Attributes>() == 48);

/// Asks for slices of `ns` nanoseconds (0: the kernel's choice) for the calling thread and what it
/// starts. A thread with short slices runs sooner when it wakes, and no longer in all
/// (EEVDF, Linux 6.12; without effect before).
pub fn request(ns: u64) -> io::Result<()> {
    // SAFETY: reads the nice value, which the call below would reset.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let size = size_of::<Attributes>() as u32;
    let attributes = Attributes { size, nice, runtime: ns, ..Attributes::default() };
    // SAFETY: the kernel reads the attributes, whose size it is told.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
