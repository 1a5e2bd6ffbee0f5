//! Memory of a process, from `/proc`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a process uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Anonymous memory: what a clone of an image does not share with the pool.
    pub anonymous: u64,
    /// Memory that this process alone maps: what a forked child does not share with its parent.
    pub private: u64,
    /// Page tables.
    pub page_tables: u64,
    /// All memory that is mapped and present.
    pub resident: u64,
    /// Number of minor page faults so far.
    pub faults: u64,
}

/// Reads the usage of a process. All zeros if it is dead.
pub fn of(pid: i32) -> Usage {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let (rollup, status) = (read("smaps_rollup"), read("status"));
    Usage {
        anonymous: bytes(&rollup, "Anonymous:"),
        private: bytes(&rollup, "Private_Dirty:") + bytes(&rollup, "Private_Clean:"),
        page_tables: bytes(&status, "VmPTE:"),
        resident: bytes(&rollup, "Rss:"),
        faults: minor_faults(&read("stat")),
    }
}

/// Bytes of anonymous memory that a process shares with the process it was forked from: a part of
/// [`Usage::anonymous`].
pub fn shared_anonymous(pid: i32) -> u64 {
    of_shared_anonymous(&fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default())
}

fn of_shared_anonymous(smaps: &str) -> u64 {
    let (mut is_of_file, mut kilobytes) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if !first.ends_with(':') {
            // A mapping: addresses, rights, offset, device, inode.
            is_of_file = words.nth(2).is_some_and(|inode| inode != "0");
        } else if !is_of_file && ["Shared_Clean:", "Shared_Dirty:"].contains(&first) {
            kilobytes += second.parse().unwrap_or(0);
        }
    }
    kilobytes << 10
}

/// The first child of a process's first thread, if it has one.
pub fn child_of(pid: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// The parent of a process.
pub fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Waits until a process has disappeared, and its memory with it.
pub fn await_end(pid: i32) {
    let begun = Instant::now();
    let path = format!("/proc/{pid}");
    while Path::new(&path).exists() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn bytes(text: &str, key: &str) -> u64 {
    let rest = text.lines().find_map(|line| line.strip_prefix(key));
    rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0) << 10
}

/// Field 10 of proc(5), the state being field 3.
fn minor_faults(stat: &str) -> u64 {
    let rest = stat.rsplit_once(") ").map(|(_, rest)| rest);
    rest.and_then(|rest| rest.split(' ').nth(7)?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_touches_is_counted() {
        let pid = std::process::id() as i32;
        let before = of(pid);
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        let after = of(pid);
        assert!(after.anonymous >= before.anonymous + (31 << 20), "{before:?} {after:?}");
        assert!(after.private >= before.private + (31 << 20), "{before:?} {after:?}");
        assert!(after.resident > after.anonymous && after.page_tables > 0 && after.faults > 0);
        drop(block);
        assert!(shared_anonymous(pid) < after.anonymous);
        assert_eq!(parent_of(pid), Some(std::os::unix::process::parent_id() as i32));
        await_end(i32::MAX);
    }

    #[test]
    fn what_is_shared_is_counted_of_anonymous_mappings_alone() {
        let smaps = "\
7f00-7f08 rw-p 00000000 00:00 0 \nRss: 32 kB\nShared_Clean: 4 kB\nShared_Dirty: 16 kB\n\
7f08-7f09 r--p 00001000 fe:00 12345   /a: b\nShared_Clean: 100 kB\nShared_Dirty: 8 kB\n\
7f10-7f11 rw-p 00000000 00:00 0   [heap]\nShared_Dirty: 1 kB\nVmFlags: rd wr\n";
        assert_eq!(of_shared_anonymous(smaps), 21 << 10);
    }
}
