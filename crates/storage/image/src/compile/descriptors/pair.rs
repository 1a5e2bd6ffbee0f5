//! Files that come in twos: pipes and Unix socket pairs. An end that the parent did not have is
//! closed once what waits at the other has been written through it.

use farfork_plan::{Op, What, nr};

use super::Compiler;
use crate::compile::fd_layout::has_fds_in_flight;
use crate::model::{Descriptor, Message, OpenFile, SocketOption};

/// What a pipe has unless it was changed.
const PIPE_BYTES: u32 = 64 << 10;
/// What a socket's buffers have unless `net.core.[rw]mem_default` was changed.
const SOCKET_BYTES: u32 = 212_992;
/// Bytes of a stream that are sent in one call: the kernel takes all of them or none.
const STREAM_BYTES: usize = 16 << 10;
/// What the kernel counts for a message besides its bytes, at most.
const MESSAGE_OVERHEAD_BYTES: usize = 2 << 10;

/// Without waiting: a message that finds no room must fail, since no process is there to receive
/// others.
pub const AT_ONCE: u64 = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u64;

/// `SO_BUF_LOCK` (Linux 5.15): which buffers have the size that the process gave them.
pub const BUFFER_LOCKS: i32 = 72;
/// Options that set a buffer's size: within the system's limit, and beyond it.
pub const SEND: [i32; 2] = [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE];
pub const RECEIVE: [i32; 2] = [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE];

impl Compiler<'_> {
    /// Makes both ends of a pipe when the first of them is met.
    pub fn pipe(&mut self, file: u32, identity: u64) {
        let partner = self.partner(file, |other| is_pipe(other, identity));
        if partner.is_some_and(|partner| partner < file) {
            return;
        }
        let is_write_end =
            matches!(self.model.files[file as usize], OpenFile::Pipe { is_write_end: true, .. });
        let (read, write) =
            if is_write_end { (partner, Some(file)) } else { (Some(file), partner) };
        self.make_pair(nr::PIPE, &[0]);
        self.fill_pipe(read, write);
        self.place_pair(read, write);
    }

    fn partner(&self, file: u32, is_same: impl Fn(&OpenFile) -> bool) -> Option<u32> {
        let files = self.numbers.keys().copied();
        files
            .filter(|other| *other != file)
            .find(|other| is_same(&self.model.files[*other as usize]))
    }

    fn make_pair(&mut self, number: u32, args: &[u64]) {
        let slots = [self.slots.made.into(), self.slots.second.into()];
        let op = Op::new(What::Descriptor, number, &[args, &slots].concat());
        self.ops.push(op.about(self.detail));
    }

    fn fill_pipe(&mut self, read: Option<u32>, write: Option<u32>) {
        let model = self.model;
        for (end, slot) in [(read, self.slots.made), (write, self.slots.second)] {
            let Some(OpenFile::Pipe { flags, capacity, content, .. }) =
                end.map(|end| &model.files[end as usize])
            else {
                continue;
            };
            if *capacity != PIPE_BYTES {
                let args = [libc::F_SETPIPE_SZ as u64, (*capacity).into()];
                self.push_on(slot, libc::SYS_fcntl, &args);
            }
            if !content.is_empty() {
                let at = self.arena.put(content, 1);
                self.push_on(self.slots.second, libc::SYS_write, &[at, content.len() as u64]);
            }
            self.set_flags(slot, *flags);
        }
    }

    /// Puts both ends in place. The second goes above all numbers first, since the kernel may
    /// have given it the number that is meant for the first, or the other way round.
    fn place_pair(&mut self, first: Option<u32>, second: Option<u32>) {
        let (made, from, aside) = (self.slots.made, self.slots.second, self.slots.aside);
        if let Some(second) = second {
            let args = [from.into(), libc::F_DUPFD_CLOEXEC as u64, self.fds.spare.start.into()];
            let op = self.op(libc::SYS_fcntl, &args).slot_arg(0).store(aside);
            self.ops.push(op);
            self.push_on(from, libc::SYS_close, &[]);
            self.place_or_close(made, first);
            self.place_or_close(aside, Some(second));
        } else {
            self.push_on(from, libc::SYS_close, &[]);
            self.place_or_close(made, first);
        }
    }

    fn place_or_close(&mut self, slot: u8, file: Option<u32>) {
        match file {
            Some(file) => self.place(slot, file),
            None => self.push_on(slot, libc::SYS_close, &[]),
        }
    }

    /// Makes both ends of a socket pair when the first of them is met.
    pub fn socket_pair(&mut self, file: u32, identity: u64) {
        let partner = self.partner(file, |other| is_pair(other, identity));
        if partner.is_some_and(|partner| partner < file) {
            return;
        }
        let OpenFile::SocketPair { kind, .. } = &self.model.files[file as usize] else { return };
        self.make_pair(nr::SOCKETPAIR, &[libc::AF_UNIX as u64, (*kind).into()]);
        let ends = [Some(file), partner].into_iter().flatten();
        if !ends.into_iter().any(|end| has_fds_in_flight(&self.model.files[end as usize])) {
            self.fill_sockets(file, partner);
            return self.place_pair(Some(file), partner);
        }
        self.late.push((file, partner));
        match self.in_flight.far_end(file) {
            Some(number) => {
                self.move_to(self.slots.second, &Descriptor { fd: number, file, cloexec: true });
                self.place(self.slots.made, file);
            }
            None => self.place_pair(Some(file), partner),
        }
    }

    /// Gives the pair that is in the slots for two ends what waits in it, then its attributes.
    pub fn fill_sockets(&mut self, first: u32, second: Option<u32>) {
        let model = self.model;
        let slots = [self.slots.made, self.slots.second];
        let ends = [Some(first), second].map(|end| end.map(|end| &model.files[end as usize]));
        for (end, writer) in ends.into_iter().zip([slots[1], slots[0]]) {
            if let Some(OpenFile::SocketPair { incoming, kind, .. }) = end {
                self.send(writer, incoming, *kind);
            }
        }
        for (end, slot) in ends.into_iter().zip(slots) {
            end.inspect(|end| self.settle(slot, end));
        }
    }

    /// Writes what waits at one end through the other, `writer`.
    fn send(&mut self, writer: u8, waiting: &[Message], kind: u32) {
        let longest = if kind == libc::SOCK_STREAM as u32 { STREAM_BYTES } else { usize::MAX };
        let cost = |message: &Message| {
            2 * message.bytes.len() + MESSAGE_OVERHEAD_BYTES * (1 + message.bytes.len() / longest)
        };
        let counted: usize = waiting.iter().map(cost).sum();
        let is_large = counted > SOCKET_BYTES as usize;
        if is_large {
            self.set_buffer(writer, SEND, 2 * counted as u32);
        }
        for message in waiting {
            if message.files.is_empty() && message.sender.is_none() {
                self.send_bytes(writer, &message.bytes, longest);
            } else {
                self.send_message(writer, message);
            }
        }
        if is_large {
            self.set_buffer(writer, SEND, SOCKET_BYTES);
            // It is not a size that the process has chosen.
            self.set_option(writer, libc::SOL_SOCKET, BUFFER_LOCKS, &0u32.to_le_bytes());
        }
    }

    fn send_bytes(&mut self, writer: u8, bytes: &[u8], longest: usize) {
        // One that is empty is sent all the same.
        for part in bytes.chunks(longest).chain(bytes.is_empty().then_some(bytes)) {
            let at = self.arena.put(part, 1);
            self.push_on(writer, libc::SYS_sendto, &[at, part.len() as u64, AT_ONCE, 0, 0]);
        }
    }

    /// `struct msghdr`: name, vector, control data, flags. The kernel keeps what comes with
    /// descriptors in one piece if it was in one piece.
    fn send_message(&mut self, writer: u8, message: &Message) {
        let control = self.control_data(message);
        let bytes = self.arena.put(&message.bytes, 1);
        let vector = self.arena.words(&[bytes, message.bytes.len() as u64]);
        let at = self.arena.put(&control, 8);
        let header = self.arena.words(&[0, 0, vector, 1, at, control.len() as u64, 0]);
        self.push_on(writer, libc::SYS_sendmsg, &[header, AT_ONCE]);
    }

    /// Each a length in a word, level and type, and what it is.
    fn control_data(&self, message: &Message) -> Vec<u8> {
        let mut control = Vec::new();
        let mut put = |kind: i32, words: &[u32]| {
            let head = [libc::SOL_SOCKET as u32, kind as u32];
            let words = head.iter().chain(words).flat_map(|word| word.to_le_bytes());
            let words: Vec<u8> = words.collect();
            control.extend((8 + words.len() as u64).to_le_bytes());
            control.extend(words);
            control.resize(control.len().next_multiple_of(8), 0);
        };
        let files: Vec<u32> = message.files.iter().filter_map(|file| self.first(*file)).collect();
        if !files.is_empty() {
            put(libc::SCM_RIGHTS, &files);
        }
        if let Some((user, group)) = message.sender {
            put(libc::SCM_CREDENTIALS, &[self.member.process.pid, user, group]);
        }
        control
    }

    /// Gives an end its attributes, after everything was written.
    fn settle(&mut self, slot: u8, file: &OpenFile) {
        let OpenFile::SocketPair { flags, shutdown, buffers: (receive, send), options, .. } = file
        else {
            return;
        };
        for SocketOption { level, name, value } in options {
            self.set_option(slot, *level, *name, value);
        }
        for (options, bytes) in [(RECEIVE, *receive), (SEND, *send)] {
            if bytes != SOCKET_BYTES {
                self.set_buffer(slot, options, bytes);
            }
        }
        if let Some(how) = shutdown.checked_sub(1) {
            self.push_on(slot, libc::SYS_shutdown, &[how.into()]);
        }
        self.set_flags(slot, *flags);
    }

    /// Sets a buffer to `bytes`, as `getsockopt` returns it. The first option works within the system's
    /// limit, the second beyond it if the restorer has the right.
    pub fn set_buffer(&mut self, slot: u8, [plain, forced]: [i32; 2], bytes: u32) {
        // The kernel doubles the size that is set, and returns the doubled size.
        let at = self.arena.words(&[u64::from(bytes / 2)]);
        let length = size_of::<i32>() as u64;
        for option in [plain, forced] {
            let args = [slot.into(), libc::SOL_SOCKET as u64, option as u64, at, length];
            let op = self.op(libc::SYS_setsockopt, &args).slot_arg(0);
            self.ops.push(if option == forced { op.may_fail() } else { op });
        }
    }
}

fn is_pipe(file: &OpenFile, identity: u64) -> bool {
    matches!(file, OpenFile::Pipe { pipe, .. } if *pipe == identity)
}

fn is_pair(file: &OpenFile, identity: u64) -> bool {
    matches!(file, OpenFile::SocketPair { pair, .. } if *pair == identity)
}
