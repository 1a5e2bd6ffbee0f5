//! Pipes, named ones too: both ends in the process, or one whose other end is closed. Everything
//! else leads out of the process.
//!
//! A named pipe of which the process has both ends is carried as a pipe of the clone's own: the
//! kernel has one pipe for a name, and a clone that came by it would take the parent's bytes.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use farfork_image::model::OpenFile;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee,
};

use super::context::PipeEnds;
use super::error::{
    CaptureError, CaptureResult, DescriptorError, kernel_error, refuse, refuse_detail,
};
use super::external;
use super::subject::Subject;
use super::table::Entry;
use crate::refuse::causes;

/// One end of a pipe.
pub fn capture(entry: &Entry, subject: &Subject) -> CaptureResult {
    let is_write_end = entry.info.flags & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32;
    let ends = subject.pipe_ends(entry);
    if is_meeting_point(entry, ends) {
        return Ok(external::of(format!("named pipe {}", entry.link)));
    }
    let pipe = subject.open(entry)?;
    if leads_outside(entry, subject, &pipe)? {
        return Ok(external::of(format!("{} end of a pipe", side(is_write_end))));
    }
    check_ends(ends, entry)?;
    let failed = || kernel_error(subject.pid, format!("the capacity of pipe {}", entry.fd));
    let capacity = fcntl_getpipe_size(&pipe).map_err(failed())?;
    let content = if is_write_end { Vec::new() } else { content(entry, subject, &pipe, capacity)? };
    Ok(OpenFile::Pipe {
        pipe: entry.inode.ino(),
        is_write_end,
        flags: entry.info.status_flags(),
        capacity: capacity as u32,
        content,
    })
}

/// Whether a pipe has a name by which others are meant to come: one end alone is in the process,
/// or it was opened for both at once, which is how to wait for writers that come and go.
fn is_meeting_point(entry: &Entry, ends: PipeEnds) -> bool {
    let is_named = !entry.link.starts_with("pipe:[") && entry.inode.nlink() > 0;
    is_named && (ends.readers == 0 || ends.writers == 0 || ends.is_any_both)
}

fn side(is_write_end: bool) -> &'static str {
    if is_write_end { "write" } else { "read" }
}

fn leads_outside(
    entry: &Entry,
    subject: &Subject,
    pipe: &OwnedFd,
) -> Result<bool, DescriptorError> {
    let PipeEnds { readers, writers, .. } = subject.pipe_ends(entry);
    if subject.is_shared(&entry.link) {
        return Ok(true);
    }
    if readers > 0 && writers > 0 {
        return Ok(false);
    }
    // A standard stream came from outside even if its other end is gone by now. For the others the
    // kernel shows whether any process, seen or not, has the other end.
    Ok(entry.is_standard() || !is_hung_up(entry, subject, pipe)?)
}

fn is_hung_up(entry: &Entry, subject: &Subject, pipe: &OwnedFd) -> Result<bool, DescriptorError> {
    let mut asked = [PollFd::new(pipe, PollFlags::empty())];
    poll(&mut asked, Some(&Timespec::default()))
        .map_err(kernel_error(subject.pid, format!("the state of pipe {}", entry.fd)))?;
    Ok(asked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

fn check_ends(ends: PipeEnds, entry: &Entry) -> Result<(), CaptureError> {
    if entry.info.flags & libc::O_ACCMODE as u32 == libc::O_RDWR as u32 {
        return Err(refuse(causes::descriptors::PIPE_BOTH_WAYS));
    }
    if ends.readers > 1 || ends.writers > 1 {
        return Err(refuse(causes::descriptors::PIPE_OPENED_AGAIN));
    }
    Ok(())
}

/// The bytes in the pipe, read without taking them out.
fn content(
    entry: &Entry,
    subject: &Subject,
    pipe: &OwnedFd,
    capacity: usize,
) -> Result<Vec<u8>, CaptureError> {
    let failed = || kernel_error(subject.pid, format!("the content of pipe {}", entry.fd));
    let waiting = ioctl_fionread(pipe).map_err(failed())? as usize;
    if waiting == 0 {
        return Ok(Vec::new());
    }
    let (copied, bytes) = peek(pipe, waiting, capacity).map_err(failed())?;
    if subject.pipe_ends(entry).is_packetized || bytes.len() < copied {
        return Err(refuse(causes::descriptors::PIPE_PACKETS));
    }
    if bytes.len() == waiting {
        return Ok(bytes);
    }
    let detail = format!("{} of {waiting} bytes readable", bytes.len());
    Err(refuse_detail(detail, causes::descriptors::PIPE_TOO_FULL))
}

/// How many bytes could be looked at, and those that one read takes: all, unless they stand in
/// packets.
fn peek(pipe: &OwnedFd, waiting: usize, capacity: usize) -> Result<(usize, Vec<u8>), Errno> {
    let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // As many buffers as the other has: each may hold less than a page. A failure shows in how
    // much can be copied.
    let _ = fcntl_setpipe_size(&write_end, capacity);
    let copied = tee(pipe, &write_end, waiting, SpliceFlags::NONBLOCK)?;
    let mut bytes = vec![0; copied];
    let length = rustix::io::read(&read_end, &mut bytes[..])?;
    bytes.truncate(length);
    Ok((copied, bytes))
}
