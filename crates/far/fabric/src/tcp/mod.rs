//! Reads over one TCP connection, which carries many requests at once.
//!
//! ```text
//!   client → server  hello     32 bytes      server → client  answer  16 bytes
//!         0  magic "farforkF"   8                  0  magic "farforkF"    8
//!         8  version (1)        4                  8  version (1)         4
//!        12  CRC-32C            4                 12  status: 0 go on,    4
//!        16  name of the key   16                     1 no such key
//!                                                     2 other version
//!                                                     3 too many connections
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
//! ```
//! All numbers are little-endian. Hello and handshake are `Noise_NNpsk0_25519_AESGCM_SHA256` by the crate
//! `snow`; the hello is its prologue, so that a changed hello fails the handshake. A frame's number in its
//! direction is its nonce: a frame that is changed, lost, replayed or moved does not open, and the connection
//! ends. The handshake draws new keys for each connection, so that nothing recorded fits another one.

mod client;
mod handshake;
mod pending;
mod sealed;
mod server;
mod streams;
#[cfg(test)]
mod tests;
mod wire;

pub use client::{ClientSettings, TcpFabric};
pub use server::{Server, ServerSettings, Service};
