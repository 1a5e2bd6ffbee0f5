//! Sockets that a clone makes anew: what they were set to, and what they were to others.

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
}

impl Socket {
    /// The path that a Unix socket is bound to, which may be relative.
    pub fn path(&self) -> Option<&[u8]> {
        let path = self.name.as_ref().filter(|_| self.family == AF_UNIX)?.get(2..)?;
        let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
        path.get(..end).filter(|path| !path.is_empty())
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
