//! Objects in shared memory that survive the death of any client.
//!
//! ```text
//!  C: farfork.h ─► capi ─┐
//!  Rust ─────────────────┴► client ─► mailbox, heap ─► region ─► layout   where everything lies
//!                             └► recovery, check ───────┘  ├───► words    shared memory
//!  files ─► metadata ─► rebuild ───────────────────────────┘  └──► liveness which clients live
//! ```
//! Vocabulary: a *region* is a file that all clients map at the same address. A *granule* is 16 bytes of it,
//! with one *owner byte*: the owner of the object that begins there. A *span* is 64 KiB of slots of one size, or
//! a part of a *run*, which is one object of whole spans; one client at a time allocates in a span. A
//! *client* is an open handle with an id of its own, not a process or a thread.
//!
//! Invariants:
//! 1. The owner byte is the only truth about an object: 0 none, 1 to [`CLIENTS`] owned by that client,
//!    [`layout::IN_MAILBOX`] in a mailbox. Free lists are private and are rebuilt by a scan.
//! 2. Each byte has one writer at a time. A free slot's byte is written by the client that has its span;
//!    an object's by the owner; a sent object's by the receiver of the one mailbox that names it.
//!    So ordinary stores suffice. Only claims of spans and of roles compare and swap, off the fast path.
//! 3. Each operation has one committing store. Stores before it are invisible to others or undone by
//!    recovery; stores after it are redone by recovery. A killed process leaves a prefix of its stores in
//!    program order, so that each operation has happened or has not.
//! 4. A client is alive while its kernel lock is held. What a dead client leaves is recovered by a process
//!    that holds the dead client's lock. Recovery is idempotent: killed, it is started again by the next one.
//! 5. Recovery clears mailbox slots that name a dead client's objects before it frees these objects.
//! 6. Where metadata is node-local, the region alone says what lives on without clients: what mailboxes name, and what can be
//!    reached from there (`rebuild.rs`).
//! 7. A client marks a span in shared memory before it owns anything there. Recovery looks at marked spans only.
//!
//! Assumptions: x86-64. Stores of one processor become visible in program order (TSO), and a killed
//! process's stores are the prefix that it retired. The compiler keeps the order because every shared store
//! is a release store, which is an ordinary `mov` there.

#[cfg(not(all(target_arch = "x86_64", target_endian = "little")))]
compile_error!("objects rely on the order of stores of x86-64");

mod audit;
mod capi;
mod capi_fork;
mod capi_guards;
mod capi_structures;
mod census;
mod check;
mod checked;
mod checks;
mod client;
mod error;
mod files;
pub mod fork_self;
mod forked;
mod forks;
mod grace;
mod guards;
pub mod header;
mod heap;
mod ids;
mod info;
mod intents;
mod keys;
pub mod layout;
pub mod liveness;
mod locks;
mod mailbox;
pub mod memory;
mod metadata;
mod nodes;
mod rebuild;
mod recovery;
mod redo;
mod region;
mod runs;
#[cfg(feature = "seeded-faults")]
pub mod seeded;
mod shared;
mod sizes;
mod span;
mod spans;
mod structures;
mod trailers;
mod wakes;
mod watch;
pub mod words;

pub use capi_guards::GuardLibrary;
pub use check::Check;
pub use client::{Client, Timeout};
pub use error::ObjectsError;
pub use grace::guard;
pub use guards::{Code, GRACE, Guard, Operation, OperationInfo};
pub use header::Metadata;
pub use info::{ClientInfo, Info, MailboxInfo, MetadataInfo};
pub use layout::{CLIENTS, ClientId, MAILBOXES, MOST_SLOTS, SPAN_BYTES};
pub use mailbox::Mailbox;
pub use region::{Node, Platform, Region};
