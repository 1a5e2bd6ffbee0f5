//! Promotion: pages of a running clone that it maps from the pool become local, in the background.
//!
//! ```text
//!  wanted pages of the image ─► addresses ─► mapped from the pool now? ─► make_local ─► look again
//! ```
//! The clone notices only the speed: its bytes, mappings and faults stay as they are
//! (`farfork_sys::promote`). Only pages that its page tables show as the pool's are promoted, in mappings
//! that are still of the image. Pages that the clone has discarded, moved, protected or replaced are left
//! alone. So are pages that it has not touched yet, which are left to its tiering policy, and pages that a
//! userfaultfd of its own protects, whose handler would get a fault. Between the look and the call lie a
//! few microseconds. Memory that the clone has put there meanwhile loses nothing: it becomes present a
//! little earlier.
//!
//! Memory is charged to the clone. Where its cgroup has a limit, promotion stops before the clone would be
//! OOM-killed.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use farfork_image::layout::MappedSpan;
use farfork_image::model::{Member, Model};
use farfork_pages::policy::pages;
use farfork_pages::{Access, PageSet, place_of};
use farfork_restore::Sources;
use farfork_sys::memory::{self, PAGE_FILE, PageRun};
use farfork_sys::promote::{self, MOST_BYTES};
use farfork_sys::sched_attr::NoPreemption;
use farfork_types::wire::{AddressRange, Promoted, Promotion};
use farfork_types::{CHUNK_BYTES, PAGE_BYTES, align_down};

use crate::error::NodeError;
use crate::headroom::MemoryHeadroom;
use crate::images::NodeImage;
use crate::profile::members_of;

/// One process at work on.
struct Target<'t> {
    pid: i32,
    pagemap: File,
    maps: File,
    sources: &'t Sources,
    headroom: MemoryHeadroom,
    done: &'t AtomicU64,
}

/// Reading one page maps its neighbours, too, in blocks of this size (`fault_around_bytes`).
const AROUND_BYTES: u64 = 64 << 10;

/// The pages of an image that are wanted, of which `access` is known.
///
/// # Errors
/// A range is named that no process of the image maps from the pool.
pub fn wanted(model: &Model, access: Access, wanted: &Promotion) -> Result<PageSet, NodeError> {
    let mut all = PageSet::new();
    if wanted.hot {
        all.merge(&access.hot);
    }
    if wanted.accessed {
        all.merge(&access.accessed);
    }
    for range in &wanted.ranges {
        all.merge(&of_range(model, range)?);
    }
    Ok(all)
}

fn of_range(model: &Model, range: &AddressRange) -> Result<PageSet, NodeError> {
    let is_it = |member: &&Member| range.process.is_none_or(|pid| member.process.pid == pid);
    let found = model.members.iter().find(is_it);
    let places = found.and_then(|member| place_of(member, range.start..range.end));
    places.filter(|pages| !pages.is_empty()).ok_or(NodeError::NotMapped { range: *range })
}

/// Makes those of the `pages` of `image` local that the clone with this pid maps from the pool, in
/// each of its processes, and adds the bytes of each to `done` at once.
pub fn promote(
    pid: i32,
    image: &NodeImage,
    pages: &PageSet,
    done: &AtomicU64,
) -> io::Result<Promoted> {
    // The threads that serve the clone's requests come first.
    let _no_preemption = NoPreemption::begin();
    let read = &image.attached.image;
    let mut sum = Promoted::default();
    for (pid, member) in members_of(pid, &read.model) {
        let open = |name: &str| File::open(format!("/proc/{pid}/{name}"));
        let sources = &image.attached.sources;
        let headroom = MemoryHeadroom::of_process(pid);
        let (pagemap, maps) = (open("pagemap")?, open("maps")?);
        let target = Target { pid, pagemap, maps, sources, headroom, done };
        for span in member.memory.mapped_spans() {
            target.span(span, pages, &mut sum)?;
        }
    }
    Ok(sum)
}

impl Target<'_> {
    fn span(&self, span: MappedSpan, wanted: &PageSet, sum: &mut Promoted) -> io::Result<()> {
        let of_span = pages(span);
        let address = |page: u64| span.address + (page - of_span.start) * PAGE_BYTES;
        for run in wanted.runs(of_span.clone()) {
            let (mut at, end) = (address(run.start), address(run.end));
            while at < end {
                let next = (align_down(at, CHUNK_BYTES) + CHUNK_BYTES).min(end);
                self.part(at..next, span, sum)?;
                at = next;
            }
        }
        Ok(())
    }

    /// Looks at pages of one window of 2 MiB, makes those local that can be, and counts them all.
    fn part(&self, part: Range<u64>, span: MappedSpan, sum: &mut Promoted) -> io::Result<()> {
        let window = align_down(part.start, CHUNK_BYTES);
        let start = window.max(span.address);
        let end = (window + CHUNK_BYTES).min(span.address + span.bytes);
        let around = self.present(start, end)?;
        let before = self.present(part.start, part.end)?;
        sum.local_pages += count(&before, false);
        let touched = count(&before, true) + count(&before, false);
        sum.untouched_pages += (part.end - part.start) / PAGE_BYTES - touched;
        for run in before.iter().filter(|run| run.categories & PAGE_FILE != 0) {
            for at in (run.start..run.end).step_by(MOST_BYTES as usize) {
                self.piece(at..(at + MOST_BYTES).min(run.end), span, sum)?;
            }
        }
        self.map_again(&around, (start, end))
    }

    /// A few pages that the clone has mapped from the pool when it was last looked at.
    fn piece(&self, piece: Range<u64>, span: MappedSpan, sum: &mut Promoted) -> io::Result<()> {
        let bytes = piece.end - piece.start;
        let asked = bytes / PAGE_BYTES;
        if !self.is_images(&piece, span)? {
            sum.kept_pages += asked;
        } else if !self.headroom.has(bytes) {
            sum.refused_pages += asked;
        } else {
            promote::make_local(self.pid, piece.start, bytes)?;
            let now = count(&self.present(piece.start, piece.end)?, false);
            sum.promoted_pages += now;
            sum.kept_pages += asked - now;
            self.done.fetch_add(now * PAGE_BYTES, Ordering::Relaxed);
        }
        Ok(())
    }

    /// One page table entry maps a window of 2 MiB, as long as none of its pages is local. The first page
    /// that becomes local unmaps the others. Reading one page makes the kernel map those around it again.
    fn map_again(&self, before: &[PageRun], (start, end): (u64, u64)) -> io::Result<()> {
        let there = |runs: &[PageRun]| count(runs, true) + count(runs, false);
        if there(&self.present(start, end)?) >= there(before) {
            return Ok(());
        }
        for run in before {
            let blocks =
                (align_down(run.start, AROUND_BYTES)..run.end).step_by(AROUND_BYTES as usize);
            for block in blocks {
                // A page that cannot be read any more is not mapped any more.
                let _ = memory::read(self.pid, block.max(run.start), &mut [0]);
            }
        }
        Ok(())
    }

    fn present(&self, start: u64, end: u64) -> io::Result<Vec<PageRun>> {
        memory::present_pages(&self.pagemap, start, end)
    }

    /// Whether the clone still maps there what the image has at that place, and may write to it.
    fn is_images(&self, piece: &Range<u64>, span: MappedSpan) -> io::Result<bool> {
        let Some(found) = promote::mapping_at(&self.maps, piece.start)? else { return Ok(false) };
        let place = span.offset() + (piece.start - span.address);
        let (file, offset) = self.sources.at(place);
        Ok(found.is_private_writable()
            && (found.device, found.inode) == (file.device, file.inode)
            && piece.end <= found.end
            && found.offset + (piece.start - found.start) == offset)
    }
}

/// How many pages are the file's, or are not.
fn count(runs: &[PageRun], are_files: bool) -> u64 {
    let is_it = |run: &&PageRun| (run.categories & PAGE_FILE != 0) == are_files;
    runs.iter().filter(is_it).map(|run| (run.end - run.start) / PAGE_BYTES).sum()
}
