//! Writing an image.
//!
//! 1. The writer's lock is taken before its slot says Writing and dropped after it says otherwise.
//! 2. The records of the image are complete before the one store that publishes it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Release, SeqCst};
use std::time::{SystemTime, UNIX_EPOCH};

use farfork_types::{CHUNK_BYTES, Cid};

use crate::chunks::ChunkAllocator;
use crate::error::PoolError;
use crate::failpoint::step;
use crate::ids::{ChunkIndex, Extent, ImageSlot, Owner};
use crate::lock::{HeldLock, LockByte};
use crate::pool::{Pool, random_bytes};
use crate::slots::{ImageExtents, State};
use crate::words;

/// An image that is not visible yet. Dropped without [`publish`](ImageWriter::publish), or with its
/// process, it gives back everything.
pub struct ImageWriter<'p> {
    pool: &'p Pool,
    cid: Cid,
    owner: Owner,
    extents: Vec<Extent>,
    published: bool,
    /// Dropped after `drop` has given everything back.
    alive: Option<HeldLock>,
    /// `write` takes `&self`: two threads could write one place.
    _one_thread: PhantomData<Cell<()>>,
}

/// The proof that the writer of a published image lives.
#[derive(Debug)]
pub struct Held {
    _alive: Option<HeldLock>,
}

impl Pool {
    /// Whether the writer of the published image `cid` holds it still.
    ///
    /// # Errors
    /// [`PoolError::NoImage`], [`PoolError::Io`].
    pub fn is_held(&self, cid: Cid) -> Result<bool, PoolError> {
        let owner = self.lookup(cid, &[State::Published]).ok_or_else(|| self.no_image(cid))?;
        self.has_writer(owner.slot)
    }

    /// Starts an image.
    ///
    /// # Errors
    /// [`PoolError::TooManyImages`], [`PoolError::Gone`], [`PoolError::Truncated`],
    /// [`PoolError::Io`].
    pub fn begin(&self) -> Result<ImageWriter<'_>, PoolError> {
        self.reachable()?;
        let cid = Cid::from_bytes(random_bytes(&self.path)?);
        let lock = self.lock()?;
        self.sweep(&lock)?;
        let (owner, alive) = self.take_slot(cid)?;
        Ok(ImageWriter {
            pool: self,
            cid,
            owner,
            extents: Vec::new(),
            published: false,
            alive: Some(alive),
            _one_thread: PhantomData,
        })
    }

    /// Turns a free slot, whose lock is free as well, to Writing.
    fn take_slot(&self, cid: Cid) -> Result<(Owner, HeldLock), PoolError> {
        for (index, record) in self.images().iter().enumerate() {
            let Some((generation, State::Free)) = State::of_word(record.state.load(SeqCst)) else {
                continue;
            };
            let slot = ImageSlot(index as u32);
            let Some(alive) = self.try_write_lock(slot)? else { continue };
            let owner = Owner { slot, generation: generation.wrapping_add(1).max(1) };
            words::store_bytes(&record.cid, &cid.to_bytes());
            step();
            record.state.store(State::Writing.word(owner.generation), SeqCst);
            step();
            return Ok((owner, alive));
        }
        Err(PoolError::TooManyImages { path: self.path.clone() })
    }

    fn try_write_lock(&self, slot: ImageSlot) -> Result<Option<HeldLock>, PoolError> {
        HeldLock::try_take(&self.file, LockByte::writer(slot))
            .map_err(PoolError::io("lock an image slot of", &self.path))
    }

    /// Claims chunks; if too few are free, after giving back what dead and removed images hold.
    fn claim(&self, owner: Owner, chunks: u32) -> Result<Vec<Extent>, PoolError> {
        let lock = self.lock()?;
        self.claim_word(&lock, owner.word(), chunks)
    }

    pub(crate) fn claim_word(
        &self,
        lock: &HeldLock,
        word: u64,
        chunks: u32,
    ) -> Result<Vec<Extent>, PoolError> {
        if let Some(runs) = self.allocator(lock).claim(word, chunks) {
            return Ok(runs);
        }
        self.sweep(lock)?;
        self.allocator(lock).claim(word, chunks).ok_or_else(|| PoolError::Full {
            path: self.path.clone(),
            asked: u64::from(chunks) * CHUNK_BYTES,
            free: u64::from(self.chunks().free_chunks()) * CHUNK_BYTES,
        })
    }
}

impl ImageWriter<'_> {
    /// The id that the image will have.
    pub fn cid(&self) -> Cid {
        self.cid
    }

    /// What has been allocated so far, in order.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Takes `chunks` chunks that read as zeros: one extent if at all possible, else the fewest.
    ///
    /// # Errors
    /// [`PoolError::Full`] or [`PoolError::MediumFull`], and nothing is taken; [`PoolError::Gone`],
    /// [`PoolError::Truncated`], [`PoolError::Io`].
    pub fn allocate(&mut self, chunks: u32) -> Result<Vec<Extent>, PoolError> {
        self.pool.intact()?;
        if chunks == 0 {
            return Ok(Vec::new());
        }
        let runs = self.pool.claim(self.owner, chunks)?;
        if let Err(error) = self.pool.reserve(self.alive.as_ref(), &runs) {
            self.give_back(&runs)?;
            return Err(error);
        }
        self.extents.extend(&runs);
        Ok(runs)
    }

    fn give_back(&self, runs: &[Extent]) -> Result<(), PoolError> {
        let lock = self.pool.lock()?;
        runs.iter().try_for_each(|run| self.pool.give_back(&lock, *run))
    }

    /// Gives back all but the first `chunks` chunks, wiped.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn keep(&mut self, chunks: u32) -> Result<(), PoolError> {
        let (kept, surplus) = split(&self.extents, chunks);
        self.extents = kept;
        if surplus.is_empty() { Ok(()) } else { self.give_back(&surplus) }
    }

    /// Makes `extent` the first of the image: the one that its root starts at.
    ///
    /// # Panics
    /// If `allocate` did not return `extent`.
    pub fn put_first(&mut self, extent: Extent) {
        let found = self.extents.iter().position(|own| *own == extent);
        let at =
            found.unwrap_or_else(|| panic!("{extent:?} is not an extent of image {}", self.cid));
        self.extents[..=at].rotate_right(1);
    }

    /// Has the kernel clear and map all that has been allocated now, so that filling it later
    /// meets no page fault.
    pub fn populate(&mut self) {
        for extent in &self.extents {
            self.pool.map.populate(*extent);
        }
    }

    /// Copies `bytes` to `offset` of the pool.
    ///
    /// # Panics
    /// If the place is not within one of this writer's extents.
    #[allow(unsafe_code)] // reason: memory that other processes map
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let len = bytes.len() as u64;
        let ours = self.extents.iter().any(|run| run.contains(offset, len));
        assert!(ours, "{len} bytes at {offset} are not within an extent of image {}", self.cid);
        // SAFETY: the place is this writer's; every reference to it borrows the writer mutably,
        // and the writer is not Sync.
        unsafe { self.pool.map.write(offset, bytes) }
    }

    /// The bytes of an extent of this writer.
    ///
    /// # Panics
    /// If `allocate` did not return `extent`.
    #[allow(unsafe_code)] // reason: memory that other processes map
    pub fn bytes_mut(&mut self, extent: Extent) -> &mut [u8] {
        assert!(
            self.extents.contains(&extent),
            "{extent:?} is not an extent of image {}",
            self.cid
        );
        // SAFETY: the extent is this writer's, which stays borrowed as long as the slice lives.
        unsafe { self.pool.map.bytes_mut(extent) }
    }

    /// The bytes of all extents, in order; several threads can fill them at once.
    #[allow(unsafe_code)] // reason: memory that other processes map
    pub fn all_bytes_mut(&mut self) -> Vec<&mut [u8]> {
        let slice = |run: &Extent| {
            // SAFETY: as above; extents do not overlap.
            unsafe { self.pool.map.bytes_mut(*run) }
        };
        self.extents.iter().map(slice).collect()
    }

    /// Makes the image visible: its root has `root_len` bytes and starts at the first extent.
    ///
    /// # Errors
    /// [`PoolError::BadRoot`], [`PoolError::SlotLost`], [`PoolError::Gone`],
    /// [`PoolError::Truncated`]; the image is given up.
    pub fn publish(self, root_len: u64) -> Result<Cid, PoolError> {
        self.publish_held(root_len).map(|(cid, _)| cid)
    }

    /// As [`publish`](ImageWriter::publish); until the second value is dropped, or its process
    /// dies, the image counts as one that its writer has still to do something with.
    ///
    /// # Errors
    /// As [`publish`](ImageWriter::publish).
    pub fn publish_held(mut self, root_len: u64) -> Result<(Cid, Held), PoolError> {
        self.pool.intact()?;
        let (cid, image_bytes) = (self.cid, self.extents.iter().map(|run| run.bytes()).sum());
        if root_len > image_bytes {
            return Err(PoolError::BadRoot { cid, root_bytes: root_len, image_bytes });
        }
        self.store_records(root_len);
        self.published = self.pool.turn(self.owner, State::Writing, State::Published);
        if !self.published {
            return Err(PoolError::SlotLost { path: self.pool.path.clone(), cid });
        }
        Ok((cid, Held { _alive: self.alive.take() }))
    }

    fn store_records(&self, root_len: u64) {
        self.chain_extents();
        let image = ImageExtents {
            cid: self.cid,
            slot: self.owner.slot,
            root_len,
            created_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            extents: self.extents.clone(),
        };
        let record = self.pool.image(self.owner.slot);
        record.root_bytes.store(root_len, Release);
        record.created_unix_s.store(image.created_unix_s, Release);
        record.first.store(self.extents.first().map_or(0, |run| run.first().0), Release);
        record.chunks.store(self.extents.iter().map(|run| run.chunks).sum(), Release);
        record.extents.store(self.extents.len() as u32, Release);
        record.checksum.store(image.checksum(), Release);
        step();
    }

    fn chain_extents(&self) {
        let followers = self.extents.iter().skip(1).map(|run| run.first().0).chain([0]);
        for (run, next) in self.extents.iter().zip(followers) {
            let head = &self.pool.chunks().of_run(*run)[0];
            head.run_chunks.store(run.chunks, Release);
            head.next.store(next, Release);
            step();
        }
    }
}

/// The first `chunks` chunks of `extents`, and the others.
fn split(extents: &[Extent], chunks: u32) -> (Vec<Extent>, Vec<Extent>) {
    let (mut kept, mut surplus) = (Vec::new(), Vec::new());
    let mut left = chunks;
    for extent in extents {
        let (first, taken) = (extent.first().0, extent.chunks.min(left));
        left -= taken;
        kept.extend((taken > 0).then(|| ChunkIndex(first).run(taken)));
        let rest = extent.chunks - taken;
        surplus.extend((rest > 0).then(|| ChunkIndex(first + taken).run(rest)));
    }
    (kept, surplus)
}

impl Drop for ImageWriter<'_> {
    fn drop(&mut self) {
        if self.published || self.pool.intact().is_err() {
            return;
        }
        // Whatever fails here, the next sweep does again: the slot says Writing without a writer.
        if let Ok(lock) = self.pool.lock()
            && self.pool.state(self.owner) == Some(State::Writing)
        {
            let _ = self.pool.reclaim(&lock, self.owner);
        }
    }
}
