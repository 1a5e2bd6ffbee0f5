//! Segments of System V, which processes attach by their ids.
//!
//! ```text
//!  shmget with its id, shmctl(IPC_SET)      by the root of a tree, before it forks
//!  shmat, map_files ─► write_all            its content, as that of any object
//!  shmctl(IPC_RMID)                         a page of it stays attached until all have their own
//!  shmat at the parent's address            whole: else elsewhere, and its parts moved from there
//! ```
//! The kernel counts mappings as attachments, and detaches what is of one `shmat`: so parts of one
//! attachment of the parent's are parts of one of the clone's.

use farfork_plan::{Op, What, ipc, nr, window};
use farfork_types::{PAGE_BYTES, align_up};

use super::super::ipc::{IPC_SET, description};
use super::{Compiler, hole};
use crate::model::{Backing, Memory, Model, ObjectKind, Region, SharedObject, SystemVSegment};

const SHM_RDONLY: u64 = 0o10000;
const SHM_REMAP: u64 = 0o40000;
const SHM_LOCK: u64 = 11;
const IPC_RMID: u64 = 0;
const MOVE: u64 = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;

/// Indices of all objects, in the order in which they can be made: the key that a segment had
/// before it was removed may be that of another.
pub fn in_order(model: &Model) -> impl Iterator<Item = u32> {
    let indices = || 0..model.objects.len() as u32;
    let is_removed = |index: &u32| model.objects[*index as usize].removed().is_some();
    indices().filter(is_removed).chain(indices().filter(move |index| !is_removed(index)))
}

impl SharedObject {
    /// The segment, if it lasts only as long as it is attached.
    pub(crate) fn removed(&self) -> Option<&SystemVSegment> {
        match &self.kind {
            ObjectKind::SystemV(segment) => Some(segment).filter(|segment| segment.is_removed),
            _ => None,
        }
    }
}

impl SystemVSegment {
    /// Names it in messages.
    pub(super) fn words(&self) -> String {
        format!("segment {} of System V", self.id)
    }
}

impl Compiler<'_, '_> {
    /// Makes a segment, and opens it.
    pub(super) fn segment(&mut self, segment: &SystemVSegment, object: &SharedObject) {
        let (id, key, creator) = (segment.id.into(), segment.key as u32, segment.creator);
        let made = [ipc::SEGMENT, id, key.into(), object.size, creator.0.into(), creator.1.into()];
        self.system_v(nr::MAKE_IPC, &made);
        let description = self.arena.words(&description(object.mode, object.owner, 0));
        self.system_v(libc::SYS_shmctl as u32, &[id, IPC_SET, description]);
        let bytes = align_up(object.size, PAGE_BYTES);
        let at = hole(self.memory, bytes);
        self.system_v(libc::SYS_shmat as u32, &[id, at, 0]);
        self.open_mapped(at, bytes);
        if segment.is_removed {
            let kept = self.removed_page(id);
            self.push(libc::SYS_mremap, &[at, PAGE_BYTES, PAGE_BYTES, MOVE, kept]);
            self.system_v(libc::SYS_shmctl as u32, &[id, IPC_RMID, 0]);
        }
        self.push(libc::SYS_munmap, &[at, bytes]);
        if segment.is_locked {
            let op = self.op(libc::SYS_shmctl as u32, &[id, SHM_LOCK, 0]);
            self.ops.push(op.warns());
        }
    }

    fn system_v(&mut self, number: u32, args: &[u64]) {
        let op = self.op(number, args);
        self.ops.push(Op { what: What::SystemV as u16, ..op });
    }

    fn removed(&self) -> impl Iterator<Item = u64> {
        let removed = self.model.objects.iter().filter_map(SharedObject::removed);
        removed.map(|segment| segment.id.into())
    }

    /// Where a page of a segment stays attached for a while.
    fn removed_page(&self, id: u64) -> u64 {
        let before = self.removed().take_while(|other| *other != id).count() as u64;
        window::REMOVED + before * PAGE_BYTES
    }

    /// Detaches what kept removed segments, now that the process has attached them itself.
    pub(super) fn let_go_of_removed(&mut self) {
        let pages = self.removed().count() as u64;
        if pages > 0 {
            self.push(libc::SYS_munmap, &[window::REMOVED, pages * PAGE_BYTES]);
        }
    }

    /// Attaches a segment wherever the process has it.
    pub(super) fn attach(&mut self, index: u32, segment: &SystemVSegment) {
        let bytes = align_up(self.model.objects[index as usize].size, PAGE_BYTES);
        let id = segment.id.into();
        for parts in attachments(self.memory, index) {
            let first = parts[0];
            let is_writable = matches!(first.backing, Backing::Object { is_writable: true, .. });
            let access = if is_writable { 0 } else { SHM_RDONLY };
            if parts.len() == 1 && first.end - first.start == bytes {
                let flags = access | SHM_REMAP;
                self.system_v(libc::SYS_shmat as u32, &[id, first.start, flags]);
            } else {
                self.attach_parts(id, bytes, access, &parts);
            }
            self.protect_parts(&parts, is_writable);
        }
    }

    fn attach_parts(&mut self, id: u64, bytes: u64, access: u64, parts: &[&Region]) {
        let at = hole(self.memory, bytes);
        self.system_v(libc::SYS_shmat as u32, &[id, at, access]);
        for part in parts {
            let Backing::Object { offset, .. } = part.backing else { continue };
            let own = part.end - part.start;
            self.push(libc::SYS_mremap, &[at + offset, own, own, MOVE, part.start]);
        }
        self.push(libc::SYS_munmap, &[at, bytes]);
    }

    fn protect_parts(&mut self, parts: &[&Region], is_writable: bool) {
        let write = if is_writable { libc::PROT_WRITE } else { 0 };
        let made = (libc::PROT_READ | write) as u32;
        for part in parts.iter().filter(|part| part.prot != made) {
            let args = [part.start, part.end - part.start, part.prot.into()];
            self.push(libc::SYS_mprotect, &args);
        }
    }
}

/// The regions of an object, those that are of one attachment together: they lie as far apart as in
/// the segment.
fn attachments(memory: &Memory, index: u32) -> Vec<Vec<&Region>> {
    let mut all: Vec<(u64, Vec<&Region>)> = Vec::new();
    for region in memory.regions.iter().filter(|region| region.object() == Some(index)) {
        let Backing::Object { offset, .. } = region.backing else { continue };
        let base = region.start.wrapping_sub(offset);
        match all.iter_mut().find(|(other, _)| *other == base) {
            Some((_, parts)) => parts.push(region),
            None => all.push((base, vec![region])),
        }
    }
    all.into_iter().map(|(_, parts)| parts).collect()
}
