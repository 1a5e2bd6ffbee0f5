//! Sockets that a clone makes anew: what they were set to, and what they were to others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::TcpConnection;

const AF_UNIX: u32 = libc::AF_UNIX as u32;

/// A socket of its own, as opposed to one end of a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// What it was, for messages: `TCP 127.0.0.1:80, listening`.
    pub description: String,
    /// `AF_*`.
    pub family: u32,
    /// `SOCK_*`, without flags.
    pub kind: u32,
    /// `IPPROTO_*`, or the family's own numbers.
    pub protocol: u32,
    /// Status flags.
    pub flags: u32,
    /// User and group id that the kernel compares when ports are shared.
    pub owner: (u32, u32),
    /// Options that the process set, in an order in which they can be set again, before anything
    /// else.
    pub options: Vec<SocketOption>,
    /// Options that it takes only when it has its address.
    pub last_options: Vec<SocketOption>,
    /// Receive and send buffer sizes as `getsockopt` gives them, where the process set them.
    pub buffers: (Option<u32>, Option<u32>),
    /// Instructions of its classic filter, eight bytes each.
    pub filter: Vec<u64>,
    /// `SO_LOCK_FILTER`.
    pub is_filter_locked: bool,
    /// The address it is bound to, as the kernel writes it.
    pub name: Option<Vec<u8>>,
    /// The file that a Unix socket is bound to.
    pub file: Option<SocketFile>,
    /// What it is to others.
    pub role: SocketRole,
    /// Bit 0: shut down for reading, bit 1: for writing; of sockets of datagrams.
    pub shutdown: u32,
}

/// The file of a Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketFile {
    /// Where it is, without symbolic links on the way, wherever the socket's name leads to it.
    pub place: PathBuf,
    /// Mode, without the type.
    pub mode: u32,
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
}

/// An option with a value that `setsockopt` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOption {
    /// `SOL_*` or `IPPROTO_*`.
    pub level: i32,
    /// Number at that level.
    pub name: i32,
    /// Value, in the kernel's form.
    pub value: Vec<u8>,
}

/// What waits in a Unix socket to be read at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Bytes, those of a stream without bounds.
    pub bytes: Vec<u8>,
    /// Descriptors that come with it, as indices in [`super::Model::files`].
    pub files: Vec<u32>,
    /// User and group id, if it was sent with credentials: always the process's own pid.
    pub sender: Option<(u32, u32)>,
}

/// What a socket is to others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketRole {
    /// Neither connected nor listening.
    #[default]
    Idle,
    /// Waits for connections; those that the parent has not accepted stay the parent's.
    Listening {
        /// How many may wait.
        backlog: u32,
    },
    /// Sends to one address, and receives from it only.
    Connected {
        /// The address, as the kernel writes it.
        peer: Vec<u8>,
    },
    /// A TCP connection that goes on in a clone, where its parent has ended.
    Established(Box<TcpConnection>),
    /// A TCP connection, which stays the parent's: the clone's is over.
    Ended {
        /// Whether the process has yet to read that it was reset.
        is_reset: bool,
    },
    /// Sends datagrams to a socket of the image, by an address that must be the clone's then: with another,
    /// the parent's socket would get them.
    Within {
        /// The address, as the kernel writes it.
        peer: Vec<u8>,
    },
}

impl Socket {
    /// The path that a Unix socket is bound to, which may be relative.
    pub fn path(&self) -> Option<&[u8]> {
        let path = self.name.as_ref().filter(|_| self.family == AF_UNIX)?.get(2..)?;
        let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
        path.get(..end).filter(|path| !path.is_empty())
    }

    /// Where it sends to, if it is a connected socket of datagrams.
    pub fn peer(&self) -> Option<&Vec<u8>> {
        match &self.role {
            SocketRole::Connected { peer } | SocketRole::Within { peer } => Some(peer),
            _ => None,
        }
    }

    /// Whether datagrams that it sends to its peer arrive at `other`, both of the machine's own addresses.
    pub fn sends_to(&self, other: &Socket) -> bool {
        let is_datagram = |socket: &Socket| {
            let kind = (socket.kind.cast_signed(), socket.protocol.cast_signed());
            kind == (libc::SOCK_DGRAM, libc::IPPROTO_UDP)
        };
        let to = self.peer().and_then(|peer| endpoint(peer));
        let at = other.name.as_ref().and_then(|name| endpoint(name));
        let (Some((address, port)), Some((own, own_port))) = (to, at) else { return false };
        let is_reached = own == address
            || own.is_unspecified() && (address.is_loopback() || self.is_of_machine(address));
        is_datagram(self) && is_datagram(other) && port == own_port && is_reached
    }

    /// Whether the kernel chose the peer's address for this end, too, as it does for the machine's own.
    fn is_of_machine(&self, peer: IpAddr) -> bool {
        self.name.as_ref().and_then(|name| endpoint(name)).is_some_and(|(own, _)| own == peer)
    }

    /// Whether a caller of restore may supply another in its place: one that others find by its
    /// address.
    pub fn is_replaceable(&self) -> bool {
        let is_found =
            [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6].contains(&self.family.cast_signed());
        let is_alone = matches!(self.role, SocketRole::Idle | SocketRole::Listening { .. });
        is_found && is_alone && self.kind != libc::SOCK_RAW as u32 && self.name.is_some()
    }

    /// Whether the socket is as good with another address than its own: its peer learns it from
    /// what is sent.
    pub fn is_content(&self) -> bool {
        let is_netlink = self.family == libc::AF_NETLINK as u32;
        is_netlink || matches!(self.role, SocketRole::Connected { .. })
    }
}

/// Address and port of a `sockaddr_in` or `sockaddr_in6`; a mapped address is one of IPv4.
fn endpoint(address: &[u8]) -> Option<(IpAddr, u16)> {
    let family = i32::from(u16::from_ne_bytes(*address.first_chunk()?));
    let port = u16::from_be_bytes(*address.get(2..)?.first_chunk()?);
    let ip = match family {
        libc::AF_INET => Ipv4Addr::from(*address.get(4..)?.first_chunk::<4>()?).into(),
        libc::AF_INET6 => Ipv6Addr::from(*address.get(8..)?.first_chunk::<16>()?).to_canonical(),
        _ => return None,
    };
    Some((ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(name: Option<[u8; 6]>, peer: Option<[u8; 6]>) -> Socket {
        let at = |[a, b, c, d, high, low]: [u8; 6]| {
            [&(libc::AF_INET as u16).to_ne_bytes()[..], &[high, low, a, b, c, d], &[0; 8]].concat()
        };
        let peer = peer.map(|peer| SocketRole::Connected { peer: at(peer) });
        Socket {
            family: libc::AF_INET as u32,
            kind: libc::SOCK_DGRAM as u32,
            protocol: libc::IPPROTO_UDP as u32,
            name: name.map(at),
            role: peer.unwrap_or_default(),
            ..Socket::default()
        }
    }

    #[test]
    fn datagrams_arrive_where_port_and_address_are() {
        let local = [127, 0, 0, 1, 0, 9];
        assert!(udp(None, Some(local)).sends_to(&udp(Some(local), None)));
        assert!(udp(None, Some(local)).sends_to(&udp(Some([0, 0, 0, 0, 0, 9]), None)));
        assert!(!udp(None, Some(local)).sends_to(&udp(Some([127, 0, 0, 1, 0, 8]), None)));
        assert!(!udp(None, Some(local)).sends_to(&udp(Some([127, 0, 0, 2, 0, 9]), None)));
        assert!(!udp(None, None).sends_to(&udp(Some(local), None)));
        // Another machine, where this one has a socket at the same port.
        let far = udp(Some([10, 0, 0, 1, 0, 7]), Some([10, 0, 0, 2, 0, 9]));
        assert!(!far.sends_to(&udp(Some([0, 0, 0, 0, 0, 9]), None)));
        let own = udp(Some([10, 0, 0, 2, 0, 7]), Some([10, 0, 0, 2, 0, 9]));
        assert!(own.sends_to(&udp(Some([0, 0, 0, 0, 0, 9]), None)));
    }
}
