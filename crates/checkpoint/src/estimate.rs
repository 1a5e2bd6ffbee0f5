//! How much room a process will take, told while it runs.
//!
//! The kernel clears memory before it gives it away, and moves whoever is charged for it between
//! cgroups at its leisure: both take longer than anything else in a checkpoint but the copy. With
//! an estimate they come before the freeze. It decides nothing but when the room is taken.

use crate::ancestor::Ancestor;
use crate::error::CheckpointError;
use crate::refuse::Refusals;
use crate::{maps, memory};

/// Windows that the image of `pid` would hold now, and some for those to come; none if its
/// mappings are refused anyway.
pub fn windows(pid: i32) -> Result<Option<u32>, CheckpointError> {
    let mappings = maps::read(pid)?;
    let ancestor = Ancestor::of(&mappings)?;
    let mut refusals = Refusals::default();
    let regions = memory::regions(&mappings, ancestor.as_ref(), &mut refusals);
    if !refusals.into_list().is_empty() {
        return Ok(None);
    }
    let guards = memory::guards(pid, &regions.all)?;
    let runs = memory::runs(pid, &regions, &guards)?;
    Ok(Some(with_growth(memory::windows(&runs).len() as u32)))
}

/// A process that runs goes on to touch memory: one window more may come at the edge of each of
/// heap and stack, and in a large process some more.
fn with_growth(windows: u32) -> u32 {
    windows + 2 + windows / 64
}
