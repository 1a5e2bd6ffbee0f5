//! Ids, units and wire types that all crates share.
//!
//! Nothing here touches the operating system, and everything without the `std` feature works in
//! a freestanding program.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![forbid(unsafe_code)]

mod cid;
mod share;
mod tiering;
mod units;
#[cfg(feature = "std")]
pub mod wire;

pub use cid::{Cid, ParseCidError};
pub use share::{LocalShare, LocalShareError};
pub use tiering::{ParseTieringError, Tiering};
pub use units::{CHUNK_BYTES, PAGE_BYTES, align_down, align_up};
