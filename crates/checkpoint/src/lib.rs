//! Process to image: freeze, collect, refuse, copy, publish.

pub mod refuse;
