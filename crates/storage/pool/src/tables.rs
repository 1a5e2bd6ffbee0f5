//! Side tables: what is learnt about the pages of an image that is sealed.
//!
//! ```text
//!  image record ── tables ─► table ── next ─► table ─► …        one for each node, one for users
//!
//!  table    header          whose it is; the epochs of its bits
//!           + 4096          accessed, dirtied, hot: one bit for each page of the image's chunks
//! ```
//! 1. A node's table has one writer, its agent, which pins the image. The users' table is written
//!    under the lock of the tables, while the image is published: so is nothing of a chunk that has
//!    gone to another image.
//! 2. A table is linked by one store, when all of its header is there and all of its bits are 0.
//! 3. Accessed and dirtied bits have an epoch each. The users' table has the current one;
//!    bits of another epoch count for nothing. So a reset is one store. A process that has bits to add to a
//!    table of an older epoch clears it first, then stores the epoch, then adds.
//! 4. Bits are added by stores of single words, so that each prefix states only what is true.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES};

use crate::chunks::ChunkAllocator;
use crate::error::PoolError;
use crate::failpoint::step;
use crate::ids::{Extent, NodeSlot, Owner};
use crate::layout::MAX_NODES;
use crate::lock::HeldLock;
use crate::map::Shared;
use crate::pool::Pool;
use crate::slots::State;
use crate::words;

const MAGIC: u64 = u64::from_le_bytes(*b"farforkT");
const VERSION: u64 = 1;
/// In the place of a node's number: the users' table.
const USERS: u64 = u64::MAX;
/// Where the bits begin in a table.
const BITS_AT: u64 = PAGE_BYTES;
/// Sets of bits in a table.
const SETS: u64 = 3;

/// Start of a table. What stands before the checksum never changes.
#[repr(C)]
struct TableHeader {
    magic: AtomicU64,
    version: AtomicU64,
    /// The owner word of its chunks.
    owner: AtomicU64,
    cid: [AtomicU64; 2],
    /// Slot of the node that writes it, or [`USERS`].
    writer: AtomicU64,
    /// Pages that each set has a bit for.
    pages: AtomicU64,
    /// crc32c of the words above.
    checksum: AtomicU64,
    /// Of which epochs its accessed and its dirtied bits are.
    epochs: [AtomicU64; 2],
    /// In the users' table: the current epochs.
    current: [AtomicU64; 2],
    /// How often its writer has added something.
    additions: AtomicU64,
}

// SAFETY: repr(C), made of atomic integers only, for which every bit pattern is valid.
#[allow(unsafe_code)]
unsafe impl Shared for TableHeader {}

/// The words of a header that never change.
const FIXED: usize = 7;

/// Sets of pages: page number n is bit n % 64 of word n / 64.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageBits {
    /// Read or written by a clone.
    pub accessed: Vec<u64>,
    /// Written by a clone.
    pub dirtied: Vec<u64>,
    /// Declared hot by the user.
    pub hot: Vec<u64>,
}

impl PageBits {
    /// Adds what `other` has.
    pub fn merge(&mut self, other: &PageBits) {
        let own = [&mut self.accessed, &mut self.dirtied, &mut self.hot];
        let others = [&other.accessed, &other.dirtied, &other.hot];
        for (own, other) in own.into_iter().zip(others) {
            own.resize(own.len().max(other.len()), 0);
            own.iter_mut().zip(other).for_each(|(own, other)| *own |= other);
        }
    }

    /// Whether no bit is set.
    pub fn is_empty(&self) -> bool {
        [&self.accessed, &self.dirtied, &self.hot].into_iter().flatten().all(|word| *word == 0)
    }
}

/// The epochs of accessed and of dirtied bits: how often each has been reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Epochs {
    /// Of accessed bits.
    pub accessed: u64,
    /// Of dirtied bits.
    pub dirtied: u64,
}

/// One table, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessTable {
    /// The node that writes it; none for the users' table.
    pub node: Option<NodeSlot>,
    /// How often something was added.
    pub additions: u64,
    /// Its bits; sets of an epoch that is over are empty.
    pub bits: PageBits,
}

/// A table that is linked.
#[derive(Clone, Copy)]
pub(crate) struct Table<'p> {
    pub(crate) run: Extent,
    header: &'p TableHeader,
    bits: &'p [AtomicU64],
}

impl<'p> Table<'p> {
    fn set(&self, index: usize) -> &'p [AtomicU64] {
        let words = self.bits.len() / SETS as usize;
        &self.bits[index * words..(index + 1) * words]
    }

    fn is_of(&self, writer: u64) -> bool {
        self.header.writer.load(Relaxed) == writer
    }

    fn copy(&self, current: [u64; 2]) -> AccessTable {
        let of_epoch = |index: usize| {
            let is_current = self.header.epochs[index].load(Acquire) == current[index];
            if is_current { copied(self.set(index)) } else { Vec::new() }
        };
        let writer = self.header.writer.load(Relaxed);
        AccessTable {
            node: (writer != USERS).then_some(NodeSlot(writer as u32)),
            additions: self.header.additions.load(Relaxed),
            bits: PageBits {
                accessed: of_epoch(0),
                dirtied: of_epoch(1),
                hot: copied(self.set(2)),
            },
        }
    }

    /// Adds `bits` to a set that has an epoch.
    fn add_of_epoch(&self, index: usize, epoch: u64, bits: &[u64]) {
        if self.header.epochs[index].load(Relaxed) != epoch {
            for word in self.set(index).iter().filter(|word| word.load(Relaxed) != 0) {
                word.store(0, Release);
                step();
            }
            self.header.epochs[index].store(epoch, Release);
            step();
        }
        self.change(index, bits, &[]);
    }

    /// Sets and clears bits of a set, word by word. Bits beyond the set are none of the image's.
    fn change(&self, index: usize, set: &[u64], clear: &[u64]) {
        let bit_word = |bits: &[u64], at: usize| bits.get(at).copied().unwrap_or(0);
        for (at, word) in self.set(index).iter().enumerate() {
            let before = word.load(Relaxed);
            let after = (before | bit_word(set, at)) & !bit_word(clear, at);
            if after != before {
                word.store(after, Release);
                step();
            }
        }
    }

    fn count(&self) {
        self.header.additions.fetch_add(1, Relaxed);
    }
}

fn copied(words: &[AtomicU64]) -> Vec<u64> {
    words.iter().map(|word| word.load(Relaxed)).collect()
}

impl Pool {
    /// The side tables of the image `cid`: none if nothing has been learnt about it.
    ///
    /// # Errors
    /// [`PoolError::NoImage`], [`PoolError::DamagedTables`], [`PoolError::Gone`],
    /// [`PoolError::Truncated`].
    pub fn access_tables(&self, cid: Cid) -> Result<Vec<AccessTable>, PoolError> {
        self.intact()?;
        let owner = self.published(cid)?;
        loop {
            let first = self.image(owner.slot).tables.load(SeqCst);
            let tables = self.linked_tables(owner);
            let current = current(tables.as_deref().unwrap_or_default());
            let copies: Option<Vec<AccessTable>> =
                tables.as_ref().map(|tables| tables.iter().map(|t| t.copy(current)).collect());
            // What was read may have gone to another image, or to another epoch, meanwhile.
            if self.state(owner) != Some(State::Published) {
                return Err(self.no_image(cid));
            }
            let is_linked = self.image(owner.slot).tables.load(SeqCst) == first;
            if is_linked && tables.is_none_or(|tables| self::current(&tables) == current) {
                return copies.ok_or_else(|| self.damaged_tables(cid));
            }
        }
    }

    /// All bits of the side tables of the image `cid`.
    ///
    /// # Errors
    /// As [`access_tables`](Pool::access_tables).
    pub fn access(&self, cid: Cid) -> Result<PageBits, PoolError> {
        let mut all = PageBits::default();
        self.access_tables(cid)?.iter().for_each(|table| all.merge(&table.bits));
        Ok(all)
    }

    /// A number that is another one whenever the side tables may have changed; 0 if there are
    /// none.
    ///
    /// # Errors
    /// As [`access_tables`](Pool::access_tables).
    pub fn access_version(&self, cid: Cid) -> Result<u64, PoolError> {
        self.intact()?;
        let owner = self.published(cid)?;
        let tables = self.linked_tables(owner).ok_or_else(|| self.damaged_tables(cid))?;
        // Each of them only grows.
        let additions = tables.iter().map(|table| table.header.additions.load(Relaxed));
        Ok(additions.chain(current(&tables)).sum::<u64>() + tables.len() as u64)
    }

    /// The current epochs of an image. What a clone that starts now touches belongs to them.
    ///
    /// # Errors
    /// As [`access_tables`](Pool::access_tables).
    pub fn epochs(&self, cid: Cid) -> Result<Epochs, PoolError> {
        self.intact()?;
        let owner = self.published(cid)?;
        let tables = self.linked_tables(owner).ok_or_else(|| self.damaged_tables(cid))?;
        let [accessed, dirtied] = current(&tables);
        Ok(Epochs { accessed, dirtied })
    }

    /// Adds what a clone has done to the table of `node`, which pins the image, published or
    /// removed. Bits of other epochs than the current ones are left out. Only the node's agent calls
    /// this, and never twice at once.
    ///
    /// # Errors
    /// [`PoolError::NoImage`] if the node does not pin it; [`PoolError::DamagedTables`];
    /// [`PoolError::Full`] or [`PoolError::MediumFull`] if there is no room for the node's first
    /// table; [`PoolError::Gone`], [`PoolError::Truncated`], [`PoolError::Io`].
    pub fn add_access(
        &self,
        node: NodeSlot,
        cid: Cid,
        epochs: Epochs,
        bits: &PageBits,
    ) -> Result<(), PoolError> {
        self.intact()?;
        let owner = self.lookup(cid, &[State::Published, State::Removed]);
        let pins = |owner: &Owner| self.pinned_by(*owner).any(|pinning| pinning == node);
        let owner = owner.filter(pins).ok_or_else(|| self.no_image(cid))?;
        let writer = u64::from(node.0);
        let table = match self.table_of(owner, writer)? {
            Some(table) => table,
            None => {
                let lock = self.lock()?;
                self.make_table(&lock, owner, writer)?
            }
        };
        let current = current(&self.linked_tables(owner).unwrap_or_default());
        if epochs.accessed == current[0] {
            table.add_of_epoch(0, current[0], &bits.accessed);
        }
        if epochs.dirtied == current[1] {
            table.add_of_epoch(1, current[1], &bits.dirtied);
        }
        table.count();
        Ok(())
    }

    /// Adds `bits`, hot ones too, to the users' table.
    ///
    /// # Errors
    /// As [`add_access`](Pool::add_access), [`PoolError::NoImage`] if it is not published.
    pub fn add_users_bits(&self, cid: Cid, bits: &PageBits) -> Result<(), PoolError> {
        self.with_users_table(cid, |table| {
            let current = current(std::slice::from_ref(table));
            for (index, bits) in [&bits.accessed, &bits.dirtied].into_iter().enumerate() {
                if !bits.is_empty() {
                    table.add_of_epoch(index, current[index], bits);
                }
            }
            table.change(2, &bits.hot, &[]);
        })
    }

    /// Takes `hot` out of what the user has declared hot.
    ///
    /// # Errors
    /// As [`add_users_bits`](Pool::add_users_bits).
    pub fn clear_hot(&self, cid: Cid, hot: &[u64]) -> Result<(), PoolError> {
        self.with_users_table(cid, |table| table.change(2, &[], hot))
    }

    /// Begins an epoch anew: what clones have accessed until now counts for nothing any more, nor
    /// what they have dirtied if `dirtied` is set.
    ///
    /// # Errors
    /// As [`add_users_bits`](Pool::add_users_bits).
    pub fn reset_access(&self, cid: Cid, dirtied: bool) -> Result<(), PoolError> {
        self.with_users_table(cid, |table| {
            let current = &table.header.current;
            for epoch in &current[..1 + usize::from(dirtied)] {
                epoch.store(epoch.load(Relaxed) + 1, SeqCst);
                step();
            }
        })
    }

    fn with_users_table(&self, cid: Cid, work: impl FnOnce(&Table<'_>)) -> Result<(), PoolError> {
        self.intact()?;
        let lock = self.lock()?;
        // Under the lock its chunks are not given back.
        let owner = self.published(cid)?;
        let table = match self.table_of(owner, USERS)? {
            Some(table) => table,
            None => self.make_table(&lock, owner, USERS)?,
        };
        work(&table);
        table.count();
        Ok(())
    }

    fn published(&self, cid: Cid) -> Result<Owner, PoolError> {
        self.lookup(cid, &[State::Published]).ok_or_else(|| self.no_image(cid))
    }

    fn damaged_tables(&self, cid: Cid) -> PoolError {
        PoolError::DamagedTables { path: self.path.clone(), cid }
    }

    fn table_of(&self, owner: Owner, writer: u64) -> Result<Option<Table<'_>>, PoolError> {
        let damaged = || self.damaged_tables(self.image(owner.slot).cid());
        let tables = self.linked_tables(owner).ok_or_else(damaged)?;
        Ok(tables.into_iter().find(|table| table.is_of(writer)))
    }

    /// The tables of an image; `None` if one of them is not what it should be.
    pub(crate) fn linked_tables(&self, owner: Owner) -> Option<Vec<Table<'_>>> {
        let mut tables = Vec::new();
        let mut next = self.image(owner.slot).tables.load(SeqCst);
        while next != 0 {
            // A chain that leads back into itself would not end.
            if tables.len() > MAX_NODES {
                return None;
            }
            let head = self.chunks().records.get(usize::try_from(next).ok()?)?;
            let run = self.run_at(next as u32, head.run_chunks.load(Acquire))?;
            tables.push(self.table_at(run, owner)?);
            next = u64::from(head.next.load(Acquire));
        }
        Some(tables)
    }

    fn table_at(&self, run: Extent, owner: Owner) -> Option<Table<'_>> {
        let mut records = self.chunks().of_run(run).iter();
        let is_owned = records.all(|record| record.owner.load(SeqCst) == owner.side_word());
        let header = &self.map.table::<TableHeader>(run.offset, 1)[0];
        let pages = header.pages.load(Acquire);
        let fits = pages == self.pages_of(owner) && run.chunks == chunks_for(pages);
        let is_sound = is_owned
            && fits
            && header.magic.load(Acquire) == MAGIC
            && header.version.load(Relaxed) == VERSION
            && header.owner.load(Relaxed) == owner.side_word()
            && header.checksum.load(Relaxed) == u64::from(checksum(header));
        let count = (SETS * pages.div_ceil(64)) as usize;
        is_sound.then(|| Table { run, header, bits: self.map.table(run.offset + BITS_AT, count) })
    }

    /// The pages that an image's tables have bits for: as many as its chunks have.
    fn pages_of(&self, owner: Owner) -> u64 {
        let chunks = self.image(owner.slot).chunks.load(Acquire);
        u64::from(chunks) * (CHUNK_BYTES / PAGE_BYTES)
    }

    /// Makes the table of `writer` and links it.
    fn make_table(
        &self,
        lock: &HeldLock,
        owner: Owner,
        writer: u64,
    ) -> Result<Table<'_>, PoolError> {
        self.give_back_lost_tables(lock, owner)?;
        let cid = self.image(owner.slot).cid();
        let pages = self.pages_of(owner);
        let run = self.claim_table(lock, owner, chunks_for(pages))?;
        let header = &self.map.table::<TableHeader>(run.offset, 1)[0];
        header.version.store(VERSION, Relaxed);
        header.owner.store(owner.side_word(), Relaxed);
        words::store_bytes(&header.cid, &cid.to_bytes());
        header.writer.store(writer, Relaxed);
        header.pages.store(pages, Relaxed);
        header.magic.store(MAGIC, Relaxed);
        header.checksum.store(checksum(header).into(), Release);
        step();
        let first = &self.image(owner.slot).tables;
        let head = &self.chunks().of_run(run)[0];
        head.run_chunks.store(run.chunks, Release);
        head.next.store(first.load(SeqCst) as u32, Release);
        step();
        first.store(run.first().0.into(), SeqCst);
        step();
        self.table_at(run, owner).ok_or_else(|| self.damaged_tables(cid))
    }

    /// Chunks for a table, side by side.
    fn claim_table(&self, lock: &HeldLock, owner: Owner, chunks: u32) -> Result<Extent, PoolError> {
        let runs = self.claim_word(lock, owner.side_word(), chunks)?;
        let failed = match (self.reserve(Some(lock), &runs), &runs[..]) {
            (Ok(()), [run]) => return Ok(*run),
            (Err(error), _) => error,
            (Ok(()), _) => PoolError::Full {
                path: self.path.clone(),
                asked: u64::from(chunks) * CHUNK_BYTES,
                free: runs.iter().map(|run| run.bytes()).max().unwrap_or(0),
            },
        };
        runs.iter().try_for_each(|run| self.give_back(lock, *run))?;
        Err(failed)
    }

    /// Gives back the chunks of side tables that were never linked.
    pub(crate) fn give_back_lost_tables(
        &self,
        lock: &HeldLock,
        owner: Owner,
    ) -> Result<Vec<Extent>, PoolError> {
        let linked: Vec<Extent> =
            self.linked_tables(owner).unwrap_or_default().iter().map(|table| table.run).collect();
        let mut lost = Vec::new();
        for run in self.allocator(lock).owned(owner.side_word()) {
            // Neighbours that are linked come as one run with those that are not.
            for chunk in run.single_chunks() {
                if !linked.iter().any(|table| table.contains(chunk.offset, chunk.bytes())) {
                    self.give_back(lock, chunk)?;
                    lost.push(chunk);
                }
            }
        }
        Ok(lost)
    }

    /// Unlinks all side tables of an image that no node pins, and gives them back.
    pub(crate) fn drop_tables(&self, lock: &HeldLock, owner: Owner) -> Result<(), PoolError> {
        self.image(owner.slot).tables.store(0, SeqCst);
        step();
        self.give_back_lost_tables(lock, owner).map(drop)
    }
}

/// The current epochs.
fn current(tables: &[Table<'_>]) -> [u64; 2] {
    let users = tables.iter().find(|table| table.is_of(USERS));
    users.map_or([0; 2], |table| [0, 1].map(|index| table.header.current[index].load(SeqCst)))
}

fn chunks_for(pages: u64) -> u32 {
    (BITS_AT + SETS * pages.div_ceil(64) * 8).div_ceil(CHUNK_BYTES) as u32
}

fn checksum(header: &TableHeader) -> u32 {
    let TableHeader { magic, version, owner, cid: [low, high], writer, pages, .. } = header;
    let fixed: [&AtomicU64; FIXED] = [magic, version, owner, low, high, writer, pages];
    let append =
        |sum, word: &AtomicU64| crc32c::crc32c_append(sum, &word.load(Relaxed).to_le_bytes());
    fixed.into_iter().fold(0, append)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_header_keeps_its_shape() {
        assert_eq!(offset_of!(TableHeader, owner), 16);
        assert_eq!(offset_of!(TableHeader, cid), 24);
        assert_eq!(offset_of!(TableHeader, writer), 40);
        assert_eq!(offset_of!(TableHeader, checksum), 8 * FIXED);
        assert_eq!(offset_of!(TableHeader, epochs), 64);
        assert_eq!(offset_of!(TableHeader, current), 80);
        assert_eq!(offset_of!(TableHeader, additions), 96);
        assert!(size_of::<TableHeader>() as u64 <= BITS_AT);
    }

    #[test]
    fn one_chunk_is_enough_for_an_image_of_21_gb() {
        let pages = |gib: u64| gib << 18;
        assert_eq!([chunks_for(512), chunks_for(pages(21)), chunks_for(pages(22))], [1, 1, 2]);
    }
}
