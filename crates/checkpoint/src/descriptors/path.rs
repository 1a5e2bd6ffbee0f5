//! Regular files, directories and devices: what a path leads back to.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use farfork_image::model::{FileStamp, OpenFile};

use super::error::{Capture, Stop, refuse, refuse_detail};
use super::fdinfo::O_PATH;
use super::subject::Subject;
use super::table::Entry;

/// Minors of major 1 that hold nothing: null, zero, full, random, urandom.
const STATELESS: [u32; 5] = [3, 5, 7, 8, 9];
/// File systems whose files have neither a size nor a time that means anything.
const WITHOUT_STAMP: [i64; 6] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6367_7270, // cgroup2
    0x0027_e0eb, // cgroup
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
];

/// A regular file, a directory, or any place that was opened with `O_PATH`.
pub fn capture(entry: &Entry, subject: &Subject) -> Capture {
    check_name(entry, subject)?;
    check_proc(entry, subject)?;
    let stamp = if needs_stamp(entry, subject) { Some(stamp(entry, subject)) } else { None };
    Ok(by_path(entry, stamp))
}

/// A device without state of its own.
pub fn device(entry: &Entry, subject: &Subject) -> Capture {
    let device = entry.inode.rdev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    if major != 1 || !STATELESS.contains(&minor) {
        return Err(refuse(device_words(&entry.link), "close the device before the checkpoint"));
    }
    check_name(entry, subject)?;
    Ok(by_path(entry, None))
}

fn device_words(path: &str) -> &'static str {
    let known = [
        ("/dev/kvm", "a virtual machine lives in this kernel"),
        ("/dev/dri/", "the graphics device holds state of the process"),
        ("/dev/nvidia", "the accelerator holds state of the process"),
        ("/dev/fuse", "a file system is served through it"),
        ("/dev/net/tun", "a network interface lives in this kernel"),
        ("/dev/ptmx", "it is the master of a terminal"),
        ("/dev/userfaultfd", "it hands out page fault handlers"),
    ];
    let found = known.into_iter().find(|(prefix, _)| path.starts_with(prefix));
    found.map_or("a device holds state that only its driver knows", |(_, words)| words)
}

fn by_path(entry: &Entry, stamp: Option<FileStamp>) -> OpenFile {
    let position = if entry.info.flags & O_PATH != 0 { 0 } else { entry.info.position };
    OpenFile::Path {
        path: entry.link.clone().into(),
        flags: entry.info.status_flags(),
        offset: position,
        stamp,
    }
}

/// The name must still lead to the file, as the process sees names.
fn check_name(entry: &Entry, subject: &Subject) -> Result<(), Stop> {
    if !entry.is_text {
        return Err(refuse("its path is not UTF-8", "rename the file"));
    }
    if entry.link.ends_with(" (deleted)") || entry.inode.nlink() == 0 {
        return Err(refuse(
            "the file was deleted and cannot be opened again",
            "keep the file until after the checkpoint, or close it",
        ));
    }
    let seen = format!("/proc/{}/root{}", subject.pid, entry.link);
    let named = if entry.info.flags & O_PATH != 0 {
        fs::symlink_metadata(seen)
    } else {
        fs::metadata(seen)
    };
    match named {
        Ok(named) if is_same(&named, &entry.inode) => Ok(()),
        Ok(_) => Err(refuse(
            "another file has this name now",
            "reopen the file after it was replaced, or close it",
        )),
        Err(_) => Err(refuse(
            "no file has this name, as the process sees its directories",
            "keep the file in place until after the checkpoint, or close it",
        )),
    }
}

fn is_same(named: &Metadata, open: &Metadata) -> bool {
    (named.dev(), named.ino()) == (open.dev(), open.ino())
}

/// A clone has the parent's pid in a namespace of its own, and no other process of it.
fn check_proc(entry: &Entry, subject: &Subject) -> Result<(), Stop> {
    let Some(rest) = entry.link.strip_prefix("/proc/") else { return Ok(()) };
    let first = rest.split('/').next().unwrap_or("");
    match first.parse::<u32>() {
        Ok(pid) if pid != subject.inner_pid => Err(refuse_detail(
            format!("process {pid}"),
            "it shows a process that a clone does not have",
            "close it before the checkpoint",
        )),
        _ => Ok(()),
    }
}

/// What is only written, or appended to, goes on changing under the parent and every clone.
fn needs_stamp(entry: &Entry, subject: &Subject) -> bool {
    let flags = entry.info.flags;
    let is_written_only = flags & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32;
    let is_exempt = is_written_only || flags & (libc::O_APPEND as u32 | O_PATH) != 0;
    entry.inode.is_file() && !is_exempt && has_stamp(entry, subject)
}

fn has_stamp(entry: &Entry, subject: &Subject) -> bool {
    let parent = Path::new(&entry.link).parent().unwrap_or(Path::new("/"));
    let seen = format!("/proc/{}/root{}", subject.pid, parent.display());
    let kind = File::open(seen).ok().and_then(|dir| rustix::fs::fstatfs(dir).ok());
    kind.is_none_or(|kind| !WITHOUT_STAMP.contains(&kind.f_type))
}

fn stamp(entry: &Entry, subject: &Subject) -> FileStamp {
    let at = format!("/proc/{}/fd/{}", subject.pid, entry.fd);
    FileStamp::of(Path::new(&entry.link), &entry.inode, Path::new(&at))
}
