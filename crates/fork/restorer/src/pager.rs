//! The page service: what fills the pages that a clone touches, where its tiering policy decides
//! about each.
//!
//! ```text
//!  clone   userfaultfd, registers its memory ── descriptor ──► init's second thread
//!  clone   touches a page, waits  ── fault ──►  UFFDIO_CONTINUE   maps the pool's page, or
//!                                               UFFDIO_COPY       gives it a copy of its own
//! ```
//! The memory stays a mapping of the image. Faults are of the kind MINOR: the page exists and is only
//! not mapped. Without a page service, and in processes that the clone forks, the kernel maps the
//! right bytes by itself.
//!
//! Every clone is served by its own init, because the clone dies with it. So an agent that dies, or is
//! busy with other clones, delays no clone. The service has a thread apart from the supervisor, which
//! itself waits for pages of the clone that it reads.

mod faults;
mod handover;

pub use handover::{copy, hand_over};

use farfork_plan::protocol::SLOT_IMAGE;
use farfork_plan::window;
use farfork_types::{CHUNK_BYTES, PAGE_BYTES, align_down, align_up};
use linux_raw_sys::general as k;

use crate::call::{self, CloneArgs, Errno, clone3_entry, syscall};
use crate::overlay;
use crate::slots::Slots;
use crate::sources;
use faults::Service;

/// The two ends of the socket on which the clone's processes hand over their descriptors.
#[derive(Clone, Copy)]
pub struct Ends {
    /// The init's.
    pub own: i32,
    /// The clone's.
    pub theirs: i32,
}

/// Whether any process has memory that is supplied; called with an overlay only.
pub fn is_wanted() -> bool {
    // SAFETY: the overlay is mapped.
    unsafe { overlay::members() }.iter().any(|member| member.served.count != 0)
}

/// Makes the socket, out of the way of the clone's numbers.
pub fn ends(lowest: u32) -> Result<Ends, Errno> {
    let mut fds = [0i32; 2];
    let kind = SOCK_SEQPACKET | u64::from(k::O_CLOEXEC);
    // SAFETY: the kernel writes two descriptors.
    unsafe { syscall(k::__NR_socketpair, [AF_UNIX, kind, 0, fds.as_mut_ptr() as u64]) }?;
    let own = call::duplicate_above(fds[0], lowest)?;
    let theirs = call::duplicate_above(fds[1], lowest)?;
    fds.iter().for_each(|fd| call::close_range(*fd as u32, *fd as u32));
    Ok(Ends { own, theirs })
}

const ENXIO: i32 = linux_raw_sys::errno::ENXIO as i32;
const AF_UNIX: u64 = 1;
const SOCK_SEQPACKET: u64 = 5;

const STACK_BYTES: u64 = 64 << 10;

/// Starts the service. To be called after the fork of the clone, which then has neither the service's
/// memory nor its thread. The descriptors in `slots` may be closed after that.
pub fn start(slots: &Slots, ends: Ends) -> Result<(), Errno> {
    call::close_range(ends.theirs as u32, ends.theirs as u32);
    let service = Service::new(ends.own, MappedImage::map(slots)?);
    let (prot, flags) = (k::PROT_READ | k::PROT_WRITE, k::MAP_PRIVATE | k::MAP_ANONYMOUS);
    // SAFETY: new memory wherever there is room.
    let stack = unsafe { call::mmap(0, STACK_BYTES, prot, flags, -1, 0) }?;
    // SAFETY: the start of the stack is the thread's argument; the rest is its own.
    unsafe { (stack as *mut Service).write(service) };
    let reserved = size_of::<Service>().next_multiple_of(64) as u64;
    let args = CloneArgs {
        flags: u64::from(call::THREAD),
        stack: stack + reserved,
        stack_size: STACK_BYTES - reserved,
        ..CloneArgs::default()
    };
    // SAFETY: the stack is this thread's alone; `serve` never returns.
    unsafe { clone3_entry(&args, serve, stack) }.map(|_| ())
}

extern "C" fn serve(service: u64) -> ! {
    // SAFETY: written by `start`, for this thread.
    let service = unsafe { &mut *(service as *mut Service) };
    service.run()
}

/// The image as the init maps it, to copy from.
#[derive(Clone, Copy)]
pub struct MappedImage {
    address: u64,
    bytes: u64,
}

impl MappedImage {
    /// Maps what is stored, and memory of zeros for holes. In a mapping of the whole file the kernel would look for small
    /// pages that could be one huge page (khugepaged), and fill the holes between them, so that the image grows.
    fn map(slots: &Slots) -> Result<MappedImage, Errno> {
        let fd = slots.get(SLOT_IMAGE.into());
        let bytes = seek(fd, 0, k::SEEK_END)?;
        let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE;
        let reserved = align_up(bytes, CHUNK_BYTES) + CHUNK_BYTES;
        // SAFETY: a new mapping wherever there is room.
        let reserved = unsafe { call::mmap(0, reserved, k::PROT_READ, flags, -1, 0) }?;
        // So that whole chunks stay huge pages.
        let address = align_up(reserved, CHUNK_BYTES);
        let flags = k::MAP_SHARED | k::MAP_NORESERVE | k::MAP_FIXED;
        let mut at = 0;
        loop {
            let data = match seek(fd, at, k::SEEK_DATA) {
                Ok(data) => align_down(data, PAGE_BYTES),
                Err(Errno(ENXIO)) => break,
                Err(errno) => return Err(errno),
            };
            at = align_up(seek(fd, data.max(at), k::SEEK_HOLE)?, PAGE_BYTES);
            // SAFETY: within the mapping that was just made.
            unsafe { call::mmap(address + data, at - data, k::PROT_READ, flags, fd, data) }?;
        }
        for part in sources::parts() {
            let args = [
                address + part.place,
                part.bytes,
                k::PROT_READ.into(),
                flags.into(),
                0,
                part.place,
            ];
            // SAFETY: within the mapping that was just made.
            unsafe { sources::map(slots, args) }?;
        }
        Ok(MappedImage { address, bytes })
    }

    /// Where the page at a place is mapped.
    pub fn page(&self, place: u64) -> Option<u64> {
        let fits = place < self.bytes;
        fits.then_some(self.address + place)
    }
}

/// A place in a file. It moves the file's offset, which nothing reads from.
fn seek(fd: i32, from: u64, what: u32) -> Result<u64, Errno> {
    // SAFETY: no memory is touched.
    unsafe { syscall(k::__NR_lseek, [fd as u64, from, u64::from(what)]) }
}

const _: () = assert!(window::OVERLAY + window::OVERLAY_BYTES <= window::SCRATCH);
