//! Files that a clone opens or makes by a path. A user who may write to a directory on the way may have
//! put another file there since the checkpoint, and the restorer has the agent's rights. So each file is
//! compared with the one that the parent had.

use core::mem::MaybeUninit;

use farfork_plan::place::Identity;
use linux_raw_sys::general as k;

use crate::call::{self, Errno, SysResult, syscall};
use crate::rights::FileRights;
use crate::shared::SHARED;
use crate::text::Text;

/// The file at a path is not the one that the parent had there.
const ESTALE: Errno = Errno(linux_raw_sys::errno::ESTALE as i32);
const EACCES: Errno = Errno(linux_raw_sys::errno::EACCES as i32);
const EPERM: Errno = Errno(linux_raw_sys::errno::EPERM as i32);
/// Gives a handle on the file that a Unix socket is bound to (Linux 4.15).
const SIOCUNIXFILE: u64 = 0x89e0;
const NR_FCHMODAT2: u32 = 452;
const PATH_BYTES: usize = 4096;
const AT_EMPTY_PATH: u64 = k::AT_EMPTY_PATH as u64;

/// Opens what [`farfork_plan::nr::OPEN`] says.
///
/// # Safety
/// Path and identity in `args` are addresses in the plan.
pub unsafe fn open(rights: &mut FileRights, [path, flags, wanted, ..]: [u64; 6]) -> SysResult {
    // SAFETY: opens a file; passed on to the caller.
    unsafe {
        match open_by_path(path, flags) {
            Err(EACCES | EPERM) if rights.is_assumed() && wanted != 0 => {
                rights.as_agent(|| open_the_same(path, flags, wanted))
            }
            opened => kept(opened?, wanted, false),
        }
    }
}

/// With all rights nothing is opened before it is known to be the same file: to open a device or a
/// named pipe may do something.
unsafe fn open_the_same(path: u64, flags: u64, wanted: u64) -> SysResult {
    let handle = flags & HANDLE_FLAGS | u64::from(k::O_PATH);
    // SAFETY: passed on to the caller.
    unsafe {
        let handle = kept(open_by_path(path, handle)?, wanted, true)?;
        if flags & u64::from(k::O_PATH) != 0 {
            return Ok(handle);
        }
        let opened = reopen([handle, flags, 0, 0, 0, 0]);
        call::close_range(handle as u32, handle as u32);
        opened
    }
}

/// Opens what is open already as [`farfork_plan::nr::REOPEN`] says.
///
/// # Safety
/// Opens what may do something when it is opened: the caller knows what it is.
pub unsafe fn reopen([fd, flags, ..]: [u64; 6]) -> SysResult {
    let no_follow = u64::from(k::O_NOFOLLOW);
    // SAFETY: opens a file; passed on to the caller.
    unsafe {
        // The flag stays with an open file. Only `open_by_handle_at` opens a file with it, which needs
        // CAP_DAC_READ_SEARCH.
        if flags & no_follow != 0
            && let Ok(opened) = open_by_handle(fd, flags)
        {
            return Ok(opened);
        }
        let (at, link) = (k::AT_FDCWD as i64 as u64, link(fd));
        syscall(k::__NR_openat, [at, link.address(), flags & !no_follow, 0])
    }
}

/// `struct file_handle`, with the room that the kernel takes at most.
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; MAX_HANDLE_BYTES],
}

const MAX_HANDLE_BYTES: usize = 128;

unsafe fn open_by_handle(fd: u64, flags: u64) -> SysResult {
    let bytes = MAX_HANDLE_BYTES as u32;
    let mut handle = FileHandle { bytes, kind: 0, handle: [0; MAX_HANDLE_BYTES] };
    let (at, mut mount) = (&raw mut handle as u64, 0i32);
    let empty = c"".as_ptr() as u64;
    // SAFETY: the kernel writes a handle of at most `bytes` bytes and the number of a mount, and reads
    // the handle again; to open it is passed on to the caller.
    unsafe {
        let args = [fd, empty, at, &raw mut mount as u64, AT_EMPTY_PATH];
        syscall(k::__NR_name_to_handle_at, args)?;
        syscall(k::__NR_open_by_handle_at, [fd, at, flags])
    }
}

/// Flags that go together with `O_PATH`.
const HANDLE_FLAGS: u64 = (k::O_DIRECTORY | k::O_NOFOLLOW | k::O_CLOEXEC) as u64;

unsafe fn open_by_path(path: u64, flags: u64) -> SysResult {
    let how = [flags, 0, u64::from(k::RESOLVE_NO_SYMLINKS)];
    let at = k::AT_FDCWD as i64 as u64;
    // SAFETY: the kernel reads a path of the plan and a `struct open_how`.
    unsafe { syscall(k::__NR_openat2, [at, path, how.as_ptr() as u64, size_of_val(&how) as u64]) }
}

/// The descriptor, if it is what is `wanted`; closes it if not.
unsafe fn kept(fd: u64, wanted: u64, is_the_same: bool) -> SysResult {
    // SAFETY: passed on to the caller.
    if wanted == 0 || unsafe { is(fd, &*(wanted as *const Identity), is_the_same) } {
        return Ok(fd);
    }
    call::close_range(fd as u32, fd as u32);
    Err(ESTALE)
}

/// Compares an open file as [`farfork_plan::nr::UNCHANGED`] says.
///
/// # Safety
/// The identity in `args` is in the plan.
pub unsafe fn unchanged([fd, wanted, ..]: [u64; 6]) -> SysResult {
    // SAFETY: passed on to the caller.
    if is(fd, unsafe { &*(wanted as *const Identity) }, false) { Ok(0) } else { Err(ESTALE) }
}

/// Whether what is open as `fd` is what is `wanted`: something like it, or `is_the_same`.
fn is(fd: u64, wanted: &Identity, is_the_same: bool) -> bool {
    let mut found = MaybeUninit::<k::statx>::zeroed();
    let mask = u64::from(k::STATX_BASIC_STATS | k::STATX_BTIME);
    let args = [fd, c"".as_ptr() as u64, AT_EMPTY_PATH, mask, found.as_mut_ptr() as u64];
    // SAFETY: the kernel writes a `statx`; all zeros are one, too.
    let found = unsafe {
        if syscall(k::__NR_statx, args).is_err() {
            return false;
        }
        found.assume_init()
    };
    let (mode, kind) = (u32::from(found.stx_mode), k::S_IFMT);
    let device = u64::from(found.stx_rdev_major) << 32 | u64::from(found.stx_rdev_minor);
    let nanoseconds =
        |at: &k::statx_timestamp| at.tv_sec.wrapping_mul(1_000_000_000) + i64::from(at.tv_nsec);
    let born_ns = nanoseconds(&found.stx_btime) as u64;
    let is_alike = mode & kind == wanted.mode & kind && device == wanted.device;
    let written = (found.stx_size, nanoseconds(&found.stx_mtime));
    let is_unwritten = wanted.is_bound == 0 || written == (wanted.size, wanted.written_ns);
    let owner = (mode, found.stx_uid, found.stx_gid);
    let has_owner = owner == (wanted.mode, wanted.user, wanted.group);
    let is_same = (found.stx_ino, born_ns) == (wanted.inode, wanted.born_ns);
    // In a user namespace with one user, files of all others show the overflow id.
    // SAFETY: set before the first op is run.
    let sees_owners = unsafe { !SHARED.get().keeps_groups };
    let is_owned = wanted.is_owned != 0 && sees_owners;
    is_alike && is_unwritten && (!is_owned || has_owner && (!is_the_same || is_same))
}

/// Binds a socket as [`farfork_plan::nr::BIND`] says. Where the parent could not make the file
/// itself the agent does, and [`socket_file`] finds out if that was elsewhere.
///
/// # Safety
/// The address in `args` is in the plan.
pub unsafe fn bind(rights: &mut FileRights, [socket, at, bytes, ..]: [u64; 6]) -> SysResult {
    // SAFETY: the kernel reads the address.
    let bind = || unsafe { syscall(k::__NR_bind, [socket, at, bytes]) };
    match bind() {
        // SAFETY: as above.
        Err(EACCES | EPERM) if rights.is_assumed() => unsafe { rights.as_agent(bind) },
        other => other,
    }
}

/// Adds a watch as [`farfork_plan::nr::WATCH`] says.
///
/// # Safety
/// Path and identity in `args` are addresses in the plan.
pub unsafe fn watch(
    rights: &mut FileRights,
    [instance, path, mask, wanted, ..]: [u64; 6],
) -> SysResult {
    // The link in /proc has to be followed, and leads to what is open and no further.
    let mask = mask & !u64::from(k::IN_DONT_FOLLOW);
    // SAFETY: the kernel reads the link's name; the rest is passed on to the caller.
    unsafe {
        at_place(rights, path, wanted, |link| {
            syscall(k::__NR_inotify_add_watch, [instance, link, mask])
        })
    }
}

/// Adds a mark as [`farfork_plan::nr::MARK`] says.
///
/// # Safety
/// Path and identity in `args` are addresses in the plan.
pub unsafe fn mark(
    rights: &mut FileRights,
    [group, path, mask, wanted, flags, _]: [u64; 6],
) -> SysResult {
    let at = k::AT_FDCWD as i64 as u64;
    // SAFETY: the kernel reads the link's name; the rest is passed on to the caller.
    unsafe {
        at_place(rights, path, wanted, |link| {
            syscall(k::__NR_fanotify_mark, [group, flags, mask, at, link])
        })
    }
}

/// Does something with what is at a path, by a link that leads to it and nowhere else: with the
/// agent's rights, too, if it is the very same that the parent had there.
///
/// # Safety
/// `path` and `wanted` are addresses in the plan.
unsafe fn at_place(
    rights: &mut FileRights,
    path: u64,
    wanted: u64,
    add: impl Fn(u64) -> SysResult,
) -> SysResult {
    let flags = u64::from(k::O_PATH | k::O_NOFOLLOW);
    // SAFETY: passed on to the caller.
    let place = unsafe { open(rights, [path, flags, wanted, 0, 0, 0]) }?;
    let link = link(place);
    // SAFETY: passed on to the caller.
    let is_the_same = || wanted != 0 && unsafe { is(place, &*(wanted as *const Identity), true) };
    let added = match add(link.address()) {
        // SAFETY: as above.
        Err(EACCES) if rights.is_assumed() && is_the_same() => unsafe {
            rights.as_agent(|| add(link.address()))
        },
        other => other,
    };
    call::close_range(place as u32, place as u32);
    added
}

/// Gives the file of a Unix socket its mode and owner, by a handle on that very file: its name may
/// lead to another by now.
///
/// # Safety
/// The path in `args` is NUL-terminated text of the plan.
pub unsafe fn socket_file([socket, mode, user, group, place, _]: [u64; 6]) -> SysResult {
    // SAFETY: makes a descriptor.
    let file = match unsafe { syscall(k::__NR_ioctl, [socket, SIOCUNIXFILE, 0]) } {
        // Without CAP_NET_ADMIN no handle can be had, and the file cannot get another owner either.
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
    let link = link(file);
    let mut found = [0u8; PATH_BYTES];
    let at = k::AT_FDCWD as i64 as u64;
    let args = [at, link.address(), found.as_mut_ptr() as u64, PATH_BYTES as u64];
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

/// The name of descriptor `fd` in `/proc`.
fn link(fd: u64) -> Text<32> {
    Text::new(b"/proc/self/fd/").number(fd as i64)
}
