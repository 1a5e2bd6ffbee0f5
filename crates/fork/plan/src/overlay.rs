//! The overlay: what a tiering policy adds to a plan.
//!
//! The plan of an image is the same for all its clones. How single pages are treated depends on the
//! side tables of the image and on the tiering policy of the clone. So the node's agent compiles an
//! overlay, and hands it to each init as a sealed file, which is mapped at
//! [`window::OVERLAY`](crate::window::OVERLAY) beside the plan. A clone without an overlay maps pages
//! when they are touched, and copies them when they are written.

use core::mem::size_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Table;

/// First word of an overlay.
pub const OVERLAY_MAGIC: u64 = u64::from_le_bytes(*b"ffover04");

/// Start of an overlay.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OverlayHeader {
    /// [`OVERLAY_MAGIC`].
    pub magic: u64,
    /// Bytes of the overlay's mapping, a multiple of the page size.
    pub bytes: u64,
    /// One [`MemberOverlay`] for each process of the plan, in its order.
    pub members: Table,
    /// Whether [`MemberOverlay::write`] and [`MemberOverlay::read`] of the first process are supplied by
    /// the init while the clone runs, and those of no other; otherwise each process does it for itself
    /// before it runs.
    pub is_helped: u64,
    /// Far memory nodes, a bit for each: where [`MemberOverlay::far`] is taken from.
    pub far_nodes: u64,
}

/// What is done with the memory of one process, once it is mapped and before anything else is.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemberOverlay {
    /// Pages made local in advance ([`Span`]): those that are written in any case. They come before
    /// those that are read, since a write splits what was mapped as a whole.
    pub write: Table,
    /// Pages mapped in advance ([`Span`]).
    pub read: Table,
    /// Memory that is copied whole at once ([`Served`]), each within one mapping.
    pub copied: Table,
    /// Memory whose pages the init supplies when they are touched ([`Served`]), sorted by address.
    pub served: Table,
    /// Words of a bitmap, by pages of `served`: a page whose bit is set becomes local when it is
    /// touched, any other is mapped from the pool.
    pub local: Table,
    /// Where one such page is touched, those after it become local as well, up to the end of a block of
    /// this many bytes: 0 or a power of two.
    pub ahead_bytes: u64,
    /// Memory of profiling clones ([`Span`]). It is mapped page by page, each when it is touched, so
    /// that the page tables show which pages were.
    pub watched: Table,
    /// Anonymous memory that the process has not touched yet ([`Span`]), and that is taken from far nodes when it does.
    pub far: Table,
}

/// Most bytes of one [`Span`] that the init supplies: the kernel holds the address space's lock while it does.
pub const HELPED_BYTES: u64 = 64 << 10;

/// Part of an address space; laid out like `struct iovec`, so that one call takes many.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Span {
    /// First address.
    pub address: u64,
    /// Length.
    pub bytes: u64,
}

/// Part of an address space whose pages are copied or supplied, instead of mapped by the kernel.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Served {
    /// First address.
    pub address: u64,
    /// Length.
    pub bytes: u64,
    /// The place in the image where its contents begin.
    pub place: u64,
    /// Number of its first page in [`MemberOverlay::local`], where it is supplied.
    pub first_page: u64,
}

const _: () = {
    assert!(size_of::<OverlayHeader>() == 48);
    assert!(size_of::<MemberOverlay>() == 120);
    assert!(size_of::<Served>() == 32);
    assert!(size_of::<Span>() == 16);
};
