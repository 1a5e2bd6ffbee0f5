//! Messages that wait in Unix sockets within the processes, and the descriptors that come with them
//! (SCM_RIGHTS). Looking at a message makes duplicates here. They show what is in flight: a file
//! that a process also has open, or one that only the message refers to.
//!
//! A socket in flight may have messages waiting itself: it is looked at like the others, in turn.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use farfork_image::model::{Message, OpenFile};
use farfork_sys::kcmp;
use farfork_sys::peek::{PeekCursor, Sender};
use farfork_sys::unix_diag::UnixSocket;
use rustix::io::{Errno, fcntl_dupfd_cloexec, ioctl_fionread};
use rustix::net::{RecvFlags, recv, sockopt};

use super::error::{CaptureError, DescriptorError, kernel_error, refuse, refuse_detail};
use super::handle::Handles;
use super::table::{Entry, Kind};
use crate::refuse::causes;

/// Longest message that is looked for at first.
const MESSAGE_BYTES: usize = 256 << 10;

/// The messages at one end.
#[derive(Debug)]
pub enum Queue {
    /// All of them; senders with their pids here. Files are indexed by their first descriptors.
    Whole(Vec<(Message, Option<Sender>)>),
    /// Some of them cannot be read without consuming them.
    Partly,
}

/// A message with its descriptors, as they were found.
type FoundMessage = (Vec<u8>, Vec<OwnedFd>, Option<Sender>);

/// Queues in which descriptors wait, by the sockets' inodes, and files that nothing else has open.
#[derive(Debug, Default)]
pub struct InFlight {
    /// The queues.
    pub queues: HashMap<u64, Queue>,
    /// The files.
    pub files: Vec<Entry>,
}

impl InFlight {
    /// Those of the processes with these `handles`, whose files are `leaders` and whose namespace
    /// has the Unix sockets `unix`.
    pub fn find(
        handles: &Handles,
        leaders: &[&Entry],
        unix: &HashMap<u32, UnixSocket>,
    ) -> Result<InFlight, DescriptorError> {
        let mut found = InFlight::default();
        for entry in leaders.iter().filter(|entry| has_descriptors(entry)) {
            found.look(handles, leaders, entry, unix)?;
        }
        let mut next = 0;
        while next < found.files.len() {
            let entry = found.files.remove(next);
            if has_descriptors(&entry) {
                // It may be in its own queue, and must be found among the others there.
                found.files.insert(next, entry.again()?);
                found.look(handles, leaders, &entry, unix)?;
            } else {
                found.files.insert(next, entry);
            }
            next += 1;
        }
        Ok(found)
    }

    fn look(
        &mut self,
        handles: &Handles,
        leaders: &[&Entry],
        entry: &Entry,
        unix: &HashMap<u32, UnixSocket>,
    ) -> Result<(), DescriptorError> {
        let known = unix.get(&(entry.inode.ino() as u32));
        let Some(known) = known.filter(|known| self.is_within(leaders, known)) else {
            return Ok(());
        };
        let failed = || kernel_error(entry.pid, format!("the messages in {}", entry.object("")));
        let messages = messages(&handles.open(entry)?, known).map_err(failed())?;
        let queue = match messages {
            Some(messages) => {
                let mut waiting = Vec::new();
                for (bytes, descriptors, sender) in messages {
                    let files = self.files_of(entry.pid, leaders, descriptors)?;
                    waiting.push((Message { bytes, files, sender: None }, sender));
                }
                Queue::Whole(waiting)
            }
            None => Queue::Partly,
        };
        self.queues.insert(entry.inode.ino(), queue);
        Ok(())
    }

    /// Whether the other end is a process's own, too, or was closed.
    fn is_within(&self, leaders: &[&Entry], known: &UnixSocket) -> bool {
        let Some(peer) = known.peer.filter(|_| !known.is_listening) else { return false };
        let known = leaders.iter().copied().chain(&self.files);
        let sockets: HashSet<u64> = known.map(|entry| entry.inode.ino()).collect();
        peer == 0 || sockets.contains(&peer.into())
    }

    fn files_of(
        &mut self,
        pid: i32,
        leaders: &[&Entry],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Vec<u32>, DescriptorError> {
        let mut files = Vec::new();
        for descriptor in descriptors {
            // The three standard numbers have a meaning of their own.
            let own = fcntl_dupfd_cloexec(&descriptor, 3)
                .map_err(kernel_error(pid, "the descriptors in flight"))?;
            files.push(self.file(leaders, Entry::in_flight(own, pid)?)?);
        }
        Ok(files)
    }

    /// The index of a file, which is a new one if no process has it open.
    fn file(&mut self, leaders: &[&Entry], entry: Entry) -> Result<u32, DescriptorError> {
        let known = leaders.iter().copied().chain(&self.files);
        for (index, other) in known.enumerate().filter(|(_, other)| other.link == entry.link) {
            let is_same = kcmp::is_own_file(other.holder(), other.fd, entry.fd)
                .map_err(kernel_error(entry.pid, "the duplicate descriptors"))?;
            if is_same {
                return Ok(index as u32);
            }
        }
        self.files.push(entry);
        Ok((leaders.len() + self.files.len() - 1) as u32)
    }
}

/// Whether descriptors wait at this socket.
fn has_descriptors(entry: &Entry) -> bool {
    let count = entry.info.value("scm_fds");
    entry.kind() == Kind::Socket && count.is_some_and(|count| count != "0")
}

/// What waits at the end that is open as `socket` and known as `known`.
pub fn queue(socket: &OwnedFd, known: &UnixSocket) -> Result<Queue, Errno> {
    let found = messages(socket, known)?;
    let plain = |(bytes, descriptors, sender): FoundMessage| {
        let message = Message { bytes, ..Message::default() };
        descriptors.is_empty().then_some((message, sender))
    };
    let whole = found.and_then(|found| found.into_iter().map(plain).collect());
    Ok(whole.map_or(Queue::Partly, Queue::Whole))
}

/// All messages, or nothing if some cannot be looked at.
fn messages(socket: &OwnedFd, known: &UnixSocket) -> Result<Option<Vec<FoundMessage>>, Errno> {
    let look = PeekCursor::begin(socket.as_fd())?;
    if known.kind == libc::SOCK_STREAM as u32 {
        return stream(socket, &look);
    }
    let longest = sockopt::socket_recv_buffer_size(socket)?.max(MESSAGE_BYTES);
    // Reading past the last message then gives nothing instead of failing: an empty message would
    // look the same.
    let has_end = known.kind == libc::SOCK_SEQPACKET as u32 && known.shutdown & 1 != 0;
    let mut room = vec![0; longest];
    let mut messages = Vec::new();
    loop {
        match look.next(&mut room) {
            Err(Errno::AGAIN) => return Ok(Some(messages)),
            Err(errno) => return Err(errno),
            Ok(seen) if seen.is_cut => return Ok(None),
            Ok(seen) if seen.bytes == 0 && has_end => return Ok(Some(messages)),
            // The kernel does not step past an empty message twice.
            Ok(seen) if seen.bytes == 0 => return Ok(None),
            Ok(seen) => {
                messages.push((room[..seen.bytes].to_vec(), seen.descriptors, seen.sender));
            }
        }
    }
}

/// A stream, in pieces that end where descriptors were sent or the sender changes.
fn stream(socket: &OwnedFd, look: &PeekCursor<'_>) -> Result<Option<Vec<FoundMessage>>, Errno> {
    if has_urgent_byte(socket)? {
        return Ok(None);
    }
    let waiting = ioctl_fionread(socket)? as usize;
    let mut room = vec![0; waiting];
    let (mut pieces, mut at): (Vec<FoundMessage>, usize) = (Vec::new(), 0);
    while at < waiting {
        look.seek(at)?;
        let seen = match look.next(&mut room[at..]) {
            Err(Errno::AGAIN) => return Ok(None),
            seen => seen?,
        };
        if seen.bytes == 0 || seen.is_cut {
            return Ok(None);
        }
        let end = at + seen.bytes;
        if !seen.descriptors.is_empty() {
            // The kernel shows them with what was sent before.
            look.seek(at)?;
            let before = look.sent_before_last(seen.bytes)?;
            if before > 0 {
                pieces.push((room[at..at + before].to_vec(), Vec::new(), seen.sender));
            }
            at += before;
        }
        pieces.push((room[at..end].to_vec(), seen.descriptors, seen.sender));
        at = end;
    }
    Ok(Some(pieces))
}

/// Whether a byte waits that was sent with MSG_OOB: looking at the stream does not show where.
fn has_urgent_byte(socket: &OwnedFd) -> Result<bool, Errno> {
    let look = RecvFlags::OOB | RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(socket, &mut [0u8; 1][..], look) {
        // None waits, or the kernel (before Linux 5.15) has none.
        Err(Errno::INVAL | Errno::AGAIN | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
        Ok(_) => Ok(true),
    }
}

/// Refuses what cannot be made without a number of its own, which nothing in flight has.
pub fn check(entry: &Entry, file: &OpenFile) -> Result<(), CaptureError> {
    if entry.held.is_none() {
        return Ok(());
    }
    if entry.info.value("lock").is_some() {
        return Err(refuse_detail("with a lock", causes::sockets::PAIR_DESCRIPTORS));
    }
    match file {
        OpenFile::Path { .. }
        | OpenFile::Unnamed { .. }
        | OpenFile::Object { .. }
        | OpenFile::Pipe { .. }
        | OpenFile::Event { .. }
        | OpenFile::Signal { .. }
        | OpenFile::Timer { .. }
        | OpenFile::ProcessHandle { .. }
        | OpenFile::SocketPair { .. }
        | OpenFile::Socket(_) => Ok(()),
        OpenFile::External { description } => {
            Err(refuse_detail(description, causes::sockets::PAIR_DESCRIPTORS))
        }
        OpenFile::Epoll { .. }
        | OpenFile::Inotify { .. }
        | OpenFile::Fanotify { .. }
        | OpenFile::Ring { .. }
        | OpenFile::TerminalMaster { .. }
        | OpenFile::TerminalSlave { .. } => Err(refuse(causes::sockets::PAIR_DESCRIPTORS)),
    }
}
