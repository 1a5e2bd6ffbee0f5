//! Sealed frames on a stream, in both directions.

use std::io::{self, Read, Write};
use std::sync::Arc;

use snow::StatelessTransportState;

use super::socket::Socket;
use super::wire::{HEADER_BYTES, MAX_FRAME_BYTES, invalid};

/// Bytes of a frame's length, and of its tag.
const LENGTH_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
/// Lengths and small frames are read together; what is longer is read to its place.
const READ_AHEAD_BYTES: usize = 8 << 10;
/// A cipher's key should not seal more bytes than this (2^36 blocks of AES-GCM). The connection ends, and the
/// next one has new keys.
const MAX_SEALED_BYTES: u64 = 1 << 40;

/// Seals and sends frames.
pub struct Sender {
    stream: Socket,
    state: Arc<StatelessTransportState>,
    nonce: u64,
    sealed_bytes: u64,
    out: Vec<u8>,
}

/// Receives and opens frames.
pub struct Receiver {
    stream: io::BufReader<Socket>,
    state: Arc<StatelessTransportState>,
    nonce: u64,
    sealed: Vec<u8>,
    opened: Vec<u8>,
}

/// The two halves of a connection after its handshake.
pub fn halves(stream: Socket, state: StatelessTransportState) -> io::Result<(Sender, Receiver)> {
    let state = Arc::new(state);
    let reading = io::BufReader::with_capacity(READ_AHEAD_BYTES, stream.try_clone()?);
    let sender =
        Sender { stream, state: Arc::clone(&state), nonce: 0, sealed_bytes: 0, out: Vec::new() };
    let receiver = Receiver {
        stream: reading,
        state,
        nonce: 0,
        sealed: Vec::new(),
        opened: vec![0; MAX_FRAME_BYTES],
    };
    Ok((sender, receiver))
}

impl Sender {
    /// Sends frames in this order, at once. After an error the stream must not be used any more: part of a
    /// frame may have been sent.
    pub fn send<'f>(&mut self, frames: impl IntoIterator<Item = &'f [u8]>) -> io::Result<()> {
        // The buffer keeps its length: what is overwritten in any case need not be zeroed each time.
        let mut used = 0;
        for frame in frames {
            let (at, sealed) = (used, frame.len() + TAG_BYTES);
            used += LENGTH_BYTES + sealed;
            if self.out.len() < used {
                self.out.resize(used, 0);
            }
            let (length, into) = self.out[at..used].split_at_mut(LENGTH_BYTES);
            length.copy_from_slice(&(sealed as u32).to_le_bytes());
            self.state.write_message(self.nonce, frame, into).map_err(not_sealed)?;
            self.nonce += 1;
            self.sealed_bytes += sealed as u64;
        }
        if self.sealed_bytes > MAX_SEALED_BYTES {
            return Err(io::Error::other("its keys have sealed as much as they should"));
        }
        self.stream.write_all(&self.out[..used])
    }

    /// Ends both directions, so that the receiver's waiting ends.
    pub fn close(&self) {
        self.stream.shut_down();
    }
}

impl Receiver {
    /// Ends both directions, so that the peer notices.
    pub fn close(&self) {
        self.stream.get_ref().shut_down();
    }

    /// The next frame; `None` when the peer has closed the stream between two frames.
    pub fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let mut length = [0; LENGTH_BYTES];
        match self.stream.read(&mut length)? {
            0 => return Ok(None),
            read => self.stream.read_exact(&mut length[read..])?,
        }
        let length = u32::from_le_bytes(length) as usize;
        if !(HEADER_BYTES + TAG_BYTES..=MAX_FRAME_BYTES + TAG_BYTES).contains(&length) {
            return Err(invalid("the peer sent a frame of an impossible length"));
        }
        self.sealed.resize(length, 0);
        self.stream.read_exact(&mut self.sealed)?;
        let opened = self.state.read_message(self.nonce, &self.sealed, &mut self.opened);
        let bytes = opened.map_err(|_| {
            invalid("a frame does not open: it was changed, repeated or lost on the way")
        })?;
        self.nonce += 1;
        Ok(Some(&self.opened[..bytes]))
    }
}

fn not_sealed(_: snow::Error) -> io::Error {
    io::Error::other("the cipher failed")
}
