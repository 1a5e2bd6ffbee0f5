//! Memory that the process shares between its own mappings and descriptors, and that no name in a
//! file system leads to: shared anonymous memory, memfds, segments of System V, files that were
//! deleted or replaced.
//!
//! ```text
//!  smaps, fd ─► one file per inode ─► kind, seals, extents with data ─► packed windows
//!                        └─► who else has it? ─► refusal
//! ```
//! Invariants: an object is identified by device and inode, whatever maps or holds it, and a System
//! V segment by its id, since its inode number may be that of another file; its whole content is
//! carried, since `mremap` and `read` reach what is not mapped; a channel to another process is
//! never cut in silence.

mod elsewhere;
mod layout;
mod system_v;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farfork_image::model::{ObjectKind, SharedObject};
use rustix::fs::{SealFlags, fcntl_get_seals, fstatfs};

use crate::ancestor::Ancestor;
use crate::error::{CheckpointError, doing};
use crate::maps::{Mapping, shown};
use crate::refuse::{Cause, Refusals, causes};

pub use layout::Layout;
use system_v::Segments;

const TMPFS: i64 = 0x0102_1994;

/// The shared objects of some processes, each open here.
#[derive(Debug, Default)]
pub struct Objects {
    found: Vec<FoundObject>,
    by_inode: HashMap<(u64, u64), u32>,
    segments: Segments,
    /// By process and first address of a mapping.
    by_start: HashMap<(i32, u64), u32>,
    /// Processes and first addresses of mappings that cannot be carried.
    refused: HashSet<(i32, u64)>,
}

#[derive(Debug)]
struct FoundObject {
    /// The first process that has it.
    pid: i32,
    file: File,
    object: SharedObject,
    /// Device and inode as `/proc/PID/maps` shows them.
    shown: (u64, u64),
    /// Names it in messages.
    words: String,
    /// Whether one of the processes can change it.
    is_written: bool,
    /// Of a segment of System V: how many mappings there are of it.
    attached: u64,
}

impl FoundObject {
    fn is_segment(&self) -> bool {
        matches!(self.object.kind, ObjectKind::SystemV(_))
    }
}

impl Objects {
    /// Adds those behind the mappings and descriptors of a process; what cannot be carried goes to
    /// `refusals`. An image that it maps is not an object, nor is what else of farfork a clone
    /// maps.
    pub fn add_process(
        &mut self,
        pid: i32,
        mappings: &[Mapping],
        ancestor: Option<&Ancestor>,
        refusals: &mut Refusals,
    ) -> Result<(), CheckpointError> {
        let is_ours = |mapping: &Mapping| {
            ancestor.is_some_and(|known| known.backs(mapping) || known.owns(mapping))
        };
        for mapping in mappings.iter().filter(|own| is_candidate(own) && !is_ours(own)) {
            self.add_mapping(pid, mapping, refusals)?;
        }
        self.add_memfds(pid)
    }

    /// Refuses those that a process other than `pids` has too, which takes a look at all processes.
    pub fn refuse_channels(&self, pids: &[i32], refusals: &mut Refusals) {
        elsewhere::refuse(pids, &self.found, refusals);
        self.refuse_attached_elsewhere(pids, refusals);
    }

    /// Index of the object under a mapping of process `pid`.
    pub fn under(&self, pid: i32, mapping: &Mapping) -> Option<u32> {
        self.by_start.get(&(pid, mapping.start)).copied()
    }

    /// Whether a mapping of process `pid` has been refused already.
    pub fn has_refused(&self, pid: i32, mapping: &Mapping) -> bool {
        self.refused.contains(&(pid, mapping.start))
    }

    /// Index of the object with this inode.
    pub fn of_inode(&self, inode: &Metadata) -> Option<u32> {
        self.by_inode.get(&(inode.dev(), inode.ino())).copied()
    }

    fn add_mapping(
        &mut self,
        pid: i32,
        mapping: &Mapping,
        refusals: &mut Refusals,
    ) -> Result<(), CheckpointError> {
        let words = format!("mapping {:x}-{:x} {}", mapping.start, mapping.end, mapping.name);
        if system_v::is_segment(mapping) {
            return self.add_segment(pid, mapping, words, refusals);
        }
        if let Some(cause) = obstacle(&mapping.name) {
            self.refuse(pid, mapping, &words, cause, refusals);
            return Ok(());
        }
        let Some(file) = self.open(pid, mapping, &words, refusals)? else { return Ok(()) };
        let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
        let name = fs::read_link(link).unwrap_or_else(|_| PathBuf::from(&mapping.name));
        let index = self.add(pid, file, &name, words, mapping.has("nr"))?;
        let found = &mut self.found[index as usize];
        found.shown = mapping.file;
        found.is_written |= mapping.is_shared && mapping.has("mw");
        self.by_start.insert((pid, mapping.start), index);
        Ok(())
    }

    /// The object under a mapping; refuses it where that may not be opened.
    fn open(
        &mut self,
        pid: i32,
        mapping: &Mapping,
        words: &str,
        refusals: &mut Refusals,
    ) -> Result<Option<File>, CheckpointError> {
        match open_mapped(pid, mapping) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.refuse(pid, mapping, words, causes::memory::SHARED_UNSEEN, refusals);
                Ok(None)
            }
            other => Ok(Some(other.map_err(doing(pid, "open the files under the mappings"))?)),
        }
    }

    fn refuse(
        &mut self,
        pid: i32,
        mapping: &Mapping,
        words: &str,
        cause: &'static Cause,
        refusals: &mut Refusals,
    ) {
        refusals.add(words, cause);
        self.refused.insert((pid, mapping.start));
    }

    /// Adds memory that only a message to process `pid` refers to, which can be opened at `place`.
    pub fn add_in_flight(
        &mut self,
        pid: i32,
        place: &Path,
        name: &str,
    ) -> Result<(), CheckpointError> {
        let file = File::open(place).map_err(doing(pid, "open the memory in flight"))?;
        if is_on_tmpfs(&file) {
            let words = format!("descriptor in flight ({name})");
            let index = self.add(pid, file, Path::new(name), words, false)?;
            self.found[index as usize].is_written = true;
        }
        Ok(())
    }

    fn add_memfds(&mut self, pid: i32) -> Result<(), CheckpointError> {
        let directory = format!("/proc/{pid}/fd");
        let failed = |_| CheckpointError::Proc { pid, what: "the descriptors" };
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Ok(link) = fs::read_link(&path) else { continue };
            let shown = link.to_string_lossy();
            let is_memfd = shown.starts_with("/memfd:");
            let is_mapped =
                || fs::metadata(&path).is_ok_and(|inode| self.of_inode(&inode).is_some());
            if !is_memfd && (!shown.ends_with(DELETED) || !is_mapped()) {
                continue;
            }
            let Ok(file) = File::open(&path) else { continue }; // O_PATH, refused elsewhere
            if is_memfd && !is_on_tmpfs(&file) {
                continue; // of huge pages, refused as a descriptor
            }
            let number = path.file_name().unwrap_or_default().to_string_lossy();
            let words = format!("fd {number} ({shown})");
            let index = self.add(pid, file, &link, words, false)?;
            self.found[index as usize].is_written = true;
        }
        Ok(())
    }

    fn add(
        &mut self,
        pid: i32,
        file: File,
        name: &Path,
        words: String,
        no_reserve: bool,
    ) -> Result<u32, CheckpointError> {
        let inode =
            file.metadata().map_err(doing(pid, "read the attributes of the shared memory"))?;
        let key = (inode.dev(), inode.ino());
        if let Some(index) = self.by_inode.get(&key) {
            return Ok(*index);
        }
        let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty()).bits();
        let object = SharedObject {
            kind: kind(name, no_reserve),
            size: inode.size(),
            mode: inode.mode() & 0o7777,
            owner: (inode.uid(), inode.gid()),
            seals,
            extents: Vec::new(),
        };
        let index = self.found.len() as u32;
        let shown = shown(key.0, key.1);
        self.found.push(FoundObject {
            pid,
            file,
            object,
            shown,
            words,
            is_written: false,
            attached: 0,
        });
        self.by_inode.insert(key, index);
        Ok(index)
    }
}

/// The object under a mapping. Without CAP_CHECKPOINT_RESTORE it cannot be opened there, but it can
/// through a descriptor that the process has of it.
fn open_mapped(pid: i32, mapping: &Mapping) -> io::Result<File> {
    mapping.open(pid).or_else(|refused| open_held(pid, mapping).ok_or(refused))
}

fn open_held(pid: i32, mapping: &Mapping) -> Option<File> {
    let is_under = |path: &Path| {
        fs::metadata(path).is_ok_and(|found| shown(found.dev(), found.ino()) == mapping.file)
    };
    let held = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let path = held.filter_map(|entry| Some(entry.ok()?.path())).find(|path| is_under(path))?;
    File::open(path).ok()
}

const DELETED: &str = " (deleted)";

/// Mappings of devices, of huge pages and of rings of Linux AIO are refused for what they are.
fn is_candidate(mapping: &Mapping) -> bool {
    let is_special =
        ["io", "pf", "ht"].into_iter().any(|flag| mapping.has(flag)) || mapping.is_aio_ring();
    mapping.path().is_some() && mapping.is_deleted() && !is_special
}

/// What looks like an object and is more than its bytes.
fn obstacle(name: &str) -> Option<&'static Cause> {
    name.starts_with("/secretmem").then_some(causes::memory::SECRET)
}

fn kind(name: &Path, no_reserve: bool) -> ObjectKind {
    let name = name.as_os_str().as_bytes();
    let name = name.strip_suffix(DELETED.as_bytes()).unwrap_or(name);
    match name.strip_prefix(b"/memfd:") {
        Some(own) => ObjectKind::Memfd(own.to_vec()),
        None if name == b"/dev/zero" => ObjectKind::Anonymous { no_reserve },
        None => {
            let last = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            ObjectKind::Unlinked(last.iter().copied().take(NAME_BYTES).collect())
        }
    }
}

/// What `memfd_create` takes at most.
const NAME_BYTES: usize = 249;

fn is_on_tmpfs(file: &File) -> bool {
    fstatfs(file).is_ok_and(|kind| kind.f_type == TMPFS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn a_name_shows_the_kind_of_an_object() {
        let kind = |name: &[u8], no_reserve| kind(Path::new(OsStr::from_bytes(name)), no_reserve);
        let memfd = kind(b"/memfd:a b (deleted) (deleted)", false);
        assert_eq!(memfd, ObjectKind::Memfd(b"a b (deleted)".to_vec()));
        assert_eq!(kind(b"/memfd:\xe9", false), ObjectKind::Memfd(b"\xe9".to_vec()));
        let anonymous = kind(b"/dev/zero (deleted)", true);
        assert_eq!(anonymous, ObjectKind::Anonymous { no_reserve: true });
        assert_eq!(kind(b"/usr/lib/x.so (deleted)", false), ObjectKind::Unlinked(b"x.so".to_vec()));
        let long = format!("/tmp/{}", "x".repeat(300));
        assert_eq!(kind(long.as_bytes(), false), ObjectKind::Unlinked(vec![b'x'; NAME_BYTES]));
        assert!(obstacle("/secretmem (deleted)").is_some());
        assert!(obstacle("/dev/zero (deleted)").is_none());
    }
}
