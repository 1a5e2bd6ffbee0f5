//! Trying an image: a clone is made in namespaces of its own, by all ops of its plan but those that other
//! processes could notice, or that cannot work beside its parent. It never runs its parent's code.
//!
//! Agent and restorer call [`withheld`] for each op: the agent to list what is not tried, the restorer to
//! leave it out.

use zerocopy::FromBytes;

use crate::place::Identity;
use crate::{Op, What, nr};

/// Why an op is not executed in a trial as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// Binds a socket to a path name; it is given an address of its own instead.
    Path,
    /// Changes the file of a socket.
    SocketFile,
    /// Takes a lock or a lease.
    Lock,
    /// Opens a named pipe, a terminal or a device. The path is checked, and `/dev/null` is opened
    /// instead.
    Opening,
    /// Removes rules of nf_tables.
    Rules,
    /// Names a network interface, which the network of a trial does not have.
    Interface,
    /// Stops the process.
    Stop,
}

impl Withheld {
    /// What the op does, before the name of the object.
    pub fn verb(self) -> &'static str {
        match self {
            Withheld::Path => "bind",
            Withheld::SocketFile => "set the owner of the file of",
            Withheld::Lock => "take",
            Withheld::Opening => "open",
            Withheld::Rules => "remove the nf_tables rules that keep packets from",
            Withheld::Interface => "set the network interface of",
            Withheld::Stop => "stop the process",
        }
    }

    /// The reason, in words.
    pub fn why(self) -> &'static str {
        match self {
            Withheld::Path => {
                "the path can belong to one socket only, and clients would connect to it"
            }
            Withheld::SocketFile => "the socket was not bound to its path",
            Withheld::Lock => "the parent may hold it",
            Withheld::Opening => "opening it can block, or have an effect on others",
            Withheld::Rules => "they protect the parent's connections",
            Withheld::Interface => "a trial has a network namespace of its own",
            Withheld::Stop => "a stopped process cannot finish the trial",
        }
    }
}

const SYS_CONNECT: u32 = 42;
const SYS_SENDTO: u32 = 44;
const SYS_BIND: u32 = 49;
const SYS_SETSOCKOPT: u32 = 54;
const SYS_KILL: u32 = 62;
const AF_UNIX: u16 = 1;
const AF_INET6: u16 = 10;
const AF_PACKET: u16 = 17;
/// `NFNL_MSG_BATCH_BEGIN`.
const BATCH_BEGIN: u16 = 16;
/// Options that name an interface, by level and name: `SO_BINDTODEVICE`, `SO_BINDTOIFINDEX`;
/// `IP_MULTICAST_IF`, `IP_ADD_MEMBERSHIP`, `IP_ADD_SOURCE_MEMBERSHIP`, `IP_BLOCK_SOURCE`, `IP_MSFILTER`,
/// `MCAST_JOIN_GROUP` to `MCAST_MSFILTER`, `IP_UNICAST_IF`; those of IPv6; `PACKET_ADD_MEMBERSHIP`,
/// `PACKET_FANOUT`.
const OF_INTERFACES: [(u64, &[u64]); 4] = [
    (1, &[25, 62]),
    (0, &[32, 35, 39, 38, 41, 42, 43, 44, 45, 46, 47, 48, 50]),
    (41, &[17, 20, 27, 42, 43, 44, 45, 46, 47, 48, 76]),
    (263, &[1, 18]),
];

/// Whether, and why, a trial does not execute `op` as it stands. `bytes` gives so many bytes at an address
/// of the plan.
pub fn withheld<'p>(op: &Op, bytes: impl Fn(u64, usize) -> Option<&'p [u8]>) -> Option<Withheld> {
    let word = |at, from: usize| {
        let found = bytes(at, from + 2)?;
        found.get(from..).and_then(|two| two.first_chunk()).map(|two| u16::from_ne_bytes(*two))
    };
    let family = || word(op.args[1], 0);
    match op.nr {
        nr::SOCKET_FILE => Some(Withheld::SocketFile),
        _ if op.what == What::Lock as u16 && op.nr != nr::UNCHANGED => Some(Withheld::Lock),
        SYS_KILL => Some(Withheld::Stop),
        nr::BIND | SYS_BIND if family() == Some(AF_UNIX) => {
            let is_path = op.args[2] > 2 && bytes(op.args[1], 3)?[2] != 0;
            is_path.then_some(Withheld::Path)
        }
        SYS_BIND if family() == Some(AF_PACKET) => {
            bytes(op.args[1], 8)?[4..].iter().any(|byte| *byte != 0).then_some(Withheld::Interface)
        }
        SYS_BIND | SYS_CONNECT if family() == Some(AF_INET6) => {
            let scope = bytes(op.args[1], 28)?;
            scope[24..].iter().any(|byte| *byte != 0).then_some(Withheld::Interface)
        }
        SYS_SETSOCKOPT => {
            let is_named = |(level, names): &(u64, &[u64])| {
                *level == op.args[1] && names.contains(&op.args[2])
            };
            OF_INTERFACES.iter().any(is_named).then_some(Withheld::Interface)
        }
        SYS_SENDTO if op.args[3] == 0 && op.args[2] >= 16 => {
            (word(op.args[1], 4) == Some(BATCH_BEGIN)).then_some(Withheld::Rules)
        }
        nr::OPEN => opening(op, bytes),
        _ => None,
    }
}

/// `O_PATH`: nothing is opened.
const PLACE: u64 = 0o10_000_000;

/// Null, zero, full, random, urandom have no state.
fn opening<'p>(op: &Op, bytes: impl Fn(u64, usize) -> Option<&'p [u8]>) -> Option<Withheld> {
    if op.args[2] == 0 || op.args[1] & PLACE != 0 {
        return None;
    }
    let found = bytes(op.args[2], size_of::<Identity>())?;
    let (identity, _) = Identity::read_from_prefix(found).ok()?;
    let is_memory = identity.device >> 32 == 1;
    match identity.mode >> 12 {
        0o1 | 0o6 => Some(Withheld::Opening),
        0o2 if !is_memory => Some(Withheld::Opening),
        _ => None,
    }
}
