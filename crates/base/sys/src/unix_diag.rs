//! Unix sockets of a network namespace and their peers, by `sock_diag` (Linux 3.3).
//!
//! ```text
//!  unix_diag_req (24): family, protocol, pad, states, inode, show, cookie[2]
//!  unix_diag_msg (16): family, type, state, pad, inode, cookie[2] │ attributes
//! ```

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::sock_diag::{attributes, dump, u32_at};

const SHOW_NAME_PEER_QUEUE: u32 = 1 | 4 | 0x10;
const NAME: u16 = 0;
const PEER: u16 = 2;
const QUEUE: u16 = 4;
const SHUTDOWN: u16 = 6;
const LISTEN: u8 = 10;

/// One Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnixSocket {
    /// `SOCK_STREAM`, `SOCK_DGRAM` or `SOCK_SEQPACKET`.
    pub kind: u32,
    /// Whether it listens for connections.
    pub is_listening: bool,
    /// Of a listening socket: how many connections may wait to be accepted.
    pub backlog: u32,
    /// Inode of the socket it is connected to; 0 if that one was closed or not yet accepted.
    pub peer: Option<u32>,
    /// Its address: a path, or a name that starts with a NUL.
    pub name: Option<Vec<u8>>,
    /// Bit 0: shut down for reading, bit 1: for writing.
    pub shutdown: u32,
}

/// All Unix sockets of the network namespace `namespace`, or of the caller's, by inode.
pub fn unix_sockets(namespace: Option<BorrowedFd<'_>>) -> Result<HashMap<u32, UnixSocket>, Errno> {
    let mut request = [0u8; 24];
    request[0] = libc::AF_UNIX as u8;
    request[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    request[12..16].copy_from_slice(&SHOW_NAME_PEER_QUEUE.to_ne_bytes());
    let mut found = HashMap::new();
    dump(namespace, &request, |body| found.extend(parse(body)))?;
    Ok(found)
}

fn parse(body: &[u8]) -> Option<(u32, UnixSocket)> {
    let mut socket = UnixSocket {
        kind: u32::from(*body.get(1)?),
        is_listening: *body.get(2)? == LISTEN,
        ..UnixSocket::default()
    };
    let inode = u32_at(body, 4)?;
    for (kind, value) in attributes(body) {
        match kind {
            NAME => socket.name = Some(value.to_vec()),
            QUEUE if socket.is_listening => socket.backlog = u32_at(value, 4)?,
            PEER => socket.peer = u32_at(value, 0),
            SHUTDOWN => socket.shutdown = u32::from(*value.first()?),
            _ => {}
        }
    }
    Some((inode, socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    fn inode(socket: &impl AsRawFd) -> u32 {
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        std::fs::metadata(path).unwrap().ino() as u32
    }

    #[test]
    fn both_ends_of_a_pair_name_each_other() {
        let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
        left.shutdown(std::net::Shutdown::Write).unwrap();
        let found = unix_sockets(None).unwrap();
        assert_eq!(found[&inode(&left)].peer, Some(inode(&right)));
        assert_eq!(found[&inode(&right)].peer, Some(inode(&left)));
        assert_eq!((found[&inode(&left)].shutdown, found[&inode(&right)].shutdown), (2, 1));
        assert_eq!(found[&inode(&left)].kind, libc::SOCK_STREAM as u32);
    }

    #[test]
    fn a_listening_socket_shows_its_backlog() {
        let path = std::env::temp_dir().join(format!("unix-diag-{}", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 11).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(unix_sockets(None).unwrap()[&inode(&listener)].backlog, 11);
    }
}
