//! Inotify instances. The kernel shows what is watched as a handle of the file system; the file
//! system knows which name that has.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farfork_image::model::{FileIdentity, InotifyWatch, OpenFile};
use farfork_sys::{handle, proc};
use rustix::io::{Errno, ioctl_fionread};

use super::error::{Capture, Stop, asking, refuse, refuse_detail, unexpected};
use super::subject::Subject;
use super::table::Entry;
use crate::files;
use crate::refuse::{Cause, causes};

/// Events and options that a program can ask for; the kernel adds bits of its own.
const ASKED: u32 = libc::IN_ALL_EVENTS | libc::IN_EXCL_UNLINK | libc::IN_ONESHOT;

/// An inotify instance.
pub fn capture(entry: &Entry, subject: &Subject) -> Capture {
    let instance = subject.open(entry)?;
    let waiting = ioctl_fionread(&instance)
        .map_err(asking(subject.pid, format!("how many events wait in fd {}", entry.fd)))?;
    if waiting > 0 {
        return Err(refuse(causes::descriptors::INOTIFY_EVENTS));
    }
    let mut watches = Vec::new();
    for line in entry.info.text().lines().filter_map(|line| line.strip_prefix("inotify ")) {
        let shown = parse(line).ok_or_else(|| {
            Stop::from(unexpected(subject.pid, format!("watches of fd {}", entry.fd)))
        })?;
        let (path, identity) = place(&shown, subject).map_err(|cause| {
            refuse_detail(format!("watch {} on inode {}", shown.number, shown.inode), cause)
        })?;
        let (number, mask) = (shown.number, shown.mask & ASKED);
        watches.push(InotifyWatch { number, path, mask, identity });
    }
    watches.sort_by_key(|watch| watch.number);
    Ok(OpenFile::Inotify { flags: entry.info.status_flags(), watches })
}

/// A watch as the kernel shows it.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    number: u32,
    inode: u64,
    /// Major and minor.
    device: (u32, u32),
    mask: u32,
    handle_type: i32,
    handle: Vec<u8>,
}

/// `wd:1 ino:f0 sdev:fe00000 mask:300 ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:2f..`.
fn parse(line: &str) -> Option<Shown> {
    let field = |name: &str| {
        let mut fields = line.split_whitespace().filter_map(|word| word.split_once(':'));
        fields.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let hex = |name| u64::from_str_radix(field(name)?, 16).ok();
    let (device, digits) = (hex("sdev")?, field("f_handle").unwrap_or(""));
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    Some(Shown {
        number: field("wd")?.parse().ok()?,
        inode: hex("ino")?,
        device: ((device >> 20) as u32, device as u32 & 0xf_ffff),
        mask: hex("mask")? as u32,
        handle_type: hex("fhandle-type").unwrap_or(0) as i32,
        handle: (0..digits.len()).step_by(2).map(byte).collect::<Option<_>>()?,
    })
}

/// The name of what is watched, as the process sees names.
fn place(shown: &Shown, subject: &Subject) -> Result<(PathBuf, FileIdentity), &'static Cause> {
    let root = format!("/proc/{}/root", subject.pid);
    let lost = causes::descriptors::INOTIFY_LOST;
    let mounts = proc::text(format!("/proc/{}/mountinfo", subject.pid)).map_err(|_| lost)?;
    let device = format!("{}:{}", shown.device.0, shown.device.1);
    let opened: Vec<Result<OwnedFd, Errno>> = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(|fields| fields.get(2) == Some(&device.as_str()))
        .filter_map(|fields| File::open(format!("{root}{}", fields.get(4)?)).ok())
        .map(|mount| handle::open(mount, shown.handle_type, &shown.handle))
        .collect();
    match opened.iter().flatten().find_map(|file| name(file, &root)) {
        Some(path) => Ok(path),
        None if opened.iter().any(|file| matches!(file, Err(Errno::PERM))) => {
            Err(causes::descriptors::INOTIFY_UNSEEN)
        }
        None => Err(lost),
    }
}

fn name(file: &OwnedFd, root: &str) -> Option<(PathBuf, FileIdentity)> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = fs::read_link(&link).ok()?;
    let (open, named) = (fs::metadata(&link).ok()?, format!("{root}{}", path.to_str()?));
    let named = fs::symlink_metadata(named).ok()?;
    let is_same = (open.dev(), open.ino()) == (named.dev(), named.ino());
    let is_kernel_s = files::is_kernel_s(Path::new(&link));
    is_same.then(|| (path, FileIdentity { is_kernel_s, ..FileIdentity::of(&named) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_read_as_the_kernel_prints_it() {
        let line = "wd:2 ino:98402f sdev:fe00001 mask:80000fff ignored_mask:0 fhandle-bytes:8 \
                    fhandle-type:81 f_handle:2f4098006aa82587";
        let handle = vec![0x2f, 0x40, 0x98, 0, 0x6a, 0xa8, 0x25, 0x87];
        let (number, inode, device) = (2, 0x98402f, (0xfe, 1));
        let shown = Shown { number, inode, device, mask: 0x8000_0fff, handle_type: 0x81, handle };
        assert_eq!(parse(line), Some(shown));
        assert_eq!(parse("wd:2 ino:98402f"), None);
    }
}
