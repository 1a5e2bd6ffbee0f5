//! One end of a Unix socket pair, and what waits in it.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use farfork_image::model::{Message, OpenFile};
use farfork_sys::peek::Sender;
use farfork_sys::unix_diag::UnixSocket;
use rustix::net::sockopt;

use super::error::{CaptureError, CaptureResult, kernel_error, refuse_detail};
use super::in_flight::{self, Queue};
use super::network::SocketKind;
use super::options;
use super::subject::Subject;
use super::table::Entry;
use crate::refuse::{Cause, causes};

/// The end behind `entry`, which the kernel knows as `known` and whose peer has inode `peer`,
/// 0 once it is closed.
pub fn capture(
    entry: &Entry,
    subject: &Subject,
    socket: &OwnedFd,
    known: &UnixSocket,
    peer: u32,
) -> CaptureResult {
    let inode = entry.inode.ino() as u32;
    let failed = || kernel_error(subject.pid, format!("the state of socket fd {}", entry.fd));
    let incoming = incoming(entry, subject, socket, known)?;
    let new = subject.network.new_socket(SocketKind::unix(known))?;
    let receive = sockopt::socket_recv_buffer_size(socket).map_err(failed())?;
    let send = sockopt::socket_send_buffer_size(socket).map_err(failed())?;
    Ok(OpenFile::SocketPair {
        pair: if peer == 0 { inode.into() } else { inode.min(peer).into() },
        end: u32::from(peer != 0 && peer < inode),
        kind: known.kind,
        flags: entry.info.status_flags(),
        incoming,
        shutdown: known.shutdown,
        buffers: (receive as u32, send as u32),
        options: options::changed(socket, &new),
    })
}

fn refuse(cause: &'static Cause) -> CaptureError {
    refuse_detail("Unix socket pair", cause)
}

/// What waits at the end, from senders that a clone can be.
fn incoming(
    entry: &Entry,
    subject: &Subject,
    socket: &OwnedFd,
    known: &UnixSocket,
) -> Result<Vec<Message>, CaptureError> {
    let failed = || kernel_error(subject.pid, format!("the messages in {}", entry.object("")));
    let queue = match subject.queue(entry) {
        Some(queue) => queue,
        None => in_flight::queue(socket, known).map_err(failed())?,
    };
    let Queue::Whole(messages) = queue else {
        return Err(refuse(causes::sockets::PAIR_UNREADABLE));
    };
    // What several processes share is made by the first of all.
    let is_made_by_sender = entry.is_roots || subject.context.pids.len() == 1;
    let is_own = |sender: &Sender| sender.pid == subject.pid && is_made_by_sender;
    if messages.iter().filter_map(|(_, sender)| sender.as_ref()).any(|sender| !is_own(sender)) {
        return Err(refuse(causes::sockets::PAIR_CREDENTIALS));
    }
    let carried = |(message, sender): (Message, Option<Sender>)| Message {
        sender: sender.map(|sender| (sender.user, sender.group)),
        ..message
    };
    Ok(messages.into_iter().map(carried).collect())
}
