//! What a clone uses, from `/proc`.

use std::collections::BTreeMap;

use farfork_sys::proc;
use farfork_sys::status::Status;

/// Memory and faults of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Anonymous memory and page tables, in bytes.
    pub local_bytes: u64,
    /// Bytes mapped from files, that is from the pool, and present.
    pub pool_bytes: u64,
    /// Mappings.
    pub vmas: u64,
    /// Page faults by kind.
    pub faults: BTreeMap<String, u64>,
}

/// Reads the usage of a process; zeros once it has ended.
pub fn of(pid: i32) -> Usage {
    let read = |name: &str| proc::text(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let rollup = read("smaps_rollup");
    let page_tables_kb = Status::read(pid, pid).map_or(0, |status| status.page_tables_kb);
    let anonymous = kilobytes(&rollup, "Anonymous:");
    let resident = kilobytes(&rollup, "Rss:");
    Usage {
        local_bytes: (anonymous + page_tables_kb) << 10,
        pool_bytes: resident.saturating_sub(anonymous) << 10,
        vmas: read("maps").lines().count() as u64,
        faults: faults(&read("stat")),
    }
}

fn kilobytes(text: &str, key: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(key))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

fn faults(stat: &str) -> BTreeMap<String, u64> {
    let fields: Vec<&str> =
        stat.rsplit_once(") ").map_or(Vec::new(), |(_, rest)| rest.split(' ').collect());
    // Fields 10 and 12 of proc(5), the state being field 3.
    [("minor", 7), ("major", 9)]
        .into_iter()
        .map(|(kind, index)| {
            let count = fields.get(index).and_then(|field| field.parse().ok()).unwrap_or(0);
            (kind.to_owned(), count)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_usage_is_there_and_grows_with_a_touch() {
        let pid = std::process::id() as i32;
        let before = of(pid);
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        let after = of(pid);
        assert!(before.vmas > 5 && before.faults["minor"] > 0);
        assert!(after.local_bytes >= before.local_bytes + (31 << 20), "{before:?} {after:?}");
        drop(block);
    }
}
