//! UDP sockets of a network namespace, by `sock_diag` (Linux 3.3, `CONFIG_INET_UDP_DIAG`).
//!
//! ```text
//!  inet_diag_req_v2 (56): family, protocol, extensions, pad, states, inet_diag_sockid (48)
//!  inet_diag_msg (72): family, state, …, inet_diag_sockid at 4, …, inode at 68 │ attributes
//! ```

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::sock_diag::{attributes_after, dump, u32_at};

const REQUEST_BYTES: usize = 56;
const MESSAGE_BYTES: usize = 72;
const INODE: usize = 68;
const ALL_STATES: [u8; 4] = [0xff; 4];
/// `INET_DIAG_SHUTDOWN`.
const SHUTDOWN: u16 = 8;

/// How each UDP socket with a port in the network namespace `namespace`, or in the caller's, was shut down,
/// by inode: bit 0 for reading, bit 1 for writing.
pub fn udp_shut_down(namespace: Option<BorrowedFd<'_>>) -> Result<HashMap<u32, u8>, Errno> {
    let mut found = HashMap::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = [0u8; REQUEST_BYTES];
        (request[0], request[1]) = (family as u8, libc::IPPROTO_UDP as u8);
        request[4..8].copy_from_slice(&ALL_STATES);
        dump(namespace, &request, |body| found.extend(parse(body)))?;
    }
    Ok(found)
}

fn parse(body: &[u8]) -> Option<(u32, u8)> {
    let mut attributes = attributes_after(body, MESSAGE_BYTES);
    let (_, value) = attributes.find(|(kind, _)| *kind == SHUTDOWN)?;
    Some((u32_at(body, INODE)?, *value.first()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, UdpSocket};
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn each_way_of_shutting_down_is_shown() {
        for (how, expected) in [(None, 0), (Some(Shutdown::Read), 1), (Some(Shutdown::Write), 2)] {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(socket.local_addr().unwrap()).unwrap();
            if let Some(how) = how {
                let how = if how == Shutdown::Read {
                    rustix::net::Shutdown::Read
                } else {
                    rustix::net::Shutdown::Write
                };
                rustix::net::shutdown(socket.as_fd(), how).unwrap();
            }
            let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
            let inode = std::fs::metadata(path).unwrap().ino() as u32;
            assert_eq!(udp_shut_down(None).unwrap()[&inode], expected);
        }
    }
}
