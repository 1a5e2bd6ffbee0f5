//! Unix sockets of a network namespace and their peers, by `sock_diag` (Linux 3.3).
//!
//! ```text
//!  nlmsghdr (16) │ unix_diag_req (24): family, protocol, pad, states, inode, show, cookie[2]
//!  nlmsghdr (16) │ unix_diag_msg (16): family, type, state, pad, inode, cookie[2] │ attributes
//! ```

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::socket::socket_in;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
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
    let (family, protocol) = (libc::AF_NETLINK, libc::NETLINK_SOCK_DIAG);
    let socket = socket_in(namespace, family, libc::SOCK_RAW, protocol)?;
    send(&socket, &request(), SendFlags::empty())?;
    let mut found = HashMap::new();
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        let (_, bytes) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if take_messages(&buffer[..bytes], &mut found)? {
            return Ok(found);
        }
    }
}

fn request() -> [u8; 40] {
    let mut bytes = [0u8; 40];
    bytes[0..4].copy_from_slice(&40u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    bytes[16] = libc::AF_UNIX as u8;
    bytes[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    bytes[28..32].copy_from_slice(&SHOW_NAME_PEER_QUEUE.to_ne_bytes());
    bytes
}

/// Takes the messages of one datagram; true once the kernel has told all.
fn take_messages(mut bytes: &[u8], found: &mut HashMap<u32, UnixSocket>) -> Result<bool, Errno> {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let Some(body) = bytes.get(16..length as usize) else { return Err(Errno::BADMSG) };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return Err(error_of(body)),
            _ => found.extend(parse(body)),
        }
        bytes = bytes.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn error_of(body: &[u8]) -> Errno {
    let errno = u32_at(body, 0).map_or(0, |value| -(value as i32));
    if errno > 0 { Errno::from_raw_os_error(errno) } else { Errno::BADMSG }
}

fn parse(body: &[u8]) -> Option<(u32, UnixSocket)> {
    let mut socket = UnixSocket {
        kind: u32::from(*body.get(1)?),
        is_listening: *body.get(2)? == LISTEN,
        ..UnixSocket::default()
    };
    let inode = u32_at(body, 4)?;
    let mut rest = body.get(16..)?;
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let value = rest.get(4..usize::from(length))?;
        match kind {
            NAME => socket.name = Some(value.to_vec()),
            QUEUE if socket.is_listening => socket.backlog = u32_at(value, 4)?,
            PEER => socket.peer = u32_at(value, 0),
            SHUTDOWN => socket.shutdown = u32::from(*value.first()?),
            _ => {}
        }
        rest = rest.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
    }
    Some((inode, socket))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
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
    fn a_listening_socket_tells_how_many_may_wait() {
        let path = std::env::temp_dir().join(format!("unix-diag-{}", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 11).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(unix_sockets(None).unwrap()[&inode(&listener)].backlog, 11);
    }
}
