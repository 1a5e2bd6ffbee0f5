//! TCP connections that go on in a clone, by choice. Their packets are blocked from before the
//! first look at their queues: data that arrived later would be acknowledged and lost. They are
//! blocked both ways: a peer that acknowledged what the kernel sent after the look would be ahead
//! of the clone.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use farfork_image::model::{SocketRole, TcpConnection};
use farfork_sys::network_lock::{Connection, NetworkLock, lock};
use farfork_sys::socket::{local_address, option_bytes, peer_address, tcp_state};
use farfork_sys::tcp_repair::{enter, snapshot};
use rustix::io::Errno;

use super::error::{
    CaptureError, DescriptorError, kernel_error, network_lock_error, refuse_detail,
};
use super::handle::Handles;
use super::network::SocketKind;
use super::table::{Entry, Kind};
use crate::refuse::causes;

/// `TCP_ESTABLISHED` of the kernel.
const ESTABLISHED: u8 = 1;

/// What happens to the TCP connections of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connections {
    /// They are reset in a clone.
    #[default]
    End,
    /// They go on in the clone that takes the place of the process.
    GoOn,
}

/// The connections of a process. Their packets are dropped until this is.
#[derive(Debug)]
pub struct KeptConnections {
    name: String,
    namespace: Option<File>,
    sockets: Vec<OwnedFd>,
    connections: Vec<Connection>,
    _lock: NetworkLock,
}

impl KeptConnections {
    /// Blocks the packets of the connections among the files `leaders` of process `pid` and its
    /// descendants, which have these `handles`; `None` without connections. The pid and the time
    /// make the name of the lock unique.
    pub fn silence(
        handles: &Handles,
        pid: i32,
        namespace: Option<File>,
        leaders: &[&Entry],
    ) -> Result<Option<KeptConnections>, DescriptorError> {
        let (mut sockets, mut connections) = (Vec::new(), Vec::new());
        let found = leaders.iter().filter(|entry| entry.kind() == Kind::Socket);
        for entry in found.filter(|entry| !entry.is_standard()) {
            let socket = handles.open(entry)?;
            if let Some(connection) = established(&socket) {
                sockets.push(socket);
                connections.push(connection);
            }
        }
        if sockets.is_empty() {
            return Ok(None);
        }
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let name = format!("farfork-{}-{:x}", pid, since.unwrap_or_default().as_nanos());
        let place = namespace.as_ref().map(AsFd::as_fd);
        let _lock = NetworkLock::hold(place, &format!("{name}-held"), &connections)
            .map_err(|errno| network_lock_error(pid, errno))?;
        Ok(Some(KeptConnections { name, namespace, sockets, connections, _lock }))
    }

    /// Hands the connections over to the clone: their packets stay blocked when farfork ends, and
    /// their sockets close silently when the process dies.
    pub fn hand_over(&self) -> Result<(), Errno> {
        let place = self.namespace.as_ref().map(AsFd::as_fd);
        lock(place, &self.name, &self.connections)?;
        self.sockets.iter().try_for_each(|socket| enter(socket.as_fd()))
    }

    /// The connection behind `socket`, described by `words`.
    pub fn role(
        &self,
        pid: i32,
        socket: &OwnedFd,
        SocketKind { protocol, .. }: SocketKind,
        words: &str,
    ) -> Result<SocketRole, CaptureError> {
        let failed = || kernel_error(pid, format!("the TCP connection {words} (TCP_REPAIR)"));
        let has_layer = option_bytes(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_ULP, LAYER_BYTES)
            .is_ok_and(|name| name.first().is_some_and(|byte| *byte != 0));
        let is_plain = protocol == libc::IPPROTO_TCP && !has_layer;
        if !is_plain || established(socket).is_none() {
            return Err(refuse_detail(words, causes::sockets::TCP_STATE));
        }
        let seen = snapshot(socket).map_err(failed())?;
        Ok(SocketRole::Established(Box::new(TcpConnection {
            peer: peer_address(socket.as_fd()).map_err(failed())?,
            received: seen.received,
            sent: seen.sent,
            unsent: seen.unsent,
            segment_bytes: seen.segment_bytes,
            options: seen.options,
            scales: seen.scales,
            timestamp: seen.timestamp,
            window: seen.window,
            lock: self.name.clone(),
        })))
    }
}

const LAYER_BYTES: usize = 16;

/// The addresses of the connection of `socket`, if it is established.
fn established(socket: &OwnedFd) -> Option<Connection> {
    let socket = socket.as_fd();
    tcp_state(socket).ok().filter(|known| known.state == ESTABLISHED)?;
    Connection::between(&local_address(socket).ok()?, &peer_address(socket).ok()?)
}
