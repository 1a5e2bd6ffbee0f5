//! `farfork vm`, and what other commands do with its images.

mod bed;
mod files;
mod full;
mod map;
mod names;
mod serve;
