//! Objects of System V in the caller's IPC namespace: looking at them, which takes nothing from
//! them.
#![allow(unsafe_code)] // reason: the calls take untyped memory

use std::fs::File;
use std::io;

const GETPID: i32 = 11;
const GETALL: i32 = 13;
/// `MSG_COPY` (Linux 3.8, `CONFIG_CHECKPOINT_RESTORE`).
const MSG_COPY: i32 = 0o40000;

/// The values of a set of `count` semaphores.
pub fn semaphore_values(id: u32, count: usize) -> io::Result<Vec<u16>> {
    let mut values = vec![0u16; count];
    // SAFETY: the kernel writes as many values as the set has, which never changes.
    check(unsafe { libc::semctl(id as i32, 0, GETALL, values.as_mut_ptr()) })?;
    Ok(values)
}

/// Pid of the last process to change each semaphore of a set; 0 if it is not in this PID namespace.
pub fn semaphore_users(id: u32, count: usize) -> io::Result<Vec<i32>> {
    // SAFETY: a call without memory.
    let ask = |index: usize| check(unsafe { libc::semctl(id as i32, index as i32, GETPID) });
    (0..count).map(ask).collect()
}

/// Number `index` of the messages that wait in a queue, none of which is longer than `capacity`:
/// its type and its bytes. Nothing if there are fewer.
pub fn message(id: u32, index: usize, capacity: usize) -> io::Result<Option<(i64, Vec<u8>)>> {
    let mut words = vec![0u64; 1 + capacity.div_ceil(8)];
    let flags = MSG_COPY | libc::IPC_NOWAIT;
    // SAFETY: the kernel writes a word and at most `capacity` bytes.
    let got = unsafe {
        libc::msgrcv(id as i32, words.as_mut_ptr().cast(), capacity, index as i64, flags)
    };
    if got < 0 {
        let error = io::Error::last_os_error();
        let is_none = error.raw_os_error() == Some(libc::ENOMSG);
        return if is_none { Ok(None) } else { Err(error) };
    }
    let bytes = words[1..].iter().flat_map(|word| word.to_ne_bytes()).take(got as usize);
    Ok(Some((words[0].cast_signed(), bytes.collect())))
}

/// How many bytes may wait in a queue.
pub fn queue_capacity(id: u32) -> io::Result<u64> {
    // SAFETY: all zeros are one, and the kernel writes one.
    unsafe {
        let mut info: libc::msqid_ds = std::mem::zeroed();
        check(libc::msgctl(id as i32, libc::IPC_STAT, &raw mut info))?;
        Ok(info.msg_qbytes)
    }
}

/// The bytes of a segment that takes `bytes` of whole pages, and is attached for a moment.
pub fn segment(id: u32, bytes: u64) -> io::Result<File> {
    // SAFETY: makes a new mapping, which nothing else uses, and unmaps it again.
    unsafe {
        let at = libc::shmat(id as i32, std::ptr::null(), libc::SHM_RDONLY);
        if at.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        let start = at.addr() as u64;
        let file = File::open(format!("/proc/self/map_files/{start:x}-{:x}", start + bytes));
        libc::shmdt(at);
        file
    }
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes a queue or set, whatever becomes of the test.
    struct Made(i32, unsafe fn(i32));

    impl Drop for Made {
        fn drop(&mut self) {
            // SAFETY: removes what this test has made.
            unsafe { (self.1)(self.0) }
        }
    }

    unsafe fn remove_queue(id: i32) {
        // SAFETY: no description is asked for.
        unsafe { libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    }

    unsafe fn remove_set(id: i32) {
        // SAFETY: a call without memory.
        unsafe { libc::semctl(id, 0, libc::IPC_RMID) };
    }

    #[test]
    fn messages_are_looked_at_and_stay() {
        // SAFETY: a call without memory.
        let queue = Made(unsafe { libc::msgget(libc::IPC_PRIVATE, 0o600) }, remove_queue);
        for (kind, text) in [(7i64, *b"abcdefgh"), (9, *b"ABCDEFGH")] {
            let message = (kind, text);
            // SAFETY: the kernel reads a word and the bytes behind it.
            let sent = unsafe { libc::msgsnd(queue.0, (&raw const message).cast(), 5, 0) };
            assert_eq!(sent, 0);
        }
        for _ in 0..2 {
            let peeked = |index| message(queue.0 as u32, index, 16).unwrap();
            assert_eq!(peeked(0), Some((7, b"abcde".to_vec())));
            assert_eq!(peeked(1), Some((9, b"ABCDE".to_vec())));
            assert_eq!(peeked(2), None);
        }
        assert!(queue_capacity(queue.0 as u32).unwrap() >= 10);
        assert!(message(u32::MAX >> 1, 0, 16).is_err());
    }

    #[test]
    fn a_set_shows_values_and_users() {
        // SAFETY: calls without memory.
        let set = unsafe {
            let set = Made(libc::semget(libc::IPC_PRIVATE, 3, 0o600), remove_set);
            assert_eq!(libc::semctl(set.0, 1, libc::SETVAL, 5), 0);
            set
        };
        assert_eq!(semaphore_values(set.0 as u32, 3).unwrap(), [0, 5, 0]);
        let own = std::process::id() as i32;
        assert_eq!(semaphore_users(set.0 as u32, 3).unwrap(), [0, own, 0]);
    }
}
