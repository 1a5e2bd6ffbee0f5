//! A snapshot as files: its memory for Firecracker's memory backend `File`, which maps it privately, and its state.
//!
//! ```text
//!  machine 1 ─┐ maps, privately                       holder: farfork vm map
//!  machine 2 ─┴─► DIR/memory ─► page cache ─► FUSE ─► server ─► image in the pool
//! ```
//! Each page is read once, into the page cache, which all machines share as long as they only read it. Reads verify the
//! checksum of every page: a page that does not match ends in SIGBUS. The holder reads the pages that earlier machines
//! needed in advance.

mod advance;
mod files;
mod serve;

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::{Child, ExitStatus};

use farfork_mount::MountError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::hot;
use advance::Advance;
pub use files::{MEMORY, STATE};
pub use serve::serve_mapped;

/// Bytes of a signal that is read (`struct signalfd_siginfo`).
const SIGNAL_BYTES: usize = 128;
const WHAT: &str = "a snapshot's memory";

/// Mounts on `at`, and keeps a server running, until it ends. `command` is a program that calls [`serve_mapped`]. What
/// can be read from `stops`, such as a signal, is sent on to it as SIGTERM. The pages `known`, in the order in which machines
/// needed them, are read into the page cache.
///
/// # Errors
/// The file system cannot be mounted, or no server be started.
pub fn hold_mapped(
    at: &Path,
    command: &[OsString],
    stops: BorrowedFd<'_>,
    known: Vec<u32>,
) -> Result<(), MountError> {
    let mut known = Some(known);
    let mut advance = None;
    farfork_mount::hold(at, WHAT, command, &mut |child| {
        // A server runs now.
        if let Some(known) = known.take() {
            advance = Some(Advance::begin(at, hot::ranges(&known)));
        }
        wait(child, stops, advance.as_ref())
    })
}

fn wait(
    child: &mut Child,
    stops: BorrowedFd<'_>,
    advance: Option<&Advance>,
) -> io::Result<ExitStatus> {
    let pid = Pid::from_child(child);
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let mut polls = [PollFd::new(&ended, PollFlags::IN), PollFd::new(&stops, PollFlags::IN)];
        match poll(&mut polls, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if !polls[0].revents().is_empty() {
            return child.wait();
        }
        if rustix::io::read(stops, &mut [0; SIGNAL_BYTES]).is_ok() {
            advance.inspect(|advance| advance.stop());
            kill_process(pid, Signal::TERM)?;
        }
    }
}
