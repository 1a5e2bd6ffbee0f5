//! Memory that a balloon gives back.

use std::sync::atomic::{AtomicBool, Ordering};

use farfork_minivmm::{PAGE_BYTES, Walk};

use crate::bed::{Bed, PATTERN, can_serve};

#[test]
fn discarded_pages_are_zeros_whether_they_were_touched_or_not() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 2);
    let serving = bed.serve();
    let mut monitor = bed.restore(&serving.socket);
    bed.check(&mut monitor, &Walk { count: 1500, ..Walk::whole(bed.pages()) });
    let discarded = [(100, 700), (1400, 300), (2100, 5)];
    for (page, pages) in discarded {
        monitor.discard(page * PAGE_BYTES, pages * PAGE_BYTES).unwrap();
    }
    let is_removed =
        |page: u64| discarded.iter().any(|(first, pages)| (*first..first + pages).contains(&page));
    bed.check_memory(&monitor, is_removed);
    // What was written there since is lost the next time.
    monitor.walk(&Walk { writes: true, ..Walk::whole(bed.pages()) }).unwrap();
    assert_ne!(monitor.load(110 * PAGE_BYTES + 8), 0);
    monitor.discard(100 * PAGE_BYTES, 20 * PAGE_BYTES).unwrap();
    assert_eq!(monitor.load(110 * PAGE_BYTES + 8), 0);
    drop(monitor);
    assert_eq!(serving.ended().removed_pages, 1005);
}

/// Ends a loop when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One thread discards page by page; another walks through the same memory with read-ahead, so that answers
/// and discards of one page meet in every order.
#[test]
fn a_discard_wins_over_answers_that_are_on_their_way() {
    if !can_serve() {
        return;
    }
    for _ in 0..4 {
        let bed = Bed::new(&PATTERN, 1);
        let serving = bed.serve();
        let monitor = bed.restore(&serving.socket);
        let is_over = AtomicBool::new(false);
        let pages = bed.pages();
        std::thread::scope(|threads| {
            // Also when a check fails, or the other thread would never end.
            let _over = Over(&is_over);
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for page in 0..pages {
                        let word = monitor.load(page * PAGE_BYTES + 24);
                        assert!([0, bed.word(page, 3)].contains(&word), "page {page}: {word:#x}");
                    }
                }
            });
            for page in (0..pages).filter(|page| page % 3 != 0) {
                monitor.discard(page * PAGE_BYTES, PAGE_BYTES).unwrap();
                assert_eq!(monitor.load(page * PAGE_BYTES), 0, "page {page}");
            }
        });
        bed.check_memory(&monitor, |page| page % 3 != 0);
    }
}
