//! Images at rest, tested from outside of the crate.

mod catalog;
mod common;
mod file;
mod holds;
mod hostile;
mod layout;
mod replay;
mod tier;
mod vm;
