//! Which pages of an image clones are known to need, as ranges of its file, in the order in which they should come.

use std::collections::HashSet;

use farfork_image::header::Kind;
use farfork_image::layout::DATA_AT;
use farfork_pool::{Pool, PoolError};
use farfork_types::{Cid, PAGE_BYTES};

use crate::protocol::PageRange;

/// Where the pages of side tables and orders begin in the file of an image.
const FIRST: u64 = DATA_AT / PAGE_BYTES;

/// The pages of an image of `pool` whose order was recorded, in that order; then those that clones touched, or that
/// were declared hot. None of a virtual machine: its pages are numbered otherwise.
///
/// # Errors
/// The pool has no such image, or its tables cannot be read.
pub fn pages(pool: &Pool, cid: Cid) -> Result<Vec<PageRange>, PoolError> {
    if Kind::of(&pool.find(cid)?).is_ok_and(|kind| kind == Kind::VirtualMachine) {
        return Ok(Vec::new());
    }
    let bits = pool.access(cid)?;
    let order = pool.access_order(cid)?;
    let sets = [&bits.hot, &bits.accessed, &bits.dirtied];
    let words = sets.iter().map(|set| set.len()).max().unwrap_or(0);
    let word = |at: usize| sets.iter().fold(0, |all, set| all | set.get(at).copied().unwrap_or(0));
    let set = (0..words).flat_map(|at| set_bits(at, word(at)));
    Ok(ranges(FIRST, &order, set))
}

/// What was recorded of a virtual machine: pages of its memory that machines asked for and that count as needed, those
/// whose order is known first, in that order. None of an image of processes.
///
/// # Errors
/// As [`pages`].
pub fn record(pool: &Pool, cid: Cid) -> Result<Vec<PageRange>, PoolError> {
    if Kind::of(&pool.find(cid)?).is_ok_and(|kind| kind != Kind::VirtualMachine) {
        return Ok(Vec::new());
    }
    let accessed = pool.access(cid)?.accessed;
    let is_set = |page: &u32| {
        accessed.get(*page as usize / 64).is_some_and(|word| word >> (page % 64) & 1 != 0)
    };
    let mut order = pool.access_order(cid)?;
    order.retain(is_set);
    let set = accessed.iter().enumerate().flat_map(|(at, word)| set_bits(at, *word));
    Ok(ranges(0, &order, set))
}

/// The pages of an order alone.
pub fn in_order(order: &[u32]) -> Vec<PageRange> {
    ranges(FIRST, order, std::iter::empty())
}

fn set_bits(index: usize, word: u64) -> impl Iterator<Item = u64> {
    (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index as u64 * 64 + bit)
}

/// Pages side by side as one, each page once, from the page `first` on.
fn ranges(first: u64, order: &[u32], others: impl Iterator<Item = u64>) -> Vec<PageRange> {
    let mut seen = HashSet::new();
    let mut ranges: Vec<PageRange> = Vec::new();
    for page in order.iter().map(|page| u64::from(*page)).chain(others) {
        if !seen.insert(page) {
            continue;
        }
        match ranges.last_mut() {
            Some((start, count)) if *start + *count == first + page => *count += 1,
            _ => ranges.push((first + page, 1)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_words(words: &[u64]) -> Vec<PageRange> {
        ranges(FIRST, &[], words.iter().enumerate().flat_map(|(at, word)| set_bits(at, *word)))
    }

    #[test]
    fn set_bits_are_ranges_of_the_file() {
        assert_eq!(FIRST, 512);
        assert_eq!(of_words(&[0b1011, 1 << 63, 1, 0]), [(512, 2), (515, 1), (639, 2)]);
        assert_eq!(of_words(&[u64::MAX, u64::MAX]), [(512, 128)]);
        assert_eq!(of_words(&[]), []);
    }

    #[test]
    fn what_has_an_order_comes_first_and_once() {
        assert_eq!(in_order(&[9, 10, 3, 4, 9]), [(521, 2), (515, 2)]);
        let set = [0, 3, 4, 5, 10].into_iter();
        assert_eq!(ranges(FIRST, &[9, 10, 3], set), [(521, 2), (515, 1), (512, 1), (516, 2)]);
    }
}
