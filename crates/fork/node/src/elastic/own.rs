//! Memory that a process has of its own: where it lies, which of it is hottest, and moving it.

use std::fs::File;
use std::io;
use std::ops::Range;

use farfork_image::model::Member;
use farfork_pages::Access;
use farfork_pages::policy::pages;
use farfork_sys::memory::{self, PAGE_FILE};
use farfork_sys::numa;
use farfork_types::PAGE_BYTES;

/// Addresses of processes end there (x86-64, four levels of page tables).
const END_OF_USER_MEMORY: u64 = (1 << 47) - PAGE_BYTES;
/// Pages that one call asks about or moves.
const BATCH: usize = 1024;

/// How much a page is needed near, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Of the image; clones were not seen to touch it.
    Untouched,
    /// Not of the image: nothing is known about it.
    New,
    /// Clones were seen to read it.
    Accessed,
    /// Declared hot.
    Hot,
    /// Clones were seen to write it.
    Written,
}

/// A page of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPage {
    /// The process.
    pub pid: i32,
    /// How much it is needed.
    pub rank: Rank,
    /// Where it is mapped.
    pub address: u64,
    /// The memory node that it lies on.
    pub node: i32,
}

/// Ranges of pages of the process's own: in memory or swap, not a file's, and not the zero page.
pub fn of(pagemap: &File, part: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let runs = memory::pages_with_content(pagemap, part.start, part.end)?;
    let own = runs.into_iter().filter(|run| run.categories & PAGE_FILE == 0);
    Ok(own.map(|run| run.start..run.end).collect())
}

/// All pages of its own that are in memory.
pub fn ranked(
    pid: i32,
    pagemap: &File,
    member: &Member,
    access: &Access,
) -> io::Result<Vec<OwnPage>> {
    let mut spans: Vec<_> = member.memory.mapped_spans().collect();
    spans.sort_by_key(|span| span.address);
    let rank = |address: u64| {
        let after = spans.partition_point(|span| span.address <= address);
        let span = after.checked_sub(1).map(|index| spans[index]);
        let Some(span) = span.filter(|span| address < span.address + span.bytes) else {
            return Rank::New;
        };
        let page = pages(span).start + (address - span.address) / PAGE_BYTES;
        match page {
            page if access.dirtied.contains(page) => Rank::Written,
            page if access.hot.contains(page) => Rank::Hot,
            page if access.accessed.contains(page) => Rank::Accessed,
            _ => Rank::Untouched,
        }
    };
    let runs = of(pagemap, 0..END_OF_USER_MEMORY)?;
    let addresses: Vec<u64> =
        runs.into_iter().flat_map(|run| run.step_by(PAGE_BYTES as usize)).collect();
    let mut all = Vec::with_capacity(addresses.len());
    for batch in addresses.chunks(BATCH) {
        let nodes = numa::nodes_of(pid, batch)?;
        let found = batch.iter().zip(nodes).filter(|(_, node)| *node >= 0);
        all.extend(found.map(|(at, node)| OwnPage { pid, rank: rank(*at), address: *at, node }));
    }
    Ok(all)
}

/// So many of the pages, those that are needed least first or last; of the last rank that is not taken whole,
/// evenly spread ones.
pub fn choose(mut all: Vec<OwnPage>, wanted: u64, coldest_first: bool) -> Vec<OwnPage> {
    all.sort_by_key(|page| page.rank);
    if !coldest_first {
        all.reverse();
    }
    let mut chosen = Vec::new();
    for of_rank in all.chunk_by(|one, other| one.rank == other.rank) {
        let left = (wanted as usize - chosen.len()).min(of_rank.len());
        let due = |seen: usize| seen * left / of_rank.len();
        let taken = of_rank.iter().enumerate().filter(|(at, _)| due(at + 1) > due(*at));
        chosen.extend(taken.map(|(_, page)| *page));
    }
    chosen.sort_unstable_by_key(|page| (page.pid, page.address));
    chosen
}

/// Moves the pages, which are in the order of their processes, to a node.
pub fn move_to(chosen: &[OwnPage], node: i32) -> io::Result<()> {
    for of_process in chosen.chunk_by(|one, other| one.pid == other.pid) {
        let addresses: Vec<u64> = of_process.iter().map(|page| page.address).collect();
        for batch in addresses.chunks(BATCH) {
            numa::move_pages(of_process[0].pid, batch, node)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rank: Rank, address: u64) -> OwnPage {
        OwnPage { pid: 1, rank, address, node: 0 }
    }

    #[test]
    fn the_coldest_leave_first_and_the_hottest_come_back_first() {
        let mut all: Vec<OwnPage> = (0..8).map(|at| page(Rank::Untouched, at)).collect();
        all.extend([page(Rank::Written, 20), page(Rank::New, 21), page(Rank::Hot, 22)]);
        let chosen = |wanted, coldest_first| -> Vec<u64> {
            choose(all.clone(), wanted, coldest_first).iter().map(|page| page.address).collect()
        };
        assert_eq!(chosen(9, true), [0, 1, 2, 3, 4, 5, 6, 7, 21]);
        assert_eq!(chosen(2, false), [20, 22]);
        assert_eq!(chosen(4, true).len(), 4);
        let spread = chosen(2, true);
        assert!(spread[0] < 4 && spread[1] >= 4, "{spread:?}");
        assert_eq!(chosen(100, true).len(), 11);
    }

    #[test]
    fn what_a_process_has_of_its_own_lies_on_a_node() {
        let block = std::hint::black_box(vec![1u8; 1 << 20]);
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let pid = std::process::id() as i32;
        let all = ranked(pid, &pagemap, &Member::default(), &Access::default()).unwrap();
        let first = block.as_ptr() as u64;
        let of_block = |page: &&OwnPage| (first..first + (1 << 20)).contains(&page.address);
        assert!(all.iter().filter(of_block).count() >= 255);
        assert!(all.iter().all(|page| page.rank == Rank::New && page.node >= 0));
    }
}
