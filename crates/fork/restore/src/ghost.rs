//! A ghost: an init that waits for its one clone in a container that the caller makes.
//!
//! ```text
//!  Seat ── descriptors ──► container's first process ── Hello ──► Ghost ── Request ──► Started
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
    CONTROL_FD, Hands, Started, failed, has_hung_up, packet_pair, program, send_request,
};

/// Where the first process of the container finds its program.
const PROGRAM_FD: RawFd = CONTROL_FD + 1;

/// A place for a ghost: what the first process of its container has to be given.
#[derive(Debug)]
pub struct Seat {
    control: OwnedFd,
    theirs: OwnedFd,
    program: OwnedFd,
}

/// A seat that was taken by a process which has not been heard of yet.
#[derive(Debug)]
pub struct Summoned {
    control: OwnedFd,
}

/// A ghost that waits. Dropped, it ends.
#[derive(Debug)]
pub struct Ghost {
    control: OwnedFd,
    init_pid: i32,
}

impl Seat {
    /// How many descriptors from 3 on the container's first process needs.
    pub const DESCRIPTORS: i32 = 2;

    /// Makes what a ghost needs.
    pub fn new() -> Result<Seat, RestoreError> {
        let (control, theirs) = packet_pair()?;
        Ok(Seat { control, theirs, program: program()?.into() })
    }

    /// What the container's first process has to execute, with the descriptors below.
    pub fn arguments() -> [String; 2] {
        [format!("/proc/self/fd/{PROGRAM_FD}"), "ghost".to_owned()]
    }

    /// Gives `command` the descriptors to hand on.
    pub fn hand_to(self, command: &mut Command) -> Result<Summoned, RestoreError> {
        let Seat { control, theirs, program } = self;
        let mappings = vec![
            FdMapping { parent_fd: theirs, child_fd: CONTROL_FD },
            FdMapping { parent_fd: program, child_fd: PROGRAM_FD },
        ];
        command.fd_mappings(mappings).map_err(|_| {
            failed("make a socket for the restorer")(io::Error::other("numbers collide"))
        })?;
        Ok(Summoned { control })
    }
}

impl Summoned {
    /// Waits until the process `init_pid` says that it is a ghost.
    pub fn arrive(self, init_pid: i32, patience: Duration) -> Result<Ghost, RestoreError> {
        let Summoned { control } = self;
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
        hands: &Hands<'_>,
    ) -> Result<Started, RestoreError> {
        let status = send_request(&self.control, request, hands)?;
        Ok(Started::of(cid, self.init_pid, true, status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Stdio};

    /// A ghost without a container, as a child.
    fn summon() -> (Child, Summoned) {
        let seat = Seat::new().unwrap();
        let [program, argument] = Seat::arguments();
        let mut command = Command::new(program);
        command.arg(argument).stdin(Stdio::null());
        let summoned = seat.hand_to(&mut command).unwrap();
        (command.spawn().unwrap(), summoned)
    }

    fn arrived() -> (Child, Ghost) {
        let (child, summoned) = summon();
        let ghost = summoned.arrive(child.id() as i32, Duration::from_secs(10)).unwrap();
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
        let seat = Seat::new().unwrap();
        let mut command = Command::new("true");
        let summoned = seat.hand_to(&mut command).unwrap();
        let mut child = command.spawn().unwrap();
        drop(command); // which holds the other end
        child.wait().unwrap();
        assert!(summoned.arrive(child.id() as i32, Duration::from_secs(10)).is_err());
    }

    #[test]
    fn waiting_for_a_silent_process_times_out() {
        let seat = Seat::new().unwrap();
        let mut command = Command::new("sleep");
        let summoned = seat.hand_to(command.arg("60")).unwrap();
        let mut child = command.spawn().unwrap();
        let error = summoned.arrive(child.id() as i32, Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("container"), "{error}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn its_number_is_after_that_of_its_socket() {
        assert_eq!(Seat::arguments()[0], "/proc/self/fd/4");
        assert_eq!(CONTROL_FD + Seat::DESCRIPTORS, PROGRAM_FD + 1);
    }
}
