//! The server: answers the kernel, and unmounts when it is to end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use farfork_image::vm::Snapshot;
use farfork_mount::Owner;
use farfork_pool::ImageFile;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::files::SnapshotFiles;
use super::{SIGNAL_BYTES, WHAT};

/// Reads of the pool take microseconds, those of cold pages on another node end by its deadline.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often a server that is to end looks whether machines still use its files.
const LOOK: Duration = Duration::from_millis(100);

/// Answers the kernel, whose device is standard input, until it is to end by `stops`: once, and it ends when no process
/// has a file mapped or open; twice, and it ends at once. `ready` is called when the files are there.
///
/// # Errors
/// As `io::Error`.
pub fn serve_mapped(
    at: &Path,
    (snapshot, file): (Snapshot, ImageFile),
    owner: Owner,
    takes_over: bool,
    stops: BorrowedFd<'_>,
    ready: impl FnOnce(),
) -> io::Result<()> {
    // Without the holder the device would stay open, and requests would wait that no process answers.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let device = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let shown = Arc::new(SnapshotFiles { snapshot, file, owner });
    let limit_s = farfork_mount::limit_for(DEADLINE);
    farfork_mount::answer(&device, &shown, takes_over, limit_s, left)?;
    ready();
    await_end(at, stops)
}

/// The file system is gone, and not because this process has unmounted it.
fn left() {
    std::thread::sleep(2 * LOOK);
    eprintln!("farfork: the file system of {WHAT} was unmounted");
    std::process::exit(0);
}

fn await_end(at: &Path, stops: BorrowedFd<'_>) -> io::Result<()> {
    wait_for(stops, None)?;
    let mut was_busy = false;
    loop {
        match unmount(at, UnmountFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) => {}
            // Another process has unmounted it.
            Err(_) => return Ok(()),
        }
        if !was_busy {
            eprintln!("waiting for machines that use {}; interrupt again to end now", at.display());
            was_busy = true;
        }
        if wait_for(stops, Some(LOOK))? {
            unmount(at, UnmountFlags::DETACH)?;
            return Ok(());
        }
    }
}

/// Whether one of `stops` came in time.
fn wait_for(stops: BorrowedFd<'_>, limit: Option<Duration>) -> io::Result<bool> {
    let limit = limit.and_then(|limit| rustix::time::Timespec::try_from(limit).ok());
    loop {
        match poll(&mut [PollFd::new(&stops, PollFlags::IN)], limit.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => {
                rustix::io::read(stops, &mut [0; SIGNAL_BYTES])?;
                return Ok(true);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
