//! Inotify instances.

use farfork_image::model::{InotifyWatch, OpenFile};

use super::super::error::{CaptureError, CaptureResult, refuse_detail, unexpected};
use super::super::subject::Subject;
use super::super::table::Entry;
use super::{Handle, Line, refuse_events};

/// Events and options that a program can ask for; the kernel adds bits of its own.
const ASKED: u32 = libc::IN_ALL_EVENTS | libc::IN_EXCL_UNLINK | libc::IN_ONESHOT;

/// An inotify instance.
pub fn capture(entry: &Entry, subject: &Subject) -> CaptureResult {
    refuse_events(entry, subject)?;
    let mut watches = Vec::new();
    for line in entry.info.text().lines().filter_map(|line| line.strip_prefix("inotify ")) {
        let (number, mask, handle) = parse(&Line(line)).ok_or_else(|| {
            CaptureError::from(unexpected(subject.pid, format!("watches of fd {}", entry.fd)))
        })?;
        let (path, identity) = handle.place(subject).map_err(|cause| {
            refuse_detail(format!("watch {number} on inode {}", handle.inode), cause)
        })?;
        watches.push(InotifyWatch { number, path, mask: mask & ASKED, identity });
    }
    watches.sort_by_key(|watch| watch.number);
    Ok(OpenFile::Inotify { flags: entry.info.status_flags(), watches })
}

/// Number, mask and file of `wd:1 ino:f0 sdev:fe00000 mask:300 ignored_mask:0 fhandle-bytes:8 …`.
fn parse(line: &Line<'_>) -> Option<(u32, u32, Handle)> {
    Some((line.field("wd")?.parse().ok()?, line.hex("mask")? as u32, Handle::parse(line)?))
}
