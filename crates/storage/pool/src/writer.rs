//! Writing an image, and removing one.
//!
//! ```text
//!   begin             publish                 remove
//!  ------> no name ----------> images/CID ----------------------> nothing (its mappings stay)
//!                                         \-> removed/CID ------> where other kernels may map it:
//!                                                                 when no node pins it any more
//! ```
//! Each arrow is one rename, link or unlink. A writer that dies on the way takes all of it along where the
//! medium has files without a name; elsewhere the file lies in `new/` and is swept when its lock is free.

use std::io::ErrorKind;
use std::ops::Range;

use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES, align_up};
use rustix::fs::Mode;

use crate::directory::{self, NewFile};
use crate::error::PoolError;
use crate::failpoint::step;
use crate::far_parts::FarParts;
use crate::layout::{self, IMAGES, REMOVED};
use crate::lock::{self, HeldLock, LockByte};
use crate::map::SharedMap;
use crate::placement::Placement;
use crate::pool::{Pool, random_bytes};
use crate::users::Counts;

/// Holes that are smaller stay: to give one back splits a huge page.
const LEAST_HOLE_BYTES: u64 = 64 << 10;

/// An image that is not visible yet. Dropped without [`publish`](ImageWriter::publish), or with its
/// process, it gives back everything.
pub struct ImageWriter<'p> {
    pub(crate) pool: &'p Pool,
    cid: Cid,
    pub(crate) user: Option<String>,
    pub(crate) file: NewFile<'p>,
    /// What is to count towards the user.
    pub(crate) counts: Counts,
    map: Option<SharedMap>,
    /// Bytes that have memory.
    bytes: u64,
    _writing: std::os::fd::OwnedFd,
}

/// The proof that the writer of a published image lives.
#[derive(Debug)]
pub struct Held {
    _alive: HeldLock,
}

impl Pool {
    /// Starts an image, which counts towards what `user` may have.
    ///
    /// # Errors
    /// [`PoolError::BadUser`], [`PoolError::Gone`], [`PoolError::Io`].
    pub fn begin(&self, user: Option<&str>) -> Result<ImageWriter<'_>, PoolError> {
        self.begin_as(Cid::from_bytes(random_bytes(self.path())?), user)
    }

    /// The same for an image that has an id already: it comes from another pool, or is written anew.
    ///
    /// # Errors
    /// As [`begin`](Pool::begin).
    pub fn begin_as(&self, cid: Cid, user: Option<&str>) -> Result<ImageWriter<'_>, PoolError> {
        self.reachable()?;
        user.map_or(Ok(()), |user| self.check_user(user))?;
        let failed = || self.directory.failed("begin an image in", "");
        self.directory.sweep().map_err(failed())?;
        let writing = lock::share(&self.superblock, LockByte::WRITERS).map_err(failed())?;
        let file = self.directory.new_file(IMAGES).map_err(failed())?;
        Ok(ImageWriter {
            pool: self,
            cid,
            user: user.map(str::to_owned),
            file,
            counts: Counts { bytes: 0, images: 1 },
            map: None,
            bytes: 0,
            _writing: writing,
        })
    }

    /// Makes the image invisible at once. What clones map of it stays with them.
    ///
    /// # Errors
    /// [`PoolError::NoImage`], [`PoolError::Gone`], [`PoolError::Io`].
    pub fn remove(&self, cid: Cid) -> Result<(), PoolError> {
        self.intact()?;
        let name = layout::image(cid);
        let failed = || self.directory.failed("remove", &name);
        let is_there = if self.is_shared {
            match self.directory.rename(&name, &format!("{REMOVED}/{cid}")) {
                Err(error) if error.kind() == ErrorKind::NotFound => false,
                moved => {
                    moved.map_err(failed())?;
                    true
                }
            }
        } else {
            self.directory.remove(&name).map_err(failed())?
        };
        if !is_there {
            return Err(self.no_image(cid));
        }
        let dropped = self.drop_tables(cid);
        self.disown(cid)?;
        dropped?;
        if self.is_shared {
            self.settle(cid)?;
        }
        Ok(())
    }

    /// Gives back a removed image that no node pins; the bytes.
    pub(crate) fn settle(&self, cid: Cid) -> Result<u64, PoolError> {
        let name = format!("{REMOVED}/{cid}");
        let failed = || self.directory.failed("remove", &name);
        let Some(found) = self.directory.look(&name).map_err(failed())? else { return Ok(0) };
        if !self.pinned_by(cid)?.is_empty() {
            return Ok(0);
        }
        self.directory.remove(&name).map_err(failed())?;
        Ok(found.st_blocks as u64 * 512)
    }
}

impl ImageWriter<'_> {
    /// The id that the image will have.
    pub fn cid(&self) -> Cid {
        self.cid
    }

    /// Bytes of the file that have memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sees to it that the first `bytes` bytes, in whole chunks, have memory. What is new reads as zeros.
    ///
    /// # Errors
    /// [`PoolError::Full`], [`PoolError::MediumFull`] or [`PoolError::OverQuota`], and nothing is taken;
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn reserve(&mut self, bytes: u64) -> Result<(), PoolError> {
        let bytes = align_up(bytes, CHUNK_BYTES);
        if bytes <= self.bytes {
            return Ok(());
        }
        self.pool.intact()?;
        // Of a region, not of whole chunks: what lies beyond is given back.
        let counts = match self.counts.images {
            0 => self.counts,
            _ => Counts { bytes, images: 1 },
        };
        self.pool.check_quota(self.user.as_deref(), counts)?;
        self.pool.demand_room(bytes, self.bytes)?;
        let range = self.bytes..bytes;
        if let Err(source) = self.take(&range) {
            let _ = self.file.file.set_len(self.bytes);
            let (path, asked) = (self.pool.path().to_owned(), bytes - self.bytes);
            return Err(PoolError::MediumFull { path, asked, source });
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Gives the file `bytes` bytes, of which only those of `parts` have memory, in whole chunks. Nothing
    /// else may be written to. It counts towards no user: it takes the place of an image that does.
    ///
    /// # Errors
    /// [`PoolError::SharedImage`], [`PoolError::Full`], [`PoolError::MediumFull`], [`PoolError::Gone`],
    /// [`PoolError::Io`].
    pub fn reserve_parts(&mut self, bytes: u64, parts: &[Range<u64>]) -> Result<(), PoolError> {
        self.pool.intact()?;
        self.demand_replaceable()?;
        let bytes = align_up(bytes, CHUNK_BYTES);
        let chunks = whole_chunks(parts);
        let asked = chunks.iter().map(|range| range.end - range.start).sum();
        self.pool.demand_room(asked, 0)?;
        let file = &self.file.file;
        let reserve = || -> std::io::Result<SharedMap> {
            file.set_len(bytes)?;
            let map = SharedMap::new(file, bytes)?;
            let placement = Placement::of(file)?;
            for range in &chunks {
                placement.during(file, range, || self.pool.account.reserve(file, range))?;
            }
            Ok(map)
        };
        let path = || self.pool.path().to_owned();
        let map =
            reserve().map_err(|source| PoolError::MediumFull { path: path(), asked, source })?;
        (self.map, self.bytes) = (Some(map), bytes);
        Ok(())
    }

    fn take(&mut self, range: &Range<u64>) -> std::io::Result<()> {
        let file = &self.file.file;
        file.set_len(range.end)?;
        let map = SharedMap::new(file, range.end)?;
        let placement = Placement::of(file)?;
        placement.during(file, range, || self.pool.account.reserve(file, range))?;
        self.map = Some(map);
        Ok(())
    }

    /// Has the kernel clear and map all that has memory now, so that filling it later meets no page
    /// fault.
    pub fn populate(&mut self) {
        if let Some(map) = &self.map {
            map.populate(&(0..self.bytes));
        }
    }

    /// The bytes of a range that has memory.
    ///
    /// # Panics
    /// If it has not.
    pub fn bytes_mut(&mut self, range: Range<u64>) -> &mut [u8] {
        assert!(range.end <= self.bytes, "{range:?} has no memory in image {}", self.cid);
        match &mut self.map {
            Some(map) => map.bytes_mut(range),
            None => &mut [],
        }
    }

    /// Length of the file when [`keep`](ImageWriter::keep) has kept these.
    pub fn file_bytes(kept: &[Range<u64>]) -> u64 {
        align_up(kept.iter().map(|part| part.end).max().unwrap_or(0), PAGE_BYTES)
    }

    /// Gives back what lies outside of `kept`, ranges in order, and ends the file after the last.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn keep(&mut self, kept: &[Range<u64>]) -> Result<(), PoolError> {
        self.keep_until(kept, ImageWriter::file_bytes(kept))
    }

    /// The same for a file that is `at_least` so long.
    ///
    /// # Errors
    /// As [`keep`](ImageWriter::keep).
    pub fn keep_until(&mut self, kept: &[Range<u64>], at_least: u64) -> Result<(), PoolError> {
        let failed = || PoolError::io("give space back to", self.pool.path());
        // What the kernel scans for huge pages to make (khugepaged) cannot be split meanwhile, and stays
        // whole: it scans what is mapped.
        self.map = None;
        let mut at = 0;
        for range in kept {
            if range.start >= at + LEAST_HOLE_BYTES {
                let to = farfork_types::align_down(range.start, PAGE_BYTES);
                directory::give_back(&self.file.file, at, to).map_err(failed())?;
            }
            at = at.max(range.end);
        }
        let end = ImageWriter::file_bytes(kept).max(at_least);
        directory::give_back(&self.file.file, at, self.bytes).map_err(failed())?;
        self.file.file.set_len(end).map_err(failed())?;
        self.bytes = end;
        Ok(())
    }

    /// Bytes of memory that it takes now.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn taken(&self) -> Result<u64, PoolError> {
        let found = rustix::fs::fstat(&self.file.file);
        let found = found.map_err(PoolError::io("look at an image of", self.pool.path()))?;
        Ok(found.st_blocks as u64 * 512)
    }

    fn demand_replaceable(&self) -> Result<(), PoolError> {
        let (cid, medium) = (self.cid, self.pool.medium.name());
        match self.pool.is_shared {
            true => Err(PoolError::SharedImage { cid, medium }),
            false => Ok(()),
        }
    }

    /// Has what is now at the place of `far` parts be looked for there: writes the table of them after the
    /// first `image_bytes` bytes, which are the image. Returns where it stands, to be kept.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn put_far_parts(&mut self, far: &FarParts, image_bytes: u64) -> Range<u64> {
        let (pointer, table) = far.encode(self.cid, image_bytes);
        self.bytes_mut(FarParts::pointer()).copy_from_slice(&pointer);
        let place = image_bytes..image_bytes + table.len() as u64;
        self.bytes_mut(place.clone()).copy_from_slice(&table);
        place
    }

    /// Takes the place of the published image with the same id, whose clones go on. A reader sees one of
    /// the two. Names, owners and what is known of the image's pages stay.
    ///
    /// # Errors
    /// [`PoolError::SharedImage`]; [`PoolError::NoImage`] if it was removed meanwhile;
    /// [`PoolError::Full`], [`PoolError::Gone`], [`PoolError::Io`]. The published image stays.
    pub fn replace(self) -> Result<(), PoolError> {
        let (pool, cid) = (self.pool, self.cid);
        let failed = || pool.directory.failed("replace an image of", "");
        pool.reachable()?;
        self.demand_replaceable()?;
        rustix::fs::fchmod(&self.file.file, Mode::RUSR).map_err(|errno| failed()(errno.into()))?;
        let _lock = match pool.is_own_mount {
            true => None,
            false => {
                let lock = pool.lock()?;
                let taken = self.taken()?;
                pool.demand_room(taken, taken)?;
                Some(lock)
            }
        };
        step();
        match self.file.replace(&layout::image(cid)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Err(pool.no_image(cid)),
            done => done.map_err(failed()),
        }
    }

    /// Makes the image visible. Until the second value is dropped, or its process dies, the image counts
    /// as one that its writer has still to do something with.
    ///
    /// # Errors
    /// [`PoolError::OverQuota`], [`PoolError::Full`], [`PoolError::Gone`], [`PoolError::Io`]; the image
    /// is given up.
    pub fn publish(self) -> Result<(Cid, Held), PoolError> {
        let (pool, cid) = (self.pool, self.cid);
        let failed = || pool.directory.failed("publish an image in", "");
        pool.reachable()?;
        rustix::fs::fchmod(&self.file.file, Mode::RUSR).map_err(|errno| failed()(errno.into()))?;
        if pool.is_shared {
            // Other kernels read it from the memory itself.
            self.file.file.sync_all().map_err(failed())?;
        }
        // Others may have been published since memory was taken.
        let _lock = match (&self.user, pool.is_own_mount) {
            (None, true) => None,
            _ => {
                let lock = pool.lock()?;
                let taken = self.taken()?;
                let counts = Counts { bytes: taken, images: 1 };
                pool.check_quota(self.user.as_deref(), counts)?;
                pool.demand_room(taken, taken)?;
                Some(lock)
            }
        };
        if let Some(user) = &self.user {
            pool.own(user, cid)?;
        }
        step();
        let appeared = self.file.appear(&layout::image(cid));
        let alive = appeared.inspect_err(|_| drop(pool.disown(cid))).map_err(failed())?;
        if pool.is_shared {
            pool.directory.sync(IMAGES).map_err(failed())?;
        }
        Ok((cid, Held { _alive: alive }))
    }
}

/// The chunks that have some of these ranges, which are in order, side by side.
fn whole_chunks(parts: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut chunks: Vec<Range<u64>> = Vec::new();
    for part in parts {
        let start = farfork_types::align_down(part.start, CHUNK_BYTES);
        let end = align_up(part.end, CHUNK_BYTES);
        match chunks.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => chunks.push(start..end),
        }
    }
    chunks
}
