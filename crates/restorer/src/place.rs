//! What a clone finds or makes by a path. Whoever may write to a directory on the way may have put
//! something else there since the checkpoint, and this is done with the agent's rights.

use core::mem::MaybeUninit;

use linux_raw_sys::general as k;

use crate::call::{self, Errno, SysResult, syscall};

/// What stands at a path is not what the parent had there.
const ESTALE: Errno = Errno(linux_raw_sys::errno::ESTALE as i32);
const EPERM: Errno = Errno(linux_raw_sys::errno::EPERM as i32);
/// Gives a handle on the file that a Unix socket is bound to (Linux 4.15).
const SIOCUNIXFILE: u64 = 0x89e0;
const NR_FCHMODAT2: u32 = 452;
const PATH_BYTES: usize = 4096;
const AT_EMPTY_PATH: u64 = k::AT_EMPTY_PATH as u64;

/// Gives the file of a Unix socket its mode and owner, by a handle on that very file: its name may
/// lead to another by now.
///
/// # Safety
/// The path in `args` is NUL-terminated text of the plan.
pub unsafe fn socket_file([socket, mode, user, group, place, _]: [u64; 6]) -> SysResult {
    // SAFETY: makes a descriptor.
    let file = match unsafe { syscall(k::__NR_ioctl, [socket, SIOCUNIXFILE, 0]) } {
        // Without CAP_NET_ADMIN there is no such handle, but no other owner to give either.
        Err(EPERM) if is_already(place, mode, user, group) => return Ok(0),
        other => other?,
    };
    let empty = c"".as_ptr() as u64;
    // SAFETY: calls on a descriptor, with texts that are NUL-terminated.
    let done = unsafe {
        is_at(file, place).and_then(|()| {
            syscall(k::__NR_fchownat, [file, empty, user, group, AT_EMPTY_PATH])?;
            syscall(NR_FCHMODAT2, [file, empty, mode, AT_EMPTY_PATH])
        })
    };
    call::close_range(file as u32, file as u32);
    done
}

/// Whether a socket with this mode and owner is at the path `place`.
fn is_already(place: u64, mode: u64, user: u64, group: u64) -> bool {
    let mut found = MaybeUninit::<k::stat>::zeroed();
    let no_link = u64::from(k::AT_SYMLINK_NOFOLLOW);
    let args = [k::AT_FDCWD as i64 as u64, place, found.as_mut_ptr() as u64, no_link];
    // SAFETY: the kernel writes a `stat`; all zeros are one, too.
    let found = unsafe {
        let _ = syscall(k::__NR_newfstatat, args);
        found.assume_init()
    };
    let owner = (found.st_mode, u64::from(found.st_uid), u64::from(found.st_gid));
    owner == (k::S_IFSOCK | mode as u32, user, group)
}

/// Fails unless the path of what is open as `file` is `place`.
unsafe fn is_at(file: u64, place: u64) -> Result<(), Errno> {
    let mut link = [0u8; LINK_BYTES];
    write_link(file, &mut link);
    let mut found = [0u8; PATH_BYTES];
    let at = k::AT_FDCWD as i64 as u64;
    let args = [at, link.as_ptr() as u64, found.as_mut_ptr() as u64, PATH_BYTES as u64];
    // SAFETY: the kernel writes to `found`, which has the room.
    let length = unsafe { syscall(k::__NR_readlinkat, args) }? as usize;
    let found = found.get(..length).ok_or(ESTALE)?;
    // SAFETY: no byte of a path is NUL, so that this ends with the text of the plan.
    let is_same = |(at, byte): (usize, &u8)| unsafe { *(place as *const u8).add(at) == *byte };
    // SAFETY: as above: all bytes before this one are the text's.
    let is_at =
        found.iter().enumerate().all(is_same) && unsafe { *(place as *const u8).add(length) } == 0;
    if is_at { Ok(()) } else { Err(ESTALE) }
}

const LINK: &[u8] = b"/proc/self/fd/";
const LINK_BYTES: usize = LINK.len() + 11;

/// The name of descriptor `fd` in `/proc`, NUL-terminated.
fn write_link(fd: u64, link: &mut [u8; LINK_BYTES]) {
    let mut digits = [0u8; 10];
    let mut rest = fd as u32;
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let digits = &digits[first..];
    link.fill(0);
    link[..LINK.len()].copy_from_slice(LINK);
    link[LINK.len()..LINK.len() + digits.len()].copy_from_slice(digits);
}
