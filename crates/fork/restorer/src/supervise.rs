//! The init's life after the clone has started: it reaps, tells the agent how the clone ended,
//! and answers the few system calls that would show a difference between memory mapped from an
//! image and the anonymous memory that the parent had.
//!
//! Discarding private pages of a file brings the file's bytes back; for anonymous memory it must
//! bring zeros. A seccomp filter hands those calls to this process, which looks what is mapped
//! where *now*: whatever the clone has mapped itself is left to the kernel. For the rest, nothing
//! can be mapped in another address space from outside, so the calling thread is sent, by
//! `ptrace`, through the calls that put anonymous memory in the range's place ([`visit`]).
//!
//! This process keeps its rights when the clone gives up its own, which is sound because they
//! share nothing: not memory, nor descriptors. What it reads of the clone's it takes for hostile.

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
use job::Cuts;
use proc::Proc;
use reap::status_fd;

/// What supervising takes whatever the plan: it can be there before anybody has asked for a clone. To
/// have the kernel compile the filter takes a good part of the time that an init has else to do.
#[derive(Clone, Copy)]
pub struct Tools {
    /// What the filter hands over.
    listener: i32,
    child_events: i32,
    proc: Proc,
}

impl Tools {
    /// Makes them; the filter is this process's from here on, which its clone inherits.
    pub fn make() -> Result<Tools, Errno> {
        let mask = 1u64 << (k::SIGCHLD - 1);
        let args = [u64::MAX, &raw const mask as u64, 8, u64::from(k::O_CLOEXEC)];
        // SAFETY: makes a signalfd; the kernel reads the mask.
        let child_events = unsafe { syscall(k::__NR_signalfd4, args) }? as i32;
        Ok(Tools { child_events, proc: Proc::open()?, listener: filter::install()? })
    }

    /// The same, with descriptors from `lowest` on.
    pub fn above(self, lowest: u32) -> Result<Tools, Errno> {
        Ok(Tools {
            listener: call::move_above(self.listener, lowest)?,
            child_events: call::move_above(self.child_events, lowest)?,
            proc: self.proc.above(lowest)?,
        })
    }
}

/// The init's view of its clone.
pub struct Supervisor {
    tools: Tools,
    image: Image,
    files: Files,
    changes: Changes,
    cuts: Cuts,
    /// Whether the kernel ends the clone's descendants with the init.
    has_namespace: bool,
    /// Whether memory of the image is registered with a userfaultfd of farfork's own.
    is_served: bool,
    /// The socket in whose queue lies what watches the clone's memory, if something does.
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

/// After so long the clone has started, and there is time for what it may need later.
const SETTLING_MS: u64 = 20;

impl Supervisor {
    /// One of a clone that is still to be started; its descriptors are from `spare_fd` on.
    pub fn new(
        plan: &'static PlanHeader,
        request: &Request,
        tools: Option<Result<Tools, Errno>>,
        spare_fd: u32,
    ) -> Result<Supervisor, Errno> {
        let tools = tools.unwrap_or_else(Tools::make)?.above(spare_fd)?;
        let has_namespace = request.pid_mode == PidMode::New as u32;
        if !has_namespace {
            reap::adopt_descendants()?;
        }
        // SAFETY: the table is the plan's.
        let files = Files::of(unsafe { elements(plan.files) });
        Ok(Supervisor {
            tools,
            image: Image::of(plan, request),
            files,
            changes: Changes::new(),
            cuts: Cuts::none(),
            has_namespace,
            is_served: request.overlay_bytes != 0 && pager::is_wanted(),
            watch: Cell::new(None),
            helper: RefCell::new(Helper::new(None)),
            process: 0,
        })
    }

    /// The same, for the clone with this pid, whose memory is watched as long as `watch` is open, and
    /// which is helped from when `leaves` can be read.
    pub fn with_process(self, process: i32, watch: Option<i32>, leaves: Option<i32>) -> Supervisor {
        let helper = RefCell::new(Helper::new(leaves));
        Supervisor { process, watch: Cell::new(watch), helper, ..self }
    }

    /// Watches the clone no longer, nor helps it: memory has one watcher, and the clone's own comes first.
    fn end_watch(&self) {
        self.helper.borrow_mut().end();
        if let Some(fd) = self.watch.take() {
            call::close_range(fd as u32, fd as u32);
        }
    }

    /// Supplies a few pages, if there are any to be supplied. Returns what tells that the clone leaves,
    /// from when on there may be, and whether there are more.
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
