//! What a clone uses, from `/proc`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;

use farfork_sys::memory::{self, PAGE_FILE};
use farfork_sys::status::Status;
use farfork_sys::{numa, proc};
use farfork_types::PAGE_BYTES;

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

/// Where anonymous memory lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Bytes on memory nodes with processors.
    pub near_bytes: u64,
    /// Bytes on memory nodes without processors, such as CXL memory.
    pub far_bytes: u64,
}

/// Where the anonymous memory of a clone lies, with all that descends from it; zeros once it has ended. On a
/// machine with far nodes the kernel is asked for each page.
pub fn placement_of_family(pid: i32) -> Placement {
    placement_with(pid, &numa::nodes_without_processors())
}

fn placement_with(pid: i32, far_nodes: &[i32]) -> Placement {
    let mut sum = if far_nodes.is_empty() {
        let rollup = proc::text(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        Placement { near_bytes: kilobytes(&rollup, "Anonymous:") << 10, far_bytes: 0 }
    } else {
        counted(pid, far_nodes).unwrap_or_default()
    };
    for child in children(pid) {
        let own = placement_with(child, far_nodes);
        sum.near_bytes += own.near_bytes;
        sum.far_bytes += own.far_bytes;
    }
    sum
}

/// Pages asked for in one call.
const ASKED: usize = 1024;

fn counted(pid: i32, far_nodes: &[i32]) -> io::Result<Placement> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let runs = memory::present_pages(&pagemap, 0, END_OF_USER_MEMORY)?;
    let anonymous = runs.iter().filter(|run| run.categories & PAGE_FILE == 0);
    let pages: Vec<u64> =
        anonymous.flat_map(|run| (run.start..run.end).step_by(PAGE_BYTES as usize)).collect();
    let mut placement = Placement::default();
    for asked in pages.chunks(ASKED) {
        for node in numa::nodes_of(pid, asked)? {
            match node {
                node if far_nodes.contains(&node) => placement.far_bytes += PAGE_BYTES,
                0.. => placement.near_bytes += PAGE_BYTES,
                // Gone meanwhile.
                _ => {}
            }
        }
    }
    Ok(placement)
}

/// Addresses of processes end there (x86-64, four levels of page tables): the kernel looks at none beyond.
const END_OF_USER_MEMORY: u64 = (1 << 47) - PAGE_BYTES;

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
    fn pages_asked_for_one_by_one_are_as_many_as_the_kernel_counts() {
        let block = std::hint::black_box(vec![1u8; 16 << 20]);
        let pid = std::process::id() as i32;
        let near = counted(pid, &[7]).unwrap();
        let far = counted(pid, &[0]).unwrap();
        drop(block);
        assert!(near.near_bytes >= 16 << 20 && near.far_bytes == 0, "{near:?}");
        assert!(far.far_bytes >= 16 << 20, "{far:?}");
    }

    #[test]
    fn own_usage_is_there_and_grows_with_a_touch() {
        let pid = std::process::id() as i32;
        // Other tests of this process give memory back meanwhile: 16 MiB and less.
        let before = of(pid);
        let block = std::hint::black_box(vec![1u8; 128 << 20]);
        let after = of(pid);
        assert!(before.vmas > 5 && before.faults["minor"] > 0);
        assert!(after.local_bytes >= before.local_bytes + (64 << 20), "{before:?} {after:?}");
        drop(block);
    }
}
