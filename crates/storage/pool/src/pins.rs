//! Pins: what keeps the chunks of an image where they are while a node's clones map them.
//!
//! 1. A node has one word per image slot: the generation that it pins, or 0. Only the node's agent
//!    writes it; any process reads it.
//! 2. `pin` writes the word and then reads the state of the image; `remove` writes the state and
//!    then reads the words. In the total order of these accesses one of the two sees the other.
//! 3. The process that clears the last word of a removed image gives its chunks back.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use farfork_types::Cid;

use crate::error::PoolError;
use crate::failpoint::step;
use crate::ids::{ImageSlot, NodeSlot, Owner};
use crate::layout::{MAX_IMAGES, MAX_NODES, PINS_AT};
use crate::pinfile::PinFile;
use crate::pool::Pool;
use crate::slots::State;

impl Pool {
    /// Keeps the chunks of `cid` from reuse until `node` unpins it. Pins do not count: a second
    /// one changes nothing.
    ///
    /// # Errors
    /// [`PoolError::NoImage`] if the image is not published, [`PoolError::Gone`],
    /// [`PoolError::Truncated`], [`PoolError::Io`].
    pub fn pin(&self, node: NodeSlot, cid: Cid) -> Result<(), PoolError> {
        self.intact()?;
        let owner = self.lookup(cid, &[State::Published]).ok_or_else(|| self.no_image(cid))?;
        let word = &self.pin_words(node)[owner.slot.index()];
        step();
        let before = word.swap(owner.generation.into(), SeqCst);
        step();
        if self.state(owner) == Some(State::Published) {
            return Ok(());
        }
        // Clones that run on an earlier pin keep it.
        if before != u64::from(owner.generation) {
            self.clear_pin(node, owner)?;
        }
        Err(self.no_image(cid))
    }

    /// Lets go of `cid`; gives its chunks back if it was removed and this was the last pin.
    ///
    /// # Errors
    /// [`PoolError::NoImage`], [`PoolError::Gone`], [`PoolError::Truncated`], [`PoolError::Io`].
    pub fn unpin(&self, node: NodeSlot, cid: Cid) -> Result<(), PoolError> {
        self.intact()?;
        let states = [State::Published, State::Removed];
        let owner = self.lookup(cid, &states).ok_or_else(|| self.no_image(cid))?;
        self.clear_pin(node, owner)
    }

    /// Clears the pins of `node` that no living holder in `holders` backs, and returns their
    /// slots. For an agent that starts, before it starts clones.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Truncated`], [`PoolError::Io`].
    pub fn reconcile(
        &self,
        node: NodeSlot,
        holders: &PinFile,
    ) -> Result<Vec<ImageSlot>, PoolError> {
        self.intact()?;
        let mut cleared = Vec::new();
        for (index, word) in self.pin_words(node).iter().enumerate() {
            let slot = ImageSlot(index as u32);
            let generation = word.load(SeqCst) as u32;
            if generation != 0 && !holders.is_held(slot)? {
                self.clear_pin(node, Owner { slot, generation })?;
                cleared.push(slot);
            }
        }
        Ok(cleared)
    }

    fn clear_pin(&self, node: NodeSlot, owner: Owner) -> Result<(), PoolError> {
        self.pin_words(node)[owner.slot.index()].store(0, SeqCst);
        step();
        self.settle(owner).map(|_| ())
    }

    pub(crate) fn pin_words(&self, node: NodeSlot) -> &[AtomicU64] {
        let row = (node.index() * MAX_IMAGES * size_of::<AtomicU64>()) as u64;
        self.map.table(PINS_AT + row, MAX_IMAGES)
    }

    /// The nodes that pin an image.
    pub(crate) fn pinned_by(&self, owner: Owner) -> impl Iterator<Item = NodeSlot> {
        let pins = move |node: &NodeSlot| {
            let word = self.pin_words(*node)[owner.slot.index()].load(SeqCst);
            word == u64::from(owner.generation)
        };
        (0..MAX_NODES as u32).map(NodeSlot).filter(pins)
    }

    pub(crate) fn is_pinned(&self, owner: Owner) -> bool {
        self.pinned_by(owner).next().is_some()
    }
}
