//! The supervisor: what the init does after the clone has started. It reaps, reports how the clone
//! ended, and answers the few system calls for which memory mapped from an image differs from the
//! anonymous memory that the parent had.
//!
//! Discarding private pages of a file brings the file's bytes back. For anonymous memory it must
//! bring zeros. A seccomp filter hands those calls to this process, which looks at what is mapped
//! at the moment. It leaves whatever the clone has mapped itself to the kernel. A process cannot map
//! memory in another address space. So the supervisor sends the calling thread, by `ptrace`, through
//! the calls that put anonymous memory in the range's place ([`visit`]).
//!
//! The supervisor keeps its rights when the clone gives up its own. That is safe because they share
//! neither memory nor descriptors, and the supervisor trusts nothing that it reads from the clone.

mod caller;
mod changes;
mod discard;
mod files;
mod filter;
mod helper;
mod image;
mod job;
mod memory;
mod notify;
mod parts;
mod proc;
mod range;
mod reap;
mod remap;
mod smaps;
mod standstill;
mod visit;

use core::cell::{Cell, RefCell};

use farfork_plan::PlanHeader;
use farfork_plan::protocol::{PidMode, Request};
use linux_raw_sys::general as k;

use crate::call::{self, Errno, syscall};
use crate::pager;
use crate::tables::elements;
use changes::Changes;
use files::Files;
use helper::Helper;
use image::Image;
use job::{Cuts, Growths};
use proc::Proc;
use reap::status_fd;

/// What a supervisor needs whatever the plan is. It can be made before a clone is requested: the
/// kernel's compilation of the filter takes a good part of an init's time.
#[derive(Clone, Copy)]
pub struct SupervisorTools {
    /// What the filter hands over.
    listener: i32,
    child_events: i32,
    proc: Proc,
}

impl SupervisorTools {
    /// Makes them. From here on this process is under the filter, and its clone inherits it.
    pub fn new() -> Result<SupervisorTools, Errno> {
        let mask = 1u64 << (k::SIGCHLD - 1);
        let args = [u64::MAX, &raw const mask as u64, 8, u64::from(k::O_CLOEXEC)];
        // SAFETY: makes a signalfd; the kernel reads the mask.
        let child_events = unsafe { syscall(k::__NR_signalfd4, args) }? as i32;
        Ok(SupervisorTools { child_events, proc: Proc::open()?, listener: filter::install()? })
    }

    /// The same, with descriptors from `lowest` on.
    pub fn above(self, lowest: u32) -> Result<SupervisorTools, Errno> {
        Ok(SupervisorTools {
            listener: call::move_above(self.listener, lowest)?,
            child_events: call::move_above(self.child_events, lowest)?,
            proc: self.proc.above(lowest)?,
        })
    }
}

/// The init's view of its clone.
pub struct Supervisor {
    tools: SupervisorTools,
    image: Image,
    files: Files,
    changes: Changes,
    cuts: Cuts,
    growths: Growths,
    /// Whether the kernel ends the clone's descendants with the init.
    has_namespace: bool,
    /// Whether memory of the image is registered with a userfaultfd of farfork's own.
    is_served: bool,
    /// The socket in whose queue lies the userfaultfd that watches the clone's memory, if it is watched.
    watch: Cell<Option<i32>>,
    helper: RefCell<Helper>,
    process: i32,
}

#[repr(C)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

const POLLIN: i16 = 1;
/// A descriptor that `poll` leaves out.
const IGNORED: i32 = -1;

/// After this time the clone has started, and the files that it may need later are opened.
const SETTLING_MS: u64 = 20;

impl Supervisor {
    /// The supervisor of a clone that is not started yet. Its descriptors are from `spare_fd` on.
    pub fn new(
        plan: &'static PlanHeader,
        request: &Request,
        tools: Option<Result<SupervisorTools, Errno>>,
        spare_fd: u32,
    ) -> Result<Supervisor, Errno> {
        let tools = tools.unwrap_or_else(SupervisorTools::new)?.above(spare_fd)?;
        let has_namespace = request.pid_mode == PidMode::New as u32;
        if !has_namespace {
            reap::adopt_descendants()?;
        }
        // SAFETY: the table is the plan's.
        let files = Files::new(unsafe { elements(plan.files) });
        Ok(Supervisor {
            tools,
            image: Image::from_plan(plan, request),
            files,
            changes: Changes::new(),
            cuts: Cuts::new(),
            growths: Growths::new(),
            has_namespace,
            is_served: request.overlay_bytes != 0 && pager::is_wanted(),
            watch: Cell::new(None),
            helper: RefCell::new(Helper::new(None)),
            process: 0,
        })
    }

    /// The same, for the clone with this pid. Its memory is watched as long as `watch` is open. The
    /// helper begins when `leaves` becomes readable.
    pub fn with_process(self, process: i32, watch: Option<i32>, leaves: Option<i32>) -> Supervisor {
        let helper = RefCell::new(Helper::new(leaves));
        Supervisor { process, watch: Cell::new(watch), helper, ..self }
    }

    /// Stops watching and helping the clone. Memory has one watcher, and the clone's own comes first.
    fn end_watch(&self) {
        self.helper.borrow_mut().end();
        if let Some(fd) = self.watch.take() {
            call::close_range(fd as u32, fd as u32);
        }
    }

    /// Supplies a few pages, if any are left. Returns the descriptor that becomes readable when the
    /// clone leaves for its code, where help begins, and whether pages are left.
    fn help(&self) -> (i32, bool) {
        let mut helper = self.helper.borrow_mut();
        helper.go_on(self.tools.proc, &self.image);
        (helper.leaves(), helper.is_at_work())
    }

    /// Serves until the clone has ended.
    pub fn run(&self) -> ! {
        let settled = call::now_ns() + SETTLING_MS * 1_000_000;
        let mut status_fd = status_fd();
        loop {
            let is_settling = !self.files.are_held();
            let (leaves, helps) = self.help();
            let patience = match (helps, is_settling) {
                (true, _) => 0,
                (false, true) => SETTLING_MS,
                (false, false) => u64::MAX,
            };
            let mut polls = [
                PollFd { fd: self.tools.child_events, events: POLLIN, revents: 0 },
                PollFd { fd: self.tools.listener, events: POLLIN, revents: 0 },
                PollFd { fd: status_fd, events: POLLIN, revents: 0 },
                PollFd { fd: leaves, events: POLLIN, revents: 0 },
            ];
            // SAFETY: the kernel writes the four entries.
            let _ = unsafe { syscall(k::__NR_poll, [polls.as_mut_ptr() as u64, 4, patience]) };
            if is_settling && call::now_ns() >= settled {
                self.files.hold();
            }
            if polls[3].revents != 0 {
                self.helper.borrow_mut().begin(self.process, self.tools.proc);
            }
            if polls[2].revents != 0 {
                self.end_unless_known(status_fd);
                status_fd = IGNORED;
            }
            if polls[1].revents & POLLIN != 0 {
                self.answer();
            }
            if polls[0].revents & POLLIN != 0 {
                self.drain_child_events();
                self.reap();
            }
        }
    }
}
