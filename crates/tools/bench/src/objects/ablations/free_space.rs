//! How free memory is known: farfork's owner bytes and spans, a bitmap, or a buddy system. The last two are as simple as can be,
//! in private memory of one thread, and do not survive a kill: what they take is the least that such a way takes.

use std::collections::VecDeque;
use std::path::Path;
use std::ptr::NonNull;

use farfork::layout::SPAN_BYTES;
use farfork::{Client, Region};

use super::cpu_ns;
use crate::error::BenchError;
use crate::objects::{MANY, NS, TURNS, failed, shuffled};
use crate::progress;
use crate::samples::Samples;

const OBJECTS: &str = "10,000 objects of 64 bytes, freed in random order, not written";
const RUNS: &str = "1 to 16 units side by side, half of the memory taken";
/// Units of the memory that runs are taken from, and of farfork's region.
const UNITS: u32 = 4096;
/// Longest run.
const LONGEST: u64 = 16;
/// Runs that are replaced.
const REPLACED: usize = 20_000;

/// Takes and gives back units side by side.
trait Space {
    type Place: Copy;
    fn take(&mut self, units: u32) -> Option<Self::Place>;
    fn give(&mut self, place: Self::Place, units: u32);
}

/// Adds the rows.
pub(super) fn add(directory: &Path, quick: bool, samples: &mut Samples) -> Result<(), BenchError> {
    let path = directory.join("free-space");
    // Spans for as many units, their owner bytes, and tables.
    let bytes = u64::from(UNITS + 16) * SPAN_BYTES * 16 / 15;
    Region::create(&path, bytes.next_multiple_of(SPAN_BYTES)).map_err(failed)?;
    let order = shuffled(MANY);
    let rounds = if quick { 6 } else { 31 };
    for round in 0..rounds {
        progress(&format!("free space, round {round} of {rounds}"));
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => {
                    let open = || Client::open(&path).map_err(failed);
                    samples.add("farfork", OBJECTS, NS, objects(&mut Objects(open()?), &order));
                    samples.add("farfork", RUNS, NS, runs(&mut Runs(open()?)));
                }
                1 => {
                    let units = UNITS * 16;
                    samples.add("bitmap", OBJECTS, NS, objects(&mut Bitmap::new(units), &order));
                    samples.add("bitmap", RUNS, NS, runs(&mut Bitmap::new(UNITS)));
                }
                _ => {
                    let units = UNITS * 16;
                    samples.add("buddy", OBJECTS, NS, objects(&mut Buddy::new(units), &order));
                    samples.add("buddy", RUNS, NS, runs(&mut Buddy::new(UNITS)));
                }
            }
        }
    }
    Region::destroy(&path).map_err(failed)
}

fn objects<S: Space>(space: &mut S, order: &[usize]) -> f64 {
    let mut places = Vec::with_capacity(order.len());
    let mut ns = 0.0;
    for _ in 0..TURNS {
        ns = cpu_ns(order.len(), || {
            places.extend((0..order.len()).filter_map(|_| space.take(1)));
            order.iter().for_each(|at| space.give(places[*at], 1));
        });
        assert_eq!(places.len(), order.len(), "there is room");
        places.clear();
    }
    ns
}

/// Gives back the oldest run, and takes another one.
fn runs<S: Space>(space: &mut S) -> f64 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut units = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % LONGEST) as u32 + 1
    };
    let (mut taken, mut runs) = (0, VecDeque::new());
    while taken < UNITS / 2 {
        let units = units();
        taken += units;
        runs.push_back((space.take(units).expect("half of it is free"), units));
    }
    let mut missed = 0;
    let ns = cpu_ns(REPLACED, || {
        for _ in 0..REPLACED {
            if let Some((place, units)) = runs.pop_front() {
                space.give(place, units);
            }
            let units = units();
            match space.take(units) {
                Some(place) => runs.push_back((place, units)),
                None => missed += 1,
            }
        }
    });
    assert!(missed < REPLACED / 100, "{missed} runs had no room");
    ns
}

struct Objects(Client);

impl Space for Objects {
    type Place = NonNull<u8>;

    fn take(&mut self, _units: u32) -> Option<NonNull<u8>> {
        self.0.allocate(64).ok()
    }

    fn give(&mut self, place: NonNull<u8>, _units: u32) {
        self.0.free(place).expect("its own");
    }
}

struct Runs(Client);

impl Space for Runs {
    type Place = NonNull<u8>;

    fn take(&mut self, units: u32) -> Option<NonNull<u8>> {
        self.0.allocate((u64::from(units) * SPAN_BYTES) as usize).ok()
    }

    fn give(&mut self, place: NonNull<u8>, _units: u32) {
        self.0.free(place).expect("its own");
    }
}

/// A bit for each unit, 1: taken. The first place from where the last one was found.
struct Bitmap {
    words: Vec<u64>,
    next: u32,
}

impl Bitmap {
    fn new(units: u32) -> Bitmap {
        Bitmap { words: vec![0; units as usize / 64], next: 0 }
    }

    fn units(&self) -> u32 {
        self.words.len() as u32 * 64
    }

    /// The first free unit from there on.
    fn free_from(&self, at: u32) -> Option<u32> {
        let mut word = at as usize / 64;
        let mut taken = *self.words.get(word)? | ((1 << (at % 64)) - 1);
        while taken == u64::MAX {
            word += 1;
            taken = *self.words.get(word)?;
        }
        Some(word as u32 * 64 + taken.trailing_ones())
    }

    fn is_taken(&self, at: u32) -> bool {
        self.words[at as usize / 64] >> (at % 64) & 1 == 1
    }

    fn find(&self, from: u32, units: u32) -> Option<u32> {
        let mut first = self.free_from(from)?;
        loop {
            let end = first.checked_add(units).filter(|end| *end <= self.units())?;
            match (first + 1..end).find(|at| self.is_taken(*at)) {
                None => return Some(first),
                Some(taken) => first = self.free_from(taken)?,
            }
        }
    }

    fn flip(&mut self, first: u32, units: u32) {
        (first..first + units).for_each(|at| self.words[at as usize / 64] ^= 1 << (at % 64));
    }
}

impl Space for Bitmap {
    type Place = u32;

    fn take(&mut self, units: u32) -> Option<u32> {
        let first = self.find(self.next, units).or_else(|| self.find(0, units))?;
        self.flip(first, units);
        self.next = first + units;
        Some(first)
    }

    fn give(&mut self, place: u32, units: u32) {
        self.flip(place, units);
    }
}

const NONE: u32 = u32::MAX;
/// In [`Buddy::orders`]: no free block begins there.
const NO_ORDER: u8 = u8::MAX;

/// Blocks of powers of two; the free ones of each order in a list.
struct Buddy {
    orders: Vec<u8>,
    next: Vec<u32>,
    last: Vec<u32>,
    first: Vec<u32>,
}

impl Buddy {
    fn new(units: u32) -> Buddy {
        let count = units as usize;
        let orders = units.ilog2() as usize + 1;
        let mut buddy = Buddy {
            orders: vec![NO_ORDER; count],
            next: vec![NONE; count],
            last: vec![NONE; count],
            first: vec![NONE; orders],
        };
        buddy.put(0, orders as u8 - 1);
        buddy
    }

    fn put(&mut self, at: u32, order: u8) {
        let first = self.first[order as usize];
        self.orders[at as usize] = order;
        (self.next[at as usize], self.last[at as usize]) = (first, NONE);
        if first != NONE {
            self.last[first as usize] = at;
        }
        self.first[order as usize] = at;
    }

    fn remove(&mut self, at: u32, order: u8) {
        let (next, last) = (self.next[at as usize], self.last[at as usize]);
        match last {
            NONE => self.first[order as usize] = next,
            _ => self.next[last as usize] = next,
        }
        if next != NONE {
            self.last[next as usize] = last;
        }
        self.orders[at as usize] = NO_ORDER;
    }
}

fn order_of(units: u32) -> u8 {
    units.next_power_of_two().ilog2() as u8
}

impl Space for Buddy {
    type Place = u32;

    fn take(&mut self, units: u32) -> Option<u32> {
        let order = order_of(units);
        let found = (order..self.first.len() as u8).find(|at| self.first[*at as usize] != NONE)?;
        let at = self.first[found as usize];
        self.remove(at, found);
        (order..found).rev().for_each(|half| self.put(at + (1 << half), half));
        Some(at)
    }

    fn give(&mut self, place: u32, units: u32) {
        let (mut at, mut order) = (place, order_of(units));
        while usize::from(order) + 1 < self.first.len() {
            let buddy = at ^ (1 << order);
            if self.orders[buddy as usize] != order {
                break;
            }
            self.remove(buddy, order);
            at &= !(1 << order);
            order += 1;
        }
        self.put(at, order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places never overlap, and all memory is there again.
    fn keeps_places_apart(mut space: impl Space<Place = u32>) {
        let (mut held, mut owners): (VecDeque<(u32, u32)>, _) = (VecDeque::new(), vec![false; 256]);
        for step in 0u32..2000 {
            let units = step * 7 % 9 + 1;
            match space.take(units) {
                Some(place) => {
                    let places = place as usize..(place + units) as usize;
                    assert!(!owners[places.clone()].contains(&true), "taken twice");
                    owners[places].fill(true);
                    held.push_back((place, units));
                }
                None => {
                    let (place, units) = held.pop_front().expect("something is taken");
                    owners[place as usize..(place + units) as usize].fill(false);
                    space.give(place, units);
                }
            }
        }
        held.into_iter().for_each(|(place, units)| space.give(place, units));
        assert_eq!(space.take(256), Some(0));
    }

    #[test]
    fn a_bitmap_keeps_places_apart() {
        keeps_places_apart(Bitmap::new(256));
    }

    #[test]
    fn a_buddy_system_keeps_places_apart() {
        keeps_places_apart(Buddy::new(256));
    }
}
