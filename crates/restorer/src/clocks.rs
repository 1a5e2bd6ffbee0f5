//! The time namespace of a clone whose clocks are not its node's.

use linux_raw_sys::general as k;

use crate::call::{self, Errno, SysResult, syscall};

const NS: i64 = 1_000_000_000;
/// Longest line: a name, two numbers of 20 digits at most, two blanks, and the end of the line.
const LINE_BYTES: usize = 64;

/// Makes a time namespace that is `ahead_ns` ahead of the boot (`CLOCK_MONOTONIC`,
/// `CLOCK_BOOTTIME`). The calling process stays where it is; what it forks is in it.
pub fn for_children(ahead_ns: [i64; 2]) -> SysResult {
    let mut text = Text { bytes: [0; 2 * LINE_BYTES], length: 0 };
    for (name, ahead) in ["monotonic", "boottime"].into_iter().zip(ahead_ns) {
        text.line(name, ahead.div_euclid(NS), ahead.rem_euclid(NS));
    }
    let path = c"/proc/self/timens_offsets".as_ptr() as u64;
    let (at, flags) = (k::AT_FDCWD as i64 as u64, u64::from(k::O_WRONLY | k::O_CLOEXEC));
    // SAFETY: changes what this process's children see of clocks; the kernel reads `text`.
    unsafe {
        syscall(k::__NR_unshare, [u64::from(k::CLONE_NEWTIME)])?;
        let fd = syscall(k::__NR_openat, [at, path, flags])?;
        let written = syscall(k::__NR_write, [fd, text.bytes.as_ptr() as u64, text.length as u64]);
        call::close_range(fd as u32, fd as u32);
        match written? {
            written if written == text.length as u64 => Ok(0),
            _ => Err(Errno(linux_raw_sys::errno::EIO as i32)),
        }
    }
}

struct Text {
    bytes: [u8; 2 * LINE_BYTES],
    length: usize,
}

impl Text {
    fn line(&mut self, name: &str, seconds: i64, nanos: i64) {
        name.bytes().for_each(|byte| self.byte(byte));
        for number in [seconds, nanos] {
            self.byte(b' ');
            self.number(number);
        }
        self.byte(b'\n');
    }

    fn number(&mut self, number: i64) {
        if number < 0 {
            self.byte(b'-');
        }
        let mut digits = [0u8; 20];
        let (mut rest, mut first) = (number.unsigned_abs(), digits.len());
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        digits[first..].iter().for_each(|digit| self.byte(*digit));
    }

    fn byte(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
            self.length += 1;
        }
    }
}
