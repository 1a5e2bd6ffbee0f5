//! What holds for every transport, and what holds for each of them.

mod authority;
mod conformance;
mod proxy;
#[cfg(feature = "rdma")]
mod rdma;
mod regions;
mod shm;
mod tcp;
mod tls;
