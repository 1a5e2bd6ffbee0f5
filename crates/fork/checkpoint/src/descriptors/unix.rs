//! Unix sockets: pairs and connections within the process are carried, those that others find by
//! their name are made again under it, and connections to others are supplied at restore.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use farfork_image::model::{OpenFile, Socket, SocketFile, SocketRole};
use farfork_sys::socket::local_address;
use farfork_sys::unix_diag::UnixSocket;
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, open};

use super::error::{CaptureError, CaptureResult, kernel_error, refuse_detail};
use super::network::SocketKind;
use super::subject::Subject;
use super::table::Entry;
use super::{external, inet, pair};
use crate::refuse::causes;

/// A Unix socket.
pub fn capture(entry: &Entry, subject: &Subject, socket: &OwnedFd) -> CaptureResult {
    let inode = entry.inode.ino() as u32;
    let Some(known) = subject.unix_socket(inode) else {
        return Err(refuse_detail("Unix socket", causes::sockets::OTHER_NAMESPACE));
    };
    if known.is_listening {
        let role = SocketRole::Listening { backlog: known.backlog };
        let words = format!("listening Unix socket {}", name(known));
        return alone(entry, subject, socket, known, (words, role));
    }
    match known.peer {
        _ if leads_outside(entry, subject, known) => {
            Ok(external::of(format!("Unix socket connected to another process{}", at(known))))
        }
        None if entry.is_standard() => Ok(external::of("Unix socket without a peer")),
        None => {
            check_idle(entry, subject, socket, known)?;
            let words = format!("Unix socket{}", at(known));
            alone(entry, subject, socket, known, (words, SocketRole::Idle))
        }
        Some(0) if is_unaccepted(known) => Err(unaccepted()),
        Some(peer) => check_mutual(inode, peer, subject)
            .and_then(|()| pair::capture(entry, subject, socket, known, peer)),
    }
}

/// A socket without a connection: its description and its role.
fn alone(
    entry: &Entry,
    subject: &Subject,
    socket: &OwnedFd,
    known: &UnixSocket,
    (words, role): (String, SocketRole),
) -> CaptureResult {
    let kind = SocketKind::unix(known);
    let mut made = inet::made(entry, subject, socket, kind, words.clone())?;
    let failed = || kernel_error(subject.pid, format!("the name of socket fd {}", entry.fd));
    if known.name.is_some() {
        made.name = Some(local_address(socket.as_fd()).map_err(failed())?);
    }
    made.role = role;
    let Some(path) = made.path() else { return Ok(OpenFile::Socket(Box::new(made))) };
    match file_of(subject, path) {
        Some(file) => {
            made.file = Some(file);
            Ok(OpenFile::Socket(Box::new(made)))
        }
        None if is_listening(&made) => Ok(external::of(words)),
        None => Err(refuse_detail(words, causes::sockets::UNIX_LOST)),
    }
}

fn is_listening(socket: &Socket) -> bool {
    matches!(socket.role, SocketRole::Listening { .. })
}

/// The file that the process has bound a socket to, if it is there.
fn file_of(subject: &Subject, path: &[u8]) -> Option<SocketFile> {
    let path = std::str::from_utf8(path).ok()?;
    let from = if path.starts_with('/') { "root" } else { "cwd" };
    let seen = format!("/proc/{}/{from}/{path}", subject.pid);
    let seen = Path::new(&seen);
    let file = fs::symlink_metadata(seen).ok().filter(|file| file.file_type().is_socket())?;
    // A handle shows where its directory is, and opening it is not an event to watchers of the
    // directory.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(seen.parent()?, flags, Mode::empty()).ok()?;
    let directory = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).ok()?;
    Some(SocketFile {
        place: directory.join(seen.file_name()?),
        mode: file.mode() & 0o7777,
        user: file.uid(),
        group: file.gid(),
    })
}

/// Messages of Unix sockets are never lost, and these would be without the names of their
/// senders.
fn check_idle(
    entry: &Entry,
    subject: &Subject,
    socket: &OwnedFd,
    known: &UnixSocket,
) -> Result<(), CaptureError> {
    let failed = || kernel_error(subject.pid, format!("the messages in socket fd {}", entry.fd));
    let polled = inet::poll_state(socket).map_err(failed())?;
    let cause = if known.shutdown != 0 {
        causes::sockets::SHUT_DOWN
    } else if known.kind != libc::SOCK_STREAM as u32 && polled.contains(PollFlags::IN) {
        causes::sockets::UNIX_WAITING
    } else {
        return Ok(());
    };
    Err(refuse_detail(format!("Unix socket{}", at(known)), cause))
}

fn leads_outside(entry: &Entry, subject: &Subject, known: &UnixSocket) -> bool {
    let Some(peer) = known.peer else { return false };
    let is_unpaired = peer != 0 && !subject.has_socket(peer);
    is_unpaired
        || (peer == 0 && entry.is_standard())
        || subject.is_shared(&entry.link)
        || subject.is_shared(&format!("socket:[{peer}]"))
}

/// A stream whose peer was closed is shut down both ways; one that waits to be accepted is not.
fn is_unaccepted(known: &UnixSocket) -> bool {
    known.kind != libc::SOCK_DGRAM as u32 && known.shutdown != 3
}

/// Both ends must be the process's own. The names of streams are not carried: a connected stream
/// accepts no connections by its name.
fn check_mutual(inode: u32, peer: u32, subject: &Subject) -> Result<(), CaptureError> {
    let has_name = |inode| {
        subject.unix_socket(inode).is_some_and(|known: &UnixSocket| {
            known.name.is_some() && known.kind == libc::SOCK_DGRAM as u32
        })
    };
    let back = subject.unix_socket(peer);
    if has_name(inode) || has_name(peer) {
        return Err(refuse_detail(
            "Unix socket connected within the process",
            causes::sockets::UNIX_NAMED_PEER,
        ));
    }
    if peer == 0 || back.is_some_and(|back| back.peer == Some(inode)) {
        return Ok(());
    }
    Err(refuse_detail("Unix socket connected within the process", causes::sockets::UNIX_ONE_WAY))
}

fn unaccepted() -> CaptureError {
    refuse_detail("Unix socket", causes::sockets::UNIX_UNACCEPTED)
}

/// Where it is bound, for messages.
fn at(known: &UnixSocket) -> String {
    if known.name.is_some() { format!(" at {}", name(known)) } else { String::new() }
}

/// A path, or an abstract name in the usual notation, with `@` for the NUL.
fn name(known: &UnixSocket) -> String {
    match known.name.as_deref() {
        Some([0, rest @ ..]) => format!("@{}", String::from_utf8_lossy(rest)),
        Some(path) => String::from_utf8_lossy(path).trim_end_matches('\0').to_owned(),
        None => "without a name".to_owned(),
    }
}
