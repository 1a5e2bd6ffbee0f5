//! What one client allocates from: its spans, and private lists of their free slots.
//!
//! ```text
//!  allocate ◄── free ◄── freed ◄── free, of objects in own spans
//!                 ▲
//!                 └── look at owner bytes ◄── own spans ◄── claim
//! ```
//! Invariants:
//! 1. A list may lack free slots (other clients free objects by their owner bytes alone), but never contains
//!    one that is not free, or one twice: only the client of a span allocates in it, and owner bytes are looked
//!    at only while both lists of their class are empty.
//! 2. What is freed is allocated again only when the other list is empty. So an allocation does not wait
//!    for the stores of the free before it.
//! 3. A span is marked in shared memory before the client claims it, and before it receives an object in it.

use crate::error::ObjectsError;
use crate::layout::{ClientId, FREE, Layout, first_granule, span_of};
use crate::recovery::recover_dead;
use crate::region::{Platform, Region, has_fault};
use crate::runs;
use crate::sizes::{CLASSES, Class};
use crate::spans;
use crate::words::Words;

/// Own spans that are looked at before a new one is claimed.
const LOOKED_AT: usize = 8;
/// Slots that a look gathers. So many objects of 64 bytes, their owner bytes and the list fit a first-level cache.
const GATHERED: usize = 128;
/// A look is worth it from so many slots on.
const WORTH: usize = 64;
/// Freed slots that are gathered before they count.
const FREED: usize = 256;
/// Spans' worth of free slots of a class that a client keeps, if the region has enough of them.
const KEPT_SPANS: u32 = 16;
/// In [`Heap::kinds`]: the span is marked. The other bits: 0, or 1 + class of an own span.
const MARKED: u8 = 0x80;

/// The slots of one class.
#[derive(Debug)]
struct Bin {
    free: Vec<u32>,
    freed: Vec<u32>,
    spans: Vec<u32>,
    /// Where the next look begins: index of a span, and slot in it.
    at: (usize, u32),
    /// A look that finds fewer slots is followed by a claim.
    worth: usize,
    /// More free slots than this, and empty spans are given back.
    most_free: usize,
}

/// The private part of a client's allocator.
#[derive(Debug)]
pub(crate) struct Heap {
    id: ClientId,
    bins: Box<[Bin]>,
    kinds: Box<[u8]>,
    /// Where the next look for a span begins.
    next_span: u32,
}

impl Heap {
    pub(crate) fn new(id: ClientId, layout: &Layout) -> Heap {
        let bin = |class: Class| Bin {
            free: Vec::new(),
            freed: Vec::with_capacity(FREED.min(2 * class.slots() as usize)),
            spans: Vec::new(),
            at: (0, 0),
            worth: WORTH.min(class.slots() as usize / 2),
            most_free: least_kept(layout, class),
        };
        Heap {
            id,
            bins: Class::all().map(bin).collect(),
            kinds: vec![0; layout.end_span as usize].into(),
            next_span: layout.first_span,
        }
    }

    /// The client.
    #[inline]
    pub(crate) fn id(&self) -> ClientId {
        self.id
    }

    /// Takes a free slot.
    #[inline]
    pub(crate) fn allocate<P: Platform>(
        &mut self,
        region: &Region<P>,
        class: Class,
    ) -> Result<u32, ObjectsError> {
        let granule = match self.bins[class.index()].free.pop() {
            Some(granule) => granule,
            None => self.allocate_slowly(region, class)?,
        };
        // Commits. Killed before, the slot is free; after, it is a dead client's.
        region.words.set_byte(region.layout.owner(granule), self.id.number());
        Ok(granule)
    }

    /// Gives back an object that the client owns.
    #[inline]
    pub(crate) fn free<P: Platform>(&mut self, region: &Region<P>, granule: u32) {
        let kind = self.kinds[span_of(granule) as usize] & !MARKED;
        if kind == 0 {
            return free_in_other_span(region, self.id, granule);
        }
        // Commits.
        region.words.set_byte(region.layout.owner(granule), FREE);
        let bin = &mut self.bins[usize::from(kind - 1) % CLASSES];
        if bin.freed.len() < bin.freed.capacity() {
            bin.freed.push(granule);
        } else {
            self.count_freed(region, granule);
        }
    }

    /// Sees to it that a recovery finds what the client is about to own in a span.
    #[inline]
    pub(crate) fn mark<P: Platform>(&mut self, region: &Region<P>, span: u32) {
        if self.kinds[span as usize] == 0 {
            self.mark_anew(region, span);
        }
    }

    #[cold]
    fn mark_anew<P: Platform>(&mut self, region: &Region<P>, span: u32) {
        spans::mark(region, self.id, span);
        self.kinds[span as usize] |= MARKED;
    }

    #[cold]
    fn allocate_slowly<P: Platform>(
        &mut self,
        region: &Region<P>,
        class: Class,
    ) -> Result<u32, ObjectsError> {
        self.refill(region, class)?;
        if let Some(granule) = self.bins[class.index()].free.pop() {
            return Ok(granule);
        }
        // Rather a slot that is too large than none.
        for class in class.and_larger() {
            self.look_at_all(region, class);
            if !self.has_free(class) {
                self.claim(region, class);
            }
            if let Some(granule) = self.bins[class.index()].free.pop() {
                return Ok(granule);
            }
        }
        Err(ObjectsError::Full)
    }

    fn refill<P: Platform>(
        &mut self,
        region: &Region<P>,
        class: Class,
    ) -> Result<(), ObjectsError> {
        self.take_freed(class);
        if self.has_free(class) {
            return Ok(());
        }
        let count = self.bins[class.index()].spans.len().min(LOOKED_AT);
        self.look_at(region, class, count);
        let bin = &self.bins[class.index()];
        if bin.free.len() >= bin.worth || self.claim(region, class) || self.has_free(class) {
            return Ok(());
        }
        self.look_at_all(region, class);
        if self.has_free(class) {
            return Ok(());
        }
        let recovered = recover_dead(region)?;
        self.give_back_all(region);
        if !self.claim(region, class) && recovered > 0 {
            self.look_at_all(region, class);
        }
        Ok(())
    }

    fn has_free(&self, class: Class) -> bool {
        !self.bins[class.index()].free.is_empty()
    }

    fn take_freed(&mut self, class: Class) {
        let Bin { free, freed, .. } = &mut self.bins[class.index()];
        free.append(freed);
    }

    /// Looks at all own spans, if nothing is in the lists.
    fn look_at_all<P: Platform>(&mut self, region: &Region<P>, class: Class) {
        self.take_freed(class);
        let count = self.bins[class.index()].spans.len();
        if count > 0 && !self.has_free(class) {
            // From the beginning of a span: none is looked at twice.
            self.bins[class.index()].at.1 = 0;
            self.look_at(region, class, count);
        }
    }

    /// Looks at so many own spans for free slots, until there are enough. None of these spans has slots in the lists.
    fn look_at<P: Platform>(&mut self, region: &Region<P>, class: Class, count: usize) {
        let bin = &mut self.bins[class.index()];
        let (slots, granules) = (class.slots(), class.granules());
        for _ in 0..count {
            let (index, slot) = bin.at;
            let first = first_granule(bin.spans[index]);
            for slot in slot..slots {
                let granule = first + slot * granules;
                if region.words.byte(region.layout.owner(granule)) == FREE {
                    bin.free.push(granule);
                    if bin.free.len() == GATHERED {
                        bin.at = (index, slot + 1);
                        // From low to high addresses.
                        bin.free.reverse();
                        return;
                    }
                }
            }
            bin.at = ((index + 1) % bin.spans.len(), 0);
            if bin.free.len() >= bin.worth {
                break;
            }
        }
        bin.free.reverse();
    }

    /// Claims spans until one has a free slot; returns whether one has.
    fn claim<P: Platform>(&mut self, region: &Region<P>, class: Class) -> bool {
        let layout = &region.layout;
        for _ in layout.spans() {
            let span = self.next_span;
            self.next_span = if span + 1 == layout.end_span { layout.first_span } else { span + 1 };
            if !spans::is_to_be_had(region, span, class) {
                continue;
            }
            if !has_fault!(P, ClaimMarksLast) {
                self.mark(region, span);
            }
            if !spans::claim(region, self.id, span, class) {
                continue;
            }
            self.mark(region, span);
            self.kinds[span as usize] = MARKED | (class.number() + 1);
            let bin = &mut self.bins[class.index()];
            bin.at = (bin.spans.len(), 0);
            bin.spans.push(span);
            let before = self.bins[class.index()].free.len();
            self.look_at(region, class, 1);
            if self.bins[class.index()].free.len() > before {
                return true;
            }
        }
        false
    }

    #[cold]
    fn count_freed<P: Platform>(&mut self, region: &Region<P>, granule: u32) {
        let kind = self.kinds[span_of(granule) as usize] & !MARKED;
        let Some(class) = kind.checked_sub(1).and_then(Class::new) else { return };
        self.take_freed(class);
        let bin = &mut self.bins[class.index()];
        bin.freed.push(granule);
        if bin.free.len() > bin.most_free {
            self.give_back(region, class, 1);
            let bin = &mut self.bins[class.index()];
            // What is not given back is not looked at again soon.
            bin.most_free = least_kept(&region.layout, class).max(2 * bin.free.len());
        }
    }

    /// Gives back all empty spans.
    fn give_back_all<P: Platform>(&mut self, region: &Region<P>) {
        for class in Class::all() {
            self.give_back(region, class, 0);
        }
    }

    /// Gives back all empty spans of a class but some, and forgets their slots first. One that stays spares the next
    /// allocation a claim.
    fn give_back<P: Platform>(&mut self, region: &Region<P>, class: Class, stay: usize) {
        self.take_freed(class);
        let Heap { bins, kinds, id, .. } = self;
        let bin = &mut bins[class.index()];
        let mut empty: Vec<u32> = bin.spans.clone();
        empty.retain(|span| spans::is_empty(region, *span));
        empty.truncate(empty.len().min(bin.spans.len().saturating_sub(stay)));
        for span in &empty {
            kinds[*span as usize] = 0;
        }
        bin.free.retain(|granule| kinds[span_of(*granule) as usize] != 0);
        bin.spans.retain(|span| kinds[*span as usize] != 0);
        bin.at = (0, 0);
        for span in empty {
            spans::give_back(region, *id, span);
        }
    }

    /// Takes whole spans.
    pub(crate) fn allocate_run<P: Platform>(
        &mut self,
        region: &Region<P>,
        bytes: usize,
    ) -> Result<u32, ObjectsError> {
        if let Some(granule) = self.try_run(region, bytes) {
            return Ok(granule);
        }
        recover_dead(region)?;
        self.give_back_all(region);
        spans::free_left(region);
        self.try_run(region, bytes).ok_or(ObjectsError::NoRun { bytes })
    }

    fn try_run<P: Platform>(&mut self, region: &Region<P>, bytes: usize) -> Option<u32> {
        let kinds = &mut self.kinds;
        let mut is_marked = |span: u32, is: bool| {
            kinds[span as usize] = if is { MARKED } else { 0 };
        };
        runs::allocate(region, self.id, &mut is_marked, bytes)
    }
}

#[cold]
fn free_in_other_span<P: Platform>(region: &Region<P>, id: ClientId, granule: u32) {
    if !runs::free(region, id, granule) {
        // Commits. The client of the span finds it.
        region.words.set_byte(region.layout.owner(granule), FREE);
    }
}

fn least_kept(layout: &Layout, class: Class) -> usize {
    let spans = ((layout.end_span - layout.first_span) / 32).clamp(1, KEPT_SPANS);
    (spans * class.slots()) as usize
}
