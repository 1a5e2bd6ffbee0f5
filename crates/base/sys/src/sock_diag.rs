//! Sockets of a network namespace as the kernel lists them, by `sock_diag` (Linux 3.3).
//!
//! ```text
//!  nlmsghdr (16) │ request of the family, which begins with its number
//!  nlmsghdr (16) │ message of the family (16): family, type, …, inode, cookie[2] │ attributes
//! ```

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::socket::socket_in;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER_BYTES: usize = 16;
/// Bytes of a family's message before its attributes.
const MESSAGE_BYTES: usize = 16;

/// Asks for all sockets of a family in the network namespace `namespace`, or in the caller's, and
/// hands on the message about each.
pub fn dump(
    namespace: Option<BorrowedFd<'_>>,
    request: &[u8],
    mut each: impl FnMut(&[u8]),
) -> Result<(), Errno> {
    let (family, protocol) = (libc::AF_NETLINK, libc::NETLINK_SOCK_DIAG);
    let socket = socket_in(namespace, family, libc::SOCK_RAW, protocol)?;
    let mut message = vec![0u8; HEADER_BYTES];
    message.extend_from_slice(request);
    let length = message.len() as u32;
    message[0..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    send(&socket, &message, SendFlags::empty())?;
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        let (_, bytes) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if take_messages(&buffer[..bytes], &mut each)? {
            return Ok(());
        }
    }
}

/// Takes the messages of one datagram; true once it was the last.
fn take_messages(mut bytes: &[u8], each: &mut impl FnMut(&[u8])) -> Result<bool, Errno> {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let Some(body) = bytes.get(HEADER_BYTES..length as usize) else {
            return Err(Errno::BADMSG);
        };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return Err(error_of(body)),
            _ => each(body),
        }
        bytes = bytes.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn error_of(body: &[u8]) -> Errno {
    let errno = u32_at(body, 0).map_or(0, |value| -(value as i32));
    if errno > 0 { Errno::from_raw_os_error(errno) } else { Errno::BADMSG }
}

/// The attributes of a message about a socket: their kinds and values.
pub fn attributes(body: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    attributes_after(body, MESSAGE_BYTES)
}

/// The attributes that follow the first `bytes` of a message.
pub fn attributes_after(body: &[u8], bytes: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(bytes..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, kind) = (u16_at(rest, 0)?, u16_at(rest, 2)?);
        let value = rest.get(4..usize::from(length))?;
        rest = rest.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The number of 32 bits at offset `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The number of 16 bits at offset `at`.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}
