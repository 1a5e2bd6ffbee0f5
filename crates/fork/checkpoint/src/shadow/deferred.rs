//! Most of what there is to know of a process is in its shadow, which holds still while the process goes on:
//! which pages have content, flags of mappings, what is mounted. The kernel takes longer to show it than to
//! fork, since it looks at each page.
//!
//! Before the process goes on, the shadow's mappings are compared with the process's, so that nothing is
//! missing that a fork does not inherit (`MADV_DONTFORK`). A process with locked memory, shared memory that
//! it writes, or an image of a pool is looked at as a whole while it stands still, and so is one whose
//! shadow turns out to lack content (`MADV_WIPEONFORK`).

use std::time::{Duration, Instant};

use farfork_image::model::Region;
use farfork_sys::status::Status;

use super::parts::{is_inherited, parts};
use super::{Prepared, Shadow, forked};
use crate::bounds;
use crate::collect::{Collected, Depth, collect_observed};
use crate::diagnose;
use crate::error::CheckpointError;
use crate::maps::{self, Mapping};
use crate::member::ObservedProcess;
use crate::memory::AddressSpace;
use crate::mounts;
use crate::options::CheckpointOptions;
use crate::refuse::{Refusals, causes};
use crate::shared::Objects;
use crate::tree::{self, StoppedTree, Target};

const WRITE: u32 = libc::PROT_WRITE as u32;
/// Flags of memory whose pages another process supplies.
const SUPPLIED: [&str; 3] = ["um", "uw", "ui"];

/// A process that goes on, and what its shadow is still to be asked for.
struct Begun {
    shadow: Shadow,
    collected: Collected,
    frozen: Duration,
    forking: Duration,
}

/// Prepares a process; `None` if it has to be looked at as a whole while it stands still.
pub fn prepare(target: Target) -> Result<Option<Prepared>, CheckpointError> {
    let stopped = tree::stop(target).map_err(diagnose::explain_frozen)?;
    match begin(stopped, target.pid())? {
        Some(begun) => begun.finish(),
        None => Ok(None),
    }
}

/// Forks the shadow, and lets the process go on.
fn begin(stopped: StoppedTree, pid: i32) -> Result<Option<Begun>, CheckpointError> {
    let Some((_, process)) = stopped.living().next() else { return Ok(None) };
    let seen = [ObservedProcess::outline(process)?];
    if seen[0].ancestor.is_some() || !is_plain(pid, seen[0].mappings())? {
        return Ok(None);
    }
    let (options, mut refusals) = (CheckpointOptions::default(), Refusals::new(pid));
    let collected = collect_observed(&stopped, &seen, options, Depth::State, &mut refusals)
        .map_err(diagnose::explain_frozen)?;
    let refusals = refusals.into_list();
    let Some(collected) = collected.filter(|_| refusals.is_empty()) else {
        return Err(CheckpointError::Refused(refusals));
    };
    if !collected.model.objects.is_empty() {
        return Ok(None);
    }
    let begun = Instant::now();
    let shadow = forked(&stopped, &collected, &[], |shadow, _| {
        let inherited = maps::outline(shadow.pid())?;
        Ok(is_whole(seen[0].mappings(), &inherited, &shadow).then_some(shadow))
    })?;
    let forking = begun.elapsed();
    let frozen = stopped.since().elapsed();
    drop(stopped);
    let Some(shadow) = shadow else { return Ok(None) };
    shadow.goes_first();
    Ok(Some(Begun { shadow, collected, frozen, forking }))
}

/// Whether a fork inherits all memory of a process, as far as its mappings show without their flags.
fn is_plain(pid: i32, mappings: &[Mapping]) -> Result<bool, CheckpointError> {
    let is_plain = |mapping: &Mapping| {
        let is_written = mapping.is_shared && mapping.prot & WRITE != 0;
        !is_written && !mapping.is_aio_ring() && !mapping.is_deleted()
    };
    Ok(Status::read(pid, pid)?.locked_kb == 0 && mappings.iter().all(is_plain))
}

/// Whether a shadow has all mappings of its process, and the page for calls besides.
fn is_whole(outline: &[Mapping], inherited: &[Mapping], shadow: &Shadow) -> bool {
    outline.iter().eq(inherited.iter().filter(|mapping| mapping.start != shadow.scratch))
}

impl Begun {
    /// Looks at the shadow. `None` if it has turned out not to have all.
    fn finish(mut self) -> Result<Option<Prepared>, CheckpointError> {
        let parent = self.shadow.parent().pid;
        let mut refusals = Refusals::of_copy(parent);
        let (looked, (supplied, sharers)) = std::thread::scope(|scope| {
            // What can be seen of the process itself only. It takes a while, but not of this thread.
            let of_parent = scope.spawn(move || (supplied(parent), bounds::sharers(&[parent])));
            let looked = self.look(&mut refusals);
            let ended = CheckpointError::Changed { pid: parent, what: "ended" };
            (looked, of_parent.join().unwrap_or((Err(ended), Vec::new())))
        });
        bounds::refuse_found(&sharers, &mut refusals);
        let is_whole = looked.and_then(|is_whole| {
            for object in supplied? {
                refusals.add(object, causes::memory::USERFAULTFD);
            }
            Ok(is_whole)
        });
        let refusals = refusals.into_list();
        match is_whole {
            Ok(true) if refusals.is_empty() => self.into_prepared().map(Some),
            Ok(_) if !refusals.is_empty() => {
                let _ = self.shadow.reclaim();
                Err(CheckpointError::Refused(refusals))
            }
            Ok(_) => self.shadow.reclaim().map(|()| None),
            Err(error) => {
                let _ = self.shadow.reclaim();
                Err(error)
            }
        }
    }

    /// Memory and mounts; whether the shadow has inherited all memory.
    fn look(&mut self, refusals: &mut Refusals) -> Result<bool, CheckpointError> {
        let pid = self.shadow.pid();
        let mut mappings = maps::read(pid)?;
        mappings.retain(|mapping| mapping.start != self.shadow.scratch);
        let Collected { model, memories, shared, .. } = &mut self.collected;
        let space = AddressSpace::look(pid, &mappings, None, &Objects::default(), refusals)?;
        let runs = space.put_into(&mut model.members[0].memory, 0);
        let regions = &model.members[0].memory.regions;
        // What was wiped shows no content there. Droppable memory is not carried at all.
        let lost = |region: &Region| !is_inherited(region) && !region.traits.droppable;
        let has_all = !regions.iter().any(lost);
        memories[0].runs = runs;
        model.content = shared.content(model.chunks() as u64);
        model.mounts = mounts::collect(&[pid], model, refusals)?;
        Ok(has_all)
    }

    fn into_prepared(self) -> Result<Prepared, CheckpointError> {
        let Begun { shadow, collected, frozen, forking } = self;
        let (parts, copied) = parts(&collected, &collected.memories[0])?;
        // A clone is looked at as a whole.
        let ancestor = None;
        Ok(Prepared { model: collected.model, parts, copied, ancestor, shadow, frozen, forking })
    }
}

/// Mappings of a process that runs whose pages another process supplies. A fork forgets that.
fn supplied(pid: i32) -> Result<Vec<String>, CheckpointError> {
    let is_supplied = |mapping: &Mapping| SUPPLIED.iter().any(|flag| mapping.has(flag));
    let shown = |mapping: Mapping| {
        format!("mapping {:x}-{:x} {}", mapping.start, mapping.end, mapping.name)
    };
    Ok(maps::read(pid)?.into_iter().filter(is_supplied).map(shown).collect())
}
