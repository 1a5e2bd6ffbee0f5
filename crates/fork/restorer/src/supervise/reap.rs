//! Reaping, and the end of the clone. All descendants of the clone end with it: their memory is right
//! only as long as the init supervises it.

use farfork_plan::protocol::{KNOWN, Status, StatusKind};
use linux_raw_sys::{general as k, prctl};

use super::Supervisor;
use super::proc::{Path, Proc};
use super::visit::TracedThread;
use crate::call::{self, SysResult, syscall};
use crate::shared::SHARED;

/// Makes this process the parent of descendants of the clone that lose theirs. The pid 1 of a
/// namespace is that anyhow.
pub fn adopt_descendants() -> SysResult {
    // SAFETY: one attribute of this process.
    unsafe { syscall(k::__NR_prctl, [u64::from(prctl::PR_SET_CHILD_SUBREAPER), 1, 0, 0, 0]) }
}

impl Supervisor {
    pub(super) fn drain_child_events(&self) {
        let mut info = [0u8; 128];
        let args = [self.tools.child_events as u64, info.as_mut_ptr() as u64, 128];
        // SAFETY: the kernel writes one record of 128 bytes.
        let _ = unsafe { syscall(k::__NR_read, args) };
    }

    /// Reaps processes that have ended. This process ends with the clone.
    pub(super) fn reap(&self) {
        loop {
            let mut status = 0i32;
            match wait(&mut status, k::WNOHANG) {
                Ok(0) | Err(_) => return,
                // A thread that was to stop while memory was copied, and came to it late.
                Ok(pid) if status & 0xff == STOPPED => {
                    TracedThread::known(pid as u32).let_go(status >> 8)
                }
                Ok(pid) if pid as i32 == self.process => self.finish(status),
                Ok(_) => {}
            }
        }
    }

    /// Reads the one message of the agent: the caller knows of the clone. If the agent has exited
    /// without it, no process will ever know of the clone, and the clone is killed.
    pub(super) fn end_unless_known(&self, status_fd: i32) {
        let mut byte = 0u8;
        let args = [status_fd as u64, &raw mut byte as u64, 1];
        // SAFETY: the kernel writes one byte at most.
        let got = unsafe { syscall(k::__NR_read, args) };
        if got != Ok(1) || byte != KNOWN {
            // SAFETY: sends a signal to a child that has not been reaped.
            let _ = unsafe { syscall(k::__NR_kill, [self.process as u64, u64::from(k::SIGKILL)]) };
        }
    }

    fn finish(&self, wait_status: i32) -> ! {
        if !self.has_namespace {
            end_descendants(self.tools.proc);
        }
        let status = Status {
            kind: StatusKind::Exited as u32,
            value: i64::from(wait_status),
            ..Status::default()
        };
        let _ = call::send(status_fd(), &status);
        call::exit(0)
    }
}

/// The socket to the agent.
pub fn status_fd() -> i32 {
    // SAFETY: set before the clone was started and not changed since.
    unsafe { SHARED.get() }.status_fd
}

/// The low byte of a wait status that reports a stop.
const STOPPED: i32 = 0x7f;

fn wait(status: &mut i32, options: u32) -> SysResult {
    let args = [u64::MAX, status as *mut i32 as u64, u64::from(options), 0];
    // SAFETY: the kernel writes the wait status.
    unsafe { syscall(k::__NR_wait4, args) }
}

/// Kills and reaps children until there are none; theirs become this process's in turn.
fn end_descendants(proc: Proc) {
    let mut text = [0u8; 4096];
    loop {
        let path = Path::new(b"thread-self/children");
        let children = proc.read(&path, &mut text).unwrap_or_default();
        // A list that was cut short ends in a number that may be another's.
        let whole = children.iter().rposition(|byte| *byte == b' ').unwrap_or(0);
        let numbers = children[..whole].split(|byte| *byte == b' ');
        for digits in numbers.filter(|digits| !digits.is_empty()) {
            let pid = digits.iter().fold(0u64, |n, d| n * 10 + u64::from(d - b'0'));
            // SAFETY: sends a signal to a child that has not been reaped.
            let _ = unsafe { syscall(k::__NR_kill, [pid, u64::from(k::SIGKILL)]) };
        }
        let mut status = 0;
        if wait(&mut status, 0).is_err() {
            return;
        }
    }
}
