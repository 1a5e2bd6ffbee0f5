//! Where this clone's image is: see `farfork_plan::sources`.

use farfork_plan::protocol::{SLOT_IMAGE, SLOT_SOURCE};
use farfork_plan::sources::{self, Located, SOURCES_MAGIC, SourceFile, SourcePart, SourcesHeader};
use farfork_plan::window;
use linux_raw_sys::general as k;

use crate::call::{self, Errno, SysResult, syscall};
use crate::shared::SHARED;
use crate::slots::Slots;
use crate::tables::elements;

/// Maps the table from its sealed file, and closes the file.
pub fn map_table(fd: i32, bytes: u64) -> Result<(), Errno> {
    let flags = k::MAP_SHARED | k::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing else is mapped at the table's place.
    unsafe { call::mmap(window::SOURCES, bytes, k::PROT_READ, flags, fd, 0) }?;
    call::close_range(fd as u32, fd as u32);
    // SAFETY: just mapped, at least one page.
    let header = unsafe { &*(window::SOURCES as *const SourcesHeader) };
    let is_right = header.magic == SOURCES_MAGIC && header.bytes == bytes;
    if is_right { Ok(()) } else { Err(Errno(linux_raw_sys::errno::EBADMSG as i32)) }
}

/// What is in other files than the image's own.
pub fn parts() -> &'static [SourcePart] {
    // SAFETY: the init has set it before it maps or reads anything of the image; the table then stays.
    unsafe {
        match SHARED.get().has_sources {
            true => elements((*(window::SOURCES as *const SourcesHeader)).parts),
            false => &[],
        }
    }
}

/// These files.
pub fn files() -> &'static [SourceFile] {
    // SAFETY: as above.
    unsafe {
        match SHARED.get().has_sources {
            true => elements((*(window::SOURCES as *const SourcesHeader)).files),
            false => &[],
        }
    }
}

/// The slot of a file's descriptor.
fn slot(file: Option<usize>) -> u64 {
    file.map_or(SLOT_IMAGE.into(), |file| u64::from(SLOT_SOURCE) + file as u64)
}

/// How many of `bytes` bytes at a place are side by side in one file.
pub fn together(place: u64, bytes: u64) -> u64 {
    sources::locate(parts(), place, bytes).bytes
}

/// `mmap` of a place of the image instead of a file: as many mappings as it takes.
///
/// # Safety
/// As for `mmap`.
pub unsafe fn map(slots: &Slots, args: [u64; 6]) -> SysResult {
    let [address, bytes, prot, flags, _, place] = args;
    // SAFETY: passed on to the caller.
    walk(place, bytes, |done, located| unsafe {
        let fd = slots.get(slot(located.file)) as i64 as u64;
        syscall(k::__NR_mmap, [address + done, located.bytes, prot, flags, fd, located.offset])
            .map(|_| ())
    })?;
    Ok(address)
}

/// `pread64` of places of the image, until all is read; `read` reads from one file.
pub fn read(
    slots: &Slots,
    [_, at, bytes, place, ..]: [u64; 6],
    read: impl Fn([u64; 6]) -> SysResult,
) -> SysResult {
    walk(place, bytes, |done, located| {
        let fd = slots.get(slot(located.file)) as i64 as u64;
        read([fd, at + done, located.bytes, located.offset, 0, 0]).map(|_| ())
    })?;
    Ok(bytes)
}

/// Calls `work` for each part of `bytes` bytes at `place` that lies in one piece.
fn walk(
    place: u64,
    bytes: u64,
    mut work: impl FnMut(u64, Located) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let parts = parts();
    let mut done = 0;
    while done < bytes {
        let located = sources::locate(parts, place + done, bytes - done);
        work(done, located)?;
        done += located.bytes;
    }
    Ok(())
}
