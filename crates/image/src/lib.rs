//! A checkpoint at rest.

pub mod catalog;
pub mod compile;
pub mod error;
pub mod format;
pub mod machine;
pub mod model;
pub mod verify;
