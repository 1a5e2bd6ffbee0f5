//! Reads over one connection, which carries many requests at once: TCP, or a Unix socket and shared memory.
//!
//! ```text
//!   client → server  hello     32 bytes      server → client  answer  16 bytes
//!         0  magic "farforkF"   8                  0  magic "farforkF"    8
//!         8  version (1)        4                  8  version (1)         4
//!        12  CRC-32C            4                 12  status: 0 go on,    4
//!        16  name of the key   16                     1 no such key
//!                                                     2 other version
//!                                                     3 too many connections
//!                                                     4 it demands certificates
//!                                                     5 it has no certificate
//!   then one handshake message each way (48 bytes), then sealed frames both ways:
//!         0  bytes that follow (u32)     4
//!         4  ciphertext: header (24 bytes), payload, tag (16 bytes)
//!   header of a frame
//!         0  kind               1        4  segment, or their count   4
//!         1  code               1        8  request                   8
//!         2  0                  2       16  offset, or a number       8
//!   kind         from     segment  offset     payload
//!   1 read       client   count    0          segments: key (36), offset (8), bytes (4)
//!   2 call       client   0        0          the request
//!   3 data       server   index    in it      bytes of the segment, in order
//!   4 refused    server   index    a number   code: why; words
//!   5 reply      server   0        in it      code 1: the last part
//!
//!   on one host      code     segment  offset     payload
//!   2 call           1 local  0        0          none; the reply is a token (16) and the path of a socket
//!   1 read           1 placed count    0          segments, then a place (8) in the memory for each
//!   3 data           1 placed index    0          none: all bytes of the segment are at its place
//! ```
//! Shared memory: the client connects by TCP, asks for the server's token and socket, connects to that, proves
//! the key again, sends a memfd of a sealed length with one byte, and compares the token there. From then on
//! frames go over that socket, sealed in the same way, and bytes of segments through the memfd. It is not
//! one-sided: a thread of the server checks each key and copies. So a revocation is one here, too, and no
//! page of an image is ever mapped by a client.
//!
//! With certificates, TLS comes before the hello (`tls.rs`).
//!
//! All numbers are little-endian. Hello and handshake are `Noise_NNpsk0_25519_AESGCM_SHA256` by the crate
//! `snow`; the hello is its prologue, so that a changed hello fails the handshake. A frame's number in its
//! direction is its nonce: a frame that is changed, lost, replayed or moved does not open, and the connection
//! ends. The handshake draws new keys for each connection, so that nothing recorded fits another one.

mod answer;
mod client;
mod failed;
mod handshake;
mod listener;
mod pending;
mod sealed;
mod server;
mod shared;
mod socket;
mod streams;
#[cfg(test)]
mod tests;
mod tls;
mod wire;

#[cfg(feature = "rdma")]
pub(crate) use client::Answered;
pub use client::{ClientSettings, Connection, Connection as TcpFabric};
pub use server::Server;
pub use shared::{ServerSettings, Service};
pub use wire::SOCKET_EXTENSION;
