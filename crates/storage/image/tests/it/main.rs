//! Images at rest, tested from outside of the crate.

mod catalog;
mod common;
mod hostile;
mod layout;
mod replay;
