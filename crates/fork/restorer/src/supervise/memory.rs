//! Reading and writing the memory of another process.

use farfork_types::{PAGE_BYTES, align_down};
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};

/// The open memory of another process. It stays that process's when its id is reused.
#[derive(Debug)]
pub struct Memory {
    fd: i32,
    tid: u32,
}

const PAGE: usize = PAGE_BYTES as usize;

impl Memory {
    /// The memory that is open as `fd`, which it takes over, of the process of thread `tid`.
    pub fn from_fd(fd: i32, tid: u32) -> Memory {
        Memory { fd, tid }
    }

    /// Closes it.
    pub fn close(self) {
        call::close_range(self.fd as u32, self.fd as u32);
    }

    /// Copies words from an address that the clone named, which may be invalid.
    pub fn read_words(&self, from: u64, to: &mut [[u64; 2]]) -> Result<(), Errno> {
        let bytes = size_of_val(to);
        // SAFETY: these are plain words.
        let to = unsafe { core::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), bytes) };
        let read = self.read(to, from)?;
        if read == bytes { Ok(()) } else { Err(Errno(e::EFAULT as i32)) }
    }

    /// Copies `bytes` to fresh memory, which stays untouched where they are zeros.
    pub fn copy_to_zeros(&self, from: u64, to: u64, bytes: u64) -> Result<(), Errno> {
        let mut page = [0u8; PAGE];
        for offset in (0..bytes).step_by(PAGE) {
            progress(self.read(&mut page, from + offset)?)?;
            if page.iter().any(|byte| *byte != 0) {
                self.write(&page, to + offset)?;
            }
        }
        Ok(())
    }

    /// Overwrites `start..end` with zeros.
    pub fn clear(&self, start: u64, end: u64) -> Result<(), Errno> {
        let mut at = start;
        while at < end {
            let part = (end - at).min(ZEROS.len() as u64);
            self.write(&ZEROS[..part as usize], at)?;
            at += part;
        }
        Ok(())
    }

    /// Overwrites `start..end` with what a file has from `offset` on, and zeros behind its end.
    pub fn copy_file(&self, file: i32, offset: u64, start: u64, end: u64) -> Result<(), Errno> {
        let mut page = [0u8; PAGE];
        for at in (start..end).step_by(PAGE) {
            let read = read_at(file, &mut page, offset + (at - start))?;
            page[read..].fill(0);
            self.write(&page, at)?;
        }
        Ok(())
    }

    fn read(&self, to: &mut [u8], from: u64) -> Result<usize, Errno> {
        match read_at(self.fd, to, from) {
            Err(Errno(EIO)) => {
                self.touch(from, to.len() as u64);
                read_at(self.fd, to, from)
            }
            done => done,
        }
    }

    fn write(&self, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
        while !bytes.is_empty() {
            let written = match write_at(self.fd, bytes, at) {
                Err(Errno(EIO)) => {
                    self.touch(at, bytes.len() as u64);
                    write_at(self.fd, bytes, at)
                }
                done => done,
            };
            let written = progress(written?)?;
            (bytes, at) = (&bytes[written..], at + written as u64);
        }
        Ok(())
    }

    /// Has the page service supply pages (see `pager`): `/proc/TID/mem` does not wait for it. The read
    /// is harmless if the id belongs to another thread by now.
    fn touch(&self, from: u64, bytes: u64) {
        let end = from + bytes;
        let mut at = from;
        while at < end {
            let mut byte = 0u8;
            let (own, its) = ([&raw mut byte as u64, 1], [at, 1]);
            let (own, its) = (own.as_ptr() as u64, its.as_ptr() as u64);
            // SAFETY: the kernel writes one byte.
            let _ = unsafe {
                syscall(k::__NR_process_vm_readv, [u64::from(self.tid), own, 1, its, 1, 0])
            };
            at = align_down(at, PAGE_BYTES) + PAGE_BYTES;
        }
    }
}

const EIO: i32 = e::EIO as i32;

static ZEROS: [u8; 4 * PAGE] = [0; 4 * PAGE];

fn write_at(fd: i32, from: &[u8], to: u64) -> Result<usize, Errno> {
    let args = [fd as u64, from.as_ptr() as u64, from.len() as u64, to];
    // SAFETY: the kernel reads from `from`.
    unsafe { syscall(k::__NR_pwrite64, args) }.map(|bytes| bytes as usize)
}

fn read_at(fd: i32, to: &mut [u8], from: u64) -> Result<usize, Errno> {
    let args = [fd as u64, to.as_mut_ptr() as u64, to.len() as u64, from];
    // SAFETY: the kernel writes at most `to.len()` bytes to `to`.
    unsafe { syscall(k::__NR_pread64, args) }.map(|bytes| bytes as usize)
}

fn progress(bytes: usize) -> Result<usize, Errno> {
    if bytes == 0 { Err(Errno(e::ENOMEM as i32)) } else { Ok(bytes) }
}
