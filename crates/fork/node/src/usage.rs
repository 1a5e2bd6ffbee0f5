//! What a clone uses, from `/proc`.

use std::collections::BTreeMap;
use std::fs;

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

/// Reads the usage of a clone, with all that descends from it.
pub fn of_family(pid: i32) -> Usage {
    let mut sum = of(pid);
    for child in children(pid) {
        let own = of_family(child);
        sum.local_bytes += own.local_bytes;
        sum.pool_bytes += own.pool_bytes;
        sum.vmas += own.vmas;
        for (kind, count) in own.faults {
            *sum.faults.entry(kind).or_default() += count;
        }
    }
    sum
}

/// The children that all threads of a process have.
fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
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
    fn children_count() {
        let alone = of(std::process::id() as i32);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        while of(child.id() as i32).vmas == 0 {}
        let family = of_family(std::process::id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(family.vmas > alone.vmas, "{family:?} {alone:?}");
    }

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
