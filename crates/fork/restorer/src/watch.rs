//! Profiling clones, whose page tables show which pages they touch.
//!
//! A clone maps its image by page table entries of 2 MiB, and a fault on one page maps its neighbours.
//! So its page tables do not show which pages it needs. Watched memory is mapped page by page, by the
//! fault on that very page: huge pages, where one fits, are advised against before anything is touched,
//! and the kernel does not map around faults where a userfaultfd watches writes. The kernel handles the
//! faults itself (`WP_ASYNC`). So a descriptor for faults in user mode is enough, which needs no rights.
//!
//! `PAGEMAP_SCAN` then reads the page tables: absent pages were not touched, pages of the file were
//! read, others were written. The watch lasts as long as the descriptor is open. It stays in the queue
//! of a socket whose end the init holds. So the clone does not have it, and no other process has to live.

use farfork_plan::Table;
use farfork_plan::overlay::{MemberOverlay, Span};
use farfork_types::{CHUNK_BYTES, align_up};
use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};
use crate::tables::elements;
use crate::{overlay, userfault};

const WRITE_PROTECTION: u64 = 1 << 1;

/// Whether any process has memory that is watched; called with an overlay only.
pub fn is_wanted() -> bool {
    // SAFETY: the overlay is mapped.
    unsafe { overlay::members() }.iter().any(|member| member.watched.count != 0)
}

/// Begins to watch this process, number `member`, before it touches anything.
pub fn begin(overlay: &MemberOverlay, member: usize, socket: i32) -> Result<(), Errno> {
    if overlay.watched.count == 0 {
        return Ok(());
    }
    let flags = k::O_CLOEXEC | k::O_NONBLOCK | k::UFFD_USER_MODE_ONLY;
    let faults = userfault::open(flags, k::UFFD_FEATURE_WP_ASYNC)?;
    let done =
        watch(faults, overlay.watched).and_then(|()| userfault::send(socket, faults, member));
    call::close_range(faults as u32, faults as u32);
    done
}

fn watch(faults: u64, spans: Table) -> Result<(), Errno> {
    // SAFETY: the table is the overlay's.
    for Span { address, bytes } in unsafe { elements::<Span>(spans) } {
        if align_up(*address, CHUNK_BYTES) + CHUNK_BYTES <= address + bytes {
            let args = [*address, *bytes, u64::from(k::MADV_NOHUGEPAGE)];
            // SAFETY: advice, which changes no byte.
            match unsafe { syscall(k::__NR_madvise, args) } {
                // A kernel without huge pages.
                Err(Errno(EINVAL)) | Ok(_) => {}
                Err(errno) => return Err(errno),
            }
        }
        let range = k::uffdio_range { start: *address, len: *bytes };
        userfault::register(faults, range, WRITE_PROTECTION)?;
    }
    Ok(())
}

const EINVAL: i32 = linux_raw_sys::errno::EINVAL as i32;
