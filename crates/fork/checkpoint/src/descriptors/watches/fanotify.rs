//! Fanotify groups that only receive events. A mark on a mount reports events through that mount
//! only, and a clone has other mounts.

use farfork_image::model::{FanotifyMark, FileIdentity, OpenFile};
use farfork_sys::status::Status;

use super::super::error::{CaptureError, CaptureResult, refuse, refuse_detail, unexpected};
use super::super::subject::Subject;
use super::super::table::Entry;
use super::{Handle, Line, Place, mounts, refuse_events, root};
use crate::refuse::{Cause, causes};

/// Classes whose groups are asked before something happens.
const ASKED_FIRST: u32 = libc::FAN_CLASS_CONTENT | libc::FAN_CLASS_PRE_CONTENT;
const EFFECTIVE: usize = 2;
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// A fanotify group.
pub fn capture(entry: &Entry, subject: &Subject) -> CaptureResult {
    let strange =
        || CaptureError::from(unexpected(subject.pid, format!("marks of fd {}", entry.fd)));
    let mut lines = entry.info.text().lines().filter_map(|line| line.strip_prefix("fanotify "));
    let own = Line(lines.next().ok_or_else(strange)?);
    let (Some(group), Some(event_flags)) = (own.hex("flags"), own.hex("event-flags")) else {
        return Err(strange());
    };
    let group = group as u32;
    if group & ASKED_FIRST != 0 {
        return Err(refuse(causes::descriptors::FANOTIFY_ASKED));
    }
    // A group made without that capability receives less, and the kernel does not show which kind
    // it is.
    let holder = Status::read(entry.pid, entry.pid).map_err(|_| strange())?;
    if holder.capabilities[EFFECTIVE] & CAP_SYS_ADMIN == 0 {
        return Err(refuse(causes::descriptors::FANOTIFY_RIGHTS));
    }
    let mut marks = Vec::new();
    for line in lines {
        marks.push(mark(&Line(line), subject).map_err(|cause| refuse_detail(line, cause))?);
    }
    refuse_events(entry, subject)?;
    marks.reverse(); // the last one comes first
    let flags = entry.info.status_flags();
    Ok(OpenFile::Fanotify { flags, group, event_flags: event_flags as u32, marks })
}

/// `ino:…`, a file; `sdev:…` alone, a file system; `mnt_id:…`, a mount; each with
/// `mflags:40 mask:2 ignored_mask:20`.
fn mark(line: &Line<'_>, subject: &Subject) -> Result<FanotifyMark, &'static Cause> {
    let bits = |name| line.hex(name).ok_or(causes::descriptors::FANOTIFY_MOUNT);
    let is_file_system = line.field("ino").is_none();
    let (path, identity) = match Handle::parse(line) {
        Some(handle) => handle.place(subject)?,
        None => file_system(line, subject)?,
    };
    let (mask, ignored, flags) = (bits("mask")?, bits("ignored_mask")?, bits("mflags")? as u32);
    Ok(FanotifyMark { path, identity, is_file_system, flags, mask, ignored })
}

/// A place by which a clone finds a file system.
fn file_system(line: &Line<'_>, subject: &Subject) -> Result<Place, &'static Cause> {
    let device = line.device().ok_or(causes::descriptors::FANOTIFY_MOUNT)?;
    let found = mounts(device, subject).and_then(|mounts| {
        mounts.into_iter().find_map(|mount| {
            let there = std::fs::symlink_metadata(format!("{}{mount}", root(subject))).ok()?;
            Some((mount.into(), FileIdentity::from_metadata(&there)))
        })
    });
    found.ok_or(causes::descriptors::WATCH_LOST)
}
