//! Side tables: what is learnt about the pages of an image that is sealed.
//!
//! ```text
//!  tables/CID/users      what users declare, and the current epochs
//!  tables/CID/NODE       what clones on a node have done; NODE is the name of the node's file
//!  tables/CID/order      in which order pages were needed (`order`)
//!
//!  0      header         magic, version, checksum of all, id of the image, pages, epochs, additions
//!  128    accessed       one bit for each page of the image's chunks
//!         dirtied        the same
//!         hot            the same
//! ```
//! 1. A table is replaced as a whole, by a rename: readers see one that is complete.
//! 2. A node's table has one writer, its agent. The users' table is written under the lock of the pool.
//! 3. Accessed and dirtied bits have an epoch each. The users' table has the current one; bits of another
//!    epoch count for nothing. So a reset writes one table. A process that has bits to add to a table of
//!    an older epoch drops that table's bits first.
//! 4. Tables of an image that is gone belong to no image: they go with it, or at the next check.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use farfork_types::Cid;
use rustix::fs::OFlags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::PoolError;
use crate::layout::{self, TABLES};
use crate::nodes::NodeId;
use crate::order;
use crate::pool::Pool;

/// Name of the users' table.
const BY_USERS: &str = "users";

const MAGIC: u64 = u64::from_le_bytes(*b"farforkT");
const VERSION: u32 = 2;
/// Sets of bits in a table.
const SETS: usize = 3;

/// Start of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TableHeader {
    magic: u64,
    version: u32,
    /// crc32c of the whole file with 0 in this place.
    checksum: u32,
    cid: [u8; 16],
    /// Words of each set.
    words: u64,
    /// Of which epochs its accessed and its dirtied bits are.
    epochs: [u64; 2],
    /// In the users' table: the current epochs.
    current: [u64; 2],
    /// How often its writer has added something.
    additions: u64,
    reserved: [u64; 6],
}

const _: () = assert!(size_of::<TableHeader>() == 128);

impl TableHeader {
    fn is_of(&self, cid: Cid) -> bool {
        (self.magic, self.version, self.cid) == (MAGIC, VERSION, cid.to_bytes())
    }
}

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
    pub node: Option<NodeId>,
    /// How often something was added.
    pub additions: u64,
    /// Its bits; sets of an epoch that is over are empty.
    pub bits: PageBits,
}

/// A table in memory.
struct Table {
    header: TableHeader,
    bits: PageBits,
}

impl Table {
    fn new(cid: Cid) -> Table {
        let header = TableHeader {
            magic: MAGIC,
            version: VERSION,
            checksum: 0,
            cid: cid.to_bytes(),
            words: 0,
            epochs: [0; 2],
            current: [0; 2],
            additions: 0,
            reserved: [0; 6],
        };
        Table { header, bits: PageBits::default() }
    }

    /// `None` if the bytes are not those of a table of `cid`.
    fn parse(bytes: &[u8], cid: Cid) -> Option<Table> {
        let (header, rest) = TableHeader::read_from_prefix(bytes).ok()?;
        let without = TableHeader { checksum: 0, ..header };
        let sum = crc32c::crc32c_append(crc32c::crc32c(without.as_bytes()), rest);
        let words = usize::try_from(header.words).ok()?;
        let is_sound = header.is_of(cid)
            && words.checked_mul(8 * SETS) == Some(rest.len())
            && sum == header.checksum;
        if !is_sound {
            return None;
        }
        let mut sets = (0..SETS).map(|set| {
            let bytes = &rest[set * words * 8..(set + 1) * words * 8];
            let words = bytes.as_chunks::<8>().0.iter();
            words.map(|word| u64::from_le_bytes(*word)).collect::<Vec<u64>>()
        });
        let mut next = || sets.next().unwrap_or_default();
        let bits = PageBits { accessed: next(), dirtied: next(), hot: next() };
        Some(Table { header, bits })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let sets = [&self.bits.accessed, &self.bits.dirtied, &self.bits.hot];
        let words = sets.iter().map(|set| set.len()).max().unwrap_or(0);
        let mut rest = Vec::with_capacity(words * 8 * SETS);
        for set in sets {
            let padded = set.iter().copied().chain(std::iter::repeat(0)).take(words);
            padded.for_each(|word| rest.extend(word.to_le_bytes()));
        }
        let header = TableHeader { checksum: 0, words: words as u64, ..self.header };
        let sum = crc32c::crc32c_append(crc32c::crc32c(header.as_bytes()), &rest);
        let header = TableHeader { checksum: sum, ..header };
        [header.as_bytes(), &rest].concat()
    }

    /// Adds `bits` to the sets that have an epoch, each if `epochs` has its current one.
    fn add(&mut self, bits: &PageBits, epochs: Option<Epochs>, current: [u64; 2]) {
        let of = epochs.map_or(current, |epochs| [epochs.accessed, epochs.dirtied]);
        let own = [&mut self.bits.accessed, &mut self.bits.dirtied];
        for (index, (own, added)) in
            own.into_iter().zip([&bits.accessed, &bits.dirtied]).enumerate()
        {
            if of[index] != current[index] {
                continue;
            }
            if self.header.epochs[index] != current[index] {
                own.clear();
                self.header.epochs[index] = current[index];
            }
            own.resize(own.len().max(added.len()), 0);
            own.iter_mut().zip(added).for_each(|(own, added)| *own |= added);
        }
    }

    fn shown(mut self, node: Option<NodeId>, current: [u64; 2]) -> AccessTable {
        let own = [&mut self.bits.accessed, &mut self.bits.dirtied];
        for (index, own) in own.into_iter().enumerate() {
            if self.header.epochs[index] != current[index] {
                own.clear();
            }
        }
        AccessTable { node, additions: self.header.additions, bits: self.bits }
    }
}

impl Pool {
    /// The side tables of the image `cid`: none if nothing has been learnt about it.
    ///
    /// # Errors
    /// [`PoolError::NoImage`], [`PoolError::DamagedTables`], [`PoolError::Gone`], [`PoolError::Io`].
    pub fn access_tables(&self, cid: Cid) -> Result<Vec<AccessTable>, PoolError> {
        self.demand_image(cid)?;
        let current = self.current(cid)?;
        let mut shown = Vec::new();
        for writer in self.table_writers(cid)? {
            if let Some(table) = self.table(cid, &writer)? {
                let node = (writer != BY_USERS).then(|| writer.parse()).and_then(Result::ok);
                shown.push(table.shown(node, current));
            }
        }
        Ok(shown)
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
        let mut sum = 0u64;
        // Each of them only grows, unless a table is damaged.
        for writer in self.table_writers(cid)? {
            if let Some(header) = self.header(cid, &writer)? {
                let changes = header.current.into_iter().fold(header.additions, u64::wrapping_add);
                sum = u64::wrapping_add(sum, changes).wrapping_add(1);
            }
        }
        Ok(sum)
    }

    /// The current epochs of an image. What a clone that starts now touches belongs to them.
    ///
    /// # Errors
    /// As [`access_tables`](Pool::access_tables).
    pub fn epochs(&self, cid: Cid) -> Result<Epochs, PoolError> {
        let [accessed, dirtied] = self.current(cid)?;
        Ok(Epochs { accessed, dirtied })
    }

    /// Adds what a clone has done to the table of `node`. Bits of other epochs than the current ones are
    /// left out. Only the node's agent calls this, and never twice at once.
    ///
    /// # Errors
    /// [`PoolError::NoImage`]; [`PoolError::DamagedTables`]; [`PoolError::Gone`], [`PoolError::Io`].
    pub fn add_access(
        &self,
        node: NodeId,
        cid: Cid,
        epochs: Epochs,
        bits: &PageBits,
    ) -> Result<(), PoolError> {
        self.demand_image(cid)?;
        // Here it is looked whether the users' table is sound.
        let current = self.table(cid, BY_USERS)?.map_or([0; 2], |table| table.header.current);
        let writer = node.to_string();
        let mut table = self.table(cid, &writer)?.unwrap_or_else(|| Table::new(cid));
        table.add(bits, Some(epochs), current);
        self.put_table(cid, &writer, table)
    }

    /// Adds `bits`, hot ones too, to the users' table.
    ///
    /// # Errors
    /// As [`add_access`](Pool::add_access).
    pub fn add_users_bits(&self, cid: Cid, bits: &PageBits) -> Result<(), PoolError> {
        self.with_users_table(cid, |table| {
            table.add(bits, None, table.header.current);
            let hot = PageBits { hot: bits.hot.clone(), ..PageBits::default() };
            table.bits.merge(&hot);
        })
    }

    /// Takes `hot` out of what the user has declared hot.
    ///
    /// # Errors
    /// As [`add_access`](Pool::add_access).
    pub fn clear_hot(&self, cid: Cid, hot: &[u64]) -> Result<(), PoolError> {
        self.with_users_table(cid, |table| {
            table.bits.hot.iter_mut().zip(hot).for_each(|(own, cleared)| *own &= !cleared);
        })
    }

    /// Begins an epoch anew: what clones have accessed until now counts for nothing any more, nor
    /// what they have dirtied if `dirtied` is set.
    ///
    /// # Errors
    /// As [`add_access`](Pool::add_access).
    pub fn reset_access(&self, cid: Cid, dirtied: bool) -> Result<(), PoolError> {
        self.with_users_table(cid, |table| {
            for epoch in &mut table.header.current[..1 + usize::from(dirtied)] {
                *epoch = epoch.wrapping_add(1);
            }
        })
    }

    fn with_users_table(&self, cid: Cid, work: impl FnOnce(&mut Table)) -> Result<(), PoolError> {
        let _lock = self.lock()?;
        self.demand_image(cid)?;
        let mut table = self.table(cid, BY_USERS)?.unwrap_or_else(|| Table::new(cid));
        work(&mut table);
        self.put_table(cid, BY_USERS, table)
    }

    fn put_table(&self, cid: Cid, writer: &str, mut table: Table) -> Result<(), PoolError> {
        table.header.additions = table.header.additions.wrapping_add(1);
        self.put_beside_tables(cid, writer, &table.to_bytes())
    }

    /// Replaces a file among the tables of an image.
    pub(crate) fn put_beside_tables(
        &self,
        cid: Cid,
        file: &str,
        bytes: &[u8],
    ) -> Result<(), PoolError> {
        let (directory, name) = (layout::tables(cid), name_of(cid, file));
        let put = self.directory.make(&directory);
        let put = put.and_then(|()| self.directory.put(&name, bytes));
        // The image may have been removed meanwhile, before there was anything to remove with it.
        self.demand_image(cid).inspect_err(|_| drop(self.drop_tables(cid)))?;
        put.map_err(self.directory.failed("write", &name))
    }

    pub(crate) fn demand_image(&self, cid: Cid) -> Result<(), PoolError> {
        self.intact()?;
        let name = layout::image(cid);
        let found = self.directory.look(&name).map_err(self.directory.failed("look at", &name))?;
        found.map(drop).ok_or_else(|| self.no_image(cid))
    }

    pub(crate) fn damaged_tables(&self, cid: Cid) -> PoolError {
        PoolError::DamagedTables { path: self.path().to_owned(), cid }
    }

    fn table_writers(&self, cid: Cid) -> Result<Vec<String>, PoolError> {
        let directory = layout::tables(cid);
        let files = self.directory.list(&directory);
        let mut files = files.map_err(self.directory.failed("list", &directory))?;
        files.retain(|name| name != order::NAME);
        Ok(files)
    }

    fn open_table(&self, cid: Cid, writer: &str) -> Result<Option<File>, PoolError> {
        let name = name_of(cid, writer);
        let opened = self.directory.open_file(&name, OFlags::RDONLY);
        opened.map_err(self.directory.failed("open", &name))
    }

    /// The start of a table, without a look at its checksum: the rest would have to be read.
    fn header(&self, cid: Cid, writer: &str) -> Result<Option<TableHeader>, PoolError> {
        let Some(file) = self.open_table(cid, writer)? else { return Ok(None) };
        let mut bytes = [0; size_of::<TableHeader>()];
        let read = file.read_exact_at(&mut bytes, 0);
        read.map_err(|_| self.damaged_tables(cid))?;
        let header: TableHeader = zerocopy::transmute!(bytes);
        match header.is_of(cid) {
            true => Ok(Some(header)),
            false => Err(self.damaged_tables(cid)),
        }
    }

    fn table(&self, cid: Cid, writer: &str) -> Result<Option<Table>, PoolError> {
        let Some(mut file) = self.open_table(cid, writer)? else { return Ok(None) };
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut file, &mut bytes)
            .map_err(self.directory.failed("read", &name_of(cid, writer)))?;
        Table::parse(&bytes, cid).map(Some).ok_or_else(|| self.damaged_tables(cid))
    }

    fn current(&self, cid: Cid) -> Result<[u64; 2], PoolError> {
        Ok(self.header(cid, BY_USERS)?.map_or([0; 2], |header| header.current))
    }

    /// Removes all side tables of an image.
    pub(crate) fn drop_tables(&self, cid: Cid) -> Result<(), PoolError> {
        let directory = layout::tables(cid);
        let dropped = self.directory.remove_with_files(&directory);
        dropped.map_err(self.directory.failed("remove", &directory))
    }
}

fn name_of(cid: Cid, writer: &str) -> String {
    format!("{TABLES}/{cid}/{writer}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_header_keeps_its_shape() {
        assert_eq!(offset_of!(TableHeader, checksum), 12);
        assert_eq!(offset_of!(TableHeader, cid), 16);
        assert_eq!(offset_of!(TableHeader, words), 32);
        assert_eq!(offset_of!(TableHeader, epochs), 40);
        assert_eq!(offset_of!(TableHeader, current), 56);
        assert_eq!(offset_of!(TableHeader, additions), 72);
    }

    #[test]
    fn a_table_comes_back_and_no_changed_byte_goes_unnoticed() {
        let cid = Cid::from_bytes([7; 16]);
        let mut table = Table::new(cid);
        table.bits = PageBits { accessed: vec![1, 2], dirtied: vec![], hot: vec![4] };
        let bytes = table.to_bytes();
        let read = Table::parse(&bytes, cid).unwrap();
        let expected = PageBits { accessed: vec![1, 2], dirtied: vec![0, 0], hot: vec![4, 0] };
        assert_eq!(read.bits, expected);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Table::parse(&changed, cid).is_none(), "byte {at}");
        }
        assert!(Table::parse(&bytes[..bytes.len() - 1], cid).is_none());
        assert!(Table::parse(&bytes, Cid::from_bytes([8; 16])).is_none());
    }
}
