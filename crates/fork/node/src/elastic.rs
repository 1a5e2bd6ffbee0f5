//! The share of near memory of a running clone.
//!
//! ```text
//!                        too little is near                        too much is near
//!  pool ── copied, hottest first (make_local) ──► near ── moved, coldest first (move_pages) ──► far node
//!                                                  ▲                                              │
//!                                                  └──── moved, hottest first, before any copy ◄──┘
//! ```
//! A clone's memory is what it has of its own and what it maps privately from its image. Its share is counted
//! anew after each round, because the clone runs on meanwhile: it writes, discards and allocates.
//!
//! Invariants: no byte of the clone depends on any of this, so that a kill at any moment leaves a right clone.
//! Nothing goes back into the pool. What the clone may not write stays in the pool, and so does memory for which a
//! userfaultfd of its own is registered: to touch it would wait for that one's handler. (A clone that registers
//! such memory while the call runs can make the call wait for its handler; the agent's other calls go on.) A share
//! that has no room from the beginning is refused; where room runs out during the copy, the copy ends before the clone
//! would be OOM-killed, and the share is not met.

mod own;
mod regions;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

use farfork_image::layout::MappedSpan;
use farfork_image::model::Member;
use farfork_pages::policy::pages;
use farfork_pages::{Access, PageSet, share};
use farfork_sys::memory::{self, PAGE_FILE};
use farfork_sys::promote::{self, MOST_BYTES};
use farfork_sys::sched_attr::NoPreemption;
use farfork_sys::{numa, proc};
use farfork_types::elastic::ShareSet;
use farfork_types::{LocalShare, PAGE_BYTES, Tiering};

use crate::error::NodeError;
use crate::headroom::{self, MemoryHeadroom};
use crate::profile::members_of;
use crate::registry::RunningClone;
use crate::usage::{self, Placement};
use farfork_sys::sync::locked;
use regions::Region;

/// Rounds of counting and moving. The first does nearly all; others follow what the clone did meanwhile.
const ROUNDS: usize = 4;

/// One process of a clone.
struct Process<'c> {
    pid: i32,
    pagemap: File,
    maps: File,
    member: &'c Member,
}

/// What a clone has, in pages.
#[derive(Default)]
struct Footprint {
    placement: Placement,
    /// What it maps from the pool.
    pool_pages: u64,
    /// Of it, the pages that can become local, by their places in the image.
    candidates: PageSet,
}

impl Footprint {
    fn total_bytes(&self) -> u64 {
        self.placement.near_bytes + self.placement.far_bytes + self.pool_pages * PAGE_BYTES
    }

    /// One percent of all, by which a share may be missed.
    fn tolerated_bytes(&self) -> u64 {
        (self.total_bytes() / 100).max(PAGE_BYTES)
    }
}

/// Has `local` of a clone's memory near, as far as that is possible.
///
/// # Errors
/// Another policy decides about the clone's pages; the share is smaller than what was asked for before, and there is
/// no far node; there is no room for it; the clone has ended.
pub fn set_share(
    clone: &RunningClone,
    access: &Access,
    local: LocalShare,
) -> Result<ShareSet, NodeError> {
    let pid = clone.seen();
    let is_profiled = clone.profile.as_ref().is_some_and(|profile| profile.goes_on());
    if clone.tiering != Tiering::Mow || is_profiled {
        return Err(NodeError::ShareOfOther { pid });
    }
    let _turn = locked(&clone.share_turn);
    let work = Work {
        clone,
        access,
        far_nodes: numa::nodes_without_processors(),
        headroom: MemoryHeadroom::of_process(clone.pid),
    };
    let from = *locked(&clone.local_share);
    if let Some(from) = from.filter(|from| *from > local && work.far_nodes.is_empty()) {
        return Err(NodeError::ShareLowered { pid, from, to: local });
    }
    *locked(&clone.local_share) = Some(local);
    // The threads that serve the clone's requests come first.
    let _no_preemption = NoPreemption::begin();
    let done = work.approach(local);
    if done.is_err() {
        *locked(&clone.local_share) = from;
    }
    done
}

struct Work<'c> {
    clone: &'c RunningClone,
    access: &'c Access,
    far_nodes: Vec<i32>,
    headroom: MemoryHeadroom,
}

/// What a copy has done.
#[derive(Clone, Copy, Debug, Default)]
struct Copied {
    bytes: u64,
    /// Whether it ended early, as there was no room for more.
    ran_out: bool,
}

impl Work<'_> {
    fn gone(&self, source: io::Error) -> NodeError {
        NodeError::Promotion { pid: self.clone.seen(), source }
    }

    fn approach(&self, local: LocalShare) -> Result<ShareSet, NodeError> {
        let (mut copied, mut moved_bytes) = (Copied::default(), 0);
        let mut seen = self.look().map_err(|error| self.gone(error))?;
        for round in 0..ROUNDS {
            let wanted_bytes = local.of(seen.total_bytes() / PAGE_BYTES) * PAGE_BYTES;
            let near_bytes = seen.placement.near_bytes;
            let moved = self.move_own(round, near_bytes, wanted_bytes, &seen.placement);
            let moved = moved.map_err(|error| self.gone(error))?;
            let missing = wanted_bytes.saturating_sub(near_bytes + moved) / PAGE_BYTES;
            let Copied { bytes, ran_out } = self.copy(&seen.candidates, missing)?;
            copied = Copied { bytes: copied.bytes + bytes, ran_out };
            moved_bytes += moved;
            if bytes + moved == 0 {
                break;
            }
            seen = self.look().map_err(|error| self.gone(error))?;
            if ran_out {
                break;
            }
        }
        let has_far = !self.far_nodes.is_empty();
        Ok(report(local, &seen, has_far, copied, moved_bytes))
    }

    fn processes(&self) -> io::Result<Vec<Process<'_>>> {
        let model = &self.clone.image.attached.image.model;
        let process = |(pid, member)| {
            let open = |name: &str| File::open(format!("/proc/{pid}/{name}"));
            Ok(Process { pid, pagemap: open("pagemap")?, maps: open("maps")?, member })
        };
        let processes: Vec<Process<'_>> = members_of(self.clone.pid, model)
            .into_iter()
            .map(process)
            .collect::<io::Result<_>>()?;
        if processes.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(processes)
    }

    fn look(&self) -> io::Result<Footprint> {
        let mut seen = Footprint::default();
        for process in self.processes()? {
            let text = proc::text(format!("/proc/{}/smaps", process.pid))?;
            let regions = regions::of(&text);
            for span in process.member.memory.mapped_spans() {
                self.look_at(&process, span, &regions, &mut seen)?;
            }
        }
        seen.placement = usage::placement_of_family(self.clone.pid);
        Ok(seen)
    }

    fn look_at(
        &self,
        process: &Process<'_>,
        span: MappedSpan,
        regions: &[Region],
        seen: &mut Footprint,
    ) -> io::Result<()> {
        let (start, end) = (span.address, span.address + span.bytes);
        let first = regions.partition_point(|region| region.end <= start);
        for region in regions[first..].iter().take_while(|region| region.start < end) {
            let part = region.start.max(start)..region.end.min(end);
            if !self.is_images(span, &part, region) {
                continue;
            }
            let own = own::of(&process.pagemap, part.clone())?;
            let place = |address: u64| pages(span).start + (address - span.address) / PAGE_BYTES;
            let mut at = part.start;
            let end_of_part = std::iter::once(part.end..part.end);
            for run in own.into_iter().chain(end_of_part) {
                seen.pool_pages += (run.start - at) / PAGE_BYTES;
                if region.can_become_local() {
                    (place(at)..place(run.start)).for_each(|page| seen.candidates.insert(page));
                }
                at = run.end;
            }
        }
        Ok(())
    }

    /// Whether a region maps in this part what the image has there.
    fn is_images(&self, span: MappedSpan, part: &Range<u64>, region: &Region) -> bool {
        let sources = &self.clone.image.attached.sources;
        let is_it = |address: u64| {
            let (file, offset) = sources.at(span.offset() + (address - span.address));
            (region.device, region.inode) == (file.device, file.inode)
                && region.offset + (address - region.start) == offset
        };
        region.is_private && is_it(part.start) && is_it(part.end - PAGE_BYTES)
    }

    /// Copies so many of the candidates from the pool.
    fn copy(&self, candidates: &PageSet, wanted: u64) -> Result<Copied, NodeError> {
        let chosen = share::pick(candidates, self.access, wanted);
        let bytes = chosen.len() * PAGE_BYTES;
        if bytes == 0 {
            return Ok(Copied::default());
        }
        if !self.headroom.has(bytes) || !headroom::machine_has(bytes) {
            return Err(NodeError::ShareRoom { bytes });
        }
        self.copy_chosen(&chosen).map_err(|error| self.gone(error))
    }

    fn copy_chosen(&self, chosen: &PageSet) -> io::Result<Copied> {
        let mut copied = Copied::default();
        for process in self.processes()? {
            for span in process.member.memory.mapped_spans() {
                let of_span = pages(span);
                let address = |page: u64| span.address + (page - of_span.start) * PAGE_BYTES;
                for run in chosen.runs(of_span.clone()) {
                    let end = address(run.end);
                    for at in (address(run.start)..end).step_by(MOST_BYTES as usize) {
                        let piece = at..end.min(at + MOST_BYTES);
                        // The clone itself allocates meanwhile.
                        if !self.headroom.has(piece.end - piece.start) {
                            return Ok(Copied { ran_out: true, ..copied });
                        }
                        copied.bytes += self.copy_piece(&process, span, piece)?;
                    }
                }
            }
        }
        Ok(copied)
    }

    /// A few pages. One that cannot become local ends the kernel's work, so it is left out, and the rest tried again.
    fn copy_piece(
        &self,
        process: &Process<'_>,
        span: MappedSpan,
        piece: Range<u64>,
    ) -> io::Result<u64> {
        let mut copied = 0;
        let mut at = piece.start;
        while at < piece.end {
            let Some(found) = promote::mapping_at(&process.maps, at)? else { break };
            let end = piece.end.min(found.end);
            let region = Region::from(found);
            if !region.can_become_local() || !self.is_images(span, &(at..end), &region) {
                at = end;
                continue;
            }
            promote::make_local(process.pid, at, end - at)?;
            let runs = memory::present_pages(&process.pagemap, at, end)?;
            let is_reached =
                |run: &&memory::PageRun| run.start == at && run.categories & PAGE_FILE == 0;
            let reached = runs.first().filter(is_reached).map_or(at, |run| run.end);
            copied += reached - at;
            self.clone.promoted_bytes.fetch_add(reached - at, Ordering::Relaxed);
            at = if reached < end { reached + PAGE_BYTES } else { end };
        }
        Ok(copied)
    }

    /// Moves memory of the clone's own between nodes, where there are far ones; returns the bytes that moved.
    fn move_own(
        &self,
        round: usize,
        near_bytes: u64,
        wanted_bytes: u64,
        before: &Placement,
    ) -> io::Result<u64> {
        let missing = wanted_bytes.saturating_sub(near_bytes).min(before.far_bytes) / PAGE_BYTES;
        let excess = near_bytes.saturating_sub(wanted_bytes) / PAGE_BYTES;
        if self.far_nodes.is_empty() || missing + excess == 0 {
            return Ok(0);
        }
        let near_nodes = numa::nodes_with_processors();
        let targets = if excess > 0 { &self.far_nodes } else { &near_nodes };
        let Some(target) = targets.get(round % targets.len().max(1)) else { return Ok(0) };
        let mut ranked = Vec::new();
        for Process { pid, pagemap, member, .. } in self.processes()? {
            ranked.extend(own::ranked(pid, &pagemap, member, self.access)?);
        }
        ranked.retain(|page| self.far_nodes.contains(&page.node) == (excess == 0));
        own::move_to(&own::choose(ranked, missing + excess, excess > 0), *target)?;
        let after = usage::placement_of_family(self.clone.pid);
        Ok(before.far_bytes.abs_diff(after.far_bytes))
    }
}

fn report(
    local: LocalShare,
    seen: &Footprint,
    has_far: bool,
    copied: Copied,
    moved_bytes: u64,
) -> ShareSet {
    let Placement { near_bytes, far_bytes } = seen.placement;
    let total_bytes = seen.total_bytes();
    let wanted_bytes = local.of(total_bytes / PAGE_BYTES) * PAGE_BYTES;
    let met = near_bytes.abs_diff(wanted_bytes) <= seen.tolerated_bytes();
    let why = match (near_bytes > wanted_bytes, has_far) {
        (false, _) if copied.ran_out => {
            "its cgroup has no more room: the clone has taken memory itself meanwhile; raise its memory limit"
        }
        (true, false) => {
            "the clone has more memory of its own than that, because it has written it, and this machine \
             has no far memory node to move it to"
        }
        (true, true) => {
            "not enough could be moved: the far nodes are full, or other processes map the same pages"
        }
        (false, _) => {
            "the rest cannot be copied while the clone runs: it is read-only, or a userfaultfd is registered \
             for it; farfork restore --local-share copies read-only memory, too"
        }
    };
    let reason = (!met).then(|| why.to_owned());
    let pool_bytes = seen.pool_pages * PAGE_BYTES;
    ShareSet {
        local_permille: local,
        total_bytes,
        wanted_bytes,
        near_bytes,
        far_bytes,
        pool_bytes,
        copied_bytes: copied.bytes,
        moved_bytes,
        met,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_ran_out_of_room_says_so() {
        let placement = Placement { near_bytes: 40 * PAGE_BYTES, far_bytes: 0 };
        let seen = Footprint { placement, pool_pages: 60, candidates: PageSet::new() };
        let all = LocalShare::from_permille(1000).unwrap();
        let of = |ran_out| report(all, &seen, false, Copied { bytes: PAGE_BYTES, ran_out }, 0);
        assert!(!of(true).met && of(true).reason.unwrap().contains("cgroup has no more room"));
        assert!(!of(false).met && of(false).reason.unwrap().contains("read-only"));
    }
}
