//! Pseudo-terminals of which the processes have the master, with or without the slave.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use farfork_image::model::{OpenFile, Terminal};
use farfork_sys::terminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionread};

use super::error::{CaptureError, CaptureResult, kernel_error, refuse_detail, unexpected};
use super::external;
use super::pty;
use super::subject::Subject;
use super::table::Entry;
use crate::refuse::causes;
use crate::stat::{self, Stat};

/// A terminal that is not a master: the process's own if it has the master.
pub fn capture(entry: &Entry, subject: &Subject) -> CaptureResult {
    let number = pty::slave_number(entry);
    let Some(terminal) = number.and_then(|number| subject.terminal(number)) else {
        return Ok(external::of(format!("terminal {}", entry.link)));
    };
    check_waiting(entry, subject, &subject.open(entry)?)?;
    Ok(OpenFile::TerminalSlave { terminal, flags: entry.info.status_flags() })
}

/// A master.
pub fn master(entry: &Entry, subject: &Subject) -> CaptureResult {
    let found = pty::number(entry).and_then(|number| Some((number, subject.terminal(number)?)));
    let Some((number, terminal)) = found else {
        let what = format!("the terminal of fd {}", entry.fd);
        return Err(unexpected(subject.pid, what).into());
    };
    if subject.is_shared(&pty::slave_path(number)) {
        return Err(refuse_detail(pty::slave_path(number), causes::descriptors::TERMINAL_SHARED));
    }
    check_waiting(entry, subject, &subject.open(entry)?)?;
    let path = entry.link.clone().into();
    Ok(OpenFile::TerminalMaster { terminal, path, flags: entry.info.status_flags() })
}

/// The terminal whose master is behind `entry`; `slave` is a slave of it, if there is one.
pub fn read(
    entry: &Entry,
    slave: Option<&Entry>,
    subject: &Subject,
) -> Result<Terminal, CaptureError> {
    let failed =
        || kernel_error(subject.pid, format!("the state of the terminal of fd {}", entry.fd));
    let master = subject.open(entry)?;
    let (session, foreground) = match terminal::session(&master).map_err(failed())? {
        Some((session, group)) => control(entry, session, group, subject)?,
        None => (0, 0),
    };
    let is_exclusive = match slave {
        Some(slave) => terminal::is_exclusive(subject.open(slave)?).map_err(failed())?,
        None => false,
    };
    Ok(Terminal {
        settings: terminal::settings(&master).map_err(failed())?.to_vec(),
        size: terminal::size(&master).map_err(failed())?,
        is_locked: terminal::is_locked(&master).map_err(failed())?,
        is_packet: terminal::is_packet(&master).map_err(failed())?,
        is_exclusive,
        is_hung_up: is_hung_up(&master).map_err(failed())?,
        session,
        foreground,
        access: slave
            .map(|slave| (slave.inode.uid(), slave.inode.gid(), slave.inode.mode() & 0o7777)),
    })
}

/// Session that the terminal behind `entry` controls, and the group in its foreground, as they
/// stand in the model; both are of the image's processes, or it is refused.
fn control(
    entry: &Entry,
    leader: i32,
    group: i32,
    subject: &Subject,
) -> Result<(u32, u32), CaptureError> {
    let context = &subject.context;
    let refuse = |cause| refuse_detail("master of a terminal", cause);
    let session = context.ids.process(leader).filter(|_| context.pids.contains(&leader));
    let session = session.ok_or_else(|| refuse(causes::descriptors::TERMINAL_SESSION))?;
    if !pty::number(entry).is_some_and(|number| context.has_slave(leader, number)) {
        return Err(refuse(causes::descriptors::TERMINAL_CLOSED));
    }
    let stat = |pid| Stat::read(pid).map_err(|_| unexpected(pid, "stat"));
    for pid in &context.pids {
        let stat = stat(*pid)?;
        if stat.field(stat::SESSION) == i64::from(leader) && stat.field(stat::TERMINAL) == 0 {
            return Err(refuse(causes::descriptors::TERMINAL_LEFT));
        }
    }
    if stat(leader)?.field(stat::GROUP) == i64::from(group) {
        return Ok((session, 0));
    }
    let foreground = context.ids.group(group);
    Ok((session, foreground.ok_or_else(|| refuse(causes::descriptors::TERMINAL_FOREGROUND))?))
}

fn is_hung_up(master: &OwnedFd) -> Result<bool, Errno> {
    polled(master).map(|now| now.contains(PollFlags::HUP))
}

fn polled(end: &OwnedFd) -> Result<PollFlags, Errno> {
    let mut asked = [PollFd::new(end, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default()))?;
    Ok(asked[0].revents())
}

/// What was written goes to the other end behind the writer's back. `poll` waits for it to get
/// there, and only then can the bytes be counted.
fn check_waiting(entry: &Entry, subject: &Subject, end: &OwnedFd) -> Result<(), CaptureError> {
    let failed = || {
        kernel_error(subject.pid, format!("the unread bytes in the terminal of fd {}", entry.fd))
    };
    let now = polled(end).map_err(failed())?;
    let waiting = ioctl_fionread(end).map_err(failed())?;
    if waiting == 0 && !now.contains(PollFlags::IN) {
        return Ok(());
    }
    Err(refuse_detail(format!("{waiting} bytes"), causes::descriptors::TERMINAL_BYTES))
}
