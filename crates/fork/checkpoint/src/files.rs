//! The files that a process has mapped, as the process itself sees names.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use farfork::header;
use farfork_image::model::FileStamp;

use crate::maps::Mapping;
use crate::refuse::{Cause, causes};

/// What the paths of a process's mappings lead to; each is looked at once.
pub struct MappedFiles {
    pid: i32,
    known: HashMap<PathBuf, Known>,
    /// Whether files that are mapped shared are regions of objects.
    regions: HashMap<PathBuf, bool>,
}

struct Known {
    file: (u64, u64),
    stamp: Option<FileStamp>,
    /// Files that mappings of this name show, by device and inode as the mappings have them.
    mapped: HashMap<(u64, u64), Option<(u64, u64)>>,
}

impl MappedFiles {
    /// Nothing looked at yet.
    pub fn new(pid: i32) -> MappedFiles {
        MappedFiles { pid, known: HashMap::new(), regions: HashMap::new() }
    }

    /// The stamp of the file that a mapping shows; none for memory, and for devices that are
    /// mapped like it.
    pub fn stamp(&mut self, mapping: &Mapping) -> Result<Option<FileStamp>, &'static Cause> {
        let Some(path) = mapping.path().filter(|_| !mapping.is_deleted()) else { return Ok(None) };
        if mapping.is_misnamed {
            return Err(causes::files::NOT_UTF_8);
        }
        if !self.known.contains_key(&path) {
            let known = self.look_at(&path)?;
            self.known.insert(path.clone(), known);
        }
        let (pid, known) = (self.pid, self.known.get_mut(&path));
        let Some(Known { file, stamp, mapped: shown }) = known else { return Ok(None) };
        // A library has several mappings.
        let shown = *shown.entry(mapping.file).or_insert_with(|| mapped(pid, mapping));
        let (stamp, is_other) = (stamp.clone(), shown.is_some_and(|shown| shown != *file));
        match stamp {
            _ if is_other => Err(causes::memory::FILE_REPLACED),
            Some(_) if mapping.is_shared && self.is_region(&path) => {
                Err(causes::memory::OBJECTS_REGION)
            }
            stamp => Ok(stamp),
        }
    }

    fn is_region(&mut self, path: &Path) -> bool {
        let at = self.inside(path);
        *self.regions.entry(path.to_owned()).or_insert_with(|| begins_as_region(&at))
    }

    /// The path by which this process finds what the other one calls `path`.
    fn inside(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.pid, path.display()))
    }

    fn look_at(&self, path: &Path) -> Result<Known, &'static Cause> {
        let at = self.inside(path);
        let found = fs::metadata(&at).map_err(|_| causes::memory::FILE_GONE)?;
        let stamp = found.is_file().then(|| FileStamp::from_metadata(path, &found, &at));
        Ok(Known { file: identity(&found), stamp, mapped: HashMap::new() })
    }
}

/// The file under a mapping itself, where this process may know (CAP_CHECKPOINT_RESTORE).
fn mapped(pid: i32, mapping: &Mapping) -> Option<(u64, u64)> {
    let (start, end) = (mapping.start, mapping.end);
    let found = fs::metadata(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
    found.ok().map(|found| identity(&found))
}

fn begins_as_region(at: &Path) -> bool {
    let mut magic = [0; header::MAGIC.len()];
    let read = fs::File::open(at).and_then(|file| file.read_exact_at(&mut magic, 0));
    read.is_ok() && magic == *header::MAGIC
}

/// File systems of the kernel's own, whose files have neither a size nor a time that means anything.
const KERNEL_S: [i64; 6] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6367_7270, // cgroup2
    0x0027_e0eb, // cgroup
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
];

/// Whether `path` lies in a file system of the kernel's own.
pub fn is_kernel_s(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|kind| KERNEL_S.contains(&kind.f_type))
}

/// What a path below `/proc` shows, if a clone does not have it when it opens files: of processes it
/// is `pid` in a namespace of its own then, of threads the first.
pub fn shows_other(path: &Path, pid: u32) -> Option<(String, &'static Cause)> {
    let mut names = path.strip_prefix("/proc").ok()?.iter().map(|name| name.to_str());
    let mut next = || names.next().flatten();
    let shown: u32 = next()?.parse().ok()?;
    if shown != pid {
        return Some((format!("process {shown}"), causes::files::OTHER_PROCESS));
    }
    let thread: u32 = next().filter(|name| *name == "task").and_then(|_| next())?.parse().ok()?;
    (thread != pid).then(|| (format!("thread {thread}"), causes::files::OTHER_THREAD))
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_has_one_process_and_one_thread() {
        let shown = |path: &str| shows_other(Path::new(path), 12).map(|(what, _)| what);
        for path in
            ["/proc/12", "/proc/12/status", "/proc/12/task", "/proc/12/task/12/stat", "/proc/stat"]
        {
            assert_eq!(shown(path), None, "{path}");
        }
        for path in
            ["/proc/12/fd/13", "/proc/12/net/task/13", "/proc", "/tmp/proc/13", "/process/13"]
        {
            assert_eq!(shown(path), None, "{path}");
        }
        assert_eq!(shown("/proc/13/status").as_deref(), Some("process 13"));
        assert_eq!(shown("/proc/13/task/12").as_deref(), Some("process 13"));
        assert_eq!(shown("/proc/12/task/13").as_deref(), Some("thread 13"));
        assert_eq!(shown("/proc/12/task/13/status").as_deref(), Some("thread 13"));
    }
}
