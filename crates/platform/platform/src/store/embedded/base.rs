//! The database, which is opened again after an I/O error: redb refuses everything after one, also
//! reads, until it is closed. A full disk is such an error.
//!
//! ```text
//!  works ── I/O error ─► opened again: reads go on, writes are refused for a pause
//!    ▲                        │
//!    └── a durable write ◄────┘ the first write after the pause tries the disk
//! ```
//! Invariants: a transaction holds the shared lock, so the database is closed only between
//! transactions. Each opening has a generation of its own; what earlier generations had committed
//! without durability may be gone.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use farfork_sys::sync::{locked, unpoisoned};
use redb::Database;
use redb::backends::InMemoryBackend;

use super::Failure;

/// Bytes of redb's cache. Its default of 1 GiB would be wasted: each record is written once and
/// hardly ever read, and the kernel caches the file's pages, too.
const CACHE: usize = 16 << 20;
/// Least and most time without writes after an error.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// A pause takes this many times as long as opening the database, which may have to read all of it.
const PAUSE_PER_OPENING: u32 = 10;

/// The database.
#[derive(Debug)]
pub struct Base {
    path: PathBuf,
    opening: RwLock<Opening>,
    trouble: Mutex<Option<Trouble>>,
}

/// The database as it was last opened.
#[derive(Debug)]
struct Opening {
    generation: u64,
    /// Not there if it could not be opened again yet.
    database: Option<Database>,
}

/// An I/O error after which nothing has been written yet.
#[derive(Debug)]
struct Trouble {
    reason: String,
    until: Instant,
}

/// What work does to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It only reads.
    Read,
    /// It writes.
    Write,
}

impl Base {
    /// Opens the database at `path`, which is created if missing.
    pub fn open(path: &Path) -> Result<Base, redb::DatabaseError> {
        let database = Database::builder().set_cache_size(CACHE).create(path)?;
        let opening = RwLock::new(Opening { generation: 0, database: Some(database) });
        Ok(Base { path: path.to_owned(), opening, trouble: Mutex::default() })
    }

    /// Makes one in memory, which ends with this.
    pub fn in_memory() -> Result<Base, redb::DatabaseError> {
        let backend = InMemoryBackend::new();
        let database = Database::builder().set_cache_size(CACHE).create_with_backend(backend)?;
        let opening = RwLock::new(Opening { generation: 0, database: Some(database) });
        Ok(Base { path: PathBuf::new(), opening, trouble: Mutex::default() })
    }

    /// Whether it is in a file.
    pub fn has_file(&self) -> bool {
        !self.path.as_os_str().is_empty()
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs work on the database, which learns its generation. After an I/O error the database is
    /// opened again; if the error was another's, the work gets a second try.
    pub fn with<T>(
        &self,
        access: Access,
        mut work: impl FnMut(&Database, u64) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut may_try_again = true;
        loop {
            let opening = self.opened()?;
            let Some(database) = &opening.database else { return Err(self.refusal()) };
            if access == Access::Write && self.is_paused() {
                return Err(self.refusal());
            }
            let generation = opening.generation;
            let done = work(database, generation);
            drop(opening);
            let Err(Failure::Database(error @ (redb::Error::Io(_) | redb::Error::PreviousIo))) =
                done
            else {
                return done;
            };
            self.open_again(generation, &error.to_string());
            let is_anothers = matches!(error, redb::Error::PreviousIo);
            if !is_anothers || !std::mem::take(&mut may_try_again) {
                return Err(error.into());
            }
        }
    }

    /// Notes that something was written to disk.
    pub fn wrote(&self) {
        if self.trouble().take().is_some() {
            tracing::info!(path = %self.path.display(), "the store is written to again");
        }
    }

    /// The database, which is opened if it could not be before.
    fn opened(&self) -> Result<RwLockReadGuard<'_, Opening>, Failure> {
        let opening = self.shared();
        if opening.database.is_some() || self.is_paused() {
            return Ok(opening);
        }
        let generation = opening.generation;
        drop(opening);
        let reason = self.trouble().as_ref().map(|trouble| trouble.reason.clone());
        self.open_again(generation, &reason.unwrap_or_default());
        Ok(self.shared())
    }

    /// Closes and opens the database, unless another thread has done so.
    fn open_again(&self, generation: u64, reason: &str) {
        let mut opening = unpoisoned(self.opening.write());
        if opening.generation != generation {
            return;
        }
        let began = Instant::now();
        opening.generation += 1;
        // The file is locked until it is closed.
        opening.database = None;
        // It must exist: an empty database would be taken for one without any keys.
        let opened = Database::builder().set_cache_size(CACHE).open(&self.path);
        let mut trouble = self.trouble();
        let [least, most] = PAUSE;
        let pause = (began.elapsed() * PAUSE_PER_OPENING).clamp(least, most);
        if trouble.is_none() {
            let path = self.path.display();
            tracing::error!(%path, reason, "the store failed, and is opened again until it works");
        }
        let reason = match &opened {
            Ok(_) => reason.to_owned(),
            Err(opening) => format!("it cannot be opened again: {opening}"),
        };
        *trouble = Some(Trouble { reason, until: Instant::now() + pause });
        opening.database = opened.ok();
    }

    fn is_paused(&self) -> bool {
        self.trouble().as_ref().is_some_and(|trouble| Instant::now() < trouble.until)
    }

    fn refusal(&self) -> Failure {
        let trouble = self.trouble();
        let reason = trouble.as_ref().map_or("it is closed", |trouble| &*trouble.reason);
        Failure::Refused(format!("it has just failed and is tried again soon: {reason}"))
    }

    fn shared(&self) -> RwLockReadGuard<'_, Opening> {
        // Every step leaves the fields valid.
        unpoisoned(self.opening.read())
    }

    fn trouble(&self) -> MutexGuard<'_, Option<Trouble>> {
        locked(&self.trouble)
    }
}
