//! The time namespace of a clone whose clocks are not its node's.

use linux_raw_sys::general as k;

use crate::call::{self, Errno, SysResult, syscall};
use crate::text::Text;

const NS: i64 = 1_000_000_000;
/// Room for two lines of a name, two numbers of 20 digits at most, two blanks, and the line's end.
const BYTES: usize = 128;

/// Makes a time namespace that is `ahead_ns` ahead of the boot (`CLOCK_MONOTONIC`,
/// `CLOCK_BOOTTIME`). The calling process stays where it is; what it forks is in it.
pub fn for_children(ahead_ns: [i64; 2]) -> SysResult {
    let [monotonic, boottime] = ahead_ns;
    let text = Text::<BYTES>::new(b"");
    let text = line(line(text, b"monotonic ", monotonic), b"boottime ", boottime);
    let path = c"/proc/self/timens_offsets".as_ptr() as u64;
    let (at, flags) = (k::AT_FDCWD as i64 as u64, u64::from(k::O_WRONLY | k::O_CLOEXEC));
    // SAFETY: changes what this process's children see of clocks; the kernel reads `text`.
    unsafe {
        syscall(k::__NR_unshare, [u64::from(k::CLONE_NEWTIME)])?;
        let fd = syscall(k::__NR_openat, [at, path, flags])?;
        let written = syscall(k::__NR_write, [fd, text.address(), text.bytes().len() as u64]);
        call::close_range(fd as u32, fd as u32);
        match written? {
            written if written == text.bytes().len() as u64 => Ok(0),
            _ => Err(Errno(linux_raw_sys::errno::EIO as i32)),
        }
    }
}

fn line(text: Text<BYTES>, name: &[u8], ahead_ns: i64) -> Text<BYTES> {
    let (seconds, nanos) = (ahead_ns.div_euclid(NS), ahead_ns.rem_euclid(NS));
    text.then(name).number(seconds).then(b" ").number(nanos).then(b"\n")
}
