//! The scheduler's time slice of the calling thread, and whether it preempts others when it wakes.
#![allow(unsafe_code)] // reason: sched_setattr has no wrapper

use std::io;

/// `struct sched_attr` as of Linux 4.20 (the first 48 bytes).
#[derive(Clone, Copy, Debug, Default)]
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
pub fn request_slice(ns: u64) -> io::Result<()> {
    // SAFETY: reads the nice value, which the call below would reset.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let size = size_of::<Attributes>() as u32;
    let attributes = Attributes { size, nice, runtime: ns, ..Attributes::default() };
    set(&attributes)
}

/// While it exists, the calling thread does not preempt others when it wakes: it waits for a free
/// processor, or for its turn (`SCHED_BATCH`).
#[derive(Debug)]
pub struct NoPreemption {
    before: Option<Attributes>,
}

impl NoPreemption {
    /// Begins it. A thread under another policy than the usual one stays as it is.
    pub fn begin() -> NoPreemption {
        let before = attributes().filter(|own| own.policy == libc::SCHED_OTHER as u32);
        let batch = |own: &Attributes| Attributes { policy: libc::SCHED_BATCH as u32, ..*own };
        let before = before.filter(|own| set(&batch(own)).is_ok());
        NoPreemption { before }
    }
}

impl Drop for NoPreemption {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = set(before);
        }
    }
}

fn attributes() -> Option<Attributes> {
    let mut own = Attributes::default();
    let size = size_of::<Attributes>();
    // SAFETY: the kernel writes at most `size` bytes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut own, size, 0) };
    (got == 0).then_some(own)
}

fn set(attributes: &Attributes) -> io::Result<()> {
    // SAFETY: the kernel reads the attributes, which hold their size.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, attributes as *const _, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_and_leaves_the_slice_as_it_was() {
        request_slice(3_000_000).unwrap();
        let before = attributes().unwrap();
        let calm = NoPreemption::begin();
        let during = attributes().unwrap();
        assert_eq!(during.policy, libc::SCHED_BATCH as u32);
        assert_eq!((during.runtime, during.nice), (before.runtime, before.nice));
        drop(calm);
        let after = attributes().unwrap();
        assert_eq!((after.policy, after.runtime), (before.policy, before.runtime));
    }
}
