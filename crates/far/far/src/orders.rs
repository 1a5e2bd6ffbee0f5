//! In which order clones needed pages of images whose far parts lie on another node.
//!
//! ```text
//!  RUN/far/NAME/orders/CID    numbers of pages, 4 bytes each, little-endian: those of the side tables
//! ```
//! The far process notes pages of reads by files that an agent has opened for clones ([`FOR_CLONES`]): commands that
//! compare or export an image read it from one end to the other. The agent takes the file away and adds it to the
//! order in the image's own pool.

use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use farfork_image::layout::DATA_AT;
use farfork_sys::sync::locked;
use farfork_types::{Cid, PAGE_BYTES};

/// A flag of files that are opened for clones. It means nothing else where nothing is written.
pub const FOR_CLONES: i32 = libc::O_SYNC;
/// A flag of files that are read in advance. It is not all of [`FOR_CLONES`].
pub const IN_ADVANCE: i32 = libc::O_DSYNC;
/// More than that of an image is not noted.
pub const MOST_PAGES: usize = 1 << 18;

/// The pages of a read, by the numbers of the side tables.
pub fn pages(offset: u64, bytes: u64) -> impl Iterator<Item = u32> {
    let number = |at: u64| u32::try_from(at.checked_sub(DATA_AT)? / PAGE_BYTES).ok();
    (offset..offset.saturating_add(bytes)).step_by(PAGE_BYTES as usize).filter_map(number)
}

/// Notes pages.
pub struct Orders {
    directory: PathBuf,
    seen: Mutex<HashMap<Cid, HashSet<u32>>>,
}

impl Orders {
    /// In this directory, which is made when there is something to note.
    pub fn new(directory: PathBuf) -> Orders {
        Orders { directory, seen: Mutex::default() }
    }

    /// Notes those pages of a read that were not noted before. What cannot be written is lost: it serves speed
    /// alone.
    pub fn note(&self, cid: Cid, offset: u64, bytes: u64) {
        let mut all = locked(&self.seen);
        let seen = all.entry(cid).or_default();
        let new: Vec<u32> = pages(offset, bytes)
            .filter(|page| seen.len() < MOST_PAGES && seen.insert(*page))
            .collect();
        if !new.is_empty() {
            // While this is locked, so that reads at once are noted one after the other.
            let _ = self.append(cid, &new);
        }
    }

    fn append(&self, cid: Cid, pages: &[u32]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        let path = self.directory.join(cid.to_string());
        let mut file = match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
                options.open(&path)?
            }
            opened => opened?,
        };
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
        file.write_all(&bytes)
    }
}

/// The images for which something is noted in a directory.
pub fn noted(directory: &Path) -> Vec<Cid> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Takes away what is noted of an image.
pub fn take(directory: &Path, cid: Cid) -> Vec<u32> {
    let (path, taken) = (directory.join(cid.to_string()), directory.join(format!("{cid}.taken")));
    // What is noted from here on has a file of its own.
    if fs::rename(&path, &taken).is_err() {
        return Vec::new();
    }
    let bytes = fs::read(&taken).unwrap_or_default();
    let _ = fs::remove_file(&taken);
    bytes.as_chunks::<4>().0.iter().map(|page| u32::from_le_bytes(*page)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_noted_once_in_the_order_of_their_reads() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("orders");
        let (cid, orders) = (Cid::from_bytes([7; 16]), Orders::new(directory.clone()));
        assert_eq!(noted(&directory), []);
        assert_eq!(take(&directory, cid), [0; 0]);
        // Header and metadata are not pages of a clone.
        orders.note(cid, 0, DATA_AT);
        assert_eq!(noted(&directory), []);
        orders.note(cid, DATA_AT + 40 * PAGE_BYTES, 2 * PAGE_BYTES);
        orders.note(cid, DATA_AT + 3 * PAGE_BYTES, PAGE_BYTES);
        orders.note(cid, DATA_AT + 41 * PAGE_BYTES, 2 * PAGE_BYTES);
        assert_eq!(noted(&directory), [cid]);
        assert_eq!(take(&directory, cid), [40, 41, 3, 42]);
        assert_eq!(take(&directory, cid), [0; 0]);
        orders.note(cid, DATA_AT, PAGE_BYTES);
        orders.note(cid, DATA_AT + 40 * PAGE_BYTES, PAGE_BYTES);
        assert_eq!(take(&directory, cid), [0]);
    }
}
