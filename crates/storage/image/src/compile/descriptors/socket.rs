//! Sockets that are made anew, with everything that the process set before others can reach them.

use farfork_plan::{Op, What, nr};

use super::Compiler;
use super::pair::{RECEIVE, SEND};
use crate::model::{Socket, SocketOption, SocketRole};
use std::os::unix::ffi::OsStrExt;

/// Nothing is sent to this port: a connection to it is made in repair mode only.
const DISCARD_PORT: u16 = 9;
/// `TCP_REPAIR_OFF_NO_WP`: ends repair mode without a packet to the peer.
const REPAIR_OFF_SILENTLY: i32 = -1;

impl Compiler<'_> {
    /// Makes a socket, unless the caller has supplied another.
    pub fn socket(&mut self, index: u32, socket: &Socket) {
        let supplied = self.slot_of(index, u32::MAX);
        let at = self.ops.len();
        self.make_socket(socket);
        if let Some(slot) = supplied {
            let args = [slot.into(), (self.ops.len() - at) as u64];
            let take = Op::new(What::Descriptor, nr::TAKE_SUPPLIED, &args).slot_arg(0);
            self.ops.insert(at, take.store(self.slots.made).about(self.detail));
        }
        self.set_flags(self.slots.made, socket.flags);
        self.place(self.slots.made, index);
    }

    fn make_socket(&mut self, socket: &Socket) {
        let made = self.slots.made;
        let kind = [socket.family, socket.kind, socket.protocol].map(u64::from);
        let op = self.op(libc::SYS_socket, &kind).store(made);
        self.ops.push(op);
        if socket.owner != (0, 0) {
            let (user, group) = socket.owner;
            self.push_on(made, libc::SYS_fchown, &[user.into(), group.into()]);
        }
        if let SocketRole::Ended { is_reset } = socket.role {
            return self.end(socket.family, is_reset);
        }
        self.set_options(socket);
        if let SocketRole::Established(_) = socket.role {
            return;
        }
        self.bind(socket);
        self.options(socket, &socket.last_options);
        match &socket.role {
            SocketRole::Listening { backlog } => {
                self.address(libc::SYS_listen, &[(*backlog).into()]);
            }
            SocketRole::Connected { peer } | SocketRole::Within { peer } => {
                let at = self.arena.put(peer, 8);
                self.address(libc::SYS_connect, &[at, peer.len() as u64]);
            }
            SocketRole::Idle | SocketRole::Established(_) | SocketRole::Ended { .. } => {}
        }
        if socket.shutdown != 0 {
            // SHUT_RD, SHUT_WR, SHUT_RDWR. Says that the socket is not connected, if it is not, and shuts it
            // down all the same.
            self.push_on(made, libc::SYS_shutdown, &[u64::from(socket.shutdown) - 1]);
            self.ops.last_mut().into_iter().for_each(|op| op.may_fail = 1);
        }
    }

    fn set_options(&mut self, socket: &Socket) {
        self.options(socket, &socket.options);
        let (receive, send) = socket.buffers;
        for (options, bytes) in [(RECEIVE, receive), (SEND, send)] {
            if let Some(bytes) = bytes {
                self.set_buffer(self.slots.made, options, bytes);
            }
        }
        self.filter(socket);
    }

    fn options(&mut self, socket: &Socket, options: &[SocketOption]) {
        let about = self.detail;
        for option in options {
            self.name_option(&socket.description, option);
            self.set_option(self.slots.made, option.level, option.name, &option.value);
        }
        self.detail = about;
    }

    fn name_option(&mut self, description: &str, option: &SocketOption) {
        let SocketOption { level, name, .. } = option;
        let text = format!("{description}: its option {name} of level {level}");
        self.detail = self.arena.detail(&text);
    }

    /// Sets an option of the socket in `slot`.
    pub fn set_option(&mut self, slot: u8, level: i32, name: i32, value: &[u8]) {
        let at = self.arena.put(value, 8);
        let args = [level as u64, name as u64, at, value.len() as u64];
        self.push_on(slot, libc::SYS_setsockopt, &args);
    }

    fn set_integer(&mut self, level: i32, name: i32, value: i32) {
        self.set_option(self.slots.made, level, name, &value.to_le_bytes());
    }

    /// `struct sock_fprog` is a count and the address of the instructions.
    fn filter(&mut self, socket: &Socket) {
        if !socket.filter.is_empty() {
            let at = self.arena.words(&socket.filter);
            let program = [socket.filter.len() as u64, at].map(u64::to_le_bytes);
            let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
            self.set_option(self.slots.made, level, name, program.as_flattened());
        }
        if socket.is_filter_locked {
            self.set_integer(libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1);
        }
    }

    /// A socket that is content with any address takes another where the parent still has its own.
    fn bind(&mut self, socket: &Socket) {
        let Some(name) = &socket.name else { return };
        let at = self.arena.put(name, 8);
        let makes_file = socket.file.is_some();
        if makes_file {
            self.opener.assume(&mut self.ops);
        }
        let number = if makes_file { nr::BIND.into() } else { libc::SYS_bind };
        self.address(number, &[at, name.len() as u64]);
        if let (true, Some(bind)) = (socket.is_content(), self.ops.last_mut()) {
            bind.may_fail = 1;
        }
        self.opener.resume(&mut self.ops);
        self.socket_file(socket);
    }

    /// Gives the file of a Unix socket to whom it belonged: binding has made it the restorer's.
    fn socket_file(&mut self, socket: &Socket) {
        let (Some(_), Some(file)) = (socket.path(), &socket.file) else { return };
        let place = self.arena.text(file.place.as_os_str().as_bytes());
        let owner = [file.mode, file.user, file.group].map(u64::from);
        self.address(nr::SOCKET_FILE.into(), &[&owner[..], &[place]].concat());
    }

    /// A call that gives the socket in the making its address.
    pub fn address(&mut self, number: i64, args: &[u64]) {
        let args = [&[self.slots.made.into()], args].concat();
        let op = Op::new(What::Address, number as u32, &args).slot_arg(0);
        self.ops.push(op.about(self.detail));
    }

    /// Leaves the socket as a connection that is over, and sends no packet. In repair mode a
    /// connection exists without a handshake, and disconnecting it resets it. Where this node has no
    /// loopback device, the error is ECONNABORTED. Without the right to repair, the process reads the
    /// end of the stream only, and the user is warned.
    fn end(&mut self, family: u32, is_reset: bool) {
        let made = self.slots.made;
        if is_reset {
            let (nowhere, loopback) = (self.nowhere(), self.loopback(family));
            let nonblocking = [libc::F_SETFL as u64, libc::O_NONBLOCK as u64];
            self.push_on(made, libc::SYS_fcntl, &nonblocking);
            let first = self.ops.len();
            self.push_on(made, libc::SYS_connect, &nowhere);
            self.push_on(made, libc::SYS_connect, &loopback);
            self.set_integer(libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_OFF_SILENTLY);
            self.push_on(made, libc::SYS_connect, &nowhere);
            self.ops[first..].iter_mut().for_each(|op| op.may_fail = 1);
            let args = [made.into(), (self.ops.len() - first) as u64];
            let repair = Op::new(What::Reset, nr::REPAIR, &args).slot_arg(0);
            self.ops.insert(first, repair.about(self.detail).warns());
            self.push_on(made, libc::SYS_fcntl, &[libc::F_SETFL as u64, 0]);
        }
        // Says that the socket is not connected, and shuts it down all the same.
        self.push_on(made, libc::SYS_shutdown, &[libc::SHUT_RDWR as u64]);
        self.ops.last_mut().into_iter().for_each(|op| op.may_fail = 1);
    }

    /// Address and length of `AF_UNSPEC`: connecting to it disconnects.
    fn nowhere(&mut self) -> [u64; 2] {
        [self.arena.words(&[libc::AF_UNSPEC as u64, 0]), 16]
    }

    fn loopback(&mut self, family: u32) -> [u64; 2] {
        let head = [(family as u16).to_le_bytes(), DISCARD_PORT.to_be_bytes()].concat();
        let address = if family == libc::AF_INET6 as u32 {
            [&head[..], &[0; 19], &[1], &[0; 4]].concat()
        } else {
            [&head[..], &[127, 0, 0, 1], &[0; 8]].concat()
        };
        [self.arena.put(&address, 8), address.len() as u64]
    }
}
