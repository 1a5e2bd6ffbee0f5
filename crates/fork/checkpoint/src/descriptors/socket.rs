//! Sockets by their families: those that farfork does not know are refused.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use farfork_sys::socket::integer_option;
use rustix::net::{AddressFamily, getsockname, sockopt};

use super::error::{CaptureResult, kernel_error, refuse_detail};
use super::network::SocketKind;
use super::subject::Subject;
use super::table::Entry;
use super::{external, inet, netlink, packet, unix};
use crate::refuse::{Cause, causes};

/// A socket.
pub fn capture(entry: &Entry, subject: &Subject) -> CaptureResult {
    let socket = subject.open(entry)?;
    let domain = sockopt::socket_domain(&socket)
        .map_err(kernel_error(subject.pid, format!("the type of socket fd {}", entry.fd)))?;
    if domain == AddressFamily::UNIX {
        return unix::capture(entry, subject, &socket);
    }
    let failed = || kernel_error(subject.pid, format!("the type of socket fd {}", entry.fd));
    let ask = |option| integer_option(socket.as_fd(), libc::SOL_SOCKET, option).map_err(failed());
    let kind = SocketKind {
        family: ask(libc::SO_DOMAIN)?,
        kind: ask(libc::SO_TYPE)?,
        protocol: ask(libc::SO_PROTOCOL)?,
    };
    let words = describe(&socket, kind);
    if entry.is_standard() {
        return Ok(external::of(words));
    }
    match kind.family {
        libc::AF_INET | libc::AF_INET6 => inet::capture(entry, subject, &socket, kind, words),
        libc::AF_NETLINK => netlink::capture(entry, subject, &socket, kind),
        libc::AF_PACKET => packet::capture(entry, subject, &socket, kind, words),
        family => Err(refuse_detail(words, refusal(family))),
    }
}

/// Why sockets of a family are not carried.
fn refusal(family: i32) -> &'static Cause {
    match family {
        libc::AF_VSOCK => causes::sockets::VSOCK,
        libc::AF_ALG => causes::sockets::ALG,
        libc::AF_BLUETOOTH | libc::AF_CAN => causes::sockets::MACHINE_DEVICE,
        libc::AF_XDP => causes::sockets::XDP,
        _ => causes::sockets::UNKNOWN_FAMILY,
    }
}

/// `TCP 127.0.0.1:80 listening`.
fn describe(socket: &OwnedFd, SocketKind { family, kind, protocol }: SocketKind) -> String {
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
