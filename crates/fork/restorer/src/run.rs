//! The executor of plans.

use farfork_plan::protocol::SLOT_IMAGE;
use farfork_plan::{Op, SLOT_NONE, nr};
use linux_raw_sys::{general as k, prctl};

use crate::aio;
use crate::call::{Errno, SysResult, syscall};
use crate::failure::Failure;
use crate::family;
use crate::ipc;
use crate::place;
use crate::ring;
use crate::settle::{VDSO, VDSO_AT};
use crate::shared::SHARED;
use crate::slots::Slots;
use crate::sources;
use crate::stages;
use crate::trial;

impl Slots {
    /// Runs `ops` in order up to the first that fails.
    ///
    /// # Safety
    /// The ops must come from a sealed image whose parent had this address space.
    pub unsafe fn run(&mut self, ops: &[Op]) -> Result<(), Failure> {
        // SAFETY: passed on to the caller.
        unsafe { self.run_while(ops, |_, _| true) }.map(|_| ())
    }

    /// Runs `ops` in order up to the first that fails, or that `may` not run yet. Returns the rest.
    ///
    /// # Safety
    /// As [`run`](Slots::run).
    pub unsafe fn run_while<'o>(
        &mut self,
        ops: &'o [Op],
        may: impl Fn(&Slots, &Op) -> bool,
    ) -> Result<&'o [Op], Failure> {
        let mut rest = ops.iter();
        loop {
            let left = rest.as_slice();
            let Some(op) = rest.next().filter(|op| may(self, op)) else { return Ok(left) };
            // SAFETY: passed on to the caller.
            match unsafe { self.step(op) } {
                Ok(NOT_SUPPLIED) if op.nr == nr::TAKE_SUPPLIED => {}
                Ok(fd) if op.nr == nr::TAKE_SUPPLIED => {
                    self.set(op.store, fd as i32);
                    rest.by_ref().take(op.args[1] as usize).for_each(drop);
                }
                Ok(value) if op.store != SLOT_NONE => self.set(op.store, value as i32),
                Ok(_) => {}
                Err(_) if op.may_fail == 1 => {}
                Err(errno) => {
                    let failure = Failure::of_op(op, errno);
                    if op.may_fail == 0 {
                        return Err(failure);
                    }
                    // SAFETY: set before the first op is run.
                    failure.warn(unsafe { SHARED.get() }.status_fd);
                    if op.nr == nr::REPAIR {
                        rest.by_ref().take(op.args[1] as usize).for_each(drop);
                    }
                }
            }
        }
    }

    /// Whether `op` takes a descriptor that the caller has supplied.
    pub fn is_supplied(&self, op: &Op) -> bool {
        let [fd, ..] = self.arguments(op);
        // SAFETY: asks for a descriptor's flags.
        op.nr == nr::TAKE_SUPPLIED && unsafe { supplied(fd) }.is_ok_and(|fd| fd != NOT_SUPPLIED)
    }

    unsafe fn step(&mut self, op: &Op) -> SysResult {
        let args = self.arguments(op);
        // SAFETY: set before the first op is run.
        if unsafe { SHARED.get() }.is_trial
            && let Some(withheld) = trial::withheld(op)
        {
            // SAFETY: passed on to the caller of `run`.
            return unsafe { trial::stand_in(withheld, &mut self.rights, op, args) };
        }
        // SAFETY: passed on to the caller of `run`.
        unsafe {
            match op.nr {
                nr::MOVE_VDSO => {
                    move_vdso(args[0], args[1])?;
                    *VDSO_AT.get_mut() = args[0];
                    Ok(0)
                }
                nr::MOVE_FD => move_fd(args[0], args[1], args[2]),
                nr::PIPE => self.pair(k::__NR_pipe2, |out| [out, args[0], 0, 0], args[1]),
                nr::SOCKETPAIR => {
                    let end = args[2];
                    self.pair(k::__NR_socketpair, |out| [args[0], args[1], 0, out], end)
                }
                nr::TIMER_CREATE => timer_create(args[0], args[1], args[2]),
                nr::SET_MM_MAP => set_mm_map(args[0], args[1]),
                nr::WRITE_ALL => transfer_all(k::__NR_pwrite64, args),
                nr::READ_ALL if names_image(op, 0) => {
                    let read = |args| transfer_all(k::__NR_pread64, args);
                    sources::read(self, args, read)
                }
                nr::READ_ALL => transfer_all(k::__NR_pread64, args),
                k::__NR_mmap if names_image(op, 4) => sources::map(self, args),
                nr::TAKE_SUPPLIED => supplied(args[0]),
                nr::FORK => family::fork(args[0]),
                nr::FOLLOW_PARENT => family::follow_parent(args[0]),
                nr::MEET => {
                    stages::meet(args[0], args[1]);
                    Ok(0)
                }
                nr::END => family::end(args[0]),
                nr::SOCKET_FILE => place::socket_file(args),
                nr::ASSUME => self.rights.assume(args[0]),
                nr::RESUME => self.rights.resume(),
                nr::OPEN => place::open(&mut self.rights, args),
                nr::REOPEN => place::reopen(args),
                nr::UNCHANGED => place::unchanged(args),
                nr::BIND => place::bind(&mut self.rights, args),
                nr::WATCH => place::watch(&mut self.rights, args),
                nr::MARK => place::mark(&mut self.rights, args),
                nr::TAKE_RING => ring::take(args),
                nr::MAP_RING => ring::map(args),
                nr::MAKE_AIO => aio::make(args),
                nr::MAKE_IPC => ipc::make(args),
                nr::SEND_ALL => send_all(args),
                nr::REPAIR => repair(args[0]),
                // In a user namespace without root the kernel refuses every change of groups.
                k::__NR_setgroups if SHARED.get().keeps_groups => Ok(0),
                k::__NR_fcntl if args[1] == k::F_ADD_SEALS.into() => seal(args),
                number => syscall(number, args),
            }
        }
    }

    fn arguments(&self, op: &Op) -> [u64; 6] {
        let mut args = op.args;
        for (index, arg) in args.iter_mut().enumerate() {
            if op.slots & (1 << index) != 0 {
                *arg = self.get(*arg) as i64 as u64;
            }
        }
        args
    }

    /// Makes two descriptors, kept in slot `first` and the one after it.
    unsafe fn pair(
        &mut self,
        number: u32,
        args: impl Fn(u64) -> [u64; 4],
        first: u64,
    ) -> SysResult {
        let mut ends = [0i32; 2];
        // SAFETY: the kernel writes two descriptor numbers to `ends`.
        unsafe { syscall(number, args(ends.as_mut_ptr() as u64)) }?;
        self.set(first as u8, ends[0]);
        self.set(first as u8 + 1, ends[1]);
        Ok(0)
    }
}

/// Whether the argument with this number is the image, wherever that lies.
fn names_image(op: &Op, index: usize) -> bool {
    op.slots & (1 << index) != 0 && op.args[index] == u64::from(SLOT_IMAGE)
}

/// Not a descriptor: the caller supplied none.
const NOT_SUPPLIED: u64 = u64::MAX;

/// The descriptor `fd`, unless it stands for one that the caller has left out.
unsafe fn supplied(fd: u64) -> SysResult {
    // SAFETY: asks for a descriptor's flags.
    let flags = unsafe { syscall(k::__NR_fcntl, [fd, u64::from(k::F_GETFL)]) }?;
    Ok(if flags & u64::from(k::O_PATH) != 0 { NOT_SUPPLIED } else { fd })
}

/// Needs CAP_NET_ADMIN over the network namespace.
unsafe fn repair(socket: u64) -> SysResult {
    let on = 1u32;
    let args = [socket, IPPROTO_TCP, TCP_REPAIR, &raw const on as u64, 4];
    // SAFETY: the kernel reads four bytes.
    unsafe { syscall(k::__NR_setsockopt, args) }
}

const IPPROTO_TCP: u64 = 6;
const TCP_REPAIR: u64 = 19;

unsafe fn move_fd(fd: u64, target: u64, cloexec: u64) -> SysResult {
    // SAFETY: descriptors are plain numbers; the plan gives each number once.
    unsafe {
        if fd == target {
            let flag = u64::from(cloexec != 0); // FD_CLOEXEC
            return syscall(k::__NR_fcntl, [fd, u64::from(k::F_SETFD), flag]);
        }
        syscall(k::__NR_dup3, [fd, target, cloexec])?;
        syscall(k::__NR_close, [fd])
    }
}

/// Moves the kernel's user-space pages to where the parent had them. They are several adjacent
/// mappings, moved one by one, since kernels before 6.17 refuse to move more in one call.
unsafe fn move_vdso(to: u64, bytes: u64) -> SysResult {
    // SAFETY: written once by `settle`, before the first fork.
    let vdso = unsafe { VDSO.get() };
    if vdso.bytes() != bytes {
        return Err(Errno(linux_raw_sys::errno::ENOSYS as i32));
    }
    let from = vdso.start();
    if from == to {
        return Ok(to);
    }
    if from.abs_diff(to) < bytes {
        // Source and target overlap, which mremap refuses: go by way of the window.
        let aside = farfork_plan::window::END - bytes;
        // SAFETY: nothing of the restorer lies there, and none of its code uses the vdso.
        unsafe { vdso.move_parts(from, aside)? };
        // SAFETY: as above.
        return unsafe { vdso.move_parts(aside, to) };
    }
    // SAFETY: as above; the target belongs to the parent's own vdso.
    unsafe { vdso.move_parts(from, to) }
}

/// Makes POSIX timer number `id`, whatever numbers were used before (Linux 6.15).
unsafe fn timer_create(id: u64, clock: u64, event: u64) -> SysResult {
    let mut wanted = id as i32;
    let option = u64::from(PR_TIMER_CREATE_RESTORE_IDS);
    // SAFETY: the kernel reads the sigevent in the plan and the id here.
    unsafe {
        syscall(k::__NR_prctl, [option, 1])?;
        let made = syscall(k::__NR_timer_create, [clock, event, &raw mut wanted as u64]);
        syscall(k::__NR_prctl, [option, 0])?;
        made
    }
}

/// `pread64` or `pwrite64` until all is done. A full file system, a memory limit or a signal may end a
/// call in the middle, and the kernel ends each after 2 GiB. The next call goes on, or returns the error.
///
/// # Safety
/// Nothing else may use the memory meanwhile.
pub unsafe fn transfer_all(number: u32, [fd, at, bytes, offset, ..]: [u64; 6]) -> SysResult {
    let mut done = 0;
    while done < bytes {
        let args = [fd, at + done, bytes - done, offset + done];
        // SAFETY: passed on to the caller.
        match unsafe { syscall(number, args) }? {
            0 => return Err(Errno(linux_raw_sys::errno::EIO as i32)),
            moved => done += moved,
        }
    }
    Ok(done)
}

/// How often sealing is tried; the kernel waits for 150 ms each time.
const SEALINGS: u32 = 32;

/// Seals a file in memory. The kernel refuses that (EBUSY) while reclaim, compaction or DAMON hold one
/// of its pages, which they do for a moment.
unsafe fn seal(args: [u64; 6]) -> SysResult {
    for _ in 1..SEALINGS {
        // SAFETY: takes no pointers.
        match unsafe { syscall(k::__NR_fcntl, args) } {
            Err(Errno(errno)) if errno == linux_raw_sys::errno::EBUSY as i32 => {}
            done => return done,
        }
    }
    // SAFETY: as above.
    unsafe { syscall(k::__NR_fcntl, args) }
}

/// Pieces that a queue has room for as a whole.
const PIECE_BYTES: u64 = 16 << 10;

unsafe fn send_all([socket, from, bytes, flags, ..]: [u64; 6]) -> SysResult {
    let mut done = 0;
    while done < bytes {
        let args = [socket, from + done, PIECE_BYTES.min(bytes - done), flags, 0, 0];
        // SAFETY: the plan maps what it wants to be sent.
        match unsafe { syscall(k::__NR_sendto, args) }? {
            0 => return Err(Errno(linux_raw_sys::errno::EIO as i32)),
            sent => done += sent,
        }
    }
    Ok(done)
}

const PR_TIMER_CREATE_RESTORE_IDS: u32 = 77;

/// `struct prctl_mm_map` is the plan's 13 words, the last with `exe_fd` in its upper half.
unsafe fn set_mm_map(words: u64, exe: u64) -> SysResult {
    // SAFETY: the plan holds 13 words there.
    let mut map: [u64; 13] = unsafe { *(words as *const [u64; 13]) };
    map[12] = map[12] & 0xffff_ffff | exe << 32;
    let (option, what) = (u64::from(prctl::PR_SET_MM), u64::from(prctl::PR_SET_MM_MAP));
    let at = map.as_ptr() as u64;
    // SAFETY: the kernel reads `map` and the auxiliary vector it points to.
    unsafe { syscall(k::__NR_prctl, [option, what, at, size_of_val(&map) as u64, 0]) }
}
