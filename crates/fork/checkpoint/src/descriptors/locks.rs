//! Locks and leases on a file, and the signals it sends.

use farfork_image::model::{Lock, LockKind, Notice, OpenFile};
use farfork_sys::fcntl_owner::{self, SignalTarget};

use super::error::{CaptureError, kernel_error, refuse, refuse_detail, unexpected};
use super::subject::Subject;
use super::table::Entry;
use crate::refuse::causes;

const ASYNC: u32 = libc::O_ASYNC as u32;

/// What a description holds besides its kind.
#[derive(Debug, Default)]
pub struct HeldLocks {
    /// Locks and leases, with their processes.
    pub locks: Vec<(i32, Lock)>,
    /// The process or group that it signals.
    pub notice: Option<Notice>,
}

/// What the description behind `group`, descriptors of one or several processes, holds besides its
/// kind; `file` is what it was captured as, number `index` of the model. The kernel shows a
/// process its own locks, and those that are the description's.
pub fn collect(
    group: &[&Entry],
    subject: &Subject,
    file: &OpenFile,
    index: u32,
) -> Result<HeldLocks, CaptureError> {
    let mut locks = Vec::new();
    let mut last = None;
    for entry in group {
        // Further descriptors of a process show the same.
        if last.replace(entry.pid) == Some(entry.pid) {
            continue;
        }
        for lock in own_locks(entry, file, index)? {
            if lock.kind == LockKind::Process || entry.pid == group[0].pid {
                locks.push((entry.pid, lock));
            }
        }
    }
    let is_async = group[0].info.flags & ASYNC != 0;
    if !is_async && locks.iter().all(|(_, lock)| lock.kind != LockKind::Lease) {
        return Ok(HeldLocks { locks, notice: None });
    }
    if file.flags().is_none() {
        return Err(refuse(causes::descriptors::ASYNC_OUTSIDE));
    }
    let notice = Some(notice(group[0], subject, index, is_async)?);
    Ok(HeldLocks { locks, notice })
}

fn own_locks(entry: &Entry, file: &OpenFile, index: u32) -> Result<Vec<Lock>, CaptureError> {
    let mut locks = Vec::new();
    for line in entry.info.values("lock") {
        let lock = parse(line, index).ok_or_else(|| {
            CaptureError::from(unexpected(entry.pid, format!("locks of fd {}", entry.fd)))
        })?;
        check(&lock, line, file)?;
        locks.push(lock);
    }
    Ok(locks)
}

/// `1: POSIX  ADVISORY  WRITE 853 fe:00:9977976 10 29`, the last two the first and last byte.
fn parse(line: &str, file: u32) -> Option<Lock> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, kind, _, mode, _, _, start, end] = words[..] else { return None };
    let kind = match kind {
        "FLOCK" => LockKind::Whole,
        "POSIX" => LockKind::Process,
        "OFDLCK" => LockKind::Description,
        "LEASE" => LockKind::Lease,
        _ => return None,
    };
    let start: u64 = start.parse().ok()?;
    let length = if end == "EOF" { 0 } else { end.parse::<u64>().ok()?.checked_sub(start)? + 1 };
    Some(Lock { file, kind, is_write: mode == "WRITE", start, length })
}

fn check(lock: &Lock, line: &str, file: &OpenFile) -> Result<(), CaptureError> {
    if file.flags().is_none() {
        return Err(refuse_detail("a lock", causes::files::LOCK_OUTSIDE));
    }
    if lock.kind != LockKind::Lease {
        return Ok(());
    }
    if !line.contains(" ACTIVE ") {
        return Err(refuse_detail("a lease", causes::files::LEASE_BREAKING));
    }
    if lock.is_write {
        return Err(refuse_detail("a lease, write", causes::files::LEASE_WRITE));
    }
    Ok(())
}

/// The process or group that the description signals. Those of the image are carried.
fn notice(
    entry: &Entry,
    subject: &Subject,
    file: u32,
    is_async: bool,
) -> Result<Notice, CaptureError> {
    let failed = || kernel_error(subject.pid, format!("the process that fd {} signals", entry.fd));
    let description = subject.open(entry)?;
    let signal = fcntl_owner::signal(&description).map_err(failed())?;
    let ids = &subject.context.ids;
    let owner = match fcntl_owner::target(&description).map_err(failed())? {
        SignalTarget::Process(pid) => ids.process(pid).map(|pid| pid as i32),
        SignalTarget::Group(group) => ids.group(group).map(|group| -(group as i32)),
        SignalTarget::Other => None,
    };
    let owner = owner.ok_or_else(|| refuse(causes::descriptors::ASYNC_OTHER))?;
    Ok(Notice { file, owner, signal, is_async })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(kind: LockKind, is_write: bool, start: u64, length: u64) -> Option<Lock> {
        Some(Lock { file: 7, kind, is_write, start, length })
    }

    #[test]
    fn a_lock_is_read_as_the_kernel_prints_it() {
        let read = |line| parse(line, 7);
        let whole = lock(LockKind::Whole, true, 0, 0);
        assert_eq!(read("1: FLOCK  ADVISORY  WRITE 853 fe:00:9977976 0 EOF"), whole);
        let part = lock(LockKind::Process, true, 10, 20);
        assert_eq!(read("2: POSIX  ADVISORY  WRITE 853 fe:00:9977976 10 29"), part);
        let rest = lock(LockKind::Description, false, 100, 0);
        assert_eq!(read("3: OFDLCK ADVISORY  READ -1 fe:00:9977903 100 EOF"), rest);
        assert_eq!(read("1: DELEG  ACTIVE    READ 1 fe:00:1 0 EOF"), None);
    }
}
