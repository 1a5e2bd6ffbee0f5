//! A clone that tries its image: see [`farfork_plan::trial`].

use farfork_plan::Op;
use farfork_plan::trial::{self, Withheld};
use linux_raw_sys::general as k;

use crate::call::{self, SysResult, syscall};
use crate::place;
use crate::rights::FileRights;
use crate::shared::SHARED;

/// Whether, and why, `op` is not executed as it stands.
pub fn withheld(op: &Op) -> Option<Withheld> {
    // SAFETY: addresses in ops are those of the mapped plan, and what they say is as long as that.
    let bytes = |at, bytes| Some(unsafe { core::slice::from_raw_parts(at as *const u8, bytes) });
    let withheld = trial::withheld(op, bytes)?;
    // Of several processes, those whose parents wait for it stop.
    // SAFETY: set before the first op is run.
    let stops = withheld == Withheld::Stop && unsafe { SHARED.get() }.is_family;
    (!stops).then_some(withheld)
}

/// Executes a stand-in for an op that is withheld, so that the ops after it have its result.
///
/// # Safety
/// `op` is of the plan, and `args` are its arguments.
pub unsafe fn stand_in(
    withheld: Withheld,
    rights: &mut FileRights,
    op: &Op,
    args: [u64; 6],
) -> SysResult {
    match withheld {
        // SAFETY: passed on to the caller.
        Withheld::Path => unsafe { bind_anywhere(args) },
        // SAFETY: as above.
        Withheld::Opening => unsafe { open_nothing(rights, args) },
        // What would have got what the op gives, if it does, is not executed either.
        _ => Ok(if op.store == farfork_plan::SLOT_NONE { 0 } else { u64::MAX }),
    }
}

/// Bytes of an address that is only a family: the kernel chooses an unused name.
const ANY_BYTES: u64 = 2;

unsafe fn bind_anywhere([socket, at, ..]: [u64; 6]) -> SysResult {
    // SAFETY: the kernel reads the family of the address in the plan.
    unsafe { syscall(k::__NR_bind, [socket, at, ANY_BYTES]) }
}

/// Looks at what is to be opened, and opens the device that holds nothing in its place.
unsafe fn open_nothing(rights: &mut FileRights, args: [u64; 6]) -> SysResult {
    let [path, flags, wanted, ..] = args;
    let place = u64::from(k::O_PATH | k::O_NOFOLLOW | k::O_CLOEXEC);
    // SAFETY: passed on to the caller.
    let found = unsafe { place::open(rights, [path, place, wanted, 0, 0, 0]) }?;
    call::close_range(found as u32, found as u32);
    let access = flags & u64::from(k::O_ACCMODE | k::O_NONBLOCK | k::O_CLOEXEC);
    let at = k::AT_FDCWD as i64 as u64;
    // SAFETY: the path ends with a NUL.
    unsafe { syscall(k::__NR_openat, [at, c"/dev/null".as_ptr() as u64, access, 0]) }
}

/// Ends a clone that tries its image, where others leave for their parent's code.
pub fn end_if_it_is_one() {
    // SAFETY: set before any thread was started.
    if unsafe { SHARED.get() }.is_trial {
        // SAFETY: ends this process. Its filters may forbid that, and all signals are blocked: the
        // kernel ends it then, for an instruction that does not exist.
        unsafe {
            let _ = syscall(k::__NR_exit_group, [0]);
            core::arch::asm!("ud2", options(noreturn))
        }
    }
}
