//! Pages that several snapshots store.
//!
//! The pool has no page once for two snapshots: each has copies of its own. So this says what they could share, and not what
//! they do. Pages count as the same by their checksums, at the same offset of the guest's memory: a snapshot and its base, or
//! two snapshots of one machine, have most of their pages there.

use std::borrow::Borrow;

use farfork_types::PAGE_BYTES;

use super::map::Extent;
use super::snapshot::Snapshot;

impl Snapshot {
    /// Bytes of stored pages that one of `others` stores as well, each page counted once. No page is read: two different
    /// ones count as the same once in 2^32 pairs.
    pub fn same_bytes(&self, others: impl IntoIterator<Item = impl Borrow<Snapshot>>) -> u64 {
        let mut same = vec![false; self.sums.len()];
        for other in others {
            self.mark_same(other.borrow(), &mut same);
        }
        same.iter().filter(|is_same| **is_same).count() as u64 * PAGE_BYTES
    }

    fn mark_same(&self, other: &Snapshot, same: &mut [bool]) {
        for run in self.map.runs() {
            let memory_end = other.map.memory_bytes().min(run.offset + run.bytes);
            let mut at = run.offset;
            while at < memory_end {
                let extent = other.map.at(at);
                let pages = (extent.bytes().min(memory_end - at) / PAGE_BYTES) as usize;
                if let Extent::Stored { place, .. } = extent {
                    let theirs = &other.sums[(place / PAGE_BYTES) as usize..][..pages];
                    let first = ((run.place + at - run.offset) / PAGE_BYTES) as usize;
                    let ours = self.sums[first..].iter().zip(&mut same[first..]);
                    for ((our, is_same), their) in ours.zip(theirs) {
                        *is_same |= our == their;
                    }
                }
                at += pages as u64 * PAGE_BYTES;
            }
        }
    }
}
