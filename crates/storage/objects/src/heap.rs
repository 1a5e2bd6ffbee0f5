//! What one client allocates from: its spans, and private lists of their free slots.
//!
//! ```text
//!  allocate ◄── free ◄── freed ◄── free, of objects in own spans ──► forgotten beyond some
//!                 ▲
//!                 └── look at owner bytes ◄── own spans ◄── claim
//! ```
//! Invariants:
//! 1. A list may lack free slots (other clients free objects by their owner bytes alone), but never contains
//!    one that is not free, or one twice: only the client of a span allocates in it, and owner bytes are looked
//!    at only while both lists of their class are empty.
//! 2. What is freed is allocated again only when the other list is empty. So an allocation does not wait
//!    for the stores of the free before it. Of many freed slots most are forgotten and found again by a look, in
//!    the order of their addresses, which caches reward.
//! 3. A span is marked in shared memory before the client claims it, and before it receives an object in it.

use crate::error::ObjectsError;
use crate::layout::{ClientId, FREE, GRANULE_BYTES, Layout, SPAN_GRANULES, span_of};
use crate::nodes::Keeper;
use crate::recovery::recover_dead;
use crate::region::{Platform, Region, has_fault};
use crate::runs::{self, Search};
use crate::sizes::{Class, END};
use crate::spans::{self, Found};
use crate::words::Words;

/// Own spans are looked at if one of so many of their slots may be free. Else a new span is claimed.
const PER_FREE: usize = 8;
/// A look is worth it from so many slots on.
const WORTH: usize = 64;
/// Freed slots that are remembered.
const FREED: usize = 256;
/// Spans' worth of free slots of a class that a client keeps, if the region has enough of them.
const KEPT_SPANS: u32 = 16;
/// In [`Heap::kinds`]: the index of the class of an own span, or one of these, which are above all of them.
const UNKNOWN: u8 = 0x80;
const MARKED: u8 = 0x81;
/// Indices of classes of objects without a header are below.
const PLAIN: usize = 64;

/// Free slots of one class.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Lists {
    free: Vec<u32>,
    freed: Vec<u32>,
    /// Was taken from the first list, and takes more than a store to allocate.
    refused: Option<u32>,
}

/// The spans of one class.
#[derive(Debug)]
struct Bin {
    spans: Vec<u32>,
    /// Where the next look begins: index of a span, and slot in it.
    at: (usize, u32),
    /// A look goes on until it has so many slots.
    worth: usize,
    /// Slots in these spans that may be free and are in no list, unless others freed them.
    forgotten: usize,
    /// [`Heap::sent`] before the last complete look.
    sent: usize,
    /// More forgotten slots than this, and empty spans are given back.
    most_forgotten: usize,
}

/// The private part of a client's allocator.
#[derive(Debug)]
pub(crate) struct Heap {
    id: ClientId,
    kinds: Box<[u8]>,
    lists: Box<[Lists; END]>,
    bins: Box<[Bin]>,
    /// Where the next look for a span begins.
    next_span: u32,
    /// The same, for spans beside each other.
    runs: Search,
    /// Objects sent: others may have freed so many in own spans.
    sent: usize,
    /// The lists of a checked client, where the fast path does not see them.
    hidden: Option<Box<[Lists; END]>>,
}

impl Heap {
    pub(crate) fn new(id: ClientId, layout: &Layout, is_checked: bool) -> Heap {
        let bin = |class: Option<Class>| Bin {
            spans: Vec::new(),
            at: (0, 0),
            worth: class.map_or(0, |class| WORTH.min(class.slots() as usize / 2)),
            forgotten: 0,
            sent: 0,
            most_forgotten: class.map_or(0, |class| least_kept(layout, class)),
        };
        let mut lists = empty_lists();
        for class in Class::all() {
            let count = FREED.min(2 * class.slots() as usize);
            lists[class.index()].freed = Vec::with_capacity(count);
        }
        Heap {
            id,
            lists,
            bins: (0..END).map(Class::at_index).map(bin).collect(),
            kinds: vec![UNKNOWN; layout.end_span as usize].into(),
            next_span: layout.first_span,
            runs: Search::new(layout),
            sent: 0,
            hidden: is_checked.then(empty_lists),
        }
    }

    /// The client.
    #[inline]
    pub(crate) fn id(&self) -> ClientId {
        self.id
    }

    /// Takes a free slot, if one is known.
    #[inline]
    pub(crate) fn allocate_known<P: Platform>(
        &mut self,
        region: &Region<P>,
        bytes: usize,
    ) -> Option<u32> {
        self.take(region, Class::index_of(bytes)?, |_| ())
    }

    /// The same, and prepares it before others see it.
    #[inline]
    pub(crate) fn allocate_prepared<P: Platform>(
        &mut self,
        region: &Region<P>,
        class: Class,
        prepare: impl FnOnce(u32),
    ) -> Option<u32> {
        self.take(region, class.index(), prepare)
    }

    #[inline]
    fn take<P: Platform>(
        &mut self,
        region: &Region<P>,
        index: usize,
        prepare: impl FnOnce(u32),
    ) -> Option<u32> {
        let lists = &mut self.lists[index % END];
        let granule = lists.free.pop()?;
        prepare(granule);
        // Commits. Killed before, the slot is free; after, it is a dead client's.
        let is_stored = region.owners.try_set_byte(granule as usize, self.id.number());
        if !is_stored {
            lists.refused = Some(granule);
        }
        is_stored.then_some(granule)
    }

    /// The same, where it takes more than a store.
    fn take_slowly<P: Platform>(
        &mut self,
        region: &Region<P>,
        class: Class,
        prepare: impl FnOnce(u32),
    ) -> Option<u32> {
        let lists = &mut self.lists[class.index()];
        let granule = lists.refused.take().or_else(|| lists.free.pop())?;
        prepare(granule);
        // Commits, too.
        let is_stored = region.owners.set_byte_within(granule as usize, self.id.number());
        is_stored.then_some(granule)
    }

    /// Takes a free slot, if none is known, and prepares it before others see it.
    #[cold]
    pub(crate) fn allocate_after<P: Platform>(
        &mut self,
        region: &Region<P>,
        class: Class,
        prepare: impl Fn(u32),
    ) -> Result<u32, ObjectsError> {
        if let Some(granule) = self.take_slowly(region, class, &prepare) {
            return Ok(granule);
        }
        // It may fail, such as without a free descriptor. A larger slot may be there all the same.
        let refilled = self.refill(region, class);
        if let Some(granule) = self.take_slowly(region, class, &prepare) {
            return Ok(granule);
        }
        // Rather a slot that is too large than none.
        for class in class.and_larger() {
            self.look_at_all(region, class);
            if !self.has_free(class) {
                self.claim(region, class);
            }
            if let Some(granule) = self.take_slowly(region, class, &prepare) {
                return Ok(granule);
            }
        }
        refilled.and(Err(ObjectsError::Full))
    }

    /// Takes a slot of a class, or whole spans, for a checked client.
    pub(crate) fn allocate_hidden<P: Platform>(
        &mut self,
        region: &Region<P>,
        class: Option<Class>,
        bytes: usize,
        prepare: impl Fn(u32),
    ) -> Result<u32, ObjectsError> {
        self.swap_hidden();
        let taken = match class {
            Some(class) => self.allocate_after(region, class, &prepare),
            None => self.allocate_run(region, bytes),
        };
        self.swap_hidden();
        taken
    }

    fn swap_hidden(&mut self) {
        if let Some(hidden) = &mut self.hidden {
            std::mem::swap(&mut self.lists, hidden);
        }
    }

    /// Gives back an object of the client in one of its own spans; returns whether there is one at this offset.
    #[inline]
    pub(crate) fn free_own<P: Platform>(&mut self, region: &Region<P>, offset: u64) -> bool {
        self.free_by(region, offset, P::Words::try_replace_own_byte)
    }

    /// The same, where it takes more than a store.
    pub(crate) fn free_own_slowly<P: Platform>(&mut self, region: &Region<P>, offset: u64) -> bool {
        self.free_by(region, offset, P::Words::replace_own_byte)
    }

    #[inline]
    fn free_by<P: Platform>(
        &mut self,
        region: &Region<P>,
        offset: u64,
        replace: impl Fn(&P::Words, usize, u8, u8) -> bool,
    ) -> bool {
        // Beyond all granules, unless the offset is a multiple of their size.
        let granule = offset.rotate_right(GRANULE_BYTES.ilog2());
        let span = granule / u64::from(SPAN_GRANULES);
        let Some(kind) = self.kinds.get(span as usize) else { return false };
        let (granule, index) = (granule as u32, usize::from(*kind));
        if index >= PLAIN {
            return false;
        }
        // Commits.
        if !replace(&region.owners, granule as usize, self.id.number(), FREE) {
            return false;
        }
        let freed = &mut self.lists[index].freed;
        if freed.len() < freed.capacity() {
            freed.push(granule);
        } else {
            self.forget(region, granule);
        }
        true
    }

    /// Gives back an object that the client owns, wherever it lies.
    pub(crate) fn free_any<P: Platform>(&mut self, region: &Region<P>, granule: u32) {
        if !self.free_own_slowly(region, region.layout.granule(granule)) {
            self.free_other(region, granule);
        }
    }

    /// Gives back an object that the client owns, in a span of another client or in whole spans.
    #[cold]
    pub(crate) fn free_other<P: Platform>(&mut self, region: &Region<P>, granule: u32) {
        match runs::free(region, self.id, granule) {
            Some(count) => self.expect_run(granule, count),
            // Commits. The client of the span finds it.
            None => region.words.set_byte(region.layout.owner(granule), FREE),
        }
    }

    /// A run was freed. If it is the last one that this client took, its spans are taken next.
    pub(crate) fn expect_run(&mut self, granule: u32, spans: u32) {
        self.runs.freed(span_of(granule), spans);
    }

    /// Counts an object that another client may free.
    #[inline]
    pub(crate) fn count_sent(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// Counts objects that others have freed.
    pub(crate) fn count_freed_by_others(&mut self, objects: usize) {
        self.sent = self.sent.wrapping_add(objects);
    }

    /// Sees to it that a recovery finds what the client is about to own in a span.
    #[inline]
    pub(crate) fn mark<P: Platform>(&mut self, region: &Region<P>, span: u32) {
        if self.kinds[span as usize] == UNKNOWN {
            self.mark_anew(region, span);
        }
    }

    #[cold]
    fn mark_anew<P: Platform>(&mut self, region: &Region<P>, span: u32) {
        spans::mark(region, self.id, span);
        self.kinds[span as usize] = MARKED;
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
        let bin = &self.bins[class.index()];
        let may_be_free = bin.forgotten + self.sent.wrapping_sub(bin.sent);
        let slots = bin.spans.len() * class.slots() as usize;
        if may_be_free > 0 && may_be_free >= slots / PER_FREE {
            self.look_at(region, class, bin.spans.len());
        }
        if self.has_free(class) || self.claim(region, class) {
            return Ok(());
        }
        self.look_at_all(region, class);
        if self.has_free(class) {
            return Ok(());
        }
        // It may fail, such as without a free descriptor. What this client can give back may do.
        let recovered = recover_dead(region);
        self.give_back_all(region);
        if !self.claim(region, class) && recovered? > 0 {
            self.look_at_all(region, class);
        }
        Ok(())
    }

    fn has_free(&self, class: Class) -> bool {
        !self.lists[class.index()].free.is_empty()
    }

    fn take_freed(&mut self, class: Class) {
        let Lists { free, freed, .. } = &mut self.lists[class.index()];
        free.append(freed);
    }

    /// Looks at all own spans, if nothing is in the lists.
    fn look_at_all<P: Platform>(&mut self, region: &Region<P>, class: Class) {
        self.take_freed(class);
        let count = self.bins[class.index()].spans.len();
        if count > 0 && !self.has_free(class) {
            self.look_at(region, class, count);
        }
    }

    /// Looks at so many own spans for free slots, in a circle, until there are enough. No slots of this class are in the lists.
    fn look_at<P: Platform>(&mut self, region: &Region<P>, class: Class, count: usize) {
        let bin = &mut self.bins[class.index()];
        if bin.spans.is_empty() {
            return;
        }
        let mut found = Found::new();
        let (_, begin) = bin.at;
        let mut is_enough = false;
        for turn in 0..=count {
            let (index, slot) = bin.at;
            // The last turn ends where the first one began.
            let end = if turn == count { begin } else { class.slots() };
            let next = found.gather(region, class, bin.spans[index], slot..end);
            if found.is_full() {
                (bin.at, is_enough) = ((index, next), true);
                break;
            }
            if turn < count {
                bin.at = ((index + 1) % bin.spans.len(), 0);
            }
            if found.granules().len() >= bin.worth {
                is_enough = true;
                break;
            }
        }
        bin.forgotten = bin.forgotten.saturating_sub(found.granules().len());
        if !is_enough && count == bin.spans.len() {
            (bin.forgotten, bin.sent) = (0, self.sent);
        }
        // Taken from the end: from low to high addresses.
        self.lists[class.index()].free.extend(found.granules().iter().rev());
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
            // A checked client frees nothing on the fast path.
            let is_fast = self.hidden.is_none();
            self.kinds[span as usize] = if is_fast { class.index() as u8 } else { MARKED };
            let bin = &mut self.bins[class.index()];
            bin.at = (bin.spans.len(), 0);
            bin.spans.push(span);
            bin.forgotten += class.slots() as usize;
            self.look_at(region, class, 1);
            if self.has_free(class) {
                return true;
            }
        }
        false
    }

    #[cold]
    fn forget<P: Platform>(&mut self, region: &Region<P>, granule: u32) {
        let kind = self.kinds[span_of(granule) as usize];
        let Some(class) = Class::at_index(usize::from(kind)) else { return };
        let freed = &mut self.lists[class.index()].freed;
        let bin = &mut self.bins[class.index()];
        bin.forgotten += freed.len();
        freed.clear();
        freed.push(granule);
        if bin.forgotten > bin.most_forgotten {
            self.give_back(region, class, 1);
            // What is not given back is not looked at again soon.
            let bin = &mut self.bins[class.index()];
            bin.most_forgotten = least_kept(&region.layout, class).max(2 * bin.forgotten);
        }
    }

    /// Gives back all empty spans.
    pub(crate) fn give_back_all<P: Platform>(&mut self, region: &Region<P>) {
        for class in Class::all() {
            self.give_back(region, class, 0);
        }
    }

    /// Gives back all empty spans of a class but some, and forgets their slots first. One that stays spares the next
    /// allocation a claim.
    fn give_back<P: Platform>(&mut self, region: &Region<P>, class: Class, stay: usize) {
        self.take_freed(class);
        let Heap { bins, lists, kinds, id, .. } = self;
        let (bin, free) = (&mut bins[class.index()], &mut lists[class.index()].free);
        let mut empty: Vec<u32> = bin.spans.clone();
        empty.retain(|span| spans::is_empty(region, *span));
        empty.truncate(empty.len().min(bin.spans.len().saturating_sub(stay)));
        for span in &empty {
            kinds[*span as usize] = UNKNOWN;
        }
        free.retain(|granule| kinds[span_of(*granule) as usize] != UNKNOWN);
        bin.spans.retain(|span| kinds[*span as usize] != UNKNOWN);
        bin.at = (0, 0);
        bin.forgotten = bin.forgotten.min(bin.spans.len() * class.slots() as usize);
        for span in empty {
            spans::give_back(region, *id, span);
        }
    }

    /// Whether slots of a class are there without a new span, as far as is known.
    pub(crate) fn has_some(&self, class: Class) -> bool {
        let (bin, Lists { free, freed, .. }) =
            (&self.bins[class.index()], &self.lists[class.index()]);
        let may_be_free = bin.forgotten + self.sent.wrapping_sub(bin.sent);
        let slots = bin.spans.len() * class.slots() as usize;
        !free.is_empty() || !freed.is_empty() || may_be_free > slots / PER_FREE
    }

    /// Takes a free slot of this class and no larger one, if none is known.
    pub(crate) fn allocate_in_class<P: Platform>(
        &mut self,
        region: &Region<P>,
        class: Class,
    ) -> Result<Option<u32>, ObjectsError> {
        self.refill(region, class)?;
        Ok(self.take(region, class.index(), |_| ()))
    }

    /// Takes a free slot of the class with this [`Class::index`], if one is known.
    #[inline]
    pub(crate) fn allocate_at<P: Platform>(
        &mut self,
        region: &Region<P>,
        index: usize,
    ) -> Option<u32> {
        self.take(region, index, |_| ())
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
        let recovered = recover_dead(region);
        self.give_back_all(region);
        spans::free_left(region);
        match self.try_run(region, bytes) {
            Some(granule) => Ok(granule),
            None => recovered.and(Err(ObjectsError::NoRun { bytes })),
        }
    }

    fn try_run<P: Platform>(&mut self, region: &Region<P>, bytes: usize) -> Option<u32> {
        let kinds = &mut self.kinds;
        let mut is_marked = |span: u32, is: bool| {
            kinds[span as usize] = if is { MARKED } else { UNKNOWN };
        };
        self.runs.allocate(region, self.id, &mut is_marked, bytes)
    }
}

impl<P: Platform> Keeper<P> for Heap {
    fn mark(&mut self, region: &Region<P>, span: u32) {
        Heap::mark(self, region, span);
    }

    fn count_freed(&mut self) {
        self.count_sent();
    }
}

fn empty_lists() -> Box<[Lists; END]> {
    Box::new([const { Lists { free: Vec::new(), freed: Vec::new(), refused: None } }; END])
}

fn least_kept(layout: &Layout, class: Class) -> usize {
    let spans = ((layout.end_span - layout.first_span) / 32).clamp(1, KEPT_SPANS);
    (spans * class.slots()) as usize
}
