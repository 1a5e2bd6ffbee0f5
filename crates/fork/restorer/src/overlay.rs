//! What the tiering policy adds to a plan: see `farfork_plan::overlay`.

use farfork_plan::overlay::{MemberOverlay, OVERLAY_MAGIC, OverlayHeader, Span};
use farfork_plan::{Table, window};
use linux_raw_sys::general as k;

use crate::call::{self, Errno, SysResult, syscall};
use crate::tables::elements;

/// Maps the overlay from its sealed file, and closes the file.
pub fn map(fd: i32, bytes: u64) -> Result<(), Errno> {
    let flags = k::MAP_SHARED | k::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing else is mapped at the overlay's place.
    unsafe { call::mmap(window::OVERLAY, bytes, k::PROT_READ, flags, fd, 0) }?;
    call::close_range(fd as u32, fd as u32);
    // SAFETY: just mapped, at least one page.
    let header = unsafe { &*(window::OVERLAY as *const OverlayHeader) };
    let is_right = header.magic == OVERLAY_MAGIC && header.bytes == bytes;
    if is_right { Ok(()) } else { Err(Errno(linux_raw_sys::errno::EBADMSG as i32)) }
}

/// The parts of all processes, in the plan's order.
///
/// # Safety
/// [`map`] has been called.
pub unsafe fn members() -> &'static [MemberOverlay] {
    // SAFETY: the caller has mapped it; it stays, read-only, as long as this address space.
    unsafe { elements((*(window::OVERLAY as *const OverlayHeader)).members) }
}

/// What the init supplies to the first process while the clone runs: pages to make local, and pages to
/// map.
pub fn first_in_advance() -> (&'static [Span], &'static [Span]) {
    // SAFETY: called with an overlay that helps; the tables are its own.
    unsafe {
        match members() {
            [first, ..] => (elements(first.write), elements(first.read)),
            [] => (&[], &[]),
        }
    }
}

/// Whether the init supplies pages while the clone runs; called with an overlay only.
pub fn is_helped() -> bool {
    // SAFETY: the overlay is mapped.
    unsafe { (*(window::OVERLAY as *const OverlayHeader)).is_helped != 0 }
}

/// `MPOL_PREFERRED_MANY` (Linux 5.15): other nodes where these are full. Memory that may come from nowhere else, as by
/// `MPOL_BIND`, would have the clone OOM-killed beside free memory.
const PREFERRED: u64 = 5;

/// Has memory that this process has not touched yet taken from far nodes. Where the kernel refuses that, as for nodes that
/// its cpuset excludes, or for more mappings than a process may have, the memory is near, as it would be without, and is
/// counted as such. Returns the first refusal.
pub fn prefer_far(overlay: &MemberOverlay) -> Result<(), Errno> {
    let header = window::OVERLAY as *const OverlayHeader;
    // SAFETY: mapped, as the overlay of a process is.
    let nodes = unsafe { &raw const (*header).far_nodes } as u64;
    // One bit more than there are: the kernel reads one less than the count it is given.
    let bits = u64::from(u64::BITS) + 1;
    // SAFETY: the table is the overlay's.
    let spans = unsafe { elements::<Span>(overlay.far) };
    let placed = spans.iter().map(|Span { address, bytes }| {
        // SAFETY: a policy changes no byte; the kernel reads one word.
        unsafe { syscall(k::__NR_mbind, [*address, *bytes, PREFERRED, nodes, bits, 0]) }.map(|_| ())
    });
    placed.fold(Ok(()), Result::and)
}

/// Supplies pages of this process before they are touched. The agent has checked that there is memory
/// for them. Pages that cannot be supplied are left to faults.
pub fn populate(overlay: &MemberOverlay) {
    // SAFETY: a descriptor for this process, made and closed here.
    let own = unsafe {
        let pid = syscall(k::__NR_getpid, []).unwrap_or(0);
        syscall(k::__NR_pidfd_open, [pid, 0])
    };
    let Ok(own) = own else { return };
    // Those that are written come first: a write splits what was mapped as a whole.
    advise(own, overlay.write, k::MADV_POPULATE_WRITE);
    advise(own, overlay.read, k::MADV_POPULATE_READ);
    call::close_range(own as u32, own as u32);
}

/// The kernel's `UIO_MAXIOV`.
const BATCH: usize = 1024;

/// One call for many spans, whose layout is that of `struct iovec` (Linux 6.13 for oneself). A span
/// that cannot be supplied, since the parent could not touch it, is left out.
fn advise(own: u64, spans: Table, advice: u32) {
    // SAFETY: the table is the overlay's.
    let mut spans = unsafe { elements::<Span>(spans) };
    while !spans.is_empty() {
        let batch = &spans[..spans.len().min(BATCH)];
        let (at, count) = (batch.as_ptr() as u64, batch.len() as u64);
        // SAFETY: populating changes no byte; the kernel reads the spans.
        let done: SysResult =
            unsafe { syscall(k::__NR_process_madvise, [own, at, count, u64::from(advice), 0]) };
        let supplied = match done {
            Ok(bytes) => bytes,
            // The first of them has no accessible page, or the kernel is older and takes no such advice: then each
            // has a call of its own.
            Err(Errno(EINVAL | EFAULT)) => {
                alone(batch[0], advice);
                spans = &spans[1..];
                continue;
            }
            Err(_) => return,
        };
        let whole = count_whole(batch, supplied);
        let passed_over = usize::from(whole < batch.len());
        spans = &spans[whole + passed_over..];
    }
}

/// The same for one span (Linux 5.14).
fn alone(span: Span, advice: u32) {
    // SAFETY: populating changes no byte.
    let _ = unsafe { syscall(k::__NR_madvise, [span.address, span.bytes, u64::from(advice)]) };
}

/// How many spans `bytes` of all are.
fn count_whole(spans: &[Span], bytes: u64) -> usize {
    let mut left = bytes;
    let fits = |span: &&Span| {
        let fits = span.bytes <= left;
        left = left.saturating_sub(span.bytes);
        fits
    };
    spans.iter().take_while(fits).count()
}

const EINVAL: i32 = linux_raw_sys::errno::EINVAL as i32;
const EFAULT: i32 = linux_raw_sys::errno::EFAULT as i32;
