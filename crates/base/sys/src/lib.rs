//! Every raw system call and kernel structure farfork uses, behind documented functions.
//!
//! Without the `std` feature only [`raw`] and [`procmap`] are there, for the restorer.
#![cfg_attr(not(feature = "std"), no_std)]

pub mod procmap;
pub mod raw;

#[cfg(feature = "std")]
pub mod allocator;
#[cfg(feature = "std")]
pub mod boot;
#[cfg(feature = "std")]
pub mod cache;
#[cfg(feature = "std")]
pub mod cgroup;
#[cfg(feature = "std")]
pub mod fcntl_owner;
#[cfg(feature = "std")]
pub mod freezer;
#[cfg(feature = "std")]
pub mod frozen;
#[cfg(feature = "std")]
pub mod handle;
#[cfg(feature = "std")]
pub mod inherited;
#[cfg(feature = "std")]
pub mod ipc;
#[cfg(feature = "std")]
pub mod kcmp;
#[cfg(feature = "std")]
pub mod limits;
#[cfg(feature = "std")]
pub mod memfd;
#[cfg(feature = "std")]
pub mod memory;
#[cfg(feature = "std")]
pub mod mounts;
#[cfg(feature = "std")]
pub mod network_lock;
#[cfg(feature = "std")]
pub mod numa;
#[cfg(feature = "std")]
pub mod packet_diag;
#[cfg(feature = "std")]
pub mod peek;
#[cfg(feature = "std")]
pub mod pidfd;
#[cfg(feature = "std")]
pub mod proc;
#[cfg(feature = "std")]
pub mod promote;
#[cfg(feature = "std")]
pub mod ptrace;
#[cfg(feature = "std")]
pub mod sched;
#[cfg(feature = "std")]
pub mod sched_attr;
#[cfg(feature = "std")]
mod sock_diag;
#[cfg(feature = "std")]
pub mod socket;
#[cfg(feature = "std")]
pub mod socket_file;
#[cfg(feature = "std")]
pub mod status;
#[cfg(feature = "std")]
pub mod tcp_repair;
#[cfg(feature = "std")]
pub mod terminal;
#[cfg(feature = "std")]
pub mod trial_network;
#[cfg(feature = "std")]
pub mod unix_diag;
#[cfg(feature = "std")]
pub mod words;
#[cfg(feature = "std")]
pub mod xstate;
