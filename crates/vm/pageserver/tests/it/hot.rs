//! Pages that are there before a machine asks for them.

use farfork_minivmm::{PAGE_BYTES, Pattern, Walk, Workload};
use farfork_pageserver::{Event, Record};

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
    let serving = bed.serve_with(Record::All { share: 64 }, all(&bed));
    for first in [0, 900, 3000] {
        let mut monitor = bed.restore(&serving.socket);
        bed.check(&mut monitor, &Walk { first, ..Walk::jumping(bed.pages(), bed.pages()) });
        bed.check_memory(&monitor, |_| false);
        drop(monitor);
        serving.ended();
    }
    // All pages were hot, and each machine needed those that it was not given.
    assert!(serving.recorded.lock().unwrap().is_empty());
}

/// Pages that are recorded and that machines do not need go; those that they need stay, and what they need now comes.
/// Servers are killed meanwhile: the next one has what is hot then.
#[test]
fn hot_pages_follow_what_machines_need() {
    if !can_serve() {
        return;
    }
    const SHARE: u64 = 4;
    let bed = Bed::new(&PATTERN, 1);
    let pages = bed.pages();
    let walk = Walk { count: 60, first: 40, ..Walk::jumping(pages, pages) };
    let needed: Vec<u32> = walk.pages(pages).map(|page| page as u32).collect();
    let not_needed = (2000..2400).filter(|page| !needed.contains(page));
    let known: Vec<u32> = needed[..30].iter().copied().chain(not_needed).collect();
    let serving = bed.serve_with(Record::All { share: SHARE }, known.clone());
    let mut filled = Vec::new();
    for turn in 0..6 * SHARE {
        let mut monitor = bed.restore(&serving.socket);
        filled.push(serving.filled());
        bed.check(&mut monitor, &walk);
        drop(monitor);
        let counters = serving.ended();
        assert_eq!(counters.poisoned_pages, 0, "{counters:?}");
        if turn == 2 * SHARE {
            serving.kill_server();
            serving.wait(|event| matches!(event, Event::Replaced { .. }).then_some(()));
        }
    }
    let (first, last) = (filled[0] as usize, filled[filled.len() - 1] as usize);
    assert!((known.len() * 2 / 3..known.len()).contains(&first), "{first} of {}", known.len());
    assert!(last < needed.len() + 10, "{last}");
    let recorded = serving.recorded.lock().unwrap();
    let hot = recorded.last().unwrap();
    assert!(needed.iter().all(|page| *page < 32 || hot.contains(page)), "{hot:?}");
    // What the guest runs from is needed, too.
    assert!(hot.iter().all(|page| *page < 32 || needed.contains(page)), "{hot:?}");
}

/// A guest that does what a real process did, and what it is given.
#[test]
fn a_recorded_workload_is_replayed() {
    if !can_serve() {
        return;
    }
    let workload = Workload::named("pyaes", 32 << 20).unwrap();
    let bed = Bed::of_workload(&workload, 2);
    let serving = bed.serve_with(Record::First, Vec::new());
    for turn in 0..2 {
        let mut monitor = bed.restore(&serving.socket);
        serving.filled();
        assert_eq!(monitor.invoke(&workload).unwrap(), workload.expected());
        for access in workload.accesses() {
            for word in (0..512).filter(|word| *word != 1 || !access.writes) {
                let found = monitor.load(access.page * PAGE_BYTES + word * 8);
                assert_eq!(found, bed.word(access.page, word), "page {}", access.page);
            }
        }
        drop(monitor);
        let counters = serving.ended();
        assert_eq!(counters.faults == 0, turn == 1 && counters.hot_pages > 500, "{counters:?}");
    }
}

/// Faults do not wait behind 32 replays: each machine reads pages at once that come last in its replay.
#[test]
fn thirty_two_machines_at_once_are_served() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&PATTERN, 1);
    let pages = bed.pages();
    let serving = bed.serve_with(Record::Nothing, all(&bed));
    std::thread::scope(|threads| {
        for number in 0..32u64 {
            let (bed, socket) = (&bed, serving.socket.as_path());
            threads.spawn(move || {
                let mut monitor = bed.restore(socket);
                let first = number * 97;
                bed.check(&mut monitor, &Walk { first, ..Walk::jumping(pages, 4) });
                let page = pages - 1 - number;
                assert_eq!(monitor.load(page * PAGE_BYTES + 8), bed.word(page, 1));
            });
        }
    });
    let ended: Vec<_> = (0..32).map(|_| serving.ended()).collect();
    assert!(ended.iter().all(|counters| counters.poisoned_pages == 0));
    // Machines that ended before their replays did were not filled to the end first.
    let early = ended.iter().filter(|counters| counters.hot_pages < pages).count();
    println!("{early} of 32 machines ended before their replays");
    assert!(early > 0, "{ended:?}");
}

/// One at once: machines are filled in the order in which they came, and a fault of one that waits is answered before its turn.
#[test]
fn machines_are_filled_in_turn_and_faults_do_not_wait() {
    if !can_serve() {
        return;
    }
    const MACHINES: u64 = 8;
    let bed = Bed::new(&Pattern { memory_bytes: 64 << 20, zero_permille: 100, ..PATTERN }, 1);
    let serving = bed.serve_in_turn(all(&bed), 1);
    let monitors: Vec<_> = (0..MACHINES)
        .map(|number| {
            let (monitor, page) = (bed.restore(&serving.socket), bed.pages() - 1 - number);
            assert_eq!(monitor.load(page * PAGE_BYTES + 8), bed.word(page, 1));
            monitor
        })
        .collect();
    let filled = |event: &Event| match event {
        Event::Filled { machine, .. } => Some(*machine),
        _ => None,
    };
    // A fault that waited for its machine's turn would have come after those of the machines before.
    let mut order = serving.come(|event| filled(&event));
    assert!(order.len() < MACHINES as usize - 2, "{order:?} were filled before the last fault");
    order.resize_with(MACHINES as usize, || serving.wait(filled));
    assert_eq!(order, (1..=MACHINES).collect::<Vec<_>>());
    bed.check_memory(&monitors[MACHINES as usize - 1], |_| false);
}

/// The turn of a machine that ends before it is filled goes to the next one, also when the server is killed meanwhile.
#[test]
fn machines_that_end_while_others_wait_hold_up_none() {
    if !can_serve() {
        return;
    }
    let bed = Bed::new(&Pattern { memory_bytes: 64 << 20, zero_permille: 100, ..PATTERN }, 1);
    let serving = bed.serve_in_turn(all(&bed), 1);
    for round in 0..3 {
        let mut monitors: Vec<_> = (0..6).map(|_| bed.restore(&serving.socket)).collect();
        if round == 1 {
            serving.kill_server();
        }
        let last = monitors.pop().unwrap();
        drop(monitors);
        // Machines before it may be filled, too.
        let number = 6 * (round + 1);
        serving.wait(|event| match event {
            Event::Filled { machine, .. } => (*machine == number).then_some(()),
            _ => None,
        });
        bed.check_memory(&last, |_| false);
    }
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
