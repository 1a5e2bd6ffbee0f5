//! What one client allocates from: its spans, and a private list of their free granules.
//!
//! The list may lack free granules (other clients free objects by their owner bytes alone), but never
//! contains one that is not free: only the client of a span allocates in it.

use crate::error::ObjectsError;
use crate::layout::{ClientId, FREE, Layout, SPAN_GRANULES};
use crate::recovery::recover_dead;
use crate::region::{Platform, Region};
use crate::words::Words;

/// Own spans that are looked through before a new one is claimed.
const LOOKED_THROUGH: usize = 8;
/// A look is worth it from so many granules on.
const WORTH: usize = 64;
/// Spans' worth of free granules that a client keeps at most, if the region has enough of them.
const KEPT_SPANS: u32 = 16;

/// The private part of a client's allocator.
#[derive(Debug)]
pub(crate) struct Heap {
    id: ClientId,
    free: Vec<u32>,
    spans: Vec<u32>,
    /// For each span of the region, whether it is ours.
    is_own: Vec<bool>,
    /// Where the next look through the own spans begins.
    next: usize,
    /// Where the next look for a span begins.
    next_span: u32,
    /// More free granules than this, and empty spans are given back.
    most_free: usize,
}

impl Heap {
    pub(crate) fn new(id: ClientId, layout: &Layout) -> Heap {
        Heap {
            id,
            free: Vec::with_capacity(2 * SPAN_GRANULES as usize),
            spans: Vec::new(),
            is_own: vec![false; layout.spans as usize],
            next: 0,
            next_span: 0,
            most_free: least_kept(layout),
        }
    }

    /// Takes a free granule.
    #[inline]
    pub(crate) fn allocate<P: Platform>(
        &mut self,
        region: &Region<P>,
    ) -> Result<u32, ObjectsError> {
        if self.free.is_empty() {
            self.refill(region)?;
        }
        let granule = self.free.pop().ok_or(ObjectsError::Full)?;
        // Commits. Killed before, the granule is free; after, it is a dead client's.
        region.words.set_byte(region.layout.owner(granule), self.id.number());
        Ok(granule)
    }

    /// Gives back a granule that the client owns.
    #[inline]
    pub(crate) fn free<P: Platform>(&mut self, region: &Region<P>, granule: u32) {
        // Commits.
        region.words.set_byte(region.layout.owner(granule), FREE);
        if self.is_own[(granule / SPAN_GRANULES) as usize] {
            self.free.push(granule);
            if self.free.len() > self.most_free {
                self.give_back_spans(region);
            }
        }
    }

    #[cold]
    fn refill<P: Platform>(&mut self, region: &Region<P>) -> Result<(), ObjectsError> {
        for _ in 0..LOOKED_THROUGH.min(self.spans.len()) {
            self.look_through_next(region);
            if self.free.len() >= WORTH {
                return Ok(());
            }
        }
        if self.claim_spans(region) {
            return Ok(());
        }
        self.look_through_all(region);
        if self.free.is_empty() && recover_dead(region)? > 0 {
            self.claim_spans(region);
            self.look_through_all(region);
        }
        Ok(())
    }

    fn look_through_next<P: Platform>(&mut self, region: &Region<P>) {
        self.next = (self.next + 1) % self.spans.len();
        self.look_through(region, self.spans[self.next]);
    }

    /// Starts with an empty list, so that no granule is in it twice.
    fn look_through_all<P: Platform>(&mut self, region: &Region<P>) {
        self.free.clear();
        for index in 0..self.spans.len() {
            self.look_through(region, self.spans[index]);
        }
    }

    fn look_through<P: Platform>(&mut self, region: &Region<P>, span: u32) {
        let first = span * SPAN_GRANULES;
        for granule in (first..first + SPAN_GRANULES).step_by(8) {
            let mut bytes = region.words.word(region.layout.owner(granule));
            for granule in granule..granule + 8 {
                if bytes as u8 == FREE {
                    self.free.push(granule);
                }
                bytes >>= 8;
            }
        }
    }

    /// Claims spans until one has a free granule; returns whether one has.
    fn claim_spans<P: Platform>(&mut self, region: &Region<P>) -> bool {
        let (count, number) = (region.layout.spans, self.id.number());
        for _ in 0..count {
            let span = self.next_span;
            self.next_span = (span + 1) % count;
            let at = region.layout.span(span);
            if region.words.byte(at) == FREE && region.words.claim_byte(at, FREE, number) {
                self.spans.push(span);
                self.is_own[span as usize] = true;
                self.look_through(region, span);
                if !self.free.is_empty() {
                    return true;
                }
            }
        }
        false
    }

    /// Gives back spans that are empty, and forgets their granules first.
    #[cold]
    fn give_back_spans<P: Platform>(&mut self, region: &Region<P>) {
        let mut empty: Vec<u32> = self.spans.clone();
        empty.retain(|span| is_empty(region, *span));
        // One stays, so that an allocation that follows needs no claim.
        empty.pop();
        for span in &empty {
            self.is_own[*span as usize] = false;
        }
        let is_own = &self.is_own;
        self.free.retain(|granule| is_own[(granule / SPAN_GRANULES) as usize]);
        self.spans.retain(|span| is_own[*span as usize]);
        self.next = 0;
        for span in empty {
            region.words.set_byte(region.layout.span(span), FREE);
        }
        // What is not given back is not looked at again soon.
        self.most_free = least_kept(&region.layout).max(2 * self.free.len());
    }
}

fn is_empty<P: Platform>(region: &Region<P>, span: u32) -> bool {
    let first = span * SPAN_GRANULES;
    let mut words = (first..first + SPAN_GRANULES).step_by(8);
    words.all(|granule| region.words.word(region.layout.owner(granule)) == 0)
}

fn least_kept(layout: &Layout) -> usize {
    let spans = (layout.spans / 8).clamp(1, KEPT_SPANS);
    (spans * SPAN_GRANULES) as usize
}
