//! The attributes of one mapping, from `/proc/TID/smaps`, the only file that has them. To read it,
//! the kernel walks over all pages below the mapping.

use farfork_plan::traits;
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};
use crate::text::hexadecimal;

/// `mseal`.
pub const SEALED: u64 = 1 << 32;
/// Registered with a userfaultfd.
pub const WATCHED: u64 = 1 << 33;
/// From this bit on stands the number of the protection key.
pub const KEY_SHIFT: u32 = 48;

/// Flags as the kernel prints them.
const FLAGS: [(&[u8], u64); 10] = [
    (b"dc", traits::DONT_FORK),
    (b"dd", traits::DONT_DUMP),
    (b"hg", traits::HUGE),
    (b"nh", traits::NO_HUGE),
    (b"mg", traits::MERGEABLE),
    (b"lo", traits::LOCKED),
    (b"sl", SEALED),
    (b"um", WATCHED),
    (b"uw", WATCHED),
    (b"ui", WATCHED),
];

/// The attributes of the mapping that holds `address`; `fd` is the file, which is closed.
pub fn look_up(fd: i32, address: u64) -> Result<u64, Errno> {
    let mut search = Search { address, is_inside: false, found: 0 };
    let result = lines(fd, |line| search.line(line));
    call::close_range(fd as u32, fd as u32);
    match result? {
        true => Ok(search.found),
        false => Err(Errno(e::ENOMEM as i32)), // not mapped any more
    }
}

/// Whether all mappings in `start..end` have the same attributes; `fd` is the file, which is closed.
pub fn are_alike(fd: i32, start: u64, end: u64) -> Result<bool, Errno> {
    let (mut is_inside, mut found, mut first, mut differs) = (false, 0, None, false);
    let read = lines(fd, |line| {
        if let Some((from, to)) = range(line) {
            (is_inside, found) = (from < end && start < to, 0);
            return from >= end;
        }
        let (bits, is_last) = attributes(line);
        found |= bits;
        differs |= is_inside && is_last && *first.get_or_insert(found) != found;
        differs
    });
    call::close_range(fd as u32, fd as u32);
    read.map(|_| !differs)
}

struct Search {
    address: u64,
    is_inside: bool,
    found: u64,
}

impl Search {
    /// Takes in one line and returns whether it was the last that is needed.
    fn line(&mut self, line: &[u8]) -> bool {
        if let Some((start, end)) = range(line) {
            self.is_inside = (start..end).contains(&self.address);
        }
        let (bits, is_last) = if self.is_inside { attributes(line) } else { (0, false) };
        self.found |= bits;
        is_last
    }
}

/// The attributes that a line of a mapping shows, and whether it is the last of them.
fn attributes(line: &[u8]) -> (u64, bool) {
    if let Some(key) = line.strip_prefix(b"ProtectionKey:") {
        let digits = key.iter().filter(|byte| byte.is_ascii_digit());
        let key = digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
        return (key << KEY_SHIFT, false);
    }
    let Some(flags) = line.strip_prefix(b"VmFlags:") else { return (0, false) };
    let bits = flags.split(|byte| *byte == b' ').map(|flag| {
        let known = FLAGS.iter().find(|(name, _)| *name == flag);
        known.map_or(0, |(_, bit)| *bit)
    });
    (bits.fold(0, |all, bit| all | bit), true)
}

/// The addresses at the start of a mapping's first line; its other lines begin with a capital.
fn range(line: &[u8]) -> Option<(u64, u64)> {
    let word = line.split(|byte| *byte == b' ').next()?;
    let dash = word.iter().position(|byte| *byte == b'-')?;
    Some((hexadecimal(&word[..dash])?, hexadecimal(&word[dash + 1..])?))
}

/// Passes the lines of a file to `take` until that returns true. Of a line that does not fit, as one
/// with a very long path, it gets the beginning.
fn lines(fd: i32, mut take: impl FnMut(&[u8]) -> bool) -> Result<bool, Errno> {
    let mut text = [0u8; 8192];
    let (mut kept, mut is_rest) = (0, false);
    loop {
        let room = (text.len() - kept) as u64;
        let args = [fd as u64, text[kept..].as_mut_ptr() as u64, room];
        // SAFETY: the kernel writes at most `room` bytes.
        let read = unsafe { syscall(k::__NR_read, args) }? as usize;
        if read == 0 {
            return Ok(false);
        }
        let (mut from, end) = (0, kept + read);
        while let Some(length) = text[from..end].iter().position(|byte| *byte == b'\n') {
            if !core::mem::take(&mut is_rest) && take(&text[from..from + length]) {
                return Ok(true);
            }
            from += length + 1;
        }
        if from == 0 && end == text.len() {
            let is_last = !is_rest && take(&text);
            debug_assert!(!is_last);
            (from, is_rest) = (end, true);
        }
        text.copy_within(from..end, 0);
        kept = end - from;
    }
}
