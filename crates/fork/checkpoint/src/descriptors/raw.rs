//! Peers of raw IP sockets. They have no port, and without one the socket does not return its peer.
//! The kernel's table in `/proc` shows it.

use std::fs;

use super::network::SocketKind;

/// `TCP_ESTABLISHED`, which a connected raw socket has for its state.
const CONNECTED: &str = "01";
/// Words of a line before that of the inode.
const INODE_AFTER_STATE: usize = 5;

/// The address that the raw socket with this inode of process `pid` is connected to.
pub fn peer(pid: i32, inode: u64, SocketKind { family, .. }: SocketKind) -> Option<Vec<u8>> {
    let name = if family == libc::AF_INET6 { "raw6" } else { "raw" };
    let table = fs::read_to_string(format!("/proc/{pid}/net/{name}")).ok()?;
    table.lines().find_map(|line| parse(line, inode))
}

/// `1: 0100007F:0001 0100007F:0000 01 00000000:00000000 00:00000000 00000000 0 0 8231 2 …`.
fn parse(line: &str, inode: u64) -> Option<Vec<u8>> {
    let mut words = line.split_whitespace().skip(2);
    let (remote, state) = (words.next()?, words.next()?);
    let is_it = words.nth(INODE_AFTER_STATE)?.parse() == Ok(inode) && state == CONNECTED;
    is_it.then(|| address(remote.split(':').next()?)).flatten()
}

/// Numbers of this machine, 32 bits each, as `sockaddr_in` or `sockaddr_in6` with port 0.
fn address(hex: &str) -> Option<Vec<u8>> {
    let word = |at: usize| Some(u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let words = (0..hex.len() / 8).map(|index| word(8 * index)).collect::<Option<Vec<_>>>()?;
    let family = |family: i32| (family as u16).to_ne_bytes();
    match words.len() {
        1 => Some([&family(libc::AF_INET)[..], &[0; 2], words.as_flattened(), &[0; 8]].concat()),
        4 => Some([&family(libc::AF_INET6)[..], &[0; 6], words.as_flattened(), &[0; 4]].concat()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connected_socket_has_a_peer() {
        let line = |state: &str| {
            format!(
                "   1: 00000000:0001 0100007F:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 8231 2 x 0"
            )
        };
        let expected = [2, 0, 0, 0, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(parse(&line("01"), 8231), Some(expected.to_vec()));
        assert_eq!(parse(&line("01"), 8232), None);
        assert_eq!(parse(&line("07"), 8231), None);
        assert_eq!(address(&"0".repeat(32)).map(|made| made.len()), Some(28));
    }
}
