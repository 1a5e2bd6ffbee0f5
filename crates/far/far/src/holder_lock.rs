//! The lock of a mount: its holder has it, and its far process, which inherits it and goes on as the holder when that is
//! killed.
//!
//! ```text
//!  holder ── starts ──► far process ── killed ──► next far process        the lock is held all the time;
//!    └ killed                └ executes the holder ──► far process        nothing listens at the socket between two
//! ```
//! Between two far processes the socket refuses connections as it does when nothing is mounted. The lock shows which of both
//! it is: a second holder would take the mount away from clones.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use farfork_sys::inherited::keep_on_exec;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::place::Place;

/// How often the end of another holder is looked for.
const LOOK: Duration = Duration::from_millis(10);

/// No other holder mounts at the place as long as this, or what inherited it, lives.
#[derive(Debug)]
pub struct HolderLock(File);

impl HolderLock {
    /// Makes the directory of `place`, if there is none, and takes its lock. A holder that is about to end has `limit` to
    /// do so.
    ///
    /// # Errors
    /// `WouldBlock` if another holder has it.
    pub fn take(place: &Place, limit: Duration) -> io::Result<HolderLock> {
        DirBuilder::new().recursive(true).mode(0o700).create(place.directory())?;
        let until = Instant::now() + limit;
        loop {
            match HolderLock::try_take(place)? {
                Some(lock) => return Ok(lock),
                None if Instant::now() >= until => return Err(io::ErrorKind::WouldBlock.into()),
                None => std::thread::sleep(LOOK),
            }
        }
    }

    fn try_take(place: &Place) -> io::Result<Option<HolderLock>> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(place.holder())?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(HolderLock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether a holder, or a far process that will be one, lives. The directory of `place` is there.
    pub fn is_held(place: &Place) -> io::Result<bool> {
        Ok(HolderLock::try_take(place)?.is_none())
    }

    /// Has the programs that this process executes inherit it, and returns the number that it has there.
    pub fn bequeath(&self) -> io::Result<RawFd> {
        keep_on_exec(self.0.as_raw_fd())?;
        Ok(self.0.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_inherited_the_lock_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::of(folder.path(), "seeds");
        let lock = HolderLock::take(&place, Duration::ZERO).unwrap();
        assert!(HolderLock::is_held(&place).unwrap());
        let other = HolderLock::take(&place, Duration::ZERO).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::WouldBlock);
        lock.bequeath().unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        drop(lock);
        assert!(HolderLock::is_held(&place).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        // A process that another test has just forked has it, too, until it executes its program.
        let is_free = (0..5000).any(|_| {
            std::thread::sleep(Duration::from_millis(2));
            !HolderLock::is_held(&place).unwrap()
        });
        assert!(is_free);
    }
}
