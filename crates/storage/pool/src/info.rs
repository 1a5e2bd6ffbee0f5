//! What a pool holds, for people and programs.

use std::collections::HashMap;
use std::path::PathBuf;

use farfork_types::Cid;
use serde::Serialize;

use crate::error::PoolError;
use crate::layout::{REMOVED, USERS};
use crate::lock::{self, HeldLock, LockByte};
use crate::media::{self, Medium};
use crate::pool::Pool;
use crate::users::UserInfo;

/// A pool at one moment, as far as others did not change it meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolInfo {
    /// Where it lies.
    pub path: PathBuf,
    /// What it lies on.
    pub medium: Medium,
    /// Bytes that images can take in all.
    pub size_bytes: u64,
    /// Bytes that images can still take.
    pub free_bytes: u64,
    /// Bytes that are taken.
    pub used_bytes: u64,
    /// Bytes of these that no listed image or region has: of images that are being written, that are removed but
    /// still mapped by clones, and of the pool's own files. Known where the pool is a mount of its own.
    pub unlisted_bytes: u64,
    /// The memory cgroup that pays, or that the writer pays and why.
    pub charged_to: String,
    /// What makes the pool slower than it could be.
    pub notes: Vec<String>,
    /// All images.
    pub images: Vec<ImageInfo>,
    /// Users that have images, regions or limits.
    pub users: Vec<UserInfo>,
    /// Names of the nodes that have registered.
    pub nodes: Vec<String>,
}

/// One image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageInfo {
    /// The id, 32 hexadecimal digits.
    pub cid: String,
    /// What becomes of it.
    pub state: ImageState,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Bytes of its side tables, which show how clones use its pages.
    pub table_bytes: u64,
    /// The user that it counts towards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Names of the nodes that pin it.
    pub pinned_by: Vec<String>,
}

/// What becomes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageState {
    /// It is visible.
    Published,
    /// It is removed, but a node pins it, on a medium that several kernels may share.
    Removed,
}

impl Pool {
    /// Looks at the whole pool without changing it.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Io`].
    pub fn info(&self) -> Result<PoolInfo, PoolError> {
        self.intact()?;
        let images = self.image_infos()?;
        let (size_bytes, free_bytes) = self.space()?;
        let used_bytes = size_bytes.saturating_sub(free_bytes);
        let of_images: u64 = images.iter().map(|image| image.bytes + image.table_bytes).sum();
        let listed = of_images + self.bytes_of_regions()?;
        let unlisted_bytes = if self.is_own_mount { used_bytes.saturating_sub(listed) } else { 0 };
        let mut notes = self.notes()?;
        let mut users = Vec::new();
        for user in self.users()? {
            match self.user_info(&user) {
                // What else there is can be shown all the same.
                Err(error @ (PoolError::DamagedQuota { .. } | PoolError::Misplaced { .. })) => {
                    notes.push(error.to_string())
                }
                info => users.push(info?),
            }
        }
        let mut nodes: Vec<String> = self.nodes()?.into_iter().map(|node| node.name).collect();
        nodes.sort();
        Ok(PoolInfo {
            path: self.path().to_owned(),
            medium: self.medium,
            size_bytes,
            free_bytes,
            used_bytes,
            unlisted_bytes,
            charged_to: self.account.describe(),
            notes,
            images,
            users,
            nodes,
        })
    }

    fn notes(&self) -> Result<Vec<String>, PoolError> {
        let look = PoolError::io("read the mounts that hold", self.path());
        let small = self.medium == Medium::Tmpfs
            && !media::has_huge_pages(self.directory.fd()).map_err(look)?;
        let note = "the tmpfs is not mounted with huge=always: clones start tens of times slower";
        let uncached = "it was made on a DAX file system, which is mounted without DAX: clones map it \
                        through the page cache, and removed images still wait for the pins of all nodes";
        let is_other = self.is_shared && self.medium == Medium::Other;
        let notes = [small.then_some(note), is_other.then_some(uncached)];
        Ok(notes.into_iter().flatten().map(str::to_owned).collect())
    }

    fn image_infos(&self) -> Result<Vec<ImageInfo>, PoolError> {
        let failed = || self.directory.failed("look at the images of", "");
        let mut pins: HashMap<Cid, Vec<String>> = HashMap::new();
        for node in self.nodes()? {
            for cid in node.pins.iter().flatten() {
                pins.entry(*cid).or_default().push(node.name.clone());
            }
        }
        let mut users: HashMap<Cid, String> = HashMap::new();
        for user in self.users()? {
            users.extend(self.owned(&user)?.into_iter().map(|cid| (cid, user.clone())));
        }
        let mut infos = Vec::new();
        let mut add = |cid: Cid, state, (bytes, table_bytes)| {
            infos.push(ImageInfo {
                cid: cid.to_string(),
                state,
                bytes,
                table_bytes,
                user: users.remove(&cid),
                pinned_by: pins.remove(&cid).unwrap_or_default(),
            });
        };
        let mut published = self.images()?;
        published.sort_by_key(|cid| cid.to_bytes());
        for cid in published {
            if let Some(taken) = self.taken(cid).map_err(failed())? {
                add(cid, ImageState::Published, taken);
            }
        }
        for name in self.directory.list(REMOVED).map_err(failed())? {
            let found = self.directory.look(&format!("{REMOVED}/{name}")).map_err(failed())?;
            if let (Ok(cid), Some(found)) = (name.parse(), found) {
                add(cid, ImageState::Removed, (found.st_blocks as u64 * 512, 0));
            }
        }
        Ok(infos)
    }

    /// What keeps the pool from being destroyed, in words.
    pub(crate) fn uses(&self, _lock: &HeldLock) -> Result<Vec<String>, PoolError> {
        let mut uses = Vec::new();
        let is_written = lock::is_held(&self.superblock, LockByte::WRITERS);
        if is_written.map_err(self.directory.failed("look for writers of", USERS))? {
            uses.push("an image is being written".to_owned());
        }
        uses.extend(self.uses_of_regions()?);
        for node in self.nodes()? {
            let name = &node.name;
            let pins = node.pins.iter().flatten();
            uses.extend(pins.map(|cid| format!("node {name} runs clones of image {cid}")));
        }
        Ok(uses)
    }
}
