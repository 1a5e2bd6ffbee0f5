//! The addresses that belong to farfork inside every clone.
//!
//! The window lies where no position-independent program, heap, stack or sanitizer shadow of
//! x86-64 Linux is placed by default, and above what V8 and other allocators with random hints of 46
//! bits ask for. A process that does map something there is refused.
//!
//! ```text
//!  BASE  +0        restorer: text, constants, data, the init's stack
//!        +64 MiB   STACKS   one small stack per thread, used until it leaves for user code
//!        +128 MiB  PLAN     the image's metadata, read-only, from the pool
//!        +480 MiB  OVERLAY  what the tiering policy adds to the plan, if it adds anything
//!        +512 MiB  SCRATCH  parts of the pool, while a clone's shared objects are filled from them
//!        +768 MiB  STAGES   one page, shared by the processes of a clone until they run
//!        +832 MiB  REMOVED  a page of each segment of System V that lasts as long as it is attached
//!        +960 MiB  PIN      a page of nothing, which pins the image
//!        +964 MiB  SOURCES  where the image's bytes are, if not all are in its own file
//!        +1 GiB    END
//! ```

/// First address of the window; the restorer is linked here.
pub const BASE: u64 = 0x4f00_0000_0000;
/// Stacks on which the clone's threads start.
pub const STACKS: u64 = BASE + (64 << 20);
/// Bytes of one such stack.
pub const STACK_BYTES: u64 = 8192;
/// The image's metadata.
pub const PLAN: u64 = BASE + (128 << 20);
/// What the tiering policy adds to the plan.
pub const OVERLAY: u64 = BASE + (480 << 20);
/// Bytes that it may take.
pub const OVERLAY_BYTES: u64 = 32 << 20;
/// Where parts of the pool are mapped while they are copied.
pub const SCRATCH: u64 = BASE + (512 << 20);
/// Bytes of such a part at most.
pub const SCRATCH_BYTES: u64 = 256 << 20;
/// Where the processes of a clone wait for each other, if it has several.
pub const STAGES: u64 = BASE + (768 << 20);
/// Where a page each of segments of System V is attached, until the clone's processes have attached
/// them: they were removed, and would be gone.
pub const REMOVED: u64 = BASE + (832 << 20);
/// Most such segments, the kernel's own limit for an IPC namespace.
pub const MOST_REMOVED: usize = 1 << 15;
/// A page of the node's pin file, without access. The lock on the file lasts as long as a process has the
/// page mapped, and the image stays in the pool as long as the lock.
pub const PIN: u64 = BASE + (960 << 20);
/// Where the image's bytes are: [`crate::sources`].
pub const SOURCES: u64 = BASE + (964 << 20);
/// Bytes that it may take.
pub const SOURCES_BYTES: u64 = 60 << 20;
const _: () = assert!(SOURCES + SOURCES_BYTES <= END);
const _: () = assert!(REMOVED + MOST_REMOVED as u64 * 4096 <= PIN);
/// Address after the window.
pub const END: u64 = BASE + (1 << 30);

/// What V8 asks for at random lies below this address, and a TiB above it at most.
const HINTS: u64 = 1 << 46;
const _: () = assert!(BASE >= HINTS + (1 << 40));
// Filters recognise calls from the window by the upper half of an address alone.
const _: () = assert!(BASE >> 32 == (END - 1) >> 32);
