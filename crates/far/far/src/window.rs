//! How many pages the kernel fetches with one that a clone touches: the read-around of the mount.
//!
//! MITOSIS (§5.4) prefetches 0, 1, 2 or 6 adjacent pages with each page that a child misses. Here the kernel
//! does it, around the page.

use std::fs;
use std::io;

use farfork_types::PAGE_BYTES;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::place::Place;

/// The most pages that are fetched with another.
pub const MOST: u32 = 255;

/// Has the kernel fetch `others` pages with each that a clone of an image at `place` touches. It holds for all
/// clones of that place, also those that run.
///
/// # Errors
/// Nothing is mounted there, or this process may not change the kernel's setting.
pub fn set(place: &Place, others: u32) -> io::Result<()> {
    // Without asking the far process.
    let flags = AtFlags::from_bits_retain(libc::AT_STATX_DONT_SYNC as u32);
    let mount = statx(CWD, place.images(), flags, StatxFlags::empty())?;
    let (major, minor) = (mount.stx_dev_major, mount.stx_dev_minor);
    let kib = u64::from(others + 1) * (PAGE_BYTES / 1024);
    fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), kib.to_string())
}
