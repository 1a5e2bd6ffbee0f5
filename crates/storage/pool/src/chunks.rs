//! Owners of chunks.
//!
//! 1. The owner word of a chunk is the only truth; there are no free lists.
//! 2. A chunk is claimed by one store and given back by one store, so that every prefix of a claim
//!    or a release is a state in which each chunk has exactly one owner or is free.
//! 3. A chunk is wiped before its word becomes 0.

use std::sync::atomic::Ordering::{Acquire, Release};

use crate::failpoint::step;
use crate::ids::{ChunkIndex, Extent};
use crate::layout::ChunkRecord;
use crate::lock::HeldLock;

/// What the rest of the pool asks of an allocator.
pub(crate) trait ChunkAllocator {
    /// Gives `chunks` free chunks the owner word `owner`: one extent if at all possible, else the fewest.
    /// `None`, and nothing has changed, if fewer are free.
    fn claim(&self, owner: u64, chunks: u32) -> Option<Vec<Extent>>;
    /// Everything that carries the owner word `owner`, by offset.
    fn owned(&self, owner: u64) -> Vec<Extent>;
    /// Makes chunks free that the caller has wiped.
    fn give_back(&self, run: Extent);
}

/// The chunk table.
#[derive(Clone, Copy)]
pub(crate) struct ChunkTable<'p> {
    pub(crate) records: &'p [ChunkRecord],
    pub(crate) first_data: ChunkIndex,
}

impl<'p> ChunkTable<'p> {
    /// Owner words and the runs of data chunks that carry them, by offset.
    pub(crate) fn runs(self) -> impl Iterator<Item = (u64, Extent)> + 'p {
        let mut next = self.first_data.0;
        std::iter::from_fn(move || {
            let start = next;
            let word = self.records.get(start as usize)?.owner.load(Acquire);
            next += 1;
            while self.carries(next, word) {
                next += 1;
            }
            Some((word, ChunkIndex(start).run(next - start)))
        })
    }

    fn carries(self, chunk: u32, word: u64) -> bool {
        self.records.get(chunk as usize).is_some_and(|record| record.owner.load(Acquire) == word)
    }

    pub(crate) fn of_run(self, run: Extent) -> &'p [ChunkRecord] {
        let first = run.first().0 as usize;
        &self.records[first..first + run.chunks as usize]
    }

    pub(crate) fn free_chunks(self) -> u32 {
        self.runs().filter(|(word, _)| *word == 0).map(|(_, run)| run.chunks).sum()
    }
}

/// The allocator of the processes of one kernel, for the holder of the lock of the tables.
pub(crate) struct LockedChunks<'a> {
    table: ChunkTable<'a>,
    _lock: &'a HeldLock,
}

impl<'a> LockedChunks<'a> {
    pub(crate) fn new(table: ChunkTable<'a>, lock: &'a HeldLock) -> LockedChunks<'a> {
        LockedChunks { table, _lock: lock }
    }

    fn set_owner(&self, run: Extent, word: u64) {
        for record in self.table.of_run(run) {
            record.owner.store(word, Release);
            step();
        }
    }
}

impl ChunkAllocator for LockedChunks<'_> {
    fn claim(&self, owner: u64, chunks: u32) -> Option<Vec<Extent>> {
        let free = self.table.runs().filter(|(word, _)| *word == 0).map(|(_, run)| run).collect();
        let runs = choose(free, chunks)?;
        for run in &runs {
            self.set_owner(*run, owner);
        }
        Some(runs)
    }

    fn owned(&self, owner: u64) -> Vec<Extent> {
        let owned = |(word, run)| (word == owner).then_some(run);
        self.table.runs().filter_map(owned).collect()
    }

    fn give_back(&self, run: Extent) {
        self.set_owner(run, 0);
    }
}

/// Picks `chunks` chunks out of free runs: the smallest run that is enough, else the largest ones.
fn choose(mut free: Vec<Extent>, chunks: u32) -> Option<Vec<Extent>> {
    free.sort_by_key(|run| run.chunks);
    if let Some(run) = free.iter().find(|run| run.chunks >= chunks) {
        return Some(vec![Extent { chunks, ..*run }]);
    }
    let mut missing = chunks;
    let mut chosen = Vec::new();
    while missing > 0 {
        let run = free.pop()?;
        let taken = run.chunks.min(missing);
        chosen.push(Extent { chunks: taken, ..run });
        missing -= taken;
    }
    chosen.sort_by_key(|run| run.offset);
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runs(lengths: &[u32]) -> Vec<Extent> {
        let mut next = 3;
        let place = |chunks: &u32| {
            let run = ChunkIndex(next).run(*chunks);
            next += chunks + 1;
            run
        };
        lengths.iter().map(place).collect()
    }

    #[test]
    fn the_smallest_run_that_is_enough_is_taken() {
        let chosen = choose(runs(&[9, 4, 6]), 4).unwrap();
        assert_eq!(chosen, vec![runs(&[9, 4, 6])[1]]);
    }

    #[test]
    fn without_one_the_fewest_are_taken_in_order() {
        let chosen = choose(runs(&[1, 5, 2, 4]), 8).unwrap();
        assert_eq!(chosen.iter().map(|run| run.chunks).collect::<Vec<_>>(), [5, 3]);
        assert!(choose(runs(&[1, 5, 2, 4]), 13).is_none());
    }

    proptest! {
        #[test]
        fn what_is_chosen_was_free(lengths in prop::collection::vec(1u32..9, 0..9), chunks in 1u32..40) {
            let free = runs(&lengths);
            let total: u32 = lengths.iter().sum();
            match choose(free.clone(), chunks) {
                None => prop_assert!(total < chunks),
                Some(chosen) => {
                    prop_assert_eq!(chosen.iter().map(|run| run.chunks).sum::<u32>(), chunks);
                    let inside = |run: &Extent| {
                        free.iter().any(|whole| whole.contains(run.offset, run.bytes()))
                    };
                    prop_assert!(chosen.iter().all(inside));
                    prop_assert!(chosen.windows(2).all(|two| two[0].end() <= two[1].offset));
                }
            }
        }
    }
}
