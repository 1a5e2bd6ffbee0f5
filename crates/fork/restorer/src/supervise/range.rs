//! Ranges of addresses as the kernel reads them.

use farfork_types::{PAGE_BYTES, align_down, align_up};
use linux_raw_sys::errno as e;

use crate::call::{Errno, fail};

/// First address and end of a range, as the kernel reads the arguments of `madvise`.
pub fn range(start: u64, bytes: u64) -> Result<(u64, u64), Errno> {
    let length = bytes.checked_add(PAGE_BYTES - 1).map(|bytes| align_down(bytes, PAGE_BYTES));
    let end = length.and_then(|length| start.checked_add(length));
    match end {
        Some(end) if start == align_down(start, PAGE_BYTES) => Ok((start, end)),
        _ => fail(e::EINVAL),
    }
}

/// The whole pages that a range touches, as the kernel reads the arguments of `mlock`.
pub fn pages(start: u64, bytes: u64) -> (u64, u64) {
    let end = start.saturating_add(bytes).min(u64::MAX - PAGE_BYTES);
    (align_down(start, PAGE_BYTES), align_up(end, PAGE_BYTES))
}
