//! A snapshot of a virtual machine, as an image.
//!
//! ```text
//!  metadata   SnapshotHeader  magic, version, checksum of the metadata, id, where things stand in it
//!             runs            24 bytes each: offset in the guest's memory, place in the data, bytes
//!             sums            CRC-32C of every stored page, in the order of their places
//!             state           the file that the monitor wrote beside the memory, byte for byte
//!  data       stored pages    first windows of 2 MiB without a page of zeros, each in a chunk of its own,
//!                             then pages that machines were seen to need, in that order (`repack`), then the
//!                             other pages, packed
//! ```
//! Invariants: a page of zeros is not stored; runs are in the order of their offsets and do not overlap;
//! their places cover the data from its start to its end without gaps. A window that is stored whole and of which no
//! page was seen to be needed has an offset and a place that are congruent modulo 2 MiB.
//!
//! The idea that pages of zeros cost nothing is Aquifer's (arXiv 2606.24079, the hotness-based snapshot
//! format). Chunks without a hot page may lie on another node (`tier`).

mod error;
mod export;
mod import;
mod map;
mod metadata;
mod repack;
mod same;
mod scan;
mod snapshot;
mod state;

pub use error::{MAX_STATE_BYTES, VmError};
pub use export::export;
pub use import::{Base, Imported, Progress, import};
pub use map::{Extent, PageMap, Run};
pub use metadata::{Metadata, VERSION, encode, reseal};
pub use repack::repack;
pub use snapshot::{Footprint, Snapshot};
pub use state::Monitor;
