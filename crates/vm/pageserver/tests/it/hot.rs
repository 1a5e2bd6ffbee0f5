//! Pages that are there before a machine asks for them.

use farfork_minivmm::{PAGE_BYTES, Walk};
use farfork_pageserver::Record;

use crate::bed::{Bed, PATTERN, can_serve};

/// All pages of a small machine.
fn all(bed: &Bed) -> Vec<u32> {
    (0..bed.pages() as u32).collect()
}

#[test]
fn what_one_machine_needed_the_next_one_has_before_it_runs() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 2);
    let serving = bed.serve_with(Record::First, Vec::new());
    let walk = Walk::jumping(bed.pages(), 500);
    let mut first = bed.restore(&serving.socket);
    assert_eq!(serving.filled(), 0);
    bed.check(&mut first, &walk);
    drop(first);
    let unknown = serving.ended();
    assert!(unknown.faults >= 400 && unknown.hot_pages == 0, "{unknown:?}");
    let recorded = serving.recorded.lock().unwrap()[0].clone();
    assert!(recorded.len() < 600, "{} pages were recorded", recorded.len());
    // The guest runs from pages of its own, too.
    let walked: Vec<u32> = walk.pages(bed.pages()).map(|page| page as u32).collect();
    let in_order: Vec<u32> =
        recorded.iter().copied().filter(|page| walked.contains(page) && *page >= 32).collect();
    let expected: Vec<u32> = walked.into_iter().filter(|page| *page >= 32).collect();
    assert_eq!(in_order, expected);
    let mut second = bed.restore(&serving.socket);
    assert_eq!(serving.filled(), recorded.len() as u64);
    bed.check(&mut second, &walk);
    bed.check_memory(&second, |_| false);
    drop(second);
    let known = serving.ended();
    assert_eq!(known.hot_pages, recorded.len() as u64, "{known:?}");
    assert_eq!(serving.recorded.lock().unwrap().len(), 1);
}

/// A machine that has all of its pages waits for none.
#[test]
fn a_machine_that_is_filled_waits_for_nothing() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve_with(Record::Nothing, all(&bed));
    for _ in 0..2 {
        let mut monitor = bed.restore(&serving.socket);
        assert_eq!(serving.filled(), bed.pages());
        bed.check(&mut monitor, &Walk::jumping(bed.pages(), bed.pages()));
        drop(monitor);
        let counters = serving.ended();
        assert_eq!((counters.faults, counters.hot_pages), (0, bed.pages()), "{counters:?}");
    }
}

/// The next server goes on with the replay, and the machine is reported once.
#[test]
fn a_machine_is_filled_although_servers_are_killed() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 2);
    let serving = bed.serve_with(Record::Nothing, all(&bed));
    for _ in 0..5 {
        let mut monitor = bed.restore(&serving.socket);
        serving.kill_server();
        serving.filled();
        bed.check(&mut monitor, &Walk::jumping(bed.pages(), bed.pages()));
        bed.check_memory(&monitor, |_| false);
        drop(monitor);
        let counters = serving.ended();
        assert_eq!((counters.faults, counters.poisoned_pages), (0, 0), "{counters:?}");
    }
}

#[test]
fn a_machine_that_runs_at_once_shares_the_server_with_its_replay() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve_with(Record::All, all(&bed));
    for first in [0, 900, 3000] {
        let mut monitor = bed.restore(&serving.socket);
        bed.check(&mut monitor, &Walk { first, ..Walk::jumping(bed.pages(), bed.pages()) });
        bed.check_memory(&monitor, |_| false);
        drop(monitor);
        serving.ended();
    }
    assert_eq!(serving.recorded.lock().unwrap().len(), 3);
}

#[test]
fn a_replay_does_not_bring_back_what_was_discarded() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve_with(Record::Nothing, all(&bed));
    let monitor = bed.restore(&serving.socket);
    for page in (0..bed.pages()).step_by(2) {
        monitor.discard(page * PAGE_BYTES, PAGE_BYTES).unwrap();
        assert_eq!(monitor.load(page * PAGE_BYTES), 0);
    }
    serving.filled();
    bed.check_memory(&monitor, |page| page % 2 == 0);
}
