//! Arenas: what threads allocate from.
#![allow(unsafe_code)] // reason: what is used under a lock, and objects without a type

use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use farfork::ObjectsError;
use farfork::memory::{CLASSES, Memory, MemoryClient, class_of};

use crate::errno::keep_errno;
use crate::lock::Lock;
use crate::refusal::misuse;
use crate::spaces::{self, SPAN_BYTES};
use crate::thread::{self, BUSY, Busy};

/// Most arenas.
const MOST: usize = 64;
/// Arenas for each processor, so that threads seldom meet.
const PER_PROCESSOR: usize = 4;
/// Most arenas in a region: each is one of its 126 clients.
const MOST_IN_REGION: usize = 8;
/// Objects of so many bytes and more give their pages back when they are freed.
pub(crate) const DROPPED_BYTES: usize = 1 << 20;
/// Largest slot of several in a span.
const SLOT_BYTES: usize = 32 << 10;

/// What threads allocate from, one at a time.
#[repr(align(128))]
pub(crate) struct Arena {
    lock: Lock,
    /// Used under the lock.
    inner: UnsafeCell<Inner>,
}

// SAFETY: what is in it is used under the lock.
unsafe impl Sync for Arena {}

struct Inner {
    /// The space in which each class was found last.
    current: [u8; CLASSES],
    /// Its client of each space, once it has needed one.
    clients: [Option<Box<MemoryClient>>; spaces::MOST],
}

static ARENAS: [Arena; MOST] = [const {
    let clients = [const { None }; spaces::MOST];
    Arena { lock: Lock::new(), inner: UnsafeCell::new(Inner { current: [0; CLASSES], clients }) }
}; MOST];
/// Threads that have been given an arena.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Makes the arena that a thread can always have; returns whether it is there.
///
/// # Errors
/// Those of [`Memory::client`].
pub(crate) fn make_first(memory: &Memory) -> Result<bool, ObjectsError> {
    let _held = ARENAS[0].lock.hold();
    // SAFETY: under the lock.
    let inner = unsafe { &mut *ARENAS[0].inner.get() };
    inner.clients[0] = memory.client()?.map(Box::new);
    Ok(inner.clients[0].is_some())
}

/// Gives spans without objects back to their spaces.
pub(crate) fn give_back() {
    for arena in &ARENAS {
        let _held = arena.lock.hold();
        // SAFETY: under the lock.
        let inner = unsafe { &mut *arena.inner.get() };
        for (client, memory) in inner.clients.iter_mut().zip(spaces::all()) {
            if let Some(client) = client {
                client.give_back(memory);
            }
        }
    }
}

/// The locks of all arenas.
pub(crate) fn locks() -> impl DoubleEndedIterator<Item = &'static Lock> {
    ARENAS.iter().map(|arena| &arena.lock)
}

impl Arena {
    /// That of this thread, if it has one and is not [`Busy`].
    #[inline]
    pub(crate) fn of_thread() -> Option<&'static Arena> {
        let word = thread::word();
        // SAFETY: other words are addresses of arenas.
        (word > BUSY).then(|| unsafe { &*ptr::with_exposed_provenance::<Arena>(word) })
    }

    pub(crate) fn word(&'static self) -> usize {
        ptr::from_ref(self).expose_provenance()
    }

    /// That of a thread, or one that it gets now.
    pub(crate) fn for_thread(busy: &Busy) -> &'static Arena {
        if let Some(arena) = busy.arena() {
            // SAFETY: as in `of_thread`.
            return unsafe { &*ptr::with_exposed_provenance::<Arena>(arena) };
        }
        let number = THREADS.fetch_add(1, Ordering::Relaxed) % count();
        let arena = &ARENAS[number];
        let is_one = {
            let _held = arena.lock.hold();
            // SAFETY: under the lock.
            unsafe { &mut *arena.inner.get() }.client(0).is_some()
        };
        // A region may have no id left.
        if is_one { arena } else { &ARENAS[0] }
    }

    #[inline]
    pub(crate) fn allocate_known(&self, class: usize) -> Option<NonNull<u8>> {
        let _held = self.lock.hold();
        // SAFETY: under the lock.
        let inner = unsafe { &mut *self.inner.get() };
        let space = usize::from(inner.current[class % CLASSES]) % spaces::MOST;
        inner.clients[space].as_mut()?.allocate_known(spaces::at(space)?, class)
    }

    /// Under the lock also if the object is another arena's: while a process forks, nothing is freed.
    #[inline]
    pub(crate) fn free(&self, object: NonNull<u8>, space: usize, memory: &Memory, offset: usize) {
        let _held = self.lock.hold();
        // SAFETY: under the lock.
        let inner = unsafe { &mut *self.inner.get() };
        let Some(client) = &mut inner.clients[space % spaces::MOST] else {
            free_of_any(object, space, memory, offset);
            return;
        };
        if !client.free_known(memory, offset) {
            let spans = free_of_any(object, space, memory, offset);
            client.expect_spans(offset, spans);
        }
    }

    /// Allocates from this arena, or from spare memory of other arenas once no space has room.
    pub(crate) fn allocate_anywhere(&self, bytes: usize) -> Option<NonNull<u8>> {
        if let Some(object) = self.allocate(bytes) {
            return Some(object);
        }
        let of_other = ARENAS.iter().take(count()).find_map(|arena| {
            // What the arena gives back may be what is missing.
            spaces::forget_full();
            arena.allocate_if_used(bytes)
        });
        of_other.or_else(|| self.allocate_larger(bytes))
    }

    fn allocate(&self, bytes: usize) -> Option<NonNull<u8>> {
        let _held = self.lock.hold();
        // SAFETY: under the lock.
        unsafe { &mut *self.inner.get() }.allocate(bytes)
    }

    fn allocate_if_used(&self, bytes: usize) -> Option<NonNull<u8>> {
        let _held = self.lock.hold();
        // SAFETY: under the lock.
        let inner = unsafe { &mut *self.inner.get() };
        inner.clients.iter().any(Option::is_some).then(|| inner.allocate(bytes))?
    }

    fn allocate_larger(&self, bytes: usize) -> Option<NonNull<u8>> {
        let _held = self.lock.hold();
        // SAFETY: under the lock.
        let inner = unsafe { &mut *self.inner.get() };
        (0..spaces::count()).find_map(|space| {
            let (client, memory) = inner.client(space)?;
            client.allocate_larger(memory, bytes)
        })
    }

    /// Slots of a power of two lie at multiples of it, whole spans at multiples of their size.
    pub(crate) fn allocate_aligned(&self, alignment: usize, bytes: usize) -> Option<NonNull<u8>> {
        if alignment > SPAN_BYTES {
            return None;
        }
        let slot = bytes.max(alignment).checked_next_power_of_two()?;
        let needed = if slot <= SLOT_BYTES { slot } else { bytes.max(SLOT_BYTES + 1) };
        let object = self.allocate_anywhere(needed)?;
        if object.addr().get().is_multiple_of(alignment) {
            return Some(object);
        }
        // A larger slot, as there was no other.
        let (space, memory, offset) = spaces::find(object)?;
        self.free(object, space, memory, offset);
        self.allocate_anywhere(SLOT_BYTES + 1)
    }
}

/// Frees an object of another arena, or of whole spans; returns how many of these are free now.
#[cold]
#[inline(never)]
pub(crate) fn free_of_any(
    object: NonNull<u8>,
    space: usize,
    memory: &Memory,
    offset: usize,
) -> u32 {
    let freed = keep_errno(|| memory.free(offset, DROPPED_BYTES));
    let spans = freed.unwrap_or_else(|| misuse("free", object));
    if spans > 0 {
        spaces::set_freed(space);
    }
    spans
}

/// How many arenas there are.
fn count() -> usize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    match COUNT.load(Ordering::Relaxed) {
        0 => {
            let processors = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
            let most = if spaces::are_private() { MOST } else { MOST_IN_REGION };
            let count = (PER_PROCESSOR * processors as usize).clamp(1, most);
            COUNT.store(count, Ordering::Relaxed);
            count
        }
        count => count,
    }
}

impl Inner {
    fn client(&mut self, space: usize) -> Option<(&mut MemoryClient, &'static Memory)> {
        let memory = spaces::at(space)?;
        let client = &mut self.clients[space];
        if client.is_none() {
            *client = memory.client().ok()?.map(Box::new);
        }
        Some((client.as_mut()?, memory))
    }

    /// Takes what is there, then a new span from low to high, then a new space.
    fn allocate(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let mut count = spaces::count();
        for space in 0..count {
            if let Some(memory) = spaces::at(space)
                && let Some(client) = &mut self.clients[space]
                && client.has_some(memory, bytes)
                && let Some(object) = self.allocate_in(space, bytes)
            {
                return Some(object);
            }
        }
        let mut space = 0;
        loop {
            while space < count {
                if spaces::may_have_room(space, bytes) {
                    if let Some(object) = self.allocate_in(space, bytes) {
                        return Some(object);
                    }
                    spaces::set_full(space, bytes);
                }
                space += 1;
            }
            if !spaces::are_private() || !spaces::grow(count, bytes) {
                return None;
            }
            count = spaces::count();
        }
    }

    fn allocate_in(&mut self, space: usize, bytes: usize) -> Option<NonNull<u8>> {
        let (client, memory) = self.client(space)?;
        let object = client.allocate(memory, bytes)?;
        if let Some(class) = class_of(bytes) {
            self.current[class % CLASSES] = space as u8;
        }
        Some(object)
    }
}
