//! Looking at the messages in a Unix socket without consuming them: bytes, descriptors,
//! credentials.
#![allow(unsafe_code)] // reason: recvmsg makes descriptors that are numbers at first

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use rustix::io::Errno;

use crate::socket::{integer_option, set_option};

/// Most descriptors of one message (`SCM_MAX_FD`).
pub const MOST_DESCRIPTORS: usize = 253;
/// `SO_PASSPIDFD` (Linux 6.5).
const PASS_PIDFD: i32 = 76;
/// What the kernel gives for the ids of a message that was sent without credentials.
const OVERFLOW_ID: u32 = 65534;

/// The sender of a message, with the pid as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Process; 0 if it is not to be seen from here.
    pub pid: i32,
    /// User.
    pub user: u32,
    /// Group.
    pub group: u32,
}

/// What one look shows.
#[derive(Debug)]
pub struct Peeked {
    /// Length of the bytes.
    pub bytes: usize,
    /// Whether the message is longer than the room for it, or shows less than all it brings.
    pub is_cut: bool,
    /// Duplicates of the descriptors that come with it.
    pub descriptors: Vec<OwnedFd>,
    /// Present if it was sent with credentials.
    pub sender: Option<Sender>,
}

/// Reads the queue of a socket from its head. Some options of the socket are changed meanwhile; the
/// drop restores them.
#[derive(Debug)]
pub struct PeekCursor<'s> {
    socket: BorrowedFd<'s>,
    before: Vec<(i32, i32)>,
}

impl<'s> PeekCursor<'s> {
    /// Begins to look at the head of the queue.
    pub fn begin(socket: BorrowedFd<'s>) -> Result<PeekCursor<'s>, Errno> {
        let mut look = PeekCursor { socket, before: Vec::new() };
        look.change(libc::SO_PASSCRED, 1)?;
        match look.change(PASS_PIDFD, 0) {
            Ok(()) | Err(Errno::NOPROTOOPT) => {}
            Err(errno) => return Err(errno),
        }
        look.change(libc::SO_PEEK_OFF, 0)?;
        Ok(look)
    }

    fn change(&mut self, option: i32, value: i32) -> Result<(), Errno> {
        let before = integer_option(self.socket, libc::SOL_SOCKET, option)?;
        self.before.push((option, before));
        set_option(self.socket, option, &value.to_ne_bytes())
    }

    /// Goes to byte `offset` of the queue. Otherwise each look begins where the last one ended.
    pub fn seek(&self, offset: usize) -> Result<(), Errno> {
        set_option(self.socket, libc::SO_PEEK_OFF, &(offset as i32).to_ne_bytes())
    }

    /// Looks at the next message, or as much of a stream as is read at once. EAGAIN at the end.
    pub fn next(&self, room: &mut [u8]) -> Result<Peeked, Errno> {
        let mut vectors = [IoSliceMut::new(room)];
        let mut space = nix::cmsg_space!([RawFd; MOST_DESCRIPTORS], libc::ucred);
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(self.socket.as_raw_fd(), &mut vectors, Some(&mut space), flags)
            .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        let cut = MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC;
        let mut peeked = Peeked {
            bytes: message.bytes,
            is_cut: message.flags.intersects(cut),
            descriptors: Vec::new(),
            sender: None,
        };
        for control in message.cmsgs().into_iter().flatten() {
            match control {
                // SAFETY: the descriptors are new, and nothing else owns them.
                ControlMessageOwned::ScmRights(fds) => peeked
                    .descriptors
                    .extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })),
                ControlMessageOwned::ScmCredentials(sent) => {
                    let sender = Sender { pid: sent.pid(), user: sent.uid(), group: sent.gid() };
                    let none = Sender { pid: 0, user: OVERFLOW_ID, group: OVERFLOW_ID };
                    peeked.sender = Some(sender).filter(|sender| *sender != none);
                }
                _ => {}
            }
        }
        Ok(peeked)
    }

    /// Of the next `bytes` of a stream, how many belong to pieces that were sent before the one
    /// with the last byte. No flag asks for that; but the kernel copies piece by piece, and drops
    /// a piece that it cannot copy whole: here the last byte has no room.
    pub fn sent_before_last(&self, bytes: usize) -> Result<usize, Errno> {
        let mut room = vec![0u8; bytes.saturating_sub(1)];
        let nowhere = std::ptr::without_provenance_mut::<libc::c_void>(1);
        let mut vectors = [
            libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() },
            libc::iovec { iov_base: nowhere, iov_len: 1 },
        ];
        // SAFETY: a header of zeros is one without name and control data.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (vectors.as_mut_ptr(), vectors.len());
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: the kernel writes to `room` at most, and fails at the page below all memory.
        let seen = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, flags) };
        match nix::errno::Errno::last_raw() {
            _ if seen >= 0 => Ok(seen as usize),
            libc::EFAULT => Ok(0),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }
}

impl Drop for PeekCursor<'_> {
    fn drop(&mut self) {
        for (option, value) in self.before.drain(..) {
            let _ = set_option(self.socket, option, &value.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_stream_shows_where_its_last_piece_begins() {
        let (mut one, other) = UnixStream::pair().unwrap();
        for piece in ["a", "bc", "def"] {
            one.write_all(piece.as_bytes()).unwrap();
        }
        let look = PeekCursor::begin(other.as_fd()).unwrap();
        let before = |start, bytes| {
            look.seek(start).unwrap();
            look.sent_before_last(bytes).unwrap()
        };
        assert_eq!([before(0, 6), before(0, 3), before(0, 2), before(0, 1)], [3, 1, 1, 0]);
        assert_eq!([before(1, 5), before(3, 3), before(4, 2)], [2, 0, 0]);
    }

    #[test]
    fn a_look_takes_nothing_and_leaves_the_options() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        one.write_all(b"text").unwrap();
        let mut room = [0; 16];
        let look = PeekCursor::begin(other.as_fd()).unwrap();
        look.seek(1).unwrap();
        let seen = look.next(&mut room).unwrap();
        assert_eq!((seen.bytes, seen.is_cut, seen.sender), (3, false, None));
        assert_eq!((&room[..3], seen.descriptors.len()), (&b"ext"[..], 0));
        drop(look);
        let passes = integer_option(other.as_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED);
        let offset = integer_option(other.as_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF);
        assert_eq!((passes, offset), (Ok(0), Ok(-1)));
        other.read_exact(&mut room[..4]).unwrap();
        assert_eq!(&room[..4], b"text");
    }
}
