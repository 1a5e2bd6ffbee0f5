//! Finding the peer of a socket.

use super::{Finding, Probe, while_doing};
use crate::Group;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket, socketpair,
};
use std::os::fd::AsRawFd;

pub(super) const PROBES: &[Probe] = &[Probe {
    id: "unix_diag",
    group: Group::Better,
    needed_for: "finding the other end of a socket pair; without it they are refused",
    advice: "modprobe unix_diag, or use a kernel with CONFIG_UNIX_DIAG",
    look: unix_diag,
}];

// From linux/netlink.h, linux/sock_diag.h and linux/unix_diag.h.
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
/// `struct nlmsghdr`, and `struct unix_diag_req` or `unix_diag_msg` behind it.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = 24;
const MESSAGE_BYTES: usize = 16;

fn unix_diag() -> Finding {
    let none = SockFlag::SOCK_CLOEXEC;
    let (left, right) = socketpair(AddressFamily::Unix, SockType::Stream, None, none)
        .map_err(while_doing("making a socket pair"))?;
    let inode = |fd| {
        rustix::fs::fstat(fd).map(|stat| stat.st_ino).map_err(while_doing("looking at a socket"))
    };
    let netlink =
        socket(AddressFamily::Netlink, SockType::Raw, none, SockProtocol::NetlinkSockDiag)
            .map_err(while_doing("opening a socket diagnosis socket"))?;
    let request = peer_request(inode(&left)? as u32);
    send(netlink.as_raw_fd(), &request, MsgFlags::empty())
        .map_err(while_doing("asking for the peer of a socket"))?;
    let mut answer = [0; 4096];
    let bytes = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())
        .map_err(while_doing("reading the peer of a socket"))?;
    let peer = peer_in(&answer[..bytes])?;
    if u64::from(peer) == inode(&right)? {
        Ok("found the other end of a socket pair".into())
    } else {
        Err(format!("the kernel reported socket {peer} as the peer, which is wrong"))
    }
}

fn peer_request(inode: u32) -> Vec<u8> {
    let mut request = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
    request.extend(((HEADER_BYTES + REQUEST_BYTES) as u32).to_ne_bytes());
    for half in [SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST] {
        request.extend(half.to_ne_bytes());
    }
    let family = libc::AF_UNIX as u32;
    let (any_state, any_cookie) = (u32::MAX, u32::MAX);
    let (sequence, sender) = (0, 0);
    for word in
        [sequence, sender, family, any_state, inode, UDIAG_SHOW_PEER, any_cookie, any_cookie]
    {
        request.extend(word.to_ne_bytes());
    }
    request
}

fn peer_in(answer: &[u8]) -> Result<u32, String> {
    let half = |at: usize| answer.get(at..at + 2).map(|b| u16::from_ne_bytes([b[0], b[1]]));
    let word = |at| Some(u32::from(half(at)?) | u32::from(half(at + 2)?) << 16);
    if half(4) == Some(NLMSG_ERROR) {
        let error = -(word(HEADER_BYTES).unwrap_or_default() as i32);
        return Err(format!("the kernel answered: {}", std::io::Error::from_raw_os_error(error)));
    }
    let mut at = HEADER_BYTES + MESSAGE_BYTES;
    while let (Some(length), Some(kind)) = (half(at), half(at + 2)) {
        if kind == UNIX_DIAG_PEER {
            return word(at + 4).ok_or_else(|| "the kernel's answer is truncated".to_owned());
        }
        at += usize::from(length.max(4)).next_multiple_of(4);
    }
    Err("the kernel's answer has no peer".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_message_is_shown_in_words() {
        let mut answer = [0u8; 36];
        answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        answer[16..20].copy_from_slice(&(-libc::ENOENT).to_ne_bytes());
        assert!(peer_in(&answer).unwrap_err().contains("No such file"));
    }

    #[test]
    fn an_answer_without_a_peer_is_an_error() {
        assert!(peer_in(&[0; 32]).unwrap_err().contains("no peer"));
    }
}
