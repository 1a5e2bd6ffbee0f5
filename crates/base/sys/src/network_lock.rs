//! Keeping the packets of TCP connections away from their sockets, and from the kernel's resets
//! where there is no socket: a table of nf_tables that drops them, both ways (Linux 3.13). A peer
//! must not see either what the kernel sends of its own accord: it would then acknowledge what the
//! connection is not known to have sent.
//!
//! ```text
//!  batch   begin │ table │ chains, hooks input and output │ a rule in each for a connection │ end
//!  rule    family = … and protocol = TCP and addresses = … and ports = …: drop
//! ```
//! Each is a netlink message of attributes; numbers in attributes are big-endian.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::socket::socket_in;

const SUBSYSTEM: u16 = 10 << 8; // NFNL_SUBSYS_NFTABLES
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const NLMSG_ERROR: u16 = 2;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
/// `NFPROTO_INET`: IPv4 and IPv6.
const INET: u8 = 1;
/// `NFT_TABLE_F_OWNER` (Linux 5.12): the table goes with the socket that made it.
const OWNED: u32 = 2;
/// Names and hooks of the chains.
const INPUT: (&str, u32) = ("input", 1);
const OUTPUT: (&str, u32) = ("output", 3);
/// Before everything that tracks connections.
const PRIORITY: u32 = -300i32 as u32;
const REGISTER: u32 = 8; // NFT_REG32_00

/// Address and port, in network order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct End {
    address: Vec<u8>,
    port: [u8; 2],
}

/// One TCP connection, as packets name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    local: End,
    peer: End,
}

impl Connection {
    /// That between two addresses, as the kernel writes them; nothing if they are not of one
    /// Internet protocol.
    pub fn between(local: &[u8], peer: &[u8]) -> Option<Connection> {
        let (local, peer) = (End::of(local)?, End::of(peer)?);
        (local.address.len() == peer.address.len()).then_some(Connection { local, peer })
    }
}

impl End {
    /// An IPv4 address that is written as one of IPv6 is sent as the former.
    fn of(name: &[u8]) -> Option<End> {
        const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        let family = i32::from(u16::from_ne_bytes(name.get(..2)?.try_into().ok()?));
        let port = name.get(2..4)?.try_into().ok()?;
        let address = match family {
            libc::AF_INET => name.get(4..8)?,
            libc::AF_INET6 => name.get(8..24)?,
            _ => return None,
        };
        let address = address.strip_prefix(&MAPPED).unwrap_or(address).to_vec();
        Some(End { address, port })
    }
}

/// A lock that ends with this value, or with this process.
#[derive(Debug)]
pub struct NetworkLock {
    _owner: OwnedFd,
}

impl NetworkLock {
    /// Locks `connections` in the network namespace `namespace`, or in the caller's.
    pub fn hold(
        namespace: Option<BorrowedFd<'_>>,
        name: &str,
        connections: &[Connection],
    ) -> Result<NetworkLock, Errno> {
        let owner = netlink(namespace)?;
        transact(&owner, &table(name, OWNED, connections))?;
        Ok(NetworkLock { _owner: owner })
    }
}

/// Locks `connections` until [`unlocking`] is sent.
pub fn lock(
    namespace: Option<BorrowedFd<'_>>,
    name: &str,
    connections: &[Connection],
) -> Result<(), Errno> {
    transact(&netlink(namespace)?, &table(name, 0, connections))
}

/// Removes a lock that [`lock`] has made.
pub fn unlock(namespace: Option<BorrowedFd<'_>>, name: &str) -> Result<(), Errno> {
    transact(&netlink(namespace)?, &unlocking(name))
}

/// What removes the lock when it is sent to a netlink socket of `NETLINK_NETFILTER`.
pub fn unlocking(name: &str) -> Vec<u8> {
    let table = message(DELETE_TABLE, REQUEST | ACKNOWLEDGE, INET, &text(1, name));
    batch(&[table])
}

fn netlink(namespace: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Errno> {
    socket_in(namespace, libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER)
}

/// Sends a batch, whose messages all ask for an answer, and waits for these.
fn transact(netlink: &OwnedFd, batch: &[u8]) -> Result<(), Errno> {
    send(netlink, batch, SendFlags::empty())?;
    let mut answers = vec![0u8; 64 << 10];
    let mut left = requests(batch);
    while left > 0 {
        let (_, length) = recv(netlink, &mut answers[..], RecvFlags::empty())?;
        for (kind, body) in messages(&answers[..length]) {
            let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
            match (kind, code) {
                (NLMSG_ERROR, 0) => left = left.saturating_sub(1),
                (NLMSG_ERROR, code) => return Err(Errno::from_raw_os_error(-code)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn requests(batch: &[u8]) -> usize {
    messages(batch).filter(|(kind, _)| kind & SUBSYSTEM != 0).count()
}

/// Kinds and bodies of the messages in `bytes`.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let body = bytes.get(16..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

fn table(name: &str, flags: u32, connections: &[Connection]) -> Vec<u8> {
    let make = REQUEST | ACKNOWLEDGE | CREATE;
    let table = message(NEW_TABLE, make, INET, &[text(1, name), number(2, flags)].concat());
    let chain = |(chain, hook)| {
        let hook = nested(4, &[number(1, hook), number(2, PRIORITY)].concat());
        let chain = [text(1, name), text(3, chain), hook, text(7, "filter")].concat();
        message(NEW_CHAIN, make, INET, &chain)
    };
    let rule = |(chain, _), from, to| {
        let rule = [text(1, name), text(2, chain), nested(4, &drop_all(from, to))].concat();
        message(NEW_RULE, make | APPEND, INET, &rule)
    };
    let rules = connections.iter().flat_map(|Connection { local, peer }| {
        [rule(INPUT, peer, local), rule(OUTPUT, local, peer)]
    });
    let rules: Vec<_> = rules.collect();
    batch(&[vec![table, chain(INPUT), chain(OUTPUT)], rules].concat())
}

/// The expressions of a rule. `meta` and `payload` load what the `cmp` after them compares.
fn drop_all(from: &End, to: &End) -> Vec<u8> {
    const FAMILY: u32 = 15;
    const PROTOCOL: u32 = 16;
    const NETWORK: u32 = 1;
    const TRANSPORT: u32 = 2;
    let bytes = from.address.len();
    let (family, source) = if bytes == 4 { (libc::AF_INET, 12) } else { (libc::AF_INET6, 8) };
    let ports = [from.port, to.port].concat();
    let drop = nested(2, &nested(2, &number(1, 0)));
    [
        meta(FAMILY),
        equals(&[family as u8]),
        meta(PROTOCOL),
        equals(&[libc::IPPROTO_TCP as u8]),
        // Sixteen bytes are the most that is compared at once.
        payload(NETWORK, source, bytes),
        equals(&from.address),
        payload(NETWORK, source + bytes as u32, bytes),
        equals(&to.address),
        payload(TRANSPORT, 0, ports.len()),
        equals(&ports),
        expression("immediate", &[number(1, 0), drop].concat()),
    ]
    .concat()
}

fn meta(key: u32) -> Vec<u8> {
    expression("meta", &[number(1, REGISTER), number(2, key)].concat())
}

fn payload(base: u32, offset: u32, bytes: usize) -> Vec<u8> {
    let what = [number(2, base), number(3, offset), number(4, bytes as u32)];
    expression("payload", &[number(1, REGISTER), what.concat()].concat())
}

fn equals(value: &[u8]) -> Vec<u8> {
    let value = nested(3, &attribute(1, value));
    expression("cmp", &[number(1, REGISTER), number(2, 0), value].concat())
}

fn expression(name: &str, data: &[u8]) -> Vec<u8> {
    nested(1, &[text(1, name), nested(2, data)].concat())
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), b"\0"].concat())
}

fn nested(kind: u16, attributes: &[u8]) -> Vec<u8> {
    const NESTED: u16 = 1 << 15;
    attribute(kind | NESTED, attributes)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let head = [4 + value.len() as u16, kind].map(u16::to_ne_bytes);
    let mut bytes = [head.as_flattened(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn message(kind: u16, flags: u16, family: u8, attributes: &[u8]) -> Vec<u8> {
    // Version 0 of the protocol, and for the ends of a batch the number of the subsystem.
    let resource = if kind & SUBSYSTEM == 0 { SUBSYSTEM >> 8 } else { 0 };
    let [high, low] = resource.to_be_bytes();
    let length = (20 + attributes.len()) as u32;
    let head = [kind, flags].map(u16::to_ne_bytes);
    [&length.to_ne_bytes(), head.as_flattened(), &[0; 8], &[family, 0, high, low], attributes]
        .concat()
}

fn batch(inner: &[Vec<u8>]) -> Vec<u8> {
    let end = |kind| message(kind, REQUEST, 0, &[]);
    [end(BATCH_BEGIN), inner.concat(), end(BATCH_END)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use crate::socket::{local_address, peer_address};

    #[test]
    fn a_locked_connection_is_silent_until_the_lock_ends() {
        for place in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(place).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            let (local, peer) = (local_address(server.as_fd()), peer_address(server.as_fd()));
            let connection = Connection::between(&local.unwrap(), &peer.unwrap()).unwrap();
            let name = format!("farfork-test-{}", std::process::id());
            let held = match NetworkLock::hold(None, &name, &[connection]) {
                Err(Errno::PERM | Errno::PROTONOSUPPORT | Errno::OPNOTSUPP) => {
                    return eprintln!("skipped: nf_tables cannot be used here");
                }
                held => held.unwrap(),
            };
            let mut byte = [0];
            client.write_all(b"x").unwrap();
            server.write_all(b"y").unwrap();
            for end in [&mut client, &mut server] {
                end.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                assert!(end.read(&mut byte).is_err(), "a packet came through");
                end.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            }
            drop(held);
            server.read_exact(&mut byte).unwrap();
            client.read_exact(&mut byte).unwrap();
        }
    }

    #[test]
    fn an_address_of_ipv4_in_ipv6_is_the_former() {
        let v4 = [&2u16.to_ne_bytes()[..], &[0, 80, 127, 0, 0, 1], &[0; 8]].concat();
        let head = [&10u16.to_ne_bytes()[..], &[0, 80, 0, 0, 0, 0], &[0; 10], &[0xff; 2]].concat();
        let mapped = [&head[..], &[127, 0, 0, 1, 0, 0, 0, 0]].concat();
        assert_eq!(Connection::between(&mapped, &mapped), Connection::between(&v4, &v4));
    }
}
