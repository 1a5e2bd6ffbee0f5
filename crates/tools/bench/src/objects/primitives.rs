//! What each primitive takes, and what the memory that it uses can do (the paper, tables 3 and 4).

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::allocators::{Allocator, touch};
use super::{MANY, per, shuffled};
use crate::stats::median;

const SPAN_BYTES: usize = 64 << 10;
/// Spans that are claimed for one figure.
const SPANS: usize = 16;
const WORDS_OF_LINE: usize = 8;
const SWAPS: usize = 200_000;

/// Nanoseconds of an allocation and of a free.
pub(super) fn fast_ns(allocator: &mut impl Allocator) -> (f64, f64) {
    let mut objects = Vec::with_capacity(MANY);
    let (mut allocate, mut free) = (0.0, 0.0);
    // The first times, memory is new.
    for _ in 0..super::TURNS {
        allocate = per(MANY, || {
            for number in 0..MANY {
                let object = allocator.allocate(64);
                touch(object, number as u64);
                objects.push(object);
            }
        });
        free = per(MANY, || objects.drain(..).for_each(|object| allocator.free(object)));
    }
    (allocate, free)
}

/// Nanoseconds of an allocation that takes a new span, without what the clock takes. `allocator` has none yet.
pub(super) fn slow_ns(allocator: &mut impl Allocator) -> f64 {
    let mut last = usize::MAX;
    let mut objects = Vec::new();
    let (mut taken, mut clock) = (Vec::new(), Vec::new());
    while taken.len() < SPANS {
        let begun = Instant::now();
        let object = allocator.allocate(64);
        let ns = begun.elapsed().as_nanos() as f64;
        let span = object.addr().get() / SPAN_BYTES;
        if span != last {
            taken.push(ns);
            let begun = Instant::now();
            clock.push(begun.elapsed().as_nanos() as f64);
        }
        last = span;
        objects.push(object);
    }
    objects.into_iter().for_each(|object| allocator.free(object));
    median(&taken) - median(&clock)
}

/// What memory can do.
pub(super) struct Memory {
    pub(super) sequential_mb_s: f64,
    pub(super) random_mb_s: f64,
    pub(super) swaps_m_s: f64,
    pub(super) latency_ns: f64,
}

/// Measures memory: reads of whole cache lines in order and in random order, compare-and-swap of one word, and a chain of loads
/// in which each says where the next one is. The memory is written before.
pub(super) fn memory(words: &[AtomicU64]) -> Memory {
    let lines = words.len() / WORDS_OF_LINE;
    let order = shuffled(lines);
    // One circle through all lines.
    for (at, next) in order.iter().zip(order.iter().cycle().skip(1)) {
        for word in &words[at * WORDS_OF_LINE..(at + 1) * WORDS_OF_LINE] {
            word.store((next * WORDS_OF_LINE) as u64, Ordering::Relaxed);
        }
    }
    let line = |at: usize| -> u64 {
        let line = &words[at * WORDS_OF_LINE..(at + 1) * WORDS_OF_LINE];
        line.iter().map(|word| word.load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    };
    let mb_s = |ns: f64| 64.0 / ns * 1e3;
    let sum = |ns: &mut dyn Iterator<Item = usize>| {
        black_box(ns.map(line).fold(0, u64::wrapping_add));
    };
    let sequential = per(lines, || sum(&mut (0..lines)));
    let random = per(lines, || sum(&mut order.iter().copied()));
    let latency_ns = per(lines, || {
        let end = (0..lines).fold(0, |at, _| words[at].load(Ordering::Relaxed) as usize);
        black_box(end);
    });
    let word = &words[0];
    let swap = per(SWAPS, || {
        for number in 0..SWAPS as u64 {
            let known = word.load(Ordering::Relaxed);
            let _ = word.compare_exchange(known, number, Ordering::AcqRel, Ordering::Relaxed);
        }
    });
    Memory {
        sequential_mb_s: mb_s(sequential),
        random_mb_s: mb_s(random),
        swaps_m_s: 1e3 / swap,
        latency_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_goes_through_every_line() {
        let words: Vec<AtomicU64> = (0..64 * WORDS_OF_LINE).map(|_| AtomicU64::new(0)).collect();
        let found = memory(&words);
        assert!(found.latency_ns > 0.0 && found.swaps_m_s > 0.0);
        // The first word was swapped; the others of its line say the same.
        let mut at = words[1].load(Ordering::Relaxed) as usize;
        let mut steps = 1;
        while at != 0 {
            at = words[at].load(Ordering::Relaxed) as usize;
            steps += 1;
        }
        assert_eq!(steps, 64);
    }
}
