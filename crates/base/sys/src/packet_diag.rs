//! Packet sockets of a network namespace, by `sock_diag` (Linux 3.7, `CONFIG_PACKET_DIAG`).
//!
//! ```text
//!  packet_diag_req (20): family, protocol, pad, inode, show, cookie[2]
//!  packet_diag_msg (16): family, type, protocol, inode, cookie[2] │ attributes
//! ```

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::sock_diag::{attributes, dump, u16_at, u32_at};

const SHOW_MEMBERSHIPS_RINGS: u32 = 2 | 4;
const MEMBERSHIPS: u16 = 1;
const RINGS: [u16; 2] = [2, 3];
/// `struct packet_diag_mclist`: interface, count, type, length, address.
const MEMBERSHIP_BYTES: usize = 44;
const ADDRESS: usize = 12;

/// One packet socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketSocket {
    /// Whether it shares a ring with the process.
    pub has_ring: bool,
    /// What it has devices let through.
    pub memberships: Vec<Membership>,
}

/// What a socket has a device let through (`PACKET_ADD_MEMBERSHIP`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Number of the interface.
    pub interface: u32,
    /// How often the socket has asked for it.
    pub count: u32,
    /// `PACKET_MR_*`.
    pub kind: u16,
    /// Hardware address, as long as it says.
    pub address: Vec<u8>,
}

/// All packet sockets of the network namespace `namespace`, or of the caller's, by inode.
pub fn packet_sockets(
    namespace: Option<BorrowedFd<'_>>,
) -> Result<HashMap<u32, PacketSocket>, Errno> {
    let mut request = [0u8; 20];
    request[0] = libc::AF_PACKET as u8;
    request[8..12].copy_from_slice(&SHOW_MEMBERSHIPS_RINGS.to_ne_bytes());
    let mut found = HashMap::new();
    dump(namespace, &request, |body| found.extend(parse(body)))?;
    Ok(found)
}

fn parse(body: &[u8]) -> Option<(u32, PacketSocket)> {
    let mut socket = PacketSocket::default();
    for (kind, value) in attributes(body) {
        socket.has_ring |= RINGS.contains(&kind);
        if kind == MEMBERSHIPS {
            let entries = value.chunks_exact(MEMBERSHIP_BYTES);
            socket.memberships = entries.map(membership).collect::<Option<_>>()?;
        }
    }
    Some((u32_at(body, 4)?, socket))
}

fn membership(entry: &[u8]) -> Option<Membership> {
    let bytes = usize::from(u16_at(entry, 10)?);
    Some(Membership {
        interface: u32_at(entry, 0)?,
        count: u32_at(entry, 4)?,
        kind: u16_at(entry, 8)?,
        address: entry.get(ADDRESS..ADDRESS + bytes)?.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{set_option_at, socket_in};
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn memberships_and_rings_are_shown() {
        let Ok(socket) = socket_in(None, libc::AF_PACKET, libc::SOCK_RAW, 0) else {
            eprintln!("skipped: no right to a packet socket");
            return;
        };
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let inode = std::fs::metadata(path).unwrap().ino() as u32;
        let set = |name, words: &[u32]| {
            let value: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            set_option_at(socket.as_fd(), libc::SOL_PACKET, name, &value).unwrap();
        };
        let promiscuous = [1, 1, 0, 0];
        set(libc::PACKET_ADD_MEMBERSHIP, &promiscuous);
        set(libc::PACKET_ADD_MEMBERSHIP, &promiscuous);
        let socket = &packet_sockets(None).unwrap()[&inode];
        let expected = Membership { interface: 1, count: 2, kind: 1, address: Vec::new() };
        assert_eq!(*socket, PacketSocket { has_ring: false, memberships: vec![expected] });
        // struct tpacket_req: size of a block, blocks, size of a frame, frames.
        set(libc::PACKET_RX_RING, &[4096, 1, 2048, 2]);
        assert!(packet_sockets(None).unwrap()[&inode].has_ring);
    }
}
