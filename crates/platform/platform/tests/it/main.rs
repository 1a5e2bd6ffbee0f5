//! The platform's interface and its store, tested from outside of the crate.

mod gateway;
#[path = "../common/small_disk.rs"]
mod small_disk;
mod store;
