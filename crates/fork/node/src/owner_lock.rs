//! The lock of the process that owns an agent: it holds the lock on a file as long as it lives. The kernel
//! releases the lock of a killed process, and an agent that hangs cannot keep its owner from holding it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::paths;

/// An agent's view of its owner.
#[derive(Debug)]
pub struct OwnerLock {
    file: File,
    /// How long to wait for a new owner.
    patience: Duration,
    gone_since: Option<Instant>,
}

impl OwnerLock {
    /// The lock on the file at `path`.
    ///
    /// # Errors
    /// The file does not exist.
    pub fn open(path: &Path, patience: Duration) -> io::Result<OwnerLock> {
        Ok(OwnerLock { file: File::open(path)?, patience, gone_since: None })
    }

    /// Whether it has had no holder for longer than `patience`. To be called repeatedly.
    pub fn is_abandoned(&mut self) -> bool {
        // A shared lock: several agents may look at once.
        if flock(&self.file, FlockOperation::NonBlockingLockShared).is_err() {
            self.gone_since = None;
            return false;
        }
        // The next owner waits for this.
        let _ = flock(&self.file, FlockOperation::Unlock);
        self.gone_since.get_or_insert_with(Instant::now).elapsed() > self.patience
    }
}

/// Holds the lock on the file at `path`, until the returned file is closed.
///
/// # Errors
/// The file cannot be made.
pub fn hold(path: &Path) -> io::Result<File> {
    let file = paths::lock_file(path)?;
    rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_without_an_owner_is_abandoned_after_a_while_unless_another_takes_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("owner");
        assert!(OwnerLock::open(&path, Duration::ZERO).is_err());
        let first = hold(&path).unwrap();
        let patient = || OwnerLock::open(&path, Duration::from_secs(3600)).unwrap();
        let (mut one, mut other) = (patient(), patient());
        let mut impatient = OwnerLock::open(&path, Duration::ZERO).unwrap();
        assert!(
            ![&mut one, &mut other, &mut impatient].map(OwnerLock::is_abandoned).contains(&true)
        );
        assert_eq!(impatient.gone_since, None);
        // Not by closing it: a process that another test has just forked may have it, too.
        flock(&first, FlockOperation::Unlock).unwrap();
        assert!(!one.is_abandoned() && one.gone_since.is_some() && !other.is_abandoned());
        impatient.is_abandoned();
        std::thread::sleep(Duration::from_millis(1));
        assert!(impatient.is_abandoned());
        let second = hold(&path).unwrap();
        assert!(!impatient.is_abandoned() && !one.is_abandoned());
        assert_eq!(one.gone_since, None);
        drop(second);
    }
}
