//! Reading and writing the memory of another process.

use farfork_types::PAGE_BYTES;
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};

/// The memory of another process, open. It stays that process's when the id goes to another.
#[derive(Debug)]
pub struct Memory {
    fd: i32,
}

const PAGE: usize = PAGE_BYTES as usize;

impl Memory {
    /// The memory that is open as `fd`, which it takes over.
    pub fn of(fd: i32) -> Memory {
        Memory { fd }
    }

    /// Closes it.
    pub fn close(self) {
        call::close_range(self.fd as u32, self.fd as u32);
    }

    /// Copies words from an address that somebody named, which may be bad.
    pub fn read_words(&self, from: u64, to: &mut [[u64; 2]]) -> Result<(), Errno> {
        let bytes = size_of_val(to);
        // SAFETY: these are plain words.
        let to = unsafe { core::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), bytes) };
        let read = read_at(self.fd, to, from)?;
        if read == bytes { Ok(()) } else { Err(Errno(e::EFAULT as i32)) }
    }

    /// Copies `bytes` to fresh memory, which stays untouched where they are zeros.
    pub fn copy_to_zeros(&self, from: u64, to: u64, bytes: u64) -> Result<(), Errno> {
        let mut page = [0u8; PAGE];
        for offset in (0..bytes).step_by(PAGE) {
            progress(read_at(self.fd, &mut page, from + offset)?)?;
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

    fn write(&self, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
        while !bytes.is_empty() {
            let args = [self.fd as u64, bytes.as_ptr() as u64, bytes.len() as u64, at];
            // SAFETY: the kernel reads from `bytes`.
            let written = progress(unsafe { syscall(k::__NR_pwrite64, args) }? as usize)?;
            (bytes, at) = (&bytes[written..], at + written as u64);
        }
        Ok(())
    }
}

static ZEROS: [u8; 4 * PAGE] = [0; 4 * PAGE];

fn read_at(fd: i32, to: &mut [u8], from: u64) -> Result<usize, Errno> {
    let args = [fd as u64, to.as_mut_ptr() as u64, to.len() as u64, from];
    // SAFETY: the kernel writes at most `to.len()` bytes to `to`.
    unsafe { syscall(k::__NR_pread64, args) }.map(|bytes| bytes as usize)
}

fn progress(bytes: usize) -> Result<usize, Errno> {
    if bytes == 0 { Err(Errno(e::ENOMEM as i32)) } else { Ok(bytes) }
}
