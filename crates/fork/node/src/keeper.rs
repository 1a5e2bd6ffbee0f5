//! Who keeps an agent: somebody who holds a lock on a file as long as they live. The kernel lets go of the
//! lock of who was killed, and no node that hangs keeps them from holding it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::paths;

/// An agent's view of its keeper.
#[derive(Debug)]
pub struct Keeper {
    file: File,
    /// For so long the next one is waited for.
    patience: Duration,
    gone_since: Option<Instant>,
}

impl Keeper {
    /// The keeper that holds the file at `path`.
    ///
    /// # Errors
    /// There is no such file.
    pub fn of(path: &Path, patience: Duration) -> io::Result<Keeper> {
        Ok(Keeper { file: File::open(path)?, patience, gone_since: None })
    }

    /// Whether nobody has held it for as long as was to be waited. To be asked again and again.
    pub fn has_left(&mut self) -> bool {
        // Several agents may look at once, but for the keeper's lock.
        if flock(&self.file, FlockOperation::NonBlockingLockShared).is_err() {
            self.gone_since = None;
            return false;
        }
        // The next keeper waits for this.
        let _ = flock(&self.file, FlockOperation::Unlock);
        self.gone_since.get_or_insert_with(Instant::now).elapsed() > self.patience
    }
}

/// Keeps all agents that look at the file at `path`, until what this gives is closed.
///
/// # Errors
/// The file cannot be made.
pub fn keep(path: &Path) -> io::Result<File> {
    let file = paths::lock_file(path)?;
    rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_is_missed_after_a_while_and_may_be_followed_by_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keeper");
        assert!(Keeper::of(&path, Duration::ZERO).is_err());
        let first = keep(&path).unwrap();
        let patient = || Keeper::of(&path, Duration::from_secs(3600)).unwrap();
        let (mut one, mut other) = (patient(), patient());
        let mut impatient = Keeper::of(&path, Duration::ZERO).unwrap();
        assert!(![&mut one, &mut other, &mut impatient].map(Keeper::has_left).contains(&true));
        assert_eq!(impatient.gone_since, None);
        drop(first);
        assert!(!one.has_left() && one.gone_since.is_some() && !other.has_left());
        impatient.has_left();
        std::thread::sleep(Duration::from_millis(1));
        assert!(impatient.has_left());
        let second = keep(&path).unwrap();
        assert!(!impatient.has_left() && !one.has_left());
        assert_eq!(one.gone_since, None);
        drop(second);
    }
}
