//! Objects of whole spans.
//!
//! ```text
//!  allocate                                        free
//!   1  marks of all spans                           1  first span := run, of the client that frees
//!   2  each span := claimed        (swap)           2  owner byte := free                   commits
//!   3  first span := run                            3  other spans := free   (swap)
//!   4  other spans := rest                          4  first span := free    (swap)
//!   5  owner byte := client        commits
//! ```
//! A run without an owner belongs to the client in the word of its first span: it is being made or freed. A
//! recovery of that client frees it, from the other spans to the first one. The other spans name the first one:
//! so nothing is freed that has become another client's meanwhile.

use std::ops::Range;

use crate::layout::{ClientId, FREE, Layout, first_granule, span_of};
use crate::region::{Platform, Region, has_fault};
use crate::sizes::spans_for;
use crate::span::Span;
use crate::spans::{self, span, swap};
use crate::words::Words;

/// Where a client looks for free spans beside each other: from the end of the last ones that it took.
#[derive(Debug)]
pub(crate) struct Search {
    next: u32,
}

impl Search {
    pub(crate) fn new(layout: &Layout) -> Search {
        Search { next: layout.first_span }
    }

    /// Takes spans beside each other; returns the first granule. `None` if there are not enough. `is_marked` learns
    /// which spans the client has marked, and which it no longer has.
    pub(crate) fn allocate<P: Platform>(
        &mut self,
        region: &Region<P>,
        id: ClientId,
        is_marked: &mut dyn FnMut(u32, bool),
        bytes: usize,
    ) -> Option<u32> {
        let count = u32::try_from(spans_for(bytes)).ok()?;
        let all = region.layout.spans();
        // The second look ends where a run would begin at which the first one has begun.
        let before = all.start..all.end.min(self.next.saturating_add(count - 1));
        let first = claim_in(region, id, is_marked, self.next..all.end, count)
            .or_else(|| claim_in(region, id, is_marked, before, count))?;
        self.next = first + count;
        Some(make(region, id, is_marked, first, count))
    }

    /// A run was freed. If it was the last one, its spans are taken next, while caches have them.
    pub(crate) fn freed(&mut self, first: u32, count: u32) {
        if first.saturating_add(count) == self.next {
            self.next = first;
        }
    }
}

/// Claims free spans beside each other in a range; returns the first one.
fn claim_in<P: Platform>(
    region: &Region<P>,
    id: ClientId,
    is_marked: &mut dyn FnMut(u32, bool),
    range: Range<u32>,
    count: u32,
) -> Option<u32> {
    let mut first = range.start;
    while first.checked_add(count)? <= range.end {
        match (first..first + count).rev().find(|at| span(region, *at) != Some(Span::Free)) {
            Some(taken) => first = taken + 1,
            None if claim_all(region, id, is_marked, first, count) => return Some(first),
            // Another client was faster.
            None => first += 1,
        }
    }
    None
}

fn claim_all<P: Platform>(
    region: &Region<P>,
    id: ClientId,
    is_marked: &mut dyn FnMut(u32, bool),
    first: u32,
    count: u32,
) -> bool {
    let claimed = Span::Claimed { client: id.number(), first };
    for at in first..first + count {
        spans::mark(region, id, at);
        is_marked(at, true);
        if !swap(region, at, Span::Free, claimed) {
            for at in first..at {
                spans::give_back(region, id, at);
                is_marked(at, false);
            }
            return false;
        }
    }
    true
}

fn make<P: Platform>(
    region: &Region<P>,
    id: ClientId,
    is_marked: &mut dyn FnMut(u32, bool),
    first: u32,
    count: u32,
) -> u32 {
    let Region { words, layout, .. } = region;
    let granule = first_granule(first);
    if has_fault!(P, RunCommitsFirst) {
        words.set_byte(layout.owner(granule), id.number());
    }
    let run = Span::Run { client: id.number(), spans: count };
    words.set_word(layout.span(first), run.word());
    for at in first + 1..first + count {
        words.set_word(layout.span(at), Span::Rest { first }.word());
        // Its first span is marked.
        spans::unmark(region, id, at);
        is_marked(at, false);
    }
    words.set_byte(layout.owner(granule), id.number()); // commits
    granule
}

/// Frees an object of whole spans that the client owns; returns how many, if it is one.
pub(crate) fn free<P: Platform>(region: &Region<P>, id: ClientId, granule: u32) -> Option<u32> {
    let first = span_of(granule);
    let Some(Span::Run { spans: count, .. }) = span(region, first) else { return None };
    let Region { words, layout, .. } = region;
    if granule != first_granule(first) {
        return None;
    }
    let run = Span::Run { client: id.number(), spans: count };
    if has_fault!(P, FreeTakesRunLast) {
        words.set_byte(layout.owner(granule), FREE);
    }
    // Its owner alone writes it.
    words.set_word(layout.span(first), run.word());
    words.set_byte(layout.owner(granule), FREE); // commits
    release(region, id.number(), first, count);
    Some(count)
}

/// Frees the spans of a run without an owner, which belongs to `client`.
fn release<P: Platform>(region: &Region<P>, client: u8, first: u32, count: u32) {
    let end = first.saturating_add(count).min(region.layout.end_span);
    if has_fault!(P, ReleaseFreesFirstSpanFirst) {
        swap(region, first, Span::Run { client, spans: count }, Span::Free);
    }
    for at in first + 1..end {
        match span(region, at) {
            Some(rest @ Span::Rest { first: of }) if of == first => {
                swap(region, at, rest, Span::Free);
            }
            Some(claimed @ Span::Claimed { client: of, .. }) if of == client => {
                swap(region, at, claimed, Span::Free);
            }
            _ => {}
        }
    }
    swap(region, first, Span::Run { client, spans: count }, Span::Free);
}

/// Gives back a run, or what was to become one, of a dead client. The caller holds the client's claim.
pub(crate) fn recover<P: Platform>(region: &Region<P>, id: ClientId, at: u32) {
    // In this order: another client that has freed it had taken over its first span before.
    let owner = region.words.byte(region.layout.owner(first_granule(at)));
    let Some(found) = span(region, at) else { return };
    match found {
        Span::Run { .. } if owner == id.number() => {
            free(region, id, first_granule(at));
        }
        Span::Run { client, spans } if owner == FREE && client == id.number() => {
            release(region, client, at, spans);
        }
        Span::Claimed { client, .. } if client == id.number() => {
            swap(region, at, found, Span::Free);
        }
        _ => {}
    }
}
