//! Memory that several nodes map: media, superblock, chunks, pins.
//!
//! A pool is one file that every writer maps shared and every clone maps copy-on-write. Any
//! process that uses it may be killed at any instruction. What holds at every moment:
//!
//! 1. A chunk is free exactly if its owner word is 0; a free chunk reads as zeros.
//! 2. An image becomes visible, and invisible, by one store to the state word of its slot.
//!    Everything before the store is invisible, everything after it can be redone by any process.
//! 3. A slot in state Writing whose writer lock is free belongs to a dead writer; the chunks
//!    that carry its slot and generation are given back by the next `begin`, by an `allocate` that
//!    finds the pool full, or by `check`.
//! 4. The chunks of a removed image are given back only when no node's word pins it. A pin is
//!    written first and the image's state read afterwards; a removal does it the other way round.
//!    A node is not known by its name alone: words that may be a living node's are not taken for a dead one's.
//! 5. An image is sealed; what is learnt about it later stands in side tables, whose chunks carry
//!    its slot and generation with a mark of their own and go with it. Each has one writer. A table
//!    is linked by one store, under the lock of the tables; chunks with the mark that are not linked
//!    belong to a dead writer, and are given back by the next table, or by `check`.
//! 6. Locks are byte ranges of open file descriptions far beyond the end of the file: the kernel
//!    drops them when the last holder dies. No process id is ever written down. A lock reaches the
//!    processes of one kernel, in whatever namespaces: writers of several kernels need another
//!    [`ChunkAllocator`](chunks::ChunkAllocator) and another proof of life.
//!
//! What remains of a file that is truncated under its users: every call looks at the length first
//! and says so, but a truncation between that look and the access ends in SIGBUS. A process that
//! forks must let the child close the pool's file descriptors (exec does), or a lock that the
//! parent held when it was killed lives on in the child.

mod account;
mod bandwidth;
mod catalog_area;
mod charge;
mod check;
mod chunks;
mod copy;
mod device;
mod error;
#[doc(hidden)]
pub mod failpoint;
mod ids;
mod info;
mod layout;
mod lock;
mod map;
mod media;
mod nodes;
mod pinfile;
mod pins;
mod placement;
mod pool;
mod slots;
mod superblock;
mod tables;
pub mod words;
mod writer;

pub use catalog_area::{CatalogArea, CatalogLock};
pub use check::{CheckReport, Finding};
pub use copy::pool_of_copy;
pub use error::PoolError;
pub use ids::{Extent, ImageSlot, NodeSlot};
pub use info::{ImageInfo, ImageState, PoolInfo};
pub use layout::{MAX_IMAGES, MAX_NODE_NAME_BYTES, MAX_NODES};
pub use media::{Medium, maps_huge_pages, mount_tmpfs, unmount_tmpfs};
pub use nodes::{Forgotten, NodeRow};
pub use pinfile::PinFile;
pub use pool::Pool;
pub use slots::ImageExtents;
pub use tables::{AccessTable, Epochs, PageBits};
pub use writer::{Held, ImageWriter};
