//! What sockets were set to: every option of every level that reading does not change.

use std::os::fd::BorrowedFd;

use farfork_sys::socket;
use rustix::io::Errno;

use crate::facts::Facts;
use crate::process::inner_pid;

/// Most bytes of an option's value.
const CAPACITY: usize = 4096;

/// Options of one level.
struct Level {
    number: i32,
    name: &'static str,
    options: std::ops::RangeInclusive<i32>,
    /// Options that reading changes, that name or count what is a clone's own, or that want to be asked in
    /// another way.
    left_out: &'static [i32],
}

const LEVELS: [Level; 7] = [
    Level {
        number: numbers::SOL_SOCKET,
        name: "SOL_SOCKET",
        options: 1..=90,
        // SO_ERROR; SO_GET_FILTER (below); CPU, memory, NAPI, cookies; SO_PEERPIDFD makes a descriptor.
        // SO_PEERCRED is below.
        left_out: &[4, 17, 26, 49, 55, 56, 57, 71, 77],
    },
    // IP_MSFILTER and MCAST_MSFILTER want to be asked; IP_PROTOCOL shows the port, which the address has.
    Level { number: 0, name: "IPPROTO_IP", options: 1..=60, left_out: &[41, 48, 52] },
    Level { number: 41, name: "IPPROTO_IPV6", options: 1..=80, left_out: &[48] },
    // TCP_INFO, TCP_TIMESTAMP, TCP_CC_INFO, TCP_SAVED_SYN, TCP_ZEROCOPY_RECEIVE.
    Level { number: 6, name: "IPPROTO_TCP", options: 1..=45, left_out: &[11, 24, 26, 28, 35] },
    Level { number: 17, name: "IPPROTO_UDP", options: 1..=110, left_out: &[] },
    // PACKET_STATISTICS, PACKET_ROLLOVER_STATS.
    Level { number: 263, name: "SOL_PACKET", options: 1..=25, left_out: &[6, 21] },
    Level { number: 270, name: "SOL_NETLINK", options: 1..=12, left_out: &[] },
];

/// Numbers of Linux.
mod numbers {
    pub const SOL_SOCKET: i32 = 1;
    pub const SO_PEERCRED: i32 = 17;
}

/// Adds them, if it is a socket.
pub fn add(number: u32, socket: BorrowedFd<'_>, facts: &mut Facts) {
    let Ok(address) = socket::local_address(socket) else { return };
    let name = |what: &str| format!("fd {number}/socket/{what}");
    facts.add(name("address"), format!("{address:?}"));
    let peer = socket::peer_address(socket);
    facts.add(name("peer"), format!("{peer:?}"));
    for level in LEVELS {
        let options = level.options.filter(|option| !level.left_out.contains(option));
        for option in options {
            let value = socket::option_bytes(socket, level.number, option, CAPACITY);
            // Not an option of this socket.
            if matches!(value, Err(Errno::NOPROTOOPT | Errno::OPNOTSUPP | Errno::INVAL)) {
                continue;
            }
            let value = value.map(|bytes| format!("{bytes:?}"));
            facts.add_result(name(&format!("{} {option}", level.name)), value);
        }
    }
    let filter = socket::filter(socket).map(|found| format!("{found:?}"));
    facts.add_result(name("filter"), filter);
    let peer = socket::option_bytes(socket, numbers::SOL_SOCKET, numbers::SO_PEERCRED, 12);
    facts.add_result(name("peer's credentials"), peer.map(|bytes| credentials(&bytes)));
    facts.add_result(name("bytes waiting"), rustix::io::ioctl_fionread(socket));
}

/// `struct ucred`, with the pid that the peer has in its own namespace.
fn credentials(bytes: &[u8]) -> String {
    let (words, _) = bytes.as_chunks::<4>();
    let mut words = words.iter().map(|word| i32::from_ne_bytes(*word));
    let pid = words.next().unwrap_or(0);
    let inner = if pid > 0 { inner_pid(pid) } else { Some(pid) };
    format!("pid {inner:?}, uid and gid {:?}", words.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn an_option_that_differs_is_seen() {
        let read = |is_broadcast: bool| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_broadcast(is_broadcast).unwrap();
            let mut facts = Facts::default();
            add(3, socket.as_fd(), &mut facts);
            facts
        };
        let found = crate::facts::differences(&read(false), &read(true));
        let names: Vec<&str> = found.iter().map(|one| &*one.fact).collect();
        assert!(names.contains(&"fd 3/socket/SOL_SOCKET 6"), "{names:?}"); // SO_BROADCAST
        assert!(names.contains(&"fd 3/socket/address"), "{names:?}"); // another port
        assert_eq!(names.len(), 2, "{names:?}");
    }
}
