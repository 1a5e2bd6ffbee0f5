//! What a socket was set to and what it stands for, asked through any descriptor of it. Nothing
//! here changes a socket, but for [`set_option`] and [`reset_on_close`].
#![allow(unsafe_code)] // reason: setsockopt, getsockopt and setns take untyped memory or threads

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// Bytes of the kernel's `struct sockaddr_storage`: no address is longer.
pub const ADDRESS_BYTES: usize = 128;
/// Most instructions of a classic filter (`BPF_MAXINSNS`).
pub const FILTER_INSTRUCTIONS: usize = 4096;

/// An option whose value is an `int`.
pub fn integer_option(socket: BorrowedFd<'_>, level: i32, option: i32) -> Result<i32, Errno> {
    let value = option_bytes(socket, level, option, size_of::<i32>())?;
    value.try_into().map(i32::from_ne_bytes).map_err(|_| Errno::BADMSG)
}

/// The value of an option, of at most `capacity` bytes.
pub fn option_bytes(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    capacity: usize,
) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0u8; capacity];
    let length = raw_option(socket, level, option, &mut value, capacity)?;
    value.truncate(length);
    Ok(value)
}

/// Asks for an option whose value says first what is asked about.
pub fn ask_option(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: &mut [u8],
) -> Result<(), Errno> {
    let length = value.len();
    raw_option(socket, level, option, value, length).map(drop)
}

/// The instructions of the socket's classic filter, eight bytes each; none without a filter.
/// EACCES if the filter is an eBPF program, which cannot be read.
pub fn filter(socket: BorrowedFd<'_>) -> Result<Vec<u64>, Errno> {
    const GET_FILTER: i32 = libc::SO_ATTACH_FILTER;
    let mut bytes = vec![0u8; FILTER_INSTRUCTIONS * size_of::<u64>()];
    // The length is counted in instructions, both ways.
    let count = raw_option(socket, libc::SOL_SOCKET, GET_FILTER, &mut bytes, FILTER_INSTRUCTIONS)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(words.iter().take(count).map(|word| u64::from_ne_bytes(*word)).collect())
}

/// Asks for an option into `value`; `length` is the room that the kernel is given.
fn raw_option(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: &mut [u8],
    length: usize,
) -> Result<usize, Errno> {
    let mut length = length as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, or instructions of a filter, for which
    // `value` has room.
    let result = unsafe {
        let (fd, at) = (socket.as_raw_fd(), value.as_mut_ptr().cast());
        libc::getsockopt(fd, level, option, at, &raw mut length)
    };
    check(result).map(|()| length as usize)
}

/// The address that the socket is bound to, as the kernel writes it.
pub fn local_address(socket: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    address(socket, libc::getsockname)
}

/// The address that the socket is connected to.
pub fn peer_address(socket: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    address(socket, libc::getpeername)
}

type AskAddress =
    unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn address(socket: BorrowedFd<'_>, ask: AskAddress) -> Result<Vec<u8>, Errno> {
    let mut bytes = [0u8; ADDRESS_BYTES];
    let mut length = ADDRESS_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `bytes`.
    check(unsafe { ask(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), &raw mut length) })?;
    Ok(bytes[..(length as usize).min(ADDRESS_BYTES)].to_vec())
}

/// What the kernel shows of a TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpState {
    /// `TCP_ESTABLISHED` (1) to `TCP_CLOSING` (11).
    pub state: u8,
    /// Of a listening socket: how many connections may wait to be accepted.
    pub backlog: u32,
}

/// State of a TCP socket, from `TCP_INFO`.
pub fn tcp_state(socket: BorrowedFd<'_>) -> Result<TcpState, Errno> {
    /// Offset of `tcpi_sacked`, which holds the backlog of a listening socket.
    const SACKED: usize = 28;
    let info = option_bytes(socket, libc::IPPROTO_TCP, libc::TCP_INFO, 104)?;
    let backlog = info.get(SACKED..SACKED + 4).and_then(|word| word.try_into().ok());
    match (info.first(), backlog) {
        (Some(state), Some(word)) => {
            Ok(TcpState { state: *state, backlog: u32::from_ne_bytes(word) })
        }
        _ => Err(Errno::BADMSG),
    }
}

/// A number that no two network namespaces share (`SO_NETNS_COOKIE`, Linux 5.14).
pub fn namespace_cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    const NETNS_COOKIE: i32 = 71;
    let value = option_bytes(socket, libc::SOL_SOCKET, NETNS_COOKIE, size_of::<u64>())?;
    value.try_into().map(u64::from_ne_bytes).map_err(|_| Errno::BADMSG)
}

/// A new socket in the network namespace `namespace`, or in the caller's. A socket keeps the
/// namespace it was made in, so that a thread that enters the namespace can make it and end: no
/// other thread ever leaves its own.
pub fn socket_in(
    namespace: Option<BorrowedFd<'_>>,
    family: i32,
    kind: i32,
    protocol: i32,
) -> Result<OwnedFd, Errno> {
    let make = || {
        // SAFETY: a call without memory.
        let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
        if fd < 0 {
            return Err(last_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    let Some(namespace) = namespace else { return make() };
    let enter = || {
        // SAFETY: changes the namespace of this thread only, which ends right after.
        check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
        make()
    };
    std::thread::scope(|scope| scope.spawn(enter).join().unwrap_or(Err(Errno::CANCELED)))
}

/// Lets a TCP connection end in a reset when its last descriptor is closed, which leaves nothing
/// of it in the kernel (`SO_LINGER` of no time).
pub fn reset_on_close(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let linger = [1i32, 0].map(i32::to_ne_bytes);
    set_option(socket, libc::SO_LINGER, linger.as_flattened())
}

/// Sets an option of the socket's own level. It belongs to the socket, not to the descriptor: a
/// caller that sets it on another process's socket has to restore the old value.
pub fn set_option(socket: BorrowedFd<'_>, option: i32, value: &[u8]) -> Result<(), Errno> {
    set_option_at(socket, libc::SOL_SOCKET, option, value)
}

/// Sets an option of any level.
pub fn set_option_at(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: &[u8],
) -> Result<(), Errno> {
    // SAFETY: the kernel reads the bytes of `value`.
    check(unsafe {
        let (fd, length) = (socket.as_raw_fd(), value.len() as libc::socklen_t);
        libc::setsockopt(fd, level, option, value.as_ptr().cast(), length)
    })
}

fn check(result: i32) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_raw_os_error(nix::errno::Errno::last_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn a_listening_socket_shows_state_and_backlog() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 7).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(tcp_state(listener.as_fd()), Ok(TcpState { state: 10, backlog: 7 }));
        assert_eq!(tcp_state(client.as_fd()).unwrap().state, 1);
        assert_eq!(local_address(listener.as_fd()), peer_address(client.as_fd()));
        assert_eq!(peer_address(listener.as_fd()), Err(Errno::NOTCONN));
    }

    #[test]
    fn a_socket_without_a_filter_has_no_instructions() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(filter(socket.as_fd()), Ok(Vec::new()));
    }

    #[test]
    fn a_namespace_has_a_cookie_of_its_own() {
        let make = |place| socket_in(place, libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
        let here = std::fs::File::open("/proc/self/ns/net").unwrap();
        let (one, other) = (make(None), make(Some(here.as_fd())));
        assert_eq!(namespace_cookie(one.as_fd()), namespace_cookie(other.as_fd()));
    }
}
