//! Forks from a live process, on this node or another: MITOSIS's prepare, resume and reclaim.
pub mod handle;
pub mod region;
