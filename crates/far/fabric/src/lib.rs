//! Reads memory that other nodes registered.
//!
//! ```text
//!   reading side                                 serving side
//!   Fabric::submit(segments) ── many segments ──► Server: a reader and workers for each connection
//!   Batch::next ◄── completions, in any order ──── Regions::read: key, generation, bounds of each segment
//!                                                  Region::read: pread of a file, memory of a process, …
//! ```
//! Vocabulary: a *region* is a range of bytes that a node lets others read. Its *key* names it and proves
//! the right to read it. A *generation* of a key ends when the key is revoked. A *segment* is a range of a
//! region, a *batch* the segments of one submission. MITOSIS (§5) reads a parent's pages in this way.
//!
//! Invariants:
//! 1. Each segment is checked where the region lies, immediately before each read.
//! 2. Each segment of a batch has exactly one completion: all of its bytes, or an error. A batch ends by its
//!    deadline, whatever the peer does.
//! 3. After [`Regions::revoke`] and [`Regions::remove`] return, no read with an older key is in progress.
//! 4. Bytes in flight are bounded on both sides.
//!
//! Transports: [`tcp`], over a network (`tcp`) or with shared memory on one host (`shm`), both with certificates
//! beside the shared key (`tcp+tls`, `shm+tls`) or without: a thread of the serving process answers each request. And
//! [`rdma`], which is one-sided: a device reads, and no code of the serving process runs. Invariant 1 then holds by
//! the device, which knows each window of memory that a connection was given.

mod certificates;
mod error;
mod fabric;
mod key;
mod lane;
mod memory;
mod nearest;
pub mod rdma;
mod region;
pub mod tcp;

pub use certificates::{BadCertificates, CertificateSource, Certificates};
pub use error::{FabricError, Refusal};
pub use fabric::{Batch, Completion, Completions, Fabric, Segment};
pub use key::{KeyId, KeyRing, SharedKey};
pub use lane::{Lane, Lanes};
pub use nearest::connect_nearest;
pub use region::{Exposed, FileRegion, Region, RegionKey, Regions};

/// The most bytes of one segment.
pub const MAX_SEGMENT_BYTES: u32 = 4 << 20;
