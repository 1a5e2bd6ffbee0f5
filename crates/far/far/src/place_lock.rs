//! The lock of a place: held while a far process is started there, and while one that goes takes its directory
//! along.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::place::Place;

/// Other commands and far processes keep off the place as long as this lives.
#[derive(Debug)]
pub struct PlaceLock(File);

impl PlaceLock {
    /// Makes the directory of `place`, if there is none, and waits for its lock.
    pub fn wait(place: &Place) -> io::Result<PlaceLock> {
        loop {
            DirBuilder::new().recursive(true).mode(0o700).create(place.directory())?;
            let file = match open(&place.lock()) {
                // A far process has just taken the directory along.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            flock(&file, FlockOperation::LockExclusive)?;
            let lock = PlaceLock(file);
            if lock.is_of(place) {
                return Ok(lock);
            }
        }
    }

    /// The lock of a place whose far process this is; none while a command holds it.
    pub fn take(place: &Place) -> io::Result<Option<PlaceLock>> {
        let file = open(&place.lock())?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(PlaceLock(file)).filter(|lock| lock.is_of(place))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether others find this lock at `place`.
    fn is_of(&self, place: &Place) -> bool {
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let (own, there) = (self.0.metadata(), fs::metadata(place.lock()));
        own.is_ok_and(|own| there.is_ok_and(|there| identity(own) == identity(there)))
    }

    /// Removes the directory of the place, in which nothing is mounted any more. It has another name before
    /// the first file goes: a command that comes meanwhile makes a new one.
    pub fn remove(self, place: &Place) -> io::Result<()> {
        let mut gone = place.directory().as_os_str().to_owned();
        gone.push(format!(".gone-{}", std::process::id()));
        fs::rename(place.directory(), &gone)?;
        fs::remove_dir_all(Path::new(&gone))
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not only by closing it: a process that another test has just forked may have it, too.
    fn free(lock: PlaceLock) {
        flock(&lock.0, FlockOperation::Unlock).unwrap();
    }

    #[test]
    fn a_place_that_is_in_use_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::of(folder.path(), "seeds");
        let held = PlaceLock::wait(&place).unwrap();
        assert!(PlaceLock::take(&place).unwrap().is_none());
        free(held);
        assert!(PlaceLock::take(&place).unwrap().is_some());
    }

    #[test]
    fn one_that_waits_for_a_place_that_goes_gets_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::of(folder.path(), "seeds");
        free(PlaceLock::wait(&place).unwrap());
        fs::write(place.directory().join("log"), "old").unwrap();
        let held = PlaceLock::take(&place).unwrap().unwrap();
        let old = PlaceLock(open(&place.lock()).unwrap());
        let of_thread = place.clone();
        let thread = std::thread::spawn(move || PlaceLock::wait(&of_thread).unwrap());
        held.remove(&place).unwrap();
        let new = thread.join().unwrap();
        assert!(new.is_of(&place) && !old.is_of(&place));
        assert!(!place.directory().join("log").exists());
        assert_eq!(fs::read_dir(folder.path().join("far")).unwrap().count(), 1);
        assert!(PlaceLock::take(&place).unwrap().is_none());
    }
}
