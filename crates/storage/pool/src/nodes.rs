//! The table of nodes.
//!
//! 1. A row belongs to a name and to the pin file that shows what lives of the node: two agents of one
//!    name and of different run directories have a row each.
//! 2. The writer of a row holds its lock, as long as it may. A process that takes, frees or reuses a row
//!    holds both that lock and the one of the tables.
//! 3. A row is taken from its owner only by the process that has its pin file, or after the machine was started again,
//!    or if nothing is pinned in it any more.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::boot::Boot;

use crate::error::PoolError;
use crate::failpoint::step;
use crate::ids::NodeSlot;
use crate::layout::{HOLDER_WORDS, MAX_NODE_NAME_BYTES, MAX_NODES, NODES_AT, NodeRecord};
use crate::lock::{HeldLock, LockByte};
use crate::pinfile::{Holder, PinFile};
use crate::pool::Pool;
use crate::words;

/// How long the row of an agent may still be locked that is about to have ended.
const PATIENCE: Duration = Duration::from_secs(5);

impl NodeRecord {
    /// Name and holder; `None` if the record is free or does not fit its checksum.
    fn read(&self) -> Option<(String, Holder)> {
        let header = self.header.load(Acquire);
        let name = words::load_bytes(&self.name, header as u32 as usize);
        let holder: [u64; HOLDER_WORDS] = std::array::from_fn(|n| self.holder[n].load(Relaxed));
        let is_sound = header != 0 && header == header_of(holder, &name);
        Some((String::from_utf8(name).ok().filter(|_| is_sound)?, Holder::from_words(holder)))
    }

    fn write(&self, name: &str, holder: Holder) {
        let holder = holder.to_words();
        words::store_bytes(&self.name, name.as_bytes());
        self.holder.iter().zip(holder).for_each(|(word, value)| word.store(value, Relaxed));
        step();
        self.header.store(header_of(holder, name.as_bytes()), SeqCst);
        step();
    }

    pub(crate) fn is_damaged(&self) -> bool {
        self.header.load(Acquire) != 0 && self.read().is_none()
    }
}

fn header_of(holder: [u64; HOLDER_WORDS], name: &[u8]) -> u64 {
    let sum = holder.iter().fold(0, |sum, word| crc32c::crc32c_append(sum, &word.to_le_bytes()));
    u64::from(crc32c::crc32c_append(sum, name)) << 32 | name.len() as u64
}

/// A node's row of pins, which no other process writes as long as this is there.
#[derive(Debug)]
pub struct NodeRow {
    slot: NodeSlot,
    _lock: HeldLock,
}

impl NodeRow {
    /// Which row.
    pub fn slot(&self) -> NodeSlot {
        self.slot
    }
}

/// What became of the rows of a node that was to be forgotten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Rows that were dropped.
    pub rows: usize,
    /// Images that were pinned in them.
    pub pins: usize,
    /// Rows that stay: an agent or clones of theirs live.
    pub living: usize,
}

impl Pool {
    /// The row of the node `name` whose clones hold locks in `holders`, which is taken if there is none.
    /// Another node may have the same name. Pins of a former life of the machine are cleared.
    ///
    /// # Errors
    /// [`PoolError::NodeLives`] if another process has the row; [`PoolError::BadNodeName`],
    /// [`PoolError::TooManyNodes`], [`PoolError::Gone`], [`PoolError::Truncated`], [`PoolError::Io`].
    pub fn register_node(&self, name: &str, holders: &PinFile) -> Result<NodeRow, PoolError> {
        if name.is_empty() || name.len() > MAX_NODE_NAME_BYTES {
            return Err(PoolError::BadNodeName { name: name.to_owned() });
        }
        self.intact()?;
        let begun = Instant::now();
        loop {
            let lock = self.lock()?;
            match self.row_under(&lock, name, holders.holder())? {
                Row::Own(row) => return Ok(row),
                Row::Missing => return self.take_row(&lock, name, holders.holder()),
                Row::Locked if begun.elapsed() > PATIENCE => {
                    return Err(self.node_lives(name));
                }
                Row::Locked => drop(lock),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The row that `name` has with `holders`, if there is one and no agent has it now.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Truncated`], [`PoolError::Io`].
    pub fn row_of(&self, name: &str, holders: &PinFile) -> Result<Option<NodeRow>, PoolError> {
        self.intact()?;
        let lock = self.lock()?;
        match self.row_under(&lock, name, holders.holder())? {
            Row::Own(row) => Ok(Some(row)),
            Row::Missing | Row::Locked => Ok(None),
        }
    }

    /// Drops the rows of a node that never comes back, with all its pins: the chunks of removed images
    /// are used again. Rows stay whose agent has them, or of which clones are seen to live: by their
    /// locks, in `holders` or in any other file of this kernel. That of no other machine is seen, and
    /// the caller knows.
    ///
    /// # Errors
    /// [`PoolError::NoNode`]; [`PoolError::NodeLives`] if no row could be dropped;
    /// [`PoolError::Gone`], [`PoolError::Truncated`], [`PoolError::Io`].
    pub fn forget_node(
        &self,
        name: &str,
        holders: Option<&PinFile>,
    ) -> Result<Forgotten, PoolError> {
        self.intact()?;
        let lock = self.lock()?;
        let mut done = Forgotten::default();
        for (node, _, holder) in self.rows().filter(|(_, known, _)| known == name) {
            match self.take_lock_of(node)? {
                Some(row) if !has_clones(holder, holders)? => {
                    done.pins += self.free_row(&lock, &row)?;
                    done.rows += 1;
                }
                _ => done.living += 1,
            }
        }
        match done {
            Forgotten { rows: 0, living: 0, .. } => {
                Err(PoolError::NoNode { path: self.path.clone(), name: name.to_owned() })
            }
            Forgotten { rows: 0, .. } => Err(self.node_lives(name)),
            done => Ok(done),
        }
    }

    fn node_lives(&self, name: &str) -> PoolError {
        PoolError::NodeLives { path: self.path.clone(), name: name.to_owned() }
    }

    fn row_under(&self, _lock: &HeldLock, name: &str, holder: Holder) -> Result<Row, PoolError> {
        let is_it = |(_, known, other): &(NodeSlot, String, Holder)| {
            (known.as_str(), *other) == (name, holder)
        };
        let Some((node, ..)) = self.rows().find(is_it) else { return Ok(Row::Missing) };
        Ok(self.take_lock_of(node)?.map_or(Row::Locked, Row::Own))
    }

    fn take_row(&self, lock: &HeldLock, name: &str, holder: Holder) -> Result<NodeRow, PoolError> {
        let now = Boot::now();
        for (node, known, former) in self.rows() {
            let is_over = known == name && former.boot.is_over(now);
            if is_over && let Some(row) = self.take_lock_of(node)? {
                self.free_row(lock, &row)?;
            }
        }
        let row = match self.free_slot()? {
            Some(row) => row,
            None => self
                .reuse_slot(lock, now)?
                .ok_or_else(|| PoolError::TooManyNodes { path: self.path.clone() })?,
        };
        self.node_records()[row.slot.index()].write(name, holder);
        Ok(row)
    }

    fn free_slot(&self) -> Result<Option<NodeRow>, PoolError> {
        for (index, record) in self.node_records().iter().enumerate() {
            if record.header.load(Acquire) == 0
                && let Some(row) = self.take_lock_of(NodeSlot(index as u32))?
            {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// A row of this machine in which nothing is pinned, and that no agent has: its agent has ended, and
    /// no clone is in need of it.
    fn reuse_slot(&self, lock: &HeldLock, now: Boot) -> Result<Option<NodeRow>, PoolError> {
        for (node, _, Holder { boot, .. }) in self.rows() {
            let is_pinning = || self.pin_words(node).iter().any(|word| word.load(SeqCst) != 0);
            if (boot == now || boot.is_over(now))
                && let Some(row) = self.take_lock_of(node)?
                && !is_pinning()
            {
                self.free_row(lock, &row)?;
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    fn take_lock_of(&self, slot: NodeSlot) -> Result<Option<NodeRow>, PoolError> {
        let lock = HeldLock::try_take(&self.file, LockByte::node(slot))
            .map_err(PoolError::io("lock a node of", &self.path))?;
        Ok(lock.map(|lock| NodeRow { slot, _lock: lock }))
    }

    /// Frees a row, and returns how many images were pinned in it.
    fn free_row(&self, lock: &HeldLock, row: &NodeRow) -> Result<usize, PoolError> {
        let mut pins = 0;
        for word in self.pin_words(row.slot) {
            pins += usize::from(word.swap(0, SeqCst) != 0);
        }
        step();
        self.node_records()[row.slot.index()].header.store(0, SeqCst);
        step();
        self.sweep(lock)?;
        Ok(pins)
    }

    pub(crate) fn node_records(&self) -> &[NodeRecord] {
        self.map.table(NODES_AT, MAX_NODES)
    }

    /// The registered nodes, their names, and whose they are.
    fn rows(&self) -> impl Iterator<Item = (NodeSlot, String, Holder)> {
        let read = |(index, record): (usize, &NodeRecord)| {
            record.read().map(|(name, holder)| (NodeSlot(index as u32), name, holder))
        };
        self.node_records().iter().enumerate().filter_map(read)
    }

    /// The registered nodes and their names.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeSlot, String)> {
        self.rows().map(|(node, name, _)| (node, name))
    }
}

/// What there is for a name and a pin file.
enum Row {
    /// The row, locked.
    Own(NodeRow),
    /// A row that another process has.
    Locked,
    /// No row.
    Missing,
}

/// Whether clones of the owner of `holder` are seen to live.
fn has_clones(holder: Holder, here: Option<&PinFile>) -> Result<bool, PoolError> {
    match here.filter(|here| here.holder() == holder) {
        Some(here) => here.is_any_held(),
        None if holder.boot.boot == Boot::now().boot => holder.is_listed(),
        None => Ok(false),
    }
}
