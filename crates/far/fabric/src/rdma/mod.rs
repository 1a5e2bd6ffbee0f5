//! One-sided reads by RDMA: the device of the serving node reads from its memory, and no code of a process runs there.
//!
//! ```text
//!   client                                              server
//!   Connection ── calls: ends, windows (sealed) ──────► lane of the connection: queue pair, windows
//!   queue pair ── RDMA READ (window's key, address) ──► device ──► pages of the region's file
//!       │ access refused: the window was withdrawn
//!       └─ asks by the connection for a new one: the reason, or a window; then a new queue pair
//! ```
//! The connection of [`tcp`](crate::tcp) comes first, proves both ends, and stays: as long as it lives, its client may
//! read by its windows. A window is the registration of one region's memory in the protection domain of one connection, so
//! that a key of it (32 bits, which can be guessed) is of use to no other client. When the key of the region is revoked, the
//! registration ends first, and the device refuses what comes later. Regions that have no file are read over the
//! connection.
//!
//! What RDMA carries is neither encrypted nor authenticated: a server offers it only if it is asked to.
//!
//! Reliable connections only. Dynamically connected transport is not among what the crate for verbs (`sideway`) offers.
//! It finds libibverbs when it runs; built without the feature `rdma`, nothing is offered, and [`examine`] says so.

mod error;

#[cfg(feature = "rdma")]
mod device;
#[cfg(feature = "rdma")]
mod pins;
#[cfg(feature = "rdma")]
mod reading;
#[cfg(feature = "rdma")]
mod reads;
#[cfg(feature = "rdma")]
mod serving;
#[cfg(all(test, feature = "rdma"))]
mod tests;
#[cfg(feature = "rdma")]
mod verbs;
#[cfg(feature = "rdma")]
mod windows;
#[cfg(feature = "rdma")]
mod wire;

#[cfg(not(feature = "rdma"))]
mod absent;

#[cfg(not(feature = "rdma"))]
pub use absent::{Device, Rdma, examine, lanes};
#[cfg(feature = "rdma")]
pub use device::{Device, examine};
pub use error::RdmaError;
#[cfg(feature = "rdma")]
pub use reading::Rdma;
#[cfg(feature = "rdma")]
pub use serving::lanes;
