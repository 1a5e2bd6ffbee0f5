//! System V segments. Their bytes are carried as those of any shared object. Their attributes are
//! in a table of the IPC namespace.

use std::io;

use farfork_image::model::{ObjectKind, SharedObject, SystemVSegment};
use farfork_sys::proc;

use super::{DELETED, FoundObject, Objects};
use crate::error::{CheckpointError, doing};
use crate::ipc::{self, Segment};
use crate::maps::{self, Mapping};
use crate::refuse::{Refusals, causes};

/// Segments of processes that are in one IPC namespace.
#[derive(Debug, Default)]
pub struct Segments {
    /// All in the namespace, once that was asked for.
    table: Option<Vec<Segment>>,
    /// By id: index among the objects.
    by_id: Vec<(u32, u32)>,
}

impl Segments {
    fn of_id(&mut self, pid: i32, id: u64) -> Result<Option<Segment>, CheckpointError> {
        let table = match &self.table {
            Some(table) => table,
            None => {
                let read = ipc::segments(pid);
                self.table.insert(read.map_err(doing(pid, "list the System V segments"))?)
            }
        };
        Ok(table.iter().find(|segment| u64::from(segment.id) == id).copied())
    }
}

const NAME: &str = "/SYSV";
const KEY_DIGITS: usize = 8;

/// Whether a mapping was made by `shmat`.
pub fn is_segment(mapping: &Mapping) -> bool {
    first_key(mapping).is_some() && mapping.is_shared
}

/// The key that a segment had when it was made, which is part of its name.
fn first_key(mapping: &Mapping) -> Option<i32> {
    let digits = mapping.name.strip_prefix(NAME)?.strip_suffix(DELETED)?;
    let key = u32::from_str_radix(digits, 16).ok().filter(|_| digits.len() == KEY_DIGITS);
    key.map(u32::cast_signed)
}

impl Objects {
    /// Whether any of them is a segment.
    pub fn have_segments(&self) -> bool {
        !self.segments.by_id.is_empty()
    }

    /// Adds the segment under a mapping, if that is what its namespace has under this id.
    pub(super) fn add_segment(
        &mut self,
        pid: i32,
        mapping: &Mapping,
        words: String,
        refusals: &mut Refusals,
    ) -> Result<(), CheckpointError> {
        let id = mapping.file.1;
        let known = self.segments.by_id.iter().find(|(known, _)| u64::from(*known) == id);
        if let Some((_, index)) = known {
            self.by_start.insert((pid, mapping.start), *index);
            return Ok(());
        }
        let key = first_key(mapping).unwrap_or_default();
        let is_it = |segment: &Segment| segment.is_removed() || segment.key == key;
        let Some(segment) = self.segments.of_id(pid, id)?.filter(is_it) else {
            let cause = causes::memory::SYSTEM_V_ELSEWHERE;
            self.refuse(pid, mapping, &words, cause, refusals);
            return Ok(());
        };
        let Some(file) = self.open(pid, mapping, &words, refusals)? else { return Ok(()) };
        let index = self.found.len() as u32;
        let (shown, attached, object) = (mapping.file, segment.attached, object(&segment, key));
        self.found.push(FoundObject {
            pid,
            file,
            object,
            shown,
            words,
            is_written: true,
            attached,
        });
        self.segments.by_id.push((segment.id, index));
        self.by_start.insert((pid, mapping.start), index);
        Ok(())
    }

    /// Adds segments in the namespace of process `pid` that no process has attached.
    pub fn add_unattached(
        &mut self,
        pid: i32,
        all: &[Segment],
        refusals: &mut Refusals,
    ) -> Result<(), CheckpointError> {
        for segment in all {
            let words = format!("System V segment {}", segment.id);
            let file = match ipc::bytes(pid, *segment) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refusals.about(pid);
                    refusals.add(words, causes::memory::SHARED_UNSEEN);
                    continue;
                }
                file => file.map_err(doing(pid, "attach the System V segments"))?,
            };
            let (shown, object) = ((0, u64::from(segment.id)), object(segment, segment.key));
            let index = self.found.len() as u32;
            let (is_written, attached) = (true, 0);
            self.found.push(FoundObject { pid, file, object, shown, words, is_written, attached });
            self.segments.by_id.push((segment.id, index));
        }
        Ok(())
    }

    /// Refuses segments that a process other than `pids` has attached, too: the kernel's count of
    /// attachments then exceeds the mappings of `pids`.
    pub(super) fn refuse_attached_elsewhere(&self, pids: &[i32], refusals: &mut Refusals) {
        for (id, index) in &self.segments.by_id {
            let found = &self.found[*index as usize];
            let own = self.by_start.values().filter(|other| *other == index).count();
            if found.attached <= own as u64 {
                continue;
            }
            let other = attached_by(*id, found.pid, pids);
            let other = other.map_or("another process".to_owned(), |pid| format!("process {pid}"));
            refusals.about(found.pid);
            refusals.add(format!("{}, also in {other}", found.words), causes::memory::CHANNEL);
        }
    }
}

/// The segment whose first key was `key`.
fn object(segment: &Segment, key: i32) -> SharedObject {
    let kind = ObjectKind::SystemV(SystemVSegment {
        id: segment.id,
        key,
        creator: segment.creator,
        is_removed: segment.is_removed(),
        is_locked: segment.is_locked(),
    });
    let (size, mode, owner) = (segment.size, segment.mode & 0o777, segment.owner);
    SharedObject { kind, size, mode, owner, seals: 0, extents: Vec::new() }
}

/// A process other than `pids` that has a segment attached, in the namespace of process `pid`.
fn attached_by(id: u32, pid: i32, pids: &[i32]) -> Option<i32> {
    let has = |other: &i32| {
        let text = proc::text(format!("/proc/{other}/maps")).unwrap_or_default();
        let mut mappings = text.lines().filter_map(maps::header).filter(is_segment);
        mappings.any(|mapping| mapping.file.1 == u64::from(id)) && ipc::is_same(pid, *other)
    };
    proc::processes().filter(|other| !pids.contains(other)).find(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_recognised_by_their_names() {
        let named =
            |name: &str| Mapping { name: name.into(), is_shared: true, ..Mapping::default() };
        assert_eq!(first_key(&named("/SYSV00001234 (deleted)")), Some(0x1234));
        assert_eq!(first_key(&named("/SYSVffffffff (deleted)")), Some(-1));
        assert!(!is_segment(&named("/SYSV1234 (deleted)")));
        assert!(!is_segment(&named("/SYSV00001234")));
        assert!(!is_segment(&named("/SYSV0000123x (deleted)")));
    }
}
