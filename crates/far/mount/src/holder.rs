//! The holder: mounts the file system, keeps its device open, and starts the server. When a server is killed, the next
//! one answers what the kernel has asked meanwhile, and what the last one has not answered. When the holder is killed, the
//! server becomes the holder: it executes that program, with the device that it has, and stops to answer by that.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fuse_backend_rs::transport::FuseSession;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{PidfdFlags, getppid, pidfd_open};

use crate::error::MountError;

/// What stands as the source of the mount, and as its type behind `fuse.`.
const NAME: &str = "farfork";
/// Servers that are killed more often than so many times in so long are not followed by another one.
const MOST_ENDS: usize = 5;
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Mounts on `at`, and keeps a server running until it unmounts and ends well. `command` is a program with its arguments;
/// it gets the device as standard input, and `--take-over` if it is not the first. The first one may print to the
/// holder's standard output, which is then closed. `wait` waits for the end of a server. `what` is what the file system
/// shows, for messages. All users may use it whom its permissions let.
///
/// # Errors
/// The file system cannot be mounted, or no server be started.
pub fn hold(
    at: &Path,
    what: &'static str,
    command: &[OsString],
    wait: &mut dyn FnMut(&mut Child) -> io::Result<ExitStatus>,
) -> Result<(), MountError> {
    let failed = |source: io::Error| MountError::Io { what, at: at.to_owned(), source };
    let cannot_mount = |why: String| MountError::Mount { what, at: at.to_owned(), why };
    // What an earlier mount has left does not answer any more.
    while is_farforks(at) && unmount(at, UnmountFlags::DETACH).is_ok() {}
    // Dropped, it would unmount whatever is mounted there by then, perhaps by the next holder. A server that
    // stops has unmounted; what is left otherwise goes when the next holder begins.
    let session = FuseSession::new(at, NAME, NAME, true);
    let session = session.map_err(|error| cannot_mount(error.to_string()))?;
    let mut session = ManuallyDrop::new(session);
    session.mount().map_err(|error| cannot_mount(error.to_string()))?;
    let device =
        session.get_fuse_file().ok_or_else(|| cannot_mount("there is no device".to_owned()))?;
    // Threads wait in reads: the kernel wakes one of them for each request.
    let flags = fcntl_getfl(device).map_err(|errno| failed(errno.into()))?;
    fcntl_setfl(device, flags - OFlags::NONBLOCK).map_err(|errno| failed(errno.into()))?;
    keep(at, what, command, device, false, wait)
}

/// Goes on as the holder of what is mounted on `at`, whose device is standard input. The process was its server.
///
/// # Errors
/// No server can be started.
pub fn adopt(
    at: &Path,
    what: &'static str,
    command: &[OsString],
    wait: &mut dyn FnMut(&mut Child) -> io::Result<ExitStatus>,
) -> Result<(), MountError> {
    let device = io::stdin().as_fd().try_clone_to_owned();
    let device = device.map_err(|source| MountError::Io { what, at: at.to_owned(), source })?;
    eprintln!("farfork: the holder of {what} was killed; its server goes on as the holder");
    keep(at, what, command, &File::from(device), true, wait)
}

/// Calls `killed` on a thread of its own when the process that has started this one, its holder, ends without it.
///
/// # Errors
/// The kernel has no descriptor or no thread.
pub fn when_holder_ends(killed: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let gone = || io::Error::other("its holder has ended");
    let parent = getppid().ok_or_else(gone)?;
    let holder = pidfd_open(parent, PidfdFlags::empty())?;
    // The pid may have become another process before it was opened; that one has not started this one.
    if getppid() != Some(parent) {
        return Err(gone());
    }
    std::thread::Builder::new().name("holder".to_owned()).spawn(move || {
        let mut polls = [PollFd::new(&holder, PollFlags::IN)];
        while poll(&mut polls, None) == Err(Errno::INTR) {}
        killed();
    })?;
    Ok(())
}

/// Keeps a server running until it unmounts and ends well.
fn keep(
    at: &Path,
    what: &'static str,
    command: &[OsString],
    device: &File,
    takes_over: bool,
    wait: &mut dyn FnMut(&mut Child) -> io::Result<ExitStatus>,
) -> Result<(), MountError> {
    let failed = |source: io::Error| MountError::Io { what, at: at.to_owned(), source };
    let mut ends = Ends::default();
    let mut child = start(command, device, takes_over).map_err(failed)?;
    close_output().map_err(failed)?;
    loop {
        let status = wait(&mut child).map_err(failed)?;
        if status.success() {
            return Ok(());
        }
        if status.signal().is_none() || ends.are_too_many(Instant::now()) {
            let _ = unmount(at, UnmountFlags::DETACH);
            return Err(MountError::Ended { what, at: at.to_owned() });
        }
        eprintln!(
            "farfork: the server of {what} was killed ({}); the next one goes on",
            shown(status)
        );
        child = start(command, device, true).map_err(failed)?;
    }
}

/// Whether a file system of a holder is mounted there, perhaps one that nothing answers for any more.
fn is_farforks(at: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // As the kernel writes it: spaces and the like in octal.
    let place = at.to_string_lossy().replace('\\', "\\134").replace(' ', "\\040");
    let place = place.replace('\t', "\\011").replace('\n', "\\012");
    let kind = format!("fuse.{NAME}");
    mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next() == Some(&place) && words.next() == Some(&kind)
    })
}

fn shown(status: ExitStatus) -> String {
    status.signal().map_or_else(|| status.to_string(), |signal| format!("signal {signal}"))
}

fn start(command: &[OsString], device: &File, takes_over: bool) -> io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).args(takes_over.then_some("--take-over"));
    // Keys that interrupt the holder must not kill the server first.
    command.process_group(0);
    command.stdin(Stdio::from(device.try_clone()?)).stdout(Stdio::inherit()).spawn()
}

/// A command that waits sees the end of its pipe when no process has the other end.
///
/// # Errors
/// There is no `/dev/null`.
pub fn close_output() -> io::Result<()> {
    let nothing = File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(&nothing)?)
}

/// When servers were killed lately.
#[derive(Default)]
struct Ends(Vec<Instant>);

impl Ends {
    fn are_too_many(&mut self, now: Instant) -> bool {
        self.0.push(now);
        self.0.retain(|end| now.saturating_duration_since(*end) < ENDS_WITHIN);
        self.0.len() > MOST_ENDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ends_in_a_row_are_too_many() {
        let now = Instant::now();
        let mut ends = Ends::default();
        for seconds in 0..20 {
            assert!(!ends.are_too_many(now + 3 * Duration::from_secs(seconds)));
        }
        let mut ends = Ends::default();
        let many = (0..=MOST_ENDS).map(|_| ends.are_too_many(now)).collect::<Vec<_>>();
        assert_eq!(many, [vec![false; MOST_ENDS], vec![true]].concat());
    }
}
