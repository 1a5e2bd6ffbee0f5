//! What kills monitors that no process serves any more.
//!
//! A server goes on when its holder is killed. From then on no process would start the next server: were this one
//! killed, too, its guests would wait for ever. So it starts a guard, which is this program with the same arguments:
//!
//! ```text
//!  holder  ╳     server ──── sockets of its machines ────> guard
//!                   ╳  the channel is closed ────────────> kills each monitor whose socket is still open
//! ```

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{self, Stdio};

use rustix::net::RecvFlags;

use crate::channel;
use crate::message::Command;
use crate::peer::{Peer, has_hung_up};

/// A guard that waits. Dropped, it looks for monitors to kill: none is left when all machines have ended.
pub(crate) struct Guard {
    _channel: OwnedFd,
}

impl Guard {
    /// Starts one for these machines.
    ///
    /// # Errors
    /// As of a process that is started.
    pub(crate) fn start<'a>(
        machines: impl Iterator<Item = (u64, &'a OwnedFd)>,
    ) -> io::Result<Guard> {
        let (own, other) = channel::pair()?;
        let mut command = process::Command::new("/proc/self/exe");
        command.args(std::env::args_os().skip(1)).process_group(0);
        command.stdin(Stdio::from(other)).stdout(Stdio::null()).spawn()?;
        for (machine, socket) in machines {
            channel::send(&own, &Command::Guard { machine }, &[socket.as_fd()])?;
        }
        Ok(Guard { _channel: own })
    }
}

/// The process that was started: takes machines until the server has ended.
pub(crate) fn run(channel: &OwnedFd, machine: u64, descriptors: Vec<OwnedFd>) {
    let mut machines = vec![(machine, descriptors)];
    while let Ok(Some((Command::Guard { machine }, descriptors))) =
        channel::receive(channel, RecvFlags::empty())
    {
        machines.push((machine, descriptors));
    }
    for (machine, sockets) in machines {
        for socket in sockets.iter().filter(|socket| !has_hung_up(socket)) {
            let peer = Peer::of(socket);
            let pid = peer.pid.map_or("unknown pid".to_owned(), |pid| format!("pid {pid}"));
            let what = if peer.kill() { "killed" } else { "could not kill" };
            // What reads it may be gone as well.
            let _ = writeln!(
                io::stderr(),
                "farfork: {what} the monitor of machine {machine} ({pid}): both processes that served its memory were \
                 killed; start farfork vm serve again"
            );
        }
    }
}
