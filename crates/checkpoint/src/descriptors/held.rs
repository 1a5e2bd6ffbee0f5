//! Locks and leases on a file, and the signals it sends.

use farfork_image::model::{Lock, LockKind, Notice, OpenFile};
use farfork_sys::owner;

use super::error::{Stop, asking, refuse, refuse_detail, unexpected};
use super::subject::Subject;
use super::table::Entry;
use crate::refuse::causes;

const ASYNC: u32 = libc::O_ASYNC as u32;

/// What the description behind `entry` holds besides its kind; `file` is what it was captured as,
/// number `index` of the model.
pub fn collect(
    entry: &Entry,
    subject: &Subject,
    file: &OpenFile,
    index: u32,
) -> Result<(Vec<Lock>, Option<Notice>), Stop> {
    let mut locks = Vec::new();
    for line in entry.info.values("lock") {
        let lock = parse(line, index).ok_or_else(|| {
            Stop::from(unexpected(subject.pid, format!("locks of fd {}", entry.fd)))
        })?;
        check(&lock, line, file)?;
        locks.push(lock);
    }
    let is_async = entry.info.flags & ASYNC != 0;
    if !is_async && locks.iter().all(|lock| lock.kind != LockKind::Lease) {
        return Ok((locks, None));
    }
    if file.flags().is_none() {
        return Err(refuse(causes::descriptors::ASYNC_OUTSIDE));
    }
    Ok((locks, Some(notice(entry, subject, index, is_async)?)))
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

fn check(lock: &Lock, line: &str, file: &OpenFile) -> Result<(), Stop> {
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

/// Whom the description signals: only the process itself is carried.
fn notice(entry: &Entry, subject: &Subject, file: u32, is_async: bool) -> Result<Notice, Stop> {
    let failed = || asking(subject.pid, format!("whom fd {} signals", entry.fd));
    let description = subject.open(entry)?;
    let signal = owner::signal(&description).map_err(failed())?;
    match owner::process(&description).map_err(failed())? {
        Some(owner) if owner == subject.pid => {
            Ok(Notice { file, owner: subject.inner_pid as i32, signal, is_async })
        }
        _ => Err(refuse(causes::descriptors::ASYNC_OTHER)),
    }
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
