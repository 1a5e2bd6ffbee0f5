//! What a TCP connection consists of, read in repair mode (`TCP_REPAIR`, Linux 3.5; needs
//! `CAP_NET_ADMIN`). In that mode the kernel sends nothing from the queues, and closing the
//! connection sends nothing to its peer.
#![allow(unsafe_code)] // reason: ioctl has no safe wrapper for the queues of sockets

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::socket::{integer_option, option_bytes, set_option_at};

/// `TCP_REPAIR`: whether the socket is in repair mode.
pub const REPAIR: i32 = 19;
/// `TCP_REPAIR_QUEUE`: which queue is meant.
pub const QUEUE: i32 = 20;
/// `TCP_QUEUE_SEQ`: the sequence number after its last byte.
pub const QUEUE_SEQUENCE: i32 = 21;
/// `TCP_REPAIR_OPTIONS`: what both ends have agreed on.
pub const OPTIONS: i32 = 22;
/// `TCP_TIMESTAMP`.
pub const TIMESTAMP: i32 = 24;
/// `TCP_REPAIR_WINDOW` (Linux 4.8).
pub const WINDOW: i32 = 29;
/// `TCP_RECV_QUEUE`.
pub const RECEIVED: i32 = 1;
/// `TCP_SEND_QUEUE`.
pub const SENT: i32 = 2;
/// `TCP_REPAIR_OFF_NO_WP`: leave the mode without a word to the peer.
pub const OFF_SILENTLY: i32 = -1;

/// Words of `struct tcp_repair_window`.
pub const WINDOW_WORDS: usize = 5;
const SIOCOUTQNSD: libc::c_ulong = 0x894b;

/// A connection at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Sequence number of the first byte that was received and not read, and these bytes.
    pub received: (u32, Vec<u8>),
    /// Sequence number of the first byte that the peer has not acknowledged, and all from there.
    pub sent: (u32, Vec<u8>),
    /// How many of these, at the end, were never sent.
    pub unsent: u32,
    /// Largest segment that the peer takes.
    pub segment_bytes: u32,
    /// `TCPI_OPT_*` bits.
    pub options: u8,
    /// Window scales: the peer's in the lower half, the own in the upper.
    pub scales: u8,
    /// The own clock, as the peer sees it.
    pub timestamp: u32,
    /// `struct tcp_repair_window`.
    pub window: [u32; WINDOW_WORDS],
}

/// Puts the connection into repair mode.
pub fn enter(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    set(socket, REPAIR, 1)
}

/// Takes the connection out of repair mode, without a word to the peer.
pub fn leave(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    set(socket, REPAIR, OFF_SILENTLY)
}

/// Looks at an established connection, whose packets have to be kept away for that time.
pub fn snapshot(socket: &OwnedFd) -> Result<Snapshot, Errno> {
    let borrowed = std::os::fd::AsFd::as_fd(socket);
    let reuses = integer_option(borrowed, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    enter(borrowed)?;
    let found = read(borrowed);
    leave(borrowed)?;
    // The end of the mode switches it off.
    set_option_at(borrowed, libc::SOL_SOCKET, libc::SO_REUSEADDR, &reuses.to_ne_bytes())?;
    found
}

fn read(socket: BorrowedFd<'_>) -> Result<Snapshot, Errno> {
    const INFO_HEAD: usize = 8;
    let info = option_bytes(socket, libc::IPPROTO_TCP, libc::TCP_INFO, INFO_HEAD)?;
    let &[_, _, _, _, _, options, scales, _] = &info[..] else { return Err(Errno::BADMSG) };
    let mut window = [0; WINDOW_WORDS];
    let words = option_bytes(socket, libc::IPPROTO_TCP, WINDOW, size_of_val(&window))?;
    for (to, from) in window.iter_mut().zip(words.as_chunks().0) {
        *to = u32::from_ne_bytes(*from);
    }
    let ask = |option| integer_option(socket, libc::IPPROTO_TCP, option).map(i32::cast_unsigned);
    Ok(Snapshot {
        received: queue(socket, RECEIVED, waiting(socket, libc::FIONREAD)?)?,
        sent: queue(socket, SENT, waiting(socket, libc::TIOCOUTQ)?)?,
        unsent: waiting(socket, SIOCOUTQNSD)? as u32,
        segment_bytes: ask(libc::TCP_MAXSEG)?,
        options,
        scales,
        timestamp: ask(TIMESTAMP)?,
        window,
    })
}

fn queue(socket: BorrowedFd<'_>, which: i32, length: usize) -> Result<(u32, Vec<u8>), Errno> {
    set(socket, QUEUE, which)?;
    let end = integer_option(socket, libc::IPPROTO_TCP, QUEUE_SEQUENCE)?.cast_unsigned();
    let mut bytes = vec![0; length];
    if length > 0 {
        let (got, _) = recv(socket, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
        if got != length {
            return Err(Errno::BADMSG);
        }
    }
    Ok((end.wrapping_sub(length as u32), bytes))
}

fn waiting(socket: BorrowedFd<'_>, request: libc::c_ulong) -> Result<usize, Errno> {
    let mut bytes = 0i32;
    // SAFETY: the kernel writes one `int`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut bytes) };
    if result < 0 {
        return Err(Errno::from_raw_os_error(nix::errno::Errno::last_raw()));
    }
    Ok(bytes as usize)
}

fn set(socket: BorrowedFd<'_>, option: i32, value: i32) -> Result<(), Errno> {
    set_option_at(socket, libc::IPPROTO_TCP, option, &value.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_snapshot_shows_both_queues_and_changes_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"waiting").unwrap();
        let mut first = [0];
        server.read_exact(&mut first).unwrap();
        let socket = OwnedFd::from(server.try_clone().unwrap());
        let borrowed = std::os::fd::AsFd::as_fd(&socket);
        set_option_at(borrowed, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32.to_ne_bytes()).unwrap();
        let seen = match snapshot(&socket) {
            Err(Errno::PERM) => return eprintln!("skipped: TCP_REPAIR needs CAP_NET_ADMIN"),
            seen => seen.unwrap(),
        };
        assert_eq!((seen.received.1, seen.sent.1), (b"aiting".to_vec(), Vec::new()));
        assert_eq!(seen.unsent, 0);
        assert_eq!(integer_option(borrowed, libc::SOL_SOCKET, libc::SO_REUSEADDR), Ok(1));
        server.write_all(b"goes on").unwrap();
        let mut text = [0; 7];
        client.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"goes on");
    }
}
