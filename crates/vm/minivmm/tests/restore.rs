//! Guests on memory files.

use farfork_minivmm::{Backing, Monitor, PAGE_BYTES, Pattern, Walk, Workload};

const PATTERN: Pattern =
    Pattern { memory_bytes: 8 << 20, zero_permille: 600, group_pages: 5, seed: 3 };

#[test]
fn a_guest_reads_what_was_saved_and_writes_its_own_copy() {
    let directory = tempfile::tempdir().unwrap();
    let [state, memory] = ["state", "memory"].map(|name| directory.path().join(name));
    let mut first = Monitor::start(&PATTERN, 2).unwrap();
    if !first.has_kvm() {
        println!("no KVM here: threads of the host walk through the memory");
    }
    first.snapshot(&state, &memory).unwrap();
    let saved = std::fs::read(&memory).unwrap();
    let word = |page: u64, word: u64| {
        let at = (page * PAGE_BYTES + word * 8) as usize;
        u64::from_le_bytes(saved[at..at + 8].try_into().unwrap())
    };
    assert_eq!(word(77, 9), PATTERN.word(77, 9));
    let pages = PATTERN.pages();
    // Pages that hold something, and a region across the two mappings.
    let mut regions: Vec<(u64, u64)> = (0..pages)
        .filter(|page| (0..512).any(|index| word(*page, index) != 0))
        .map(|page| (page * PAGE_BYTES, PAGE_BYTES))
        .collect();
    regions.push(((4 << 20) - 2 * PAGE_BYTES, 5 * PAGE_BYTES));
    let regions = Backing::Regions(&memory, &regions);
    for backing in [Backing::File(&memory), Backing::Resident(&memory), regions] {
        let mut restored = Monitor::restore(&state, backing).unwrap();
        for walk in [Walk::whole(pages), Walk::jumping(pages, pages), Walk::jumping(pages, 99)] {
            let expected = walk.expected(pages, word);
            assert_eq!(restored.walk(&walk).unwrap(), expected);
            assert_eq!(first.walk(&walk).unwrap(), expected);
        }
        restored.walk(&Walk { writes: true, ..Walk::whole(pages) }).unwrap();
        assert_ne!(restored.load(500 * PAGE_BYTES + 8), word(500, 1));
        assert_eq!(restored.load(500 * PAGE_BYTES), word(500, 0));
    }
    assert_eq!(std::fs::read(&memory).unwrap(), saved);
    std::fs::write(&state, b"another").unwrap();
    assert!(Monitor::restore(&state, Backing::File(&memory)).is_err());
}

/// The host reads the list as the guest does.
#[test]
fn a_guest_goes_through_the_pages_of_a_recorded_process() {
    let directory = tempfile::tempdir().unwrap();
    let [state, memory] = ["state", "memory"].map(|name| directory.path().join(name));
    let workload = Workload::named("pyaes", 32 << 20).unwrap();
    Monitor::start_workload(&workload, 2).unwrap().snapshot(&state, &memory).unwrap();
    for backing in [Backing::File(&memory), Backing::Resident(&memory)] {
        let mut restored = Monitor::restore(&state, backing).unwrap();
        assert_eq!(restored.invoke(&workload).unwrap(), workload.expected());
        let is_written = |page: u64| restored.load(page * PAGE_BYTES + 8) != workload.word(page, 1);
        for access in workload.accesses() {
            assert_eq!(is_written(access.page), access.writes, "page {}", access.page);
        }
    }
}
