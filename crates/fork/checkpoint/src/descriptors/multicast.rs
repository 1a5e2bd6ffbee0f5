//! Groups that a socket has joined. A socket does not list its groups, but it returns its filter of
//! senders for a given group. So it is asked about all groups that its namespace has joined.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use farfork_image::model::SocketOption;
use farfork_sys::socket::ask_option;
use rustix::io::Errno;

/// `MCAST_JOIN_GROUP` and `MCAST_MSFILTER`, the same numbers at both levels.
const JOIN_GROUP: i32 = 42;
const FILTER: i32 = 48;
/// `struct group_req`: interface, four bytes of padding, address. `struct group_filter` starts
/// with the same and goes on with mode, number of sources, and sources.
const REQUEST_BYTES: usize = 136;
const MODE: usize = REQUEST_BYTES;
const SOURCES: usize = MODE + 4;
const FILTER_BYTES: usize = SOURCES + 4;
const ADDRESS_BYTES: usize = 128;
/// Most sources that are carried.
const MOST_SOURCES: usize = 8;
/// `MCAST_EXCLUDE`: from all but the sources.
const EXCLUDE: u32 = 0;

/// A group on an interface: family, number of the interface, `sockaddr` of the group.
type Group = (i32, u32, Vec<u8>);

/// What joins `socket` of process `pid` to its groups again; nothing if one of them has more
/// sources than can be carried.
pub fn memberships(pid: i32, socket: &OwnedFd) -> Option<Vec<SocketOption>> {
    let mut options = Vec::new();
    for group in groups(pid) {
        options.extend(membership(socket, &group)?);
    }
    Some(options)
}

fn membership(socket: &OwnedFd, (family, interface, group): &Group) -> Option<Vec<SocketOption>> {
    let level = if *family == libc::AF_INET6 { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
    let mut filter = vec![0u8; FILTER_BYTES + MOST_SOURCES * ADDRESS_BYTES];
    filter[..4].copy_from_slice(&interface.to_ne_bytes());
    filter[8..8 + group.len()].copy_from_slice(group);
    filter[SOURCES..FILTER_BYTES].copy_from_slice(&(MOST_SOURCES as u32).to_ne_bytes());
    let asked: Result<(), Errno> = ask_option(socket.as_fd(), level, FILTER, &mut filter);
    if asked.is_err() {
        return Some(Vec::new()); // not a member
    }
    let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| filter[at + byte]));
    let (mode, sources) = (word(MODE), word(SOURCES) as usize);
    if sources > MOST_SOURCES {
        return None;
    }
    let option = |name, value: &[u8]| SocketOption { level, name, value: value.to_vec() };
    let mut options = vec![option(JOIN_GROUP, &filter[..REQUEST_BYTES])];
    if mode != EXCLUDE || sources > 0 {
        options.push(option(FILTER, &filter[..FILTER_BYTES + sources * ADDRESS_BYTES]));
    }
    Some(options)
}

/// Groups that anyone in the process's network namespace has joined.
fn groups(pid: i32) -> Vec<Group> {
    let read = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    [groups_v4(&read("igmp")), groups_v6(&read("igmp6"))].concat()
}

/// `1 lo : 1 V3`, then one line per group: `010000E0 1 0:00000000 0` behind tabs,
/// the address as a number of this machine.
fn groups_v4(text: &str) -> Vec<Group> {
    let mut interface = None;
    let mut groups = Vec::new();
    for line in text.lines().skip(1) {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !line.starts_with(char::is_whitespace) {
            interface = first.parse().ok();
        } else if let (Some(index), Ok(address)) = (interface, u32::from_str_radix(first, 16)) {
            let head = (libc::AF_INET as u16).to_ne_bytes();
            let address = [&head[..], &[0; 2], &address.to_ne_bytes(), &[0; 8]].concat();
            groups.push((libc::AF_INET, index, address));
        }
    }
    groups
}

/// `1    lo              ff020000000000000000000000000001     1 0000000C 0`.
fn groups_v6(text: &str) -> Vec<Group> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let index = words.next()?.parse().ok()?;
        let address = u128::from_str_radix(words.nth(1)?, 16).ok()?.to_be_bytes();
        let head = (libc::AF_INET6 as u16).to_ne_bytes();
        let address = [&head[..], &[0; 6], &address, &[0; 4]].concat();
        Some((libc::AF_INET6, index, address))
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

    #[test]
    fn groups_are_read_in_the_kernels_notations() {
        let text = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
            7\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n";
        let [(family, 7, address)] = &groups_v4(text)[..] else { panic!("{text}") };
        assert_eq!((*family, &address[4..8]), (libc::AF_INET, &[224, 0, 0, 1][..]));
        let text = "3    lo              ff020000000000000000000000000001     1 0000000C 0\n";
        let [(family, 3, address)] = &groups_v6(text)[..] else { panic!("{text}") };
        assert_eq!((*family, address[8], address[23]), (libc::AF_INET6, 0xff, 1));
    }

    #[test]
    fn a_socket_has_its_own_groups_only() {
        let pid = std::process::id() as i32;
        let (member, other) = ["127.0.0.1:0"; 2].map(|at| UdpSocket::bind(at).unwrap()).into();
        member.join_multicast_v4(&Ipv4Addr::new(239, 9, 8, 7), &Ipv4Addr::LOCALHOST).unwrap();
        let six = UdpSocket::bind("[::1]:0").unwrap();
        six.join_multicast_v6(&Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 9, 9), 1).unwrap();
        let count = |socket: UdpSocket| memberships(pid, &socket.into()).unwrap().len();
        assert_eq!([count(member), count(other), count(six)], [1, 0, 1]);
    }
}
