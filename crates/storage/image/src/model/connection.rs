//! TCP connections that go on in a clone.

use serde::{Deserialize, Serialize};

/// A TCP connection where its parent ended. Its packets are kept away in between.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpConnection {
    /// The address it is connected to, as the kernel writes it.
    pub peer: Vec<u8>,
    /// Sequence number of the first byte that was received and not read, and these bytes.
    pub received: (u32, Vec<u8>),
    /// Sequence number of the first byte that the peer has not acknowledged, and all from there.
    pub sent: (u32, Vec<u8>),
    /// How many of these, at the end, were never sent.
    pub unsent: u32,
    /// Largest segment that the peer takes.
    pub segment_bytes: u32,
    /// `TCPI_OPT_*` bits.
    pub options: u8,
    /// Window scales: the peer's in the lower half, the own in the upper.
    pub scales: u8,
    /// The own clock, as the peer sees it.
    pub timestamp: u32,
    /// `struct tcp_repair_window`.
    pub window: [u32; 5],
    /// Name of the lock on the network that keeps its packets away.
    pub lock: String,
}
