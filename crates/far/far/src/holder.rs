//! The holder: mounts the file system, keeps its device open, and starts the far process. When a far process
//! is killed, the next one answers what the kernel has asked meanwhile, and what the last one has not answered.

use std::ffi::OsString;
use std::fs::{self, File};
use std::mem::ManuallyDrop;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use farfork_pool::Pool;
use farfork_types::CHUNK_BYTES;
use fuse_backend_rs::transport::FuseSession;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::mount::{UnmountFlags, unmount};

use crate::error::FarError;
use crate::place::Place;
use crate::start::close_output;

/// What stands as the source of the mount.
const FS_NAME: &str = "farfork";
/// Size of the far pool's own directory, in which only what is learnt about images lies.
const POOL_BYTES: u64 = 64 * CHUNK_BYTES;
/// Far processes that are killed more often than so many times in so long are not followed by another one.
const MOST_ENDS: usize = 5;
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Mounts on `place`, and keeps a far process running until it unmounts. `command` is a program with the
/// arguments of a far process; it gets the device as standard input, and `--take-over` if it is not the first.
///
/// # Errors
/// The pool cannot be made, the file system not mounted, or no far process be started.
pub fn hold(place: &Place, command: &[OsString]) -> Result<(), FarError> {
    let mounted = place.images();
    // What an earlier mount has left does not answer any more.
    while unmount(&mounted, UnmountFlags::DETACH).is_ok() {}
    let _ = fs::remove_file(place.known());
    if Pool::open(&place.pool()).is_err() {
        Pool::create(&place.pool(), POOL_BYTES)?;
    }
    let failed = || FarError::io("mount far memory on", &mounted);
    // Dropped, it would unmount whatever is mounted there by then, perhaps by the next holder. A far process
    // that stops has unmounted; what is left otherwise goes when the next holder begins.
    let session = FuseSession::new(&mounted, FS_NAME, "farfork", true).map_err(cannot_mount)?;
    let mut session = ManuallyDrop::new(session);
    session.mount().map_err(cannot_mount)?;
    let device = session.get_fuse_file().ok_or_else(|| cannot_mount("there is no device"))?;
    // Threads wait in reads: the kernel wakes one of them for each request.
    let flags = fcntl_getfl(device).map_err(|errno| failed()(errno.into()))?;
    fcntl_setfl(device, flags - OFlags::NONBLOCK).map_err(|errno| failed()(errno.into()))?;
    let mut ends = Ends::default();
    let mut child = start(command, device, false).map_err(failed())?;
    close_output().map_err(failed())?;
    loop {
        let status = child.wait().map_err(failed())?;
        if status.success() {
            return Ok(());
        }
        if status.signal().is_none() || ends.are_too_many(Instant::now()) {
            return Err(FarError::Process(format!("far memory on {} ended", mounted.display())));
        }
        eprintln!("farfork: the far process was killed ({}); the next one goes on", shown(status));
        child = start(command, device, true).map_err(failed())?;
    }
}

fn cannot_mount(reason: impl std::fmt::Display) -> FarError {
    FarError::Process(format!("cannot mount far memory: {reason}"))
}

fn shown(status: ExitStatus) -> String {
    status.signal().map_or_else(|| status.to_string(), |signal| format!("signal {signal}"))
}

fn start(command: &[OsString], device: &File, takes_over: bool) -> std::io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).args(takes_over.then_some("--take-over"));
    // The first one says on the holder's output that it listens.
    command.stdin(Stdio::from(device.try_clone()?)).stdout(Stdio::inherit()).spawn()
}

/// When far processes were killed lately.
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
