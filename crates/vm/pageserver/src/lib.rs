//! Fills the memory of virtual machines from a snapshot in the pool, through the userfaultfd that a monitor
//! such as Firecracker hands over.
//!
//! ```text
//!  monitor ──── regions and userfaultfd ───> holder ──── each machine ────> server
//!     │          (Unix socket)                 │  keeps all descriptors       │ one thread per machine
//!     │                                        └─ starts the next server      │ reads faults, copies pages
//!     └────────────────────── page faults, REMOVE events ─────────────────────┘
//! ```
//! Invariants:
//!
//! 1. A page of a guest is filled once from the image. When the monitor has discarded it, it is zeros.
//! 2. What a server knows of a machine that the next one needs lies in the machine's [`Ledger`], in memory
//!    that the holder keeps: a server may be killed at any instruction.
//! 3. A page that cannot be read, or that lies in no region, is poisoned: the access ends in SIGBUS. It is
//!    never zeros instead, and never left waiting.
//! 4. A machine has ended when the other end of its socket is closed.

mod ahead;
mod cache;
mod channel;
mod counters;
mod filler;
mod guard;
mod handover;
mod holder;
mod hot;
mod hotness;
mod ledger;
mod machine;
mod mapped;
mod message;
mod pagelog;
mod peer;
mod sealed;
mod server;
mod turns;

pub use counters::Counters;
pub use handover::{HandOver, HandOverError, Region, Regions};
pub use holder::{Event, Holder, HolderError, Learnt, Record, Recording};
pub use ledger::Ledger;
pub use mapped::{MEMORY, STATE, hold_mapped, serve_mapped};
pub use server::{ServerError, serve};
