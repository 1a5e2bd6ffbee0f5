//! Sockets: those of the Internet protocols are made again, Unix pairs are carried, Unix
//! connections and listeners that lead out of the process are supplied at restore, all others are
//! refused.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use farfork_sys::socket::integer_option;
use farfork_sys::unix_diag::UnixSocket;
use rustix::net::{AddressFamily, getsockname, sockopt};

use super::error::{Capture, Stop, asking, refuse_detail};
use super::network::SocketKind;
use super::pair;
use super::subject::Subject;
use super::table::Entry;
use super::{external, inet};

/// A socket.
pub fn capture(entry: &Entry, subject: &Subject) -> Capture {
    let socket = subject.open(entry)?;
    let domain = sockopt::socket_domain(&socket)
        .map_err(asking(subject.pid, format!("what socket fd {} is", entry.fd)))?;
    if domain == AddressFamily::UNIX {
        return unix(entry, subject, &socket);
    }
    let failed = || asking(subject.pid, format!("what socket fd {} is", entry.fd));
    let ask = |option| integer_option(socket.as_fd(), libc::SOL_SOCKET, option).map_err(failed());
    let kind = (ask(libc::SO_DOMAIN)?, ask(libc::SO_TYPE)?, ask(libc::SO_PROTOCOL)?);
    let words = describe(&socket, kind);
    if entry.is_standard() {
        return Ok(external::of(words));
    }
    match kind.0 {
        libc::AF_INET | libc::AF_INET6 => inet::capture(entry, subject, &socket, kind, words),
        family => {
            let (reason, remedy) = refusal(family);
            Err(refuse_detail(words, reason, remedy))
        }
    }
}

/// Why sockets of a family are not carried, and what to do.
fn refusal(family: i32) -> (&'static str, &'static str) {
    const CLOSE: &str = "close it before the checkpoint, and open it again after the restore";
    match family {
        libc::AF_VSOCK => ("its other end is a virtual machine or its host", CLOSE),
        libc::AF_ALG => ("the kernel keeps its keys and the state of its work", CLOSE),
        libc::AF_BLUETOOTH | libc::AF_CAN => ("its device is this machine's", CLOSE),
        libc::AF_XDP => ("it shares its rings with a network device of this machine", CLOSE),
        _ => ("farfork does not know what its family keeps in this kernel", CLOSE),
    }
}

/// `TCP 127.0.0.1:80 listening`.
fn describe(socket: &OwnedFd, (family, kind, protocol): SocketKind) -> String {
    let name = match (family, kind, protocol) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, libc::IPPROTO_TCP) => "TCP",
        (libc::AF_INET | libc::AF_INET6, _, libc::IPPROTO_MPTCP) => "MPTCP",
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP) => "UDP",
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_RAW, _) => "raw IP",
        (libc::AF_INET | libc::AF_INET6, _, libc::IPPROTO_ICMP | libc::IPPROTO_ICMPV6) => "ping",
        (libc::AF_INET | libc::AF_INET6, ..) => "IP",
        (libc::AF_NETLINK, ..) => "netlink",
        (libc::AF_PACKET, ..) => "packet",
        (libc::AF_VSOCK, ..) => "vsock",
        (libc::AF_ALG, ..) => "AF_ALG",
        _ => "socket of an unknown family",
    };
    let address = getsockname(socket).ok().and_then(|any| SocketAddr::try_from(any).ok());
    let address = address.map_or(String::new(), |address| format!(" {address}"));
    let listens = sockopt::socket_acceptconn(socket) == Ok(true);
    format!("{name}{address}{}", if listens { " listening" } else { "" })
}

fn unix(entry: &Entry, subject: &Subject, socket: &OwnedFd) -> Capture {
    let inode = entry.inode.ino() as u32;
    let Some(known) = subject.unix_socket(inode) else {
        return Err(refuse_detail(
            "Unix socket",
            "it belongs to another network namespace than the process",
            "close it before the checkpoint",
        ));
    };
    if known.is_listening {
        return Ok(external::of(format!("listening Unix socket {}", name(known))));
    }
    match known.peer {
        _ if leads_outside(entry, subject, known) => {
            Ok(external::of(format!("Unix socket connected to another process{}", at(known))))
        }
        None if entry.is_standard() => Ok(external::of("Unix socket without a peer")),
        None => Err(unconnected(known)),
        Some(_) if known.name.is_some() => Err(named(known)),
        Some(0) if is_unaccepted(known) => Err(unaccepted()),
        Some(peer) => check_mutual(inode, peer, subject)
            .and_then(|()| pair::capture(entry, subject, socket, known, peer)),
    }
}

fn leads_outside(entry: &Entry, subject: &Subject, known: &UnixSocket) -> bool {
    let Some(peer) = known.peer else { return false };
    let is_unpaired = peer != 0 && !subject.has_socket(peer);
    is_unpaired
        || (peer == 0 && entry.is_standard())
        || subject.is_shared(&entry.link)
        || subject.is_shared(&format!("socket:[{peer}]"))
}

/// A stream whose peer was closed is shut down both ways; one that waits to be accepted is not.
fn is_unaccepted(known: &UnixSocket) -> bool {
    known.kind != libc::SOCK_DGRAM as u32 && known.shutdown != 3
}

fn check_mutual(inode: u32, peer: u32, subject: &Subject) -> Result<(), Stop> {
    let back = subject.unix_socket(peer);
    if peer == 0 || back.is_some_and(|back| back.peer == Some(inode) && back.name.is_none()) {
        return Ok(());
    }
    Err(refuse_detail(
        "Unix socket connected within the process",
        "it is connected by name and not as a pair",
        "close it before the checkpoint, or use socketpair",
    ))
}

fn unconnected(known: &UnixSocket) -> Stop {
    refuse_detail(
        format!("Unix socket{}, not connected", at(known)),
        "a socket that is neither connected nor listening is not carried",
        "close it before the checkpoint",
    )
}

fn named(known: &UnixSocket) -> Stop {
    refuse_detail(
        format!("Unix socket{}", at(known)),
        "it was connected by name and not made as a pair",
        "close it before the checkpoint, or use socketpair",
    )
}

fn unaccepted() -> Stop {
    refuse_detail(
        "Unix socket",
        "the other side has not accepted the connection yet",
        "checkpoint when the connection is accepted",
    )
}

fn at(known: &UnixSocket) -> String {
    if known.name.is_some() { format!(" at {}", name(known)) } else { String::new() }
}

/// A path, or an abstract name in the usual notation, with `@` for the NUL.
fn name(known: &UnixSocket) -> String {
    match known.name.as_deref() {
        Some([0, rest @ ..]) => format!("@{}", String::from_utf8_lossy(rest)),
        Some(path) => String::from_utf8_lossy(path).trim_end_matches('\0').to_owned(),
        None => "without a name".to_owned(),
    }
}
