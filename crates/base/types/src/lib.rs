//! Ids, units and wire types that all crates share.
//!
//! Nothing here touches the operating system, and everything without the `std` feature works in
//! a freestanding program.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![forbid(unsafe_code)]

mod cid;
#[cfg(feature = "std")]
pub mod elastic;
#[cfg(feature = "std")]
pub mod misses;
#[cfg(feature = "std")]
mod printable;
mod share;
mod tiering;
#[cfg(feature = "std")]
mod tls_files;
mod units;
#[cfg(feature = "std")]
pub mod wire;

pub use cid::{Cid, ParseCidError};
#[cfg(feature = "std")]
pub use printable::{is_unsafe, printable};
pub use share::{LocalShare, LocalShareError};
pub use tiering::{ParseTieringError, Tiering};
#[cfg(feature = "std")]
pub use tls_files::TlsFiles;
pub use units::{CHUNK_BYTES, PAGE_BYTES, align_down, align_up, end_of_run};
