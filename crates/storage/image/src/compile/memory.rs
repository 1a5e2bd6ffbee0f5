//! The ops that build the clone's address space.
//!
//! Every region is cut where segments of the image begin and end into pieces of one kind, and
//! neighbours that the kernel can map in one call are joined again:
//!
//! ```text
//!  region    ├──────────────── rw, anonymous ────────────────┤├── r-x, libfoo ──┤
//!  segments  ├─────────────────────┤                     ├─────┤├───────────────┤
//!  pieces    ├─ pool, rw ──────────┤├─ anonymous, rw ────┤├ pool┤├ pool, r-x ────┤
//! ```
//! A piece shows the pool as far as its segment reaches and not a byte beyond: what lies beside
//! it in the chunk may be another part of the process.

use std::os::unix::ffi::OsStrExt;

use farfork_plan::protocol::SLOT_IMAGE;
use farfork_plan::{FileRange, Op, TraitRange, What, Window, nr, traits};

use super::arena::Arena;
use super::place::Opener;
use super::{Subject, mounts, place, shared};
use crate::model::{Backing, FileStamp, Member, Memory, Region};
use crate::mounts::on_node;

/// Slot for the descriptor of a mapped file; descriptors of the process are made later.
const SLOT_FILE: u8 = 249;

/// The address space in the form of a plan.
pub struct Compiled {
    /// In order.
    pub ops: Vec<Op>,
    windows: Vec<Window>,
    files: Vec<FileRange>,
    traits: Vec<TraitRange>,
}

impl Compiled {
    /// Where what is stored lies in the pool; `tag` marks the process.
    pub fn windows(&self, tag: u64) -> impl Iterator<Item = Window> {
        self.windows.iter().map(move |w| Window { address: w.address | tag, ..*w })
    }

    /// Attributes of memory by address, likewise.
    pub fn traits(&self, tag: u64) -> impl Iterator<Item = TraitRange> {
        self.traits.iter().map(move |t| TraitRange { start: t.start | tag, end: t.end | tag, ..*t })
    }

    /// Private file mappings by address, likewise.
    pub fn files(&self, tag: u64) -> impl Iterator<Item = FileRange> {
        self.files.iter().map(move |f| FileRange { start: f.start | tag, end: f.end | tag, ..*f })
    }
}

const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;

/// What a piece of a region becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A private mapping of the pool from this offset.
    Pool(u64),
    /// Anonymous memory.
    Zeros,
    /// The region's file from this offset.
    File(u64),
}

#[derive(Clone, Debug)]
struct Piece {
    start: u64,
    end: u64,
    source: Source,
    region: usize,
}

struct Compiler<'m> {
    member: &'m Member,
    ops: Vec<Op>,
    opener: Opener,
}

/// Compiles the memory of `subject`.
pub fn compile(subject: Subject<'_>, arena: &mut Arena) -> Compiled {
    let member = subject.member;
    let opener = Opener::new(member, arena);
    let mut compiler = Compiler { member, ops: Vec::new(), opener };
    if !subject.model.is_tree() {
        compiler.ops.extend(mounts::ops(&subject.model.mounts, arena));
    }
    let (start, bytes) = member.memory.vdso;
    compiler.ops.push(Op::new(What::Vdso, nr::MOVE_VDSO, &[start, bytes]));
    compiler.allocate_keys();
    let pieces = compiler.pieces();
    for piece in join(&member.memory, pieces) {
        compiler.map(&piece, arena);
    }
    compiler.opener.resume(&mut compiler.ops);
    compiler.ops.extend(shared::compile(subject, arena));
    for region in &member.memory.regions {
        compiler.fill(region);
        compiler.advise(region);
    }
    compiler.make_aio_rings();
    compiler.guard_and_seal();
    compiler.describe(arena);
    Compiled {
        ops: compiler.ops,
        windows: windows(&member.memory),
        files: files(subject, arena),
        traits: attributes(member),
    }
}

fn windows(memory: &Memory) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::new();
    for segment in &memory.stored.segments {
        let (address, bytes) = (segment.address, segment.bytes);
        let place = segment.offset(address);
        match windows.last_mut() {
            Some(last)
                if last.address + last.bytes == address && last.place + last.bytes == place =>
            {
                last.bytes += bytes;
            }
            _ => windows.push(Window { place, bytes, address }),
        }
    }
    windows
}

fn files(subject: Subject<'_>, arena: &mut Arena) -> Vec<FileRange> {
    let mut ranges = Vec::new();
    for region in &subject.member.memory.regions {
        if let Backing::PrivateFile(file, offset) = &region.backing {
            // The supervisor, which opens it, does not have the process's own mounts.
            let path = on_node(&subject.model.mounts, &file.path);
            let path = arena.text(path.as_os_str().as_bytes());
            let (start, end) = (region.start, region.end);
            ranges.push(FileRange { start, end, file_offset: *offset, path });
        }
    }
    ranges
}

fn attributes(member: &Member) -> Vec<TraitRange> {
    let is_locking = member.process.locks_future != 0;
    let common = if is_locking { traits::LOCKS_FUTURE } else { 0 };
    let range = |region: &Region| {
        let (start, end, traits) = (region.start, region.end, region.attributes() | common);
        (traits != 0).then_some(TraitRange { start, end, traits })
    };
    member.memory.regions.iter().filter_map(range).collect()
}

impl Region {
    /// What of its attributes the supervisor gives to memory that it puts in the region's place.
    fn attributes(&self) -> u64 {
        let own = self.traits;
        let bits = [
            (own.dont_fork, traits::DONT_FORK),
            (own.dont_dump, traits::DONT_DUMP),
            (own.huge, traits::HUGE),
            (own.no_huge, traits::NO_HUGE),
            (own.mergeable, traits::MERGEABLE),
            (own.no_reserve, traits::NO_RESERVE),
            (own.locked, traits::LOCKED),
        ];
        bits.into_iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit)
    }

    /// Contents of these regions are copied, not shared: the kernel allows the attribute on
    /// anonymous memory only (`MADV_WIPEONFORK`, `MAP_DROPPABLE`, `MAP_GROWSDOWN`), or the
    /// supervisor could not replace the mapping later as it was (`mseal`, protection keys), or it
    /// takes huge pages of the node's. The stack is among them also
    /// because `/proc/PID/cmdline` is read from anonymous memory only.
    pub(crate) fn must_be_anonymous(&self) -> bool {
        let traits = self.traits;
        if self.object().is_some() {
            return false;
        }
        let has_key = traits.protection_key != 0;
        let is_special = has_key || self.is_huge();
        traits.wipe_on_fork || traits.droppable || traits.grows_down || traits.sealed || is_special
    }

    /// Whether what is stored of it is mapped from the pool, and not copied at the start.
    pub(crate) fn shows_pool(&self) -> bool {
        let is_private = matches!(self.backing, Backing::Anonymous | Backing::PrivateFile(..));
        is_private && !self.must_be_anonymous()
    }

    /// Whether it takes huge pages that were set aside.
    fn is_huge(&self) -> bool {
        self.traits.page_shift != 0
    }
}

impl Compiler<'_> {
    /// Whether what is stored of it is copied at the start, and not mapped.
    fn is_copied(&self, region: &Region) -> bool {
        region.must_be_anonymous() || self.member.memory.is_copied && region.shows_pool()
    }

    /// Whether it can only be written before it gets its protection.
    fn is_filled_first(&self, region: &Region) -> bool {
        let is_writable = region.prot & libc::PROT_WRITE as u32 != 0;
        self.is_copied(region) && !region.traits.droppable && !is_writable
    }

    fn pieces(&self) -> Vec<Piece> {
        let regions = self.member.memory.regions.iter().enumerate();
        let regions = regions.filter(|(_, region)| region.object().is_none());
        regions.flat_map(|(index, region)| self.cut(index, region)).collect()
    }

    fn cut(&self, index: usize, region: &Region) -> Vec<Piece> {
        let whole = match &region.backing {
            Backing::SharedFile { offset, .. } => Some(Source::File(*offset)),
            _ => region.must_be_anonymous().then_some(Source::Zeros),
        };
        let piece = |start, end, source| Piece { start, end, source, region: index };
        if let Some(source) = whole {
            return vec![piece(region.start, region.end, source)];
        }
        let mut pieces = Vec::new();
        let mut at = region.start;
        for segment in self.member.memory.stored.segments_in(region.start, region.end) {
            let (from, to) = (segment.address.max(at), segment.end().min(region.end));
            if at < from {
                pieces.push(piece(at, from, unstored(region, at)));
            }
            let stored = Source::Pool(segment.offset(from));
            let is_copied = self.member.memory.is_copied;
            pieces.push(piece(from, to, if is_copied { Source::Zeros } else { stored }));
            at = to;
        }
        if at < region.end {
            pieces.push(piece(at, region.end, unstored(region, at)));
        }
        pieces
    }

    fn map(&mut self, piece: &Piece, arena: &mut Arena) {
        let region = &self.member.memory.regions[piece.region];
        let (start, bytes) = (piece.start, piece.end - piece.start);
        let prot = u64::from(region.prot);
        let fixed = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
        let op = |args: &[u64]| Op::new(What::Map, libc::SYS_mmap as u32, args);
        match piece.source {
            Source::Pool(offset) => {
                let flags = fixed | libc::MAP_NORESERVE as u64;
                let args = [start, bytes, prot, flags, SLOT_IMAGE.into(), offset];
                self.ops.push(op(&args).slot_arg(4));
            }
            Source::Zeros => {
                let flags = anonymous_flags(region);
                let prot = if self.is_filled_first(region) { READ_WRITE } else { prot };
                let what = if region.is_huge() { What::HugePages } else { What::Map };
                let args = [start, bytes, prot, flags, u64::MAX, 0];
                self.ops.push(Op::new(what, libc::SYS_mmap as u32, &args));
            }
            Source::File(offset) => self.map_file(region, piece, offset, arena),
        }
    }

    fn map_file(&mut self, region: &Region, piece: &Piece, offset: u64, arena: &mut Arena) {
        let (file, kind, access) = match &region.backing {
            Backing::SharedFile { file, is_writable: true, .. } => {
                (file, libc::MAP_SHARED, libc::O_RDWR)
            }
            Backing::SharedFile { file, .. } => (file, libc::MAP_SHARED, libc::O_RDONLY),
            Backing::PrivateFile(file, _) => (file, libc::MAP_PRIVATE, libc::O_RDONLY),
            Backing::Anonymous | Backing::Object { .. } => return,
        };
        let bytes = piece.end - piece.start;
        let flags = (kind | libc::MAP_FIXED | libc::MAP_NORESERVE) as u64;
        let args = [piece.start, bytes, region.prot.into(), flags, SLOT_FILE.into(), offset];
        self.opener.assume(&mut self.ops);
        self.ops.push(open(file, access, arena));
        self.ops.push(Op::new(What::Map, libc::SYS_mmap as u32, &args).slot_arg(4));
        let close = [SLOT_FILE.into()];
        self.ops.push(Op::new(What::Map, libc::SYS_close as u32, &close).slot_arg(0));
    }

    /// Copies contents that the clone must own from the start.
    fn fill(&mut self, region: &Region) {
        let is_private = matches!(region.backing, Backing::Object { is_shared: false, .. });
        if !(self.is_copied(region) || is_private) || region.traits.droppable {
            return;
        }
        let runs = self.runs(region);
        let is_protected = is_private && region.prot & libc::PROT_WRITE as u32 == 0;
        if is_protected && !runs.is_empty() {
            self.protect(region, READ_WRITE);
        }
        for (start, end, offset) in &runs {
            let args = [SLOT_IMAGE.into(), *start, end - start, *offset];
            self.ops.push(Op::new(What::Fill, nr::READ_ALL, &args).slot_arg(0));
        }
        if self.is_filled_first(region) || is_protected && !runs.is_empty() {
            self.protect(region, region.prot.into());
        }
    }

    fn protect(&mut self, region: &Region, prot: u64) {
        let args = [region.start, region.end - region.start, prot];
        self.ops.push(Op::new(What::Fill, libc::SYS_mprotect as u32, &args));
    }

    /// Runs of stored pages of a region, and where in the pool they lie.
    fn runs(&self, region: &Region) -> Vec<(u64, u64, u64)> {
        let stored = &self.member.memory.stored;
        let mut runs = Vec::new();
        for segment in stored.segments_in(region.start, region.end) {
            let Some(window) = stored.window_of(segment.address) else { continue };
            let (from, to) = (segment.address.max(region.start), segment.end().min(region.end));
            let placed = |run: (u64, u64)| (run.0, run.1, segment.offset(run.0));
            runs.extend(window.runs(from, to).into_iter().map(placed));
        }
        runs
    }

    fn advise(&mut self, region: &Region) {
        let traits = region.traits;
        let (start, bytes) = (region.start, region.end - region.start);
        let advice = [
            (traits.wipe_on_fork && !traits.droppable, libc::MADV_WIPEONFORK),
            (traits.dont_fork, libc::MADV_DONTFORK),
            (traits.dont_dump && !traits.droppable, libc::MADV_DONTDUMP),
            (traits.huge, libc::MADV_HUGEPAGE),
            (traits.no_huge, libc::MADV_NOHUGEPAGE),
            (traits.mergeable, libc::MADV_MERGEABLE),
        ];
        for (_, advice) in advice.into_iter().filter(|(is_set, _)| *is_set) {
            let args = [start, bytes, advice as u64];
            let op = Op::new(What::Map, libc::SYS_madvise as u32, &args);
            let hints = [libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE, libc::MADV_MERGEABLE];
            let is_hint = hints.contains(&advice);
            self.ops.push(if is_hint { op.may_fail() } else { op });
        }
        if traits.protection_key != 0 {
            let args = [start, bytes, region.prot.into(), traits.protection_key.into()];
            self.ops.push(Op::new(What::Map, libc::SYS_pkey_mprotect as u32, &args));
        }
        if traits.locked {
            let args = [start, bytes, libc::MLOCK_ONFAULT as u64];
            self.ops.push(Op::new(What::Map, libc::SYS_mlock2 as u32, &args));
        }
    }

    /// The kernel gives out the lowest free key: all up to the highest, then back what was free.
    /// That comes before any mapping for execution only, which takes a key of the kernel's.
    fn allocate_keys(&mut self) {
        let keys = self.member.memory.protection_keys;
        let highest = u32::BITS - keys.leading_zeros();
        let op = |number: i64, args: &[u64]| Op::new(What::Map, number as u32, args);
        self.ops.extend((1..highest).map(|_| op(libc::SYS_pkey_alloc, &[0, 0])));
        let free = (1..highest).filter(|key| keys >> key & 1 == 0);
        self.ops.extend(free.map(|key| op(libc::SYS_pkey_free, &[key.into()])));
    }

    /// Contexts, where the program knows them. The kernel first maps a ring where there is room.
    fn make_aio_rings(&mut self) {
        for (start, end) in &self.member.memory.aio_rings {
            self.ops.push(Op::new(What::AsyncIo, nr::MAKE_AIO, &[*start, end - start]));
        }
    }

    /// What nothing else may come after.
    fn guard_and_seal(&mut self) {
        for (start, end) in &self.member.memory.guards {
            let args = [*start, end - start, MADV_GUARD_INSTALL];
            self.ops.push(Op::new(What::Map, libc::SYS_madvise as u32, &args));
        }
        for region in self.member.memory.regions.iter().filter(|region| region.traits.sealed) {
            let args = [region.start, region.end - region.start, 0];
            self.ops.push(Op::new(What::Map, SYS_MSEAL, &args));
        }
    }

    /// Sets in the kernel where code, heap, stack, arguments and executable are.
    fn describe(&mut self, arena: &mut Arena) {
        let process = &self.member.process;
        let (path, identity) = (process.exe.clone(), process.exe_identity);
        let exe = FileStamp { path, identity, ..FileStamp::default() };
        self.opener.assume(&mut self.ops);
        self.ops.push(open(&exe, libc::O_RDONLY, arena));
        self.opener.resume(&mut self.ops);
        let auxv = arena.words(&self.member.memory.auxv);
        let auxv_bytes = 8 * self.member.memory.auxv.len() as u64;
        let mut map = self.member.memory.layout.to_vec(); // struct prctl_mm_map
        map.push(auxv);
        map.push(auxv_bytes); // auxv_size, then exe_fd, which the restorer knows
        let map = arena.words(&map);
        let args = [map, SLOT_FILE.into()];
        self.ops.push(Op::new(What::MemoryLayout, nr::SET_MM_MAP, &args).slot_arg(1));
        let close = [SLOT_FILE.into()];
        self.ops.push(Op::new(What::MemoryLayout, libc::SYS_close as u32, &close).slot_arg(0));
    }
}

/// What lies at `at` of a region, where the image holds nothing of it.
fn unstored(region: &Region, at: u64) -> Source {
    match &region.backing {
        Backing::PrivateFile(_, offset) => Source::File(offset + (at - region.start)),
        _ => Source::Zeros,
    }
}

fn anonymous_flags(region: &Region) -> u64 {
    let kind = if region.traits.droppable { MAP_DROPPABLE } else { libc::MAP_PRIVATE };
    let reserve = if region.traits.no_reserve { libc::MAP_NORESERVE } else { 0 };
    let stack = if region.traits.grows_down { libc::MAP_GROWSDOWN } else { 0 };
    let size = u64::from(region.traits.page_shift) << libc::MAP_HUGE_SHIFT;
    let huge = if region.is_huge() { libc::MAP_HUGETLB } else { 0 };
    size | (kind | libc::MAP_ANONYMOUS | libc::MAP_FIXED | reserve | stack | huge) as u64
}

/// Linux 6.13.
const MADV_GUARD_INSTALL: u64 = 102;
/// Linux 6.10.
const SYS_MSEAL: u32 = 462;
/// Linux 6.11.
const MAP_DROPPABLE: i32 = 8;

fn open(file: &FileStamp, access: i32, arena: &mut Arena) -> Op {
    let detail = arena.detail(&file.path.display().to_string());
    let flags = (access | libc::O_CLOEXEC) as u64;
    let wanted = place::identity(&file.identity, None, arena);
    let open = place::open(What::File, &file.path, flags, wanted, arena);
    open.store(SLOT_FILE).about(detail)
}

/// Joins neighbours that one call can map.
fn join(memory: &Memory, pieces: Vec<Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if can_join(memory, last, &piece) => last.end = piece.end,
            _ => joined.push(piece),
        }
    }
    joined
}

fn can_join(memory: &Memory, a: &Piece, b: &Piece) -> bool {
    let (ra, rb) = (&memory.regions[a.region], &memory.regions[b.region]);
    let bytes = a.end - a.start;
    let continues = match (a.source, b.source) {
        (Source::Pool(x), Source::Pool(y)) => x + bytes == y,
        (Source::Zeros, Source::Zeros) => ra.traits == rb.traits,
        (Source::File(x), Source::File(y)) => a.region == b.region && x + bytes == y,
        _ => false,
    };
    a.end == b.start && ra.prot == rb.prot && continues
}
