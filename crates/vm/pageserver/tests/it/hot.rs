//! Pages that are there before a machine asks for them.

use std::time::Duration;

use farfork_minivmm::{PAGE_BYTES, Walk};
use farfork_pageserver::Record;

use crate::bed::{Bed, PATTERN, can_serve};

/// Long enough for all pages of a small machine.
const REPLAY: Duration = Duration::from_millis(500);

fn pages_of(bits: &[u64]) -> Vec<u64> {
    let is_set = |page: &u64| bits[(page / 64) as usize] >> (page % 64) & 1 != 0;
    (0..bits.len() as u64 * 64).filter(is_set).collect()
}

#[test]
fn what_one_machine_needed_the_next_one_has() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 2);
    let serving = bed.serve_with(Record::First, Vec::new());
    let walk = Walk::jumping(bed.pages(), 500);
    let mut first = bed.restore(&serving.socket);
    bed.check(&mut first, &walk);
    drop(first);
    let unknown = serving.ended();
    assert!(unknown.faults >= 400 && unknown.hot_pages == 0, "{unknown:?}");
    let recorded = serving.recorded.lock().unwrap()[0].clone();
    let pages = pages_of(&recorded);
    assert!(walk.pages(bed.pages()).all(|page| pages.contains(&page)));
    assert!(pages.len() < 600, "{} pages were recorded", pages.len());
    let mut second = bed.restore(&serving.socket);
    std::thread::sleep(REPLAY);
    bed.check(&mut second, &walk);
    bed.check_memory(&second, |_| false);
    drop(second);
    let known = serving.ended();
    assert_eq!(known.hot_pages, pages.len() as u64, "{known:?}");
    assert_eq!(serving.recorded.lock().unwrap().len(), 1);
}

#[test]
fn a_machine_that_runs_at_once_shares_the_server_with_its_replay() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve_with(Record::All, vec![!0; 64]);
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
    let serving = bed.serve_with(Record::Nothing, vec![!0; 64]);
    let monitor = bed.restore(&serving.socket);
    for page in (0..bed.pages()).step_by(2) {
        monitor.discard(page * PAGE_BYTES, PAGE_BYTES).unwrap();
        assert_eq!(monitor.load(page * PAGE_BYTES), 0);
    }
    std::thread::sleep(REPLAY);
    bed.check_memory(&monitor, |page| page % 2 == 0);
}
