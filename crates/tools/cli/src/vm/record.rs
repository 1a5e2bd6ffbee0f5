//! Which pages machines of a snapshot were seen to need, as the pool keeps it.

use std::collections::HashSet;

use farfork_pool::{PageBits, Pool, PoolError};
use farfork_types::Cid;

/// Numbers of the pages, in the order in which they were needed; last those whose order is not known.
pub(super) fn known(pool: &Pool, cid: Cid) -> Result<Vec<u32>, PoolError> {
    let accessed = pool.access(cid)?.accessed;
    let is_set = |page: u32| {
        accessed.get(page as usize / 64).is_some_and(|word| word >> (page % 64) & 1 != 0)
    };
    let mut known = pool.access_order(cid)?;
    known.retain(|page| is_set(*page));
    let ordered: HashSet<u32> = known.iter().copied().collect();
    let pages = 0..accessed.len() as u32 * 64;
    known.extend(pages.filter(|page| is_set(*page) && !ordered.contains(page)));
    Ok(known)
}

/// Adds pages to those that are known.
pub(crate) fn add(pool: &Pool, cid: Cid, needed: &[u32]) -> Result<(), PoolError> {
    pool.add_users_bits(cid, &bits_of(needed))?;
    pool.add_access_order(cid, needed)
}

/// Records which pages are needed now. If others were before, these are forgotten first: should this process be killed
/// between the two, nothing is known, and the next machine is recorded.
pub(super) fn put(pool: &Pool, cid: Cid, hot: &[u32], replaces: bool) -> Result<(), PoolError> {
    if replaces {
        pool.reset_access(cid, false)?;
    }
    add(pool, cid, hot)
}

fn bits_of(pages: &[u32]) -> PageBits {
    let words = pages.iter().max().map_or(0, |last| *last as usize / 64 + 1);
    let mut accessed = vec![0; words];
    pages.iter().for_each(|page| accessed[*page as usize / 64] |= 1 << (page % 64));
    PageBits { accessed, ..PageBits::default() }
}
