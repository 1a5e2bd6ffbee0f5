//! Servers that are killed at any time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farfork_minivmm::{PAGE_BYTES, Walk};
use farfork_pageserver::Event;

use crate::bed::{Bed, PATTERN, can_serve};

/// Two machines walk, write and discard while their server is killed again and again. What is checked is each
/// page that was filled, and each that was discarded: no wrong byte, and no guest that waits for ever.
#[test]
fn the_next_server_goes_on_where_the_last_was_killed() {
    if !can_serve() {
        return;
    }
    let is_long = std::env::var_os("FARFORK_TEST_LONG").is_some();
    let (rounds, wanted, longest_us) =
        if is_long { (u64::MAX, 10_000, 20_000) } else { (6, 0, 60_000) };
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    let (pages, mut kills) = (bed.pages(), 0);
    for round in 0..rounds {
        if is_long && kills >= wanted {
            break;
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let (bed, socket, is_over) = (&bed, serving.socket.as_path(), &is_over);
            let reader = threads.spawn(move || {
                let mut monitor = bed.restore(socket);
                let first = round * 77;
                bed.check(&mut monitor, &Walk { first, ..Walk::jumping(pages, pages) });
                bed.check_memory(&monitor, |_| false);
            });
            let balloon = threads.spawn(move || {
                let monitor = bed.restore(socket);
                for page in 0..pages {
                    let address = page * PAGE_BYTES;
                    if page % 2 == 0 {
                        assert_eq!(monitor.load(address + 8), bed.word(page, 1), "page {page}");
                    }
                    if page % 3 == 0 {
                        monitor.discard(address, PAGE_BYTES).unwrap();
                        assert_eq!(monitor.load(address + 8), 0, "page {page}");
                        monitor.discard(address, PAGE_BYTES).unwrap();
                    }
                }
                bed.check_memory(&monitor, |page| page % 3 == 0);
            });
            threads.spawn(move || {
                let _over = (reader.join(), balloon.join());
                is_over.store(true, Ordering::Relaxed);
                _over.0.unwrap();
                _over.1.unwrap();
            });
            let mut pause = 300 + round * 37 % 10_000;
            let mut rested = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(pause));
                // On a busy machine all of them may be killed before they are ready, and the holder gives up after 5 s of that.
                if rested.elapsed() > Duration::from_secs(2) {
                    std::thread::sleep(Duration::from_millis(500));
                    rested = Instant::now();
                }
                pause = (pause * 31 + 7) % longest_us;
                serving.kill_server();
                kills += 1;
                serving.wait(|event| matches!(event, Event::Replaced { .. }).then_some(()));
            }
        });
    }
    println!("{kills} kills");
    assert!(kills >= if is_long { wanted } else { rounds });
}

/// How long a guest waits for the page that the killed server would have brought. Printed, not judged.
#[test]
fn a_guest_waits_for_the_next_server_only() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    let monitor = bed.restore(&serving.socket);
    let mut stalls = Vec::new();
    for page in (100..2000).step_by(100) {
        serving.kill_server();
        let begun = Instant::now();
        assert_eq!(monitor.load(page * PAGE_BYTES + 8), bed.word(page, 1));
        stalls.push(begun.elapsed());
        serving.wait(|event| matches!(event, Event::Replaced { .. }).then_some(()));
    }
    stalls.sort();
    println!("stalls: median {:?}, longest {:?}", stalls[stalls.len() / 2], stalls.last());
}
