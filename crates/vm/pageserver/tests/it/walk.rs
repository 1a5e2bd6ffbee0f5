//! Guests that read and write.

use farfork_minivmm::{PAGE_BYTES, Walk};

use crate::bed::{Bed, PATTERN, can_serve};

#[test]
fn a_guest_reads_every_byte_of_its_snapshot() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    let pages = bed.pages();
    for walk in [Walk::whole(pages), Walk::jumping(pages, pages), Walk::jumping(pages, 300)] {
        let mut monitor = bed.restore(&serving.socket);
        if !monitor.has_kvm() {
            println!("no KVM here: threads of the host walk through the memory");
        }
        bed.check(&mut monitor, &walk);
        bed.check_memory(&monitor, |_| false);
        drop(monitor);
        let counters = serving.ended();
        assert_eq!(counters.copied_pages + counters.zero_pages, pages, "{counters:?}");
        assert!(counters.faults < pages && counters.poisoned_pages == 0, "{counters:?}");
    }
}

/// What is read ahead is what a walk goes on with: one that jumps is not charged for it.
#[test]
fn a_guest_that_jumps_gets_what_it_touches() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    let mut monitor = bed.restore(&serving.socket);
    bed.check(&mut monitor, &Walk::jumping(bed.pages(), 400));
    drop(monitor);
    let counters = serving.ended();
    assert!((400..480).contains(&counters.faults), "{counters:?}");
    assert!(counters.ahead_pages < 40, "{counters:?}");
}

/// Eight machines of one server, of two regions each, with walks of their own; what one writes no other
/// sees.
#[test]
fn machines_do_not_see_each_other() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 2);
    let serving = bed.serve();
    let pages = bed.pages();
    std::thread::scope(|threads| {
        for number in 0..8 {
            let (bed, socket) = (&bed, serving.socket.as_path());
            threads.spawn(move || {
                let mut monitor = bed.restore(socket);
                let first = number * 300;
                bed.check(&mut monitor, &Walk { first, ..Walk::jumping(pages, pages / 2) });
                let writing = Walk { writes: true, first, ..Walk::whole(pages) };
                monitor.walk(&writing).unwrap();
                let mut written = writing;
                for (count, page) in (1..).zip(writing.pages(pages)) {
                    written.count = count;
                    // To mix all pages again for each of them would take long.
                    if page >= 32 && count % 97 == 0 {
                        let mixed = written.expected(pages, |page, word| bed.word(page, word));
                        assert_eq!(monitor.load(page * PAGE_BYTES + 8), mixed);
                    }
                    assert_eq!(monitor.load(page * PAGE_BYTES + 16), bed.word(page, 2));
                }
            });
        }
    });
    for _ in 0..8 {
        serving.ended();
    }
    let mut monitor = bed.restore(&serving.socket);
    bed.check(&mut monitor, &Walk::whole(pages));
}

#[test]
fn a_guest_with_huge_pages_gets_whole_ones() {
    use farfork_minivmm::{Backing, Monitor};
    use farfork_pageserver::Record;
    const HUGE_PAGES: u64 = PATTERN.memory_bytes >> 21;
    let Some(_set_aside) = HugePages::demand(HUGE_PAGES).filter(|_| can_serve()) else {
        println!("skipped: {HUGE_PAGES} huge pages cannot be set aside (vm.nr_hugepages)");
        return;
    };
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve_with(Record::First, Vec::new());
    for turn in 0..2 {
        let backing = Backing::HugeUffd(&serving.socket);
        let mut monitor = Monitor::restore(&bed.path("state"), backing).unwrap();
        assert_eq!(serving.filled(), turn * bed.pages());
        if turn == 0 {
            serving.kill_server();
        }
        bed.check(&mut monitor, &Walk::jumping(bed.pages(), bed.pages()));
        monitor.discard(4 << 20, 2 << 20).unwrap();
        bed.check_memory(&monitor, |page| (1024..1536).contains(&page));
        drop(monitor);
        let counters = serving.ended();
        // Each page once, and again the one that was discarded.
        let expected = if turn == 0 { HUGE_PAGES + 1 } else { 1 };
        assert_eq!(counters.faults, expected, "{counters:?}");
    }
}

/// Huge pages that are set aside for a test, and given back after it.
struct HugePages {
    before: String,
}

impl HugePages {
    const NUMBER: &str = "/proc/sys/vm/nr_hugepages";

    fn demand(pages: u64) -> Option<HugePages> {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let free = || read("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        let free = || free()?.trim().parse::<u64>().ok();
        let before = read(HugePages::NUMBER)?;
        if free()? < pages {
            let more = before.trim().parse::<u64>().ok()? + pages;
            std::fs::write(HugePages::NUMBER, more.to_string()).ok()?;
        }
        let set_aside = HugePages { before };
        (free()? >= pages).then_some(set_aside)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(HugePages::NUMBER, self.before.trim());
    }
}

/// The image's name and file may go while machines run.
#[test]
fn a_removed_image_goes_on_serving() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    bed.pool.remove(bed.cid).unwrap();
    let mut monitor = bed.restore(&serving.socket);
    bed.check(&mut monitor, &Walk::jumping(bed.pages(), 100));
    serving.kill_server();
    bed.check(&mut monitor, &Walk::whole(bed.pages()));
}
