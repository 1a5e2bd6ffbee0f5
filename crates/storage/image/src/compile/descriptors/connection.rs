//! TCP connections that go on where the parent ended. Repair mode makes them without a handshake.
//!
//! ```text
//!  each   repair ─► bind ─► sequence numbers ─► connect ─► agreed options ─► queues ─► window
//!  all    the lock on the network goes
//!  each   repair ends ─► what was never sent is sent
//! ```
//! They come after all other files, so that a listening socket of the same port is there before:
//! repair mode takes any port, listening does not.

use farfork_plan::{Op, What, nr};
use farfork_sys::network_lock;
use farfork_sys::tcp_repair::{
    OPTIONS, QUEUE, QUEUE_SEQUENCE, RECEIVED, REPAIR, SENT, TIMESTAMP, WINDOW,
};

use super::Compiler;
use super::pair::{AT_ONCE, BUFFER_LOCKS, RECEIVE, SEND};
use crate::model::{OpenFile, Socket, SocketOption, SocketRole, TcpConnection};

/// What the kernel counts for a byte in a queue besides it, and for an empty queue.
const OVERHEAD: u32 = 4;
const QUEUE_BYTES: u32 = 256 << 10;
/// `TCPI_OPT_*`, and the numbers of these options in `TCP_REPAIR_OPTIONS`.
const TIMESTAMPS: (u8, u32) = (1, 8);
const SELECTIVE: (u8, u32) = (2, 4);
const SCALING: (u8, u32) = (4, 3);
const SEGMENT: u32 = 2;

impl Compiler<'_> {
    /// Makes the connections.
    pub fn connections(&mut self) {
        let model = self.model;
        let connections: Vec<_> = (0..)
            .zip(&model.files)
            .filter_map(|(index, file)| {
                let OpenFile::Socket(socket) = file else { return None };
                let SocketRole::Established(connection) = &socket.role else { return None };
                let own = self.first(index).filter(|_| self.root_fds.number(index).is_none());
                Some((index, own?, &**socket, &**connection))
            })
            .collect();
        for (index, fd, socket, connection) in &connections {
            self.name(*index, &model.files[*index as usize]);
            self.take(*fd);
            self.connection(socket, connection);
            self.give_back();
        }
        if let Some((.., connection)) = connections.first() {
            self.unlock(&connection.lock);
        }
        for (index, fd, socket, connection) in &connections {
            self.name(*index, &model.files[*index as usize]);
            self.take(*fd);
            self.go_on(socket, connection);
            self.give_back();
        }
    }

    fn take(&mut self, fd: u32) {
        let args = [fd.into(), libc::F_DUPFD_CLOEXEC as u64, self.fds.spare.start.into()];
        let op = self.op(libc::SYS_fcntl, &args).store(self.slots.made);
        self.ops.push(op);
    }

    fn give_back(&mut self) {
        self.push_on(self.slots.made, libc::SYS_close, &[]);
    }

    fn connection(&mut self, socket: &Socket, connection: &TcpConnection) {
        self.set_tcp(REPAIR, 1);
        let name = socket.name.clone().unwrap_or_default();
        let at = self.arena.put(&name, 8);
        self.address(libc::SYS_bind, &[at, name.len() as u64]);
        let queues = [(RECEIVED, &connection.received), (SENT, &connection.sent)];
        for (queue, (sequence, _)) in queues {
            self.set_tcp(QUEUE, queue as u32);
            self.set_tcp(QUEUE_SEQUENCE, *sequence);
        }
        let at = self.arena.put(&connection.peer, 8);
        self.address(libc::SYS_connect, &[at, connection.peer.len() as u64]);
        self.agree(connection);
        for (size, (_, bytes)) in [(RECEIVE, &connection.received), (SEND, &connection.sent)] {
            let room = (bytes.len() as u32).saturating_mul(OVERHEAD).max(QUEUE_BYTES);
            self.set_buffer(self.slots.made, size, room.min(i32::MAX as u32));
        }
        for (queue, (_, bytes)) in queues {
            self.set_tcp(QUEUE, queue as u32);
            let unsent = if queue == SENT { connection.unsent as usize } else { 0 };
            self.send_all(&bytes[..bytes.len().saturating_sub(unsent)], 0);
        }
        let made = self.slots.made;
        let window = connection.window.map(u32::to_le_bytes);
        self.set_option(made, libc::IPPROTO_TCP, WINDOW, window.as_flattened());
    }

    /// What both ends have agreed on when the connection was opened.
    fn agree(&mut self, connection: &TcpConnection) {
        let TcpConnection { options, scales, segment_bytes, .. } = *connection;
        let scales = u32::from(scales & 0xf) | u32::from(scales >> 4) << 16;
        let agreed = [(SCALING, scales), (SELECTIVE, 0), (TIMESTAMPS, 0)];
        let agreed = agreed.into_iter().filter(|((bit, _), _)| options & bit != 0);
        let agreed = agreed.map(|((_, number), value)| [number, value]);
        let words = [[SEGMENT, segment_bytes]].into_iter().chain(agreed).flatten();
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        self.set_option(self.slots.made, libc::IPPROTO_TCP, OPTIONS, &bytes);
        self.set_tcp(TIMESTAMP, connection.timestamp);
        // The kernel computed the size of segments before it knew the peer's. Setting empty options
        // of IPv4 makes it compute the size again. A connection over IPv6 keeps the smallest size.
        self.set_option(self.slots.made, libc::IPPROTO_IP, libc::IP_OPTIONS, &[]);
        self.ops.last_mut().into_iter().for_each(|op| op.may_fail = 1);
    }

    /// The first packet to the peer is what was never sent, or else a probe of its window.
    fn go_on(&mut self, socket: &Socket, connection: &TcpConnection) {
        self.set_tcp(REPAIR, 0);
        // The end of the mode has switched it off.
        let is_reuse = |option: &&SocketOption| {
            (option.level, option.name) == (libc::SOL_SOCKET, libc::SO_REUSEADDR)
        };
        if let Some(option) = socket.options.iter().find(is_reuse) {
            self.set_option(self.slots.made, option.level, option.name, &option.value);
        }
        let bytes = &connection.sent.1;
        let unsent = bytes.len().saturating_sub(connection.unsent as usize);
        self.send_all(&bytes[unsent..], AT_ONCE);
        let (receive, send) = socket.buffers;
        for (size, bytes) in [(RECEIVE, receive), (SEND, send)] {
            if let Some(bytes) = bytes {
                self.set_buffer(self.slots.made, size, bytes);
            }
        }
        let locks = u32::from(send.is_some()) | u32::from(receive.is_some()) << 1;
        let made = self.slots.made;
        self.set_option(made, libc::SOL_SOCKET, BUFFER_LOCKS, &locks.to_le_bytes());
    }

    /// Removes the lock on the network. Only the node of the checkpoint has one.
    fn unlock(&mut self, name: &str) {
        let family = [libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER];
        let op = self.op(libc::SYS_socket, &family.map(|part| part as u64));
        self.ops.push(op.store(self.slots.second));
        let batch = network_lock::unlocking(name);
        let at = self.arena.put(&batch, 8);
        self.push_on(self.slots.second, libc::SYS_sendto, &[at, batch.len() as u64, 0, 0, 0]);
        self.push_on(self.slots.second, libc::SYS_close, &[]);
        let first = self.ops.len() - 3;
        self.ops[first..].iter_mut().for_each(|op| op.may_fail = 1);
    }

    fn send_all(&mut self, bytes: &[u8], flags: u64) {
        if !bytes.is_empty() {
            let at = self.arena.put(bytes, 1);
            let args = [self.slots.made.into(), at, bytes.len() as u64, flags];
            let op = Op::new(What::Descriptor, nr::SEND_ALL, &args).slot_arg(0);
            self.ops.push(op.about(self.detail));
        }
    }

    fn set_tcp(&mut self, option: i32, value: u32) {
        self.set_option(self.slots.made, libc::IPPROTO_TCP, option, &value.to_le_bytes());
    }
}
