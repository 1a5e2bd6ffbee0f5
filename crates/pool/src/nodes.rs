//! The table of nodes.

use std::sync::atomic::Ordering::{Acquire, SeqCst};

use crate::error::PoolError;
use crate::failpoint::step;
use crate::ids::NodeSlot;
use crate::layout::{MAX_NODE_NAME_BYTES, MAX_NODES, NODES_AT, NodeRecord};
use crate::pool::Pool;
use crate::words;

impl NodeRecord {
    /// The name; `None` if the record is free or does not fit its checksum.
    pub(crate) fn name(&self) -> Option<String> {
        let header = self.header.load(Acquire);
        let bytes = words::load_bytes(&self.name, header as u32 as usize);
        (header != 0 && header == name_header(&bytes)).then(|| String::from_utf8(bytes).ok())?
    }

    pub(crate) fn is_damaged(&self) -> bool {
        self.header.load(Acquire) != 0 && self.name().is_none()
    }
}

fn name_header(name: &[u8]) -> u64 {
    u64::from(crc32c::crc32c(name)) << 32 | name.len() as u64
}

impl Pool {
    /// The slot of the node `name`, which is taken if it has none. Only one process at a time, the
    /// node's agent, may use the slot: its pins have one writer.
    ///
    /// # Errors
    /// [`PoolError::BadNodeName`], [`PoolError::TooManyNodes`], [`PoolError::Gone`],
    /// [`PoolError::Truncated`], [`PoolError::Io`].
    pub fn register_node(&self, name: &str) -> Result<NodeSlot, PoolError> {
        if name.is_empty() || name.len() > MAX_NODE_NAME_BYTES {
            return Err(PoolError::BadNodeName { name: name.to_owned() });
        }
        self.intact()?;
        let _lock = self.lock()?;
        if let Some(known) = self.nodes().find(|(_, known)| known == name) {
            return Ok(known.0);
        }
        let records = self.node_records();
        let free = records.iter().position(|record| record.header.load(Acquire) == 0);
        let index = free.ok_or_else(|| PoolError::TooManyNodes { path: self.path.clone() })?;
        words::store_bytes(&records[index].name, name.as_bytes());
        step();
        records[index].header.store(name_header(name.as_bytes()), SeqCst);
        step();
        Ok(NodeSlot(index as u32))
    }

    /// Frees the slot of a node that never comes back, with all its pins. The caller knows that
    /// no clone lives there any more: the chunks of removed images are used again.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Truncated`], [`PoolError::Io`].
    pub fn forget_node(&self, node: NodeSlot) -> Result<(), PoolError> {
        self.intact()?;
        let lock = self.lock()?;
        for word in self.pin_words(node) {
            word.store(0, SeqCst);
        }
        step();
        self.node_records()[node.index()].header.store(0, SeqCst);
        step();
        self.sweep(&lock)
    }

    pub(crate) fn node_records(&self) -> &[NodeRecord] {
        self.map.table(NODES_AT, MAX_NODES)
    }

    /// The registered nodes and their names.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeSlot, String)> {
        let named = |(index, record): (usize, &NodeRecord)| {
            record.name().map(|name| (NodeSlot(index as u32), name))
        };
        self.node_records().iter().enumerate().filter_map(named)
    }
}
