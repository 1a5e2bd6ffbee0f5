//! What a pool holds, for people and programs.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;

use farfork_types::CHUNK_BYTES;
use serde::Serialize;

use crate::error::PoolError;
use crate::ids::{ImageSlot, NodeSlot, Owner};
use crate::lock::HeldLock;
use crate::media::{self, Medium};
use crate::pool::Pool;
use crate::slots::State;

/// A pool at one moment, as far as others did not change it meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolInfo {
    /// Where it lies.
    pub path: PathBuf,
    /// What it lies on.
    pub medium: Medium,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// Bytes that images can still take.
    pub free_bytes: u64,
    /// Bytes that images hold, those being written and removed included.
    pub used_bytes: u64,
    /// The memory cgroup that pays, or that the writer pays and why.
    pub charged_to: String,
    /// What makes the pool slower than it could be.
    pub notes: Vec<String>,
    /// Everything in the image table.
    pub images: Vec<ImageInfo>,
    /// Names of the nodes that have registered.
    pub nodes: Vec<String>,
}

/// One entry of the image table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageInfo {
    /// The id, 32 hexadecimal digits.
    pub cid: String,
    /// What becomes of it.
    pub state: ImageState,
    /// Bytes of the chunks that it holds.
    pub bytes: u64,
    /// Bytes of its side tables, which show how clones use its pages.
    pub table_bytes: u64,
    /// Names of the nodes that pin it.
    pub pinned_by: Vec<String>,
}

/// What becomes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageState {
    /// Its writer lives.
    Writing,
    /// Its writer died; its chunks come back with the next writer or check.
    Abandoned,
    /// It is visible.
    Published,
    /// It is removed, but a node pins it.
    Removed,
}

impl Pool {
    /// Looks at the whole pool without changing it.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Truncated`], [`PoolError::Io`].
    pub fn info(&self) -> Result<PoolInfo, PoolError> {
        self.intact()?;
        let held = self.bytes_by_owner();
        let free_bytes = held.get(&0).copied().unwrap_or(0);
        let used_bytes = u64::from(self.layout.data_chunks()) * CHUNK_BYTES - free_bytes;
        Ok(PoolInfo {
            path: self.path.clone(),
            medium: self.medium,
            size_bytes: self.layout.size(),
            free_bytes,
            used_bytes,
            charged_to: self.account.describe(),
            notes: self.notes()?,
            images: self.image_infos(&held)?,
            nodes: self.nodes().map(|(_, name)| name).collect(),
        })
    }

    /// The registered nodes and their names.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Truncated`].
    pub fn node_names(&self) -> Result<HashMap<NodeSlot, String>, PoolError> {
        self.intact()?;
        Ok(self.nodes().collect())
    }

    fn bytes_by_owner(&self) -> HashMap<u64, u64> {
        let mut held = HashMap::new();
        for (word, run) in self.chunks().runs() {
            *held.entry(word).or_default() += run.bytes();
        }
        held
    }

    fn notes(&self) -> Result<Vec<String>, PoolError> {
        let look = PoolError::io("read the mounts that hold", &self.path);
        let small =
            self.medium == Medium::Tmpfs && !media::has_huge_pages(&self.file).map_err(look)?;
        let note = "the tmpfs is not mounted with huge=always: clones start tens of times slower";
        Ok(small.then(|| note.to_owned()).into_iter().collect())
    }

    fn image_infos(&self, held: &HashMap<u64, u64>) -> Result<Vec<ImageInfo>, PoolError> {
        let names: HashMap<_, _> = self.nodes().collect();
        let mut infos = Vec::new();
        for (index, record) in self.images().iter().enumerate() {
            let slot = ImageSlot(index as u32);
            let Some((generation, state)) = State::of_word(record.state.load(SeqCst)) else {
                continue;
            };
            let Some(state) = self.image_state(slot, state)? else { continue };
            let owner = Owner { slot, generation };
            infos.push(ImageInfo {
                cid: record.cid().to_string(),
                state,
                bytes: held.get(&owner.word()).copied().unwrap_or(0),
                table_bytes: held.get(&owner.side_word()).copied().unwrap_or(0),
                pinned_by: self
                    .pinned_by(owner)
                    .filter_map(|node| names.get(&node).cloned())
                    .collect(),
            });
        }
        Ok(infos)
    }

    fn image_state(&self, slot: ImageSlot, state: State) -> Result<Option<ImageState>, PoolError> {
        Ok(Some(match state {
            State::Free => return Ok(None),
            State::Writing if self.has_writer(slot)? => ImageState::Writing,
            State::Writing => ImageState::Abandoned,
            State::Published => ImageState::Published,
            State::Removed => ImageState::Removed,
        }))
    }

    /// What keeps the pool from being destroyed, in words.
    pub(crate) fn users(&self, _lock: &HeldLock) -> Result<Vec<String>, PoolError> {
        let mut users = Vec::new();
        for image in self.info()?.images {
            if image.state == ImageState::Writing {
                users.push(format!("image {} is being written", image.cid));
            }
            for node in image.pinned_by {
                users.push(format!("node {node} runs clones of image {}", image.cid));
            }
        }
        Ok(users)
    }
}
