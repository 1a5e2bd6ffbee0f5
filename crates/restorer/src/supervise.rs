//! The init's life after the clone has started: it reaps, tells the agent how the clone ended,
//! and answers the few system calls that would show a difference between memory mapped from an
//! image and the anonymous memory that the parent had.
//!
//! Discarding private pages of a file brings the file's bytes back; for anonymous memory it must
//! bring zeros. A seccomp filter hands those calls to this process, which shares the clone's
//! address space and turns the range into anonymous memory by `mmap`. Only ranges that are still
//! mapped from the pool are touched: the kernel is asked what lies where at every call, so
//! whatever the clone has mapped itself is left to the kernel. Calls from the window (this
//! program's own) pass the filter.

mod discard;
mod filter;
mod notify;
mod remap;
mod target;
mod visit;

use farfork_plan::protocol::{Request, Status, StatusKind};
use farfork_plan::{FileRange, PlanHeader, Window};
use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};
use crate::cell::ProcessCell;
use crate::init::SHARED;
use crate::maps::{AddressSpace, Mapping};
use crate::run::elements;

/// The init's view of its clone.
pub struct Supervisor {
    listener: i32,
    child_events: i32,
    maps: AddressSpace,
    context: Context,
    process: i32,
}

/// What is known of the image: how a mapping of it is told from any other, and what lay where in
/// the parent.
#[derive(Clone, Copy)]
struct Context {
    device: u64,
    inode: u64,
    windows: &'static [Window],
    files: &'static [FileRange],
}

/// The init's context, where forked processes find their copy.
static CONTEXT: ProcessCell<Context> =
    ProcessCell::new(Context { device: 0, inode: 0, windows: &[], files: &[] });

#[repr(C)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

const POLLIN: i16 = 1;

impl Supervisor {
    /// Installs the filter on this process, which the clone inherits.
    pub fn install(
        plan: &'static PlanHeader,
        request: &Request,
        spare_fd: u32,
    ) -> Result<Supervisor, Errno> {
        let mask = 1u64 << (k::SIGCHLD - 1);
        let args = [u64::MAX, &raw const mask as u64, 8, u64::from(k::O_CLOEXEC)];
        // SAFETY: makes a signalfd; the kernel reads the mask.
        let events = unsafe { syscall(k::__NR_signalfd4, args) }? as i32;
        let child_events = call::duplicate_above(events, spare_fd)?;
        call::close_range(events as u32, events as u32);
        let maps = AddressSpace::open_above(b"/proc/self/maps\0", spare_fd)?;
        let listener = filter::install(spare_fd)?;
        // SAFETY: the tables are the plan's; no other thread is there yet.
        let context = unsafe {
            *CONTEXT.get_mut() = Context {
                device: request.pool_device,
                inode: request.pool_inode,
                windows: elements(plan.windows),
                files: elements(plan.files),
            };
            *CONTEXT.get()
        };
        Ok(Supervisor { listener, child_events, maps, context, process: 0 })
    }

    /// The same, for the clone with this pid.
    pub fn with_process(self, process: i32) -> Supervisor {
        Supervisor { process, ..self }
    }

    /// Serves until the clone has ended.
    pub fn run(&self) -> ! {
        loop {
            let mut polls = [
                PollFd { fd: self.child_events, events: POLLIN, revents: 0 },
                PollFd { fd: self.listener, events: POLLIN, revents: 0 },
            ];
            // SAFETY: the kernel writes the two entries.
            let _ = unsafe { syscall(k::__NR_poll, [polls.as_mut_ptr() as u64, 2, u64::MAX]) };
            if polls[1].revents & POLLIN != 0 {
                self.answer();
            }
            if polls[0].revents & POLLIN != 0 {
                self.drain_child_events();
                self.reap();
            }
        }
    }

    fn drain_child_events(&self) {
        let mut info = [0u8; 128];
        let args = [self.child_events as u64, info.as_mut_ptr() as u64, 128];
        // SAFETY: the kernel writes one record of 128 bytes.
        let _ = unsafe { syscall(k::__NR_read, args) };
    }

    /// Reaps whoever has ended; the clone's own end is this process's end too.
    fn reap(&self) {
        loop {
            let mut status = 0i32;
            let args = [u64::MAX, &raw mut status as u64, u64::from(k::WNOHANG), 0];
            // SAFETY: the kernel writes the wait status.
            match unsafe { syscall(k::__NR_wait4, args) } {
                Ok(0) | Err(_) => return,
                Ok(pid) if pid as i32 == self.process => self.finish(status),
                Ok(_) => {}
            }
        }
    }

    fn finish(&self, wait_status: i32) -> ! {
        let status = Status {
            kind: StatusKind::Exited as u32,
            value: i64::from(wait_status),
            ..Status::default()
        };
        // SAFETY: set before the clone was started and not changed since.
        let _ = call::send(unsafe { SHARED.get() }.status_fd, &status);
        call::exit(0)
    }

    /// Whether `mapping` still shows bytes of the image.
    fn is_image(&self, mapping: &Mapping) -> bool {
        mapping.inode == self.context.inode && mapping.device == self.context.device
    }
}
