//! One end of a Unix socket pair, and what waits in it.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use farfork_image::model::OpenFile;
use farfork_sys::socket::{passes_credentials, peek_offset, set_peek_offset};
use farfork_sys::unix_diag::UnixSocket;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg, sockopt};

use super::error::{Capture, Stop, asking, refuse_detail};
use super::options;
use super::subject::Subject;
use super::table::Entry;
use crate::refuse::{Cause, causes};

/// Longest message that is looked for at first.
const MESSAGE_BYTES: usize = 256 << 10;

/// The end behind `entry`, which the kernel knows as `known` and whose peer has inode `peer`,
/// 0 once it is closed.
pub fn capture(
    entry: &Entry,
    subject: &Subject,
    socket: &OwnedFd,
    known: &UnixSocket,
    peer: u32,
) -> Capture {
    let inode = entry.inode.ino() as u32;
    let failed = || asking(subject.pid, format!("about socket fd {}", entry.fd));
    let incoming = incoming(entry, subject, socket, known)?;
    if !incoming.is_empty() && passes_credentials(socket.as_fd()).map_err(failed())? {
        return Err(refuse(causes::sockets::PAIR_CREDENTIALS));
    }
    let new = subject.network.new_socket((libc::AF_UNIX, known.kind as i32, 0))?;
    let receive = sockopt::socket_recv_buffer_size(socket).map_err(failed())?;
    let send = sockopt::socket_send_buffer_size(socket).map_err(failed())?;
    Ok(OpenFile::SocketPair {
        pair: if peer == 0 { inode.into() } else { inode.min(peer).into() },
        end: u32::from(peer != 0 && peer < inode),
        kind: known.kind,
        flags: entry.info.status_flags(),
        incoming,
        shutdown: known.shutdown,
        buffers: (receive as u32, send as u32),
        options: options::changed(socket, &new),
    })
}

fn refuse(cause: &'static Cause) -> Stop {
    refuse_detail("Unix socket pair", cause)
}

fn incoming(
    entry: &Entry,
    subject: &Subject,
    socket: &OwnedFd,
    known: &UnixSocket,
) -> Result<Vec<Vec<u8>>, Stop> {
    if entry.info.value("scm_fds").is_some_and(|count| count != "0") {
        return Err(refuse(causes::sockets::PAIR_DESCRIPTORS));
    }
    let peeked = match known.kind as i32 {
        libc::SOCK_STREAM => stream(socket),
        _ => messages(socket, has_end(known)),
    };
    match peeked {
        Ok(Peeked::Whole(messages)) => Ok(messages),
        Ok(Peeked::WithRights) => Err(refuse(causes::sockets::PAIR_RIGHTS)),
        Ok(Peeked::Partly) => Err(refuse(causes::sockets::PAIR_UNREADABLE)),
        Err(errno) => {
            Err(asking(subject.pid, format!("what waits in socket fd {}", entry.fd))(errno).into())
        }
    }
}

enum Peeked {
    Whole(Vec<Vec<u8>>),
    WithRights,
    Partly,
}

/// Bytes of a stream: one look shows them all, as long as no message with rights stands between.
fn stream(socket: &OwnedFd) -> Result<Peeked, Errno> {
    let waiting = ioctl_fionread(socket)? as usize;
    if waiting == 0 {
        return Ok(Peeked::Whole(Vec::new()));
    }
    let mut bytes = vec![0; waiting];
    let (length, flags) = peek(socket, &mut bytes)?;
    Ok(match (flags.contains(ReturnFlags::CTRUNC), length == waiting) {
        (true, _) => Peeked::WithRights,
        (false, true) => Peeked::Whole(vec![bytes]),
        (false, false) => Peeked::Partly,
    })
}

/// Whether reading past the last message gives nothing instead of failing: an empty message
/// would look the same.
fn has_end(known: &UnixSocket) -> bool {
    known.kind == libc::SOCK_SEQPACKET as u32 && known.shutdown & 1 != 0
}

/// Messages, one after the other: the socket's peek offset walks along the queue and is then put
/// back to where the process had it.
fn messages(socket: &OwnedFd, has_end: bool) -> Result<Peeked, Errno> {
    let before = peek_offset(socket.as_fd())?;
    set_peek_offset(socket.as_fd(), 0)?;
    let peeked = walk(socket, has_end);
    set_peek_offset(socket.as_fd(), before)?;
    peeked
}

fn walk(socket: &OwnedFd, has_end: bool) -> Result<Peeked, Errno> {
    let mut messages = Vec::new();
    let longest = sockopt::socket_recv_buffer_size(socket)?.max(MESSAGE_BYTES);
    let mut bytes = vec![0; longest];
    loop {
        match peek(socket, &mut bytes) {
            Err(Errno::AGAIN) => return Ok(Peeked::Whole(messages)),
            Ok((0, _)) if has_end => return Ok(Peeked::Whole(messages)),
            Ok((_, flags)) if flags.contains(ReturnFlags::CTRUNC) => return Ok(Peeked::WithRights),
            // The kernel does not step past an empty message twice.
            Ok((0, _)) => return Ok(Peeked::Partly),
            Ok((_, flags)) if flags.contains(ReturnFlags::TRUNC) => return Ok(Peeked::Partly),
            Ok((length, _)) => messages.push(bytes[..length].to_vec()),
            Err(errno) => return Err(errno),
        }
    }
}

/// Without room for control data, so that descriptors in flight are told of and not received.
fn peek(socket: &OwnedFd, bytes: &mut [u8]) -> Result<(usize, ReturnFlags), Errno> {
    let mut control = RecvAncillaryBuffer::default();
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let message = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    Ok((message.bytes, message.flags))
}
