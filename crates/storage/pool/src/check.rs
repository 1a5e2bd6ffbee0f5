//! Verifies every invariant and gives back what the dead left.

use std::sync::atomic::Ordering::SeqCst;

use farfork_types::{CHUNK_BYTES, Cid};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use serde::{Serialize, Serializer};

use crate::error::PoolError;
use crate::ids::{Extent, ImageSlot, NodeSlot, Owner};
use crate::layout::{MAX_IMAGES, MAX_NODES};
use crate::lock::{self, HeldLock};
use crate::media::Medium;
use crate::pool::Pool;
use crate::slots::State;
use crate::superblock::Superblock;

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Published images that are sound.
    pub images: usize,
    /// Bytes free afterwards.
    pub free_bytes: u64,
    /// Everything out of the ordinary.
    pub findings: Vec<Finding>,
}

impl CheckReport {
    /// Whether nothing is broken. What dead writers and removed images left is not damage.
    pub fn is_sound(&self) -> bool {
        !self.findings.iter().any(Finding::is_damage)
    }
}

/// One thing out of the ordinary. The message says what was or is to be done about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "found", rename_all = "snake_case")]
pub enum Finding {
    /// A writer died.
    #[error("the writer of image {cid} died: {bytes} bytes given back")]
    DeadWriter {
        /// The image it wrote.
        #[serde(serialize_with = "as_text")]
        cid: Cid,
        /// Bytes it held.
        bytes: u64,
    },
    /// A removed image was not given back yet.
    #[error("image {cid} was removed and is not pinned: {bytes} bytes given back")]
    LeftByRemoval {
        /// The image.
        #[serde(serialize_with = "as_text")]
        cid: Cid,
        /// Bytes it held.
        bytes: u64,
    },
    /// Chunks had an owner that does not exist.
    #[error("{extent:?} belonged to no image: given back")]
    Orphan {
        /// The chunks.
        extent: Extent,
    },
    /// A free chunk held data.
    #[error("{extent:?} was free but held data: emptied")]
    UncleanFree {
        /// The chunks.
        extent: Extent,
    },
    /// The records of an image do not fit their checksum, or its chunks belong to another image.
    #[error("the records of image {cid} are damaged: remove it and take a new checkpoint")]
    DamagedImage {
        /// The image.
        #[serde(serialize_with = "as_text")]
        cid: Cid,
    },
    /// The process that was about to make a side table died.
    #[error("the process that made an access table of image {cid} died: {extent:?} given back")]
    LostTable {
        /// The image.
        #[serde(serialize_with = "as_text")]
        cid: Cid,
        /// The chunks.
        extent: Extent,
    },
    /// Side tables cannot be read. What they held about hot pages is lost.
    #[error(
        "the access tables of image {cid} are damaged: {}",
        if *is_dropped { "dropped, profile it again" } else { "end its clones and check again" }
    )]
    DamagedTables {
        /// The image.
        #[serde(serialize_with = "as_text")]
        cid: Cid,
        /// Whether they are gone. As long as a node pins the image it may write to them.
        is_dropped: bool,
    },
    /// A slot has a state that does not exist.
    #[error("the state of {slot:?} is damaged: make a new pool when you can")]
    DamagedSlot {
        /// The slot.
        slot: ImageSlot,
    },
    /// The record of a node does not fit its checksum.
    #[error("the record of {node:?} is damaged: make a new pool when you can")]
    DamagedNode {
        /// The node.
        node: NodeSlot,
    },
    /// A pin of an image that is long gone. It keeps nothing.
    #[error(
        "{node:?} pins an image in {slot:?} that is gone: its agent clears that when it starts"
    )]
    StalePin {
        /// The node.
        node: NodeSlot,
        /// Where the image was.
        slot: ImageSlot,
    },
}

impl Finding {
    /// Whether something is broken that no crash explains.
    pub fn is_damage(&self) -> bool {
        !matches!(
            self,
            Finding::DeadWriter { .. }
                | Finding::LeftByRemoval { .. }
                | Finding::LostTable { .. }
                | Finding::StalePin { .. }
        )
    }
}

fn as_text<S: Serializer>(cid: &Cid, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(cid)
}

impl Pool {
    /// Verifies every invariant and checksum, and gives back what dead writers and removed images
    /// without pins hold.
    ///
    /// # Errors
    /// As [`open`](Pool::open): without a sound superblock there is nothing to check.
    pub fn check(&self) -> Result<CheckReport, PoolError> {
        self.intact()?;
        Superblock::load(&self.file, &self.path)?;
        let lock = self.lock()?;
        let mut findings = self.check_nodes();
        findings.extend(self.check_leftovers(&lock)?);
        let images = self.check_images(&mut findings);
        findings.extend(self.check_tables(&lock)?);
        findings.extend(self.check_owners(&lock)?);
        findings.extend(self.check_free(&lock)?);
        let free_bytes = u64::from(self.chunks().free_chunks()) * CHUNK_BYTES;
        Ok(CheckReport { images, free_bytes, findings })
    }

    fn check_nodes(&self) -> Vec<Finding> {
        let all = (0..MAX_NODES as u32).map(NodeSlot);
        let damaged = all
            .clone()
            .filter(|node| self.node_records()[node.index()].is_damaged())
            .map(|node| Finding::DamagedNode { node });
        let stale = all.flat_map(|node| {
            let gone = move |slot: &ImageSlot| self.is_stale_pin(node, *slot);
            let slots = (0..MAX_IMAGES as u32).map(ImageSlot);
            slots.filter(gone).map(move |slot| Finding::StalePin { node, slot })
        });
        damaged.chain(stale).collect()
    }

    fn is_stale_pin(&self, node: NodeSlot, slot: ImageSlot) -> bool {
        let generation = self.pin_words(node)[slot.index()].load(SeqCst) as u32;
        let state = self.state(Owner { slot, generation });
        generation != 0 && !matches!(state, Some(State::Published | State::Removed))
    }

    fn check_leftovers(&self, lock: &HeldLock) -> Result<Vec<Finding>, PoolError> {
        let mut findings = Vec::new();
        for (owner, state) in self.leftovers(lock)? {
            let cid = self.image(owner.slot).cid();
            let bytes = u64::from(self.reclaim(lock, owner)?) * CHUNK_BYTES;
            findings.push(match state {
                State::Writing => Finding::DeadWriter { cid, bytes },
                _ => Finding::LeftByRemoval { cid, bytes },
            });
        }
        Ok(findings)
    }

    /// Verifies the image table; returns how many published images are sound.
    fn check_images(&self, findings: &mut Vec<Finding>) -> usize {
        let mut sound = 0;
        for (index, record) in self.images().iter().enumerate() {
            let slot = ImageSlot(index as u32);
            match State::of_word(record.state.load(SeqCst)) {
                None => findings.push(Finding::DamagedSlot { slot }),
                Some((generation, State::Published)) => {
                    if self.is_sound(Owner { slot, generation }) {
                        sound += 1;
                    } else {
                        findings.push(Finding::DamagedImage { cid: record.cid() });
                    }
                }
                Some(_) => {}
            }
        }
        sound
    }

    /// The records fit their checksum and every chunk is the image's, and no others are.
    fn is_sound(&self, owner: Owner) -> bool {
        let Some(image) = self.read_image(owner) else { return false };
        let ours = |run: &Extent| {
            let records = self.chunks().of_run(*run);
            records.iter().all(|record| record.owner.load(SeqCst) == owner.word())
        };
        let held = self.chunks().runs().filter(|(word, _)| *word == owner.word());
        let held: u32 = held.map(|(_, run)| run.chunks).sum();
        let listed: u32 = image.extents.iter().map(|run| run.chunks).sum();
        image.extents.iter().all(ours) && held == listed
    }

    fn check_tables(&self, lock: &HeldLock) -> Result<Vec<Finding>, PoolError> {
        let mut findings = Vec::new();
        for (index, record) in self.images().iter().enumerate() {
            let Some((generation, State::Published)) = State::of_word(record.state.load(SeqCst))
            else {
                continue;
            };
            let owner = Owner { slot: ImageSlot(index as u32), generation };
            findings.extend(self.check_tables_of(lock, owner, record.cid())?);
        }
        Ok(findings)
    }

    fn check_tables_of(
        &self,
        lock: &HeldLock,
        owner: Owner,
        cid: Cid,
    ) -> Result<Vec<Finding>, PoolError> {
        if self.linked_tables(owner).is_some() {
            let lost = self.give_back_lost_tables(lock, owner)?.into_iter();
            return Ok(lost.map(|extent| Finding::LostTable { cid, extent }).collect());
        }
        let is_dropped = !self.is_pinned(owner);
        if is_dropped {
            self.drop_tables(lock, owner)?;
        }
        Ok(vec![Finding::DamagedTables { cid, is_dropped }])
    }

    fn check_owners(&self, lock: &HeldLock) -> Result<Vec<Finding>, PoolError> {
        let orphans = self.chunks().runs().filter(|(word, _)| *word != 0 && self.is_nobody(*word));
        let orphans: Vec<_> = orphans.map(|(_, run)| run).collect();
        for run in &orphans {
            self.give_back(lock, *run)?;
        }
        Ok(orphans.into_iter().map(|extent| Finding::Orphan { extent }).collect())
    }

    fn is_nobody(&self, word: u64) -> bool {
        let owner = Owner::from_word(word).filter(|owner| owner.slot.index() < MAX_IMAGES);
        owner.is_none_or(|owner| matches!(self.state(owner), None | Some(State::Free)))
    }

    fn check_free(&self, _lock: &HeldLock) -> Result<Vec<Finding>, PoolError> {
        let mut unclean = Vec::new();
        for (word, run) in self.chunks().runs() {
            if word == 0 && self.has_data(run)? {
                self.wipe(run)?;
                unclean.push(Finding::UncleanFree { extent: run });
            }
        }
        Ok(unclean)
    }

    /// Whether an extent holds written bytes, as far as the medium shows without being touched.
    fn has_data(&self, run: Extent) -> Result<bool, PoolError> {
        match self.medium {
            Medium::Tmpfs => self.next_data(run.offset).map(|data| data < run.end()),
            Medium::Dax | Medium::Device => {
                Ok(self.map.bytes(run.offset, run.bytes()).iter().any(|byte| *byte != 0))
            }
            Medium::Hugetlbfs | Medium::Other => Ok(false),
        }
    }

    fn next_data(&self, offset: u64) -> Result<u64, PoolError> {
        let seek =
            lock::reopen(&self.file, OFlags::RDONLY).and_then(|fresh| {
                match rustix::fs::seek(&fresh, SeekFrom::Data(offset)) {
                    Err(Errno::NXIO) => Ok(u64::MAX),
                    found => Ok(found?),
                }
            });
        seek.map_err(PoolError::io("look for data in", &self.path))
    }
}
