//! Rings of io_uring. What libuv uses them for, changing epoll instances, is done within the call that asks for
//! it: between calls such a ring is idle, and that can be shown.
//!
//! ```text
//!  fdinfo     no thread of the kernel polls it, nothing is registered, no lists of requests
//!             submitted = taken = completed = seen            else requests are under way
//!  memory     all submissions that can still be seen change an epoll instance, no flags, no losses
//!  calls      that fail as expected: no eventfd, not disabled, not one thread's, not restricted
//! ```

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use farfork_image::model::{OpenFile, RING_POSITIONS, RingQueue};
use farfork_sys::ring::{
    COMPLETION_BYTES, COMPLETIONS_AT, OP_EPOLL_CTL, OP_NOP, Obstacle, SUBMISSION_BYTES,
};
use farfork_sys::{memory, proc, ring};

use super::error::{CaptureError, CaptureResult, refuse_detail};
use super::fdinfo::FdInfo;
use super::subject::Subject;
use super::table::Entry;
use crate::refuse::{Cause, causes};

/// Files by which a process shows that a library makes its rings, and the library.
const LIBRARIES: [(&str, &str); 5] = [
    ("/uvloop/", "uvloop (libuv)"),
    ("/libuv.so", "libuv"),
    ("/libuv-", "libuv"),
    ("/liburing.so", "liburing"),
    ("/liburing-", "liburing"),
];
/// Programs that libuv is a part of.
const WITH_LIBUV: [&str; 2] = ["node", "nodejs"];

/// Room of the rings by which libuv changes epoll instances.
const LIBUVS: (u32, u32) = (256, 512);
/// `IORING_OFF_SQES`.
const SUBMISSIONS: u64 = 0x1000_0000;
/// Counters of lost submissions and completions, and flags, before the completions.
const MUST_BE_ZERO: [usize; 4] = [32, 36, 40, 44];

/// A ring, behind `group`, descriptors of one or several processes.
pub fn capture(group: &[&Entry], subject: &Subject) -> CaptureResult {
    let entry = group[0];
    let refuse = |cause| refuse_detail(describe(subject.pid), cause);
    if group.iter().any(|other| other.pid != entry.pid) {
        return Err(refuse(causes::descriptors::IO_URING));
    }
    let (entries, completions) = room(&entry.info).ok_or_else(busy(subject))?;
    if has_extras(&entry.info) {
        return Err(refuse(causes::descriptors::IO_URING_SET_UP));
    }
    let position = position(&entry.info).ok_or_else(busy(subject))?;
    let queues = queues(subject.pid, entry.inode.ino());
    let seen = (entries, completions) == LIBUVS;
    let array = Some(seen)
        .filter(|seen| *seen)
        .and_then(|_| look_at_memory(subject.pid, &queues, entries, completions));
    let Some(has_array) = array else { return Err(refuse(causes::descriptors::IO_URING)) };
    let own = subject.open(entry)?;
    ring::look(own.as_fd()).map_err(|obstacle| refuse(cause(obstacle)))?;
    if position > RING_POSITIONS {
        return Err(refuse(causes::descriptors::IO_URING_WORN));
    }
    let flags = entry.info.status_flags();
    Ok(OpenFile::Ring { flags, entries, completions, has_array, position, queues })
}

fn busy(subject: &Subject) -> impl Fn() -> CaptureError {
    move || refuse_detail(describe(subject.pid), causes::descriptors::IO_URING_BUSY)
}

fn cause(obstacle: Obstacle) -> &'static Cause {
    match obstacle {
        Obstacle::Unknown => causes::descriptors::IO_URING,
        _ => causes::descriptors::IO_URING_SET_UP,
    }
}

/// How many submissions and completions it has room for.
fn room(info: &FdInfo) -> Option<(u32, u32)> {
    let mask = |key| u32::from_str_radix(info.value(key)?.strip_prefix("0x")?, 16).ok();
    Some((mask("SqMask")?.checked_add(1)?, mask("CqMask")?.checked_add(1)?))
}

/// Whether a thread of the kernel polls it, or something is registered with it.
fn has_extras(info: &FdInfo) -> bool {
    let is_other = |(key, usual): (&str, &str)| info.value(key).is_some_and(|own| own != usual);
    let shown = [("SqThread", "-1"), ("UserFiles", "0"), ("UserBufs", "0"), ("NAPI", "disabled")];
    shown.into_iter().any(is_other) || info.value("Personalities").is_some()
}

/// How many requests it has seen, if none is under way.
fn position(info: &FdInfo) -> Option<u32> {
    // Requests that wait, and completions without room, are listed below their headings.
    if info.text().lines().any(|line| line.starts_with(' ')) || info.value("PollList").is_none() {
        return None;
    }
    let count = |key| info.value(key)?.parse::<u32>().ok();
    let first = count("SqTail")?;
    let others = ["SqHead", "CachedSqHead", "CqHead", "CqTail", "CachedCqTail"];
    others.into_iter().all(|key| count(key) == Some(first)).then_some(first)
}

/// Where a process has mapped the ring with this inode.
fn queues(pid: i32, inode: u64) -> Vec<RingQueue> {
    let maps = proc::text(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().filter_map(|line| queue(line, inode)).collect()
}

/// `7f84-7f85 rw-s 10000000 00:10 18082739   anon_inode:[io_uring]`.
fn queue(line: &str, inode: u64) -> Option<RingQueue> {
    let mut words = line.split_whitespace();
    let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
    let is_it = words.nth(1)?.parse() == Ok(inode) && words.next()? == "anon_inode:[io_uring]";
    let (start, end) = range.split_once('-')?;
    let number = |hex| u64::from_str_radix(hex, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let prot = [(0, b'r', libc::PROT_READ), (1, b'w', libc::PROT_WRITE)].into_iter();
    let prot = prot.filter(|(at, letter, _)| rights.as_bytes().get(*at) == Some(letter));
    let prot = prot.fold(0, |all, (_, _, bit)| all | bit as u32);
    is_it.then_some(RingQueue { start, bytes: end - start, prot, offset: number(offset)? })
}

/// Whether submissions go through an array; nothing if the ring is not one that only changes epoll instances.
fn look_at_memory(pid: i32, queues: &[RingQueue], entries: u32, completions: u32) -> Option<bool> {
    let [first, second] = queues else { return None };
    let (counters, submissions) = match (first.offset, second.offset) {
        (0, SUBMISSIONS) => (first, second),
        (SUBMISSIONS, 0) => (second, first),
        _ => return None,
    };
    let read = |queue: &RingQueue, bytes: usize| {
        let mut room = vec![0u8; bytes];
        let is_whole = queue.bytes as usize >= bytes
            && memory::read(pid, queue.start, &mut room).is_ok_and(|read| read == bytes);
        is_whole.then_some(room)
    };
    let array = COMPLETIONS_AT + COMPLETION_BYTES * completions as usize;
    let counters = read(counters, array + 4 * entries as usize)?;
    if MUST_BE_ZERO.iter().any(|at| counters[*at..*at + 4] != [0; 4]) {
        return None;
    }
    let submissions = read(submissions, SUBMISSION_BYTES * entries as usize)?;
    let is_fit =
        |submission: &[u8]| [OP_NOP, OP_EPOLL_CTL].contains(&submission[0]) && submission[1] == 0;
    if !submissions.chunks_exact(SUBMISSION_BYTES).all(is_fit) {
        return None;
    }
    let indices = counters[array..].chunks_exact(4);
    let indices: Vec<u32> =
        indices.map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect();
    if indices.iter().all(|index| *index == 0) {
        return Some(false);
    }
    indices.iter().copied().eq(0..entries).then_some(true)
}

/// A ring of process `pid`, with the library that made it, as far as its files show that.
pub fn describe(pid: i32) -> String {
    match library(pid) {
        Some(library) => format!("a ring of {library}"),
        None => "a ring".to_owned(),
    }
}

fn library(pid: i32) -> Option<String> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().map(Path::new).unwrap_or(Path::new("")).display().to_string();
    if WITH_LIBUV.contains(&name.as_str()) {
        return Some("Node.js (libuv)".to_owned());
    }
    let maps = proc::text(format!("/proc/{pid}/maps")).unwrap_or_default();
    let found = LIBRARIES.iter().find(|(part, _)| maps.contains(part));
    found.map(|(_, library)| (*library).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: &str = "pos:\t0\nflags:\t02000002\nSqMask:\t0xff\nSqHead:\t7\nSqTail:\t7\n\
        CachedSqHead:\t7\nCqMask:\t0x1ff\nCqHead:\t7\nCqTail:\t7\nCachedCqTail:\t7\nSQEs:\t0\n\
        CQEs:\t0\nSqThread:\t-1\nUserFiles:\t0\nUserBufs:\t0\nPollList:\nCqOverflowList:\n\
        NAPI:\tdisabled\n";

    fn info(text: &str) -> FdInfo {
        FdInfo::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn only_a_ring_whose_counts_agree_is_idle() {
        assert_eq!(room(&info(IDLE)), Some((256, 512)));
        assert_eq!(position(&info(IDLE)), Some(7));
        assert!(!has_extras(&info(IDLE)));
        for key in ["SqHead", "SqTail", "CachedSqHead", "CqHead", "CqTail", "CachedCqTail"] {
            let other = IDLE.replace(&format!("\n{key}:\t7"), &format!("\n{key}:\t8"));
            assert_eq!(position(&info(&other)), None, "{key}");
        }
        let waits = IDLE.replace("PollList:\n", "PollList:\n  op=6, task_works=0\n");
        assert_eq!(position(&info(&waits)), None);
        for (usual, other) in [("SqThread:\t-1", "SqThread:\t9"), ("Files:\t0", "Files:\t2")] {
            assert!(has_extras(&info(&IDLE.replace(usual, other))), "{other}");
        }
    }

    #[test]
    fn queues_are_found_by_the_inode() {
        let line =
            "7f8453861000-7f8453865000 rw-s 10000000 00:10 18082739     anon_inode:[io_uring]";
        let (start, bytes) = (0x7f84_5386_1000, 0x4000);
        let expected = RingQueue { start, bytes, prot: 3, offset: SUBMISSIONS };
        assert_eq!(queue(line, 18_082_739), Some(expected));
        assert_eq!(queue(line, 18_082_740), None);
        assert_eq!(queue(&line.replace("[io_uring]", "[other]"), 18_082_739), None);
    }
}
