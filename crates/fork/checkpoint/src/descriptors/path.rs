//! Regular files, directories and devices: what a path leads back to.

use std::fs::{self, Metadata};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use farfork_image::model::{FileIdentity, FileStamp, OpenFile};

use super::error::{CaptureError, CaptureResult, refuse, refuse_detail};
use super::fdinfo::O_PATH;
use super::subject::Subject;
use super::table::{DELETED, Entry, TOO_LONG};
use super::unnamed;
use crate::files;
use crate::refuse::{Cause, causes};

/// Minors of major 1 that hold nothing: null, zero, full, random, urandom.
const STATELESS: [u32; 5] = [3, 5, 7, 8, 9];
/// A regular file, a directory, or any place that was opened with `O_PATH`.
pub fn capture(entry: &Entry, subject: &Subject) -> CaptureResult {
    let Some(path) = name(entry, subject)? else {
        return unnamed::capture(entry, subject);
    };
    check_proc(entry, subject)?;
    check_pressure(entry)?;
    let stamp = if needs_stamp(&path, entry, subject) { Some(stamp(&path, entry)) } else { None };
    let is_kernel_s = !has_stamp(&path, subject);
    Ok(by_path(path, entry, stamp, is_kernel_s))
}

/// A device without state of its own.
pub fn device(entry: &Entry, subject: &Subject) -> CaptureResult {
    let device = entry.inode.rdev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    if major != 1 || !STATELESS.contains(&minor) {
        return Err(refuse(device_cause(&entry.link)));
    }
    match name(entry, subject)? {
        Some(path) => Ok(by_path(path, entry, None, false)),
        None => unnamed::capture(entry, subject),
    }
}

fn device_cause(path: &str) -> &'static Cause {
    let known = [
        ("/dev/kvm", causes::descriptors::VIRTUAL_MACHINE),
        ("/dev/dri/", causes::descriptors::GRAPHICS),
        ("/dev/nvidia", causes::descriptors::ACCELERATOR),
        ("/dev/fuse", causes::descriptors::FUSE),
        ("/dev/net/tun", causes::descriptors::TUN),
        ("/dev/userfaultfd", causes::descriptors::FAULT_HANDLERS),
    ];
    let found = known.into_iter().find(|(prefix, _)| path.starts_with(prefix));
    found.map_or(causes::descriptors::DEVICE, |(_, cause)| cause)
}

fn by_path(path: PathBuf, entry: &Entry, stamp: Option<FileStamp>, is_kernel_s: bool) -> OpenFile {
    let identity = FileIdentity { is_kernel_s, ..FileIdentity::from_metadata(&entry.inode) };
    let position = if entry.info.flags & O_PATH != 0 { 0 } else { entry.info.position };
    let flags = entry.info.status_flags();
    OpenFile::Path { path, flags, offset: position, stamp, identity }
}

/// The name that leads to the file, as the process sees names; nothing if it has none left.
fn name(entry: &Entry, subject: &Subject) -> Result<Option<PathBuf>, CaptureError> {
    if entry.link == TOO_LONG {
        return Err(refuse(causes::files::TOO_LONG));
    }
    if !entry.is_text {
        return Err(refuse(causes::files::NOT_UTF_8));
    }
    let seen = |path: &str| format!("/proc/{}/root{path}", subject.pid);
    let named = if entry.info.flags & O_PATH != 0 {
        fs::symlink_metadata(seen(&entry.link))
    } else {
        fs::metadata(seen(&entry.link))
    };
    let is_gone = entry.link.ends_with(DELETED) || entry.inode.nlink() == 0;
    match named {
        Ok(named) if is_same(&named, &entry.inode) => Ok(Some(entry.link.clone().into())),
        _ if is_message_queue(entry) => Err(refuse(causes::descriptors::MESSAGE_QUEUE)),
        _ if is_gone && entry.inode.nlink() > 0 && !entry.inode.is_dir() => {
            other_name(entry, seen).map(Some)
        }
        _ if is_gone => Ok(None),
        Ok(_) if entry.link == "/" => Err(refuse(causes::files::NO_PLACE)),
        Ok(_) => Err(refuse(causes::files::REPLACED)),
        Err(_) => Err(refuse(causes::files::GONE)),
    }
}

/// Called only for files without a name. `statfs` on the place in `/proc` opens nothing.
fn is_message_queue(entry: &Entry) -> bool {
    const MAGIC: i64 = 0x1980_0202;
    rustix::fs::statfs(entry.place()).is_ok_and(|kind| kind.f_type == MAGIC)
}

/// Another name of a file that has lost the one it was opened by, in the same directory.
fn other_name(entry: &Entry, seen: impl Fn(&str) -> String) -> Result<PathBuf, CaptureError> {
    let directory = Path::new(entry.former_path()).parent().unwrap_or(Path::new("/"));
    let names = fs::read_dir(seen(&directory.to_string_lossy())).into_iter().flatten().flatten();
    let found = names
        .filter(|name| name.ino() == entry.inode.ino())
        .find(|name| name.metadata().is_ok_and(|named| is_same(&named, &entry.inode)));
    match found.and_then(|name| name.file_name().into_string().ok()) {
        Some(name) => Ok(directory.join(name)),
        None => Err(refuse(causes::files::NAMES_ELSEWHERE)),
    }
}

fn is_same(named: &Metadata, open: &Metadata) -> bool {
    (named.dev(), named.ino()) == (open.dev(), open.ino())
}

/// What several processes have is there before any but the root of them: it cannot show another.
pub fn check_inherited(group: &[&Entry]) -> Result<(), CaptureError> {
    let entry = group[0];
    let is_shared = group.iter().any(|other| other.pid != entry.pid);
    let shows_process = entry
        .link
        .strip_prefix("/proc/")
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    if shows_process && is_shared && !entry.is_roots {
        return Err(refuse(causes::files::OTHER_PROCESS));
    }
    Ok(())
}

fn check_proc(entry: &Entry, subject: &Subject) -> Result<(), CaptureError> {
    match files::shows_other(Path::new(&entry.link), subject.inner_pid) {
        Some((what, cause)) => Err(refuse_detail(what, cause)),
        None => Ok(()),
    }
}

/// What was written to such a file is a trigger, for which `poll` waits.
fn check_pressure(entry: &Entry) -> Result<(), CaptureError> {
    const CGROUP2_MAGIC: i64 = 0x6367_7270;
    let is_cgroup_s =
        || rustix::fs::statfs(entry.place()).is_ok_and(|found| found.f_type == CGROUP2_MAGIC);
    let is_read_only = entry.info.flags & libc::O_ACCMODE as u32 == libc::O_RDONLY as u32;
    let shows_pressure = entry.link.starts_with("/proc/pressure/")
        || (entry.link.ends_with(".pressure") && is_cgroup_s());
    match shows_pressure && !is_read_only && entry.info.flags & O_PATH == 0 {
        true => Err(refuse(causes::descriptors::PRESSURE)),
        false => Ok(()),
    }
}

/// What is only written, or appended to, goes on changing under the parent and every clone.
fn needs_stamp(path: &Path, entry: &Entry, subject: &Subject) -> bool {
    let flags = entry.info.flags;
    let is_written_only = flags & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32;
    let is_exempt = is_written_only || flags & (libc::O_APPEND as u32 | O_PATH) != 0;
    entry.inode.is_file() && !is_exempt && has_stamp(path, subject)
}

fn has_stamp(path: &Path, subject: &Subject) -> bool {
    let parent = path.parent().unwrap_or(Path::new("/"));
    // Not opened: the process may watch the directory.
    let seen = format!("/proc/{}/root{}", subject.pid, parent.display());
    !files::is_kernel_s(Path::new(&seen))
}

fn stamp(path: &Path, entry: &Entry) -> FileStamp {
    FileStamp::from_metadata(path, &entry.inode, &entry.place())
}
