//! Promotion: pages of a running clone that it maps from the pool become local, in the background.
//!
//! ```text
//!  wanted pages of the image ─► addresses ─► mapped from the pool now? ─► make_local ─► look again
//! ```
//! Nothing of it is seen by the clone but speed: bytes, mappings and faults of its own stay what they
//! are (`farfork_sys::promote`). Only pages that its page tables show as the pool's are touched, in
//! mappings that are the image's still: what a clone has discarded, moved, protected or replaced is
//! left alone, what it has not touched yet is left to its tiering policy, and so are pages that a
//! userfaultfd of its own protects, whose handler would be asked. Between that look and the call lie a
//! few microseconds. Whatever the clone has put there by then loses nothing either: it has memory a
//! little earlier than it would have.
//!
//! Memory is charged to the clone. Where its cgroup has a limit, promotion stops before the kernel
//! would have to kill.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use farfork_image::layout::MappedSpan;
use farfork_image::model::{Member, Model};
use farfork_pages::policy::pages;
use farfork_pages::{Access, PageSet, place_of};
use farfork_sys::memory::{PAGE_FILE, PageRun, present_pages};
use farfork_sys::promote::{self, MOST_BYTES, Mapping};
use farfork_sys::slice::Patience;
use farfork_types::PAGE_BYTES;
use farfork_types::wire::{AddressRange, Promoted, Promotion};

use crate::error::NodeError;
use crate::ghosts::MemoryGroup;
use crate::images::NodeImage;
use crate::profile::members_of;

/// The file that clones of an image map, and where in it each chunk of the image lies.
struct Source<'i> {
    device: u64,
    inode: u64,
    placement: &'i [u64],
}

/// One process at work on.
struct Target<'t> {
    pid: i32,
    pagemap: File,
    maps: File,
    source: Source<'t>,
    room: Room,
    done: &'t AtomicU64,
}

/// How much may be charged to a clone.
struct Room(Option<MemoryGroup>);

/// What is left free below a limit, so that the clone itself has something to go on with.
const SPARED_BYTES: u64 = 4 << 20;

impl Room {
    fn has(&self, bytes: u64) -> bool {
        let free = self.0.as_ref().and_then(MemoryGroup::free_bytes);
        free.is_none_or(|free| free >= bytes + SPARED_BYTES)
    }
}

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
    // Whoever serves the clone's requests comes first.
    let _displaces_nobody = Patience::begin();
    let read = &image.attached.image;
    let (device, inode) = image.attached.pool_file();
    let mut sum = Promoted::default();
    for (pid, member) in members_of(pid, &read.model) {
        let open = |name: &str| File::open(format!("/proc/{pid}/{name}"));
        let source = Source { device, inode, placement: &read.placement };
        let room = Room(MemoryGroup::of(pid));
        let (pagemap, maps) = (open("pagemap")?, open("maps")?);
        let target = Target { pid, pagemap, maps, source, room, done };
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
                let next = (at + MOST_BYTES).min(end);
                self.part(at..next, span, sum)?;
                at = next;
            }
        }
        Ok(())
    }

    /// Looks at a few pages, makes those local that can be, and counts them all.
    fn part(&self, part: Range<u64>, span: MappedSpan, sum: &mut Promoted) -> io::Result<()> {
        let before = present_pages(&self.pagemap, part.start, part.end)?;
        let of_pool = count(&before, true);
        sum.local_pages += count(&before, false);
        sum.untouched_pages +=
            (part.end - part.start) / PAGE_BYTES - of_pool - count(&before, false);
        for run in before.iter().filter(|run| run.categories & PAGE_FILE != 0) {
            let asked = (run.end - run.start) / PAGE_BYTES;
            if !self.is_images(run, span)? {
                sum.kept_pages += asked;
            } else if !self.room.has(run.end - run.start) {
                sum.refused_pages += asked;
            } else {
                promote::make_local(self.pid, run.start, run.end - run.start)?;
                let after = present_pages(&self.pagemap, run.start, run.end)?;
                let now = count(&after, false);
                sum.promoted_pages += now;
                sum.kept_pages += asked - now;
                self.done.fetch_add(now * PAGE_BYTES, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Whether the clone still maps there what the image has at that place, and may write to it.
    fn is_images(&self, run: &PageRun, span: MappedSpan) -> io::Result<bool> {
        let Some(found) = promote::mapping_at(&self.maps, run.start)? else { return Ok(false) };
        let Mapping { start, end, offset, inode, device, is_private_writable } = found;
        let wanted = self.source.offset(span, run.start);
        Ok(is_private_writable
            && (device, inode) == (self.source.device, self.source.inode)
            && run.end <= end
            && offset + (run.start - start) == wanted)
    }
}

impl Source<'_> {
    fn offset(&self, span: MappedSpan, address: u64) -> u64 {
        farfork_pages::overlay::pool_offset(span, self.placement) + (address - span.address)
    }
}

/// How many pages are the file's, or are not.
fn count(runs: &[PageRun], are_files: bool) -> u64 {
    let is_it = |run: &&PageRun| (run.categories & PAGE_FILE != 0) == are_files;
    runs.iter().filter(is_it).map(|run| (run.end - run.start) / PAGE_BYTES).sum()
}
