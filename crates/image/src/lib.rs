//! A checkpoint at rest.

pub mod compile;
pub mod model;
