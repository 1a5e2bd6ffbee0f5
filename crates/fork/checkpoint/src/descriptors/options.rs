//! Options that a process set on a socket: those whose value differs from that of a new socket in
//! the same network namespace. What it left alone follows the namespace where the clone starts.

use std::os::fd::{AsFd, OwnedFd};

use farfork_image::model::SocketOption;
use farfork_sys::socket::{integer_option, option_bytes};
use rustix::io::Errno;

/// Longest value that is looked at; extension headers of IPv6 are the long ones.
const LONGEST: usize = 1024;
/// `SO_BUF_LOCK` (Linux 5.15): which buffers have the size that the process gave them.
const BUFFER_LOCKS: i32 = 72;
const SEND_LOCKED: i32 = 1;
const RECEIVE_LOCKED: i32 = 2;

/// Options at one level, in the order in which they are set: that of the kernel's numbers, but
/// for those that others have an effect on. `SO_PRIORITY` comes after `IP_TOS`, which sets it.
type Level = (i32, &'static [i32]);

const SOCKET: Level = (
    libc::SOL_SOCKET,
    &[
        libc::SO_DEBUG,
        libc::SO_REUSEADDR,
        libc::SO_DONTROUTE,
        libc::SO_BROADCAST,
        libc::SO_KEEPALIVE,
        libc::SO_OOBINLINE,
        libc::SO_NO_CHECK,
        libc::SO_LINGER,
        libc::SO_REUSEPORT,
        libc::SO_PASSCRED,
        libc::SO_RCVLOWAT,
        libc::SO_RCVTIMEO,
        libc::SO_SNDTIMEO,
        libc::SO_BINDTODEVICE,
        29, // SO_TIMESTAMP
        libc::SO_PASSSEC,
        35, // SO_TIMESTAMPNS
        libc::SO_MARK,
        37, // SO_TIMESTAMPING
        libc::SO_RXQ_OVFL,
        libc::SO_WIFI_STATUS,
        libc::SO_PEEK_OFF,
        libc::SO_NOFCS,
        libc::SO_SELECT_ERR_QUEUE,
        libc::SO_BUSY_POLL,
        libc::SO_MAX_PACING_RATE,
        libc::SO_ZEROCOPY,
        libc::SO_TXTIME,
        63, // SO_TIMESTAMP_NEW
        64, // SO_TIMESTAMPNS_NEW
        65, // SO_TIMESTAMPING_NEW
        69, // SO_PREFER_BUSY_POLL
        75, // SO_RCVMARK
        76, // SO_PASSPIDFD
        82, // SO_RCVPRIORITY
        83, // SO_PASSRIGHTS
    ],
);

const IP: Level = (
    libc::IPPROTO_IP,
    &[
        libc::IP_TOS,
        libc::IP_TTL,
        libc::IP_HDRINCL,
        libc::IP_OPTIONS,
        libc::IP_RECVOPTS,
        libc::IP_RETOPTS,
        libc::IP_PKTINFO,
        libc::IP_MTU_DISCOVER,
        libc::IP_RECVERR,
        libc::IP_RECVTTL,
        libc::IP_RECVTOS,
        libc::IP_FREEBIND,
        libc::IP_PASSSEC,
        libc::IP_TRANSPARENT,
        libc::IP_RECVORIGDSTADDR,
        libc::IP_MINTTL,
        libc::IP_NODEFRAG,
        libc::IP_CHECKSUM,
        libc::IP_BIND_ADDRESS_NO_PORT,
        25, // IP_RECVFRAGSIZE
        26, // IP_RECVERR_RFC4884
        libc::IP_MULTICAST_IF,
        libc::IP_MULTICAST_TTL,
        libc::IP_MULTICAST_LOOP,
        libc::IP_MULTICAST_ALL,
        libc::IP_UNICAST_IF,
        51, // IP_LOCAL_PORT_RANGE
    ],
);

const IPV6: Level = (
    libc::IPPROTO_IPV6,
    &[
        libc::IPV6_V6ONLY,
        2,  // IPV6_2292PKTINFO
        3,  // IPV6_2292HOPOPTS
        4,  // IPV6_2292DSTOPTS
        5,  // IPV6_2292RTHDR
        8,  // IPV6_2292HOPLIMIT
        11, // IPV6_FLOWINFO
        30, // IPV6_ROUTER_ALERT_ISOLATE
        libc::IPV6_UNICAST_HOPS,
        libc::IPV6_MULTICAST_IF,
        libc::IPV6_MULTICAST_HOPS,
        libc::IPV6_MULTICAST_LOOP,
        libc::IPV6_MTU_DISCOVER,
        libc::IPV6_RECVERR,
        29, // IPV6_MULTICAST_ALL
        31, // IPV6_RECVERR_RFC4884
        33, // IPV6_FLOWINFO_SEND
        libc::IPV6_RECVPKTINFO,
        libc::IPV6_RECVHOPLIMIT,
        libc::IPV6_RECVHOPOPTS,
        libc::IPV6_HOPOPTS,
        libc::IPV6_RTHDRDSTOPTS,
        libc::IPV6_RECVRTHDR,
        libc::IPV6_RTHDR,
        libc::IPV6_RECVDSTOPTS,
        libc::IPV6_DSTOPTS,
        libc::IPV6_RECVPATHMTU,
        libc::IPV6_DONTFRAG,
        libc::IPV6_RECVTCLASS,
        libc::IPV6_TCLASS,
        70, // IPV6_AUTOFLOWLABEL
        72, // IPV6_ADDR_PREFERENCES
        73, // IPV6_MINHOPCOUNT
        74, // IPV6_RECVORIGDSTADDR
        75, // IPV6_TRANSPARENT
        76, // IPV6_UNICAST_IF
        77, // IPV6_RECVFRAGSIZE
        78, // IPV6_FREEBIND
    ],
);

const TCP: Level = (
    libc::IPPROTO_TCP,
    &[
        libc::TCP_NODELAY,
        libc::TCP_MAXSEG,
        libc::TCP_CORK,
        libc::TCP_KEEPIDLE,
        libc::TCP_KEEPINTVL,
        libc::TCP_KEEPCNT,
        libc::TCP_SYNCNT,
        libc::TCP_LINGER2,
        libc::TCP_DEFER_ACCEPT,
        libc::TCP_WINDOW_CLAMP,
        libc::TCP_QUICKACK,
        libc::TCP_CONGESTION,
        libc::TCP_THIN_LINEAR_TIMEOUTS,
        libc::TCP_THIN_DUPACK,
        libc::TCP_USER_TIMEOUT,
        libc::TCP_FASTOPEN,
        libc::TCP_NOTSENT_LOWAT,
        libc::TCP_SAVE_SYN,
        libc::TCP_FASTOPEN_CONNECT,
        34, // TCP_FASTOPEN_NO_COOKIE
        libc::TCP_INQ,
        37, // TCP_TX_DELAY
        44, // TCP_RTO_MAX_MS
        45, // TCP_RTO_MIN_US
        46, // TCP_DELACK_MAX_US
    ],
);

const UDP: Level = (
    libc::IPPROTO_UDP,
    &[
        libc::UDP_CORK,
        100, // UDP_ENCAP
        101, // UDP_NO_CHECK6_TX
        102, // UDP_NO_CHECK6_RX
        libc::UDP_SEGMENT,
        libc::UDP_GRO,
    ],
);

/// `ICMP_FILTER` and `IPV6_CHECKSUM`, which are numbers of raw sockets.
const RAW: Level = (libc::SOL_RAW, &[1, 7]);
/// `ICMPV6_FILTER`.
const ICMPV6: Level = (libc::IPPROTO_ICMPV6, &[1]);
/// `NETLINK_PKTINFO`, `_BROADCAST_ERROR`, `_NO_ENOBUFS`, `_LISTEN_ALL_NSID`, `_CAP_ACK`,
/// `_EXT_ACK`, `_GET_STRICT_CHK`.
const NETLINK: Level = (libc::SOL_NETLINK, &[3, 4, 5, 8, 10, 11, 12]);

/// `PACKET_COPY_THRESH`, `_AUXDATA`, `_ORIGDEV`, `_VERSION`, `_RESERVE`, `_LOSS`, `_VNET_HDR`,
/// `_TIMESTAMP`, `_TX_HAS_OFF`, `_QDISC_BYPASS`, `_IGNORE_OUTGOING`, `_VNET_HDR_SZ`.
const PACKET: Level = (libc::SOL_PACKET, &[7, 8, 9, 10, 12, 14, 15, 17, 19, 20, 23, 24]);

/// Options that come last, since others change them.
const DERIVED: Level = (libc::SOL_SOCKET, &[libc::SO_PRIORITY]);

/// All of them: a level that is not a socket's own is not there when it is asked for.
const LEVELS: [Level; 10] = [SOCKET, IP, IPV6, TCP, UDP, RAW, ICMPV6, NETLINK, PACKET, DERIVED];

/// Options of `socket` that differ from those of `new`, a socket of the same kind.
pub fn changed(socket: &OwnedFd, new: &OwnedFd) -> Vec<SocketOption> {
    let names = LEVELS.iter().flat_map(|(level, names)| names.iter().map(move |n| (*level, *n)));
    let ask = |socket: &OwnedFd, (level, name)| {
        option_bytes(socket.as_fd(), level, name, LONGEST).map(|value| cut(level, name, value))
    };
    names
        .filter_map(|at| {
            let value = ask(socket, at).ok()?;
            (ask(new, at).ok()? != value).then(|| {
                let (level, name) = at;
                SocketOption { level, name, value }
            })
        })
        .filter(|option| !is_derived(option))
        .collect()
}

/// Whether the kernel has worked the value out from other options: those of IP take their part of a segment,
/// and what is left then may be less than a process may set.
fn is_derived(option: &SocketOption) -> bool {
    let is_segment = (option.level, option.name) == (libc::IPPROTO_TCP, libc::TCP_MAXSEG);
    let bytes = option.value.first_chunk().map(|value| i32::from_ne_bytes(*value));
    is_segment && bytes.is_some_and(|bytes| bytes < LEAST_SEGMENT_BYTES)
}

/// `TCP_MIN_MSS`.
const LEAST_SEGMENT_BYTES: i32 = 88;

/// Whether the value is what the connection has come to rather than what was set. Those for
/// multicast cannot be set on a stream.
pub fn is_of_connection(option: &SocketOption) -> bool {
    match option.level {
        libc::IPPROTO_TCP => {
            [libc::TCP_MAXSEG, libc::TCP_WINDOW_CLAMP, libc::TCP_QUICKACK].contains(&option.name)
        }
        libc::IPPROTO_IP => [libc::IP_MULTICAST_IF, libc::IP_MULTICAST_TTL].contains(&option.name),
        libc::IPPROTO_IPV6 => {
            [libc::IPV6_MULTICAST_IF, libc::IPV6_MULTICAST_HOPS].contains(&option.name)
        }
        _ => false,
    }
}

/// The kernel returns more of some values than it accepts: of a congestion algorithm it accepts the
/// name only.
fn cut(level: i32, name: i32, mut value: Vec<u8>) -> Vec<u8> {
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION)
        && let Some(end) = value.iter().position(|byte| *byte == 0)
    {
        value.truncate(end);
    }
    value
}

/// Sizes of the receive and send buffer that the process gave `socket`, and, where setting them does not set
/// it, too, `SO_BUF_LOCK`. The kernel resizes the buffers of streams itself.
pub fn buffers(socket: &OwnedFd, new: &OwnedFd, is_stream: bool) -> Result<Buffers, Errno> {
    let ask = |socket: &OwnedFd, name| integer_option(socket.as_fd(), libc::SOL_SOCKET, name);
    let locks = ask(socket, BUFFER_LOCKS).ok();
    let size = |name, lock: i32| -> Result<Option<u32>, Errno> {
        let bytes = ask(socket, name)?;
        let differs = bytes != ask(new, name)?;
        let is_set = match locks {
            Some(locks) => locks & lock != 0 || differs && !is_stream,
            None => differs,
        };
        Ok(is_set.then_some(bytes as u32))
    };
    let sizes = (size(libc::SO_RCVBUF, RECEIVE_LOCKED)?, size(libc::SO_SNDBUF, SEND_LOCKED)?);
    let set = |size: Option<u32>, lock| if size.is_some() { lock } else { 0 };
    let locked = set(sizes.0, RECEIVE_LOCKED) | set(sizes.1, SEND_LOCKED);
    let unlocked = locks.filter(|locks| *locks != locked).map(|locks| SocketOption {
        level: libc::SOL_SOCKET,
        name: BUFFER_LOCKS,
        value: locks.to_ne_bytes().to_vec(),
    });
    Ok(Buffers { sizes, unlocked })
}

/// What a process did to the buffers of a socket.
pub struct Buffers {
    /// Sizes for receiving and for sending, where it set them.
    pub sizes: (Option<u32>, Option<u32>),
    /// Which of these the kernel may change all the same.
    pub unlocked: Option<SocketOption>,
}
