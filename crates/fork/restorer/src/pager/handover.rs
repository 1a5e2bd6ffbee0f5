//! The clone's part: it registers its memory and hands the descriptor to its init.

use farfork_plan::overlay::{MemberOverlay, Served};
use farfork_plan::window;
use linux_raw_sys::general as k;

use crate::call::{self, Errno};
use crate::slots::Slots;
use crate::sources;
use crate::tables::elements;
use crate::userfault;

const MINOR: u64 = 1 << 2;

/// Has the init supply the memory of this process, number `member`, that `overlay` says. The
/// process has no descriptor of it afterwards.
pub fn hand_over(overlay: &MemberOverlay, member: usize, socket: i32) -> Result<(), Errno> {
    // SAFETY: the table is the overlay's.
    let served = unsafe { elements::<Served>(overlay.served) };
    if served.is_empty() {
        return Ok(());
    }
    let faults = userfault::open(k::O_CLOEXEC | k::O_NONBLOCK, k::UFFD_FEATURE_MINOR_SHMEM)?;
    let done = register(faults, served).and_then(|()| userfault::send(socket, faults, member));
    call::close_range(faults as u32, faults as u32);
    done
}

/// Gives this process copies of its own of the memory that `overlay` wants copied, from the image, whose
/// files are in `slots`.
pub fn copy(overlay: &MemberOverlay, slots: &Slots) -> Result<(), Errno> {
    // SAFETY: the table is the overlay's.
    let copied = unsafe { elements::<Served>(overlay.copied) };
    if copied.is_empty() {
        return Ok(());
    }
    let faults = userfault::open(k::O_CLOEXEC, k::UFFD_FEATURE_MINOR_SHMEM)?;
    let done = register(faults, copied)
        .and_then(|()| copied.iter().try_for_each(|span| copy_span(faults, span, slots)));
    call::close_range(faults as u32, faults as u32);
    done
}

fn copy_span(faults: u64, span: &Served, slots: &Slots) -> Result<(), Errno> {
    let mut done = 0;
    while done < span.bytes {
        let place = span.place + done;
        // The kernel copies to one mapping at a time, and each file has one of its own.
        let bytes = sources::together(place, (span.bytes - done).min(window::SCRATCH_BYTES));
        let flags = k::MAP_SHARED | k::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing else is mapped there.
        unsafe {
            sources::map(
                slots,
                [window::SCRATCH, bytes, k::PROT_READ.into(), flags.into(), 0, place],
            )
        }?;
        let copied = userfault::copy(faults, span.address + done, window::SCRATCH, bytes);
        // SAFETY: mapped here, and only for this.
        unsafe { call::munmap(window::SCRATCH, bytes) }?;
        copied?;
        done += bytes;
    }
    Ok(())
}

fn register(faults: u64, served: &[Served]) -> Result<(), Errno> {
    let mut rest = served;
    while let Some(first) = rest.first() {
        // Neighbours in one call, wherever in the pool they lie.
        let mut range = k::uffdio_range { start: first.address, len: 0 };
        while let Some((next, after)) = rest.split_first() {
            if next.address != range.start + range.len {
                break;
            }
            range.len += next.bytes;
            rest = after;
        }
        userfault::register(faults, range, MINOR)?;
    }
    Ok(())
}
