//! What becomes of each page of an image in a clone.
//!
//! Pure decisions: access patterns and a tiering policy go in, spans of addresses to be treated in
//! one way or another come out. Nothing here touches the operating system.
#![forbid(unsafe_code)]

mod access;
mod observed;
pub mod overlay;
mod places;
pub mod policy;
mod set;

pub use access::Access;
pub use observed::{Observed, Touched};
pub use places::{mapped, place_of};
pub use set::PageSet;
