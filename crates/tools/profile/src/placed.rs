//! Where the memory of a process lies on a machine with far memory nodes, and moving it there.
//!
//! Pages are moved from outside (`move_pages`), evenly spread, as the kernel's weighted interleave would have them: its
//! weights hold for the whole system.

use std::fs::File;
use std::io;

use farfork_sys::memory::{self, PAGE_FILE};
use farfork_sys::numa;
use farfork_types::PAGE_BYTES;

/// Addresses of processes end there (x86-64, four levels of page tables).
const END_OF_USER_MEMORY: u64 = (1 << 47) - PAGE_BYTES;
/// Pages that one call asks about or moves.
const BATCH: usize = 1024;
/// Rounds of moving and counting. The first does nearly all: pages that other processes map, too, stay, and others go
/// instead of them.
const ROUNDS: usize = 4;

/// The memory nodes of a machine with far memory.
#[derive(Clone, Debug)]
pub struct Nodes {
    near: Vec<i32>,
    far: Vec<i32>,
}

/// What a process has in memory, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// On nodes with processors.
    pub near: u64,
    /// On nodes without.
    pub far: u64,
}

/// A page of a process.
#[derive(Clone, Copy, Debug)]
struct Page {
    address: u64,
    is_far: bool,
    /// Whether it is anonymous, so that no other process maps it.
    is_own: bool,
}

impl Nodes {
    /// Those of this machine; `None` without far ones.
    pub fn of_machine() -> Option<Nodes> {
        let far = numa::nodes_without_processors();
        (!far.is_empty()).then(|| Nodes { near: numa::nodes_with_processors(), far })
    }

    /// Near and far ones in words.
    pub fn shown(&self) -> [String; 2] {
        let list = |nodes: &[i32]| -> String {
            let numbers: Vec<String> = nodes.iter().map(i32::to_string).collect();
            numbers.join(",")
        };
        [list(&self.near), list(&self.far)]
    }

    /// Counts the pages of a process.
    pub fn resident(&self, pid: i32) -> io::Result<Resident> {
        Ok(count(&self.pages(pid)?))
    }

    /// Has so many pages of a process far, the others near; returns what it has.
    pub fn place(&self, pid: i32, far: u64) -> io::Result<Resident> {
        for round in 0..ROUNDS {
            let pages = self.pages(pid)?;
            let changes = match round {
                0 => spread(&pages, far),
                _ => rest(&pages, far),
            };
            if changes.is_empty() {
                break;
            }
            for (to, is_far) in [(&self.far, true), (&self.near, false)] {
                let moved = changes.iter().filter(|page| page.is_far != is_far);
                let addresses: Vec<u64> = moved.map(|page| page.address).collect();
                let Some(node) = to.get(round % to.len().max(1)) else { continue };
                for batch in addresses.chunks(BATCH) {
                    numa::move_pages(pid, batch, *node)?;
                }
            }
        }
        self.resident(pid)
    }

    fn pages(&self, pid: i32) -> io::Result<Vec<Page>> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        let runs = memory::present_pages(&pagemap, 0, END_OF_USER_MEMORY)?;
        let all: Vec<(u64, bool)> = runs
            .iter()
            .flat_map(|run| {
                let is_own = run.categories & PAGE_FILE == 0;
                (run.start..run.end).step_by(PAGE_BYTES as usize).map(move |at| (at, is_own))
            })
            .collect();
        let mut pages = Vec::with_capacity(all.len());
        for batch in all.chunks(BATCH) {
            let addresses: Vec<u64> = batch.iter().map(|(at, _)| *at).collect();
            let nodes = numa::nodes_of(pid, &addresses)?;
            // A negative number is an errno: not there any more, or the kernel's own, as the vDSO.
            let known = batch.iter().zip(nodes).filter(|(_, node)| *node >= 0);
            pages.extend(known.map(|(&(address, is_own), node)| Page {
                address,
                is_far: self.far.contains(&node),
                is_own,
            }));
        }
        Ok(pages)
    }
}

fn count(pages: &[Page]) -> Resident {
    let far = pages.iter().filter(|page| page.is_far).count() as u64;
    Resident { near: pages.len() as u64 - far, far }
}

/// The pages that are not where they should be, if so many, evenly spread, are to be far.
fn spread(pages: &[Page], far: u64) -> Vec<Page> {
    let is_due = evenly(pages.len(), far);
    let wrong = pages.iter().enumerate().filter(|(at, page)| is_due(*at) != page.is_far);
    wrong.map(|(_, page)| *page).collect()
}

/// Pages of its own that go where others could not.
fn rest(pages: &[Page], far: u64) -> Vec<Page> {
    let has = count(pages).far;
    let from_far = has > far;
    let left: Vec<&Page> =
        pages.iter().filter(|page| page.is_own && page.is_far == from_far).collect();
    let is_due = evenly(left.len(), has.abs_diff(far));
    left.iter().enumerate().filter(|(at, _)| is_due(*at)).map(|(_, page)| **page).collect()
}

/// Which of `all` are `wanted` evenly spread ones.
fn evenly(all: usize, wanted: u64) -> impl Fn(usize) -> bool {
    let wanted = u128::from(wanted).min(all as u128);
    let due = move |seen: usize| seen as u128 * wanted / (all as u128).max(1);
    move |at| due(at + 1) > due(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(address: u64, is_far: bool, is_own: bool) -> Page {
        Page { address, is_far, is_own }
    }

    fn addresses(pages: Vec<Page>) -> Vec<u64> {
        pages.into_iter().map(|page| page.address).collect()
    }

    #[test]
    fn far_pages_are_spread_evenly_and_their_number_is_exact() {
        for (all, wanted) in [(10, 0), (10, 3), (10, 10), (7, 5), (1000, 333)] {
            let is_due = evenly(all, wanted);
            let due: Vec<usize> = (0..all).filter(|at| is_due(*at)).collect();
            assert_eq!(due.len() as u64, wanted);
            let gaps = due.windows(2).map(|pair| pair[1] - pair[0]);
            let most = all.div_ceil((wanted as usize).max(1));
            assert!(gaps.max().unwrap_or(0) <= most, "{all} {wanted}: {due:?}");
        }
    }

    #[test]
    fn what_stays_is_made_up_for_by_pages_of_its_own() {
        let near: Vec<Page> = (0..8).map(|at| page(at, false, at >= 4)).collect();
        assert_eq!(addresses(spread(&near, 4)), [1, 3, 5, 7]);
        // Those of a file have stayed.
        let after: Vec<Page> = (0..8).map(|at| page(at, at == 5 || at == 7, at >= 4)).collect();
        assert_eq!(addresses(rest(&after, 4)), [4, 6]);
        assert_eq!(addresses(rest(&after, 1)), [7]);
        assert_eq!(addresses(spread(&after, 0)), [5, 7]);
        assert_eq!(addresses(rest(&after, 2)), [] as [u64; 0]);
    }

    #[test]
    fn pages_are_counted_by_the_node_that_they_lie_on() {
        let block = std::hint::black_box(vec![1u8; 8 << 20]);
        let pid = std::process::id() as i32;
        let near = Nodes { near: vec![0], far: vec![7] }.resident(pid).unwrap();
        let far = Nodes { near: vec![7], far: vec![0] }.resident(pid).unwrap();
        drop(block);
        assert!(near.near > 2048 && near.far == 0, "{near:?}");
        assert!(far.far > 2048 && far.near == 0, "{far:?}");
        let nowhere = Nodes { near: vec![0], far: vec![900] };
        assert!(nowhere.place(pid, 1).is_err());
    }
}
