//! Image slots: how an image becomes visible, is found, and goes.
//!
//! ```text
//!           begin             publish               remove
//!   Free ----------> Writing ---------> Published ---------> Removed
//!    ^   generation+1   |                                       |
//!    +------------------+---------------------------------------+
//!      writer dead or gone                 no node pins it
//! ```
//!
//! Each arrow is one store to the state word, which also carries the generation: a word that was
//! read once shows later whether it still is the same image. The arrows to and from Free and the
//! one to Writing are taken under the lock of the tables; a slot returns to Free after its chunks.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use farfork_types::Cid;

use crate::chunks::ChunkAllocator;
use crate::error::PoolError;
use crate::failpoint::step;
use crate::ids::{Extent, ImageSlot, Owner};
use crate::layout::ImageRecord;
use crate::lock::{self, HeldLock, LockByte};
use crate::pool::Pool;

/// What a slot is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    Free = 0,
    Writing = 1,
    Published = 2,
    Removed = 3,
}

impl State {
    /// The state word of a slot.
    pub(crate) const fn word(self, generation: u32) -> u64 {
        (generation as u64) << 32 | self as u64
    }

    /// Generation and state; `None` if the word holds no known state.
    pub(crate) const fn of_word(word: u64) -> Option<(u32, State)> {
        let state = match word as u32 {
            0 => State::Free,
            1 => State::Writing,
            2 => State::Published,
            3 => State::Removed,
            _ => return None,
        };
        Some(((word >> 32) as u32, state))
    }
}

/// A published image as it lies in the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageExtents {
    /// Its id.
    pub cid: Cid,
    /// Its place in the image table, for [`PinFile::hold`](crate::PinFile::hold).
    pub slot: ImageSlot,
    /// Bytes of the root, which starts at the first extent.
    pub root_len: u64,
    /// When it was published, in seconds since 1970.
    pub created_unix_s: u64,
    /// Where its bytes are, in the order in which they were allocated.
    pub extents: Vec<Extent>,
}

impl ImageExtents {
    /// crc32c of everything that the records hold about the image.
    pub(crate) fn checksum(&self) -> u32 {
        let head = [self.slot.0.into(), self.root_len, self.created_unix_s];
        let places = self.extents.iter().flat_map(|run| [run.offset, run.chunks.into()]);
        let start = crc32c::crc32c(&self.cid.to_bytes());
        head.into_iter()
            .chain(places)
            .fold(start, |sum, word: u64| crc32c::crc32c_append(sum, &word.to_le_bytes()))
    }
}

impl ImageRecord {
    pub(crate) fn cid(&self) -> Cid {
        let low = self.cid[0].load(Relaxed).to_le_bytes();
        let high = self.cid[1].load(Relaxed).to_le_bytes();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&low);
        bytes[8..].copy_from_slice(&high);
        Cid::from_bytes(bytes)
    }
}

impl Pool {
    /// The published image `cid`. It stays where it is as long as a node pins it.
    ///
    /// # Errors
    /// [`PoolError::NoImage`], [`PoolError::DamagedImage`], [`PoolError::Gone`],
    /// [`PoolError::Truncated`].
    pub fn find(&self, cid: Cid) -> Result<ImageExtents, PoolError> {
        self.intact()?;
        let owner = self.lookup(cid, &[State::Published]).ok_or_else(|| self.no_image(cid))?;
        let image = self.read_image(owner);
        // The records may have been given to another image while they were read.
        if self.state(owner) != Some(State::Published) {
            return Err(self.no_image(cid));
        }
        image.ok_or_else(|| PoolError::DamagedImage { path: self.path.clone(), cid })
    }

    /// The image that holds the chunk at `offset`, published or removed. For who knows that it
    /// stays: a process that maps it is stopped, and its node pins it.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Truncated`].
    pub fn image_at(&self, offset: u64) -> Result<Option<ImageExtents>, PoolError> {
        self.intact()?;
        let holds = |(index, record): (usize, &ImageRecord)| {
            let (generation, state) = State::of_word(record.state.load(SeqCst))?;
            let is_whole = matches!(state, State::Published | State::Removed);
            let owner = Owner { slot: ImageSlot(index as u32), generation };
            let image = is_whole.then(|| self.read_image(owner))??;
            let is_there = |run: &Extent| run.offset <= offset && offset < run.end();
            image.extents.iter().any(is_there).then_some(image)
        };
        Ok(self.images().iter().enumerate().find_map(holds))
    }

    /// Makes the image invisible at once; its chunks come back when no node pins it any more.
    ///
    /// # Errors
    /// [`PoolError::NoImage`], [`PoolError::Gone`], [`PoolError::Truncated`]; [`PoolError::Io`] if
    /// the image is removed but its chunks could not be emptied (`check` tries again).
    pub fn remove(&self, cid: Cid) -> Result<(), PoolError> {
        self.intact()?;
        let owner = self.lookup(cid, &[State::Published]).ok_or_else(|| self.no_image(cid))?;
        if !self.turn(owner, State::Published, State::Removed) {
            return Err(self.no_image(cid));
        }
        self.settle(owner).map(|_| ())
    }

    pub(crate) fn no_image(&self, cid: Cid) -> PoolError {
        PoolError::NoImage { path: self.path.clone(), cid }
    }

    /// The slot that holds `cid` in one of `states`.
    pub(crate) fn lookup(&self, cid: Cid, states: &[State]) -> Option<Owner> {
        let holds = |(index, record): (usize, &ImageRecord)| {
            let word = record.state.load(SeqCst);
            let (generation, state) = State::of_word(word)?;
            let same = states.contains(&state) && record.cid() == cid;
            let owner = Owner { slot: ImageSlot(index as u32), generation };
            (same && record.state.load(SeqCst) == word).then_some(owner)
        };
        self.images().iter().enumerate().find_map(holds)
    }

    pub(crate) fn image(&self, slot: ImageSlot) -> &ImageRecord {
        &self.images()[slot.index()]
    }

    /// The state of the slot, if it is still used for the same image.
    pub(crate) fn state(&self, owner: Owner) -> Option<State> {
        let (generation, state) = State::of_word(self.image(owner.slot).state.load(SeqCst))?;
        (generation == owner.generation).then_some(state)
    }

    /// Takes an arrow of the diagram; `false` if the image is not in state `from`.
    pub(crate) fn turn(&self, owner: Owner, from: State, to: State) -> bool {
        let (from, to) = (from.word(owner.generation), to.word(owner.generation));
        let turned = self.image(owner.slot).state.compare_exchange(from, to, SeqCst, SeqCst);
        step();
        turned.is_ok()
    }

    /// Reads the records of an image; `None` if they do not fit their checksum.
    pub(crate) fn read_image(&self, owner: Owner) -> Option<ImageExtents> {
        let record = self.image(owner.slot);
        let image = ImageExtents {
            cid: record.cid(),
            slot: owner.slot,
            root_len: record.root_bytes.load(Acquire),
            created_unix_s: record.created_unix_s.load(Acquire),
            extents: self.read_chain(record)?,
        };
        let chunks: u64 = image.extents.iter().map(|run| u64::from(run.chunks)).sum();
        let sound = image.checksum() == record.checksum.load(Acquire)
            && chunks == u64::from(record.chunks.load(Acquire));
        sound.then_some(image)
    }

    fn read_chain(&self, record: &ImageRecord) -> Option<Vec<Extent>> {
        let chunks = self.chunks();
        let mut next = record.first.load(Acquire);
        let mut extents = Vec::new();
        let extent_count = record.extents.load(Acquire);
        // A chain that leads back into itself would not end for as long as the count says.
        if extent_count > self.layout.data_chunks() {
            return None;
        }
        for _ in 0..extent_count {
            let head = chunks.records.get(next as usize)?;
            extents.push(self.run_at(next, head.run_chunks.load(Acquire))?);
            next = head.next.load(Acquire);
        }
        (next == 0).then_some(extents)
    }

    /// Whether the slot's writer lives. Writers of this very process count: each has an open file
    /// description of its own.
    pub(crate) fn has_writer(&self, slot: ImageSlot) -> Result<bool, PoolError> {
        lock::is_held(&self.file, LockByte::writer(slot))
            .map_err(PoolError::io("look for writers of", &self.path))
    }

    /// Gives back what a removed image holds, unless a node pins it. Returns the chunks.
    pub(crate) fn settle(&self, owner: Owner) -> Result<u32, PoolError> {
        let gone = || self.state(owner) == Some(State::Removed) && !self.is_pinned(owner);
        if !gone() {
            return Ok(0);
        }
        let lock = self.lock()?;
        if gone() { self.reclaim(&lock, owner) } else { Ok(0) }
    }

    /// Gives back everything that `owner` has, its slot last. Returns the chunks.
    pub(crate) fn reclaim(&self, lock: &HeldLock, owner: Owner) -> Result<u32, PoolError> {
        self.image(owner.slot).tables.store(0, SeqCst);
        step();
        let chunks = self.give_back_all(lock, owner)?;
        self.image(owner.slot).state.store(State::Free.word(owner.generation), SeqCst);
        step();
        Ok(chunks)
    }

    pub(crate) fn give_back_all(&self, lock: &HeldLock, owner: Owner) -> Result<u32, PoolError> {
        let chunks = self.allocator(lock);
        let runs = [chunks.owned(owner.side_word()), chunks.owned(owner.word())].concat();
        for run in &runs {
            self.give_back(lock, *run)?;
        }
        Ok(runs.iter().map(|run| run.chunks).sum())
    }

    pub(crate) fn give_back(&self, lock: &HeldLock, run: Extent) -> Result<(), PoolError> {
        self.wipe(run)?;
        step();
        self.allocator(lock).give_back(run);
        Ok(())
    }

    /// The images whose chunks can be given back: of dead writers, and removed without a pin.
    pub(crate) fn leftovers(&self, _lock: &HeldLock) -> Result<Vec<(Owner, State)>, PoolError> {
        let mut found = Vec::new();
        for (index, record) in self.images().iter().enumerate() {
            let Some((generation, state)) = State::of_word(record.state.load(SeqCst)) else {
                continue;
            };
            let owner = Owner { slot: ImageSlot(index as u32), generation };
            let leftover = match state {
                State::Writing => !self.has_writer(owner.slot)?,
                State::Removed => !self.is_pinned(owner),
                State::Free | State::Published => false,
            };
            if leftover {
                found.push((owner, state));
            }
        }
        Ok(found)
    }

    pub(crate) fn sweep(&self, lock: &HeldLock) -> Result<(), PoolError> {
        for (owner, _) in self.leftovers(lock)? {
            self.reclaim(lock, owner)?;
        }
        Ok(())
    }
}
