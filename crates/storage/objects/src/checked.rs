//! Clients of a checked region: what they misuse is found and named.
//!
//! A checked client finds nothing in its lists of free slots, and its spans in no table of the fast path. So each of its
//! calls takes the slow path, which comes here, and other regions pay nothing.
//!
//! Freed objects are *held back*: they stay the client's, filled and marked as freed, until a number of others were freed after
//! them. Until then a double free or a use after free meets no other object.

use std::backtrace::Backtrace;
use std::ptr::NonNull;

use crate::census::{self, Seen};
use crate::checks::{Freed, SETTING};
use crate::client::Client;
use crate::error::ObjectsError;
use crate::layout::{FREE, GRANULE_BYTES, IN_MAILBOX, LINKED, SHARED, SPAN_BYTES, first_granule};
use crate::nodes::has_references;
use crate::region::{Platform, has_fault};
use crate::sizes::Class;
use crate::span::Span;
use crate::spans::span;
use crate::trailers::{self, TRAILER_BYTES};
use crate::words::Words;

/// Freed objects that a client holds back.
const HELD_BACK: usize = 1024;
/// One part in so many of a region is held back by a client at most.
const HELD_BACK_PART: u64 = 8;
impl<P: Platform> Client<P> {
    /// What a checked client has found beside the calls that it refused: objects that were written beyond their ends or
    /// after they had been freed. Empty in other regions.
    pub fn findings(&self) -> &[String] {
        self.checks.as_ref().map_or(&[], |checks| &checks.findings)
    }

    /// Whether the id is still this client's. Before any access to the region: a forked child has it not mapped.
    pub(crate) fn identify(&self) -> Result<(), ObjectsError> {
        let Some(checks) = &self.checks else { return Ok(()) };
        let lost = |reason: String| ObjectsError::LostId { id: self.id.number(), reason };
        if self.process != std::process::id() {
            return Err(lost(format!(
                "process {} opened it, and this is its child; call ff_after_fork first",
                self.process
            )));
        }
        let found = self.region.words.word(self.region.layout.incarnation(self.id));
        if found != checks.incarnation && !has_fault!(P, CheckIgnoresIncarnation) {
            let pid = self.region.words.word(self.region.layout.client_pid(self.id));
            return Err(lost(format!(
                "process {pid} has it now, as this client's lock was lost; do not close descriptors that \
                 the program has not opened"
            )));
        }
        Ok(())
    }

    /// Reports a call that was misused.
    pub(crate) fn judged<T>(&self, result: Result<T, ObjectsError>) -> Result<T, ObjectsError> {
        if let (Some(checks), Err(error)) = (&self.checks, &result)
            && matches!(
                error,
                ObjectsError::Misused { .. }
                    | ObjectsError::StaleReference { .. }
                    | ObjectsError::LostId { .. }
            )
        {
            checks.say(&error.to_string());
        }
        result
    }

    /// The granule at `object`, if it belongs to this client and is not freed.
    #[cold]
    pub(crate) fn owned_checked(
        &self,
        object: NonNull<u8>,
        doing: &'static str,
    ) -> Result<u32, ObjectsError> {
        self.identify()?;
        let pointer = object.addr().get();
        let offset = (pointer as u64).wrapping_sub(self.address);
        let owner = self.region.words.byte_within(self.region.layout.owner_of_offset(offset));
        let granule = (offset / GRANULE_BYTES) as u32;
        match owner == Some(self.id.number()) && !self.is_freed(granule) {
            true => Ok(granule),
            false => Err(ObjectsError::Misused { doing, pointer, what: self.explain(offset) }),
        }
    }

    /// An error if the object was written beyond its end.
    pub(crate) fn verify(&self, granule: u32, doing: &'static str) -> Result<(), ObjectsError> {
        if self.checks.is_none() || has_fault!(P, CheckIgnoresPadding) {
            return Ok(());
        }
        let pointer = self.pointer(granule).addr().get();
        match trailers::damage(&self.region, granule) {
            Some(what) => Err(ObjectsError::Misused { doing, pointer, what }),
            None => Ok(()),
        }
    }

    /// The granule of an object that the client may send.
    #[cold]
    pub(crate) fn sendable(&self, object: NonNull<u8>) -> Result<u32, ObjectsError> {
        let granule = self.owned_checked(object, "send").and_then(|granule| {
            self.verify(granule, "send")?;
            Ok(granule)
        });
        self.judged(granule)
    }

    /// Bytes that were asked for an object. `None` in other regions.
    pub(crate) fn asked_for(&self, granule: u32) -> Option<usize> {
        self.checks.as_ref()?;
        trailers::read(&self.region, granule).map(|trailer| trailer.bytes as usize)
    }

    /// The object of a reference, unless another one has its place by now.
    pub(crate) fn object_checked(&self, reference: u64) -> Result<NonNull<u8>, ObjectsError> {
        self.identify()?;
        let stale = |what: String| ObjectsError::StaleReference { reference, what };
        let Some(granule) = self.region.granule_of(reference) else {
            return Err(ObjectsError::ForeignReference { reference });
        };
        let owner = self.region.words.byte(self.region.layout.owner(granule));
        let trailer = trailers::read(&self.region, granule);
        let is_freed = owner == FREE || trailer.is_none_or(|trailer| trailer.is_freed);
        if is_freed {
            return Err(stale(self.explain(self.region.layout.granule(granule))));
        }
        if self.region.reference_to(granule) != reference && !has_fault!(P, CheckIgnoresGeneration)
        {
            let what = self.explain(self.region.layout.granule(granule));
            return Err(stale(format!("its object was freed, and another has its place: {what}")));
        }
        Ok(self.pointer(granule))
    }

    /// Allocates an object with a trailer.
    #[cold]
    pub(crate) fn allocate_checked(
        &mut self,
        bytes: usize,
        class: Option<Class>,
        prepare: impl Fn(u32),
    ) -> Result<NonNull<u8>, ObjectsError> {
        self.identify()?;
        let with_trailer = bytes.saturating_add(TRAILER_BYTES);
        let class = class.or_else(|| Class::of(with_trailer));
        let mut taken = self.heap.allocate_hidden(&self.region, class, with_trailer, &prepare);
        if taken.is_err() {
            self.release_all();
            taken = self.heap.allocate_hidden(&self.region, class, with_trailer, &prepare);
        }
        let granule = taken?;
        let generation = self.checks.as_mut().map_or(0, |checks| {
            checks.generation = checks.generation.wrapping_add(1);
            checks.generation
        });
        trailers::write(&self.region, granule, bytes, generation);
        Ok(self.pointer(granule))
    }

    /// Frees an object, and holds it back unless it has references.
    #[cold]
    pub(crate) fn free_checked(&mut self, object: NonNull<u8>) -> Result<(), ObjectsError> {
        let granule = self.owned_checked(object, "free")?;
        self.verify(granule, "free")?;
        if has_references(&self.region, granule) {
            self.give_up(granule);
            self.heap.count_sent();
            return Ok(());
        }
        let bytes = trailers::read(&self.region, granule).map_or(0, |trailer| trailer.bytes);
        trailers::set_freed(&self.region, granule);
        let most_bytes = self.region.layout.span_bytes() / HELD_BACK_PART;
        let Some(checks) = &mut self.checks else { return Ok(()) };
        checks.frees += 1;
        checks.held_bytes += bytes;
        let (number, place) = (checks.frees, checks.traces.then(Backtrace::force_capture));
        checks.freed.push_back(Freed { granule, bytes, number, place });
        while self
            .checks
            .as_ref()
            .is_some_and(|checks| checks.freed.len() > HELD_BACK || checks.held_bytes > most_bytes)
        {
            self.release_first();
        }
        Ok(())
    }

    /// Really frees the object that has been held back longest; returns whether there is one.
    fn release_first(&mut self) -> bool {
        let Some(checks) = &mut self.checks else { return false };
        let Some(freed) = checks.freed.pop_front() else { return false };
        checks.held_bytes -= freed.bytes;
        let address = self.address + self.region.layout.granule(freed.granule);
        if let Some(what) = trailers::use_after_free(&self.region, freed.granule)
            && !has_fault!(P, CheckIgnoresFill)
        {
            checks.find(format!("at {address:#x}, {what}{}", freed.words()));
        }
        self.heap.free_other(&self.region, freed.granule);
        self.heap.count_sent();
        true
    }

    fn release_all(&mut self) {
        while self.release_first() {}
    }

    /// Before the client closes: looks at all that it holds. Returns whether it may give that back.
    pub(crate) fn close_checked(&mut self) -> bool {
        if self.checks.is_none() {
            return true;
        }
        if let Err(error) = self.identify() {
            let _: Result<(), _> = self.judged(Err(error));
            return false;
        }
        self.release_all();
        let mut damaged = Vec::new();
        census::objects(&self.region, |Seen { granule, owner, .. }| {
            if owner == self.id.number()
                && let Some(what) = trailers::damage(&self.region, granule)
            {
                let address = self.address + self.region.layout.granule(granule);
                damaged.push(format!("at {address:#x}, {what}"));
            }
        });
        if let Some(checks) = &mut self.checks {
            damaged.into_iter().for_each(|what| checks.find(what));
        }
        true
    }

    fn held_back(&self, granule: u32) -> Option<&Freed> {
        let checks = self.checks.as_ref()?;
        checks.freed.iter().find(|freed| freed.granule == granule)
    }

    /// Whether it was freed, by this client or by one in whose name it acts.
    fn is_freed(&self, granule: u32) -> bool {
        let trailer = trailers::read(&self.region, granule);
        trailer.is_some_and(|trailer| trailer.is_freed) && !has_fault!(P, CheckForgetsFrees)
    }

    /// What lies at this place, instead of an object of the client.
    fn explain(&self, offset: u64) -> String {
        let (region, layout) = (&self.region, &self.region.layout);
        if offset >= region.header.bytes {
            let end = self.address + region.header.bytes;
            return format!(
                "it lies outside of the region, which is from {:#x} to {end:#x}",
                self.address
            );
        }
        let at = (offset / SPAN_BYTES) as u32;
        if !layout.spans().contains(&at) {
            return "it lies in a table of the region".to_owned();
        }
        let granule = match span(region, at) {
            Some(Span::Slots { class, .. }) => {
                let slot = (offset % SPAN_BYTES / class.bytes()) as u32;
                first_granule(at) + slot * class.granules() + class.lead()
            }
            Some(Span::Run { .. }) => first_granule(at),
            Some(Span::Rest { first }) if layout.spans().contains(&first) => first_granule(first),
            _ => return "it lies in free memory".to_owned(),
        };
        let begin = layout.granule(granule);
        let place = match offset.checked_sub(begin) {
            Some(0) => "it is".to_owned(),
            Some(within) => format!("it lies {within} bytes after the beginning of"),
            None => "it lies in the header of".to_owned(),
        };
        format!("{place} {}", self.describe(granule))
    }

    fn describe(&self, granule: u32) -> String {
        let trailer = trailers::read(&self.region, granule);
        let Some(trailer) = trailer else { return "memory without an object".to_owned() };
        let bytes = trailer.bytes;
        if let Some(freed) = self.held_back(granule) {
            return format!("an object of {bytes} bytes that this client freed{}", freed.words());
        }
        match self.region.words.byte(self.region.layout.owner(granule)) {
            FREE => format!("the place of an object of {bytes} bytes that was freed"),
            IN_MAILBOX => format!("an object of {bytes} bytes that was sent and is in a mailbox"),
            LINKED => format!("an object of {bytes} bytes of a structure"),
            SHARED => "the record of a shared structure".to_owned(),
            client if trailer.is_freed => {
                format!("an object of {bytes} bytes that client {client} freed")
            }
            client => format!("an object of {bytes} bytes of client {client}"),
        }
    }
}

impl Freed {
    fn words(&self) -> String {
        let number = self.number;
        let Some(place) = &self.place else {
            return format!(" (its free number {number}; {SETTING}=trace shows the place)");
        };
        let trace = place.to_string();
        format!(" (its free number {number}), at:\n{}", callers(&trace).join("\n"))
    }
}

/// Frames that a message shows.
const FRAMES: usize = 5;

/// The first frames of a trace outside of this library.
fn callers(trace: &str) -> Vec<&str> {
    let is_frame = |line: &str| line.trim_start().starts_with(|first: char| first.is_ascii_digit());
    let is_own = |line: &str| {
        ["free_checked", "free_slowly", "ff_free", "Client<", ": free<"]
            .iter()
            .any(|own| line.contains(own))
    };
    let lines: Vec<_> = trace.lines().collect();
    let begin =
        lines.iter().rposition(|line| is_frame(line) && is_own(line)).map_or(0, |at| at + 1);
    let mut frames = 0;
    let is_wanted = |line: &&&str| {
        frames += usize::from(is_frame(line));
        frames <= FRAMES
    };
    lines[begin..]
        .iter()
        .skip_while(|line| !is_frame(line))
        .take_while(is_wanted)
        .copied()
        .collect()
}
