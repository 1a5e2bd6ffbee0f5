//! A network for the trial of a clone: all addresses are local, and no packet leaves it.

use std::fs;
use std::os::fd::OwnedFd;

use nix::sched::{CloneFlags, unshare};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::socket::socket_in;

const NEW_LINK: u16 = 16;
const NEW_ROUTE: u16 = 24;
const NLMSG_ERROR: u16 = 2;
/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_CREATE`.
const CREATE: u16 = 1 | 4 | 0x400;
/// The loopback device, which every network namespace begins with.
const LOOPBACK: u32 = 1;
const UP: u32 = 1;
/// `RTA_OIF`.
const THROUGH: u16 = 4;
/// `RT_TABLE_LOCAL`, `RTPROT_BOOT`, `RT_SCOPE_HOST`, `RTN_LOCAL`.
const LOCAL: [u8; 4] = [255, 3, 254, 2];
/// Lets sockets be bound to addresses that no interface has.
const NONLOCAL: [&str; 2] =
    ["/proc/sys/net/ipv4/ip_nonlocal_bind", "/proc/sys/net/ipv6/ip_nonlocal_bind"];

/// Moves the calling thread into a new network namespace of this kind. The kernel removes it with
/// the last process and socket in it.
///
/// # Errors The thread lacks CAP_SYS_ADMIN, or the limit of network namespaces is reached.
pub fn enter() -> Result<(), Errno> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    let netlink = socket_in(None, libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    // struct ifinfomsg: family, type, index, flags, which flags are meant.
    let link = [0, LOOPBACK, UP, UP].map(u32::to_ne_bytes);
    ask(&netlink, NEW_LINK, link.as_flattened())?;
    // A kernel without IPv6 has no such route, and no such sockets either.
    ask(&netlink, NEW_ROUTE, &everything_local(libc::AF_INET))?;
    let _ = ask(&netlink, NEW_ROUTE, &everything_local(libc::AF_INET6));
    for setting in NONLOCAL {
        // Where /proc/sys cannot be written to, addresses of IPv4 are local by the route.
        let _ = fs::write(setting, "1");
    }
    Ok(())
}

/// struct rtmsg: family, lengths of destination and source, service, table, protocol, scope, type, flags;
/// then the device.
fn everything_local(family: i32) -> Vec<u8> {
    let head = [[family as u8, 0, 0, 0], LOCAL, [0; 4]];
    let device = [8u16.to_ne_bytes(), THROUGH.to_ne_bytes()];
    [head.as_flattened(), device.as_flattened(), &LOOPBACK.to_ne_bytes()].concat()
}

fn ask(netlink: &OwnedFd, kind: u16, body: &[u8]) -> Result<(), Errno> {
    let length = 16 + body.len() as u32;
    let head = [kind.to_ne_bytes(), CREATE.to_ne_bytes()];
    let message = [&length.to_ne_bytes(), head.as_flattened(), &[0; 8], body].concat();
    send(netlink, &message, SendFlags::empty())?;
    let mut answer = [0u8; 1024];
    let (_, bytes) = recv(netlink, &mut answer[..], RecvFlags::empty())?;
    let answer = &answer[..bytes.min(1024)];
    let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    let code =
        answer.get(16..).and_then(|body| body.first_chunk()).map(|code| i32::from_ne_bytes(*code));
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(Errno::from_raw_os_error(-code)),
        _ => Err(Errno::BADMSG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn every_address_is_its_own() {
        let tried = std::thread::spawn(|| {
            match enter() {
                Err(Errno::PERM) => {
                    return eprintln!("SKIPPED a network of its own: it needs root");
                }
                entered => entered.unwrap(),
            }
            for address in ["192.0.2.7:80", "[2001:db8::7]:80", "127.0.0.1:80"] {
                TcpListener::bind(address).unwrap();
                UdpSocket::bind(address).unwrap();
            }
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect("198.51.100.1:53").unwrap();
            let socket = UdpSocket::bind("[::]:0").unwrap();
            socket.connect("[2001:db8::9]:53").unwrap();
        });
        tried.join().unwrap();
    }
}
