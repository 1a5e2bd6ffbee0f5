//! How much room a process will take, told while it runs.
//!
//! The kernel clears memory before it gives it away, and moves whoever is charged for it between
//! cgroups at its leisure: both take longer than anything else in a checkpoint but the copy. With
//! an estimate they come before the freeze. It decides nothing but when the room is taken.

use crate::ancestor::Ancestor;
use crate::error::CheckpointError;
use crate::refuse::Refusals;
use crate::shared::Objects;
use crate::{maps, memory};

/// Chunks that the image of `pid` would take now, and some for what is to come; none if its
/// mappings are refused anyway.
pub fn chunks(pid: i32) -> Result<Option<u32>, CheckpointError> {
    let mappings = maps::read(pid)?;
    let ancestor = Ancestor::of(&mappings)?;
    let mut refusals = Refusals::default();
    let objects = Objects::find(pid, &mappings, &mut refusals)?;
    let regions = memory::regions(pid, &mappings, ancestor.as_ref(), &objects, &mut refusals);
    if !refusals.into_list().is_empty() {
        return Ok(None);
    }
    let guards = memory::guards(pid, &regions.all)?;
    let runs = memory::runs(pid, &regions, &guards)?;
    let memory = memory::memory(regions.all, &runs, guards, (0, 0));
    let content = objects.lay_out(pid)?.content(memory.stored.end_chunk());
    Ok(Some(with_growth(memory.stored.end_chunk().max(content.end_chunk()) as u32)))
}

/// A process that runs goes on to touch memory: a window more may come at the edges of heap and
/// stack, and in a large process some more.
fn with_growth(chunks: u32) -> u32 {
    chunks + 2 + chunks / 64
}
