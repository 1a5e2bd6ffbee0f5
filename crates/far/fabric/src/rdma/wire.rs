//! The bytes of calls about RDMA, which go over the connection of a client, sealed. Numbers are little-endian.
//!
//! ```text
//!   an end (40 bytes)                     a window (24 bytes)            call 2  connect
//!    0  magic "farforkR"    8              0  key of the device   4        request  the client's end
//!    8  version (1)         4              4  0                   4        reply    the server's end, a window of
//!   12  queue pair          4              8  address             8                 memory with a token, the token (16)
//!   16  first number        4             16  bytes; 0: none      8      call 3  window
//!   20  LID                 2                                              request  key of a region (36)
//!   22  MTU (1 to 5)        1                                              reply    a window
//!   23  reads at once       1
//!   24  GID                16                                   call 4  leave: queue pair and windows end
//!                                                               no request, and an empty reply
//! ```

pub const MAGIC: [u8; 8] = *b"farforkR";
pub const VERSION: u32 = 1;
pub const END_BYTES: usize = 40;
pub const WINDOW_BYTES: usize = 24;
pub const TOKEN_BYTES: usize = 16;
/// Calls.
pub const CONNECT: u8 = 2;
pub const WINDOW: u8 = 3;
pub const LEAVE: u8 = 4;

const _: () = assert!(CONNECT >= crate::lane::FIRST_CODE && WINDOW >= crate::lane::FIRST_CODE);

/// One end of a pair of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Number of the queue pair: 24 bits.
    pub queue: u32,
    /// Number of the first packet that it sends: 24 bits.
    pub first: u32,
    /// Address on InfiniBand.
    pub lid: u16,
    /// The largest packet, as verbs number them: 1 is 256 bytes, 5 is 4,096.
    pub mtu: u8,
    /// Reads that it answers at once.
    pub reads: u8,
    /// Address.
    pub gid: [u8; 16],
}

/// Memory of the server that the client may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub key: u32,
    pub address: u64,
    /// 0: the region is read over the connection.
    pub bytes: u64,
}

/// The server's reply to a client's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    pub end: End,
    /// Of the token.
    pub window: Window,
    /// Random: what the client must find there.
    pub token: [u8; TOKEN_BYTES],
}

impl End {
    pub fn to_bytes(self) -> [u8; END_BYTES] {
        let mut bytes = [0; END_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.queue.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.first.to_le_bytes());
        bytes[20..22].copy_from_slice(&self.lid.to_le_bytes());
        bytes[22..24].copy_from_slice(&[self.mtu, self.reads]);
        bytes[24..].copy_from_slice(&self.gid);
        bytes
    }

    /// `None` if the bytes are not an end of this version, or one that no device has.
    pub fn from_bytes(bytes: &[u8]) -> Option<End> {
        let bytes: &[u8; END_BYTES] = bytes.try_into().ok()?;
        let end = End {
            queue: u32_at(bytes, 12)?,
            first: u32_at(bytes, 16)?,
            lid: u16::from_le_bytes([bytes[20], bytes[21]]),
            mtu: bytes[22],
            reads: bytes[23],
            gid: *bytes[24..].first_chunk()?,
        };
        let is_possible = end.queue >> 24 == 0
            && end.first >> 24 == 0
            && (1..=5).contains(&end.mtu)
            && end.reads > 0;
        (bytes[..8] == MAGIC && u32_at(bytes, 8)? == VERSION && is_possible).then_some(end)
    }
}

impl Window {
    /// That of a region that has none.
    pub const NONE: Window = Window { key: 0, address: 0, bytes: 0 };

    pub fn to_bytes(self) -> [u8; WINDOW_BYTES] {
        let mut bytes = [0; WINDOW_BYTES];
        bytes[..4].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        bytes[16..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// `None` if the bytes are not a window.
    pub fn from_bytes(bytes: &[u8]) -> Option<Window> {
        let bytes: &[u8; WINDOW_BYTES] = bytes.try_into().ok()?;
        let (key, address, length) = (u32_at(bytes, 0)?, u64_at(bytes, 8)?, u64_at(bytes, 16)?);
        let window = Window { key, address, bytes: length };
        (u32_at(bytes, 4)? == 0 && address.checked_add(length).is_some()).then_some(window)
    }
}

impl Offer {
    pub fn to_bytes(self) -> Vec<u8> {
        [&self.end.to_bytes()[..], &self.window.to_bytes(), &self.token].concat()
    }

    /// `None` if the bytes are not an offer of this version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Offer> {
        let (end, rest) = bytes.split_at_checked(END_BYTES)?;
        let (window, token) = rest.split_at_checked(WINDOW_BYTES)?;
        let (end, window) = (End::from_bytes(end)?, Window::from_bytes(window)?);
        let offer = Offer { end, window, token: token.try_into().ok()? };
        (window.bytes == TOKEN_BYTES as u64).then_some(offer)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: End =
        End { queue: 0x01_0203, first: 0x04_0506, lid: 7, mtu: 3, reads: 16, gid: [9; 16] };

    #[test]
    fn ends_keep_their_layout() {
        let mut bytes = b"farforkR\x01\0\0\0\x03\x02\x01\0\x06\x05\x04\0\x07\0\x03\x10".to_vec();
        bytes.extend([9; 16]);
        assert_eq!(END.to_bytes()[..], bytes);
        assert_eq!(End::from_bytes(&bytes), Some(END));
        assert_eq!(End::from_bytes(&bytes[1..]), None);
        // Magic, version, numbers of more than 24 bits, MTUs that do not exist, no reads.
        for (at, wrong) in [(0, 0), (8, 2), (15, 1), (19, 1), (22, 0), (22, 6), (23, 0)] {
            let mut bytes = bytes.clone();
            bytes[at] = wrong;
            assert_eq!(End::from_bytes(&bytes), None, "{at}");
        }
    }

    #[test]
    fn windows_and_offers_keep_their_layout() {
        let window = Window { key: 5, address: 0x1000, bytes: 16 };
        let bytes = b"\x05\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\x10\0\0\0\0\0\0\0";
        assert_eq!(window.to_bytes(), *bytes);
        assert_eq!(Window::from_bytes(bytes), Some(window));
        let beyond = Window { address: u64::MAX, ..window };
        assert_eq!(Window::from_bytes(&beyond.to_bytes()), None);
        let offer = Offer { end: END, window, token: [3; 16] };
        let all = [&END.to_bytes()[..], bytes, &[3; 16]].concat();
        assert_eq!(offer.to_bytes(), all);
        assert_eq!(Offer::from_bytes(&all), Some(offer));
        assert_eq!(Offer::from_bytes(&all[..79]), None);
        let other = Offer { window: Window { bytes: 15, ..window }, ..offer };
        assert_eq!(Offer::from_bytes(&other.to_bytes()), None);
    }
}
