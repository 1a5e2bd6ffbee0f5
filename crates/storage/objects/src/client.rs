//! A client of a region: what its user calls.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::checks::Checks;
use crate::error::ObjectsError;
use crate::heap::Heap;
use crate::ids;
use crate::layout::{ClientId, FREE, GRANULE_BYTES, LINKED, span_of};
use crate::mailbox::{self, Ends, Mailbox, Received};
use crate::nodes::{Actor, has_references};
use crate::recovery::give_back;
use crate::region::{Claim, Node, Platform, Region, has_fault};
use crate::sizes::Class;
use crate::spans::{room, span};
use crate::wakes::Side;
use crate::words::Words;

/// How long to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    /// Not at all.
    Poll,
    /// At most so long.
    After(Duration),
    /// For ever.
    Never,
}

/// A sleeping client looks whether the other one is alive as often as this.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// An open handle of a region. One thread at a time uses it; another thread opens its own. Dropped, it gives
/// back all objects that it owns.
pub struct Client<P: Platform = Node> {
    pub(crate) region: Region<P>,
    pub(crate) id: ClientId,
    pub(crate) heap: Heap,
    pub(crate) mailboxes: Vec<Ends>,
    /// Shared structures by their roots: how often this client has received each.
    pub(crate) held: HashMap<u32, u64>,
    /// Changes of shared structures since unlinked objects were looked through.
    pub(crate) unlinked: u32,
    /// Address of the region's first byte.
    pub(crate) address: u64,
    /// What all references have in common.
    tag: u64,
    /// The process that may use it: a forked child may not.
    pub(crate) process: u32,
    /// What a client of a checked region remembers.
    pub(crate) checks: Option<Box<Checks>>,
    /// Last: it ends the client's life.
    _claim: Claim<P>,
}

impl Client {
    /// Becomes a client of a region.
    ///
    /// # Errors
    /// [`ObjectsError`] says why not.
    pub fn open(path: &Path) -> Result<Client, ObjectsError> {
        Client::open_on(path)
    }
}

impl<P: Platform> Client<P> {
    /// The same on another platform.
    ///
    /// # Errors
    /// [`ObjectsError`] says why not.
    pub fn open_on(path: &Path) -> Result<Client<P>, ObjectsError> {
        match Client::open_once(path) {
            // Just now.
            Err(ObjectsError::MetadataReplaced { .. }) => Client::open_once(path),
            opened => opened,
        }
    }

    fn open_once(path: &Path) -> Result<Client<P>, ObjectsError> {
        let region = Region::<P>::open(path)?;
        match ids::take(&region)? {
            Some((id, claim)) => Ok(Client::with(region, id, claim)),
            None => Err(ObjectsError::ClientsFull { path: path.to_owned() }),
        }
    }

    /// The client of an id. Also of a dead one, for which the holder of its claim goes on.
    pub(crate) fn with(region: Region<P>, id: ClientId, claim: Claim<P>) -> Client<P> {
        let checks = Checks::of(&region, id);
        let heap = Heap::new(id, &region.layout, checks.is_some());
        let (address, tag) = (region.header.address, region.tag());
        let (mailboxes, held) = (Vec::new(), HashMap::new());
        let process = std::process::id();
        let unlinked = 0;
        Client {
            region,
            id,
            heap,
            mailboxes,
            held,
            unlinked,
            address,
            tag,
            process,
            checks,
            _claim: claim,
        }
    }

    /// Its id, which no other living client has.
    pub fn id(&self) -> u8 {
        self.id.number()
    }

    /// Its region.
    pub fn region(&self) -> &Region<P> {
        &self.region
    }

    /// Allocates an object of any size, at a multiple of 16. Its bytes are what the last owner left.
    ///
    /// # Errors
    /// [`ObjectsError::Full`], [`ObjectsError::NoRun`].
    #[inline]
    pub fn allocate(&mut self, bytes: usize) -> Result<NonNull<u8>, ObjectsError> {
        match self.allocate_known(bytes) {
            Some(object) => Ok(object),
            None => self.allocate_slowly(bytes),
        }
    }

    /// Allocates from a list of free slots, if there is one.
    #[inline]
    pub(crate) fn allocate_known(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let granule = self.heap.allocate_known(&self.region, bytes)?;
        Some(self.pointer(granule))
    }

    /// The same for C, which needs no pointer that is known not to be null.
    #[inline]
    pub(crate) fn allocate_for_c(&mut self, bytes: usize) -> Option<*mut u8> {
        let granule = self.heap.allocate_known(&self.region, bytes)?;
        let address = self.address + self.region.layout.granule(granule);
        Some(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    #[cold]
    pub(crate) fn allocate_slowly(&mut self, bytes: usize) -> Result<NonNull<u8>, ObjectsError> {
        if self.checks.is_some() {
            let allocated = self.allocate_checked(bytes, None, |_| ());
            return self.judged(allocated);
        }
        let granule = match Class::of(bytes) {
            Some(class) => self.heap.allocate_after(&self.region, class, |_| ())?,
            None => self.heap.allocate_run(&self.region, bytes)?,
        };
        Ok(self.pointer(granule))
    }

    /// Frees an object.
    ///
    /// # Errors
    /// [`ObjectsError::NotOwned`].
    #[inline]
    pub fn free(&mut self, object: NonNull<u8>) -> Result<(), ObjectsError> {
        match self.free_own(object) {
            true => Ok(()),
            false => self.free_slowly(object),
        }
    }

    /// Frees an object of the client that lies in one of its own spans.
    #[inline]
    pub(crate) fn free_own(&mut self, object: NonNull<u8>) -> bool {
        let offset = (object.addr().get() as u64).wrapping_sub(self.address);
        self.heap.free_own(&self.region, offset)
    }

    #[cold]
    pub(crate) fn free_slowly(&mut self, object: NonNull<u8>) -> Result<(), ObjectsError> {
        if self.checks.is_some() {
            let freed = self.free_checked(object);
            return self.judged(freed);
        }
        let granule = self.owned(object, "free")?;
        self.give_up(granule);
        Ok(())
    }

    /// Frees what the client owns, in whatever span it lies.
    pub(crate) fn give_up(&mut self, granule: u32) {
        match has_references(&self.region, granule) {
            true => {
                let mut actor = self.actor();
                actor.let_die(granule);
                actor.free_dying();
            }
            false => self.heap.free_any(&self.region, granule),
        }
    }

    /// Bytes that an object can hold.
    ///
    /// # Errors
    /// [`ObjectsError::NotOwned`].
    pub fn usable_size(&self, object: NonNull<u8>) -> Result<usize, ObjectsError> {
        let granule = self.judged(self.owned(object, "measure"))?;
        if let Some(bytes) = self.asked_for(granule) {
            return Ok(bytes);
        }
        let bytes = room(&self.region, granule).ok_or_else(|| {
            let found = span(&self.region, span_of(granule));
            self.region.damaged(format!("an object lies in a span that is {found:?}"))
        })?;
        Ok(bytes as usize)
    }

    /// A reference to an object of the client or of a structure, which is valid in every process: its distance from
    /// the beginning of the region, and 16 bits of the region's identity above it.
    ///
    /// # Errors
    /// [`ObjectsError::NotOwned`].
    pub fn reference(&self, object: NonNull<u8>) -> Result<u64, ObjectsError> {
        let granule = match self.linked(object) {
            Some(granule) => granule,
            None => self.judged(self.owned(object, "refer to"))?,
        };
        Ok(self.region.reference_to(granule))
    }

    /// The object of a reference. It need not be the client's own.
    ///
    /// # Errors
    /// [`ObjectsError::ForeignReference`].
    #[inline]
    pub fn object(&self, reference: u64) -> Result<NonNull<u8>, ObjectsError> {
        match self.object_known(reference) {
            Some(object) if self.checks.is_none() => Ok(object),
            _ => self.object_slowly(reference),
        }
    }

    /// The same, if nothing else is to be checked. A word that is not a reference of this region is an offset beyond it, or one at which
    /// no object begins: neither has an owner byte.
    #[inline]
    fn object_known(&self, reference: u64) -> Option<NonNull<u8>> {
        let offset = reference ^ self.tag;
        let owner = self.region.words.byte_within(self.region.layout.owner_of_offset(offset));
        let pointer =
            std::ptr::with_exposed_provenance_mut(self.address.wrapping_add(offset) as usize);
        NonNull::new(pointer).filter(|_| owner.is_some_and(|owner| owner != FREE))
    }

    #[cold]
    #[inline(never)]
    fn object_slowly(&self, reference: u64) -> Result<NonNull<u8>, ObjectsError> {
        match self.checks {
            Some(_) => self.judged(self.object_checked(reference)),
            None => Err(ObjectsError::ForeignReference { reference }),
        }
    }

    /// Finds a mailbox by its name, or makes it.
    ///
    /// # Errors
    /// [`ObjectsError::BadName`], [`ObjectsError::BadSlots`] (also if it has another number of slots),
    /// [`ObjectsError::MailboxesFull`].
    pub fn mailbox(&mut self, name: &str, slots: u64) -> Result<Mailbox, ObjectsError> {
        let ends = mailbox::open(&self.region, name, slots)?;
        let known = self.mailboxes.iter().position(|known| known.name() == name);
        let index = known.unwrap_or_else(|| {
            self.mailboxes.push(ends);
            self.mailboxes.len() - 1
        });
        Ok(Mailbox(index))
    }

    /// Sends an object, which is the receiver's from then on. Returns whether there was room in time. The first
    /// send makes this client the mailbox's sender.
    ///
    /// # Errors
    /// [`ObjectsError::NotOwned`], [`ObjectsError::RoleTaken`].
    #[inline]
    pub fn send(
        &mut self,
        mailbox: Mailbox,
        object: NonNull<u8>,
        timeout: Timeout,
    ) -> Result<bool, ObjectsError> {
        let granule = match self.checks {
            None => self.owned(object, "send")?,
            Some(_) => self.sendable(object)?,
        };
        let (region, id) = (&self.region, self.id);
        self.heap.count_sent();
        let ends = &mut self.mailboxes[mailbox.0];
        if ends.send(region, id, granule)? {
            return Ok(true);
        }
        let sent = wait(region, ends, Side::Sender, timeout, |ends| {
            Ok(ends.send(region, id, granule)?.then_some(()))
        })?;
        Ok(sent.is_some())
    }

    /// Receives an object, or the root of a shared structure. `None` if none came in time. The first call makes this client the mailbox's receiver.
    ///
    /// # Errors
    /// [`ObjectsError::RoleTaken`], [`ObjectsError::Damaged`].
    #[inline]
    pub fn receive(
        &mut self,
        mailbox: Mailbox,
        timeout: Timeout,
    ) -> Result<Option<NonNull<u8>>, ObjectsError> {
        if self.checks.is_some() {
            self.judged(self.identify())?;
        }
        let (region, heap) = (&self.region, &mut self.heap);
        let ends = &mut self.mailboxes[mailbox.0];
        let mut received = ends.receive(region, heap)?;
        if received.is_none() {
            received =
                wait(region, ends, Side::Receiver, timeout, |ends| ends.receive(region, heap))?;
        }
        Ok(received.map(|received| match received {
            Received::Object(granule) => self.pointer(granule),
            Received::Root(granule) => {
                *self.held.entry(granule).or_default() += 1;
                self.pointer(granule)
            }
        }))
    }

    /// Messages, and room for messages, that this client found in a mailbox after its sleep had ended by itself: the other
    /// client had died before it woke this one, or came at that moment.
    pub fn late_wakes(&self, mailbox: Mailbox) -> u64 {
        self.mailboxes[mailbox.0].late()
    }

    #[inline]
    pub(crate) fn pointer(&self, granule: u32) -> NonNull<u8> {
        let address = self.address + self.region.layout.granule(granule);
        let pointer = std::ptr::with_exposed_provenance_mut(address as usize);
        NonNull::new(pointer).unwrap_or(NonNull::dangling())
    }

    /// The granule at `object`, if it belongs to a structure.
    pub(crate) fn linked(&self, object: NonNull<u8>) -> Option<u32> {
        let offset = (object.addr().get() as u64).wrapping_sub(self.address);
        let owner = self.region.words.byte_within(self.region.layout.owner_of_offset(offset));
        (owner == Some(LINKED)).then_some((offset / GRANULE_BYTES) as u32)
    }

    pub(crate) fn actor(&mut self) -> Actor<'_, P> {
        Actor { region: &self.region, id: self.id, keeper: Some(&mut self.heap) }
    }

    /// The granule at `object`, if it belongs to this client.
    #[inline]
    pub(crate) fn owned(
        &self,
        object: NonNull<u8>,
        doing: &'static str,
    ) -> Result<u32, ObjectsError> {
        if self.checks.is_some() {
            return self.owned_checked(object, doing);
        }
        let pointer = object.addr().get();
        let offset = (pointer as u64).wrapping_sub(self.address);
        // No object begins where the owner byte is not an owner's: in the middle of one, or in a table.
        let owner = self.region.words.byte_within(self.region.layout.owner_of_offset(offset));
        match owner == Some(self.id.number()) {
            true => Ok((offset / GRANULE_BYTES) as u32),
            false => Err(ObjectsError::NotOwned { doing, pointer }),
        }
    }
}

impl<P: Platform> fmt::Debug for Client<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} of {}", self.id.number(), self.region.path.display())
    }
}

impl<P: Platform> Drop for Client<P> {
    fn drop(&mut self) {
        if self.process == std::process::id() && self.close_checked() {
            give_back(&self.region, self.id);
        }
    }
}

/// Tries again until it works or the time is over: spins for a moment, then sleeps.
pub(crate) fn wait<P: Platform, T>(
    region: &Region<P>,
    ends: &mut Ends,
    side: Side,
    timeout: Timeout,
    mut attempt: impl FnMut(&mut Ends) -> Result<Option<T>, ObjectsError>,
) -> Result<Option<T>, ObjectsError> {
    let end = match timeout {
        Timeout::Poll => return Ok(None),
        Timeout::After(time) => Instant::now().checked_add(time),
        Timeout::Never => None,
    };
    for _ in 0..P::Words::POLLS {
        region.words.relax();
        if let Some(done) = attempt(ends)? {
            return Ok(Some(done));
        }
    }
    let sleeps = side.sleeps(ends.layout());
    region.words.set_word(sleeps, 1);
    let done = sleep(region, ends, side, end, attempt);
    region.words.set_word(sleeps, 0);
    done
}

fn sleep<P: Platform, T>(
    region: &Region<P>,
    ends: &mut Ends,
    side: Side,
    end: Option<Instant>,
    mut attempt: impl FnMut(&mut Ends) -> Result<Option<T>, ObjectsError>,
) -> Result<Option<T>, ObjectsError> {
    let wakes = side.wakes(ends.layout());
    if !has_fault!(P, SleepIsNotOrdered) {
        region.words.order_with_others();
    }
    let mut is_over = false;
    loop {
        let seen = region.words.word(wakes) as u32;
        ends.look_for_holes();
        if let Some(done) = attempt(ends)? {
            ends.count_late(is_over);
            return Ok(Some(done));
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(None);
        }
        let time = left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP));
        is_over = region.words.sleep(wakes, seen, time);
        if is_over {
            ends.look_after_other_end(region)?;
        }
    }
}
