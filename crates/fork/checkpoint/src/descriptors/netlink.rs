//! Netlink sockets of those families that keep nothing of a socket but its groups.

use std::os::fd::{AsFd, OwnedFd};

use farfork_image::model::{OpenFile, SocketOption, SocketRole};
use farfork_sys::socket::{local_address, option_bytes, peer_address};
use rustix::event::PollFlags;

use super::error::{CaptureResult, kernel_error, refuse_detail};
use super::inet;
use super::network::SocketKind;
use super::subject::Subject;
use super::table::Entry;
use crate::refuse::causes;

/// Families without state of a socket's own, beyond an answer that is on its way.
const STATELESS: [i32; 5] = [
    libc::NETLINK_ROUTE,
    libc::NETLINK_USERSOCK,
    libc::NETLINK_SOCK_DIAG,
    libc::NETLINK_KOBJECT_UEVENT,
    libc::NETLINK_GENERIC,
];
/// `NETLINK_LIST_MEMBERSHIPS`: a bit per group, from group 1 on.
const LIST_MEMBERSHIPS: i32 = 9;
/// Bytes of the longest list.
const LIST_BYTES: usize = 1024;
/// Where `struct sockaddr_nl` has the port and the groups.
const PORT_AND_GROUPS: std::ops::Range<usize> = 4..12;

/// A netlink socket.
pub fn capture(
    entry: &Entry,
    subject: &Subject,
    socket: &OwnedFd,
    kind: SocketKind,
) -> CaptureResult {
    let words = format!("netlink, protocol {}", kind.protocol);
    let failed = || kernel_error(subject.pid, format!("the state of socket fd {}", entry.fd));
    let new = subject.network.new_socket(kind)?;
    let obstacle = if !STATELESS.contains(&kind.protocol) {
        Some(causes::sockets::NETLINK_STATE)
    } else if !inet::is_at_home(socket, &new).map_err(failed())? {
        Some(causes::sockets::OTHER_NAMESPACE)
    } else if inet::poll_state(socket).map_err(failed())?.contains(PollFlags::IN) {
        Some(causes::sockets::NETLINK_WAITING)
    } else {
        None
    };
    if let Some(cause) = obstacle {
        return Err(refuse_detail(words, cause));
    }
    let mut made = inet::made(entry, subject, socket, kind, words)?;
    made.options.extend(memberships(socket));
    made.name =
        Some(local_address(socket.as_fd()).map_err(failed())?).filter(|address| says_more(address));
    if let Some(peer) = peer_address(socket.as_fd()).ok().filter(|peer| says_more(peer)) {
        made.role = SocketRole::Connected { peer };
    }
    Ok(OpenFile::Socket(Box::new(made)))
}

/// Whether an address names a port or groups.
fn says_more(address: &[u8]) -> bool {
    address.get(PORT_AND_GROUPS).is_some_and(|part| part.iter().any(|byte| *byte != 0))
}

fn memberships(socket: &OwnedFd) -> Vec<SocketOption> {
    const ADD_MEMBERSHIP: i32 = 1;
    let level = libc::SOL_NETLINK;
    let list = option_bytes(socket.as_fd(), level, LIST_MEMBERSHIPS, LIST_BYTES);
    let list = list.unwrap_or_default();
    let is_member = |group: &i32| {
        let bit = *group as usize - 1;
        list[bit / 8] & (1 << (bit % 8)) != 0
    };
    let join = |group: i32| SocketOption {
        level,
        name: ADD_MEMBERSHIP,
        value: group.to_ne_bytes().to_vec(),
    };
    (1..=list.len() as i32 * 8).filter(is_member).map(join).collect()
}
