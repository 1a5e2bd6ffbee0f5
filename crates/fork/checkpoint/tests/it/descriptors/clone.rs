//! Runs compiled ops for real, in a process of its own, as the restorer would.
#![allow(unsafe_code)] // reason: a forked child may only make raw calls

use std::io::Write;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use farfork_image::compile::arena::Arena;
use farfork_image::compile::descriptors::ops;
use farfork_image::compile::fd_layout::FdLayout;
use farfork_image::compile::{Subject, externals};
use farfork_image::model::Model;
use farfork_plan::protocol::{SLOT_EXTERNAL, SLOTS};
use farfork_plan::{Op, PlanHeader, SLOT_NONE, nr, window};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Number above all that this program has open.
const ASIDE: libc::c_int = 700;

/// A stopped process with the descriptors of a model, killed when dropped.
pub struct Clone(Pid);

impl Clone {
    /// Makes the descriptors of `model`; `supply` gives one for each external number.
    pub fn make(model: &Model, supply: impl Fn() -> OwnedFd) -> Clone {
        let mut arena = Arena::new();
        let fds = FdLayout::compute(model);
        let halves = ops(Subject::root(model, &fds), &mut arena);
        let compiled = [halves.early, halves.late].concat();
        let spare = fds.spare;
        let plan = arena.finish(PlanHeader::default());
        let supplied: Vec<OwnedFd> = externals(model).iter().map(|_| supply()).collect();
        // SAFETY: the child makes system calls only, on memory that was made before the fork.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: this process has one thread and ends in `become_clone`.
            unsafe { become_clone(&compiled, &spare, &plan, &supplied) }
        }
        let made = Clone(Pid::from_raw(pid));
        let state = waitpid(made.0, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(state, WaitStatus::Stopped(..)), "an op failed: {state:?}");
        made
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.0.as_raw()
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
        let _ = waitpid(self.0, None);
    }
}

/// # Safety
/// Only for a process with one thread, which has nothing else to do.
unsafe fn become_clone(ops: &[Op], spare: &Range<u32>, plan: &[u8], supplied: &[OwnedFd]) -> ! {
    let mut slots = [-1i64; SLOTS];
    // SAFETY: plain system calls on this process's own descriptors and on a fresh mapping.
    unsafe {
        let at = libc::mmap(
            window::PLAN as *mut libc::c_void,
            plan.len(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        );
        if at as u64 != window::PLAN {
            libc::_exit(1);
        }
        std::ptr::copy_nonoverlapping(plan.as_ptr(), at.cast(), plan.len());
        for fd in supplied {
            libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, ASIDE);
        }
        libc::close_range(0, ASIDE as u32 - 1, 0);
        for index in 0..supplied.len() {
            let kept = spare.start as i32 + index as i32;
            libc::dup2(ASIDE + index as i32, kept);
            slots[usize::from(SLOT_EXTERNAL) + index] = kept.into();
        }
        libc::close_range(ASIDE as u32, u32::MAX, 0);
        for (index, op) in ops.iter().enumerate() {
            let result = step(op, &mut slots);
            if result < 0 && op.may_fail == 0 {
                libc::_exit(index as i32 % 200 + 2);
            }
            if op.store != SLOT_NONE {
                slots[usize::from(op.store)] = result;
            }
        }
        libc::close_range(spare.start, spare.end - 1, 0);
        libc::raise(libc::SIGSTOP);
        libc::_exit(0)
    }
}

unsafe fn step(op: &Op, slots: &mut [i64; SLOTS]) -> i64 {
    let mut a = op.args;
    for (index, arg) in a.iter_mut().enumerate() {
        if op.slots & (1 << index) != 0 {
            *arg = slots[*arg as usize] as u64;
        }
    }
    let mut ends = [0i32; 2];
    // SAFETY: the ops were compiled for this process; `ends` has room for two numbers.
    unsafe {
        match op.nr {
            nr::MOVE_FD if a[0] == a[1] => {
                libc::syscall(libc::SYS_fcntl, a[0], libc::F_SETFD, i32::from(a[2] != 0))
            }
            nr::MOVE_FD => {
                libc::syscall(libc::SYS_dup3, a[0], a[1], a[2]);
                libc::syscall(libc::SYS_close, a[0])
            }
            nr::PIPE => {
                let result = libc::pipe2(ends.as_mut_ptr(), a[0] as i32);
                keep(slots, a[1], ends);
                result.into()
            }
            nr::SOCKETPAIR => {
                let result = libc::socketpair(a[0] as i32, a[1] as i32, 0, ends.as_mut_ptr());
                keep(slots, a[2], ends);
                result.into()
            }
            // Rights are this process's own, and files are those that were looked at just before.
            nr::ASSUME | nr::RESUME => 0,
            nr::OPEN => libc::syscall(libc::SYS_openat, libc::AT_FDCWD, a[0], a[1], 0),
            nr::REOPEN => reopen(a[0], a[1]),
            nr::WATCH => libc::syscall(libc::SYS_inotify_add_watch, a[0], a[1], a[2]),
            nr::WRITE_ALL => libc::syscall(libc::SYS_pwrite64, a[0], a[1], a[2], a[3]),
            number => libc::syscall(number.into(), a[0], a[1], a[2], a[3], a[4], a[5]),
        }
    }
}

/// Nothing here was opened with what the restorer needs a handle for.
unsafe fn reopen(fd: u64, flags: u64) -> i64 {
    let mut link = [0u8; 32];
    // Nothing is allocated in a forked child.
    let _ = write!(&mut link[..31], "/proc/self/fd/{fd}");
    // SAFETY: the path ends with a NUL.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, link.as_ptr(), flags, 0) }
}

fn keep(slots: &mut [i64; SLOTS], first: u64, ends: [i32; 2]) {
    slots[first as usize] = ends[0].into();
    slots[first as usize + 1] = ends[1].into();
}
