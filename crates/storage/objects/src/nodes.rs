//! Objects with references, and the structures that they form.
//!
//! ```text
//!  16 bytes before an object   0  references to it inside its structure, u32   4  its own references, u16   6  0
//!                              8  next granule in a list of the dying; of the root of a shared structure: its record
//!  object                      its references, 8 bytes each, then what its user keeps in it
//! ```
//! A *structure* is what can be reached from its root by references. Its root belongs to a client, a mailbox or a
//! record ([`crate::shared`]); every other object of it has the owner byte [`LINKED`] and a count of the
//! references to it. One client at a time writes references and counts: the owner of the root, or the writer of the shared
//! structure. So counts are ordinary words.
//!
//! Invariants:
//! 1. A reference, the counts at both of its ends and the lists change together, by a [`Redo`].
//! 2. An object whose count becomes 0 is in a list of the dying at once. What is in the list of a dead client is
//!    freed by its recovery.
//! 3. An object of the dying has given its references back before it becomes its client's, and is freed then.

use crate::layout::{ClientId, FREE, LINKED, span_of};
use crate::redo::Redo;
use crate::region::{Platform, Region, has_fault};
use crate::span::Span;
use crate::spans;
use crate::words::Words;

/// What a living client knows of its spans.
pub(crate) trait Keeper<P: Platform> {
    /// Sees to it that a recovery finds what the client is about to own in a span.
    fn mark(&mut self, region: &Region<P>, span: u32);
    /// An object was freed, perhaps in an own span.
    fn count_freed(&mut self);
}

/// A client, or a recovery that acts for a dead one.
pub(crate) struct Actor<'a, P: Platform> {
    pub(crate) region: &'a Region<P>,
    pub(crate) id: ClientId,
    /// Of a client that lives.
    pub(crate) keeper: Option<&'a mut dyn Keeper<P>>,
}

/// An object with references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) granule: u32,
    pub(crate) fields: u32,
    pub(crate) count: u32,
}

/// The object with references at a granule, if its span has such.
pub(crate) fn node<P: Platform>(region: &Region<P>, granule: u32) -> Option<Node> {
    let Some(Span::Slots { class, .. }) = spans::span(region, span_of(granule)) else {
        return None;
    };
    if !class.is_counted() {
        return None;
    }
    let word = region.words.word(header(region, granule));
    let most = class.usable_bytes() / 8;
    let fields = u64::from((word >> 32) as u16).min(most) as u32;
    Some(Node { granule, fields, count: word as u32 })
}

/// The same, if the object belongs to a structure.
fn linked<P: Platform>(region: &Region<P>, granule: u32) -> Option<Node> {
    let owner = region.words.byte(region.layout.owner(granule));
    node(region, granule).filter(|_| owner == LINKED)
}

/// Whether an object has references that mean something.
pub(crate) fn has_references<P: Platform>(region: &Region<P>, granule: u32) -> bool {
    node(region, granule).is_some_and(|node| {
        (0..node.fields).any(|field| region.words.word(node.field(region, field)) != 0)
    })
}

/// Where the header of an object lies.
pub(crate) fn header<P: Platform>(region: &Region<P>, granule: u32) -> usize {
    region.layout.granule(granule) as usize - 16
}

/// Where the second word of the header lies.
pub(crate) fn next<P: Platform>(region: &Region<P>, granule: u32) -> usize {
    header(region, granule) + 8
}

/// First word of the header with another count.
pub(crate) fn header_word(node: Node, count: u32) -> u64 {
    u64::from(count) | u64::from(node.fields) << 32
}

impl Node {
    /// Where one of its references lies.
    pub(crate) fn field<P: Platform>(self, region: &Region<P>, field: u32) -> usize {
        region.layout.granule(self.granule) as usize + 8 * field as usize
    }

    /// The object that one of its references means. `None` also if it is not an object of a structure: then something else
    /// was written there.
    pub(crate) fn target<P: Platform>(self, region: &Region<P>, field: u32) -> Option<Node> {
        let reference = region.words.word(self.field(region, field));
        linked(region, region.granule_of(reference)?)
    }
}

/// Ends a list where something else than an object of a structure follows. What was behind it is lost, as
/// [`Region::check`] shows.
fn end_list<P: Platform>(region: &Region<P>, at: usize) {
    if region.words.word(at) != 0 {
        region.words.set_word(at, 0);
    }
}

/// Prepares the header and the references of a new object, which no other client sees yet.
pub(crate) fn prepare<P: Platform>(region: &Region<P>, granule: u32, fields: u16) {
    region.words.set_word(header(region, granule), u64::from(fields) << 32);
    region.words.set_word(next(region, granule), 0);
    for field in 0..u64::from(fields) {
        region.words.set_word((region.layout.granule(granule) + 8 * field) as usize, 0);
    }
}

impl<P: Platform> Actor<'_, P> {
    /// Lets a reference of `from` mean `to`, or nothing. What it meant before goes to the list at `dying` if it
    /// was the last one.
    pub(crate) fn change(&mut self, from: Node, field: u32, to: Option<Node>, dying: usize) {
        let region = self.region;
        let (old, at) = (from.target(region, field), from.field(region, field));
        if old.map(|old| old.granule) == to.map(|to| to.granule) {
            if to.is_none() && region.words.word(at) != 0 {
                // It means nothing, and is not to be looked at again.
                region.words.set_word(at, 0);
            }
            return;
        }
        let mut redo = Redo::default();
        let reference = to.map_or(0, |to| region.reference_to(to.granule));
        redo.word(at, reference);
        if let Some(to) = to {
            redo.word(header(region, to.granule), header_word(to, to.count.saturating_add(1)));
            redo.byte(region.layout.owner(to.granule), LINKED);
        }
        if let Some(old) = old {
            self.give_back_one(&mut redo, old, dying);
        }
        redo.commit(region, self.id);
    }

    fn give_back_one(&self, redo: &mut Redo, old: Node, dying: usize) {
        let region = self.region;
        let count = old.count.saturating_sub(1);
        redo.word(header(region, old.granule), header_word(old, count));
        if count == 0 {
            redo.word(next(region, old.granule), region.words.word(dying));
            redo.word(dying, u64::from(old.granule));
        }
    }

    /// Puts an object that belongs to the client, or to a structure that it has alone, into the list of its dying.
    pub(crate) fn let_die(&mut self, granule: u32) {
        let region = self.region;
        let dying = region.layout.dying(self.id);
        let mut redo = Redo::default();
        redo.word(next(region, granule), region.words.word(dying));
        redo.word(dying, u64::from(granule));
        redo.byte(region.layout.owner(granule), LINKED);
        redo.commit(region, self.id);
    }

    /// Moves the first object of another list to the list of the client's dying; returns whether there was one.
    pub(crate) fn move_dying(&mut self, from: usize) -> bool {
        let region = self.region;
        let first = region.words.word(from);
        let listed = region.granule_in_spans(first).filter(|at| linked(region, *at).is_some());
        let Some(granule) = listed else {
            end_list(region, from);
            return false;
        };
        let dying = region.layout.dying(self.id);
        let mut redo = Redo::default();
        redo.word(from, region.words.word(next(region, granule)));
        redo.word(next(region, granule), region.words.word(dying));
        redo.word(dying, first);
        redo.commit(region, self.id);
        true
    }

    /// Frees all objects in the list of the client's dying, and what only they refer to.
    pub(crate) fn free_dying(&mut self) {
        let region = self.region;
        let dying = region.layout.dying(self.id);
        while let Some(granule) = region.granule_in_spans(region.words.word(dying)) {
            let Some(first) = linked(region, granule) else { break };
            let mut fields = 0..first.fields;
            match fields.find(|field| region.words.word(first.field(region, *field)) != 0) {
                Some(field) => self.change(first, field, None, dying),
                None => self.free_first(granule, dying),
            }
        }
        end_list(region, dying);
    }

    /// Frees the first object of a list, which has no references left.
    fn free_first(&mut self, granule: u32, dying: usize) {
        let region = self.region;
        let owner = region.layout.owner(granule);
        self.mark(span_of(granule));
        let mut redo = Redo::default();
        redo.word(dying, region.words.word(next(region, granule)));
        redo.byte(owner, self.id.number());
        if has_fault!(P, DyingIsFreedInList) {
            redo = Redo::default();
            region.words.set_byte(owner, FREE);
            redo.word(dying, region.words.word(next(region, granule)));
        }
        redo.commit(region, self.id);
        region.words.set_byte(owner, FREE); // commits
        if let Some(keeper) = &mut self.keeper {
            keeper.count_freed();
        }
    }

    /// Marks a span in which the client will own something.
    pub(crate) fn mark(&mut self, span: u32) {
        match &mut self.keeper {
            Some(keeper) => keeper.mark(self.region, span),
            None => spans::mark(self.region, self.id, span),
        }
    }
}
