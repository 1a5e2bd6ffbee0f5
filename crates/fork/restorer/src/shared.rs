//! What the init leaves to its clone.

use crate::call;
use crate::cell::ProcessCell;
use crate::slots::Slots;

/// What the init leaves to the clone, and what the clone's threads share.
pub struct Shared {
    /// Slots of the plan's ops.
    pub slots: Slots,
    /// The status socket.
    pub status_fd: i32,
    /// When each phase ended, as in `Status::at_ns`.
    pub at_ns: [u64; 6],
    /// How far the clone's clock is ahead of the agent's, in ns.
    pub ahead_ns: i64,
    /// Threads of the process besides the first.
    pub others: u32,
    /// The clone has a container of its own and must mount its `/proc` itself.
    pub mounts_proc: bool,
    /// The clone has pids of its own.
    pub has_namespace: bool,
    /// The clone has several processes, which may wait for this one.
    pub is_family: bool,
    /// Ops that set groups do nothing.
    pub keeps_groups: bool,
    /// The clone tries its image: see [`farfork_plan::trial`].
    pub is_trial: bool,
    /// There is an overlay.
    pub has_overlay: bool,
    /// Some of the image is in other files than its own.
    pub has_sources: bool,
    /// Where the plan begins in the image's file, and its bytes.
    pub plan_at: (u64, u64),
    /// The socket on which a clone waits before its last steps.
    pub wake_fd: Option<i32>,
    /// How many external descriptors come with the wake-up.
    pub expected: u32,
    /// The lowest number that is free for the restorer.
    pub spare_fd: u32,
    /// Where the clone's processes send the userfaultfd of memory that the page service supplies.
    pub pager_fd: Option<i32>,
    /// The event that the first process signals when it leaves for its parent's code, if the init then
    /// helps it.
    pub leaves_fd: Option<i32>,
    /// Where the clone's processes leave the userfaultfd that watches their memory, if it is watched.
    pub watch_fd: Option<i32>,
    /// First function of the processes that ops fork. It stands here because the executor of ops cannot
    /// depend on code that runs ops.
    pub born: extern "C" fn(u64) -> !,
}

impl Shared {
    /// The agent's monotonic time in nanoseconds, for the clone.
    pub fn now_ns(&self) -> u64 {
        call::now_ns().wrapping_sub_signed(self.ahead_ns)
    }
}

/// One instance per process; the template's is never used.
pub static SHARED: ProcessCell<Shared> = ProcessCell::new(Shared {
    slots: Slots::new(),
    status_fd: -1,
    at_ns: [0; 6],
    ahead_ns: 0,
    others: 0,
    mounts_proc: false,
    has_namespace: false,
    is_family: false,
    keeps_groups: false,
    is_trial: false,
    has_overlay: false,
    has_sources: false,
    plan_at: (0, 0),
    wake_fd: None,
    expected: 0,
    spare_fd: 0,
    pager_fd: None,
    leaves_fd: None,
    watch_fd: None,
    born: unset,
});

extern "C" fn unset(_: u64) -> ! {
    call::exit(call::EXIT_BUG)
}
