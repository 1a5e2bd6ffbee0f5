//! A checkpoint at rest.

pub mod archive;
pub mod bpf;
pub mod catalog;
pub mod chunked;
pub mod clocks;
pub mod compile;
pub mod error;
mod exposure;
pub mod format;
mod head;
pub mod header;
pub mod holds;
pub mod layout;
pub mod machine;
pub mod model;
pub mod mounts;
pub mod stamp;
pub mod store;
pub mod tier;
pub mod trial;
mod validate;
pub mod verify;
pub mod vm;
