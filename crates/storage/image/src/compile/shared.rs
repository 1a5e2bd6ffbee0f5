//! The ops that make the clone's own shared objects, fill them, and map them.
//!
//! ```text
//!  memfd_create, ftruncate       or   mmap(MAP_SHARED | MAP_ANONYMOUS), open its map_files link
//!  write_all from the pool            one call per run of data
//!  mmap                               mappings that may become writable
//!  F_ADD_SEALS
//!  mmap                               the others, private ones too
//!  close                              unless a descriptor of the parent refers to it
//! ```
//! Content is copied, once per clone: what a clone writes must reach its own other mappings and
//! the processes it forks, and no others. That is 0.35 ms a MB, and memory of its own.
//!
//! An object has one number of the restorer's own run while it is made; those that descriptors
//! refer to keep one each until the descriptors are made by opening `/proc/self/fd`.

mod system_v;
#[cfg(test)]
mod tests;

use farfork_plan::protocol::SLOT_IMAGE;
use farfork_plan::{Op, What, nr, window};
use farfork_types::{CHUNK_BYTES, PAGE_BYTES, align_down, align_up};

use super::arena::Arena;
use super::fd_layout::{FdLayout, ObjectFds};
use super::{Subject, ipc};
use crate::layout::DATA_AT;
use crate::model::{
    Backing, Member, Memory, Model, ObjectExtent, ObjectKind, OpenFile, Region, SharedObject,
};

const SLOT_OBJECT: u8 = 248;
const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
/// `MFD_NOEXEC_SEAL`, `MFD_EXEC` (Linux 6.3).
const MFD_NOEXEC_SEAL: u32 = 8;
const MFD_EXEC: u32 = 16;
const F_SEAL_EXEC: u32 = 0x20;

struct Compiler<'m, 'a> {
    model: &'m Model,
    memory: &'m Memory,
    arena: &'a mut Arena,
    ops: Vec<Op>,
    numbers: &'m ObjectFds,
    /// The part of the content that is mapped from the pool: first address and address after the
    /// last.
    mapped: (u64, u64),
    detail: u32,
}

/// Compiles the shared objects of `subject`.
pub fn compile(subject: Subject<'_>, arena: &mut Arena) -> Vec<Op> {
    let model = subject.model;
    let shared = &subject.fds.root.objects;
    let mut compiler = Compiler::new(subject, arena);
    if !model.is_tree() {
        compiler.ops = ipc::ops(model, compiler.arena);
    }
    for index in system_v::in_order(model) {
        let object = &model.objects[index as usize];
        if shared.contains(&index) {
            compiler.map_shared(index, object);
        } else if !model.is_tree() || compiler.is_used(subject.member, index) {
            compiler.object(index, object);
        }
    }
    compiler.unmap_part();
    compiler.let_go_of_removed();
    compiler.ops
}

/// Compiles the objects that the root makes for several members, before it forks any.
pub fn root_ops(model: &Model, fds: &FdLayout, arena: &mut Arena) -> Vec<Op> {
    let mut compiler = Compiler::new(Subject::root(model, fds), arena);
    compiler.ops = ipc::ops(model, compiler.arena);
    for index in system_v::in_order(model).filter(|index| fds.root.objects.contains(index)) {
        compiler.make(index, &model.objects[index as usize]);
    }
    compiler.unmap_part();
    compiler.ops
}

/// Seals the objects of several members; all of these must have mapped them.
pub fn root_seals(model: &Model, fds: &FdLayout) -> Vec<Op> {
    let sealed = fds.root.objects.iter().map(|index| (*index, &model.objects[*index as usize]));
    let sealed = sealed.filter(|(_, object)| object.seals != 0 && !object.is_anonymous());
    let seal = |(index, object): (u32, &SharedObject)| {
        let args =
            [fds.objects.number(index).into(), libc::F_ADD_SEALS as u64, object.seals.into()];
        Op::new(What::SharedMemory, libc::SYS_fcntl as u32, &args)
    };
    sealed.map(seal).collect()
}

impl<'m, 'a> Compiler<'m, 'a> {
    fn new(subject: Subject<'m>, arena: &'a mut Arena) -> Self {
        let (model, memory) = (subject.model, &subject.member.memory);
        let (ops, numbers) = (Vec::new(), &subject.fds.objects);
        Compiler { model, memory, arena, ops, numbers, mapped: (0, 0), detail: 0 }
    }

    fn is_used(&self, member: &Member, index: u32) -> bool {
        let is_open = |file: u32| matches!(self.model.files[file as usize], OpenFile::Object { object, .. } if object == index);
        self.memory.regions.iter().any(|region| region.object() == Some(index))
            || member.descriptors.iter().any(|own| is_open(own.file))
    }

    fn object(&mut self, index: u32, object: &SharedObject) {
        let fd = self.make(index, object);
        if let ObjectKind::SystemV(segment) = &object.kind {
            self.attach(index, segment);
        } else {
            self.map(index, fd, true);
            if !object.is_anonymous() {
                self.seal(fd, object.seals);
            }
            self.map(index, fd, false);
        }
        if !self.numbers.is_kept(index) {
            self.push(libc::SYS_close, &[fd]);
        }
    }

    /// Maps an object that is there already.
    fn map_shared(&mut self, index: u32, object: &SharedObject) {
        self.detail = self.arena.detail(&object.words());
        if let ObjectKind::SystemV(segment) = &object.kind {
            return self.attach(index, segment);
        }
        let fd = self.numbers.number(index).into();
        self.map(index, fd, true);
        self.map(index, fd, false);
    }

    /// Makes an object with its content, and gives its number.
    fn make(&mut self, index: u32, object: &SharedObject) -> u64 {
        self.detail = self.arena.detail(&object.words());
        let fd = u64::from(self.numbers.number(index));
        match &object.kind {
            ObjectKind::Anonymous { no_reserve } => self.anonymous(object.size, *no_reserve),
            ObjectKind::Memfd(name) | ObjectKind::Unlinked(name) => self.memfd(name, object),
            ObjectKind::SystemV(segment) => self.segment(segment, object),
        }
        let moved = [SLOT_OBJECT.into(), fd, libc::O_CLOEXEC as u64];
        let moved = self.op(nr::MOVE_FD, &moved).slot_arg(0);
        self.ops.push(moved);
        if !object.is_system_v() {
            self.attributes(fd, object);
        }
        for extent in &object.extents {
            self.fill(fd, object, extent);
        }
        fd
    }

    fn op(&self, number: u32, args: &[u64]) -> Op {
        Op::new(What::SharedMemory, number, args).about(self.detail)
    }

    fn push(&mut self, number: i64, args: &[u64]) {
        self.ops.push(self.op(number as u32, args));
    }

    fn memfd(&mut self, name: &[u8], object: &SharedObject) {
        let exec = if object.seals & F_SEAL_EXEC != 0 { MFD_NOEXEC_SEAL } else { MFD_EXEC };
        let name = self.arena.text(name);
        let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | exec);
        let made = self.op(libc::SYS_memfd_create as u32, &[name, flags]).store(SLOT_OBJECT);
        self.ops.push(made);
        let sized = self.op(libc::SYS_ftruncate as u32, &[SLOT_OBJECT.into(), object.size]);
        self.ops.push(sized.slot_arg(0));
    }

    /// Only the kernel makes an object that `/proc` shows as `/dev/zero (deleted)`, and only
    /// `/proc` leads from it to a descriptor.
    fn anonymous(&mut self, size: u64, no_reserve: bool) {
        let bytes = align_up(size, PAGE_BYTES);
        let at = hole(self.memory, bytes);
        let reserve = if no_reserve { libc::MAP_NORESERVE } else { 0 };
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | reserve;
        self.push(libc::SYS_mmap, &[at, bytes, READ_WRITE, flags as u64, u64::MAX, 0]);
        self.open_mapped(at, bytes);
        self.push(libc::SYS_munmap, &[at, bytes]);
    }

    /// Opens what a mapping shows.
    fn open_mapped(&mut self, at: u64, bytes: u64) {
        let link = format!("/proc/self/map_files/{at:x}-{:x}", at + bytes);
        let opened = self.open(&link, libc::O_RDWR).store(SLOT_OBJECT);
        self.ops.push(opened);
    }

    fn open(&mut self, path: &str, flags: i32) -> Op {
        let path = self.arena.text(path.as_bytes());
        let flags = (flags | libc::O_CLOEXEC) as u64;
        self.op(libc::SYS_openat as u32, &[libc::AT_FDCWD as i64 as u64, path, flags])
    }

    fn attributes(&mut self, fd: u64, object: &SharedObject) {
        if object.mode != 0o777 {
            self.push(libc::SYS_fchmod, &[fd, object.mode.into()]);
        }
        // The owner of a file without a name matters to no process.
        if object.owner != (0, 0) && !matches!(object.kind, ObjectKind::Unlinked(_)) {
            self.push(libc::SYS_fchown, &[fd, object.owner.0.into(), object.owner.1.into()]);
        }
    }

    fn fill(&mut self, fd: u64, object: &SharedObject, extent: &ObjectExtent) {
        let end = extent.stored + object.inside(extent);
        let mut at = extent.stored;
        while at < end {
            if !(self.mapped.0..self.mapped.1).contains(&at) {
                self.map_part(at);
            }
            let to = end.min(self.mapped.1);
            let from = window::SCRATCH + (at - self.mapped.0);
            let args = [fd, from, to - at, extent.offset + (at - extent.stored)];
            let copied = self.op(nr::WRITE_ALL, &args);
            self.ops.push(copied);
            at = to;
        }
    }

    /// Maps the chunk that holds `at` and those that follow it in the image.
    fn map_part(&mut self, at: u64) {
        self.unmap_part();
        let start = align_down(at, CHUNK_BYTES);
        let segment = self.model.content.segments_in(start, start + CHUNK_BYTES).next();
        let first = segment.map_or(0, |segment| segment.place / CHUNK_BYTES);
        let left = (self.model.chunks() as u64).saturating_sub(first) * CHUNK_BYTES;
        let bytes = left.min(window::SCRATCH_BYTES);
        self.mapped = (start, start + bytes);
        let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
        let (prot, offset) = (libc::PROT_READ as u64, DATA_AT + first * CHUNK_BYTES);
        let args = [window::SCRATCH, bytes, prot, flags, SLOT_IMAGE.into(), offset];
        let mapped = self.op(libc::SYS_mmap as u32, &args).slot_arg(4);
        self.ops.push(mapped);
    }

    fn unmap_part(&mut self) {
        let bytes = self.mapped.1 - self.mapped.0;
        if bytes > 0 {
            self.push(libc::SYS_munmap, &[window::SCRATCH, bytes]);
        }
        self.mapped = (0, 0);
    }

    /// Maps the regions of an object that may be written through, or the others.
    fn map(&mut self, index: u32, fd: u64, writable: bool) {
        let memory = self.memory;
        let own = memory.regions.iter().filter(|region| {
            let is_writable = region.is_written_through();
            region.object() == Some(index) && is_writable == writable
        });
        for region in own {
            self.map_region(region, fd, writable);
        }
    }

    fn map_region(&mut self, region: &Region, fd: u64, writable: bool) {
        let Backing::Object { offset, is_shared, .. } = region.backing else { return };
        let kind = if is_shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let reserve = if region.traits.no_reserve { libc::MAP_NORESERVE } else { 0 };
        let flags = (kind | libc::MAP_FIXED | reserve) as u64;
        let (start, bytes) = (region.start, region.end - region.start);
        let args = [start, bytes, region.prot.into(), flags, fd, offset];
        if writable || !is_shared {
            self.push(libc::SYS_mmap, &args);
            return;
        }
        // Through a descriptor that cannot be written to, so that mprotect cannot either.
        let opened = self.open(&format!("/proc/self/fd/{fd}"), libc::O_RDONLY);
        self.ops.push(opened.store(SLOT_OBJECT));
        let [start, bytes, prot, flags, _, offset] = args;
        let args = [start, bytes, prot, flags, SLOT_OBJECT.into(), offset];
        let mapped = self.op(libc::SYS_mmap as u32, &args).slot_arg(4);
        let closed = self.op(libc::SYS_close as u32, &[SLOT_OBJECT.into()]).slot_arg(0);
        self.ops.extend([mapped, closed]);
    }

    fn seal(&mut self, fd: u64, seals: u32) {
        if seals != 0 {
            self.push(libc::SYS_fcntl, &[fd, libc::F_ADD_SEALS as u64, seals.into()]);
        }
    }
}

impl Region {
    /// Whether writes through it may reach a shared object.
    fn is_written_through(&self) -> bool {
        matches!(self.backing, Backing::Object { is_shared: true, is_writable: true, .. })
    }
}

impl SharedObject {
    fn is_anonymous(&self) -> bool {
        matches!(self.kind, ObjectKind::Anonymous { .. })
    }

    /// Names it in messages.
    fn words(&self) -> String {
        match &self.kind {
            ObjectKind::Anonymous { .. } => "shared anonymous memory".to_owned(),
            ObjectKind::Memfd(name) => format!("memfd {}", String::from_utf8_lossy(name)),
            ObjectKind::Unlinked(name) => format!("deleted {}", String::from_utf8_lossy(name)),
            ObjectKind::SystemV(segment) => segment.words(),
        }
    }
}

/// Addresses where the parent has nothing, for a mapping that does not last.
fn hole(memory: &Memory, bytes: u64) -> u64 {
    let (vdso, vdso_bytes) = memory.vdso;
    let mut taken: Vec<(u64, u64)> =
        memory.regions.iter().map(|region| (region.start, region.end)).collect();
    taken.extend([(window::BASE, window::END), (vdso, vdso + vdso_bytes)]);
    taken.sort_unstable();
    taken.into_iter().fold(
        LOWEST,
        |at, (start, end)| {
            if at.saturating_add(bytes) <= start { at } else { at.max(end) }
        },
    )
}

/// 4 GiB: below lie programs that are not position-independent.
const LOWEST: u64 = 1 << 32;
