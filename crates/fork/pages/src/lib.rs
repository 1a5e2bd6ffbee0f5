//! Which pages of a clone become local, and when.
//!
//! Pure decisions: from side tables and a tiering policy to spans of addresses and how they are treated.
//! Nothing here makes system calls.
#![forbid(unsafe_code)]

mod access;
mod fresh;
mod observed;
pub mod overlay;
mod places;
pub mod policy;
mod set;
pub mod share;
mod tier;

pub use access::Access;
pub use observed::{Observed, Touched};
pub use places::{mapped, place_of};
pub use set::PageSet;
pub use tier::cold_chunks;
