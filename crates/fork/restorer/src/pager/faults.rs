//! The init's part: it answers faults.

use farfork_plan::overlay::{MemberOverlay, Served};
use farfork_types::{PAGE_BYTES, align_down, end_of_run};
use linux_raw_sys::general as k;
use linux_raw_sys::ioctl::{UFFDIO_CONTINUE, UFFDIO_WAKE};

use super::MappedImage;
use crate::call::{Errno, syscall};
use crate::overlay;
use crate::packets::receive_from;
use crate::tables::elements;
use crate::userfault::{self, EAGAIN, EINTR};

/// Processes of one clone that can be served; the memory of others is mapped by the kernel.
const MOST: usize = 256;
/// One fault on a page that is mapped maps those behind it, too, up to the end of a block of so many
/// bytes: as the kernel does around a fault (`fault_around_bytes`).
const BLOCK_BYTES: u64 = 64 << 10;
/// Faults that are read at a time.
const BATCH: usize = 16;

const ENOMEM: i32 = linux_raw_sys::errno::ENOMEM as i32;

#[repr(C)]
#[derive(Clone, Copy)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

const POLLIN: i16 = 1;
/// A descriptor that `poll` leaves out.
const IGNORED: i32 = -1;

/// `struct uffd_msg` of a page fault.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u64,
    flags: u64,
    address: u64,
    thread: u64,
}

const _: () = assert!(size_of::<Message>() == size_of::<k::uffd_msg>());

/// The page service of one clone.
pub struct Service {
    image: MappedImage,
    /// The socket, then one descriptor for each process.
    polls: [PollFd; MOST + 1],
    members: [u32; MOST + 1],
    count: usize,
}

impl Service {
    /// A service for the processes that send their descriptors on `socket`.
    pub fn new(socket: i32, image: MappedImage) -> Service {
        let mut polls = [PollFd { fd: IGNORED, events: POLLIN, revents: 0 }; MOST + 1];
        polls[0].fd = socket;
        Service { image, polls, members: [0; MOST + 1], count: 1 }
    }

    /// Serves until the init ends.
    pub fn run(&mut self) -> ! {
        loop {
            let args = [self.polls.as_mut_ptr() as u64, self.count as u64, u64::MAX];
            // SAFETY: the kernel writes what happened to the entries.
            let _ = unsafe { syscall(k::__NR_poll, args) };
            for index in 1..self.count {
                if self.polls[index].revents & POLLIN != 0 {
                    self.answer(index);
                }
            }
            if self.polls[0].revents != 0 {
                self.welcome();
            }
        }
    }

    /// Takes on a process. Once all have left for their code, ignores the socket.
    fn welcome(&mut self) {
        let mut member = 0u64;
        match receive_from(self.polls[0].fd, &mut member) {
            Some((_, received)) => match received.fds() {
                [faults] if self.count <= MOST => {
                    self.polls[self.count].fd = *faults;
                    self.members[self.count] = member as u32;
                    self.count += 1;
                }
                // Once it is closed the kernel maps the pages.
                _ => received.close(),
            },
            None => self.polls[0].fd = IGNORED,
        }
    }

    fn answer(&self, index: usize) {
        let (faults, member) = (self.polls[index].fd as u64, self.members[index]);
        // SAFETY: a service runs only with an overlay.
        let Some(overlay) = (unsafe { overlay::members() }).get(member as usize) else { return };
        let mut messages = [Message::default(); BATCH];
        let bytes = size_of_val(&messages) as u64;
        let args = [faults, messages.as_mut_ptr() as u64, bytes];
        // SAFETY: the kernel writes whole messages.
        let Ok(read) = (unsafe { syscall(k::__NR_read, args) }) else { return };
        for message in &messages[..read as usize / size_of::<Message>()] {
            if message.event as u8 == k::UFFD_EVENT_PAGEFAULT as u8 {
                self.supply(faults, overlay, message);
            }
        }
    }

    fn supply(&self, faults: u64, overlay: &MemberOverlay, message: &Message) {
        let page = align_down(message.address, PAGE_BYTES);
        // SAFETY: the tables are the overlay's.
        let (served, local) =
            unsafe { (elements::<Served>(overlay.served), elements::<u64>(overlay.local)) };
        let after = served.partition_point(|span| span.address <= page);
        let span = served[..after].last().filter(|span| page < span.address + span.bytes);
        // Memory that was moved is not watched any more, and its faults come from elsewhere.
        let Some(span) = span else { return wake(faults, page) };
        let is_local = |page: u64| {
            let number = span.first_page + (page - span.address) / PAGE_BYTES;
            local.get((number / 64) as usize).is_some_and(|word| word & (1 << (number % 64)) != 0)
        };
        let is_written = message.flags & u64::from(k::UFFD_PAGEFAULT_FLAG_WRITE) != 0;
        let span_end = span.address + span.bytes;
        let source = self.image.page(span.place + (page - span.address));
        if let Some(source) = source.filter(|_| is_written || is_local(page)) {
            let ahead = if is_local(page) { overlay.ahead_bytes } else { 0 };
            let end = end_of_run(page, ahead, span_end, is_local);
            // Pages of their own that come after it are left as they are, and end it.
            let together = userfault::copy(faults, page, source, end - page);
            let copied = together.or_else(|errno| match end - page {
                PAGE_BYTES => Err(errno),
                // Not all of it is one mapping any more, or there is not that much memory.
                _ => userfault::copy(faults, page, source, PAGE_BYTES),
            });
            match copied {
                // Without memory for a page of its own the clone still can read the image's.
                Err(Errno(ENOMEM)) => {}
                Err(_) => return wake(faults, page),
                Ok(()) => return,
            }
        }
        let end = end_of_run(page, BLOCK_BYTES, span_end, |page| !is_local(page));
        // The kernel takes no more than one mapping at a time, and the program may have cut what was
        // one: then the page alone.
        let is_supplied =
            proceed(faults, page, end).is_ok() || proceed(faults, page, page + PAGE_BYTES).is_ok();
        if !is_supplied {
            wake(faults, page);
        }
    }
}

/// Maps pages of the image from `start` on, up to the first that is mapped already.
fn proceed(faults: u64, start: u64, end: u64) -> Result<(), Errno> {
    loop {
        let range = k::uffdio_range { start, len: end - start };
        let mut asked = k::uffdio_continue { range, mode: 0, mapped: 0 };
        let args = [faults, u64::from(UFFDIO_CONTINUE), &raw mut asked as u64];
        // SAFETY: maps pages of a mapping that are not mapped yet.
        match unsafe { syscall(k::__NR_ioctl, args) } {
            Err(_) if asked.mapped > 0 => return Ok(()),
            Err(Errno(EAGAIN | EINTR)) => {}
            other => return other.map(|_| ()),
        }
    }
}

/// Lets threads that wait for a page retry: the page is mapped by now, or no longer ours to supply.
fn wake(faults: u64, page: u64) {
    let mut range = k::uffdio_range { start: page, len: PAGE_BYTES };
    // SAFETY: wakes threads that wait for the page.
    let _ =
        unsafe { syscall(k::__NR_ioctl, [faults, u64::from(UFFDIO_WAKE), &raw mut range as u64]) };
}
