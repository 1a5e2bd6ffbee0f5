//! Sockets of the Internet protocols. A socket that others find by its address is made again at
//! that address. A TCP connection stays the parent's, and the clone's is reset: a program would
//! take a plain end of stream for a complete answer.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use farfork_image::model::{OpenFile, Socket, SocketRole};
use farfork_sys::socket::{
    filter, integer_option, local_address, namespace_cookie, peer_address, reset_on_close,
    tcp_state,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::error::{CaptureError, CaptureResult, DescriptorError, kernel_error, refuse_detail};
use super::network::SocketKind;
use super::subject::Subject;
use super::table::Entry;
use super::{external, multicast, options, raw};
use crate::refuse::{Cause, causes};

/// `TCP_CLOSE` and `TCP_LISTEN` of the kernel.
const CLOSED: u8 = 7;
const LISTENING: u8 = 10;

/// A socket of family `AF_INET` or `AF_INET6`, described by `words`.
pub fn capture(
    entry: &Entry,
    subject: &Subject,
    socket: &OwnedFd,
    kind: SocketKind,
    words: String,
) -> CaptureResult {
    if let Some(cause) = unknown(kind) {
        return Err(refuse_detail(words, cause));
    }
    let failed = || kernel_error(subject.pid, format!("the state of socket fd {}", entry.fd));
    let role = match raw_peer(entry, subject, kind) {
        Some(peer) => SocketRole::Connected { peer },
        None => role(socket, kind).map_err(failed())?,
    };
    let role = match (role, subject.kept()) {
        (SocketRole::Ended { .. }, Some(kept)) if is_open(socket).map_err(failed())? => {
            check_alone(entry, subject, &words)?;
            kept.role(subject.pid, socket, kind, &words)?
        }
        (role @ SocketRole::Ended { .. }, _) => return Ok(ended(entry, kind, words, role)),
        (role, _) => role,
    };
    let new = subject.network.new_socket(kind)?;
    if !is_at_home(socket, &new).map_err(failed())? {
        return elsewhere(words, &role);
    }
    let shutdown = match kind.kind {
        libc::SOCK_DGRAM => shutdown(entry, subject, socket).map_err(failed())?,
        _ => 0,
    };
    let mut made = made(entry, subject, socket, kind, words)?;
    made.name = local_address(socket.as_fd()).ok().filter(|name| is_bound(name, kind));
    if let SocketRole::Established(_) = role {
        made.options.retain(|option| !options::is_of_connection(option));
    }
    (made.role, made.shutdown) = (role, shutdown);
    let memberships = multicast::memberships(subject.pid, socket);
    made.options.extend(memberships.ok_or_else(|| refuse_sources(&made.description))?);
    Ok(OpenFile::Socket(Box::new(made)))
}

/// Lets the connection behind `entry` end in a reset when the process dies, so that its port is
/// free for the clone that takes its place, and its peer notices at once.
pub fn reset_on_death(entry: &Entry, subject: &Subject) -> Result<(), DescriptorError> {
    if subject.is_shared(&entry.link) {
        return Ok(());
    }
    let socket = subject.open(entry)?;
    // The first path of an MPTCP connection may be closed while others are not.
    let is_connection = tcp_state(socket.as_fd()).is_ok_and(|known| known.state != LISTENING);
    if is_connection {
        // One that is gone by itself by now needs no reset.
        let _ = reset_on_close(socket.as_fd());
    }
    Ok(())
}

/// Why sockets of this kind are not carried, if they are not.
fn unknown(SocketKind { kind, protocol, .. }: SocketKind) -> Option<&'static Cause> {
    match (kind, protocol) {
        (libc::SOCK_STREAM, libc::IPPROTO_TCP | libc::IPPROTO_MPTCP) => None,
        (libc::SOCK_DGRAM, libc::IPPROTO_UDP) | (libc::SOCK_RAW, _) => None,
        (_, libc::IPPROTO_SCTP) => Some(causes::sockets::SCTP),
        (libc::SOCK_DGRAM, libc::IPPROTO_ICMP | libc::IPPROTO_ICMPV6) => {
            Some(causes::sockets::PING)
        }
        _ => Some(causes::sockets::UNKNOWN_PROTOCOL),
    }
}

fn raw_peer(entry: &Entry, subject: &Subject, kind: SocketKind) -> Option<Vec<u8>> {
    let is_raw = kind.kind == libc::SOCK_RAW;
    is_raw.then(|| raw::peer(subject.pid, entry.inode.ino(), kind)).flatten()
}

fn role(socket: &OwnedFd, kind: SocketKind) -> Result<SocketRole, Errno> {
    match (kind.kind, kind.protocol) {
        (libc::SOCK_STREAM, libc::IPPROTO_TCP) => return tcp_role(socket),
        (libc::SOCK_STREAM, libc::IPPROTO_MPTCP) => return mptcp_role(socket),
        _ => {}
    }
    match peer_address(socket.as_fd()) {
        Ok(peer) => Ok(SocketRole::Connected { peer }),
        Err(Errno::NOTCONN) => Ok(SocketRole::Idle),
        Err(errno) => Err(errno),
    }
}

fn tcp_role(socket: &OwnedFd) -> Result<SocketRole, Errno> {
    let known = tcp_state(socket.as_fd())?;
    Ok(match known.state {
        LISTENING => SocketRole::Listening { backlog: known.backlog },
        CLOSED => closed_role(poll_state(socket)?),
        _ => SocketRole::Ended { is_reset: true },
    })
}

/// A connection over several paths outlives the first of them, the only one that `TCP_INFO`
/// describes.
fn mptcp_role(socket: &OwnedFd) -> Result<SocketRole, Errno> {
    if sockopt::socket_acceptconn(socket)? {
        return tcp_role(socket);
    }
    let polled = poll_state(socket)?;
    // One on its way to its peer has no peer yet, and is not hung up either.
    let is_over = peer_address(socket.as_fd()).is_err() && polled.contains(PollFlags::HUP);
    Ok(if is_over { closed_role(polled) } else { SocketRole::Ended { is_reset: true } })
}

/// What a socket in the state CLOSED was, by what it is ready for.
fn closed_role(polled: PollFlags) -> SocketRole {
    if !polled.contains(PollFlags::RDHUP) {
        return SocketRole::Idle;
    }
    SocketRole::Ended { is_reset: polled.contains(PollFlags::ERR) }
}

/// Whether a connection that a clone cannot have is not over in the process itself.
fn is_open(socket: &OwnedFd) -> Result<bool, Errno> {
    Ok(!poll_state(socket)?.contains(PollFlags::HUP))
}

/// A connection that another process holds as well would not go when this one dies.
fn check_alone(entry: &Entry, subject: &Subject, words: &str) -> Result<(), CaptureError> {
    if subject.is_shared(&entry.link) {
        return Err(refuse_detail(words, causes::sockets::TCP_SHARED));
    }
    Ok(())
}

/// What the socket is ready for. Polling takes nothing from it.
pub fn poll_state(socket: &OwnedFd) -> Result<PollFlags, Errno> {
    let mut asked = [PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
    poll(&mut asked, Some(&Timespec::default()))?;
    Ok(asked[0].revents())
}

/// Bit 0 if a socket of datagrams was shut down for reading, bit 1 if for writing. The kernel does not list
/// sockets without a port: of these it shows the first only.
fn shutdown(entry: &Entry, subject: &Subject, socket: &OwnedFd) -> Result<u32, Errno> {
    let for_reading = u32::from(poll_state(socket)?.contains(PollFlags::RDHUP));
    let listed = subject.network.shut_down(entry.inode.ino() as u32)?;
    Ok(listed.map_or(for_reading, u32::from))
}

/// Finds sockets that are connected to others of `files`: with other addresses than their parents', clones
/// would send to these.
pub fn find_those_within(files: &mut [OpenFile]) {
    let sockets = || {
        files.iter().map(|file| match file {
            OpenFile::Socket(socket) => Some(&**socket),
            _ => None,
        })
    };
    let is_within = |own: &Socket| sockets().flatten().any(|to| own.sends_to(to));
    let is_sent_to = |own: &Socket| sockets().flatten().any(|from| from.sends_to(own));
    let found: Vec<(bool, bool)> = sockets()
        .map(|own| own.map_or((false, false), |own| (is_within(own), is_sent_to(own))))
        .collect();
    for (file, (is_within, is_sent_to)) in files.iter_mut().zip(found) {
        let OpenFile::Socket(socket) = file else { continue };
        if is_sent_to {
            socket.description.push_str(", which a socket of the process sends to");
        }
        if let (true, SocketRole::Connected { peer }) = (is_within, &mut socket.role) {
            socket.role = SocketRole::Within { peer: std::mem::take(peer) };
        }
    }
}

/// A connection that is over has neither address nor options that matter, and is one of TCP: only
/// that can be put into this state.
fn ended(entry: &Entry, kind: SocketKind, words: String, role: SocketRole) -> OpenFile {
    let is_mptcp = kind.protocol == libc::IPPROTO_MPTCP;
    let protocol = if is_mptcp { libc::IPPROTO_TCP } else { kind.protocol };
    let kind = SocketKind { protocol, ..kind };
    OpenFile::Socket(Box::new(Socket { role, ..plain(entry, kind, words) }))
}

fn plain(
    entry: &Entry,
    SocketKind { family, kind, protocol }: SocketKind,
    description: String,
) -> Socket {
    Socket {
        description,
        family: family as u32,
        kind: kind as u32,
        protocol: protocol as u32,
        flags: entry.info.status_flags(),
        owner: (entry.inode.uid(), entry.inode.gid()),
        ..Socket::default()
    }
}

/// The socket with all that the process set on it, without address and role.
pub fn made(
    entry: &Entry,
    subject: &Subject,
    socket: &OwnedFd,
    kind: SocketKind,
    words: String,
) -> Result<Socket, CaptureError> {
    let failed = || kernel_error(subject.pid, format!("the state of socket fd {}", entry.fd));
    let new = subject.network.new_socket(kind)?;
    let filter = match filter(socket.as_fd()) {
        Err(Errno::ACCESS) => return Err(refuse_program(words)),
        other => other.map_err(failed())?,
    };
    let locked = integer_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_LOCK_FILTER);
    let is_stream = kind.kind == libc::SOCK_STREAM;
    let buffers = options::buffers(socket, &new, is_stream).map_err(failed())?;
    Ok(Socket {
        options: options::changed(socket, &new),
        buffers: buffers.sizes,
        last_options: buffers.unlocked.into_iter().collect(),
        filter,
        is_filter_locked: locked.map_err(failed())? != 0,
        ..plain(entry, kind, words)
    })
}

fn refuse_sources(words: &str) -> CaptureError {
    refuse_detail(words, causes::sockets::MULTICAST_SOURCES)
}

fn refuse_program(words: String) -> CaptureError {
    refuse_detail(words, causes::sockets::EBPF)
}

/// Whether the socket belongs to the network namespace that the process is in.
pub fn is_at_home(socket: &OwnedFd, new: &Rc<OwnedFd>) -> Result<bool, Errno> {
    Ok(namespace_cookie(socket.as_fd())? == namespace_cookie(new.as_fd())?)
}

/// A clone has the namespace of its node, and no way into another: the caller has.
fn elsewhere(words: String, role: &SocketRole) -> CaptureResult {
    match role {
        SocketRole::Listening { .. } => {
            Ok(external::of(format!("{words}, in another network namespace")))
        }
        _ => Err(refuse_detail(words, causes::sockets::OTHER_NAMESPACE)),
    }
}

/// Whether the address is more than the family's empty one: family, port, then the address. In
/// the place of a port, a raw socket has its protocol.
fn is_bound(name: &[u8], SocketKind { family, kind, .. }: SocketKind) -> bool {
    const PORT: Range<usize> = 2..4;
    let address = if family == libc::AF_INET6 { 8..24 } else { 4..8 };
    let port = if kind == libc::SOCK_RAW { 0..0 } else { PORT };
    [port, address].into_iter().filter_map(|part| name.get(part)).flatten().any(|byte| *byte != 0)
}
