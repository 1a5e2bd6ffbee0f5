//! In which order clones of this node needed pages of images that have nodes of their own: their nodes learn it, for
//! the clones to come, of any node.
//!
//! ```text
//!  clone ── page fault ──► far process ── each half second: pages ──► keeper of the seed
//!                                                                        │ before the next start
//!  reads in advance ◄── the order of all nodes' clones ◄─────────────────┘
//! ```
//! What is read in advance is not noted, and what was cached before it was touched is not seen.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use farfork_sys::sync::locked;
use farfork_types::Cid;

use crate::orders::{MOST_PAGES, pages};

/// Notes pages, once each.
#[derive(Default)]
pub struct Touched(Mutex<HashMap<Cid, OfImage>>);

#[derive(Default)]
struct OfImage {
    seen: HashSet<u32>,
    /// In their order, those that the image's node does not know yet.
    new: Vec<u32>,
}

impl Touched {
    /// Notes those pages of a read that were not noted before.
    pub fn note(&self, cid: Cid, offset: u64, bytes: u64) {
        self.with(|all| {
            let OfImage { seen, new } = all.entry(cid).or_default();
            let unknown = |page: &u32| seen.len() < MOST_PAGES && seen.insert(*page);
            new.extend(pages(offset, bytes).filter(unknown));
        });
    }

    /// Takes away what the image's node does not know yet.
    pub fn take(&self, cid: Cid) -> Vec<u32> {
        self.with(|all| all.get_mut(&cid).map(|of| std::mem::take(&mut of.new))).unwrap_or_default()
    }

    /// Forgets an image.
    pub fn forget(&self, cid: Cid) {
        self.with(|all| drop(all.remove(&cid)));
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Cid, OfImage>) -> T) -> T {
        work(&mut locked(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_image::layout::DATA_AT;
    use farfork_types::PAGE_BYTES;

    #[test]
    fn pages_are_given_once_in_the_order_of_their_reads() {
        let (cid, touched) = (Cid::from_bytes([7; 16]), Touched::default());
        assert_eq!(touched.take(cid), [0; 0]);
        touched.note(cid, DATA_AT + 9 * PAGE_BYTES, 2 * PAGE_BYTES);
        touched.note(cid, 0, DATA_AT + PAGE_BYTES);
        touched.note(cid, DATA_AT + 9 * PAGE_BYTES, PAGE_BYTES);
        assert_eq!(touched.take(cid), [9, 10, 0]);
        touched.note(cid, DATA_AT + 10 * PAGE_BYTES, 2 * PAGE_BYTES);
        assert_eq!(touched.take(cid), [11]);
        touched.forget(cid);
        touched.note(cid, DATA_AT, PAGE_BYTES);
        assert_eq!(touched.take(cid), [0]);
    }
}
