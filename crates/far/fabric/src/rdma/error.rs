//! Why there is no RDMA.

/// An error of a device, or of finding one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RdmaError {
    /// The feature is missing.
    #[error("this farfork was built without RDMA: build it with the feature \"rdma\"")]
    NotBuilt,
    /// The library is missing.
    #[error(
        "the library libibverbs.so.1 cannot be loaded: install libibverbs1 and ibverbs-providers"
    )]
    NoLibrary,
    /// The machine has no device.
    #[error("this machine has no RDMA device: {why}")]
    NoDevice {
        /// More about it.
        why: String,
    },
    /// No device has this name.
    #[error("there is no RDMA device {name}: there are {known}")]
    Unknown {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A device does not do something.
    #[error("cannot {what} with the RDMA device {device}: {why}")]
    Device {
        /// Its name.
        device: String,
        /// What it should do.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// The peer does not go along.
    #[error("cannot read from {peer} by RDMA: {why}")]
    Peer {
        /// Its address.
        peer: String,
        /// The reason.
        why: String,
    },
}
