//! `farfork vm`, and what other commands do with its images.

mod bed;
mod files;
mod map;
mod serve;
