//! Whose an image's memory is: the steps by which hosts of one medium pass it on.
//!
//! ```text
//!             begin               publish                     reclaim               last borrow ends
//!  free ────────────────> written ────────> published ──────────────────> removed ─────────────────> free
//!    ^                      │                 │   ^                         │
//!    └──── the writer dies ─┘          borrow └───┘ the borrow ends,        └── borrowers read on
//!                                                   or its host dies
//! ```
//! Contract, which `tests/it/ownership.rs` checks for every mechanism:
//!
//! 1. An image is there for all hosts at once and whole, or for none. What a writer has that dies comes back.
//! 2. A host that borrows an image reads what was published. Where hosts have caches that are not coherent, the borrow
//!    drops what this host has cached of whatever lay there before: before it returns, so before a page is copied to
//!    a guest or mapped by a clone. Publishing has written everything back by then.
//! 3. A reclaimed image can be borrowed by no host, and those that have it read on. Its memory is not used for another image
//!    before the last of them has ended its borrow.
//! 4. No step waits for another host. A host that dies while it writes, or while it borrows, keeps at most what it had:
//!    that memory, until it is known to be dead ([`Ownership::settle`]).
//!
//! [`Host`](crate::Host) is the mechanism for memory that is coherent between hosts. There invalidation has nothing
//! to do: processors see each other's stores, and the kernel clears memory before it gives it out again. Memory without
//! coherence (CXL 2.0) needs another mechanism behind the same trait: flush before a publication, invalidation
//! on borrow, and leases in the place of the kernel's locks.

use farfork_types::Cid;

use crate::error::PoolError;

/// One host's way to images on a medium that other hosts use, too.
pub trait Ownership {
    /// An image that is being written. Dropped, it gives back its memory.
    type Writer<'a>
    where
        Self: 'a;
    /// An image that this host reads. Dropped, the borrow ends.
    type Borrowed;

    /// Takes memory for an image of so many bytes.
    ///
    /// # Errors
    /// [`PoolError::Full`]; those of the medium.
    fn begin(&self, bytes: u64) -> Result<Self::Writer<'_>, PoolError>;

    /// Writes to an image that is not published.
    fn write(&self, writer: &mut Self::Writer<'_>, offset: u64, bytes: &[u8]);

    /// Makes an image visible to all hosts.
    ///
    /// # Errors
    /// Those of the medium; the image is not there then.
    fn publish(&self, writer: Self::Writer<'_>) -> Result<Cid, PoolError>;

    /// Keeps an image for as long as it is read, and invalidates what this host has cached of its memory.
    ///
    /// # Errors
    /// [`PoolError::NoImage`] if it is not published, or not any more; those of the medium.
    fn borrow(&self, cid: Cid) -> Result<Self::Borrowed, PoolError>;

    /// Reads from a borrowed image.
    ///
    /// # Errors
    /// Those of the medium.
    fn read(&self, borrowed: &Self::Borrowed, offset: u64, to: &mut [u8]) -> Result<(), PoolError>;

    /// Removes a published image. Its memory is free when no host borrows it.
    ///
    /// # Errors
    /// [`PoolError::NoImage`]; those of the medium.
    fn reclaim(&self, cid: Cid) -> Result<(), PoolError>;

    /// Ends borrows of processes of this host that have died.
    ///
    /// # Errors
    /// Those of the medium.
    fn settle(&self) -> Result<(), PoolError>;
}
