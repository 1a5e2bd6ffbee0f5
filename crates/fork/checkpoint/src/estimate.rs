//! How much room processes will take, estimated while they run.
//!
//! Joining the pool's memory cgroup takes the kernel 5 to 15 ms, and clearing fresh memory takes as
//! long as the copy. With an estimate, both happen while the processes run. The estimate decides
//! nothing but when the room is taken.

use farfork_image::model::Memory;

use crate::ancestor::Ancestor;
use crate::error::CheckpointError;
use crate::maps;
use crate::memory::AddressSpace;
use crate::refuse::Refusals;
use crate::shared::Objects;
use crate::tree::{Target, children};

/// Chunks that the image of `target` would take now, and some for what is to come; none if
/// mappings are refused anyway.
pub fn chunks(target: Target) -> Result<Option<u32>, CheckpointError> {
    let (mut objects, mut refusals) = (Objects::default(), Refusals::default());
    let mut mapped = Vec::new();
    for pid in pids(target)? {
        // Empty of one that has ended.
        let mappings = maps::read(pid)?;
        let ancestor = Ancestor::find(pid, &mappings)?;
        objects.add_process(pid, &mappings, ancestor.as_ref(), &mut refusals)?;
        mapped.push((pid, mappings, ancestor));
    }
    let mut end = 0;
    for (pid, mappings, ancestor) in &mapped {
        let ancestor = ancestor.as_ref();
        let space = AddressSpace::look(*pid, mappings, ancestor, &objects, &mut refusals)?;
        // Which keys the process has allocated only it can be asked for.
        let mut memory = Memory { protection_keys: u32::MAX, ..Memory::default() };
        space.put_into(&mut memory, end);
        end = memory.stored.end_chunk().max(end);
    }
    if !refusals.into_list().is_empty() {
        return Ok(None);
    }
    let content = objects.lay_out()?.content(end);
    Ok(Some(with_growth(end.max(content.end_chunk()) as u32, mapped.len() as u32)))
}

fn pids(target: Target) -> Result<Vec<i32>, CheckpointError> {
    let mut pids = vec![target.pid()];
    if let Target::Tree(_) = target {
        let mut next = 0;
        while next < pids.len() {
            pids.extend(children(pids[next])?);
            next += 1;
        }
    }
    Ok(pids)
}

/// A process that runs goes on to touch memory: a window more may come at the edges of heap and
/// stack, and in a large process some more.
fn with_growth(chunks: u32, processes: u32) -> u32 {
    chunks + 2 * processes + chunks / 64
}
