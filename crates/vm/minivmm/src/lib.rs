//! A small virtual machine monitor for tests and benchmarks.
//!
//! Its guest is a loop of 64-bit machine code that walks through the guest's memory and mixes every word that
//! it reads into one number. It stays in user mode (CPL 3), with page tables that the host has set up, because
//! a KVM inside of a virtual machine may run no other guests: no paravirtual clock, no interrupt, one vCPU.
//!
//! Or it goes through a list of pages that was recorded from a real process ([`Workload`]).
//!
//! It writes a state file and a memory file, and restores them as Firecracker does: through a userfaultfd
//! that it hands over at a socket and keeps a copy of, or by mapping the memory file. Where KVM cannot be
//! used, a thread of the host does what the guest would; [`Monitor::has_kvm`] says which of the two it is.

mod error;
mod hand_over;
mod memory;
mod monitor;
mod pattern;
mod processor;
mod state;
mod walk;
mod workload;

pub use error::VmmError;
pub use memory::PAGE_BYTES;
pub use monitor::{Backing, Monitor};
pub use pattern::Pattern;
pub use walk::Walk;
pub use workload::{Access, Workload};
