//! A ghost: an init that waits for its one clone in a container that the caller makes.
//!
//! ```text
//!  GhostLauncher ── descriptors ──► container's first process ── Hello ──► Ghost ── Request ──► Started
//! ```

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::process::Command;
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use farfork_plan::protocol::{Hello, Request, VERSION};
use farfork_types::Cid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use zerocopy::IntoBytes;

use crate::error::RestoreError;
use crate::template::{
    CONTROL_FD, RequestFds, Started, failed, has_hung_up, packet_pair, program, send_request,
};

/// Where the first process of the container finds its program.
const PROGRAM_FD: RawFd = CONTROL_FD + 1;

/// Launches a ghost: holds what the first process of its container is given.
#[derive(Debug)]
pub struct GhostLauncher {
    control: OwnedFd,
    theirs: OwnedFd,
    program: OwnedFd,
}

/// A ghost that was launched and has not sent its hello yet.
#[derive(Debug)]
pub struct PendingGhost {
    control: OwnedFd,
}

/// A ghost that waits. Dropped, it ends.
#[derive(Debug)]
pub struct Ghost {
    control: OwnedFd,
    init_pid: i32,
}

impl GhostLauncher {
    /// How many descriptors from 3 on the container's first process needs.
    pub const DESCRIPTORS: i32 = 2;

    /// Makes what a ghost needs.
    pub fn new() -> Result<GhostLauncher, RestoreError> {
        let (control, theirs) = packet_pair()?;
        Ok(GhostLauncher { control, theirs, program: program()?.into() })
    }

    /// What the container's first process has to execute, with the descriptors below.
    pub fn arguments() -> [String; 2] {
        [format!("/proc/self/fd/{PROGRAM_FD}"), "ghost".to_owned()]
    }

    /// Gives `command` the descriptors to hand on.
    pub fn hand_to(self, command: &mut Command) -> Result<PendingGhost, RestoreError> {
        let GhostLauncher { control, theirs, program } = self;
        let mappings = vec![
            FdMapping { parent_fd: theirs, child_fd: CONTROL_FD },
            FdMapping { parent_fd: program, child_fd: PROGRAM_FD },
        ];
        command.fd_mappings(mappings).map_err(|_| {
            failed("make a socket for the restorer")(io::Error::other("numbers collide"))
        })?;
        Ok(PendingGhost { control })
    }
}

impl PendingGhost {
    /// Waits until the process `init_pid` says that it is a ghost.
    pub fn await_hello(self, init_pid: i32, patience: Duration) -> Result<Ghost, RestoreError> {
        let PendingGhost { control } = self;
        let mut polls = [PollFd::new(&control, PollFlags::IN)];
        let time = Timespec::try_from(patience).ok();
        let heard = poll(&mut polls, time.as_ref());
        let mut hello = Hello::default();
        if !heard.is_ok_and(|heard| heard > 0) {
            return Err(failed("reach the ghost in its container")(io::ErrorKind::TimedOut.into()));
        }
        let read = rustix::io::read(&control, hello.as_mut_bytes())
            .map_err(|errno| failed("reach the ghost in its container")(errno.into()))?;
        if read != size_of::<Hello>() || hello != (Hello { version: VERSION, reserved: 0 }) {
            let kind = io::ErrorKind::UnexpectedEof;
            return Err(failed("reach the ghost in its container")(kind.into()));
        }
        Ok(Ghost { control, init_pid })
    }
}

impl Ghost {
    /// Pid of its container's first process, as seen here.
    pub fn init_pid(&self) -> i32 {
        self.init_pid
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        has_hung_up(&self.control)
    }

    /// Starts its clone: see [`Template::spawn`](crate::Template::spawn).
    pub fn spawn(
        self,
        cid: Cid,
        request: &Request,
        fds: &RequestFds<'_>,
    ) -> Result<Started, RestoreError> {
        let status = send_request(&self.control, request, fds)?;
        Ok(Started::new(cid, self.init_pid, true, status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Stdio};

    /// A ghost without a container, as a child.
    fn launch() -> (Child, PendingGhost) {
        let launcher = GhostLauncher::new().unwrap();
        let [program, argument] = GhostLauncher::arguments();
        let mut command = Command::new(program);
        command.arg(argument).stdin(Stdio::null());
        let pending = launcher.hand_to(&mut command).unwrap();
        (command.spawn().unwrap(), pending)
    }

    fn arrived() -> (Child, Ghost) {
        let (child, pending) = launch();
        let ghost = pending.await_hello(child.id() as i32, Duration::from_secs(10)).unwrap();
        (child, ghost)
    }

    /// Waits until the ghost is seen to have ended: while another test forks, its child has the
    /// other end of the socket, too, until it executes its program.
    fn ends(ghost: &Ghost) -> bool {
        let mut polls = [PollFd::new(&ghost.control, PollFlags::empty())];
        let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
        poll(&mut polls, Some(&patience)).unwrap() == 1 && ghost.has_ended()
    }

    #[test]
    fn it_waits_until_it_is_dropped() {
        let (mut child, ghost) = arrived();
        assert_eq!((ghost.init_pid(), ghost.has_ended()), (child.id() as i32, false));
        assert!(child.try_wait().unwrap().is_none());
        drop(ghost);
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_killed_ghost_has_ended() {
        let (mut child, ghost) = arrived();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ends(&ghost));
    }

    #[test]
    fn garbage_ends_it_and_starts_nothing() {
        for garbage in [&b"x"[..], &[0xff; 300], &[0; 71]] {
            let (mut child, ghost) = arrived();
            rustix::io::write(&ghost.control, garbage).unwrap();
            child.wait().unwrap();
            assert!(ends(&ghost), "{} bytes", garbage.len());
        }
    }

    #[test]
    fn another_program_is_not_taken_for_a_ghost() {
        let launcher = GhostLauncher::new().unwrap();
        let mut command = Command::new("true");
        let pending = launcher.hand_to(&mut command).unwrap();
        let mut child = command.spawn().unwrap();
        drop(command); // which holds the other end
        child.wait().unwrap();
        assert!(pending.await_hello(child.id() as i32, Duration::from_secs(10)).is_err());
    }

    #[test]
    fn waiting_for_a_silent_process_times_out() {
        let launcher = GhostLauncher::new().unwrap();
        let mut command = Command::new("sleep");
        let pending = launcher.hand_to(command.arg("60")).unwrap();
        let mut child = command.spawn().unwrap();
        let late = pending.await_hello(child.id() as i32, Duration::from_millis(50));
        let text = late.unwrap_err().to_string();
        assert!(text.contains("container"), "{text}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn its_number_is_after_that_of_its_socket() {
        assert_eq!(GhostLauncher::arguments()[0], "/proc/self/fd/4");
        assert_eq!(CONTROL_FD + GhostLauncher::DESCRIPTORS, PROGRAM_FD + 1);
    }
}
