//! A region, or memory of one process, as `libfarfork_malloc.so` uses it.
//!
//! Each arena of a process is a client ([`MemoryClient`]). It differs from a [`crate::Client`]:
//! 1. The clients of a process free each other's objects by their owner bytes, as a receiver frees what was sent to it. The
//!    program's own order of an allocation and a free keeps one writer of a byte at a time. An object of whole spans is freed in the
//!    name of its owner, whose marks a recovery looks at.
//! 2. A client lives until its process ends. Its lock needs no descriptor, as a program closes descriptors that it does not know.
//! 3. A forked child becomes no client. It gets a copy of what its parent's clients have, at the same addresses and of its own
//!    ([`Memory::make_private`]): a program expects that of `fork()`.
//! 4. Memory of one process has no other clients, and so neither locks nor recovery.
#![allow(unsafe_code)] // reason: drops the pages of free spans

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use nix::sys::mman::MmapAdvise;

use crate::error::ObjectsError;
use crate::header::{Header, Metadata};
use crate::heap::Heap;
use crate::ids;
use crate::layout::{CLIENTS, ClientId, FREE, GRANULE_BYTES, Layout, SPAN_BYTES, first_granule};
use crate::liveness::{KernelClaim, KernelLocks, Liveness};
use crate::region::{Platform, Region};
use crate::runs;
use crate::sizes::Class;
use crate::span::Span;
use crate::spans::{self, span};
use crate::words::{Mapped, Words};

/// What a region runs on when `malloc` uses it.
#[derive(Debug)]
pub struct OfProcess;

impl Platform for OfProcess {
    type Words = Mapped;
    type Liveness = Others;
}

/// Which other processes use the memory.
#[derive(Debug, Clone)]
pub enum Others {
    /// None can.
    None,
    /// Clients of a region. No descriptor is kept: the program could close it, and open another file with its number.
    Region(Arc<Place>),
}

/// Where a region is.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Whether this process has left it, and has a copy of its own.
    is_left: AtomicBool,
}

impl From<File> for Others {
    fn from(file: File) -> Others {
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let path = fs::read_link(&path).unwrap_or(path);
        let (device, inode) = file.metadata().map_or((0, 0), |found| (found.dev(), found.ino()));
        Others::Region(Arc::new(Place { path, device, inode, is_left: AtomicBool::new(false) }))
    }
}

impl Others {
    /// Whether no other process uses the memory, or none any more.
    fn are_none(&self) -> bool {
        match self {
            Others::None => true,
            Others::Region(place) => place.is_left.load(Ordering::Acquire),
        }
    }

    /// The locks of the region. `None` if no other process uses the memory.
    fn locks(&self) -> io::Result<Option<KernelLocks>> {
        let Others::Region(place) = self else { return Ok(None) };
        if self.are_none() {
            return Ok(None);
        }
        let mut options = File::options();
        let file =
            options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&place.path)?;
        let found = file.metadata()?;
        match (found.dev(), found.ino()) == (place.device, place.inode) {
            true => Ok(Some(KernelLocks::new(file))),
            false => Err(io::Error::from_raw_os_error(libc::ESTALE)),
        }
    }
}

impl Liveness for Others {
    /// Without other processes, nothing is to be held.
    type Claim = Option<KernelClaim>;

    fn claim(&self, id: ClientId) -> io::Result<Option<Option<KernelClaim>>> {
        match self.locks()? {
            Some(locks) => Ok(locks.claim(id)?.map(Some)),
            None => Ok(Some(None)),
        }
    }

    /// By one descriptor, of which the program may have few.
    fn claim_all(&self) -> io::Result<Option<Vec<Option<KernelClaim>>>> {
        let Some(locks) = self.locks()? else { return Ok(Some(Vec::new())) };
        Ok(locks.claim_all()?.map(|claims| claims.into_iter().map(Some).collect()))
    }

    fn is_alive(&self, id: ClientId) -> io::Result<bool> {
        // Without other processes, nothing is to be recovered.
        self.locks()?.map_or(Ok(true), |locks| locks.is_alive(id))
    }

    fn is_held_by(&self, id: ClientId, pid: u32) -> bool {
        self.locks().ok().flatten().is_some_and(|locks| locks.is_held_by(id, pid))
    }

    fn turn(&self) -> io::Result<Option<KernelClaim>> {
        self.locks()?.map(|locks| locks.turn()).transpose()
    }
}

/// Memory that the arenas of a process allocate from.
pub struct Memory {
    region: Region<OfProcess>,
    /// Ids of this process's clients, one bit for each.
    own: [AtomicU64; 2],
    /// Objects of each client that were freed in the name of it.
    freed: [AtomicU32; 128],
}

/// An arena of a process.
#[derive(Debug)]
pub struct MemoryClient {
    heap: Heap,
}

/// The place of objects of so many bytes in the lists of a client. `None` if they take whole spans.
#[inline]
pub fn class_of(bytes: usize) -> Option<usize> {
    Class::index_of(bytes)
}

/// Most places of [`class_of`].
pub const CLASSES: usize = 64;

impl Memory {
    /// Memory of this process alone.
    ///
    /// # Errors
    /// Those of `mmap`; `EINVAL` for a size that a region cannot have.
    pub fn private(bytes: u64) -> io::Result<Memory> {
        let layout = Layout::of(bytes).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let words = Mapped::private(bytes, SPAN_BYTES as usize)?;
        let header = Header {
            bytes,
            address: words.address(),
            uuid: [0; 16],
            is_checked: false,
            metadata: Metadata::Region,
        };
        let memory = Memory::of(Region::in_memory(words, Others::None, layout, header));
        for tables in memory.tables() {
            // Few of their pages are ever touched.
            // SAFETY: drops nothing.
            let _ = unsafe { memory.region.words.advise(tables, MmapAdvise::MADV_NOHUGEPAGE) };
        }
        Ok(memory)
    }

    /// A region. Functions that the caller registers for forks (`pthread_atfork`) afterwards may wait for threads that use it.
    ///
    /// # Errors
    /// Those of [`Region::open`].
    pub fn open(path: &Path) -> Result<Memory, ObjectsError> {
        KernelLocks::expect_forks();
        Ok(Memory::of(Region::open(path)?))
    }

    fn of(region: Region<OfProcess>) -> Memory {
        Memory { region, own: Default::default(), freed: [const { AtomicU32::new(0) }; 128] }
    }

    /// Whether clients of the region check what they are passed, which no [`MemoryClient`] does.
    pub fn is_checked(&self) -> bool {
        self.region.header.is_checked
    }

    /// Address of the first byte.
    pub fn address(&self) -> usize {
        self.region.header.address as usize
    }

    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        self.region.header.bytes as usize
    }

    /// Makes a client of this process. `None` if there are as many as there can be.
    ///
    /// # Errors
    /// [`ObjectsError::Io`].
    pub fn client(&self) -> Result<Option<MemoryClient>, ObjectsError> {
        let id = match self.is_private() {
            true => ClientId::all().find(|id| self.add_own(*id)),
            false => self.take_id()?,
        };
        Ok(id.map(|id| MemoryClient { heap: Heap::new(id, &self.region.layout, false) }))
    }

    fn take_id(&self) -> Result<Option<ClientId>, ObjectsError> {
        let region = &self.region;
        let Some((id, claim)) = ids::take(region)? else { return Ok(None) };
        if let Some(claim) = claim {
            // If it fails, the claim is gone, and the id may be another process's already: a recovery clears it.
            let failed = ObjectsError::io("keep an id in the region", &region.path);
            claim.hold_until_exit().map_err(failed)?;
        }
        self.add_own(id);
        Ok(Some(id))
    }

    /// Makes an id one of this process's; returns whether it was not.
    fn add_own(&self, id: ClientId) -> bool {
        let (word, bit) = (usize::from(id.number() / 64), 1 << (id.number() % 64));
        self.own[word].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    fn is_own(&self, client: u8) -> bool {
        let word = self.own.get(usize::from(client / 64));
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (client % 64) & 1 == 1)
    }

    /// The client of this process that owns the object at this offset, if there is one.
    fn owner(&self, offset: usize) -> Option<u8> {
        let at = self.region.layout.owner_of_offset(offset as u64);
        let owner = self.region.words.byte_within(at).filter(|owner| *owner != FREE)?;
        self.is_own(owner).then_some(owner)
    }

    /// Bytes of the object at this offset. `None` if there is no object of this process.
    pub fn room(&self, offset: usize) -> Option<usize> {
        self.owner(offset)?;
        Some(spans::room(&self.region, granule(offset))? as usize)
    }

    /// Frees the object at this offset, whichever client of this process owns it, and returns how many whole spans this
    /// has freed. Returns `None` if no object begins there. An object of whole spans with at least `drop_from` bytes gives
    /// its pages back to the kernel, if the memory is the process's own.
    pub fn free(&self, offset: usize, drop_from: usize) -> Option<u32> {
        let owner = self.owner(offset)?;
        let id = ClientId::new(owner)?;
        let granule = granule(offset);
        if let Some(bytes) = spans::room(&self.region, granule)
            && self.is_private()
            && bytes >= drop_from as u64
        {
            let part = offset as u64..offset as u64 + bytes;
            // SAFETY: the program has freed the object, and nothing else lies in its spans.
            let _ = unsafe { self.region.words.advise(part, MmapAdvise::MADV_DONTNEED) };
        }
        let spans = runs::free(&self.region, id, granule);
        if spans.is_none() {
            // Commits. The client of the span finds it.
            self.region.words.set_byte(self.region.layout.owner(granule), FREE);
            self.freed[usize::from(owner)].fetch_add(1, Ordering::Relaxed);
        }
        Some(spans.unwrap_or(0))
    }

    /// Gives the pages of free spans back to the machine, if the memory is the process's own. Returns whether there were any.
    pub fn trim(&self) -> bool {
        if !self.is_private() {
            return false;
        }
        let region = &self.region;
        spans::free_left(region);
        let mut is_any = false;
        for at in region.layout.spans() {
            let claimed = Span::Claimed { client: CLIENTS, first: at };
            if span(region, at) != Some(Span::Free) || !spans::swap(region, at, Span::Free, claimed)
            {
                continue;
            }
            let start = u64::from(at) * SPAN_BYTES;
            // SAFETY: nothing lies in a free span, and no client can claim it meanwhile.
            let dropped = unsafe {
                region.words.advise(start..start + SPAN_BYTES, MmapAdvise::MADV_DONTNEED)
            };
            is_any |= dropped.is_ok();
            spans::swap(region, at, claimed, Span::Free);
        }
        is_any
    }

    /// Whether no other process has it. Otherwise a child of `fork()` needs [`Memory::make_private`].
    pub fn is_private(&self) -> bool {
        self.region.liveness.are_none()
    }

    /// Before a fork: lets the child have the region, which it otherwise does not. After it, in the parent: no longer.
    ///
    /// # Errors
    /// Those of `madvise`.
    pub fn keep_in_child(&self, is_kept: bool) -> io::Result<()> {
        let advice = if is_kept { MmapAdvise::MADV_DOFORK } else { MmapAdvise::MADV_DONTFORK };
        // SAFETY: drops nothing.
        unsafe { self.region.words.advise(0..self.region.header.bytes, advice) }
    }

    /// In a forked child, while no thread of its parent changes spans: replaces the region by a copy of what this process's clients
    /// have there. No other process sees it.
    ///
    /// # Errors
    /// [`ObjectsError::Io`], of `mmap` and `mremap`.
    pub fn make_private(&self) -> Result<(), ObjectsError> {
        let region = &self.region;
        // Marks are for recoveries, which need not be.
        let tables = 0..region.layout.span(region.layout.end_span) as u64;
        let mut parts = vec![tables];
        for at in region.layout.spans() {
            let count = match span(region, at) {
                Some(Span::Slots { client, .. }) if self.is_own(client) => 1,
                Some(Span::Run { client, spans }) if self.is_own(client) => spans,
                _ => continue,
            };
            let end = at.saturating_add(count).min(region.layout.end_span);
            parts.push(u64::from(at) * SPAN_BYTES..u64::from(end) * SPAN_BYTES);
            let owner = |span| region.layout.owner(first_granule(span)) as u64;
            parts.push(owner(at)..owner(end));
        }
        let failed = ObjectsError::io("copy, for a forked child, the objects of", &region.path);
        region.words.make_private(&parts).map_err(failed)?;
        if let Others::Region(place) = &self.region.liveness {
            place.is_left.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// What lies before and after the spans.
    fn tables(&self) -> Vec<Range<u64>> {
        let (layout, all) = (&self.region.layout, self.region.header.bytes);
        let [first, end] =
            [layout.first_span, layout.end_span].map(|at| u64::from(at) * SPAN_BYTES);
        vec![0..first, end..all]
    }

    fn pointer(&self, granule: u32) -> Option<NonNull<u8>> {
        let address = self.region.header.address + self.region.layout.granule(granule);
        NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize))
    }
}

impl MemoryClient {
    /// Takes a free slot of a class ([`class_of`]), if one is known.
    #[inline]
    pub fn allocate_known(&mut self, memory: &Memory, class: usize) -> Option<NonNull<u8>> {
        let granule = self.heap.allocate_at(&memory.region, class)?;
        memory.pointer(granule)
    }

    /// Whether slots for so many bytes are there without a new span, as far as is known.
    pub fn has_some(&mut self, memory: &Memory, bytes: usize) -> bool {
        self.count_freed(memory);
        Class::of(bytes).is_some_and(|class| self.heap.has_some(class))
    }

    /// Takes a slot for so many bytes, and none for more; or whole spans, if they need these.
    pub fn allocate(&mut self, memory: &Memory, bytes: usize) -> Option<NonNull<u8>> {
        self.count_freed(memory);
        let granule = match Class::of(bytes) {
            Some(class) => self.heap.allocate_in_class(&memory.region, class).ok()??,
            None => self.heap.allocate_run(&memory.region, bytes).ok()?,
        };
        memory.pointer(granule)
    }

    /// Takes a slot for so many bytes or more.
    pub fn allocate_larger(&mut self, memory: &Memory, bytes: usize) -> Option<NonNull<u8>> {
        let class = Class::of(bytes)?;
        let granule = self.heap.allocate_after(&memory.region, class, |_| ()).ok()?;
        memory.pointer(granule)
    }

    /// Frees an object of this client in one of its spans; returns whether it is one.
    #[inline]
    pub fn free_known(&mut self, memory: &Memory, offset: usize) -> bool {
        self.heap.free_own(&memory.region, offset as u64)
    }

    /// Whole spans at this offset were freed: this client takes them next if they were the last that it took.
    pub fn expect_spans(&mut self, offset: usize, spans: u32) {
        self.heap.expect_run(granule(offset), spans);
    }

    /// Gives spans without objects back to the memory.
    pub fn give_back(&mut self, memory: &Memory) {
        self.heap.give_back_all(&memory.region);
    }

    fn count_freed(&mut self, memory: &Memory) {
        let freed = &memory.freed[usize::from(self.heap.id().number())];
        self.heap.count_freed_by_others(freed.swap(0, Ordering::Relaxed) as usize);
    }
}

fn granule(offset: usize) -> u32 {
    (offset as u64 / GRANULE_BYTES) as u32
}
