//! Pages that cannot be read: the guest is stopped, and never sees zeros instead.

use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use farfork_image::format::DATA_AT;
use farfork_minivmm::{Pattern, Walk};
use farfork_pageserver::{Event, Record};

use crate::bed::{Bed, PATTERN, Serving, can_serve, child, image_file};

const SIGBUS: i32 = 7;

/// A guest in a process of its own that reads all of its memory.
pub fn guest(bed: &Bed, serving: &Serving) -> ExitStatus {
    let (state, socket) = (bed.path("state"), serving.socket.display());
    child(&format!("guest {} {socket}", state.display())).status().unwrap()
}

#[test]
fn a_damaged_page_ends_in_sigbus_and_other_pages_do_not() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    assert_eq!(guest(&bed, &serving).code(), Some(3));
    serving.ended();
    let file = image_file(bed.pool.path(), bed.cid);
    file.write_all_at(&[0xab; 3], DATA_AT + 700 * 4096 + 5).unwrap();
    let mut monitor = bed.restore(&serving.socket);
    assert_eq!(guest(&bed, &serving).signal(), Some(SIGBUS));
    assert!(serving.ended().poisoned_pages >= 1);
    // Where it lies in the guest is the map's secret: the first pages come first.
    bed.check(&mut monitor, &Walk { count: 600, ..Walk::whole(bed.pages()) });
}

#[test]
fn a_truncated_image_ends_in_sigbus() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    let mut monitor = bed.restore(&serving.socket);
    bed.check(&mut monitor, &Walk { count: 100, ..Walk::whole(bed.pages()) });
    image_file(bed.pool.path(), bed.cid).set_len(DATA_AT + 500 * 4096).unwrap();
    assert_eq!(guest(&bed, &serving).signal(), Some(SIGBUS));
    assert!(serving.ended().poisoned_pages >= 1);
}

/// What nothing has asked for may be readable when it is needed.
#[test]
fn a_replay_poisons_nothing() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    image_file(bed.pool.path(), bed.cid).write_all_at(&[0xab; 3], DATA_AT + 700 * 4096).unwrap();
    let serving = bed.serve_with(Record::Nothing, (0..bed.pages() as u32).collect());
    let mut monitor = bed.restore(&serving.socket);
    assert_eq!(serving.filled(), bed.pages() - 1);
    bed.check(&mut monitor, &Walk { count: 600, ..Walk::whole(bed.pages()) });
    drop(monitor);
    assert_eq!(serving.ended().poisoned_pages, 0);
    assert_eq!(guest(&bed, &serving).signal(), Some(SIGBUS));
    assert_eq!(serving.ended().poisoned_pages, 1);
}

/// All pages lie on another node, which answers and then does not. Faults do not wait behind a replay.
#[test]
fn far_pages_come_or_end_in_sigbus() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 2);
    let other = bed.move_away();
    let known = || (0..bed.pages() as u32).collect();
    for known in [Vec::new(), known()] {
        let serving = bed.serve_with(Record::Nothing, known);
        let mut monitor = bed.restore(&serving.socket);
        bed.check(&mut monitor, &Walk::jumping(bed.pages(), bed.pages()));
        bed.check_memory(&monitor, |_| false);
    }
    // KVM ends otherwise without the guest's page tables, which are among the first pages.
    image_file(&other, bed.cid).set_len(DATA_AT + 500 * 4096).unwrap();
    let serving = bed.serve_with(Record::Nothing, known());
    let monitor = bed.restore(&serving.socket);
    assert!(serving.filled() < bed.pages() / 2);
    drop(monitor);
    assert_eq!(serving.ended().poisoned_pages, 0);
    assert_eq!(guest(&bed, &serving).signal(), Some(SIGBUS));
    assert!(serving.ended().poisoned_pages >= 1);
}

/// The memory of a larger machine, whose regions are not in the snapshot, and of a smaller one, whose regions are, and whose
/// guest would get bytes of another.
#[test]
fn a_guest_of_another_snapshot_is_stopped() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    let mut monitor = bed.restore(&serving.socket);
    for memory_bytes in [2 * PATTERN.memory_bytes, PATTERN.memory_bytes / 2] {
        let other = Bed::new(&Pattern { memory_bytes, ..PATTERN }, 1);
        assert_eq!(guest(&other, &serving).signal(), Some(SIGBUS));
        let why = serving.wait(|event| match event {
            Event::Refused { why, is_stopped: true, .. } => Some(why.to_string()),
            _ => None,
        });
        assert!(why.contains("restores another snapshot"), "{why}");
    }
    bed.check(&mut monitor, &Walk::whole(bed.pages()));
}
