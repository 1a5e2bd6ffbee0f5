//! The pool as its users see it: one process, several, and such as are killed.

mod account;
mod child;
mod common;
mod crash;
mod far_parts;
mod files;
mod full;
mod huge;
mod life;
mod many;
mod names;
mod owners;
mod ownership;
mod pins;
mod regions;
mod tables;
