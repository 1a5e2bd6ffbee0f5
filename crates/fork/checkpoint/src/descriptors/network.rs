//! The network namespace of the process, and what is asked of the kernel there.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use farfork_sys::inet_diag::udp_shut_down;
use farfork_sys::packet_diag::{PacketSocket, packet_sockets};
use farfork_sys::socket::socket_in;
use farfork_sys::unix_diag::{UnixSocket, unix_sockets};

use rustix::io::Errno;

use super::error::{DescriptorError, kernel_error, proc_error};

/// Family, type and protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketKind {
    /// `AF_INET` or another family.
    pub family: i32,
    /// `SOCK_STREAM` or another type.
    pub kind: i32,
    /// Protocol of the family.
    pub protocol: i32,
}

impl SocketKind {
    /// That of a Unix socket.
    pub fn unix(socket: &UnixSocket) -> SocketKind {
        SocketKind { family: libc::AF_UNIX, kind: socket.kind as i32, protocol: 0 }
    }
}

/// The network namespace of a process.
pub struct Network {
    pid: i32,
    /// Nothing if it is also this process's.
    namespace: Option<File>,
    new: RefCell<HashMap<SocketKind, Rc<OwnedFd>>>,
    /// How each UDP socket there was shut down, once that is asked.
    shut_down: OnceCell<HashMap<u32, u8>>,
}

impl Network {
    /// That of process `pid`.
    pub fn open(pid: i32) -> Result<Network, DescriptorError> {
        let failed = || proc_error(pid, "the network namespace");
        let theirs = File::open(format!("/proc/{pid}/ns/net")).map_err(failed())?;
        let ours = fs::metadata("/proc/self/ns/net").map_err(failed())?;
        let is_ours = theirs.metadata().map_err(failed())?.ino() == ours.ino();
        let namespace = Some(theirs).filter(|_| !is_ours);
        Ok(Network { pid, namespace, new: RefCell::default(), shut_down: OnceCell::new() })
    }

    fn place(&self) -> Option<BorrowedFd<'_>> {
        self.namespace.as_ref().map(AsFd::as_fd)
    }

    /// A way into it, if it is not this process's own.
    pub fn namespace(&self) -> Result<Option<File>, DescriptorError> {
        let twin = self.namespace.as_ref().map(File::try_clone).transpose();
        twin.map_err(proc_error(self.pid, "the network namespace"))
    }

    /// Unix sockets there, and in this process's own namespace: from here a clone was given its
    /// descriptors.
    pub fn unix_sockets(&self) -> Result<HashMap<u32, UnixSocket>, DescriptorError> {
        let failed = || kernel_error(self.pid, "the Unix sockets");
        let mut sockets = unix_sockets(None).map_err(failed())?;
        if self.namespace.is_some() {
            sockets.extend(unix_sockets(self.place()).map_err(failed())?);
        }
        Ok(sockets)
    }

    /// Packet sockets there; nothing where the kernel does not list them.
    pub fn packet_sockets(&self) -> Option<HashMap<u32, PacketSocket>> {
        packet_sockets(self.place()).ok()
    }

    /// How the UDP socket with this inode was shut down: bit 0 for reading, bit 1 for writing. Nothing if the
    /// kernel does not list it.
    pub fn shut_down(&self, inode: u32) -> Result<Option<u8>, Errno> {
        if let Some(known) = self.shut_down.get() {
            return Ok(known.get(&inode).copied());
        }
        let found = match udp_shut_down(self.place()) {
            // A kernel without CONFIG_INET_UDP_DIAG.
            Err(Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL) => HashMap::new(),
            found => found?,
        };
        Ok(self.shut_down.get_or_init(|| found).get(&inode).copied())
    }

    /// A new socket there, with the default settings.
    pub fn new_socket(&self, kind: SocketKind) -> Result<Rc<OwnedFd>, DescriptorError> {
        if let Some(known) = self.new.borrow().get(&kind) {
            return Ok(Rc::clone(known));
        }
        let SocketKind { family, kind: socket_type, protocol } = kind;
        let made = socket_in(self.place(), family, socket_type, protocol)
            .map_err(kernel_error(self.pid, "the defaults of sockets in the network namespace"))?;
        let made = Rc::new(made);
        self.new.borrow_mut().insert(kind, Rc::clone(&made));
        Ok(made)
    }
}
