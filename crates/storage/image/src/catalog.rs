//! The catalog: which image a name means.
//!
//! ```text
//!  words 0..8    header: magic, version, places ever used, moves so far, highest number so far
//!  word 8 on     places of 40 words: sequence number, name's crc32c << 32 | crc32c of the entry,
//!                id (2 words), time, name (32 words), spare (2), length of the name
//! ```
//!
//! It lies in words that the pool keeps, so that every node sees it.
//!
//! 1. An entry counts if its sequence number is not 0. Numbers grow and are never used twice, and
//!    an entry's words are stored before its number: that one store commits a `set`.
//! 2. Of several entries with one name the highest number counts. A `set` commits the new entry
//!    before it takes the old one away, so that there is one at every moment. The next change of
//!    the name takes away what a writer left that died in between.
//! 3. Before an entry is taken away, the count of moves grows. A reader looks again if the count
//!    has changed meanwhile: the name may have moved behind its back.
//! 4. Changes go under the lock of the area; readers take none.

mod name;
mod table;

use std::time::{SystemTime, UNIX_EPOCH};

use farfork_pool::{CatalogLock, Pool, PoolError};
use farfork_types::Cid;

pub use name::{ImageName, ParseNameError};
use table::{Entry, Table};

/// What can go wrong with a catalog.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The pool that holds it cannot be used.
    #[error("cannot use the catalog: {0}")]
    Pool(#[from] PoolError),
    /// It has another format.
    #[error(
        "cannot read the catalog of the pool at {path}: it has format version {found}, this farfork \
         reads {known}; use the farfork that made it, or make a new pool",
        known = table::VERSION
    )]
    OtherVersion {
        /// The pool.
        path: String,
        /// Version of the catalog.
        found: u64,
    },
    /// The words are not those of a catalog.
    #[error(
        "the catalog of the pool at {path} is damaged: its first words are not those of a catalog; make a new pool"
    )]
    NotACatalog {
        /// The pool.
        path: String,
    },
    /// Entries do not fit their checksum.
    #[error(
        "name not found, and {entries} entries of the catalog in the pool at {path} are damaged: run \
         `farfork pool check`, which removes them, and name their images again"
    )]
    Damaged {
        /// The pool.
        path: String,
        /// How many.
        entries: usize,
    },
    /// No entry is free.
    #[error(
        "cannot name an image {name} in the pool at {path}: its catalog is full; remove names \
         with `farfork images rm`"
    )]
    Full {
        /// The pool.
        path: String,
        /// The name.
        name: ImageName,
    },
}

/// The names of the images of a pool.
pub struct Catalog<'p> {
    pool: &'p Pool,
}

impl<'p> Catalog<'p> {
    /// Opens the catalog of `pool`; makes it if the pool is new.
    ///
    /// # Errors
    /// [`CatalogError::Pool`], [`CatalogError::OtherVersion`], [`CatalogError::NotACatalog`].
    pub fn open(pool: &'p Pool) -> Result<Catalog<'p>, CatalogError> {
        let catalog = Catalog { pool };
        let table = catalog.table()?;
        if table.is_blank() {
            let _lock = pool.catalog_area().lock()?;
            table.format();
        }
        let path = catalog.path();
        match table.version() {
            Some(table::VERSION) => Ok(catalog),
            Some(found) => Err(CatalogError::OtherVersion { path, found }),
            None => Err(CatalogError::NotACatalog { path }),
        }
    }

    /// The image that `name` means.
    ///
    /// # Errors
    /// [`CatalogError::Damaged`] if it is not found and an entry is damaged;
    /// [`CatalogError::Pool`].
    pub fn get(&self, name: &ImageName) -> Result<Option<Cid>, CatalogError> {
        let table = self.table()?;
        loop {
            let moves = table.moves();
            let newest = table.named(name).pop();
            if table.moves() == moves {
                return self.unless_damaged(&table, newest);
            }
        }
    }

    /// Lets `name` mean `cid`, and returns what it meant before. A reader sees one of the two.
    ///
    /// # Errors
    /// [`CatalogError::Full`], [`CatalogError::Pool`].
    pub fn set(&self, name: &ImageName, cid: Cid) -> Result<Option<Cid>, CatalogError> {
        let (table, _lock) = self.locked()?;
        let before = table.named(name);
        let entry = Entry { sequence: 0, place: 0, cid, created_unix_s: now(), name: name.clone() };
        if !table.add(&entry) {
            return Err(CatalogError::Full { path: self.path(), name: name.clone() });
        }
        before.iter().for_each(|old| table.take_away(old.place));
        Ok(before.last().map(|old| old.cid))
    }

    /// Takes the name away, and returns what it meant. The image stays.
    ///
    /// # Errors
    /// [`CatalogError::Damaged`] as for [`get`](Catalog::get), [`CatalogError::Pool`].
    pub fn remove(&self, name: &ImageName) -> Result<Option<Cid>, CatalogError> {
        let (table, _lock) = self.locked()?;
        let before = table.named(name);
        // The one that counts goes last: the name never falls back to an older image.
        before.iter().for_each(|old| table.take_away(old.place));
        self.unless_damaged(&table, before.into_iter().last())
    }

    /// All names by name, the images that they mean, and when they were set (seconds since 1970).
    ///
    /// # Errors
    /// [`CatalogError::Pool`]. Damaged entries are left out.
    pub fn list(&self) -> Result<Vec<(ImageName, Cid, u64)>, CatalogError> {
        let (table, _lock) = self.locked()?;
        let mut entries = table.entries();
        entries.sort_by(|a, b| (&a.name, b.sequence).cmp(&(&b.name, a.sequence)));
        entries.dedup_by(|older, newer| older.name == newer.name);
        let row = |entry: Entry| (entry.name, entry.cid, entry.created_unix_s);
        Ok(entries.into_iter().map(row).collect())
    }

    /// The names that mean `cid`.
    ///
    /// # Errors
    /// [`CatalogError::Pool`].
    pub fn names_of(&self, cid: Cid) -> Result<Vec<ImageName>, CatalogError> {
        let meant = self.list()?.into_iter().filter(|(_, image, _)| *image == cid);
        Ok(meant.map(|(name, _, _)| name).collect())
    }

    /// Takes away the entries that do not fit their checksum, and returns how many there were.
    ///
    /// # Errors
    /// [`CatalogError::Pool`].
    pub fn repair(&self) -> Result<usize, CatalogError> {
        let (table, _lock) = self.locked()?;
        let damaged = table.damaged();
        damaged.iter().for_each(|place| table.take_away(*place));
        Ok(damaged.len())
    }

    /// The words, of a pool that is still whole.
    fn table(&self) -> Result<Table<'p>, CatalogError> {
        Ok(Table::new(self.pool.catalog_area().words()?))
    }

    /// The words, and the lock under which they may be changed.
    fn locked(&self) -> Result<(Table<'p>, CatalogLock), CatalogError> {
        let lock = self.pool.catalog_area().lock()?;
        Ok((self.table()?, lock))
    }

    /// What was found; if nothing was, an entry that is damaged may be the one.
    fn unless_damaged(
        &self,
        table: &Table<'_>,
        found: Option<Entry>,
    ) -> Result<Option<Cid>, CatalogError> {
        if let Some(entry) = found {
            return Ok(Some(entry.cid));
        }
        match table.damaged().len() {
            0 => Ok(None),
            entries => Err(CatalogError::Damaged { path: self.path(), entries }),
        }
    }

    fn path(&self) -> String {
        self.pool.path().display().to_string()
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
