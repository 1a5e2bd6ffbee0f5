//! A snapshot written anew, so that the pages that machines need lie beside each other.
//!
//! ```text
//!  before   │ ·h·· │ h··· │ ··h· │ ···· │     chunks with hot pages (h) and others
//!  after    │ hhh· │ ···· │ ···· │ ···· │     one chunk has all hot pages: the others may lie far
//! ```
//! The new image is another one, with an id of its own: it has the same memory and state at other places.

use farfork_pool::{ImageFile, Pool};
use farfork_types::{CHUNK_BYTES, PAGE_BYTES};

use super::error::VmError;
use super::import::{Imported, Progress, reserve, seal};
use super::map::PageMap;
use super::metadata::Metadata;
use super::scan::Windows;
use super::snapshot::Snapshot;
use crate::layout::DATA_AT;

/// Makes an image of the same snapshot in which these pages of the guest's memory lie together, in this order.
/// Every page is verified first. The image counts towards what `user` may have. It is there at once or not at
/// all.
///
/// # Errors
/// [`VmError::Image`]; nothing is left in the pool.
pub fn repack(
    pool: &Pool,
    user: Option<&str>,
    (snapshot, file): (&Snapshot, &ImageFile),
    hot: &[u32],
    progress: Progress<'_>,
) -> Result<Imported, VmError> {
    let raw_bytes = snapshot.map.memory_bytes();
    let mut windows = Windows::of_zeros(raw_bytes);
    for run in snapshot.map.runs() {
        let pages = run.offset / PAGE_BYTES..(run.offset + run.bytes) / PAGE_BYTES;
        pages.for_each(|page| windows.add(page));
    }
    let map = PageMap::arrange(&windows, hot);
    let stored_bytes = map.stored_bytes();
    let mut writer = pool.begin(user)?;
    let meta_bytes = reserve(&mut writer, &map, snapshot.state.len() as u64)?;
    let mut sums = vec![0; (stored_bytes / PAGE_BYTES) as usize];
    let mut done = 0;
    for run in map.runs() {
        for step in (0..run.bytes).step_by(CHUNK_BYTES as usize) {
            let bytes = (run.bytes - step).min(CHUNK_BYTES);
            let place = run.place + step;
            let to = writer.bytes_mut(DATA_AT + place..DATA_AT + place + bytes);
            snapshot.read_memory(file, run.offset + step, to)?;
            let first = (place / PAGE_BYTES) as usize;
            for (sum, page) in sums[first..].iter_mut().zip(to.chunks(PAGE_BYTES as usize)) {
                *sum = crc32c::crc32c(page);
            }
            done += bytes;
            progress("repacking", done, stored_bytes);
        }
    }
    let state = snapshot.state.clone();
    seal(&mut writer, Metadata { map, sums, state }, meta_bytes)?;
    let pool_bytes = writer.taken()?;
    let (cid, held) = writer.publish()?;
    let monitor = snapshot.monitor();
    Ok(Imported { cid, held, monitor, raw_bytes, stored_bytes, base_bytes: 0, pool_bytes })
}
