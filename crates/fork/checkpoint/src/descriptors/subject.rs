//! A process whose descriptors are captured.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use farfork_sys::unix_diag::UnixSocket;

use super::connection::KeptConnections;
use super::context::{PipeEnds, TreeContext};
use super::error::DescriptorError;
use super::in_flight::Queue;
use super::network::Network;
use super::table::Entry;

/// A process whose descriptors are captured.
pub struct Subject {
    /// Its id here.
    pub pid: i32,
    /// Its id in its innermost PID namespace.
    pub inner_pid: u32,
    /// Its network namespace, which is that of all.
    pub network: Rc<Network>,
    /// What it shares with the other processes of the image.
    pub context: Rc<TreeContext>,
}

impl Subject {
    /// A descriptor of this process for the description behind `entry`.
    pub fn open(&self, entry: &Entry) -> Result<OwnedFd, DescriptorError> {
        self.context.open(entry)
    }

    /// What waits at the socket behind `entry`, if descriptors do; asked once.
    pub fn queue(&self, entry: &Entry) -> Option<Queue> {
        self.context.queue(entry)
    }

    /// The connections of the processes, where they are to go on.
    pub fn kept(&self) -> Option<&KeptConnections> {
        self.context.kept().map(Rc::as_ref)
    }

    /// How often the pipe behind `entry` is open in the processes.
    pub fn pipe_ends(&self, entry: &Entry) -> PipeEnds {
        self.context.pipe_ends(entry)
    }

    /// Which of the files without a name is behind `entry`, counted by first descriptors.
    pub fn unnamed(&self, entry: &Entry) -> Option<u32> {
        self.context.unnamed(entry.identity())
    }

    /// Which of the terminals whose masters the processes have is number `number` here.
    pub fn terminal(&self, number: u32) -> Option<u32> {
        self.context.terminal(number)
    }

    /// Whether a process outside has what has this link in `/proc`: a pipe, a socket, or a file
    /// without a name.
    pub fn is_shared(&self, link: &str) -> bool {
        self.context.is_shared(link)
    }

    /// Whether one of the processes has the socket with this inode.
    pub fn has_socket(&self, inode: u32) -> bool {
        self.context.has_socket(inode)
    }

    /// What the kernel shows of the Unix socket with this inode.
    pub fn unix_socket(&self, inode: u32) -> Option<&UnixSocket> {
        self.context.unix_socket(inode)
    }
}
