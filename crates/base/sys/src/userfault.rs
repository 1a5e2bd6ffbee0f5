//! Page faults that a program answers: `userfaultfd(2)`, and the ioctls of it that answer faults of another
//! process whose descriptor was handed over.
#![allow(unsafe_code)] // reason: ioctls of userfaultfd, and reads of its messages into shared memory

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

/// Bytes of the kernel's `struct uffd_msg`.
pub const MESSAGE_BYTES: usize = 32;
/// The same in words.
pub const MESSAGE_WORDS: usize = MESSAGE_BYTES / size_of::<u64>();

const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_FORK: u8 = 0x13;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// Bit of `uffdio_api.features`: discarded ranges are reported.
pub const FEATURE_EVENT_REMOVE: u64 = 1 << 3;

const API: u64 = 0xaa;
/// `_IOWR(0xaa, NR, struct)`: the third argument is the size of the structure.
const fn request(direction: u64, number: u64, bytes: usize) -> libc::c_ulong {
    direction << 30 | (bytes as u64) << 16 | API << 8 | number
}
const READ: u64 = 2;
const READ_WRITE: u64 = 3;
const UFFDIO_API: libc::c_ulong = request(READ_WRITE, 0x3f, size_of::<[u64; 3]>());
const UFFDIO_REGISTER: libc::c_ulong = request(READ_WRITE, 0x00, size_of::<[u64; 4]>());
const UFFDIO_WAKE: libc::c_ulong = request(READ, 0x02, size_of::<[u64; 2]>());
const UFFDIO_COPY: libc::c_ulong = request(READ_WRITE, 0x03, size_of::<[u64; 5]>());
const UFFDIO_ZEROPAGE: libc::c_ulong = request(READ_WRITE, 0x04, size_of::<[u64; 4]>());
const UFFDIO_POISON: libc::c_ulong = request(READ_WRITE, 0x08, size_of::<[u64; 4]>());

const REGISTER_MISSING: u64 = 1;

/// One message of a userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A thread waits for the page at this address.
    Fault {
        /// The address, as the kernel gives it: that of the page unless exact addresses were asked for.
        address: u64,
    },
    /// The process has discarded this range, or unmapped it. Its bytes are gone.
    Removed {
        /// First address.
        start: u64,
        /// Address after the last.
        end: u64,
    },
    /// The process has forked: this descriptor is new, and is for the child's memory.
    Forked {
        /// The descriptor, which the reader owns.
        descriptor: u32,
    },
    /// A message that nothing here asks for.
    Other,
}

impl Message {
    /// Reads the four words of a message. Words of zeros are not one.
    pub fn parse(words: [u64; MESSAGE_WORDS]) -> Option<Message> {
        let [event, first, second, _] = words;
        match event as u8 {
            0 => None,
            EVENT_PAGEFAULT => Some(Message::Fault { address: second }),
            EVENT_REMOVE | EVENT_UNMAP => Some(Message::Removed { start: first, end: second }),
            EVENT_FORK => Some(Message::Forked { descriptor: first as u32 }),
            _ => Some(Message::Other),
        }
    }
}

/// How far a range was filled, and why no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Bytes from the start of the range that are there now.
    pub bytes: u64,
    /// Why the rest is not: `EEXIST` if the next page was there already, `EAGAIN` if the mappings are
    /// changing and messages have to be read first, `ESRCH` if the process has ended, `ENOENT` if the
    /// range is not registered any more.
    pub stopped: Option<Errno>,
}

/// A userfaultfd.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

impl From<OwnedFd> for Userfault {
    fn from(descriptor: OwnedFd) -> Userfault {
        Userfault(descriptor)
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Userfault {
    /// A userfaultfd of this process, for faults of its kernel, too, that does not block readers.
    ///
    /// # Errors
    /// `EPERM` without privileges; `EINVAL` if the kernel does not have these features.
    pub fn create(features: u64) -> Result<Userfault, Errno> {
        // SAFETY: userfaultfd takes flags only.
        let fd = unsafe {
            libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) as i32
        };
        if fd < 0 {
            return Err(last_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let created = Userfault(unsafe { OwnedFd::from_raw_fd(fd) });
        let mut api = [API, features, 0];
        created.call(UFFDIO_API, &mut api)?;
        Ok(created)
    }

    /// Has faults of missing pages in this range of the calling process reported here. The range has whole
    /// pages.
    ///
    /// # Errors
    /// `EINVAL` if it is not mapped as private or shared memory; `EBUSY` if it is registered elsewhere.
    pub fn register(&self, start: u64, bytes: u64) -> Result<(), Errno> {
        let mut arguments = [start, bytes, REGISTER_MISSING, 0];
        self.call(UFFDIO_REGISTER, &mut arguments)
    }

    /// Reads what messages there are into `words`, in memory that outlives this process: a message that was
    /// read is there whenever this process dies. Returns how many words were written; none if no message
    /// waits.
    ///
    /// # Errors
    /// As `read(2)`; `EINVAL` if the descriptor was never enabled.
    pub fn read(&self, words: &[AtomicU64]) -> Result<usize, Errno> {
        let bytes = size_of_val(words);
        // SAFETY: the kernel writes at most `bytes` bytes to the words, which may change at any time.
        let got = unsafe { libc::read(self.0.as_raw_fd(), words.as_ptr() as *mut _, bytes) };
        match usize::try_from(got) {
            Ok(bytes) => Ok(bytes / size_of::<u64>()),
            Err(_) => match last_error() {
                Errno::AGAIN => Ok(0),
                errno => Err(errno),
            },
        }
    }

    /// Copies `bytes` to where nothing is at `address`, and wakes what waits there.
    pub fn copy(&self, address: u64, bytes: &[u8]) -> Filled {
        let mut arguments = [address, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0];
        let stopped = self.call(UFFDIO_COPY, &mut arguments).err();
        filled(arguments[4], stopped)
    }

    /// Puts pages of zeros to where nothing is, and wakes what waits there.
    pub fn zero(&self, address: u64, bytes: u64) -> Filled {
        let mut arguments = [address, bytes, 0, 0];
        let stopped = self.call(UFFDIO_ZEROPAGE, &mut arguments).err();
        filled(arguments[3], stopped)
    }

    /// Makes each access to the range end in SIGBUS, and wakes what waits there (Linux 6.6).
    pub fn poison(&self, address: u64, bytes: u64) -> Filled {
        let mut arguments = [address, bytes, 0, 0];
        let stopped = self.call(UFFDIO_POISON, &mut arguments).err();
        filled(arguments[3], stopped)
    }

    /// Wakes what waits for a page of the range. What is still missing is reported anew.
    ///
    /// # Errors
    /// `EINVAL` for a range without whole pages.
    pub fn wake(&self, address: u64, bytes: u64) -> Result<(), Errno> {
        self.call(UFFDIO_WAKE, &mut [address, bytes])
    }

    fn call<const N: usize>(
        &self,
        request: libc::c_ulong,
        arguments: &mut [u64; N],
    ) -> Result<(), Errno> {
        // SAFETY: each request takes a structure of as many words as it says in its size, reads and writes
        // these, and reads the source of a copy, which its caller borrows.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, arguments.as_mut_ptr()) };
        if result == 0 { Ok(()) } else { Err(last_error()) }
    }
}

/// The kernel writes how many bytes it has done, or an error number below zero.
fn filled(done: u64, stopped: Option<Errno>) -> Filled {
    Filled { bytes: u64::try_from(done as i64).unwrap_or(0), stopped }
}

/// Closes the descriptor of a [`Message::Forked`]: the child's missing pages are zeros from then on. A
/// process whose forks are reported could otherwise use up the reader's descriptors.
pub fn close_forked(descriptor: u32) {
    // SAFETY: the kernel has made the descriptor for the reader of the message, and nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
}

/// Words of a message in shared memory, taken as they are now.
pub fn load_message(words: &[AtomicU64]) -> Option<Message> {
    let mut message = [0; MESSAGE_WORDS];
    for (to, word) in message.iter_mut().zip(words) {
        *to = word.load(Ordering::Relaxed);
    }
    Message::parse(message)
}

fn last_error() -> Errno {
    Errno::from_raw_os_error(nix::errno::Errno::last_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Anonymous memory of this process.
    struct Memory(*mut u8, usize);

    impl Memory {
        fn new(pages: usize) -> Memory {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping, wherever the kernel puts it.
            let at = unsafe {
                libc::mmap(std::ptr::null_mut(), pages * PAGE, libc::PROT_READ, flags, -1, 0)
            };
            assert_ne!(at, libc::MAP_FAILED);
            Memory(at.cast(), pages * PAGE)
        }

        fn byte(&self, at: usize) -> u8 {
            assert!(at < self.1);
            // SAFETY: in bounds of the mapping, which is readable.
            unsafe { self.0.add(at).read_volatile() }
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: the mapping is this value's own.
            unsafe { libc::munmap(self.0.cast(), self.1) };
        }
    }

    #[test]
    fn requests_are_the_kernels() {
        assert_eq!(UFFDIO_API, 0xc018_aa3f);
        assert_eq!(UFFDIO_REGISTER, 0xc020_aa00);
        assert_eq!(UFFDIO_WAKE, 0x8010_aa02);
        assert_eq!(UFFDIO_COPY, 0xc028_aa03);
        assert_eq!(UFFDIO_ZEROPAGE, 0xc020_aa04);
        assert_eq!(UFFDIO_POISON, 0xc020_aa08);
    }

    #[test]
    fn messages_are_the_kernels() {
        let of = |event: u8| Message::parse([u64::from(event), 1, 2, 3]);
        assert_eq!(of(0), None);
        assert_eq!(of(0x12), Some(Message::Fault { address: 2 }));
        assert_eq!(of(0x15), Some(Message::Removed { start: 1, end: 2 }));
        assert_eq!(of(0x16), Some(Message::Removed { start: 1, end: 2 }));
        assert_eq!(of(0x13), Some(Message::Forked { descriptor: 1 }));
        assert_eq!(of(0x77), Some(Message::Other));
    }

    #[test]
    fn a_range_is_filled_as_far_as_nothing_is_there() {
        let Ok(faults) = Userfault::create(FEATURE_EVENT_REMOVE) else {
            println!("skipped: this process may not create a userfaultfd");
            return;
        };
        let memory = Memory::new(8);
        let start = memory.0 as u64;
        faults.register(start, 8 * PAGE as u64).unwrap();
        let full = |bytes: usize| Filled { bytes: bytes as u64, stopped: None };
        let page = PAGE as u64;
        assert_eq!(faults.copy(start + 2 * page, &[7; PAGE]), full(PAGE));
        assert_eq!(faults.zero(start, page), full(PAGE));
        let part = faults.copy(start + page, &[8; 3 * PAGE]);
        assert_eq!((part.bytes, part.stopped.is_some()), (page, true));
        let again = faults.copy(start + 2 * page, &[9; PAGE]);
        assert_eq!((again.bytes, again.stopped), (0, Some(Errno::EXIST)));
        assert_eq!([0, PAGE, 2 * PAGE].map(|at| memory.byte(at)), [0, 8, 7]);
        assert_eq!(faults.poison(start + 5 * page, page), full(PAGE));
        let words: [AtomicU64; 8] = Default::default();
        assert_eq!((faults.read(&words), load_message(&words)), (Ok(0), None));
    }

    #[test]
    fn a_fault_waits_until_it_is_answered() {
        let Ok(faults) = Userfault::create(0) else {
            println!("skipped: this process may not create a userfaultfd");
            return;
        };
        let memory = Memory::new(1);
        let start = memory.0 as u64;
        faults.register(start, PAGE as u64).unwrap();
        let words: [AtomicU64; 8] = Default::default();
        let at = memory.0 as usize;
        let reader = std::thread::spawn(move || {
            // SAFETY: the mapping lives until this thread has ended.
            unsafe { (at as *const u8).read_volatile() }
        });
        while faults.read(&words).unwrap() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(load_message(&words), Some(Message::Fault { address: start }));
        assert_eq!(faults.copy(start, &[5; PAGE]).stopped, None);
        assert_eq!(reader.join().unwrap(), 5);
    }
}
