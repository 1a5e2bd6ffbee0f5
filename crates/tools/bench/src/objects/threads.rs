//! Threads that allocate many objects and free them, over and over (Hoard's threadtest; the paper, figure 9).

use std::sync::Barrier;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use super::allocators::{Allocator, touch};

/// As many as the machine that the figures are from has processors.
pub(super) const THREADS: usize = 2;
const ITERATIONS: usize = 10;
const OBJECTS: usize = 10_000;

/// Nanoseconds of a thread for an object.
pub(super) fn ns<A: Allocator>(make: impl Fn() -> A + Sync) -> f64 {
    let begins = Barrier::new(THREADS + 1);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut allocator = make();
                // The first iteration, which takes memory from the system, is not timed.
                iterate(&mut allocator, 1);
                begins.wait();
                iterate(&mut allocator, ITERATIONS);
                begins.wait();
            });
        }
        begins.wait();
        let begun = Instant::now();
        begins.wait();
        begun.elapsed().as_nanos() as f64 / (ITERATIONS * OBJECTS) as f64
    })
}

/// Nanoseconds of a processor for an object, with so many threads. On a machine with fewer processors, they take turns.
pub(super) fn processor_ns<A: Allocator>(threads: usize, make: impl Fn() -> A + Sync) -> f64 {
    let begins = Barrier::new(threads);
    let run = || {
        let mut allocator = make();
        iterate(&mut allocator, 1);
        begins.wait();
        let begun = clock_gettime(ClockId::ThreadCPUTime);
        iterate(&mut allocator, ITERATIONS);
        let taken = clock_gettime(ClockId::ThreadCPUTime) - begun;
        begins.wait();
        taken.tv_sec as f64 * 1e9 + taken.tv_nsec as f64
    };
    let all: f64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).sum()
    });
    all / (threads * ITERATIONS * OBJECTS) as f64
}

fn iterate(allocator: &mut impl Allocator, iterations: usize) {
    let mut objects = Vec::with_capacity(OBJECTS);
    for _ in 0..iterations {
        for number in 0..OBJECTS {
            let object = allocator.allocate(64);
            touch(object, number as u64);
            objects.push(object);
        }
        for object in objects.drain(..) {
            allocator.free(object);
        }
    }
}
